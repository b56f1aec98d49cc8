// Rows that kafkajs writes and reads over SASL_SSL; prints them as a JSON line.
//   node login.mjs HOST:PORT,… TOPIC CA USER PASSWORD MECHANISM     (the group is named like the topic)
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const require = createRequire(pathToFileURL(process.cwd() + '/'))
const { Kafka, logLevel } = require('kafkajs')

const [servers, topic, ca, username, password, mechanism] = process.argv.slice(2)
const kafka = new Kafka({
  clientId: 'compat', brokers: servers.split(','), logLevel: logLevel.NOTHING,
  ssl: { ca: [readFileSync(ca, 'utf-8')] },
  sasl: { mechanism: mechanism.toLowerCase(), username, password },
})
const producer = kafka.producer()
await producer.connect()
const messages = Array.from({ length: 50 }, (_, i) => ({ value: `row ${i}` }))
await producer.send({ topic, messages })
await producer.disconnect()

const rows = []
const consumer = kafka.consumer({ groupId: topic })
await consumer.connect()
await consumer.subscribe({ topics: [topic], fromBeginning: true })
await new Promise(resolve => consumer.run({
  eachMessage: async ({ message }) => {
    rows.push(message.value.toString())
    if (rows.length === messages.length) resolve()
  },
}))
await consumer.disconnect()
console.log(JSON.stringify({ step: 'login', answer: rows }))

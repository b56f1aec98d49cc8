// Rows that @platformatic/kafka writes and reads over SASL_SSL; prints them as a JSON line.
//   node platformatic-login.mjs HOST:PORT,… TOPIC CA USER PASSWORD MECHANISM     (the group is named like the topic)
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const { Consumer, MessagesStreamModes, Producer, stringDeserializers, stringSerializers } =
  createRequire(pathToFileURL(process.cwd() + '/'))('@platformatic/kafka')
const [servers, topic, ca, username, password, mechanism] = process.argv.slice(2)
const options = {
  clientId: 'compat', bootstrapBrokers: servers.split(','), retries: 100, retryDelay: 100,
  tls: { ca: [readFileSync(ca, 'utf-8')] },
  sasl: { mechanism, username, password },
}
const producer = new Producer({ ...options, serializers: stringSerializers, acks: -1 })
const messages = Array.from({ length: 50 }, (_, i) => ({ topic, value: `row ${i}` }))
await producer.send({ messages })
await producer.close()

const consumer = new Consumer({ ...options, groupId: topic, deserializers: stringDeserializers })
const stream = await consumer.consume({ topics: [topic], mode: MessagesStreamModes.EARLIEST })
const rows = []
for await (const { value } of stream) {
  rows.push(value)
  if (rows.length === messages.length) break
}
await consumer.close(true)
console.log(JSON.stringify({ step: 'login', answer: rows }))
process.exit(0)

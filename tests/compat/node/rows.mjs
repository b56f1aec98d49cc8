// Rows through kafkajs; partition 0.
//   node rows.mjs write HOST:PORT,… TOPIC CODEC    |    read HOST:PORT,… TOPIC START COUNT
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { addCodecs } from './codecs.mjs'
import { given, print } from './lines.mjs'

const require = createRequire(pathToFileURL(process.cwd() + '/'))
const { Kafka, CompressionTypes, logLevel } = require('kafkajs')
const [mode, servers, topic, ...rest] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'compat', brokers: servers.split(','), logLevel: logLevel.NOTHING })
await addCodecs(require)

async function write(codec) {
  const types = Object.entries(CompressionTypes)
  const [, compression] = types.find(([name]) => name.toLowerCase() === codec)
  const messages = []
  for await (const { key, value, headers, ms } of given()) {
    const named = {}
    for (const [name, bytes] of headers) (named[name] ??= []).push(bytes)
    messages.push({ key, value, headers: named, timestamp: String(ms), partition: 0 })
  }
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic, messages, compression })
  await producer.disconnect()
}

async function read(start, count) {
  const groupId = `rows-${topic}-${start}-${process.pid}`
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 100 })
  let left = count
  await consumer.connect()
  await consumer.subscribe({ topics: [topic] })
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    const eachMessage = async ({ message: { key, value, headers, timestamp } }) => {
      if (left-- <= 0) return
      const pairs = Object.entries(headers)
        .flatMap(([name, values]) => [values].flat().map(each => [name, each]))
      print(key, value, pairs, timestamp)
      if (left === 0) resolve()
    }
    consumer.run({ eachMessage })
      .then(() => consumer.seek({ topic, partition: 0, offset: String(start) }))
      .catch(reject)
  })
  await consumer.disconnect()
}

await (mode === 'write' ? write(...rest) : read(...rest.map(Number)))
process.exit(0)

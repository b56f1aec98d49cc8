// Rows through @platformatic/kafka; partition 0.
//   node platformatic-rows.mjs write HOST:PORT,… TOPIC CODEC    |    read HOST:PORT,… TOPIC START COUNT
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { given, print } from './lines.mjs'

const { Consumer, MessagesStreamModes, Producer } =
  createRequire(pathToFileURL(process.cwd() + '/'))('@platformatic/kafka')
const [mode, servers, topic, ...rest] = process.argv.slice(2)
const options = {
  clientId: 'compat', bootstrapBrokers: servers.split(','), retries: 100, retryDelay: 100,
}

async function write(compression) {
  const messages = []
  for await (const { key, value, headers, ms } of given()) {
    // A map of names as bytes may hold one twice.
    const named = new Map(headers.map(([name, bytes]) => [Buffer.from(name), bytes]))
    messages.push({ topic, partition: 0, key, value, headers: named, timestamp: BigInt(ms) })
  }
  const producer = new Producer({ ...options, compression, acks: -1 })
  await producer.send({ messages })
  await producer.close()
}

async function read(start, count) {
  const groupId = `rows-${topic}-${start}-${process.pid}`
  const consumer = new Consumer({ ...options, groupId, maxWaitTime: 100, autocommit: false })
  const offsets = [{ topic, partition: 0, offset: BigInt(start) }]
  const stream = await consumer.consume({ topics: [topic], mode: MessagesStreamModes.MANUAL, offsets })
  let left = count
  for await (const { key, value, headers, timestamp } of stream) {
    print(key, value, [...headers].map(([name, bytes]) => [name.toString(), bytes]), timestamp)
    if (--left === 0) break
  }
  await consumer.close(true)
}

await (mode === 'write' ? write(...rest) : read(...rest.map(Number)))
process.exit(0)

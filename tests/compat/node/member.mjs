// A member of a group, by kafkajs; "partition offset" for each record, until SIGTERM.
//   node member.mjs HOST:PORT,… TOPIC GROUP SESSION_MS
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const { Kafka, logLevel } = createRequire(pathToFileURL(process.cwd() + '/'))('kafkajs')
const [servers, topic, groupId, session] = process.argv.slice(2)
const sessionTimeout = Number(session)
const kafka = new Kafka({ clientId: 'compat', brokers: servers.split(','), logLevel: logLevel.NOTHING })
// kafkajs beats between fetches, so each has to end well within the session.
const often = sessionTimeout / 10
const consumer = kafka.consumer({
  groupId, sessionTimeout, heartbeatInterval: often, maxWaitTimeInMs: often,
})
process.on('SIGTERM', async () => {
  await consumer.disconnect()
  process.exit(0)
})
await consumer.connect()
await consumer.subscribe({ topics: [topic], fromBeginning: true })
await consumer.run({
  autoCommitInterval: 200,
  eachMessage: async ({ partition, message }) => console.log(`${partition} ${message.offset}`),
})

// A member of a group, by @platformatic/kafka; "partition offset" for each record, until SIGTERM.
//   node platformatic-member.mjs HOST:PORT,… TOPIC GROUP SESSION_MS
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const { Consumer, MessagesStreamFallbackModes, MessagesStreamModes } =
  createRequire(pathToFileURL(process.cwd() + '/'))('@platformatic/kafka')
const [servers, topic, groupId, session] = process.argv.slice(2)
const sessionTimeout = Number(session)
const consumer = new Consumer({
  clientId: 'compat', bootstrapBrokers: servers.split(','), retries: 100, retryDelay: 100,
  groupId, sessionTimeout, heartbeatInterval: sessionTimeout / 10, maxWaitTime: sessionTimeout / 10,
})
let leaves = false
let stream
process.on('SIGTERM', async () => {
  leaves = true
  // A consumer that is closed commits nothing any more, also for its streams.
  await stream.close()
  await consumer.close(true)
  process.exit(0)
})
// A stream ends with an error where a commit of it meets a rebalance; the next goes on behind the last commit.
while (!leaves) {
  try {
    stream = await consumer.consume({
      topics: [topic], autocommit: 200, mode: MessagesStreamModes.COMMITTED,
      fallbackMode: MessagesStreamFallbackModes.EARLIEST,
    })
    for await (const { partition, offset } of stream) console.log(`${partition} ${offset}`)
  } catch (error) {
    console.error(error.message)
  }
}

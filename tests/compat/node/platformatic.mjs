// What a Node program asks of a cluster, by @platformatic/kafka; one JSON line for each step.
//   node platformatic.mjs HOST:PORT,… TOPIC
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import zlib from 'node:zlib'

const { Admin, Consumer, MessagesStreamModes, Producer, stringDeserializers, stringSerializers } =
  createRequire(pathToFileURL(process.cwd() + '/'))('@platformatic/kafka')
const [servers, topic] = process.argv.slice(2)
// A leader hears of a new topic a moment after it was made.
const options = {
  clientId: 'compat', bootstrapBrokers: servers.split(','), retries: 100, retryDelay: 100,
}
const group = `${topic}-group`
// Node itself brings zstd, from 22.15 on.
const codecs = ['none', 'gzip', 'snappy', 'lz4', ...(zlib.zstdCompressSync ? ['zstd'] : [])]
const plain = (_, value) => typeof value === 'bigint' ? Number(value) : value

async function step(name, ask) {
  let row
  try {
    row = { step: name, answer: (await ask()) ?? null }
  } catch (error) {
    row = { step: name, error: [error, ...(error.errors ?? [])].map(each => each.message).join(' ') }
  }
  console.log(JSON.stringify(row, plain))
}

// So do the other brokers, of which it asks any.
async function isListed() {
  for (let tries = 0; tries < options.retries; tries++) {
    if ((await admin.listTopics()).includes(topic)) return true
    await new Promise(resolve => setTimeout(resolve, options.retryDelay))
  }
  return false
}

async function produce(compression) {
  const serializers = stringSerializers
  const producer = new Producer({ ...options, serializers, idempotent: true, acks: -1, compression })
  const row = { topic, partition: 0, key: 'k', value: compression, headers: { h: 'x' } }
  const { offsets } = await producer.send({ messages: [row, { topic, partition: 0, key: 'gone' }] })
  await producer.close()
  return offsets.map(({ offset }) => offset)
}

async function consume(groupId, count, how) {
  const consumer = new Consumer({
    ...options, groupId, deserializers: stringDeserializers, sessionTimeout: 10000,
    heartbeatInterval: 500, maxWaitTime: 200,
  })
  const stream = await consumer.consume({ topics: [topic], autocommit: 100, ...how })
  const rows = []
  for await (const { offset, key, value, headers } of stream) {
    rows.push([offset, key, value ?? null, [...headers]])
    if (rows.length === count) break
  }
  const state = (await admin.describeGroups({ groups: [groupId] })).get(groupId).state
  await consumer.close(true)
  return { rows, state }
}

async function commitAndFetch() {
  const consumer = new Consumer({ ...options, groupId: group })
  await consumer.joinGroup()
  const row = { topic, partition: 0, offset: 7n, leaderEpoch: 0 }
  await consumer.commit({ offsets: [row] })
  await consumer.close(true)
  const topics = [{ name: topic, partitionIndexes: [0] }]
  const [found] = await admin.listConsumerGroupOffsets({ groups: [{ groupId: group, topics }] })
  return found.topics[0].partitions[0].committedOffset
}

const admin = new Admin(options)
await step('createTopics', async () =>
  (await admin.createTopics({ topics: [topic], partitions: 2, replicas: 1 })).length)
await step('listTopics', isListed)
for (const codec of codecs) await step(`produce ${codec}`, () => produce(codec))
const mode = MessagesStreamModes
await step('consume', () =>
  consume(`${topic}-all`, 2 * codecs.length, { mode: mode.EARLIEST }))
const last = BigInt(2 * codecs.length - 1)
const offsets = [{ topic, partition: 0, offset: last }, { topic, partition: 1, offset: 0n }]
await step('seek', () => consume(`${topic}-seek`, 1, { mode: mode.MANUAL, offsets }))
await step('commit', commitAndFetch)
await step('listGroups', async () => (await admin.listGroups()).has(group))
await step('createPartitions', () => admin.createPartitions({ topics: [{ name: topic, count: 3 }] }))
await step('describeConfigs', async () => {
  const wanted = { resourceType: 2, resourceName: topic, configurationKeys: ['retention.ms'] }
  const [{ configs }] = await admin.describeConfigs({ resources: [wanted] })
  return configs.map(({ name, value }) => [name, value])
})
await step('describeLogDirs', async () =>
  (await admin.describeLogDirs({ topics: [{ name: topic, partitions: [0] }] })).length)
await step('describeAcls', () => admin.describeAcls({
  filter: {
    resourceType: 1, resourceName: null, resourcePatternType: 1, principal: null, host: null,
    operation: 1, permissionType: 1,
  },
}))
await step('deleteGroups', () => admin.deleteGroups({ groups: [group] }))
await step('deleteTopics', () => admin.deleteTopics({ topics: [topic] }))
await admin.close()
process.exit(0)

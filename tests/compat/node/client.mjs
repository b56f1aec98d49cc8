// What a Node program asks of a cluster, by kafkajs; one JSON line for each step.
//   node client.mjs HOST:PORT,… TOPIC GROUP     (the group has an offset of a topic of its own name)
// kafkajs reads only as a member of a group, so records are fetched by the request below its consumer.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { addCodecs } from './codecs.mjs'

const require = createRequire(pathToFileURL(process.cwd() + '/'))
const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs')
const Cluster = require('kafkajs/src/cluster')
const createSocketFactory = require('kafkajs/src/network/socketFactory')
const { createLogger } = require('kafkajs/src/loggers')

await addCodecs(require)

const [servers, topic, group] = process.argv.slice(2)
const brokers = servers.split(',')
const codecsTopic = `${topic}-codecs`
const silent = () => () => {}
const kafka = new Kafka({
  clientId: 'compat', brokers, logLevel: logLevel.NOTHING, retry: { retries: 5 },
})
const admin = kafka.admin()
const producer = kafka.producer({ idempotent: true })

async function step(name, ask) {
  let row
  try {
    row = { step: name, answer: (await ask()) ?? null }
  } catch (error) {
    row = { step: name, error: error.name, type: error.type ?? null, message: error.message }
  }
  console.log(JSON.stringify(row))
}

async function eventually(ask) {
  for (;;) {
    try {
      return await ask()
    } catch (error) {
      if (!error.retriable) throw error
      await new Promise(resolve => setTimeout(resolve, 20))
    }
  }
}

async function fetchAll(partition) {
  const cluster = new Cluster({
    logger: createLogger({ level: logLevel.NOTHING, logCreator: silent }),
    socketFactory: createSocketFactory(), brokers, clientId: 'compat', connectionTimeout: 5000,
    requestTimeout: 30000, enforceRequestTimeout: true, metadataMaxAge: 300000, retry: {},
    allowAutoTopicCreation: false, isolationLevel: 0, offsets: new Map(),
  })
  await cluster.connect()
  await cluster.addTargetTopic(topic)
  const { leader } = cluster.findTopicPartitionMetadata(topic)
    .find(row => row.partitionId === partition)
  const broker = await cluster.findBroker({ nodeId: leader })
  const { responses } = await broker.fetch({
    maxWaitTime: 500, minBytes: 1, maxBytes: 1 << 20, isolationLevel: 0,
    topics: [{ topic, partitions: [{ partition, fetchOffset: '0', maxBytes: 1 << 20 }] }],
  })
  await cluster.disconnect()
  return responses[0].partitions[0].messages.map(message => ({
    offset: Number(message.offset),
    key: message.key && message.key.toString(),
    value: message.value && message.value.toString(),
    headers: Object.fromEntries(
      Object.entries(message.headers).map(([name, value]) => [name, value.toString()])),
  }))
}

// The values of so many records as a member of a group; `leave` ends it. A member reads from
// `seekTo` or, without it, from the beginning.
async function consume(groupId, topic, count, seekTo) {
  const consumer = kafka.consumer({ groupId })
  const values = []
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    const eachMessage = async ({ message }) => {
      values.push(message.value && message.value.toString())
      if (values.length === count) resolve()
    }
    consumer.connect()
      .then(() => consumer.subscribe({ topics: [topic], fromBeginning: seekTo === undefined }))
      .then(() => consumer.run({ eachMessage }))
      .then(() => seekTo && consumer.seek({ topic, partition: 0, offset: seekTo }))
      .catch(reject)
  })
  return { values, leave: () => consumer.disconnect() }
}

async function everyCodec() {
  for (const [name, compression] of Object.entries(CompressionTypes)) {
    await producer.send({
      topic: codecsTopic, compression, messages: [{ key: 'k', value: name.repeat(9), headers: { h: 'x' } }],
    })
  }
  const all = await consume(`${group}-codecs`, codecsTopic, 5)
  await all.leave()
  const last = await consume(`${group}-seek`, codecsTopic, 1, '4')
  await last.leave()
  return { all: all.values, last: last.values }
}

async function consumeInGroup() {
  const groupId = `${group}-members`
  const { values, leave } = await consume(groupId, topic, 3)
  const { groups: [{ state, members }] } = await admin.describeGroups([groupId])
  await leave()
  const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] })
  const offsets = partitions.map(({ partition, offset }) => [partition, offset]).sort()
  return { values, state, members: members.length, offsets }
}

await admin.connect()
await producer.connect()
const config = [{ name: 'retention.ms', value: '600000' }]
const created = { topic, numPartitions: 2, replicationFactor: 1, configEntries: config }
await step('createTopics', () => admin.createTopics({ topics: [created] }))
await admin.createTopics({ topics: [{ topic: codecsTopic, numPartitions: 1 }] })
await step('createTopics again', () => admin.createTopics({ topics: [created] }))
await step('listTopics', () => admin.listTopics())
await step('describeCluster', () => admin.describeCluster())
await step('fetchTopicMetadata', () => eventually(() => admin.fetchTopicMetadata({ topics: [topic] })))
await step('send', () => producer.send({
  topic,
  messages: [
    { key: 'k', value: 'one', partition: 0, headers: { h: 'x' } },
    { key: 'gone', value: null, partition: 0 },
  ],
}))
await step('send gzip', () => producer.send({
  topic, compression: CompressionTypes.GZIP, messages: [{ value: 'zipped', partition: 0 }],
}))
await step('fetch', () => fetchAll(0))
await step('consumer in a group', consumeInGroup)
await step('every codec, seek', everyCodec)
await step('fetchTopicOffsets', () => admin.fetchTopicOffsets(topic))
await step('fetchTopicOffsetsByTimestamp', () => admin.fetchTopicOffsetsByTimestamp(topic, 1))
await step('createPartitions', () => admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] }))
await step('alterConfigs', () => admin.alterConfigs({
  resources: [{
    type: ConfigResourceTypes.TOPIC, name: topic,
    configEntries: [{ name: 'segment.bytes', value: '20000000' }],
  }],
}))
await step('describeConfigs', () => admin.describeConfigs({
  resources: [{
    type: ConfigResourceTypes.TOPIC, name: topic, configNames: ['retention.ms', 'segment.bytes'],
  }],
}))
// It asks all partitions for their ends, and gives up where the leader of a new one has not heard of it.
await step('deleteTopicRecords', () => eventually(() => admin.deleteTopicRecords({
  topic, partitions: [{ partition: 0, offset: '1' }],
})))
await step('fetchOffsets', () => admin.fetchOffsets({ groupId: group, topics: [group] }))
await step('listGroups', () => admin.listGroups())
await step('describeGroups', () => admin.describeGroups([group]))
await step('deleteGroups', () => admin.deleteGroups([group]))
await step('describeAcls', () => admin.describeAcls({
  resourceName: '*', resourceType: 2, host: '*', permissionType: 3, operation: 2,
  resourcePatternType: 3,
}))
await step('deleteTopics', () => admin.deleteTopics({ topics: [topic, codecsTopic] }))
await producer.disconnect()
await admin.disconnect()
process.exit(0)

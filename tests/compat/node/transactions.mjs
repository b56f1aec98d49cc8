// Transactions by kafkajs: three commit, two abort; one JSON line for each.
//   node transactions.mjs HOST:PORT,… TOPIC RECONNECT     ("reconnect": connections close before each end)
import { createRequire } from 'node:module'
import net from 'node:net'
import { pathToFileURL } from 'node:url'

const { Kafka, logLevel } = createRequire(pathToFileURL(process.cwd() + '/'))('kafkajs')
const [servers, topic, reconnect] = process.argv.slice(2)
const sockets = new Set()
const socketFactory = ({ host, port, onConnect }) => {
  const socket = net.connect({ host, port }, onConnect)
  sockets.add(socket)
  socket.once('close', () => sockets.delete(socket))
  return socket
}
const kafka = new Kafka({
  clientId: 'compat', brokers: servers.split(','), logLevel: logLevel.NOTHING, socketFactory,
  retry: { initialRetryTime: 50, retries: 10 },
})
const producer = kafka.producer({ transactionalId: topic, maxInFlightRequests: 1, idempotent: true })
await producer.connect()
for (let number = 0; number < 5; number++) {
  const transaction = await producer.transaction()
  await transaction.send({ topic, messages: [{ partition: 0, value: String(number) }] })
  if (reconnect === 'reconnect') {
    const closed = [...sockets].map(socket => new Promise(done => socket.once('close', done)))
    for (const socket of sockets) socket.destroy(new Error('the test closes this connection'))
    await Promise.all(closed)
  }
  await (number % 2 ? transaction.abort() : transaction.commit())
  console.log(JSON.stringify({ step: String(number), answer: number % 2 === 0 }))
}
await producer.disconnect()

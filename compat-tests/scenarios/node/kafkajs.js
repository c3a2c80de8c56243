// scenario: kafkajs: the codecs that it has, an idempotent producer, a group of two, a restart under it
// tier: normal
// limit: 120
// needs: node
// shows: kafkajs: codecs idempotent groups admin restart
const assert = require('assert')
const { once } = require('events')
const readline = require('readline')
const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = require('kafkajs')
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')

const answers = readline.createInterface({ input: process.stdin })
const ask = async request => {
  console.log('@' + request)
  const [answer] = await once(answers, 'line')
  assert(answer.startsWith('ok'), answer)
}
const until = async (condition, what, seconds = 30) => {
  for (const end = Date.now() + seconds * 1000; !condition(); await new Promise(r => setTimeout(r, 50))) assert(Date.now() < end, `not within ${seconds} s: ${what()}`)
}
const range = (from, to) => Array.from({ length: to - from }, (_, i) => from + i)

const kafka = new Kafka({ clientId: 'kafkajs', brokers: [process.env.BOOTSTRAP], logLevel: logLevel.NOTHING, retry: { initialRetryTime: 100, retries: 30, maxRetryTime: 1000 } })
const read = []
const partitions = { one: -1, two: -1 }

async function produce (values, compression = CompressionTypes.None) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  await producer.send({ topic: 'work', acks: -1, compression, messages: values.map(v => ({ key: `k${v}`, value: `${v}`, headers: { h: '1' }, timestamp: '1700000000000' })) })
  await producer.disconnect()
}

async function member (name) {
  const consumer = kafka.consumer({ groupId: 'team', sessionTimeout: 10000, heartbeatInterval: 500, rebalanceTimeout: 10000, maxWaitTimeInMs: 200 })
  consumer.on(consumer.events.GROUP_JOIN, e => { partitions[name] = (e.payload.memberAssignment.work || []).length })
  await consumer.connect()
  await consumer.subscribe({ topics: ['work'], fromBeginning: true })
  await consumer.run({
    autoCommitThreshold: 1,
    eachMessage: async ({ message }) => {
      assert.deepStrictEqual([message.key.toString(), message.headers.h.toString(), message.timestamp], ['k' + message.value, '1', '1700000000000'])
      read.push({ name, value: Number(message.value) })
    }
  })
  return consumer
}

const values = () => [...new Set(read.map(r => r.value))].sort((a, b) => a - b)

;(async () => {
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic: 'work', numPartitions: 4 }], waitForLeaders: true })
  for (const [i, codec] of [CompressionTypes.None, CompressionTypes.GZIP, CompressionTypes.Snappy].entries()) await produce(range(i * 50, i * 50 + 50), codec)
  console.log('ok idempotent writes with none, gzip, snappy')

  const one = await member('one')
  await until(() => values().length === 150 && partitions.one === 4, () => [values().length, partitions])
  assert.deepStrictEqual(read.map(r => r.value).sort((a, b) => a - b), range(0, 150), 'each exactly once')
  console.log('ok one member has all four partitions and reads everything')

  const two = await member('two')
  await until(() => partitions.one === 2 && partitions.two === 2, () => partitions)
  await produce(range(150, 250))
  await until(() => values().length === 250, () => values().length)
  assert.deepStrictEqual(new Set(read.filter(r => r.value >= 150).map(r => r.name)), new Set(['one', 'two']))
  console.log('ok a second member takes half of them')

  await ask('restart')
  await produce(range(250, 350))
  await until(() => values().length === 350, () => values().length, 60)
  console.log('ok both go on after the restart')

  await Promise.all([one.disconnect(), two.disconnect()])
  const [{ partitions: committed }] = await admin.fetchOffsets({ groupId: 'team', topics: ['work'] })
  const ends = await admin.fetchTopicOffsets('work')
  const byPartition = list => Object.fromEntries(list.map(p => [p.partition, p.offset]))
  assert.deepStrictEqual(byPartition(committed), byPartition(ends), 'committed')
  assert.strictEqual(ends.reduce((sum, p) => sum + Number(p.offset), 0), 350)
  console.log('ok what was committed is there')
  await admin.disconnect()
  process.exit(0)
})().catch(e => { console.log('FAILED', e); process.exit(1) })

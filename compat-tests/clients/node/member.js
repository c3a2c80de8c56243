// A member of a group (clients/python/members.py has the protocol), of kafkajs.
const { Kafka, logLevel } = require('kafkajs')

const [bootstrap, topic, groupId] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'kafkajs', brokers: bootstrap.split(','), logLevel: logLevel.NOTHING, retry: { initialRetryTime: 100, retries: 30, maxRetryTime: 1000 } })
const consumer = kafka.consumer({ groupId, sessionTimeout: 6000, heartbeatInterval: 300, rebalanceTimeout: 10000, maxWaitTimeInMs: 100 })
consumer.on(consumer.events.GROUP_JOIN, e => console.log('assigned', ...(e.payload.memberAssignment[topic] || [])))
consumer.on(consumer.events.REBALANCING, () => console.log('assigned'))

async function main () {
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch, resolveOffset, isRunning, isStale }) => {
      if (!isRunning() || isStale()) return
      for (const message of batch.messages) {
        console.log('read', batch.partition, message.offset, message.value.toString())
        resolveOffset(message.offset)
      }
      const offset = String(BigInt(batch.lastOffset()) + 1n)
      await consumer.commitOffsets([{ topic, partition: batch.partition, offset }])
      console.log('committed', batch.partition, offset)
    }
  })
}

process.stdin.once('end', leave).once('data', leave)
let leaving = false
async function leave () {
  if (leaving) return
  leaving = true
  await consumer.disconnect()
  process.exit(0)
}
main().catch(error => { console.log('said', error.message); process.exit(1) })

# scenario: aiokafka: every codec, a group of two, a restart under it
# tier: normal
# limit: 90
# needs: python-$WITH
# each: old new
# shows: aiokafka-$WITH: codecs idempotent groups admin restart
import asyncio, sys

sys.path = [p for p in sys.path if not p.endswith("scenarios/python")]  # this file has the client's own name
import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from harness import *

print("aiokafka", aiokafka.__version__)
group = dict(bootstrap_servers=BOOTSTRAP, group_id="team", auto_offset_reset="earliest", enable_auto_commit=False,
             session_timeout_ms=6000, heartbeat_interval_ms=500, metadata_max_age_ms=2000)


async def produce(values, **settings):
    async with AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, enable_idempotence=True, **settings) as producer:
        sent = [await producer.send("work", str(v).encode(), b"k%d" % v, headers=[("h", b"1")], timestamp_ms=1700000000000) for v in values]
        await asyncio.gather(*sent)


async def member(name, read, assigned):
    """Reads and commits until it is cancelled."""
    async with AIOKafkaConsumer("work", client_id=name, **group) as consumer:
        while True:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                for r in records:
                    equal((r.key, list(r.headers), r.timestamp), (b"k" + r.value, [("h", b"1")], 1700000000000))
                    read.append((name, int(r.value)))
            assigned[name] = len(consumer.assignment())
            if assigned[name]:
                try:
                    await consumer.commit()
                except aiokafka.errors.KafkaError as e:  # the group rebalances, or the broker is away
                    print("commit:", e)


async def until(condition, what, seconds=30):
    end = time.time() + seconds
    while not condition():
        holds(time.time() < end, f"not within {seconds} s: {what()}")
        await asyncio.sleep(0.05)


async def main():
    read, assigned = [], {}
    values = lambda: sorted(v for _, v in read)
    with check("creates a topic"):
        admin = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP)
        await admin.start()
        await admin.create_topics([NewTopic("work", 4, 1)])
        await admin.close()
    with check("idempotent writes with every codec"):
        for first, codec in enumerate((None, "gzip", "snappy", "lz4", "zstd")):
            await produce(range(first * 40, first * 40 + 40), compression_type=codec)
    one = asyncio.create_task(member("one", read, assigned))
    with check("one member has all four partitions and reads everything"):
        await until(lambda: len(read) >= 200 and assigned["one"] == 4, lambda: (len(read), assigned))
        equal(values(), list(range(200)))
    two = asyncio.create_task(member("two", read, assigned))
    with check("a second member takes half of them"):
        await until(lambda: assigned == {"one": 2, "two": 2}, lambda: assigned)
        await produce(range(200, 300))
        await until(lambda: len(read) >= 300, lambda: len(read))
        equal(values(), list(range(300)))
        equal({name for name, v in read if v >= 200}, {"one", "two"}, "members that read")
    with check("both go on after the broker's restart"):
        await asyncio.to_thread(ask, "restart")
        await produce(range(300, 400))
        # a group that rebalances after the restart may read again what it had not committed
        await until(lambda: len(set(values())) >= 400, lambda: len(read), 40)
        equal(set(values()), set(range(400)))
    with check("what was committed is there for the next member"):
        late = AIOKafkaConsumer(**group)
        await late.start()
        partitions = [TopicPartition("work", p) for p in range(4)]
        ends = await late.end_offsets(partitions)
        equal(sum(ends.values()), 400, "records in all")
        for _ in range(100):
            committed = {p: await late.committed(p) for p in partitions}
            if committed == ends:
                break
            await asyncio.sleep(0.1)
        equal(committed, ends, "committed")
        await late.stop()
    for task in (one, two):
        task.cancel()
    await asyncio.gather(one, two, return_exceptions=True)


asyncio.run(main())
finish()

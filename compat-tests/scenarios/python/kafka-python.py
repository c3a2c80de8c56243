# scenario: kafka-python: every codec, a group of two, a restart under it
# tier: normal
# limit: 120
# needs: python-$WITH
# each: old new
# shows: kafka-python-$WITH: codecs groups admin restart
import kafka
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from harness import *

print("kafka-python", kafka.__version__)
group = dict(bootstrap_servers=BOOTSTRAP, group_id="team", auto_offset_reset="earliest", enable_auto_commit=False,
             session_timeout_ms=6000, heartbeat_interval_ms=500, metadata_max_age_ms=2000)
# kafka-python 3.0.12 joins twice when it hears of a topic's partitions only after it has joined. If poll's time is over in
# between, it never takes the answer to the second: no assignment, no heartbeat, for good. So polls are long enough for both.
POLL_MS = 2000


def produce(values, **settings):
    producer = KafkaProducer(bootstrap_servers=BOOTSTRAP, acks="all", retries=10, **settings)
    sent = [producer.send("work", str(v).encode(), b"k%d" % v, [("h", b"1")], timestamp_ms=1700000000000) for v in values]
    for future in sent:
        future.get(20)
    producer.close()


def poll(members, until, seconds=30):
    """Polls the members in turn until `until` holds for what they read; returns (member, value) pairs."""
    read, end = [], time.time() + seconds
    while not until(read):
        if time.time() > end:
            raise AssertionError(f"after {seconds} s: {len(read)} read, assigned {[m.assignment() for m in members]}")
        for number, member in enumerate(members):
            for records in member.poll(POLL_MS).values():
                for r in records:
                    equal((r.key, list(map(tuple, r.headers)), r.timestamp), (b"k" + r.value, [("h", b"1")], 1700000000000))
                    read.append((number, int(r.value)))
    return read


with check("creates a topic"):
    admin = KafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    admin.create_topics([NewTopic("work", 4, 1)])
    admin.close()
with check("writes with every codec"):
    for first, codec in enumerate((None, "gzip", "snappy", "lz4", "zstd")):
        produce(range(first * 40, first * 40 + 40), compression_type=codec)

one, two = KafkaConsumer("work", **group), KafkaConsumer("work", **group)
with check("one member has all four partitions and reads everything"):
    read = poll([one], lambda read: len(read) >= 200)
    equal(sorted(v for _, v in read), list(range(200)))
    equal(len(one.assignment()), 4, "partitions")
    one.commit()


class Turning(threading.Thread):
    """A member polled by its own thread: joining blocks inside poll, and both must answer for a rebalance to end."""

    def __init__(self, consumer):
        super().__init__(daemon=True)
        self.consumer, self.read, self.stop, self.lock = consumer, [], False, threading.Lock()
        self.start()

    def run(self):
        while not self.stop:
            for records in self.consumer.poll(POLL_MS).values():
                with self.lock:
                    self.read += [int(r.value) for r in records]
            try:
                if self.consumer.assignment():
                    self.consumer.commit()
            except kafka.errors.KafkaError as e:  # the group rebalances, or the broker is away
                print("commit:", type(e).__name__)

    def assigned(self):
        return len(self.consumer.assignment())


with check("a second member takes half of them"):
    members = [Turning(one), Turning(two)]
    eventually(lambda: [m.assigned() for m in members] == [2, 2], "two partitions each", 30)
    produce(range(200, 300))
    eventually(lambda: sum(len(m.read) for m in members) >= 100, "100 records")
    equal(sorted(v for m in members for v in m.read), list(range(200, 300)))
    holds(all(m.read for m in members), "only one of them read")
with check("both go on after the broker's restart"):
    ask("restart")
    produce(range(300, 400))
    # a group that rebalances after the restart may read again what it had not committed
    seen = lambda: {v for m in members for v in m.read}
    eventually(lambda: len(seen()) >= 200, "100 more records", 40)
    equal(seen(), set(range(200, 400)))
with check("what was committed is there for the next member"):
    late = KafkaConsumer(**group)
    partitions = [TopicPartition("work", p) for p in range(4)]
    ends = late.end_offsets(partitions)
    equal(sum(ends.values()), 400, "records in all")
    eventually(lambda: [late.committed(p) for p in partitions] == [ends[p] for p in partitions], f"committed {ends}")
    for m in members:
        m.stop = True
        m.join(10)
        m.consumer.close()
    late.subscribe(["work"])
    produce(range(400, 410))
    read = poll([late], lambda read: len(read) >= 10)
    equal(sorted(v for _, v in read), list(range(400, 410)))
    late.close()
finish()

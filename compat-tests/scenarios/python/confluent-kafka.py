# scenario: confluent-kafka: librdkafka, an old one and a current one: every codec, a group of two, a restart under it
# tier: normal
# limit: 90
# needs: python-$WITH
# each: old new
# shows: confluent-kafka-$WITH: codecs idempotent groups admin restart
import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness import *

print("librdkafka", confluent_kafka.libversion()[0])
quiet = {"bootstrap.servers": BOOTSTRAP, "log_level": 3}
group = {**quiet, "group.id": "team", "auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 6000}


def produce(values, **settings):
    told = []
    producer = Producer({**quiet, "acks": "all", "enable.idempotence": True, **settings})
    for value in values:
        producer.produce("work", value.encode(), key=f"k{value}".encode(), headers={"h": b"1"}, timestamp=1700000000000,
                         on_delivery=lambda error, message: told.append(error))
    equal(producer.flush(20), 0, "left in the queue")
    equal(set(told), {None}, "delivery reports")


def poll(members, until, seconds=25):
    """Polls the members in turn until `until` holds for what they read; returns (member, value) pairs."""
    read, end = [], time.time() + seconds
    while not until(read):
        if time.time() > end:
            raise AssertionError(f"after {seconds} s: {len(read)} read, assigned {[m.assignment() for m in members]}")
        for number, member in enumerate(members):
            message = member.poll(0.05)
            if message is not None and not message.error():
                equal((message.key(), message.headers(), message.timestamp()[1]), (b"k" + message.value(), [("h", b"1")], 1700000000000))
                read.append((number, int(message.value())))
    return read


admin = AdminClient(quiet)
with check("creates a topic"):
    admin.create_topics([NewTopic("work", 4, 1)])["work"].result(20)
with check("idempotent writes with every codec"):
    for first, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        produce(map(str, range(first * 40, first * 40 + 40)), **{"compression.type": codec})

one, two = Consumer(group), Consumer(group)
with check("one member has all four partitions and reads everything"):
    one.subscribe(["work"])
    read = poll([one], lambda read: len(read) >= 200)
    equal(sorted(v for _, v in read), list(range(200)))
    equal(len(one.assignment()), 4, "partitions")
    one.commit(asynchronous=False)
with check("a second member takes half of them"):
    two.subscribe(["work"])
    poll([one, two], lambda _: len(one.assignment()) == 2 and len(two.assignment()) == 2)
    produce(map(str, range(200, 300)))
    read = poll([one, two], lambda read: len(read) >= 100)
    equal(sorted(v for _, v in read), list(range(200, 300)))
    equal({number for number, _ in read}, {0, 1}, "members that read")
    one.commit(asynchronous=False)
    two.commit(asynchronous=False)
with check("both go on after the broker's restart"):
    ask("restart")
    produce(map(str, range(300, 400)))
    # a group that rebalances after the restart may read again what it had not committed
    read = poll([one, two], lambda read: len({v for _, v in read}) >= 100, 40)
    equal({v for _, v in read}, set(range(300, 400)))
    one.commit(asynchronous=False)
    two.commit(asynchronous=False)
with check("what was committed is there for the next member"):
    late = Consumer(group)
    partitions = [TopicPartition("work", p) for p in range(4)]
    ends = [late.get_watermark_offsets(partition, 10)[1] for partition in partitions]
    equal(sum(ends), 400, "records in all")

    def all_is_committed(_):
        for member in (one, two):
            with contextlib.suppress(KafkaException):  # it has nothing to commit, or the group rebalances
                member.commit(asynchronous=False)
        return [partition.offset for partition in late.committed(partitions, 10)] == ends

    poll([one, two], all_is_committed)  # what one had read and not committed before a rebalance is the other's
    for consumer in (one, two, late):
        consumer.close()
finish()

# scenario: kill-rounds: killed with -9 at random moments under load: nothing acknowledged is lost, twice or out of order, and no committed offset goes back
# tier: normal
# limit: 150
# soak limit: 5400
# needs: python-new kafka-4.4.0
# against: klamm 4.4.0
# broker: log.cleaner.backoff.ms=200
#
# Two idempotent producers with acks=all, librdkafka's and Java's, write all the time and retry through every kill; a group
# reads along and commits. What a producer sent must in the end be there once, in order, where it was acknowledged. The
# topics have small segments; one is compacted, and the last value of each of its keys must be the last acknowledged one.
import random
from confluent_kafka import Consumer, KafkaException, OFFSET_BEGINNING, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness import *

ROUNDS = 1 if not KLAMM else 100 if os.environ["SOAK"] else 3  # Apache Kafka takes long to start
SEED = os.environ.get("KILL_SEED") or str(random.SystemRandom().randrange(10**9))
PARTITIONS, KEYS = 4, 50
A_SECOND = 3000  # records of each producer
quiet = {"bootstrap.servers": BOOTSTRAP, "log_level": 0, "reconnect.backoff.max.ms": 200}
group = {**quiet, "group.id": "followers", "auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 6000}
chance = random.Random(SEED)
print(f"KILL_SEED={SEED}, {ROUNDS} rounds")

ended = threading.Event()
acknowledged = {"numbers": {}, "latest": {}, "java": {}}  # topic: number: (partition, offset)
errors = []


def pace(begin, sent):
    """Sleeps while more was sent than the rate allows; what a standstill kept back may follow faster."""
    ahead = sent / A_SECOND - (time.time() - begin)
    if ahead > 0.01:
        time.sleep(ahead)


def librdkafka():
    producer = Producer({**quiet, "acks": "all", "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 120000, "queue.buffering.max.messages": 20000})

    def told(topic, number):
        def tell(error, message):
            if error:
                errors.append(f"{topic} {number}: {error}")
            else:
                acknowledged[topic][number] = (message.partition(), message.offset())
        return tell

    begin, number = time.time(), 0
    while not ended.is_set():
        try:
            value = b"%d %s" % (number, b"x" * (number % 1500))
            producer.produce("numbers", value, key=b"%d" % number, partition=number % PARTITIONS, on_delivery=told("numbers", number))
            if number % 3 == 0:
                producer.produce("latest", value, key=b"%d" % (number % KEYS), partition=0, on_delivery=told("latest", number))
            number += 1
        except BufferError:  # the broker is away
            producer.poll(0.05)
        producer.poll(0)
        pace(begin, number)
    equal(producer.flush(120), 0, "left in the queue of librdkafka")
    sent["numbers"] = range(number)
    sent["latest"] = range(0, number, 3)


def java():
    out = subprocess.Popen(["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={JARS}/log4j2.properties", "-cp", f"{JARS}/libs/*",
                            f"{os.environ['CLIENTS']}/java/Endless.java", BOOTSTRAP, "java", str(PARTITIONS), str(A_SECOND)],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    threading.Thread(target=lambda: (ended.wait(), out.stdin.close()), daemon=True).start()
    count = 0
    for line in out.stdout:
        if line[0].isdigit():
            number, partition, offset = map(int, line.split())
            acknowledged["java"][number] = (partition, offset)
        elif line.startswith("sent "):
            count = int(line.split()[1])
        else:
            errors.append("java: " + line.strip())
    equal(out.wait(), 0, "exit code of the Java producer")
    sent["java"] = range(count)


def followers():
    """Reads along and remembers the highest offsets whose commit was answered."""
    consumer = Consumer(group)
    consumer.subscribe(["numbers"])
    while not ended.is_set():
        messages = [m for m in consumer.consume(500, 0.2) if not m.error()]
        if not messages:
            continue
        offsets = {m.partition(): m.offset() + 1 for m in messages}
        try:
            consumer.commit(offsets=[TopicPartition("numbers", p, o) for p, o in offsets.items()], asynchronous=False)
            committed.update({p: max(o, committed.get(p, 0)) for p, o in offsets.items()})
        except KafkaException:
            pass  # the broker is away, or the group rebalances after it was
    consumer.close()


def running(work):
    """A thread whose failure fails the scenario."""
    def guarded():
        with check(work.__name__):
            work()
    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    return thread


def no_commit_went_back():
    known = dict(committed)
    asking = Consumer(group)
    def now():
        with contextlib.suppress(KafkaException):
            return {p.partition: p.offset for p in asking.committed([TopicPartition("numbers", p) for p in range(PARTITIONS)], 5)}
    there = eventually(now, "the group's offsets", 30)
    asking.close()
    for partition, offset in known.items():
        holds(there[partition] >= offset, f"partition {partition} of the group is at {there[partition]} after {offset} was committed")
    return known


def read(topic, partitions):
    consumer = Consumer({**group, "group.id": "reader", "fetch.wait.max.ms": 50})
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), 30)[1] for p in range(partitions)}
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
    at = lambda: {p.partition: p.offset for p in consumer.position([TopicPartition(topic, p) for p in range(partitions)])}
    limit = time.time() + 60 + 5 * ROUNDS
    while any(ends[p] and at()[p] < ends[p] for p in ends):
        holds(time.time() < limit, f"{topic} is at {at()} of {ends}")
        for message in consumer.consume(5000, 0.5):
            if not message.error():
                yield message.partition(), message.offset(), int(message.value().split()[0])
    consumer.close()


def each_is_there_once(topic):
    equal(len(acknowledged[topic]), len(sent[topic]), f"acknowledged of {topic}")
    following = {p: p for p in range(PARTITIONS)}
    for partition, offset, number in read(topic, PARTITIONS):
        equal(number, following[partition], f"the next number of {topic}-{partition} at offset {offset}")
        equal((partition, offset), acknowledged[topic][number], f"where {number} of {topic} was acknowledged")
        following[partition] += PARTITIONS
    equal(min(following.values()), max(p for p in range(len(sent[topic]), len(sent[topic]) + PARTITIONS)) - PARTITIONS + 1, f"where {topic} ends")


def each_key_has_its_last_value():
    last, before = {}, -1
    for partition, offset, number in read("latest", 1):
        holds(offset > before, f"offset {offset} follows {before}")
        equal((partition, offset), acknowledged["latest"][number], f"where {number} was acknowledged")
        last[number % KEYS], before = number, offset
    equal(last, {n % KEYS: n for n in sent["latest"]}, "last values")


JARS = pathlib.Path(os.environ["KAFKA_JARS"]) / "4.4.0"
committed, sent = {}, {}
admin = AdminClient(quiet)
small = {"segment.bytes": str(1 << 20)}
compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "500", **small}
for future in admin.create_topics([NewTopic("numbers", PARTITIONS, 1, config=small), NewTopic("java", PARTITIONS, 1, config=small), NewTopic("latest", 1, 1, config=compacted)]).values():
    future.result(20)
workers = [running(work) for work in (librdkafka, java, followers)]
eventually(lambda: all(acknowledged.values()) and committed, "everybody works", 30)
for number in range(ROUNDS):
    time.sleep(chance.choice((0.05, 1.5)) * chance.random() + 0.5 * chance.random())
    with check(f"round {number + 1}"):
        ask("crash")
        for _ in range(chance.choice((0, 0, 1, 2)) if KLAMM else 0):  # killed again as soon as it listens
            ask("start")
            time.sleep(chance.random() * 0.2)
            ask("crash")
        ask("start")
        known = no_commit_went_back()
        counts = {topic: len(numbers) for topic, numbers in acknowledged.items()}
        eventually(lambda: all(len(acknowledged[t]) > n for t, n in counts.items()), f"all write on after {counts}", 40)
        print(f"acknowledged {counts}, committed {known}")
ended.set()
for worker in workers:
    worker.join(150)
with check("no send failed"):
    equal(errors[:3], [], f"{len(errors)} errors")
for topic in ("numbers", "java"):
    with check(f"all of {topic} is there once, in order, where it was acknowledged"):
        each_is_there_once(topic)
with check("each key of the compacted topic has its last value"):
    each_key_has_its_last_value()
with check("no commit went back"):
    no_commit_went_back()
print(f"{sum(map(len, acknowledged.values()))} acknowledgements in {ROUNDS} rounds")
finish()

"""Producers that write numbered records through every failure of the brokers, a group that reads along, and what must be there in the end."""
import itertools, random, struct
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka import Consumer, KafkaException, OFFSET_BEGINNING, Producer, TopicPartition
from frames import Connection, fetch4
from harness import *

PARTITIONS, KEYS = 4, 50
A_SECOND = 3000 if KLAMM else 1000  # records of each producer; the oracle's JVMs need the machine
quiet = {"bootstrap.servers": BOOTSTRAP, "log_level": 0, "reconnect.backoff.max.ms": 200}
group = {**quiet, "group.id": "followers", "auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 6000}

ended = threading.Event()
acknowledged = {}  # topic: number: (partition, offset)
sent = {}          # topic: the numbers that were given to a producer
committed = {}     # partition of the group's topic: the highest offset whose commit was answered
errors = []
workers = []


def start(work, *arguments, **options):
    """A thread whose failure fails the scenario."""
    def guarded():
        with check(" ".join([work.__name__, *map(str, arguments)])):
            work(*arguments, **options)
    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    workers.append(thread)


def seeded(rounds):
    """Randomness that a run can be repeated with: KILL_SEED, else drawn and told."""
    seed = os.environ.get("KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    print(f"KILL_SEED={seed}, {rounds} rounds")
    return random.Random(seed)


def create(*topics):
    """Makes topics, once all nodes that clients are told to come to are in the cluster."""
    admin = AdminClient(quiet)  # its futures need it alive
    nodes = len(quiet["bootstrap.servers"].split(","))
    eventually(lambda: len(admin.list_topics(timeout=10).brokers) == nodes, f"{nodes} brokers", 40)
    for future in admin.create_topics(list(topics)).values():
        future.result(60)
    return admin


def all_work():
    return all(acknowledged.values()) and committed


def end():
    """Ends all producers and readers, once what they have sent is acknowledged."""
    ended.set()
    for worker in workers:
        worker.join(150)
    with check("no send failed"):
        equal(errors[:3], [], f"{len(errors)} errors")


def pace(begin, count):
    """Sleeps while more was sent than the rate allows; what a standstill kept back may follow faster."""
    ahead = count / A_SECOND - (time.time() - begin)
    if ahead > 0.01:
        time.sleep(ahead)


def librdkafka(topic, latest=None, acks="all"):
    """Writes to `topic`, and every third number also to the compacted topic `latest`; idempotent with acks=all, else in order by one request at a time."""
    for name in filter(None, (topic, latest)):
        acknowledged[name] = {}
    order = {"enable.idempotence": True} if acks == "all" else {"max.in.flight": 1}
    producer = Producer({**quiet, "acks": acks, **order, "linger.ms": 5, "message.timeout.ms": 120000, "queue.buffering.max.messages": 20000})

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
            producer.produce(topic, value, key=b"%d" % number, partition=number % PARTITIONS, on_delivery=told(topic, number))
            if latest and number % 3 == 0:
                producer.produce(latest, value, key=b"%d" % (number % KEYS), partition=0, on_delivery=told(latest, number))
            number += 1
        except BufferError:  # the broker is away
            producer.poll(0.05)
        producer.poll(0)
        pace(begin, number)
    equal(producer.flush(120), 0, "left in the queue of librdkafka")
    sent[topic] = range(number)
    if latest:
        sent[latest] = range(0, number, 3)


def java(topic, version="4.4.0", acks="all"):
    jars = pathlib.Path(os.environ["KAFKA_JARS"]) / version
    told(topic, ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={jars}/log4j2.properties", f"-Dlog4j.configuration=file:{jars}/log4j.properties",
                 "-cp", f"{jars}/libs/*", f"{os.environ['CLIENTS']}/java/Endless.java", BOOTSTRAP, topic, str(PARTITIONS), str(A_SECOND), acks])


def franz_go(topic, acks="all"):
    told(topic, [f"{os.environ['GO_PROGRAMS']}/endless", BOOTSTRAP, topic, str(PARTITIONS), str(A_SECOND), acks])


def told(topic, command):
    """Runs a producer in another language, which tells on its standard output what was acknowledged (Endless.java)."""
    acknowledged[topic] = {}
    out = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    threading.Thread(target=lambda: (ended.wait(), out.stdin.close()), daemon=True).start()
    count = 0
    for line in out.stdout:
        if line[0].isdigit():
            number, partition, offset = map(int, line.split())
            acknowledged[topic][number] = (partition, offset)
        elif line.startswith("sent "):
            count = int(line.split()[1])
        else:
            errors.append(f"{topic}: " + line.strip())
    equal(out.wait(), 0, f"exit code of the producer to {topic}")
    sent[topic] = range(count)


def followers(topic):
    """Reads along and remembers the highest offsets whose commit was answered."""
    consumer = Consumer(group)
    consumer.subscribe([topic])
    while not ended.is_set():
        messages = [m for m in consumer.consume(500, 0.2) if not m.error()]
        if not messages:
            continue
        offsets = {m.partition(): m.offset() + 1 for m in messages}
        try:
            consumer.commit(offsets=[TopicPartition(topic, p, o) for p, o in offsets.items()], asynchronous=False)
            committed.update({p: max(o, committed.get(p, 0)) for p, o in offsets.items()})
        except KafkaException:
            pass  # the broker is away, or the group rebalances after it was
    consumer.close()


def no_commit_went_back(topic):
    known = dict(committed)
    asking = Consumer(group)

    def now():
        with contextlib.suppress(KafkaException):
            return {p.partition: p.offset for p in asking.committed([TopicPartition(topic, p) for p in range(PARTITIONS)], 5)}

    there = eventually(now, "the group's offsets", 30)
    asking.close()
    for partition, offset in known.items():
        holds(there[partition] >= offset, f"partition {partition} of the group is at {there[partition]} after {offset} was committed")
    return known


def all_write_on(seconds=40):
    """Waits until each topic has more acknowledgements than now."""
    counts = {topic: len(numbers) for topic, numbers in acknowledged.items()}
    eventually(lambda: all(len(acknowledged[topic]) > count for topic, count in counts.items()), f"all write on after {counts}", seconds)
    return counts


def read(topic, partitions, seconds):
    """All records of a topic as (partition, offset, number)."""
    consumer = Consumer({**group, "group.id": "reader", "fetch.wait.max.ms": 50})
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), 30)[1] for p in range(partitions)}
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
    at = lambda: {p.partition: p.offset for p in consumer.position([TopicPartition(topic, p) for p in range(partitions)])}
    limit = time.time() + seconds
    while any(ends[p] and at()[p] < ends[p] for p in ends):
        holds(time.time() < limit, f"{topic} is at {at()} of {ends}")
        for message in consumer.consume(5000, 0.5):
            if not message.error():
                yield message.partition(), message.offset(), int(message.value().split()[0])
    consumer.close()


def in_sync(admin, replicas=3):
    """Whether all replicas of all partitions are in sync, as the broker that is asked sees it."""
    with contextlib.suppress(Exception):
        partitions = [p for topic in admin.list_topics(timeout=5).topics.values() for p in topic.partitions.values()]
        return all(p.leader >= 0 and len(p.isrs) == len(p.replicas) == replicas for p in partitions)


def heals(admin, replicas=3):
    """A failure is over: no commit of the readers of `numbers` went back, all write on, all replicas come to be in sync."""
    known = no_commit_went_back("numbers")
    print(f"acknowledged {all_write_on()}, committed {known}")
    eventually(lambda: in_sync(admin, replicas), "all replicas in sync", 60)


def judge(topics, rounds):
    """What must hold in the end of each topic, and of the readers of `numbers`."""
    for topic in topics:
        with check(f"all of {topic} is there once, in order, where it was acknowledged"):
            each_is_there_once(topic, 60 + 5 * rounds)
    with check("no commit went back"):
        no_commit_went_back("numbers")
    print(f"{sum(map(len, acknowledged.values()))} acknowledgements in {rounds} rounds")


def each_is_there_once(topic, seconds):
    """Nothing is lost or out of order, and all stands where it was acknowledged. Nothing stands there twice but what a producer
    has written again under a later epoch, as librdkafka does (librdkafka#4953): where a request comes after one that was refused, it
    is out of order, and librdkafka then raises its epoch and sends all that it has no answer for again, to all partitions."""
    equal(len(acknowledged[topic]), len(sent[topic]), f"acknowledged of {topic}")
    following, places, again = {p: p for p in range(PARTITIONS)}, {}, 0
    records = read(topic, PARTITIONS, seconds)
    for partition, offset, number in records:
        if number % PARTITIONS == partition and number < following[partition] and sent_again(topic, partition, places[number][-1], offset):
            again += 1
        elif number != following[partition]:
            behind = list(itertools.islice(((o, n, acknowledged[topic][n][1]) for p, o, n in records if p == partition), 40))
            raise AssertionError(f"{number} of {topic}-{partition} stands at offset {offset}, and was acknowledged at {acknowledged[topic].get(number)}; {following[partition]} is next. "
                                 f"Behind it (offset, number, where it was acknowledged): {behind}")
        places.setdefault(number, []).append(offset)
        following[partition] = number + PARTITIONS
    elsewhere = {n: (p, at, places.get(n)) for n, (p, at) in acknowledged[topic].items() if at not in places.get(n, [])}
    equal(list(elsewhere.items())[:10], [], f"{len(elsewhere)} of {topic} stand not where they were acknowledged (partition, acknowledged, places)")
    equal(min(following.values()), max(p for p in range(len(sent[topic]), len(sent[topic]) + PARTITIONS)) - PARTITIONS + 1, f"where {topic} ends")
    if again:
        print(f"in {again} places the producer of {topic} has written again what it had no answer for, under a later epoch")


def sent_again(topic, partition, first, second):
    """Whether the same producer has written what stands at two offsets, with a later epoch the second time. No broker can know then that it is the same."""
    (one, early), (other, late) = (producer_at(topic, partition, offset) for offset in (first, second))
    return one == other and early < late


def producer_at(topic, partition, offset):
    """The id and epoch of the producer of a record, as the head of its batch says."""
    told = AdminClient(quiet).list_topics(topic, timeout=10)
    leader = told.brokers[told.topics[topic].partitions[partition].leader]
    connection = Connection(leader.port, leader.host)
    answer = connection.call(fetch4(topic, ((partition, offset, 1 << 20),), wait=500))
    connection.close()
    batch = answer[4 + 4 + 4 + 2 + len(topic) + 4 + 4 + 2 + 8 + 8 + 4 + 4:]
    return struct.unpack_from(">qh", batch, 43)


def each_key_has_its_last_value(topic, seconds):
    last, before = {}, -1
    for partition, offset, number in read(topic, 1, seconds):
        holds(offset > before, f"offset {offset} follows {before}")
        equal((partition, offset), acknowledged[topic][number], f"where {number} was acknowledged")
        last[number % KEYS], before = number, offset
    equal(last, {n % KEYS: n for n in sent[topic]}, "last values")

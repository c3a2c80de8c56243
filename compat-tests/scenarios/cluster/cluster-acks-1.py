# scenario: cluster-acks-1: what acks=1 loses when leaders are killed before followers have all: the last records of each dead leader, counted, and nothing before them
# tier: all
# limit: 400
# soak limit: 3600
# needs: python-new kafka-4.4.0 go-endless
# against: klamm 4.4.0
# nodes: 3
# broker: broker.session.timeout.ms=4000 broker.heartbeat.interval.ms=500 default.replication.factor=3 min.insync.replicas=2
# shows: confluent-kafka-new java-4.4.0 franz-go: cluster
#
# With acks=1 a leader acknowledges what only it has. When it dies then, its last records are lost: Kafka documents no
# more. In each round the leader of a partition is killed with -9; in two of three rounds its followers have stood still
# (SIGSTOP) for a moment before, so that they are behind. Producers send one request at a time, so that what they send again may
# be there twice, and stays in order. A consumer reads along: it never sees what is lost.
from endless import *

ROUNDS = 30 if os.environ["SOAK"] else 6
chance = seeded(ROUNDS)
TOPICS = ("numbers", "java", "franz-go")
seen = {topic: {} for topic in TOPICS}  # topic: (partition, offset): the number that the consumer was given there


def reader(topic):
    """Reads along, and remembers everything."""
    consumer = Consumer({**group, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    while not ended.is_set():
        for message in consumer.consume(500, 0.2):
            if not message.error():
                place, number = (message.partition(), message.offset()), int(message.value().split()[0])
                equal(seen[topic].setdefault(place, number), number, f"the number at {place} of {topic}")
    consumer.close()


def behind():
    """Kills the leader of a partition some moments after its followers have stopped to fetch."""
    partition = chance.choice([p for topic in TOPICS for p in admin.list_topics(topic, 10).topics[topic].partitions.values()])
    others = [node for node in (1, 2, 3) if node != partition.leader]
    for node in others:
        ask(f"pause {node}")
    time.sleep(0.2 + chance.random())
    ask(f"crash {partition.leader}")
    for node in others:
        ask(f"continue {node}")
    return partition.leader


def level():
    """Kills a node while its followers fetch."""
    node = chance.randrange(1, 4)
    ask(f"crash {node}")
    return node


def losses(topic):
    """How many acknowledged records are lost, in how many partitions' leaders, and how many are there twice. Each loss must be the end of what one leader has acknowledged."""
    there, order = {}, {p: [] for p in range(PARTITIONS)}
    for partition, offset, number in read(topic, PARTITIONS, 60 + 5 * ROUNDS):
        there[partition, offset] = number
        order[partition].append(number)
    equal({place: there.get(place) for place in seen[topic]}, seen[topic], "what the consumer saw")
    lost, ends = set(), 0
    for partition in range(PARTITIONS):
        last, kept = -1, True
        for number, place in acknowledged[topic].items():
            if place[0] != partition:
                continue
            if place[1] <= last:  # another leader goes on where the last one had not all
                kept = True
            if there.get(place) == number:
                holds(kept, f"{number} of {topic} is at {place}, and an earlier record of the same leader is lost")
            else:
                ends += kept
                kept = False
                lost.add(number)
            last = place[1]
        holds(kept, f"the last records of {topic}-{partition} are lost, and none has followed them")
    for partition, numbers in order.items():
        first = list(dict.fromkeys(numbers))
        equal(first, sorted(first), f"the order of {topic}-{partition}")
    equal(sorted(set(sent[topic]) - {n for numbers in order.values() for n in numbers} - lost), [], "missing without being acknowledged in vain")
    twice = sum(len(numbers) - len(set(numbers)) for numbers in order.values())
    print(f"{topic}: {len(lost)} of {len(acknowledged[topic])} acknowledged records are lost, as the ends of {ends} leaders' logs; {twice} are there twice; {len(seen[topic])} were read along")
    return len(lost), ends


admin = create(*(NewTopic(t, PARTITIONS, 3, config={"segment.bytes": str(1 << 20)}) for t in TOPICS))
start(librdkafka, "numbers", acks="1")
start(java, "java", acks="1")
start(franz_go, "franz-go", acks="1")
for topic in TOPICS:
    start(reader, topic)
eventually(lambda: len(acknowledged) == len(TOPICS) and all(acknowledged.values()) and all(seen.values()), "everybody works", 40 if KLAMM else 120)
for number in range(ROUNDS):
    time.sleep(chance.random())
    happens = (behind, level, behind)[number % 3]
    with check(f"round {number + 1}: {happens.__name__}"):
        node = happens()
        time.sleep(chance.random() * 2)
        ask(f"start {node}")
        print(f"node {node} was killed; acknowledged {all_write_on()}")
        eventually(lambda: in_sync(admin), "all replicas in sync", 60)
end()
total = 0
for topic in TOPICS:
    with check(f"{topic} has lost no more than the ends of dead leaders"):
        equal(len(acknowledged[topic]), len(sent[topic]), "acknowledged")
        lost, ends = losses(topic)
        holds(ends <= ROUNDS * PARTITIONS, f"{ends} ends")
        total += lost
with check("with followers behind, something is lost: else nothing was shown"):
    holds(total, "no record was lost")
finish()

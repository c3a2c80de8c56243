# scenario: metadata-survives: killed with -9 right after the answer, a topic, its id, its configs and a producer id are there again
# tier: quick
# limit: 120
# against: klamm 3.9.1 4.4.0
from frames import *
from harness import *

ROUNDS = 6 if KLAMM else 2


def create(connection, name, partitions, **configs):
    """CreateTopics v2."""
    settings = b"".join(text(k.replace("_", ".")) + text(v) for k, v in configs.items())
    topic = text(name) + i32(partitions) + i16(1) + i32(0) + i32(len(configs)) + settings
    answer = connection.call(request(19, 2, i32(1) + topic + i32(10000) + b"\0"))
    equal(answer[8:], i32(1) + text(name) + i16(0) + i16(-1), "CreateTopics")


def id_and_partitions(connection, name):
    """Metadata v10, whose topics have an id: (id, number of partitions), or None when there is no such topic."""
    topic = b"\0" * 16 + compact(name) + b"\0"
    answer = connection.call(request(3, 10, b"\2" + topic + b"\0\0\0\0", flexible=True))
    at = answer.index(compact(name))
    error = struct.unpack(">h", answer[at - 2:at])[0]
    at += len(name) + 1
    return None if error else (answer[at:at + 16].hex(), answer[at + 17] - 1)


def config(connection, name, key):
    """DescribeConfigs v1: the value of one topic config."""
    answer = connection.call(request(32, 1, i32(1) + b"\2" + text(name) + i32(1) + text(key) + b"\0"))
    at = answer.index(text(key)) + 2 + len(key)
    return answer[at + 2:at + 2 + struct.unpack(">h", answer[at:at + 2])[0]].decode()


def producer_id(connection):
    """InitProducerId v0, again while a broker that has just started has no block of ids yet (14, COORDINATOR_LOAD_IN_PROGRESS)."""
    answer = eventually(lambda: (lambda a: a[8:10] != i16(14) and a)(connection.call(request(22, 0, text(None) + i32(60000)))), "a producer id")
    equal(answer[8:10], i16(0), "error")
    return struct.unpack(">q", answer[10:18])[0]


def connect():
    """A broker listens before it knows its metadata again, and may close a connection that comes too early."""
    def known():
        with contextlib.suppress(OSError, EOFError):
            connection = Connection(PORT)
            if id_and_partitions(connection, "first"):
                return connection
    return eventually(known, "the first topic is known", 30)


known, producers = {}, []
connection = Connection(PORT)
create(connection, "first", 1)
eventually(lambda: id_and_partitions(connection, "first"), "the first topic")
for number in range(ROUNDS):
    with check(f"round {number + 1}"):
        producers.append(producer_id(connection))
        name = f"topic-{number}"
        create(connection, name, number + 2, retention_ms=str(1000000 + number), cleanup_policy="compact")
        if number % 2:  # every other time its id is known before the kill
            known[name] = eventually(lambda: id_and_partitions(connection, name), "the topic")[0]
        ask("kill")
        connection = connect()
        topic, partitions = id_and_partitions(connection, name) or ("it is gone", 0)
        equal(partitions, number + 2, f"partitions of {topic}")
        equal(known.setdefault(name, topic), topic, "id")
        equal((config(connection, name, "retention.ms"), config(connection, name, "cleanup.policy")), (str(1000000 + number), "compact"))
with check("all topics keep their ids, and no producer id was given twice"):
    for name, topic in known.items():
        equal(id_and_partitions(connection, name)[0], topic, name)
    equal(len(set(known.values())), len(known), "distinct ids")
    producers.append(producer_id(connection))
    equal(producers, sorted(set(producers)), "producer ids")
finish()

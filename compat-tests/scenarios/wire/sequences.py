# scenario: sequences: numbers of idempotent batches wrap, ids expire apart from transactional ids, and producers of every age go on behind both
# tier: normal
# limit: 120
# needs: python-new kafka-1.1.1 kafka-4.4.0
# against: klamm 4.4.0
# broker: producer.id.expiration.ms=2000 producer.id.expiration.check.interval.ms=200 log.initial.task.delay.ms=200
# shows: java-1.1.1 java-4.4.0 confluent-kafka-new: idempotent
from confluent_kafka import Consumer, Producer, TopicPartition
from harness import *
import kwire
from engine import Broker

MAX, FENCED, OUT_OF_ORDER, NOT_FOUND = 2**31 - 1, 47, 45, 105
broker = Broker(BOOTSTRAP)


def produce(topic, pid, epoch, sequence, count=1, transactional_id=None):
    """Error code and first offset of a batch."""
    records = kwire.batch([(b"k", b"%d" % n) for n in range(count)], timestamp=int(time.time() * 1000), pid=pid, epoch=epoch, seq=sequence,
                          attributes=16 if transactional_id else 0)
    data = [{"Name": topic, "PartitionData": [{"Index": 0, "Records": records}]}]
    answer = broker.call("Produce", 12, {"TransactionalId": transactional_id, "Acks": -1, "TimeoutMs": 5000, "TopicData": data})
    partition = answer["Responses"][0]["PartitionResponses"][0]
    return partition["ErrorCode"], partition["BaseOffset"]


def init(transactional_id=None, pid=-1, epoch=-1):
    request = {"TransactionalId": transactional_id, "TransactionTimeoutMs": 60000, "ProducerId": pid, "ProducerEpoch": epoch}
    answer = eventually(lambda: (answer := broker.call("InitProducerId", 4, request)) and answer["ErrorCode"] not in (14, 15, 16, 51) and answer, "an id")
    return (answer["ProducerId"], answer["ProducerEpoch"]) if answer["ErrorCode"] == 0 else answer["ErrorCode"]


def known(topic):
    """The producers of a topic: id to epoch and last sequence."""
    answer = broker.call("DescribeProducers", 0, {"Topics": [{"Name": topic, "PartitionIndexes": [0]}]})
    partition = answer["Topics"][0]["Partitions"][0]
    equal(partition["ErrorCode"], 0)
    return {p["ProducerId"]: (p["ProducerEpoch"], p["LastSequence"]) for p in partition["ActiveProducers"]}


def values(topic):
    reader = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": "reader", "enable.auto.commit": False})
    start, end = reader.get_watermark_offsets(TopicPartition(topic, 0), 10)
    reader.assign([TopicPartition(topic, 0, start)])
    read = [message.value().decode() for message in reader.consume(end - start, 10)]
    reader.close()
    return read


class Console:
    """kafka-console-producer of one version, idempotent, that sends each line at once."""

    def __init__(self, version, topic):
        folder = pathlib.Path(os.environ["KAFKA_JARS"]) / version
        name, bootstrap = ("kafka.tools.ConsoleProducer", "--broker-list") if version == "1.1.1" else ("org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server")
        self.topic, self.sent = topic, 0
        self.process = subprocess.Popen(
            ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", f"-Dlog4j.configuration=file:{folder}/log4j.properties", f"-Dlog4j2.configurationFile={folder}/log4j2.properties",
             "-cp", f"{folder}/libs/*", name, bootstrap, BOOTSTRAP, "--topic", topic, "--timeout", "1", "--request-required-acks", "-1" if version == "1.1.1" else "all",
             "--producer-property", "enable.idempotence=true", "--producer-property", "acks=all", "--producer-property", "linger.ms=0"],
            stdin=subprocess.PIPE, text=True)

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self):
        self.process.stdin.close()
        equal(self.process.wait(20), 0, "exit of the console producer")


# Coordinators come into being when somebody looks for one.
broker.call("FindCoordinator", 4, {"KeyType": 1, "CoordinatorKeys": ["bumped"]})

with check("a sequence follows the greatest one from 0 on, inside of a batch too"):
    broker.topic("wrap")
    pid, epoch = init()
    equal(produce("wrap", pid, epoch, MAX - 3, 2), (0, 0))
    equal(produce("wrap", pid, epoch, MAX - 1, 3), (0, 2))
    equal(known("wrap")[pid], (epoch, 0))
    equal(produce("wrap", pid, epoch, MAX - 1, 3), (0, 2), "the answer to a repeated batch")
    equal(produce("wrap", pid, epoch, MAX - 3, 2), (0, 0), "the answer to one before it")
    equal(produce("wrap", pid, epoch, 0), (OUT_OF_ORDER, -1))
    equal(produce("wrap", pid, epoch, 2), (OUT_OF_ORDER, -1))
    equal(produce("wrap", pid, epoch, 1), (0, 5))
    broker.topic("at-the-end")
    equal(produce("at-the-end", pid, epoch, MAX), (0, 0))
    equal(produce("at-the-end", pid, epoch, 1), (OUT_OF_ORDER, -1))
    equal(produce("at-the-end", pid, epoch, 0), (0, 1))

with check("a new epoch begins with 0, and an older one is fenced"):
    broker.topic("epochs")
    pid, epoch = init("bumped")
    equal(produce("epochs", pid, 0, 7), (0, 0))
    equal(produce("epochs", pid, 1, 8), (OUT_OF_ORDER, -1))
    equal(produce("epochs", pid, 1, 0), (0, 1))
    equal(produce("epochs", pid, 0, 8), (FENCED, -1))

with check("a transactional producer that lost its place gets the next epoch (KIP-360), also when the answer was lost"):
    pid, epoch = init("lost-its-place")
    equal(init("lost-its-place", pid, epoch), (pid, epoch + 1))
    equal(init("lost-its-place", pid, epoch), (pid, epoch + 1), "asked again")
    equal(init("lost-its-place"), (pid, epoch + 2), "another process")
    equal(init("lost-its-place", pid, epoch + 1), 90, "the one before it is fenced")

with check("a producer id expires and goes on; its transactional id does not (KIP-854)"):
    broker.topic("idle")
    pid, epoch = init()
    equal(produce("idle", pid, epoch, 0, 5), (0, 0))
    transactional, its_epoch = init("idle-id")
    equal(produce("idle", transactional, its_epoch, 0, 1, "idle-id"), (0, 5))
    time.sleep(4)
    equal(set(known("idle")), {transactional}, "a producer with an open transaction stays")
    commit = lambda epoch: broker.call("EndTxn", 5, {"TransactionalId": "idle-id", "ProducerId": transactional, "ProducerEpoch": epoch, "Committed": True})
    equal(commit(its_epoch)["ProducerEpoch"], its_epoch + 1)
    eventually(lambda: not known("idle"), "nobody is known any more")
    equal(produce("idle", pid, epoch, 5), (0, 7), "the idle producer's next batch")
    state = broker.call("DescribeTransactions", 0, {"TransactionalIds": ["idle-id"]})["TransactionStates"][0]
    equal((state["ErrorCode"], state["TransactionState"], state["ProducerId"]), (0, "CompleteCommit", transactional))
    equal(produce("idle", transactional, its_epoch + 1, 0, 1, "idle-id"), (0, 8), "the transactional producer's next batch")
    equal(commit(its_epoch + 1)["ErrorCode"], 0)

old, new = Console("1.1.1", "console-old"), Console("4.4.0", "console-new")
for name in ("librdkafka", "console-old", "console-new"):
    broker.topic(name)
librdkafka = Producer({"bootstrap.servers": BOOTSTRAP, "enable.idempotence": True})


def librdkafka_sends(value):
    librdkafka.produce("librdkafka", value.encode())
    equal(librdkafka.flush(20), 0, "left in the queue")


with check("real producers go on when they were idle for too long"):
    senders = {"librdkafka": librdkafka_sends, "console-old": old.send, "console-new": new.send}
    for round in ("1", "2"):
        for name, send in senders.items():
            send(round)
        for name in senders:
            eventually(lambda: known(name), f"{name} is known", 40)
        for name in senders:
            eventually(lambda: not known(name), f"{name} has expired")
    for name in senders:
        equal(values(name), ["1", "2"], name)

with check("real producers whose sequence somebody else has used take another epoch or id"):
    for console in (old, new):
        console.send("3")
        (pid, (epoch, last)), = eventually(lambda: known(console.topic), "it is known", 40).items()
        equal(produce(console.topic, pid, epoch, last + 1, 3)[0], 0)
        console.send("lost by the old one")
        time.sleep(1)
        console.send("4")
        eventually(lambda: values(console.topic)[-1] == "4", lambda: values(console.topic))
    kept = [value for value in values("console-new") if value not in "012"]
    equal(kept, ["3", "lost by the old one", "4"])
    kept = [value for value in values("console-old") if value not in "012"]
    equal(kept, ["3", "4"])

old.end()
new.end()
finish()

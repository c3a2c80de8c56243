# scenario: move-directories: partitions move between two log directories while they are written: nothing is lost or doubled, also not when the broker is killed on the way
# tier: normal
# limit: 150
# needs: python-new kafka-4.4.0 kafka-2.8.2
# against: klamm
# broker: none
#
# An idempotent producer writes all the time; a throttle makes the first move long enough for a kill in its middle.
import json
from confluent_kafka import Consumer, Producer, TopicPartition, OFFSET_BEGINNING
from confluent_kafka.admin import AdminClient, NewTopic
from harness import *
from engine import Broker

ONE, TWO = WORK / "one", WORK / "two"
THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"
quiet = {"bootstrap.servers": BOOTSTRAP, "log_level": 0, "reconnect.backoff.max.ms": 200}
tools = [Tools("4.4.0"), Tools("2.8.2")]


def start():
    return own_klamm(f"log.dirs={ONE},{TWO}", "log.segment.delete.delay.ms=500", "log.retention.check.interval.ms=500")


def place(partition=0):
    return [d.name for d in (ONE, TWO) if (d / f"work-{partition}").is_dir()]


def copies():
    return [f for d in (ONE, TWO) for f in d.glob("work-*-future")]


def move(directory, partition=0):
    """The error code of AlterReplicaLogDirs."""
    answer = Broker(BOOTSTRAP).call("AlterReplicaLogDirs", 2, {"Dirs": [{"Path": str(directory), "Topics": [{"Name": "work", "Partitions": [partition]}]}]})
    return answer["Results"][0]["Partitions"][0]["ErrorCode"]


def described(tool):
    """What kafka-log-dirs tells of work-0: (the directory's path, whether it is a copy that is being made, its size) of each."""
    run = tool("kafka-log-dirs", "--bootstrap-server", BOOTSTRAP, "--describe", "--topic-list", "work")
    equal(run.code, "0", run)
    answer = json.loads(next(line for line in run.lines if line.startswith("{")))
    equal([d["error"] for d in answer["brokers"][0]["logDirs"]], [None, None], "errors")
    return sorted((d["logDir"], p["isFuture"], p["size"]) for d in answer["brokers"][0]["logDirs"] for p in d["partitions"] if p["partition"] == "work-0")


def throttle(rate):
    config = {"Name": THROTTLE, "ConfigOperation": 0, "Value": str(rate)}
    request = {"Resources": [{"ResourceType": 4, "ResourceName": "", "Configs": [config]}], "ValidateOnly": False}
    equal(Broker(BOOTSTRAP).call("IncrementalAlterConfigs", 1, request)["Responses"][0]["ErrorCode"], 0)


ended = threading.Event()
acknowledged, errors, sent = {}, [], [0]


def load():
    producer = Producer({**quiet, "acks": "all", "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 100000, "queue.buffering.max.messages": 20000})

    def told(number):
        def tell(error, message):
            if error:
                errors.append(f"{number}: {error}")
            else:
                acknowledged[number] = (message.partition(), message.offset())
        return tell

    while not ended.is_set():
        try:
            producer.produce("work", b"%d %s" % (sent[0], os.urandom(400).hex().encode()), partition=sent[0] % 2, on_delivery=told(sent[0]))
            sent[0] += 1
        except BufferError:  # the broker is away
            producer.poll(0.05)
        producer.poll(0)
        if sent[0] % 20 == 0:
            time.sleep(0.01)
    equal(producer.flush(60), 0, "left in the queue")


def nothing_lost_or_doubled():
    consumer = Consumer({**quiet, "group.id": "reader"})
    ends = {p: consumer.get_watermark_offsets(TopicPartition("work", p), 20)[1] for p in (0, 1)}
    consumer.assign([TopicPartition("work", p, OFFSET_BEGINNING) for p in (0, 1)])
    found, left, limit = {}, {0, 1}, time.time() + 60
    while left:
        holds(time.time() < limit, f"reading does not come to the end of {left}")
        for message in consumer.consume(5000, 0.5):
            equal(message.error(), None)
            number, at = int(message.value().split()[0]), (message.partition(), message.offset())
            holds(number not in found, f"{number} is at {found.get(number)} and at {at}")
            found[number] = at
            if message.offset() + 1 >= ends[message.partition()]:
                left.discard(message.partition())
    consumer.close()
    wrong = {n: (at, found.get(n)) for n, at in acknowledged.items() if found.get(n) != at}
    equal(wrong, {}, "acknowledged at, and found at")


def writes_on():
    before = len(acknowledged)
    eventually(lambda: len(acknowledged) > before + 200, "writes are acknowledged", 20)


broker = start()
admin = AdminClient(quiet)
for future in admin.create_topics([NewTopic("work", 2, 1, config={"segment.bytes": str(1 << 20), "file.delete.delay.ms": "500"})]).values():
    future.result(20)
worker = threading.Thread(target=load, daemon=True)
worker.start()
eventually(lambda: len(acknowledged) > 5000, "records", 30)
home = place()[0]
here, there = (ONE, TWO) if home == "one" else (TWO, ONE)

with check("the tools of 4.4.0 and 2.8.2 tell where it is"):
    for tool in tools:
        equal([(path, future) for path, future, size in described(tool) if size > 1_000_000], [(str(here), False)])
with check("a directory that log.dirs does not name is refused"):
    equal(move("/nowhere"), 57, "LOG_DIR_NOT_FOUND")
with check("killed in the middle of a move, it goes on, and the partition is in the other directory"):
    throttle(500_000)
    equal(move(there), 0)
    eventually(lambda: [f for f in copies() if sum(x.stat().st_size for x in f.glob("*.log")) > 1_000_000], "a copy grows", 20)
    for tool in tools:
        equal([(path, future) for path, future, size in described(tool)], sorted([(str(here), False), (str(there), True)]))
    equal(place(), [here.name], "before the end of the move")
    broker.kill()
    broker.wait(10)
    broker = start()
    equal(len(copies()), 1, "copies after the restart")
    equal(place(), [here.name], "before the end of the move")
    writes_on()
    throttle(1_000_000_000)
    eventually(lambda: place() == [there.name] and not copies(), "the partition has moved", 30)
    writes_on()
with check("the tools tell where it is now"):
    for tool in tools:
        equal([(path, future) for path, future, _ in described(tool)], [(str(there), False)])
with check("moved back and forth under load, and killed at once"):
    for directory in (here, there, here):
        equal(move(directory), 0)
        eventually(lambda: place() == [directory.name] and not copies(), f"the partition has moved to {directory}", 30)
        writes_on()
    equal(move(there), 0)
    broker.kill()
    broker.wait(10)
    broker = start()
    writes_on()
    equal(len(place()), 1, "folders of the partition")
with check("a move is called off by one to where it is"):
    throttle(100_000)
    home, = place(1)
    equal(move(TWO if home == "one" else ONE, 1), 0)
    equal(len([f for f in copies() if f.name.startswith("work-1.")]), 1, "copies")
    equal(move(WORK / home, 1), 0)
    eventually(lambda: not [f for f in copies() if f.name.startswith("work-1.")], "no copy is left", 20)
    equal(place(1), [home])
ended.set()
worker.join(90)
with check("nothing is lost, doubled, or elsewhere than it was acknowledged"):
    equal(errors[:3], [], f"{len(errors)} errors")
    equal(len(acknowledged), sent[0], "acknowledged")
    nothing_lost_or_doubled()
with check("also not after a stop and a start"):
    broker.terminate()
    equal(broker.wait(30), 0, "exit code")
    broker = start()
    nothing_lost_or_doubled()
    holds(not list(WORK.glob("*/*/partition.moved")), "the mark of a move that has ended is left")
broker.kill()
if failures:
    print((WORK / "broker.log").read_text()[-6000:])
print(f"{len(acknowledged)} acknowledgements")
finish()

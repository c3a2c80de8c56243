# scenario: disk-full: a file system without space left makes writes wait with a clear error; reads, other directories and the process go on; space brings all back
# tier: normal
# limit: 180
# needs: python-new
# against: klamm
# broker: none
# each: one-directory two-directories
#
# A tmpfs of 48 MB in a mount namespace of its own is a log directory: the only one, or the second beside one with room. It
# is filled by an idempotent producer that retries, and gets space again by removing a file, and by deleting a topic.
import shutil
from confluent_kafka import Consumer, Producer, TopicPartition, OFFSET_BEGINNING
from confluent_kafka.admin import AdminClient, NewTopic
from harness import *
import kwire
from engine import Broker

TWO = WITH == "two-directories"
SMALL, ROOMY = WORK / "small", WORK / "roomy"
STORAGE_ERROR = 56
quiet = {"bootstrap.servers": BOOTSTRAP, "log_level": 0}
small = SmallDisk(SMALL, "48m")


def start():
    return own_klamm(f"log.dirs={f'{ROOMY},{SMALL}' if TWO else SMALL}", "log.segment.delete.delay.ms=500", wrapper=small.inside)


def free():
    return shutil.disk_usage(small.seen).free


def fill_up():
    """Leaves no block."""
    small.fill_up()
    equal(free(), 0, "bytes free")


def error_of(partition, size=20000):
    answer = Broker(BOOTSTRAP).call("Produce", 8, {"Acks": -1, "TimeoutMs": 5000, "TopicData": [{"Name": "probe", "PartitionData": [{"Index": partition, "Records": kwire.batch([(None, b"x" * size)])}]}]})
    return answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"]


def folder_of(topic, partition):
    return "small" if (small.seen / f"{topic}-{partition}").is_dir() else "roomy"


def read(partitions):
    """(partition, number) to offset of all that can be read."""
    consumer = Consumer({**quiet, "group.id": "reader"})
    ends = {p: eventually(lambda: consumer.get_watermark_offsets(TopicPartition("work", p), 10), "offsets")[1] for p in partitions}
    consumer.assign([TopicPartition("work", p, OFFSET_BEGINNING) for p in partitions])
    found, left, limit = {}, {p for p in partitions if ends[p]}, time.time() + 30
    while left:
        holds(time.time() < limit, f"reading does not come to the end of {left}")
        for m in consumer.consume(1000, 0.5):
            equal(m.error(), None)
            key = (m.partition(), int(m.value().split()[0]))
            holds(key not in found, f"{key} is at {found.get(key)} and at {m.offset()}")
            found[key] = m.offset()
            if m.offset() + 1 >= ends[m.partition()]:
                left.discard(m.partition())
    consumer.close()
    return found


class Load:
    """An idempotent producer that retries for long; what it was told stands in `acknowledged`."""

    def __init__(self):
        self.producer = Producer({**quiet, "acks": "all", "enable.idempotence": True, "message.timeout.ms": 100000, "queue.buffering.max.messages": 100000, "retry.backoff.ms": 50, "retry.backoff.max.ms": 300})
        self.sent, self.acknowledged, self.errors = 0, {}, []

    def send(self, partition, count=1):
        for _ in range(count):
            number, self.sent = self.sent, self.sent + 1
            self.producer.produce("work", b"%d %s" % (number, os.urandom(4000).hex().encode()), partition=partition, on_delivery=lambda e, m, key=(partition, number): self.told(key, e, m))
            self.producer.poll(0)

    def told(self, key, error, message):
        if error:
            self.errors.append(f"{key}: {error}")
        else:
            self.acknowledged[key] = message.offset()

    def wait(self, seconds):
        return self.producer.flush(seconds)


def nothing_lost(partitions):
    found = read(partitions)
    lost = {key: offset for key, offset in load.acknowledged.items() if key[0] in partitions and found.get(key) != offset}
    equal(lost, {}, "acknowledged but not there")


broker = start()
admin = AdminClient(quiet)
small_topic = {"segment.bytes": str(1 << 20), "file.delete.delay.ms": "500"}
for future in admin.create_topics([NewTopic(t, 2, 1, config=small_topic) for t in ("work", "probe", "victim")]).values():
    future.result(20)
eventually(lambda: (small.seen / "victim-1").exists() or (small.seen / "victim-0").exists(), "the folders")
places = {t: [folder_of(t, p) for p in (0, 1)] for t in ("work", "probe", "victim")}
print("places", places)
victims = [p for p in (0, 1) if places["victim"][p] == "small"]
full = [p for p in (0, 1) if places["work"][p] == "small"]
roomy = [p for p in (0, 1) if places["work"][p] == "roomy"]
probes = {place: places["probe"].index(place) for place in {"small", "roomy"} & set(places["probe"])}
load = Load()

with check("each directory has a partition of each topic" if TWO else "all lies in the only directory"):
    equal([sorted(p) for p in places.values()], [["roomy", "small"] if TWO else ["small", "small"]] * 3)
with check("it writes while there is space"):
    for partition in (0, 1):
        load.send(partition, 200)
    equal(load.wait(30), 0, "unacknowledged")
    producer = Producer({**quiet, "acks": "all"})
    for _ in range(8000):
        producer.produce("victim", os.urandom(1000), partition=victims[0])
        producer.poll(0)
    equal(producer.flush(30), 0)
with check("full: writes get a retriable error, and wait"):
    fill_up()
    before = len(load.acknowledged)
    load.send(full[0], 300)  # more than what an open segment's file could hold
    load.wait(2)
    equal(load.errors, [])
    holds(len(load.acknowledged) < before + 300, "all was acknowledged on a full file system")
    eventually(lambda: error_of(probes["small"]) == STORAGE_ERROR, "KAFKA_STORAGE_ERROR for a write", 10)
with check("the process lives, says why once and not a thousand times"):
    equal(broker.poll(), None, "exit code")
    said = [line for line in (WORK / "broker.log").read_text().splitlines() if "space" in line.lower()]
    holds(said, (WORK / "broker.log").read_text()[-1500:])
    holds(any("work-" in line or str(SMALL) in line for line in said), said[0])
    holds(len(said) < 100, f"{len(said)} lines")
with check("what was acknowledged can be read"):
    nothing_lost([0, 1])
if TWO:
    with check("the other directory serves on"):
        equal(error_of(probes["roomy"]), 0)
        count = len(load.acknowledged)
        load.send(roomy[0], 50)
        eventually(lambda: load.wait(0.1) >= 0 and len(load.acknowledged) >= count + 50, "acknowledged in the other directory", 20)
with check("killed while it is full, it starts"):
    broker.kill()
    broker.wait(10)
    broker = start()
    if TWO:  # where the metadata has no place either, the start waits for it
        eventually(lambda: error_of(probes["small"]) == STORAGE_ERROR, "KAFKA_STORAGE_ERROR for a write", 20)
with check("space from a removed file brings it back without a restart"):
    (small.seen / "filler").unlink()
    equal(load.wait(60), 0, "unacknowledged")
    equal(load.errors, [])
    eventually(lambda: error_of(probes["small"]) == 0, "writes are taken", 20)
    equal(broker.poll(), None, "exit code")
if TWO:  # where all is full, the deletion itself has no place
    with check("space from a deleted topic brings it back without a restart"):
        fill_up()
        load.send(full[0], 300)
        load.wait(1)
        holds(len(load.acknowledged) < load.sent, "all was acknowledged on a full file system")
        admin.delete_topics(["victim"])["victim"].result(20)
        equal(load.wait(60), 0, "unacknowledged")
        equal(load.errors, [])
with check("stopped and started, all that was acknowledged is there once"):
    broker.terminate()
    equal(broker.wait(30), 0, "exit code")
    broker = start()
    nothing_lost([0, 1])
    equal(len(load.acknowledged), load.sent, "acknowledged in the end")
broker.kill()
small.holder.kill()
if failures:
    print((WORK / "broker.log").read_text()[-6000:])
finish()

# scenario: retention: delete-records, retention by size and time changed while running, and offsets by every kind of time, with the tools
# tier: normal
# limit: 240
# needs: kafka-4.4.0
# against: klamm 2.8.2 4.4.0
# broker: log.retention.check.interval.ms=300 log.segment.delete.delay.ms=300 log.initial.task.delay.ms=300
# shows: java-4.4.0: admin
import json
from harness import *
import kwire
from engine import Broker

tool = Tools("4.4.0")
BASE = 1_700_000_000_000
PATIENCE = 60 if AGAINST == "2.8.2" else 25  # its first look comes 30 s after the start, whatever is set
DATA = pathlib.Path(os.environ["BROKER_DIR"]) / "data"
SEGMENT = "segment.bytes" if AGAINST == "2.8.2" else "internal.segment.bytes"


def fill(topic, partition, batches=100):
    """Batches of three records of 100 bytes; timestamps go up, but for every tenth batch, which is an hour late."""
    for n in range(batches):
        at = BASE + n * 1000 - (3_600_000 if n % 10 == 7 else 0)
        data = [{"Index": partition, "Records": kwire.batch([(b"key", b"%0100d" % n, step) for step in (0, 20, 10)], timestamp=at)}]
        answer = Broker(BOOTSTRAP).call("Produce", 8, {"Acks": -1, "TimeoutMs": 5000, "TopicData": [{"Name": topic, "PartitionData": data}]})
        equal(answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"], 0)


TIMES = {"latest": -1, "earliest": -2, "max-timestamp": -3, "earliest-local": -4, "latest-tiered": -5}


def offsets(at, topic="events"):
    """ListOffsets of every partition: partition to offset, without those that have no answer, as kafka-get-offsets prints it."""
    asked = [{"PartitionIndex": p, "CurrentLeaderEpoch": -1, "Timestamp": TIMES.get(at, at)} for p in range(3 if topic == "events" else 1)]
    answer = Broker(BOOTSTRAP).call("ListOffsets", 6 if AGAINST == "2.8.2" else 11, {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": asked}]})
    partitions = answer["Topics"][0]["Partitions"]
    return {p["PartitionIndex"]: str(p["Offset"]) for p in partitions if p["ErrorCode"] == 0 and p["Offset"] >= 0}


def led_again():
    with contextlib.suppress(OSError, TypeError):
        return len(offsets("latest")) == 3


def printed(at):
    run = tool("kafka-get-offsets", "--bootstrap-server", BOOTSTRAP, "--topic", "events", "--time", at)
    equal(run.code, "0", run)
    return {int(line.split(":")[1]): line.split(":")[2] for line in run.lines if line.startswith("events:")}


def delete_records(**partitions):
    file = WORK / "offsets.json"
    file.write_text(json.dumps({"partitions": [{"topic": "events", "partition": int(p[1:]), "offset": o} for p, o in partitions.items()], "version": 1}))
    return tool("kafka-delete-records", "--bootstrap-server", BOOTSTRAP, "--offset-json-file", file)


def alter(*arguments, topic="events"):
    run = tool("kafka-configs", "--bootstrap-server", BOOTSTRAP, "--alter", "--entity-type", "topics", "--entity-name", topic, *arguments)
    equal(run.code, "0", run)


def segments(partition):
    return sorted(int(file.stem) for file in (DATA / f"events-{partition}").glob("*.log"))


def reaches(partition, offset, what):
    eventually(lambda: offsets("earliest")[partition] == str(offset), f"{what}: the log starts at {offset}", PATIENCE)


Broker(BOOTSTRAP).topic("events", 3, [(SEGMENT, "4000"), ("index.interval.bytes", "500"), ("retention.ms", "-1"), ("file.delete.delay.ms", "300")])
fill("events", 0)
fill("events", 1)
with check("offsets by every kind of time"):
    equal(offsets("earliest"), {0: "0", 1: "0", 2: "0"})
    equal(offsets("latest"), {0: "300", 1: "300", 2: "0"})
    if AGAINST != "2.8.2":
        equal(offsets("max-timestamp"), {0: "298", 1: "298"})  # KIP-734
        equal(offsets("earliest-local"), offsets("earliest"))  # KIP-405
        equal(offsets("latest-tiered"), {})  # KIP-1005
    for at, offset in ((0, "0"), (BASE, "0"), (BASE + 1, "1"), (BASE + 11, "1"), (BASE + 20, "1"), (BASE + 21, "3"), (BASE + 7000, "24"), (BASE + 50_015, "151"), (BASE + 99_020, "298")):
        equal(offsets(at), {0: offset, 1: offset}, f"at {at - BASE}")
    equal(offsets(BASE + 99_021), {})
with check("kafka-get-offsets prints them"):
    for at in ("earliest", "latest", BASE + 50_015) + (("max-timestamp",) if AGAINST != "2.8.2" else ()):
        equal(printed(at), offsets(at), at)
with check("delete-records moves the start of the log and says so"):
    run = delete_records(p0=137, p1=-1)
    equal(run.code, "0", run)
    holds("low_watermark: 137" in run.out and "low_watermark: 300" in run.out, run)
    equal(offsets("earliest"), {0: "137", 1: "300", 2: "0"})
    # The first at or after that time which is there. Kafka looks only into the first file with such a time, and finds nothing
    # as long as that is there and below the start of the log.
    first = lambda: offsets(BASE + 3000)
    equal(first() if KLAMM else eventually(first, "an offset", PATIENCE), {0: "137"})
    run = delete_records(p0=301, p1=100)  # beyond the end; less than what is deleted already
    holds("OffsetOutOfRange" in run.out + run.error, run)
    holds("low_watermark: 300" in run.out, run)
with check("the files below are removed"):
    eventually(lambda: len(segments(1)) == 1 and segments(0)[0] <= 137 < segments(0)[1], "segments; the active one stays", PATIENCE)
segments_before = segments(0)
for how in ("restart", "kill"):
    with check(f"the start of the log is kept over a {how}"):
        ask(how)
        eventually(led_again, "all are led again", 30)
        equal(offsets("earliest"), {0: "137", 1: "300", 2: "0"})
        equal(offsets("latest"), {0: "300", 1: "300", 2: "0"})
        equal(segments(0)[:-1], segments_before[:-1], "segments")
with check("retention.bytes takes effect while running"):
    sizes = {s: (DATA / f"events-0/{s:020}.log").stat().st_size for s in segments(0)}
    alter("--add-config", "retention.bytes=9000")
    # whole segments go as long as what is left is not below the limit
    left = sorted(sizes)
    while sum(sizes[s] for s in left[1:]) >= 9000:
        left.pop(0)
    holds(left[0] > 137, f"nothing to delete in {sizes}")
    reaches(0, left[0], "retention.bytes")
    eventually(lambda: segments(0) == left, f"the segments {left}", PATIENCE)
with check("retention.ms takes effect while running, on the active segment too"):
    alter("--delete-config", "retention.bytes", "--add-config", "retention.ms=3600000")
    reaches(0, 300, "retention.ms")
    eventually(lambda: segments(0) == [300], "an empty segment", PATIENCE)
    equal(offsets("latest"), {0: "300", 1: "300", 2: "0"})
with check("and what came later is kept when it is taken back"):
    alter("--add-config", "retention.ms=-1")
    fill("events", 0, 10)
    time.sleep(1)
    equal((offsets("earliest")[0], offsets("latest")[0]), ("300", "330"))
with check("offsets go on after a restart"):
    ask("restart")
    eventually(led_again, "all are led again", 30)
    equal((offsets("earliest")[0], offsets("latest")[0]), ("300", "330"))
with check("a compacted topic keeps its records"):
    Broker(BOOTSTRAP).topic("states", 1, [("cleanup.policy", "compact")])
    fill("states", 0, 3)
    file = WORK / "offsets.json"
    file.write_text(json.dumps({"partitions": [{"topic": "states", "partition": 0, "offset": 1}], "version": 1}))
    run = tool("kafka-delete-records", "--bootstrap-server", BOOTSTRAP, "--offset-json-file", file)
    holds("PolicyViolation" in run.out + run.error, run)
    equal(offsets("earliest", "states"), {0: "0"})
finish()

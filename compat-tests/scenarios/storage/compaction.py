# scenario: compaction: of the input of the compaction fixtures the same records survive as under the real cleaner, for read_committed too
# tier: normal
# limit: 150
# needs: python-new
# against: klamm 2.8.2 4.4.0
# broker: log.cleaner.backoff.ms=200 log.cleaner.threads=1 log.cleaner.dedupe.buffer.size=2000000 log.segment.delete.delay.ms=1000 log.initial.task.delay.ms=500
#
# The partitions before cleaning (fixtures/compacted/VERSION/input) take the place of topics while the broker is stopped.
# They are cleaned once min.compaction.lag.ms lets them, with the settings under which the fixtures were made; `drop` gets
# sixty records more and a second round, in which its tombstones go. Then P.expected.jsonl is what must be there.
import base64, json, shutil
import kwire
from confluent_kafka import Consumer, TopicPartition, OFFSET_BEGINNING
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from harness import *
from engine import Broker

COMPACTED = pathlib.Path(os.environ["CLIENTS"]).parents[1] / "fixtures/compacted"
DATA = pathlib.Path(os.environ["BROKER_DIR"]) / "data"
SETS = {"2.8.2": ["2.8"], "4.4.0": ["4.4"]}.get(AGAINST, ["2.8", "4.4"])
NAMES = ("keep", "drop", "idempotent", "expired", "transactions")
SETTINGS = [("cleanup.policy", "compact"), ("segment.bytes" if AGAINST == "2.8.2" else "internal.segment.bytes", "1500"), ("index.interval.bytes", "200"), ("segment.index.bytes", "4096"),
            ("retention.ms", "-1"), ("min.cleanable.dirty.ratio", "0.01"), ("min.compaction.lag.ms", "1000000000000")]
quiet = {"bootstrap.servers": BOOTSTRAP, "log_level": 3}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def as_read(record):
    return tuple(str(record[field]) for field in ("offset", "timestamp", "timestamp_type", "key", "value", "headers"))


def encoded(value):
    return None if value is None else base64.b64encode(value).decode()


def decoded(text):
    return None if text is None else base64.b64decode(text)


def batch(records):
    """One batch, whatever a client would have made of them."""
    first = records[0]["timestamp"]
    headers = lambda record: [(name.encode(), decoded(value)) for name, value in record["headers"]]
    return kwire.batch([(decoded(record["key"]), decoded(record["value"]), record["timestamp"] - first, headers(record)) for record in records], timestamp=first)


def consume(topic, isolation="read_uncommitted"):
    consumer = Consumer({**quiet, "group.id": "reader", "isolation.level": isolation, "enable.partition.eof": True, "fetch.wait.max.ms": 50})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    while (message := consumer.poll(20)) is not None and not message.error():
        headers = [[name, encoded(value)] for name, value in message.headers() or []]
        found.append(as_read({"offset": message.offset(), "timestamp": message.timestamp()[1], "timestamp_type": {1: "CreateTime", 2: "LogAppendTime"}[message.timestamp()[0]],
                              "key": encoded(message.key()), "value": encoded(message.value()), "headers": headers}))
    holds(message is not None and message.error().name() == "_PARTITION_EOF", message and message.error())
    consumer.close()
    return found


def same(found, path):
    wanted = [as_read(record) for record in lines(path) if not record.get("control")]
    for one, other in zip(found, wanted):
        equal(one, other)
    equal(len(found), len(wanted), "records")


def alter(topics, **configs):
    entries = lambda: [ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()]
    admin = AdminClient(quiet)
    for future in admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries()) for topic in topics]).values():
        future.result(20)


def checkpoint(path):
    """Up to which offset each partition is clean."""
    text = path.read_text() if path.exists() else ""
    return {words[0]: int(words[2]) for words in map(str.split, text.splitlines()) if len(words) == 3}


def cleaned(topic, at_least):
    upto = lambda: checkpoint(DATA / "cleaner-offset-checkpoint").get(topic, -1)
    eventually(lambda: upto() >= at_least, lambda: f"{topic} is clean up to {at_least}; it is up to {upto()}, of the segments {sorted(log.name for log in (DATA / f'{topic}-0').glob('*.log'))}", 40)


def survivors(when):
    for version in SETS:
        for name in NAMES:
            with check(f"what survives of {version}/{name}{when}"):
                same(consume(f"{version}.{name}"), COMPACTED / f"{version}/{name}-0.expected.jsonl")
        with check(f"read_committed in {version}/transactions{when}"):
            same(consume(f"{version}.transactions", "read_committed"), COMPACTED / f"{version}/transactions-0.expected-read-committed.jsonl")


topics = [f"{version}.{name}" for version in SETS for name in NAMES]
for topic in topics:
    Broker(BOOTSTRAP).topic(topic, 1, SETTINGS)
ask("stop")
for version in SETS:
    for name in NAMES:
        source, target = COMPACTED / f"{version}/input/{name}-0", DATA / f"{version}.{name}-0"
        for file in target.iterdir():
            if file.name != "partition.metadata":
                file.unlink()
        for file in source.iterdir():
            if file.name != "partition.metadata":
                shutil.copy(file, target)
ask("start")
for version in SETS:
    for name in NAMES:
        with check(f"{version}/{name} before"):
            same(consume(f"{version}.{name}"), COMPACTED / f"{version}/input/{name}-0.expected.jsonl")
with check("the first round"):
    reached = {f"{version}.{topic}": offset for version in SETS for topic, offset in checkpoint(COMPACTED / version / "cleaner-offset-checkpoint").items()}
    dropping = [topic for topic in topics if topic.endswith("drop")]
    alter([topic for topic in topics if topic not in dropping], delete_retention_ms="315360000000", min_compaction_lag_ms="0")
    alter(dropping, delete_retention_ms="0", min_compaction_lag_ms="0")
    for topic in topics:
        cleaned(topic, 1 if topic in dropping else reached[topic])
with check("the second round of drop"):
    for topic in dropping:
        broker, more = Broker(BOOTSTRAP), lines(COMPACTED / "drop-0.more.jsonl")
        # In batches of two, by hand: a client may at times send one of them sooner, and segments would end elsewhere.
        for sent, (first, second) in enumerate(zip(more[::2], more[1::2])):
            if sent == 15:  # the segment with the tombstone at 60 is rolled: it is told its end by one round, and goes with the next
                cleaned(topic, 61)
            data = [{"Name": topic, "PartitionData": [{"Index": 0, "Records": batch([first, second])}]}]
            answer = broker.call("Produce", 8, {"Acks": -1, "TimeoutMs": 10000, "TopicData": data})["Responses"][0]["PartitionResponses"][0]
            equal((answer["ErrorCode"], answer["BaseOffset"]), (0, 80 + 2 * sent), "error code and base offset")
        cleaned(topic, reached[topic])
time.sleep(1)  # what comes after the last checkpoint: a round more, or files deleted
survivors("")
if KLAMM:
    ask("restart")
    survivors(" after a restart")
    ask("kill")
    survivors(" after a kill")
finish()

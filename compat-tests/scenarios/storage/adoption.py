# scenario: adoption: a directory that Apache Kafka wrote is taken over and served, Kafka refuses it then, and after klamm release Kafka 4.4 serves it with all that came since
# tier: normal
# limit: 240
# needs: python-new kafka-4.4.0 kafka-3.9.1
# against: klamm
# broker: none
# each: 4.4
# each of all: 3.9 2.8 4.4-killed
import json, shutil, signal
from harness import *
from confluent_kafka import Consumer, Producer, TopicPartition

FIXTURE = pathlib.Path(os.environ["CLIENTS"]).parent.parent / "fixtures" / "dir" / WITH
PROGRAM, ORACLE = os.environ["KLAMM_BIN"], os.environ["KAFKA"]
DATA = WORK / "data"
PARTITIONS = [("alpha", 0), ("alpha", 1), ("beta.with_dots", 0)]
tool = Tools("4.4.0")


def expected(topic, partition):
    """(offset, key, value) of each record that a consumer sees; the fixture has them in base64."""
    names = (f"{topic}-{partition}.{kind}.jsonl" for kind in ("expected", "after-recovery"))
    file = next(FIXTURE / name for name in names if (FIXTURE / name).exists())
    decoded = lambda field: None if field is None else base64.b64decode(field)
    lines = map(json.loads, file.read_text().splitlines())
    return [(line["offset"], decoded(line["key"]), decoded(line["value"])) for line in lines if not line.get("control")]


def consumed(topic, partition, count):
    """What a consumer gets from the start of one partition; all that is there, aborted records too."""
    consumer = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": "reader", "enable.auto.commit": False, "isolation.level": "read_uncommitted"})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found, until = [], time.time() + 40
    while len(found) < count and time.time() < until:
        message = consumer.poll(1)
        if message is not None and not message.error():
            found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def serves_everything(more=()):
    for topic, partition in PARTITIONS:
        wanted = expected(topic, partition) + [record for place, record in more if place == (topic, partition)]
        equal(consumed(topic, partition, len(wanted)), wanted, f"records of {topic}-{partition}")


def klamm(name):
    """Runs the broker on the directory, with the properties file that Apache Kafka had."""
    listener = f"PLAINTEXT://{BOOTSTRAP}"
    settings = {"log.dirs": DATA, "listeners": listener, "advertised.listeners": listener, "controller.listener.names": "", "controller.quorum.voters": ""}
    words = [word for key, value in settings.items() for word in ("--override", f"{key}={value}")]
    log = open(WORK / f"{name}.log", "w")
    process = subprocess.Popen([PROGRAM, FIXTURE / "server.properties", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
    holds(process.stdout.readline().startswith("Klamm"), f"it does not start: {(WORK / f'{name}.log').read_text()}")
    return process


def stop(process):
    process.send_signal(signal.SIGTERM)
    equal(process.wait(20), 0, "exit code")


def folders():
    return sorted(entry.name for entry in DATA.iterdir() if entry.is_dir())


def oracle(*words):
    return subprocess.run(["bash", ORACLE, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True)


shutil.copytree(FIXTURE / "data", DATA, copy_function=shutil.copyfile)
(DATA / ".lock").unlink(missing_ok=True)
before = folders()
written = []

broker = klamm("taken-over")
with check("all records are served, and new ones are taken"):
    told = (WORK / "taken-over.log").read_text()
    holds("topics: 4, partitions: 7" in told and "Klamm has taken over from Apache Kafka" in told, told)
    serves_everything()
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "enable.idempotence": True})
    for n in range(3):
        producer.produce("beta.with_dots", f"written by Klamm {n}", f"key-{n}", partition=0)
    equal(producer.flush(20), 0, "records that were not acknowledged")
    del producer
    end = expected("beta.with_dots", 0)[-1][0] + 1
    written = [(("beta.with_dots", 0), (end + n, b"key-%d" % n, b"written by Klamm %d" % n)) for n in range(3)]
    serves_everything(written)

stop(broker)

for version in ("3.9.1", "4.4.0"):
    with check(f"Apache Kafka {version} does not start on it, and touches nothing"):
        run = oracle("start", version, PORT, WORK)
        holds(run.returncode != 0, run.stdout)
        told = (WORK / "kafka.log").read_text()
        holds("Klamm 1 keeps this directory; 'klamm release' gives it back to Apache Kafka" in told, told)
        equal(folders(), sorted([*before, "klamm-metadata"]), "folders")

with check("kafka-dump-log reads what Klamm wrote"):
    files = ",".join(str(file) for file in sorted((DATA / "beta.with_dots-0").glob("*.log")))
    run = oracle("tool", "4.4.0", "kafka-dump-log", "--files", files, "--print-data-log")
    holds("written by Klamm 2" in run.stdout and "isvalid: false" not in run.stdout, run.stdout + run.stderr)

with check("released, Apache Kafka 4.4.0 serves all of it"):
    run = subprocess.run([PROGRAM, "release", DATA], capture_output=True, text=True)
    equal(run.returncode, 0, run.stderr)
    holds(run.stdout.startswith("4 topics with 7 partitions were given back to Apache Kafka"), run.stdout)
    equal(folders(), sorted({*before, "__cluster_metadata-0"}), "folders")
    run = oracle("start", "4.4.0", PORT, WORK, "offsets.topic.num.partitions=2", "transaction.state.log.num.partitions=2", "log.retention.ms=-1")
    try:
        equal(run.returncode, 0, run.stdout + run.stderr)
        serves_everything(written)
        run = tool("kafka-consumer-groups", "--bootstrap-server", BOOTSTRAP, "--describe", "--group", "directory-group", limit=40)
        if WITH != "4.4-killed":
            holds([w for line in run.out.splitlines() for w in line.split()[:4]][-4:] == ["directory-group", "alpha", "0", "17"], run)
    finally:
        oracle("stop", WORK)
    equal(folders(), sorted({*before, "__cluster_metadata-0"}), "folders, none of them stray")

finish()

# scenario: adoption: a directory that Apache Kafka wrote is taken over and served, Kafka refuses it then, and after klamm release Kafka 4.4 serves it with all that came since
# tier: normal
# limit: 240
# needs: kafka-4.4.0 kafka-3.9.1
# against: klamm
# broker: none
# each: 4.4 2.8
# each of all: 3.9 4.4-killed
import json, shutil, signal
from harness import *

FIXTURE = pathlib.Path(os.environ["CLIENTS"]).parent.parent / "fixtures" / "dir" / WITH
PROGRAM, ORACLE = os.environ["KLAMM_BIN"], os.environ["KAFKA"]
DATA = WORK / "data"
PARTITIONS = [("alpha", 0), ("alpha", 1), ("beta.with_dots", 0)]
tool = Tools("4.4.0")


def expected(topic, partition):
    """(offset, key, value) of each record that a consumer sees; the fixture has them in base64."""
    names = (f"{topic}-{partition}.{kind}.jsonl" for kind in ("expected", "after-recovery"))
    file = next(FIXTURE / name for name in names if (FIXTURE / name).exists())
    text = lambda field: "null" if field is None else base64.b64decode(field).decode()
    lines = map(json.loads, file.read_text().splitlines())
    return [(line["offset"], text(line["key"]), text(line["value"])) for line in lines if not line["control"]]


def consumed(topic, partition, count):
    """What the console's consumer gets from one partition."""
    run = tool("kafka-console-consumer", "--bootstrap-server", BOOTSTRAP, "--topic", topic, "--partition", partition,
               "--offset", "earliest", "--max-messages", count, "--timeout-ms", 20000, "--property", "print.offset=true",
               "--property", "print.key=true", limit=40)
    rows = [line.split("\t") for line in run.out.splitlines() if line.startswith("Offset:")]
    return [(int(row[0].split(":")[1]), row[1], row[2]) for row in rows]


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

with check("all records are served, and new ones are taken"):
    broker = klamm("taken-over")
    told = (WORK / "taken-over.log").read_text()
    holds("topics: 4, partitions: 7" in told and "Klamm has taken over from Apache Kafka" in told, told)
    serves_everything()
    run = tool("kafka-console-producer", "--bootstrap-server", BOOTSTRAP, "--topic", "beta.with_dots", "--property", "parse.key=true",
               "--property", "key.separator=:", stdin="".join(f"key-{n}:written by Klamm's time {n}\n" for n in range(3)))
    equal(run.code, "0", run)
    end = expected("beta.with_dots", 0)[-1][0] + 1
    written = [(("beta.with_dots", 0), (end + n, f"key-{n}", f"written by Klamm's time {n}")) for n in range(3)]
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
    run = tool("kafka-dump-log", "--files", files, "--print-data-log")
    holds("written by Klamm's time 2" in run.out and "isvalid: false" not in run.out, run)

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

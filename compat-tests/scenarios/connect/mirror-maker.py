# scenario: mirror-maker: MirrorMaker 2 of 3.9 copies topics, their settings and a group's offsets from one cluster into another, and goes on when both were restarted
# tier: all
# limit: 300
# against: klamm 4.4.0
# needs: connect kafka-4.4.0
# shows: mirror-maker: own groups restart
from connect import *

tool = Tools("4.4.0")
ports = free_ports()
other = next(port for port in ports if port % 2 == 0)  # an oracle uses the port behind it too
OTHER = f"127.0.0.1:{other}"
folder = WORK / "other"
folder.mkdir()


def other_broker(word):
    """Starts or stops the cluster that is copied into."""
    global process
    if not KLAMM:
        return subprocess.run(["bash", os.environ["KAFKA"], *(["start", AGAINST, str(other), str(folder)] if word == "start" else ["stop", str(folder)])], check=True, stdout=subprocess.DEVNULL)
    if word == "start":
        process = klamm_process(folder, {"listeners": f"PLAINTEXT://{OTHER}", "log.dirs": folder / "data"}, WORK / "other.log")
        return eventually(lambda: tool("kafka-topics", "--bootstrap-server", OTHER, "--list").code == "0", "the other cluster answers", 30)
    process.terminate()
    return process.wait(30)


def run(name, server, *arguments, **more):
    done = tool(name, "--bootstrap-server", server, *arguments, **more)
    equal(done.code, "0", str(done))
    return done


def values(server, topic, count):
    """The records of a topic, by partition."""
    lines = run("kafka-console-consumer", server, "--topic", topic, "--from-beginning", "--max-messages", count, "--timeout-ms", 20000, "--formatter-property", "print.partition=true", limit=60).lines
    found = {}
    for line in lines:
        partition, _, value = line.partition("\t")
        found.setdefault(partition, []).append(value)
    return found


def offsets(server, group, topic):
    lines = tool("kafka-consumer-groups", "--bootstrap-server", server, "--describe", "--group", group).lines
    rows = [line.split() for line in lines if f" {topic} " in line]
    return {int(row[2]): row[3] for row in rows}


def produce(first, last):
    run("kafka-console-producer", BOOTSTRAP, "--topic", "t", "--reader-property", "parse.key=true", "--reader-property", "key.separator=:", stdin="".join(f"k{n % 7}:value {n}\n" for n in range(first, last)))


MIRROR = {
    "clusters": "a, b", "a.bootstrap.servers": BOOTSTRAP, "b.bootstrap.servers": OTHER, "a->b.enabled": "true", "b->a.enabled": "false", "a->b.topics": "t", "a->b.groups": "g",
    **{f"{which}.replication.factor": 1 for which in ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic", "offset.storage", "status.storage", "config.storage")}, "replication.factor": 1,
    "refresh.topics.interval.seconds": 1, "refresh.groups.interval.seconds": 1, "sync.topic.configs.interval.seconds": 1, "emit.checkpoints.interval.seconds": 1,
    "sync.group.offsets.enabled": "true", "sync.group.offsets.interval.seconds": 1, "offset.lag.max": 0, "dedicated.mode.enable.internal.rest": "false", "plugin.discovery": "only_scan",
}
other_broker("start")
run("kafka-topics", BOOTSTRAP, "--create", "--topic", "t", "--partitions", 3, "--config", "retention.ms=123456789")
produce(0, 300)
run("kafka-console-consumer", BOOTSTRAP, "--topic", "t", "--from-beginning", "--max-messages", 300, "--group", "g", limit=60)
settings = properties("mirror", MIRROR)
mirror = Worker("mirror", "mirror", settings)
with check("a topic is made with its partitions and settings, and its records are copied in order"):
    eventually(lambda: mirror.lives() and "a.t" in run("kafka-topics", OTHER, "--list").lines, "the topic is there", 90)
    equal(values(OTHER, "a.t", 300), values(BOOTSTRAP, "t", 300))
    described = lambda: run("kafka-topics", OTHER, "--describe", "--topic", "a.t").out
    eventually(lambda: "retention.ms=123456789" in described() and "PartitionCount: 3" in described(), described, 30)
with check("a setting that changes is carried over"):
    run("kafka-configs", BOOTSTRAP, "--alter", "--entity-type", "topics", "--entity-name", "t", "--add-config", "retention.ms=222222222")
    eventually(lambda: "retention.ms=222222222" in described(), described, 30)
with check("the offsets of a group are translated"):
    eventually(lambda: offsets(OTHER, "g", "a.t") == offsets(BOOTSTRAP, "g", "t") != {}, lambda: f"{offsets(OTHER, 'g', 'a.t')} of {offsets(BOOTSTRAP, 'g', 't')}", 60)
with check("it goes on when the clusters were restarted, and copies what is new"):
    ask("restart")
    other_broker("stop")
    other_broker("start")
    produce(300, 500)
    wanted = values(BOOTSTRAP, "t", 500)
    eventually(lambda: mirror.lives() and sum(map(int, (line.split(":")[2] for line in run("kafka-get-offsets", OTHER, "--topic", "a.t").lines))) >= 500, "all is copied", 90)
    equal(values(OTHER, "a.t", 500), wanted)
with check("started anew it goes on where it was"):
    mirror.stop()
    produce(500, 600)
    mirror = Worker("mirror", "mirror", settings)
    ends = lambda: sum(map(int, (line.split(":")[2] for line in run("kafka-get-offsets", OTHER, "--topic", "a.t").lines)))
    eventually(lambda: mirror.lives() and ends() >= 600, "all is copied", 90)
    time.sleep(2)
    equal(ends(), 600, "records in the copy")
    equal(values(OTHER, "a.t", 600), values(BOOTSTRAP, "t", 600))
mirror.stop()
other_broker("stop")
finish()

# scenario: cluster-cuts: three nodes under load while links between them are cut, whole, one way, or of one pair, and a disk fills up: nothing acknowledged is lost, twice or out of order
# tier: normal
# limit: 200
# soak limit: 10800
# needs: python-new kafka-4.4.0
# against: klamm
# broker: none
#
# As cluster-rounds, but the nodes live on and lose sight of each other, for longer than a session; clients reach all of them
# all the time. One node's data is on a small tmpfs in a mount namespace of its own, which is filled and emptied again.
import random
import harness, links
from harness import *

SMALL = WORK / "small"
SMALL.mkdir()
namespace = ["unshare", "-m"] if os.getuid() == 0 else ["unshare", "-rm"]
holder = subprocess.Popen([*namespace, "bash", "-c", f"mount -t tmpfs -o size=2g tmpfs {SMALL} && echo mounted && exec sleep infinity"], stdout=subprocess.PIPE, text=True)
if holder.stdout.readline() != "mounted\n":
    raise SystemExit("FAILED no file system can be mounted here: run as root or allow user namespaces (kernel.unprivileged_userns_clone)")
inside = ["nsenter", "-t", str(holder.pid), "-m"] + ([] if os.getuid() == 0 else ["-U", "--preserve-credentials"])
seen = pathlib.Path(f"/proc/{holder.pid}/root") / SMALL.relative_to("/")  # the mounted file system, from out here

settings = {"broker.session.timeout.ms": 4000, "broker.heartbeat.interval.ms": 500, "default.replication.factor": 3, "min.insync.replicas": 2, "replica.lag.time.max.ms": 4000,
            "offsets.topic.replication.factor": 3, "transaction.state.log.replication.factor": 3, "transaction.state.log.min.isr": 2}
SMALL_NODE = 3
cluster = links.Cluster(settings, lambda number: inside if number == SMALL_NODE else [], lambda number: SMALL if number == SMALL_NODE else None)
harness.BOOTSTRAP = cluster.bootstrap
from endless import *

ROUNDS = 50 if os.environ["SOAK"] else 4
SEED = os.environ.get("KILL_SEED") or str(random.SystemRandom().randrange(10**9))
chance = random.Random(SEED)
print(f"KILL_SEED={SEED}, {ROUNDS} rounds")
TOPICS = ("numbers", "java")


def in_sync():
    """Whether all replicas of all partitions are in sync."""
    with contextlib.suppress(Exception):
        partitions = [p for topic in admin.list_topics(timeout=5).topics.values() for p in topic.partitions.values()]
        return all(p.leader >= 0 and len(p.isrs) == len(p.replicas) == 3 for p in partitions)


def alone(one, two, three):
    """One node hears nobody and nobody hears it."""
    cut((one, two), (two, one), (one, three), (three, one))


def deaf(one, two, three):
    """Nobody can open or use a connection to one node, but those that it opens work."""
    cut((two, one), (three, one))


def apart(one, two, three):
    """Two nodes lose each other, and the third sees both."""
    cut((one, two), (two, one))


def full(*nodes):
    """A file system has no block left."""
    with open(seen / "filler", "ab", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(b"x" * 4096):
            pass
    time.sleep(5)
    (seen / "filler").unlink()


def cut(*pairs):
    cluster.sever(*pairs)
    time.sleep(7)  # sessions end, and followers have lagged for too long
    cluster.heal()


admin = create(*(NewTopic(t, PARTITIONS, 3, config={"segment.bytes": str(1 << 20)}) for t in TOPICS))
start(librdkafka, "numbers")
start(java, "java")
start(followers, "numbers")
eventually(lambda: len(acknowledged) == 2 and all_work(), "everybody works", 40)
for number in range(ROUNDS):
    time.sleep(chance.random())
    nodes = chance.sample((1, 2, 3), 3)
    happens = (alone, apart, full, deaf)[number % 4]
    with check(f"round {number + 1}: {happens.__name__} {nodes}"):
        happens(*nodes)
        known = no_commit_went_back("numbers")
        print(f"acknowledged {all_write_on()}, committed {known}")
        eventually(in_sync, "all replicas in sync", 60)
end()
for topic in TOPICS:
    with check(f"all of {topic} is there once, in order, where it was acknowledged"):
        each_is_there_once(topic, 60 + 5 * ROUNDS)
with check("no commit went back"):
    no_commit_went_back("numbers")
if failures:
    for node in cluster.nodes:
        print(f"--- node {node.number}", *(node.folder / "log").read_text().splitlines()[-40:], sep="\n")
print(f"{sum(map(len, acknowledged.values()))} acknowledgements in {ROUNDS} rounds")
for process in (*(node.process for node in cluster.nodes), holder):
    process.kill()
finish()

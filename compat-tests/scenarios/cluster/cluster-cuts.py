# scenario: cluster-cuts: three nodes under load while links between them are cut, whole, one way, or of one pair, and a disk fills up: nothing acknowledged is lost, twice or out of order
# tier: normal
# limit: 200
# soak limit: 10800
# needs: python-new kafka-4.4.0
# against: klamm
# broker: none
# shows: confluent-kafka-new java-4.4.0: idempotent cluster
#
# As cluster-rounds, but the nodes live on and lose sight of each other, for longer than a session; clients reach all of them
# all the time. One node's data is on a small tmpfs in a mount namespace of its own, which is filled and emptied again.
import harness, links
from harness import *

SMALL = WORK / "small"
small = SmallDisk(SMALL, "2g")

settings = {"broker.session.timeout.ms": 4000, "broker.heartbeat.interval.ms": 500, "default.replication.factor": 3, "min.insync.replicas": 2, "replica.lag.time.max.ms": 4000,
            "offsets.topic.replication.factor": 3, "transaction.state.log.replication.factor": 3, "transaction.state.log.min.isr": 2}
SMALL_NODE = 3
cluster = links.Cluster(settings, lambda number: small.inside if number == SMALL_NODE else [], lambda number: SMALL if number == SMALL_NODE else None)
harness.BOOTSTRAP = cluster.bootstrap
from endless import *

ROUNDS = 50 if os.environ["SOAK"] else 4
chance = seeded(ROUNDS)
TOPICS = ("numbers", "java")


def alone(one, two, three):
    """One node hears nobody and nobody hears it."""
    cut((one, two), (two, one), (one, three), (three, one))


def deaf(one, two, three):
    """Nobody can open or use a connection to one node, but those that it opens work."""
    cut((two, one), (three, one))


def apart(one, two, three):
    """Two nodes lose each other, and the third sees both. Not all pairs talk: two may both follow the third in all."""
    first, second = next(pair for pair in ((one, two), (one, three), (two, three)) if cluster.connected(*pair))
    cut((first, second), (second, first))


def full(*nodes):
    """A file system has no block left."""
    small.fill_up()
    time.sleep(5)
    (small.seen / "filler").unlink()


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
        heals(admin)
end()
judge(TOPICS, ROUNDS)
if failures:
    for node in cluster.nodes:
        print(f"--- node {node.number}", *(node.folder / "log").read_text().splitlines()[-40:], sep="\n")
for process in (*(node.process for node in cluster.nodes), small.holder):
    process.kill()
finish()

# scenario: cluster-metrics: what an operator asks first is told over HTTP by each node, and is true while a follower lags, a node is killed, and comes back
# tier: normal
# limit: 120
# needs: python-new
# against: klamm
# broker: none
import signal
from nodes import *
from endless import *

nodes = [Node(f"node-{number}", number).start() for number in PORTS]
well(*nodes)
admin = create(NewTopic("work", PARTITIONS, 3), NewTopic("strict", 1, 3, config={"min.insync.replicas": "3"}), NewTopic("single", 3, replica_assignment=[[1], [2], [3]]))
ALL_PARTITIONS = PARTITIONS + 1 + 3


def seen(name, those=None):
    """A metric of each node that lives."""
    return [node.metrics()[name] for node in those or nodes if node.process.poll() is None]


def becomes(**wanted):
    """Each metric's sum over the nodes becomes this; of several at the same time."""
    eventually(lambda: all(sum(seen(name)) == value for name, value in wanted.items()), wanted, 20)


def write(count):
    producer = Producer({**quiet, "acks": "1"})
    for number in range(count):
        producer.produce("work", b"x" * 1000, partition=number % PARTITIONS)
    equal(producer.flush(30), 0, "left in the queue")


with check("nothing is wrong"):
    write(1000)
    becomes(active_controller=1, leader_partitions=ALL_PARTITIONS, under_replicated_partitions=0, under_min_isr_partitions=0, offline_partitions=0, replica_lag_max=0, offline_log_directories=0, unserved_partitions=0)
    equal(sum(seen("at_min_isr_partitions")), 4, "the strict one, and those with one replica, at their minimum")
    equal(seen("brokers"), [3, 3, 3])
    equal(seen("fenced_brokers"), [0, 0, 0])
    equal(seen("topics"), [3, 3, 3])
controller = next(node for node in nodes if node.metrics()["active_controller"])
victim = next(node for node in nodes if node is not controller)
others = [node for node in nodes if node is not victim]
with check("how far a follower lags is told by its leaders"):
    victim.process.send_signal(signal.SIGSTOP)
    stopped = time.time()
    leads = {p.id: p.leader for p in admin.list_topics("work", 10).topics["work"].partitions.values()}
    producer = Producer({**quiet, "acks": "1"})
    for partition in [p for p, leader in leads.items() if leader != victim.number]:
        for _ in range(500):
            producer.produce("work", b"y", partition=partition)
    producer.flush(1.5)
    lags = seen("replica_lag_max", others)
    victim.process.send_signal(signal.SIGCONT)
    print(f"lags {lags}, stopped for {time.time() - stopped:.1f} s")
    holds(max(lags) >= 500, lags)
    becomes(replica_lag_max=0)
with check("a node is killed"):
    led = [topic.topic for topic in admin.list_topics(timeout=10).topics.values() for p in topic.partitions.values() if p.leader == victim.number]
    elections = seen("leader_elections_total", others)
    victim.stop("kill")
    becomes(active_controller=1, leader_partitions=ALL_PARTITIONS - 1, under_replicated_partitions=PARTITIONS + 1, under_min_isr_partitions=1, at_min_isr_partitions=PARTITIONS + 2)
    eventually(lambda: seen("offline_partitions") == [1, 1] and seen("fenced_brokers") == [1, 1], "one is offline, as both say", 10)
    moved = sum(topic != "single" for topic in led)
    equal([now - before for now, before in zip(seen("leader_elections_total"), elections)], [moved, moved], f"elections, since node {victim.number} led partitions of {led}")
    equal(seen("unclean_leader_elections_total"), [0, 0])
with check("and comes back"):
    expands = sum(seen("isr_expands_total"))
    victim.start()
    well(victim)
    becomes(active_controller=1, leader_partitions=ALL_PARTITIONS, under_replicated_partitions=0, under_min_isr_partitions=0, at_min_isr_partitions=4, fenced_brokers=0, offline_partitions=0, replica_lag_max=0)
    equal(sum(seen("isr_expands_total", others)) - expands, PARTITIONS + 1, "replicas that came into sync again")
with check("the controller is killed"):
    controller.stop("kill")
    becomes(active_controller=1)
    eventually(lambda: seen("fenced_brokers") == [1, 1], "it is fenced", 10)
for node in nodes:
    node.process.kill()
finish()

# scenario: cluster-rolling: three nodes with a thousand partitions are restarted one after the other under load: no error that a client's retries do not hide
# tier: all
# limit: 400
# needs: python-new kafka-4.4.0
# against: klamm 4.4.0
# nodes: 3
# broker: default.replication.factor=3 min.insync.replicas=2 auto.leader.rebalance.enable=false
# shows: confluent-kafka-new java-4.4.0: idempotent cluster
#
# Producers with default time-outs write all the time. Each node is stopped as an operator does, started, and has all its
# replicas in sync again before it is the next one's turn.
from endless import *

TOPICS = [f"many-{n}" for n in range(10)]


def in_sync():
    """Whether all replicas of all partitions are in sync, as every node sees it."""
    with contextlib.suppress(Exception):
        seen = [AdminClient({**quiet, "bootstrap.servers": one}).list_topics(timeout=5) for one in BOOTSTRAP.split(",")]
        partitions = [p for metadata in seen for topic in metadata.topics.values() for p in topic.partitions.values()]
        return len(partitions) >= 3 * 1000 and all(p.leader >= 0 and len(p.isrs) == len(p.replicas) == 3 for p in partitions)


create(*(NewTopic(t, 100, 3) for t in TOPICS), *(NewTopic(t, PARTITIONS, 3) for t in ("numbers", "java")))
start(librdkafka, "numbers")
start(java, "java")
start(followers, "numbers")
eventually(lambda: len(acknowledged) == 2 and all_work() and in_sync(), "everybody works", 60)
begin = time.time()
for node in (1, 2, 3):
    with check(f"node {node} is restarted"):
        stopped = time.time()
        ask(f"stop {node}")
        started = time.time()
        ask(f"start {node}")
        listens = time.time()
        eventually(in_sync, "all replicas in sync", 90)
        print(f"stopped in {started - stopped:.1f} s, listens after {listens - started:.1f} s, in sync after {time.time() - listens:.1f} s more")
        all_write_on()
print(f"{time.time() - begin:.1f} s in all")
end()
for topic in ("numbers", "java"):
    with check(f"all of {topic} is there once, in order, where it was acknowledged"):
        each_is_there_once(topic, 120)
finish()

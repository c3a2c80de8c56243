# scenario: cluster-rounds: three nodes under load while each is killed, stopped, restarted: nothing acknowledged is lost, twice or out of order, no committed offset goes back, and all heals by itself
# tier: normal
# limit: 240
# soak limit: 10800
# needs: python-new kafka-2.8.2 kafka-4.4.0 go-endless
# against: klamm 4.4.0
# nodes: 3
# broker: broker.session.timeout.ms=4000 broker.heartbeat.interval.ms=500 default.replication.factor=3 min.insync.replicas=2
# shows: confluent-kafka-new java-2.8.2 java-4.4.0 franz-go: idempotent cluster
#
# Idempotent producers with acks=all of librdkafka, franz-go, Java 2.8 and Java 4.4 write all the time and retry through everything;
# a group reads along and commits. In each round one node at random is killed with -9, stopped as an operator does, or
# stands still (SIGSTOP) for longer than its session, and comes back.
from endless import *

ROUNDS = 100 if os.environ["SOAK"] else 3
chance = seeded(ROUNDS)
TOPICS = ("numbers", "java-2.8", "java-4.4", "franz-go")


def killed(node):
    ask(f"crash {node}")
    time.sleep(chance.random() * 3)
    ask(f"start {node}")


def stopped(node):
    ask(f"stop {node}")
    time.sleep(chance.random() * 3)
    ask(f"start {node}")


def still(node):
    ask(f"pause {node}")
    time.sleep(6)  # its session ends
    ask(f"continue {node}")


admin = create(*(NewTopic(t, PARTITIONS, 3, config={"segment.bytes": str(1 << 20)}) for t in TOPICS))
start(librdkafka, "numbers")
start(java, "java-2.8", "2.8.2")
start(java, "java-4.4", "4.4.0")
start(franz_go, "franz-go")
start(followers, "numbers")
eventually(lambda: len(acknowledged) == len(TOPICS) and all_work(), "everybody works", 40)
for number in range(ROUNDS):
    time.sleep(chance.random())
    node = chance.randrange(1, 4)
    happens = (killed, stopped, still)[number % 3]
    with check(f"round {number + 1}: node {node} {happens.__name__}"):
        happens(node)
        heals(admin)
end()
judge(TOPICS, ROUNDS)
finish()

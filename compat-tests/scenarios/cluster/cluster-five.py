# scenario: cluster-five: five nodes under load while two at once are killed, stopped, or stand still: nothing acknowledged is lost, twice or out of order, and all heals by itself
# tier: all
# limit: 300
# soak limit: 10800
# needs: python-new kafka-4.4.0 go-endless
# against: klamm 4.4.0
# nodes: 5
# broker: broker.session.timeout.ms=4000 broker.heartbeat.interval.ms=500 default.replication.factor=5 min.insync.replicas=3 offsets.topic.replication.factor=5
# shows: confluent-kafka-new java-4.4.0 franz-go: idempotent cluster
#
# As cluster-rounds, with two nodes in each round: three of five are a majority, and enough for acks=all.
from endless import *

ROUNDS = 50 if os.environ["SOAK"] else 3
NODES = 5
chance = seeded(ROUNDS)
TOPICS = ("numbers", "java", "franz-go")


def killed(*pair):
    for node in pair:
        ask(f"crash {node}")
    time.sleep(chance.random() * 3)
    for node in pair:
        ask(f"start {node}")


def stopped_and_killed(one, two):
    ask(f"stop {one}")
    killed(two)
    ask(f"start {one}")


def still(*pair):
    for node in pair:
        ask(f"pause {node}")
    time.sleep(6)  # their sessions end
    for node in pair:
        ask(f"continue {node}")


admin = create(*(NewTopic(t, PARTITIONS, NODES, config={"segment.bytes": str(1 << 20)}) for t in TOPICS))
start(librdkafka, "numbers")
start(java, "java")
start(franz_go, "franz-go")
start(followers, "numbers")
eventually(lambda: len(acknowledged) == len(TOPICS) and all_work(), "everybody works", 90 if KLAMM else 180)
for number in range(ROUNDS):
    time.sleep(chance.random())
    pair = chance.sample(range(1, NODES + 1), 2)
    happens = (killed, stopped_and_killed, still)[number % 3]
    with check(f"round {number + 1}: nodes {pair} {happens.__name__}"):
        happens(*pair)
        heals(admin, NODES)
end()
judge(TOPICS, ROUNDS)
finish()

# scenario: cluster-groups: three nodes: five members of as many clients under load, while the node that coordinates them is killed and some come and go: no record is lost, none is handled again after it was committed
# tier: normal
# limit: 600
# soak limit: 5400
# needs: python-new kafka-2.8.2 kafka-4.4.0 go-franz-go-member go-sarama-member
# against: klamm 4.4.0
# nodes: 3
# broker: broker.session.timeout.ms=4000 broker.heartbeat.interval.ms=500 default.replication.factor=3 min.insync.replicas=2
# shows: confluent-kafka-new java-4.4.0 kafka-python-new franz-go sarama: groups cluster
from members import *
from exactly_once import coordinator

ROUNDS = 60 if os.environ["SOAK"] else 3
GROUP = 0  # kind of coordinator


def coordinator_killed():
    node = coordinator(GROUP, "team")
    ask(f"crash {node}")
    print(f"node {node} is away")
    team.settle()
    ask(f"start {node}")


def coordinator_killed_while_one_leaves():
    node = coordinator(GROUP, "team")
    ask(f"crash {node}")
    team.present.pop(0).leave()
    team.join()
    team.settle()
    ask(f"start {node}")


def member_killed():
    team.present.pop(0).kill()
    team.join()


team = Team(["librdkafka", "java-4.4.0", "kafka_python", "franz_go", "sarama"], "range", replicas=3)
with check("five members share all"):
    for number in range(5):
        team.join()
    team.settle()
for number in range(ROUNDS):
    happens = (coordinator_killed, coordinator_killed_while_one_leaves, member_killed)[number % 3]
    with check(f"round {number + 1}: they go on after {happens.__name__}"):
        happens()
        team.settle()
team.end()
finish()

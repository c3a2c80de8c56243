# scenario: cluster-copies: three nodes: programs copy in transactions while the node that coordinates them is killed: read_committed holds each record exactly once
# tier: normal
# limit: 600
# soak limit: 5400
# needs: python-new kafka-4.4.0 go-copier
# each: franz-go
# each of all: java librdkafka
# against: klamm 4.4.0
# nodes: 3
# broker: broker.session.timeout.ms=4000 broker.heartbeat.interval.ms=500 default.replication.factor=3 min.insync.replicas=2 transaction.abort.timed.out.transaction.cleanup.interval.ms=500
# shows of java: java-4.4.0: exactly-once cluster
# shows of librdkafka: confluent-kafka-new: exactly-once cluster
# shows of franz-go: franz-go: exactly-once cluster
from exactly_once import *

ROUNDS = 60 if os.environ["SOAK"] else 3
GROUP, TRANSACTION = 0, 1  # kinds of coordinators


def killed(kind, name, copies):
    node = coordinator(kind, name)
    ask(f"crash {node}")
    print(f"node {node} is away")
    copies.go_on()
    ask(f"start {node}")


def coordinator_of_transactions_killed(copies):
    killed(TRANSACTION, "copier-0", copies)


def coordinator_of_group_killed(copies):
    killed(GROUP, "copiers", copies)


copies = Copies(WITH, replicas=3)
copies.rounds(ROUNDS, coordinator_of_transactions_killed, coordinator_of_group_killed, program_killed)
copies.judge()
finish()

# scenario: librdkafka-no-auto-create: librdkafka's tests for brokers that create no topics by themselves pass as on Apache Kafka 4.4.0
# tier: all
# limit: 600
# needs: librdkafka kafka-4.4.0
# nodes: 3
# broker: default.replication.factor=3 num.partitions=4 group.initial.rebalance.delay.ms=1000 auto.create.topics.enable=false
# against: klamm 4.4.0
# shows: librdkafka: suite
import librdkafka_tests

librdkafka_tests.go("librdkafka-no-auto-create", "noautocreate")

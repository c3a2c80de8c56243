# scenario: librdkafka-tests: librdkafka's own tests that pass on three nodes of Apache Kafka 4.4.0 pass on three of Klamm
# tier: all
# limit: 3600
# needs: librdkafka kafka-4.4.0
# nodes: 3
# broker: default.replication.factor=3 num.partitions=4 group.initial.rebalance.delay.ms=1000
# against: klamm 4.4.0
# shows: librdkafka: suite cluster
#
# clients/python/suites.py says how they are compared, suites/librdkafka.4.4.0.tsv what Kafka did.
import librdkafka_tests

librdkafka_tests.go("librdkafka", "default")

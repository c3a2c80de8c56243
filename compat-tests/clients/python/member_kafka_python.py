"""A member of a group (members.py has the protocol), of kafka-python."""
import sys, threading
from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError

bootstrap, topic, group, assignor, *instance = sys.argv[1:]
assert assignor == "range"
consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
                         session_timeout_ms=30000 if instance else 6000, heartbeat_interval_ms=300, fetch_max_wait_ms=100, reconnect_backoff_max_ms=200,
                         partition_assignment_strategy=[RangePartitionAssignor], **({"group_instance_id": instance[0]} if instance else {}))
pending, leaves = {}, threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), leaves.set()), daemon=True).start()


def commit():
    if pending:
        try:
            consumer.commit({partition: OffsetAndMetadata(offset, "", -1) for partition, offset in pending.items()})
        except KafkaError as error:  # the group rebalances: again after it, or when partitions are taken
            return print("said", repr(error), flush=True)
        for partition, offset in pending.items():
            print("committed", partition.partition, offset)
        pending.clear()


class Listener(ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked):
        commit()
        pending.clear()
        print("assigned", flush=True)

    def on_partitions_assigned(self, assigned):
        print("assigned", *sorted(partition.partition for partition in assigned), flush=True)


consumer.subscribe([topic], listener=Listener())
while not leaves.is_set():
    for records in consumer.poll(100).values():
        for record in records:
            print("read", record.partition, record.offset, record.value.decode())
            pending[TopicPartition(topic, record.partition)] = record.offset + 1
    commit()
    sys.stdout.flush()
consumer.close()

"""A member of a group (members.py has the protocol), of librdkafka."""
import sys, threading
from confluent_kafka import Consumer, KafkaException, TopicPartition

bootstrap, topic, group, assignor, *instance = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False,
                     "session.timeout.ms": 30000 if instance else 6000, "heartbeat.interval.ms": 300, "fetch.wait.max.ms": 100, "reconnect.backoff.max.ms": 200,
                     "log_level": 0, "partition.assignment.strategy": assignor, **({"group.instance.id": instance[0]} if instance else {})})
pending, assigned, leaves = {}, set(), threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), leaves.set()), daemon=True).start()


def commit():
    if pending:
        try:
            consumer.commit(offsets=[TopicPartition(topic, p, o) for p, o in pending.items()], asynchronous=False)
        except KafkaException as error:  # the group rebalances: again after it, or when partitions are taken
            return print("said", error, flush=True)
        for p, o in pending.items():
            print("committed", p, o)
        pending.clear()


def tell():
    print("assigned", *sorted(assigned), flush=True)


def lost(_, partitions):
    for one in partitions:
        assigned.discard(one.partition)
        pending.pop(one.partition, None)
    tell()


def revoked(_, partitions):
    commit()
    lost(_, partitions)


def added(_, partitions):
    assigned.update(one.partition for one in partitions)
    tell()


consumer.subscribe([topic], on_assign=added, on_revoke=revoked, on_lost=lost)
while not leaves.is_set():
    for message in consumer.consume(500, 0.1):
        if not message.error():
            print("read", message.partition(), message.offset(), message.value().decode())
            pending[message.partition()] = message.offset() + 1
    commit()
    sys.stdout.flush()
consumer.close()

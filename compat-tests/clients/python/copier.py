"""A program that copies a topic in transactions, aborts some of them, and ends when a transaction's outcome is not known.

Arguments: BOOTSTRAP INPUT OUTPUT GROUP TRANSACTIONAL_ID
"""
import random, signal, sys
from confluent_kafka import Consumer, KafkaException, Producer

bootstrap, source, target, group, transactional_id = sys.argv[1:]
RECORDS_MAX, ONE_OF_IS_ABORTED = 50, 5
LIMIT = 6  # seconds that each step of librdkafka may take
# librdkafka 2.16 waits in send_offsets_to_transaction without an end when its only broker was away, also with Apache Kafka
# 4.4.0: SIGALRM ends the program when a transaction has taken so many seconds.
TRANSACTION_LIMIT = 8
quiet = {"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200}
signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))

consumer = Consumer({**quiet, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False,
                     "isolation.level": "read_committed", "session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "fetch.wait.max.ms": 100})
producer = Producer({**quiet, "transactional.id": transactional_id, "transaction.timeout.ms": 6000, "linger.ms": 5})


def back_to_what_is_committed():
    for partition in consumer.committed(consumer.assignment(), LIMIT):
        consumer.seek(partition)


def copy():
    messages = [message for message in consumer.consume(RECORDS_MAX, 0.1) if not message.error()]
    if not messages:
        return
    signal.alarm(TRANSACTION_LIMIT)
    producer.begin_transaction()
    for message in messages:
        producer.produce(target, message.value(), message.key())
    if random.randrange(ONE_OF_IS_ABORTED) == 0:
        producer.flush(LIMIT)
        producer.abort_transaction(LIMIT)
        return back_to_what_is_committed()
    producer.send_offsets_to_transaction(consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), LIMIT)
    producer.commit_transaction(LIMIT)


try:
    producer.init_transactions(LIMIT)
    consumer.subscribe([source])
    while True:
        copy()
        signal.alarm(0)
except KafkaException as error:
    sys.exit(f"ends: {error}")  # the next one begins where the last transaction that was committed ended

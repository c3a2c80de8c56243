# scenario: kill-rounds: killed with -9 at random moments under load: nothing acknowledged is lost, twice or out of order, and no committed offset goes back
# tier: normal
# limit: 150
# soak limit: 5400
# needs: python-new kafka-4.4.0
# against: klamm 4.4.0
# broker: log.cleaner.backoff.ms=200
# shows: confluent-kafka-new: idempotent groups kill
# shows: java-4.4.0: idempotent kill
#
# Two idempotent producers with acks=all, librdkafka's and Java's, write all the time and retry through every kill; a group
# reads along and commits. What a producer sent must in the end be there once, in order, where it was acknowledged. The
# topics have small segments; one is compacted, and the last value of each of its keys must be the last acknowledged one.
from endless import *

ROUNDS = 1 if not KLAMM else 100 if os.environ["SOAK"] else 3  # Apache Kafka takes long to start
chance = seeded(ROUNDS)

small = {"segment.bytes": str(1 << 20)}
compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "500", **small}
topics = [NewTopic("numbers", PARTITIONS, 1, config=small), NewTopic("java", PARTITIONS, 1, config=small), NewTopic("latest", 1, 1, config=compacted)]
create(*topics)
start(librdkafka, "numbers", "latest")
start(java, "java")
start(followers, "numbers")
eventually(lambda: len(acknowledged) == 3 and all_work(), "everybody works", 30)
for number in range(ROUNDS):
    time.sleep(chance.choice((0.05, 1.5)) * chance.random() + 0.5 * chance.random())
    with check(f"round {number + 1}"):
        ask("crash")
        for _ in range(chance.choice((0, 0, 1, 2)) if KLAMM else 0):  # killed again as soon as it listens
            ask("start")
            time.sleep(chance.random() * 0.2)
            ask("crash")
        ask("start")
        known = no_commit_went_back("numbers")
        print(f"acknowledged {all_write_on()}, committed {known}")
end()
SECONDS = 60 + 5 * ROUNDS  # to read a topic
for topic in ("numbers", "java"):
    with check(f"all of {topic} is there once, in order, where it was acknowledged"):
        each_is_there_once(topic, SECONDS)
with check("each key of the compacted topic has its last value"):
    each_key_has_its_last_value("latest", SECONDS)
with check("no commit went back"):
    no_commit_went_back("numbers")
print(f"{sum(map(len, acknowledged.values()))} acknowledgements in {ROUNDS} rounds")
finish()

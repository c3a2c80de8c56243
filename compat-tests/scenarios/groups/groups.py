# scenario: groups: five members under load, while some join, leave, are killed, come back as static ones, and the broker is killed: no record is lost, none is handled twice after a clean hand-over
# tier: normal
# limit: 600
# needs: python-new kafka-0.10.2.2 kafka-0.11.0.3 kafka-2.8.2 kafka-3.9.1 kafka-4.4.0 node go-franz-go-member go-sarama-member
# each: mixed
# each of all: java-4.4.0 java-0.10.2.2 java-0.11.0.3 java-2.8.2 java-3.9.1 librdkafka kafka_python franz_go sarama kafkajs
# against: klamm 2.8.2 4.4.0
# against of java-0.10.2.2 java-0.11.0.3: klamm 2.8.2
# shows of java-4.4.0 java-3.9.1: $WITH: groups static cooperative kill
# shows of java-2.8.2 sarama: $WITH: groups static kill
# shows of java-0.10.2.2 java-0.11.0.3 kafkajs: $WITH: groups kill
# shows of librdkafka: confluent-kafka-new: groups static cooperative kill
# shows of kafka_python: kafka-python-new: groups static kill
# shows of franz_go: franz-go: groups static cooperative kill
# shows of mixed: confluent-kafka-new java-4.4.0 kafka-python-new franz-go sarama: groups kill
#
# mixed: each member is of another client, all with the assignor `range`.
from members import *

OLD = "java-2.8.2" if AGAINST.startswith("4.") else "java-0.10.2.2"  # Apache Kafka 4 serves no clients from before 2.1 (KIP-896)
MIXED = [OLD, "librdkafka", "java-4.4.0", "kafka_python", "franz_go", "sarama", "librdkafka"]
team = Team(MIXED, "range") if WITH == "mixed" else Team([WITH])
present = team.present

with check("five members share all"):
    for number in range(5):
        team.join(f"static-{number}" if number in (1, 2) and may_be_static(team.client(number)) else None)
    team.settle()
with check("one joins"):
    team.join()
    print("ms that each stood still:", team.settle())
with check("one leaves"):
    present.pop(0).leave()
    print("ms that each stood still:", team.settle())
with check("another joins, another leaves"):
    team.join()
    present.pop(2).leave()
    team.settle()
with check("none is handled twice when members come and go by themselves"):
    none_twice(team.everybody)
with check("one is killed, another takes its place"):
    present.pop().kill()
    team.join()
    team.settle()
static = next((member for member in present if member.instance), None)
if static:
    with check("a static member is killed and comes back: nobody else rebalances"):
        present.remove(static)
        static.kill()
        others, before = list(present), [member.gains for member in present]
        back = team.join(static.instance, static.number)
        team.settle()
        equal([member.gains for member in others], before, "rebalances of the others")
        equal(back.assigned, static.assigned_before_its_end, "what it has again")
with check("the broker is killed under them"):
    ask("kill")
    team.settle()
team.end()
finish()

# scenario: groups: five members under load, while some join, leave, are killed, come back as static ones, and the broker is killed: no record is lost, none is handled twice after a clean hand-over
# tier: normal
# limit: 600
# needs: python-new kafka-0.10.2.2 kafka-0.11.0.3 kafka-2.8.2 kafka-3.9.1 kafka-4.4.0 node go-franz-go-member go-sarama-member
# each: mixed
# each of all: java-4.4.0 java-0.10.2.2 java-0.11.0.3 java-2.8.2 java-3.9.1 librdkafka kafka_python franz_go sarama kafkajs
# against: klamm 2.8.2 4.4.0
#
# mixed: each member is of another client, all with the assignor `range`.
from exactly_once import Feed, PATIENCE, create
from members import *

PARTITIONS, A_SECOND = 10, 300
MIXED = ["java-0.10.2.2", "librdkafka", "java-4.4.0", "kafka_python", "franz_go", "sarama", "librdkafka"]
everybody, present = [], []


def client(number):
    return MIXED[number % len(MIXED)] if WITH == "mixed" else WITH


def join(instance=None, number=None):
    number = len(everybody) if number is None else number
    member = Member(f"member-{len(everybody)}-{client(number)}", client(number), "team", "range" if WITH == "mixed" else None, instance)
    member.number = number
    everybody.append(member)
    present.append(member)
    return member


def settle(seconds=40 * PATIENCE):
    """Waits until those that are present share all partitions and handle what is written from now on; returns how long the one that stood still longest did."""
    since = time.time()
    shared = lambda: share_all(present, PARTITIONS)
    eventually(shared, lambda: f"they share all: {[member.assigned for member in present]}", seconds)
    count = feed.count
    eventually(lambda: shared() and set(range(count)) <= set(handled(everybody)), lambda: f"all up to {count} is handled", seconds)
    return [member.stood_still(since) for member in present]


create("numbers", partitions=PARTITIONS)
feed = Feed(lambda number: [("numbers", None, f"{number}", 0)], A_SECOND, PARTITIONS, behind=lambda count: count - sum(len(member.reads) for member in everybody))
with check("five members share all"):
    for number in range(5):
        join(f"static-{number}" if number in (1, 2) and may_be_static(client(number)) else None)
    settle()
with check("one joins"):
    join()
    print("ms that each stood still:", settle())
with check("one leaves"):
    present.pop(0).leave()
    print("ms that each stood still:", settle())
with check("another joins, another leaves"):
    join()
    present.pop(2).leave()
    settle()
with check("none is handled twice when members come and go by themselves"):
    none_twice(everybody)
with check("one is killed, another takes its place"):
    present.pop().kill()
    join()
    settle()
static = next((member for member in present if member.instance), None)
if static:
    with check("a static member is killed and comes back: nobody else rebalances"):
        present.remove(static)
        static.kill()
        before = [member.gains for member in present]
        others, had = list(present), static.assigned_before_its_end
        back = join(static.instance, static.number)
        settle()
        equal([member.gains for member in others], before, "rebalances of the others")
        equal(back.assigned, had, "what it has again")
with check("the broker is killed under them"):
    ask("kill")
    settle()
with check("all of them leave"):
    count = feed.stop()
    eventually(lambda: set(range(count)) <= set(handled(everybody)), "all is handled", 60 * PATIENCE)
    stay = [member for member in present if member.instance]
    for member in present:
        if member not in stay:
            member.leave()
    # A static one does not say that it leaves: who rebalances then waits for it until its session ends.
    eventually(lambda: not stay or share_all(stay, PARTITIONS), "the static ones share all", 30)
    for member in stay:
        member.leave()
with check("none is lost"):
    none_lost(everybody, count)
with check("none is handled again after it was committed"):
    none_after_its_commit(everybody)
print(f"{count} records, {sum(len(member.reads) for member in everybody)} times handled by {len(everybody)} members")
if failures:
    for member in everybody:
        print(member.name, "had", *member.history, (WORK / (member.name + ".log")).read_text()[-1500:])
finish()

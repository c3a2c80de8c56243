# scenario: cluster-grow: under load a fourth node joins three, partitions are moved to it at a throttled rate, and an old one is drained, stopped and unregistered
# tier: all
# limit: 400
# needs: python-new kafka-4.4.0
# against: klamm 4.4.0
# nodes: 3
# joining: 1
# broker: default.replication.factor=3 min.insync.replicas=2
# shows: confluent-kafka-new: idempotent cluster
# shows: java-4.4.0: idempotent admin cluster
#
# All is done by Kafka's own tools, as an operator does it: generate, execute and verify what moves, look that nothing is
# left on the old node, stop it, unregister it.
import json
from endless import *

WRITTEN = ("numbers", "java")
HISTORY_MIB, THROTTLE_MIB = 48, 8
tool = Tools("4.4.0")


def run(name, *arguments, limit=60):
    """What a tool printed. It must end well."""
    seen = tool(name, "--bootstrap-server", BOOTSTRAP, *arguments, limit=limit)
    equal(seen.code, "0", seen)
    return seen.out


def topics():
    return [name for name in admin.list_topics(timeout=10).topics]


def replicas():
    """Replicas of all partitions."""
    metadata = admin.list_topics(timeout=10)
    return {(topic.topic, p.id): p.replicas for topic in metadata.topics.values() for p in topic.partitions.values()}


def throttles():
    """Settings of throttles that stand on a broker or a topic."""
    brokers = run("kafka-configs", "--describe", "--entity-type", "brokers")
    return [word for word in (brokers + run("kafka-configs", "--describe", "--entity-type", "topics")).split() if "throttled" in word and "sensitive" not in word]


def move_to(brokers):
    """Moves all topics to these brokers as the tool proposes, and returns how many seconds it took."""
    names, plan = WORK / "topics.json", WORK / f"plan-{'-'.join(map(str, brokers))}.json"
    names.write_text(json.dumps({"version": 1, "topics": [{"topic": topic} for topic in topics()]}))
    generated = run("kafka-reassign-partitions", "--generate", "--topics-to-move-json-file", names, "--broker-list", ",".join(map(str, brokers)))
    plan.write_text(generated.split("Proposed partition reassignment configuration\n")[1])
    holds(len(json.loads(plan.read_text())["partitions"]) == len(replicas()), generated)
    begin = time.time()
    executed = run("kafka-reassign-partitions", "--execute", "--reassignment-json-file", plan, "--throttle", THROTTLE_MIB << 20)
    holds("Successfully started partition reassignments" in executed, executed)
    holds(f"leader.replication.throttled.rate={THROTTLE_MIB << 20}" in throttles(), throttles())
    verify = lambda: run("kafka-reassign-partitions", "--verify", "--reassignment-json-file", plan)
    last = ""

    def complete():
        nonlocal last
        last = verify()
        holds("failed" not in last.lower(), last)
        return "still in progress" not in last

    eventually(complete, "the reassignment is complete", 120)
    seconds = time.time() - begin
    equal(throttles(), [], "throttles after the verification")
    equal(run("kafka-reassign-partitions", "--list").strip(), "No partition reassignments found.")
    wanted = {(p["topic"], p["partition"]): p["replicas"] for p in json.loads(plan.read_text())["partitions"]}
    seen = replicas()
    equal({name: seen[name] for name in wanted}, wanted, "replicas")
    return seconds


def write_history():
    producer = Producer({**quiet, "acks": "all"})
    for number in range(HISTORY_MIB * 16):
        producer.produce("history", b"%d " % number + os.urandom(1 << 16), partition=number % PARTITIONS)
        producer.poll(0)
    equal(producer.flush(60), 0, "left in the queue")


admin = create(*(NewTopic(t, PARTITIONS, 3) for t in (*WRITTEN, "history")))
write_history()
start(librdkafka, "numbers")
start(java, "java")
start(followers, "numbers")
eventually(lambda: len(acknowledged) == 2 and all_work(), "everybody works", 40 if KLAMM else 120)
with check("a fourth node joins"):
    ask("start 4")
    eventually(lambda: sorted(admin.list_topics(timeout=10).brokers) == [1, 2, 3, 4], "four brokers", 30)
with check("a part of all partitions moves to it, not faster than the throttle allows"):
    before = replicas()
    seconds = move_to([1, 2, 3, 4])
    gained = [name for name, nodes in replicas().items() if 4 in nodes and 4 not in before[name]]
    of_history = sum(topic == "history" for topic, _ in gained)
    holds(of_history, "no partition of history moved")
    least = of_history * HISTORY_MIB / PARTITIONS / THROTTLE_MIB
    print(f"{len(gained)} partitions came to node 4, {of_history} of history, in {seconds:.1f} s; the throttle alone asks for {least:.1f} s")
    holds(seconds > 0.7 * least, f"{seconds:.1f} s")
    heals(admin)
with check("node 1 is drained"):
    print(f"{move_to([2, 3, 4]):.1f} s")
    equal([name for name, nodes in replicas().items() if 1 in nodes], [], "partitions of node 1")
    heals(admin)
with check("nothing of a partition is left on its disk"):
    shown = run("kafka-log-dirs", "--describe", "--broker-list", "1")
    [directory] = json.loads(next(line for line in shown.splitlines() if line.startswith("{")))["brokers"][0]["logDirs"]
    equal(directory["partitions"], [], "in its log directory")
with check("it is stopped and unregistered"):
    ask("stop 1")
    said = tool("kafka-cluster", "unregister", "--bootstrap-server", BOOTSTRAP, "--id", "1")
    holds("Broker 1 is no longer registered." in said.out, said)
    eventually(lambda: sorted(admin.list_topics(timeout=10).brokers) == [2, 3, 4], "three brokers", 30)
    heals(admin)
end()
judge(WRITTEN, 3)
with check("all of the history is there"):
    equal(sorted(number for _, _, number in read("history", PARTITIONS, 60)), list(range(HISTORY_MIB * 16)))
finish()

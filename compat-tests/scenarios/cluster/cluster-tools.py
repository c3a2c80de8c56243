# scenario: cluster-tools: what the tools show of three nodes when one dies and comes back: leaders, ISR, quorum, filters; elections and reassignments by hand
# tier: all
# limit: 400
# needs: python-new kafka-4.4.0 kafka-3.9.1
# against: klamm 4.4.0
# nodes: 3
# broker: broker.session.timeout.ms=4000 broker.heartbeat.interval.ms=500 auto.leader.rebalance.enable=false
# shows: java-4.4.0 java-3.9.1: admin cluster
import json, re
from confluent_kafka import Producer
from harness import *
import kwire

tool, older = Tools("4.4.0"), Tools("3.9.1")
FIRST, *OTHERS = BOOTSTRAP.split(",")


def run(name, *arguments, by=tool, limit=90):
    done = by(name, "--bootstrap-server", BOOTSTRAP, *arguments, limit=limit)
    equal(done.code, "0", f"{name} {' '.join(arguments)}: {done}")
    return done


def described(*filters):
    """Partition: (leader, replicas, ISR) of the topic t, as kafka-topics prints it."""
    lines = run("kafka-topics", "--describe", "--topic", "t", *filters).lines
    found = {}
    for line in lines:
        fields = dict(re.findall(r"(\w+): ?([^\t]*)", line))
        if "Partition" in fields:
            numbers = lambda field: [int(n) for n in fields[field].split(",") if n]
            leader = fields["Leader"]
            found[int(fields["Partition"])] = (None if leader == "none" else int(leader), numbers("Replicas"), sorted(numbers("Isr")))
    return found


def quorum():
    lines = run("kafka-metadata-quorum", "describe", "--status").lines
    return dict(line.split(":", 1) for line in lines if ":" in line)


def assignment(replicas):
    file = WORK / "assignment.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": p, "replicas": r} for p, r in replicas.items()]}))
    return str(file)


with check("a topic over three nodes, as it was asked for"):
    run("kafka-topics", "--create", "--topic", "t", "--replica-assignment", "1:2:3,2:3:1,3:1:2", "--config", "min.insync.replicas=2")
    eventually(lambda: described() == {0: (1, [1, 2, 3], [1, 2, 3]), 1: (2, [2, 3, 1], [1, 2, 3]), 2: (3, [3, 1, 2], [1, 2, 3])}, "three leaders, all in sync")
    for word in ("--under-replicated-partitions", "--at-min-isr-partitions", "--under-min-isr-partitions", "--unavailable-partitions"):
        equal(described(word), {}, word)
with check("the quorum has three voters and a leader"):
    status = quorum()
    holds(int(status["LeaderId"]) in (1, 2, 3), status)
    equal(sorted(map(int, re.findall(r'"id": ?(\d+)', status["CurrentVoters"]))), [1, 2, 3], "voters")
    rows = [line.split() for line in run("kafka-metadata-quorum", "describe", "--replication").lines]
    equal(sorted(row[0] for row in rows[1:] if row), ["1", "2", "3"], "nodes of the quorum")
    equal(sorted(row[-1] for row in rows[1:] if row), ["Follower", "Follower", "Leader"], "their parts")
with check("the replicas agree, says kafka-replica-verification of 3.9"):
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "acks": "all"})
    for n in range(300):
        producer.produce("t", b"v" * 100, partition=n % 3)
    equal(producer.flush(20), 0, "left unsent")
    verification = subprocess.Popen(["bash", os.environ["KAFKA"], "tool", "3.9.1", "kafka-replica-verification", "--broker-list", BOOTSTRAP, "--topics-include", "t", "--report-interval-ms", "1000"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seen = []
    with contextlib.suppress(StopIteration):
        while not any("max lag is" in line for line in seen[-1:]) and len(seen) < 40:
            seen.append(next(verification.stdout))
    verification.kill()
    holds(any("max lag is 0 " in line for line in seen), seen)
with check("a node dies: others lead, and the filters tell"):
    ask("crash 3")
    eventually(lambda: described() == {0: (1, [1, 2, 3], [1, 2]), 1: (2, [2, 3, 1], [1, 2]), 2: (1, [3, 1, 2], [1, 2])}, "leaders of those that live", 30)
    equal(sorted(described("--under-replicated-partitions")), [0, 1, 2])
    equal(sorted(described("--at-min-isr-partitions")), [0, 1, 2])
    equal(described("--unavailable-partitions"), {})
    equal(described("--under-min-isr-partitions"), {})
with check("it comes back, and gets its leadership again by kafka-leader-election"):
    ask("start 3")
    eventually(lambda: all(isr == [1, 2, 3] for _, _, isr in described().values()), "all in sync", 40)
    equal(described()[2][0], 1, "the leader of before the election")
    done = run("kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions")
    holds("Successfully completed leader election (PREFERRED) for partitions t-2" in done.out, done)
    eventually(lambda: described()[2][0] == 3, "node 3 leads")
    done = run("kafka-leader-election", "--election-type", "preferred", "--topic", "t", "--partition", "2")
    holds("Valid replica already elected for partitions t-2" in done.out, done)
with check("partitions go to other replicas by kafka-reassign-partitions, and the order of replicas changes"):
    file = assignment({0: [3, 2], 1: [2, 1]})
    done = run("kafka-reassign-partitions", "--reassignment-json-file", file, "--execute", "--throttle", "50000000")
    holds("Successfully started partition reassignments for t-0,t-1" in done.out, done)
    def verified():
        done = run("kafka-reassign-partitions", "--reassignment-json-file", file, "--verify", "--preserve-throttles")
        return "Reassignment of partition t-0 is completed." in done.out and "Reassignment of partition t-1 is completed." in done.out
    eventually(verified, "the reassignments are complete", 40)
    equal({p: (replicas, isr) for p, (_, replicas, isr) in described().items()}, {0: ([3, 2], [2, 3]), 1: ([2, 1], [1, 2]), 2: ([3, 1, 2], [1, 2, 3])}, "where they are")
    throttles = run("kafka-configs", "--describe", "--entity-type", "brokers", "--entity-name", "1").out
    holds("leader.replication.throttled.rate=50000000" in throttles, throttles)
    run("kafka-reassign-partitions", "--reassignment-json-file", file, "--verify")
    throttles = run("kafka-configs", "--describe", "--entity-type", "brokers", "--entity-name", "1").out
    holds("throttled.rate" not in throttles, throttles)
with check("a reassignment to a node that does not exist is refused"):
    done = tool("kafka-reassign-partitions", "--bootstrap-server", BOOTSTRAP, "--reassignment-json-file", assignment({0: [9]}), "--execute", limit=30)
    holds(done.code != "0" and "9" in done.out + done.error, done)
with check("kafka-reassign-partitions lists what is under way, and a reassignment can be cancelled"):
    equal(run("kafka-reassign-partitions", "--list").lines, ["No partition reassignments found."])
    ask("crash 1")  # what goes there cannot come to its end; the tool's --execute and --cancel want it to be there

    def alter(replicas):
        request = {"TimeoutMs": 10000, "Topics": [{"Name": "t", "Partitions": [{"PartitionIndex": 0, "Replicas": replicas}]}]}
        answer = kwire.Connection(OTHERS[0]).call("AlterPartitionReassignments", 0, request)
        equal((answer["ErrorCode"], answer["Responses"][0]["Partitions"][0]["ErrorCode"]), (0, 0), "error codes")

    alter([3, 2, 1])
    lines = run("kafka-reassign-partitions", "--list").lines
    holds(lines[0] == "Current partition reassignments:" and "t-0: replicas: 3,2,1. adding: 1." in lines[1], lines)
    alter(None)
    equal(described()[0][1], [3, 2], "replicas")
    ask("start 1")
finish()

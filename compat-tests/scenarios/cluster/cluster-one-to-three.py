# scenario: cluster-one-to-three: a node that ran alone grows to three under load, by Kafka's own tools, all partitions come to all three, and the first node dies: nothing is lost
# tier: all
# limit: 300
# needs: python-new kafka-4.4.0
# each: listed defaults static
# against: klamm
# broker: none
# shows: java-4.4.0: admin cluster
#
# The first node has been alone with its defaults, and becomes a part of a static quorum (listed) or of a dynamic one
# (defaults); or it was a static quorum of one, and becomes a dynamic one (static). Clients know only its address. A
# transaction that it began is committed when it is dead.
import json, re
import endless, nodes
from nodes import *
from endless import *

one, two, three = [Node(f"node-{number}", number) for number in PORTS]
one.data = one.folder / "klamm-data"
endless.BOOTSTRAP = quiet["bootstrap.servers"] = group["bootstrap.servers"] = f"127.0.0.1:{one.port}"
CONTROLLER = f"127.0.0.1:{one.controller}"
WRITTEN = ("numbers", "java")
tool = Tools("4.4.0")
ALONE = {key: None for key in ("node.id", "process.roles", "controller.quorum.voters", "log.dirs", "controller.listener.names", "default.replication.factor", "min.insync.replicas",
                               "klamm.http.listener", "broker.session.timeout.ms", "broker.heartbeat.interval.ms")} | {"listeners": f"PLAINTEXT://127.0.0.1:{one.port}"}
QUORUM_OF_ONE = {"controller.quorum.voters": f"1@{CONTROLLER}", "log.dirs": one.data, "default.replication.factor": None, "min.insync.replicas": None}
BY_COMMANDS = {"controller.quorum.voters": None, "controller.quorum.bootstrap.servers": CONTROLLER}


def run(name, *arguments, limit=60):
    """What a tool printed. It must end well."""
    seen = tool(name, "--bootstrap-server", f"127.0.0.1:{one.port}", *arguments, limit=limit)
    equal(seen.code, "0", seen)
    return seen.out


def quorum():
    """Node: what it is, as the tool prints it."""
    seen = tool("kafka-metadata-quorum", "--bootstrap-controller", CONTROLLER, "describe", "--replication", limit=60)
    rows = [line.split() for line in seen.lines[1:]]
    return {row[0]: row[-1] for row in rows if row} if seen.code == "0" else {}


def becomes_dynamic():
    run("kafka-features", "upgrade", "--feature", "kraft.version=1")
    eventually(lambda: re.search(r"kraft.version.*FinalizedVersionLevel: 1\b", run("kafka-features", "describe")), "kraft.version is 1", 20)


def add_controller(node):
    """The tool takes what it adds from the settings of the node."""
    file = node.folder / "controller.properties"
    file.write_text(f"node.id={node.number}\nprocess.roles=broker,controller\nlisteners=PLAINTEXT://127.0.0.1:{node.port},CONTROLLER://127.0.0.1:{node.controller}\n"
                    f"controller.listener.names=CONTROLLER\ncontroller.quorum.bootstrap.servers={CONTROLLER}\nlog.dirs={node.data}\nmetadata.log.dir={node.data}/klamm-metadata\n")
    seen = tool("kafka-metadata-quorum", "--command-config", file, "--bootstrap-controller", CONTROLLER, "add-controller", limit=60)
    equal(seen.code, "0", seen)


def again(node, settings):
    node.stop()
    node.start(settings)


def transaction(*numbers):
    mover.begin_transaction()
    write(*numbers)


def write(*numbers):
    for number in numbers:
        mover.produce("decided", b"%d" % number, partition=0)
    equal(mover.flush(30), 0, "left in the queue")


def decided():
    """What a consumer of committed records reads."""
    return [number for _, _, number in read("decided", 1, 30)]


with check("a node alone, with records, a group, and transactions"):
    one.start(QUORUM_OF_ONE if WITH == "static" else ALONE)
    admin = AdminClient(quiet)
    eventually(lambda: admin.list_topics(timeout=5).brokers, "it answers", 20)
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in WRITTEN] + [NewTopic("decided", 1, 1)]).values():
        future.result(20)
    start(librdkafka, "numbers")
    start(java, "java")
    start(followers, "numbers")
    mover = Producer({**quiet, "transactional.id": "mover", "transaction.timeout.ms": 300000})
    mover.init_transactions(30)
    transaction(0, 1)
    mover.commit_transaction(30)
    transaction(2)
    mover.abort_transaction(30)
    transaction(3, 4)
    eventually(lambda: len(acknowledged) == 2 and all_work(), "everybody works", 40)
with check("it gets a listener for controllers, and the next nodes join"):
    if WITH == "static":
        becomes_dynamic()
    again(one, {"log.dirs": one.data} | ({} if WITH == "listed" else BY_COMMANDS))
    all_write_on()
    if WITH == "defaults":
        becomes_dynamic()
    for node in (two, three):
        node.start({} if WITH == "listed" else BY_COMMANDS)
    eventually(lambda: sorted(admin.list_topics(timeout=10).brokers) == [1, 2, 3], "three brokers", 30)
with check("they are voted in"):
    if WITH != "listed":
        eventually(lambda: quorum() == {"1": "Leader", "2": "Observer", "3": "Observer"}, "observers", 20)
        add_controller(two)
        add_controller(three)
    eventually(lambda: sorted(quorum().values()) == ["Follower", "Follower", "Leader"], quorum, 30)
    if WITH == "listed":
        becomes_dynamic()
    well(one, two, three)
with check("all partitions come to all three"):
    topics = admin.list_topics(timeout=10).topics
    holds({"__consumer_offsets", "__transaction_state"} <= set(topics), topics)
    plan = WORK / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [
        {"topic": topic.topic, "partition": p, "replicas": [(2, 3, 1), (3, 1, 2), (1, 2, 3)][p % 3]} for topic in topics.values() for p in topic.partitions]}))
    begin = time.time()
    executed = run("kafka-reassign-partitions", "--execute", "--reassignment-json-file", plan)
    holds("Successfully started partition reassignments" in executed, executed)

    def complete():
        verified = run("kafka-reassign-partitions", "--verify", "--reassignment-json-file", plan)
        holds("failed" not in verified.lower(), verified)
        return "still in progress" not in verified

    eventually(complete, "the reassignment is complete", 90)
    print(f"{sum(len(topic.partitions) for topic in topics.values())} partitions in {time.time() - begin:.1f} s")
    heals(admin)
with check("leaders are spread over all three, of which clients hear then"):
    run("kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions")
    eventually(lambda: {p.leader for p in admin.list_topics("numbers", 10).topics["numbers"].partitions.values()} == {1, 2, 3}, "three leaders", 20)
    write(5)
    heals(admin)
    well(one, two, three)
endless.BOOTSTRAP = quiet["bootstrap.servers"] = group["bootstrap.servers"] = nodes.BOOTSTRAP
with check("the first node dies"):
    one.stop("kill")
    print(f"acknowledged {all_write_on()}")
    no_commit_went_back("numbers")
    well(two, three)
    mover.commit_transaction(60)
    transaction(6)
    mover.commit_transaction(60)
    equal(decided(), [0, 1, 3, 4, 5, 6], "what was committed")
with check("and comes back"):
    one.start({"log.dirs": one.data} | ({} if WITH == "listed" else BY_COMMANDS | {"controller.quorum.bootstrap.servers": f"127.0.0.1:{two.controller}"}))
    heals(AdminClient(quiet))
    eventually(lambda: sorted(quorum().values()) == ["Follower", "Follower", "Leader"], quorum, 30)
    well(one, two, three)
end()
judge(WRITTEN, 3)
for node in (one, two, three):
    node.process.kill()
finish()

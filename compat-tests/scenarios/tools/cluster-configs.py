# scenario: cluster-configs: what kafka-configs sets at one of three nodes is told by all and in force on all: quotas, users, broker configs, settings of topics, groups and metrics; a logger's level only where it was set; after the controller died too
# tier: all
# limit: 300
# needs: kafka-4.4.0
# against: klamm 4.4.0
# nodes: 3
# broker: broker.session.timeout.ms=4000 broker.heartbeat.interval.ms=500 auto.create.topics.enable=false
# shows: java-4.4.0: admin cluster
import re
from harness import *
import kwire

tool = Tools("4.4.0")
NODES = dict(enumerate(BOOTSTRAP.split(","), 1))
LOGGER = "klamm_server.api" if KLAMM else "kafka.server.KafkaApis"
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32  # types of resources
TOO_LARGE, THROTTLED, INVALID_REQUEST = 10, 89, 42  # error codes


def run(node, name, *arguments):
    done = tool(name, "--bootstrap-server", NODES[node], *arguments, limit=60)
    equal(done.code, "0", f"{name} {' '.join(map(str, arguments))}: {done}")
    return done


def configure(node, entity, *arguments):
    """Through this node. An entity is a type and a name, or more such pairs; a name that is None is the default."""
    words = [word for kind, name in entity for word in ("--entity-type", kind, *(["--entity-default"] if name is None else ["--entity-name", name]))]
    return run(node, "kafka-configs", "--alter", *words, *arguments)


def call(node, api, version, body, client="admin"):
    connection = kwire.Connection(NODES[node])
    with contextlib.closing(connection):
        return connection.call(api, version, body, client)


def configs(node, kind, name, source):
    """What this node tells of a resource as far as it was set there: names and values. Else each has a broker's values."""
    answer = call(node, "DescribeConfigs", 4, {"Resources": [{"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": None}]})["Results"][0]
    equal(answer["ErrorCode"], 0, f"error code of node {node} for {kind} {name!r}")
    return sorted((config["Name"], config["Value"]) for config in answer["Configs"] if config["ConfigSource"] == source)


def quotas(node):
    entries = call(node, "DescribeClientQuotas", 1, {"Components": [], "Strict": False})["Entries"]
    entity = lambda entry: sorted((part["EntityType"], part["EntityName"] or "") for part in entry["Entity"])
    return sorted((entity(entry), sorted((value["Key"], value["Value"]) for value in entry["Values"])) for entry in entries)


def users(node):
    results = call(node, "DescribeUserScramCredentials", 0, {"Users": None})["Results"]
    return sorted((user["User"], sorted((info["Mechanism"], info["Iterations"]) for info in user["CredentialInfos"])) for user in results)


def known(node):
    return {
        "quotas": quotas(node), "users": users(node), "default": configs(node, BROKER, "", 3), "topic": configs(node, TOPIC, "t", 1),
        "group": configs(node, GROUP, "g", 8), "metrics": configs(node, CLIENT_METRICS, "m", 7),
    }


def all_know(wanted, nodes=NODES):
    eventually(lambda: all(known(node) == wanted for node in nodes), lambda: f"{[known(node) for node in nodes]}\n  wanted: {wanted}")


def leaders():
    topic = call(living()[0], "Metadata", 9, {"Topics": [{"Name": "t"}], "AllowAutoTopicCreation": False})["Topics"][0]
    return {partition["PartitionIndex"]: partition["LeaderId"] for partition in topic["Partitions"]}


away = set()


def living():
    return [node for node in NODES if node not in away]


def produce(partition, size, client):
    """Error code and throttle time, from whoever leads the partition."""
    records = {"Index": partition, "Records": kwire.batch([(b"", b"v" * size)])}
    body = {"TransactionalId": None, "Acks": 1, "TimeoutMs": 10000, "TopicData": [{"Name": "t", "PartitionData": [records]}]}
    answer = call(leaders()[partition], "Produce", 9, body, client)
    return answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"], answer["ThrottleTimeMs"]


def fetch(partition, client):
    topic = {"Topic": "t", "Partitions": [{"Partition": partition, "CurrentLeaderEpoch": -1, "FetchOffset": 0, "LastFetchedEpoch": -1, "LogStartOffset": -1, "PartitionMaxBytes": 2_000_000}]}
    body = {"ReplicaId": -1, "MaxWaitMs": 500, "MinBytes": 1, "MaxBytes": 2_000_000, "IsolationLevel": 0, "SessionId": 0, "SessionEpoch": -1, "Topics": [topic], "ForgottenTopicsData": [], "RackId": ""}
    return call(leaders()[partition], "Fetch", 11, body, client)["ThrottleTimeMs"]


def create(node, name, partitions, client):
    """By way of this node; who counts is the controller."""
    topic = {"Name": name, "NumPartitions": partitions, "ReplicationFactor": 1, "Assignments": [], "Configs": []}
    return call(node, "CreateTopics", 7, {"Topics": [topic], "timeoutMs": 10000, "validateOnly": False}, client)["Topics"][0]["ErrorCode"]


def level(node, of=None):
    resource = {"ResourceType": BROKER_LOGGER, "ResourceName": str(of or node), "ConfigurationKeys": [LOGGER]}
    answer = call(node, "DescribeConfigs", 4, {"Resources": [resource]})["Results"][0]
    return answer["ErrorCode"] or next(config["Value"] for config in answer["Configs"])


run(1, "kafka-topics", "--create", "--topic", "t", "--replica-assignment", "1:2:3,2:3:1,3:1:2", "--config", "retention.ms=-1")
eventually(lambda: leaders() == {0: 1, 1: 2, 2: 3}, "each leads one")
with check("quotas set through one node are told by all"):
    before = known(2)
    configure(1, [("clients", "c")], "--add-config", "producer_byte_rate=10000,consumer_byte_rate=10000")
    configure(2, [("users", "ANONYMOUS"), ("clients", "d")], "--add-config", "producer_byte_rate=20000")
    configure(3, [("clients", None)], "--add-config", "request_percentage=20000")
    configure(2, [("clients", "many")], "--add-config", "controller_mutation_rate=1")
    configure(1, [("ips", "127.0.0.9")], "--add-config", "connection_creation_rate=50")
    wanted = {**before, "quotas": [
        ([("client-id", "")], [("request_percentage", 20000.0)]),
        ([("client-id", "c")], [("consumer_byte_rate", 10000.0), ("producer_byte_rate", 10000.0)]),
        ([("client-id", "d"), ("user", "ANONYMOUS")], [("producer_byte_rate", 20000.0)]),
        ([("client-id", "many")], [("controller_mutation_rate", 1.0)]),
        ([("ip", "127.0.0.9")], [("connection_creation_rate", 50.0)]),
    ]}
    all_know(wanted)
    for node in NODES:
        told = run(node, "kafka-configs", "--describe", "--entity-type", "clients", "--entity-name", "c")
        equal(told.lines, ["Quota configs for client-id 'c' are consumer_byte_rate=10000.0, producer_byte_rate=10000.0"])
with check("and bind wherever the client goes"):
    equal([produce(partition, 900_000, "free") for partition in range(3)], [(0, 0)] * 3, "without a quota")
    for client in ("c", "d"):
        for partition in range(3):
            code, throttle = produce(partition, 900_000, client)
            holds(code == 0 and throttle > 0, f"{client} on partition {partition}: error code {code}, throttled for {throttle} ms")
    holds(all(fetch(partition, "c") > 0 for partition in range(3)), "a node lets it read at once")
    equal([fetch(partition, "free") for partition in range(3)], [0, 0, 0])
    equal(create(1, "many-0", 30, "many"), 0)
    if KLAMM:  # counted by the broker that is asked (docs/quotas.md)
        equal([create(node, f"first-{node}", 30, "many") for node in NODES], [THROTTLED, 0, 0])
    equal([create(node, f"many-{node}", 30, "many") for node in NODES], [THROTTLED] * 3)
    equal([create(node, f"free-{node}", 1, "free") for node in NODES], [0] * 3)
with check("users with passwords are told by all"):
    configure(3, [("users", "alice")], "--add-config", "SCRAM-SHA-256=[iterations=8192,password=secret]")
    configure(1, [("users", "alice")], "--add-config", "SCRAM-SHA-512=[password=secret]")
    configure(2, [("users", "bob")], "--add-config", "SCRAM-SHA-256=[password=secret]")
    wanted["users"] = [("alice", [(1, 8192), (2, 4096)]), ("bob", [(1, 4096)])]
    all_know(wanted)
    told = run(1, "kafka-configs", "--describe", "--entity-type", "users", "--entity-name", "alice")
    holds("SCRAM credential configs for user-principal 'alice' are SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=4096" in told.out, told)
    if KLAMM:  # Apache Kafka may know nothing of alice's, which is of the same kind, once it has started again after this
        configure(1, [("users", "bob")], "--delete-config", "SCRAM-SHA-256")
        wanted["users"].pop()
        all_know(wanted)
with check("a config of all brokers is in force on each, and one of a broker on it alone"):
    configure(1, [("brokers", None)], "--add-config", "message.max.bytes=100000")
    configure(3, [("brokers", "2")], "--add-config", "message.max.bytes=950000")
    wanted["default"] = sorted([*before["default"], ("message.max.bytes", "100000")])
    eventually(lambda: [produce(partition, 900_000, "free")[0] for partition in range(3)] == [TOO_LARGE, 0, TOO_LARGE], "only broker 2 takes more")
    equal([known(node)["default"] for node in NODES], [wanted["default"]] * 3)
    told = {of: run(1, "kafka-configs", "--describe", "--all", "--entity-type", "brokers", "--entity-name", of).out for of in NODES}
    holds("message.max.bytes=950000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:message.max.bytes=950000, DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=100000, DEFAULT_CONFIG:message.max.bytes=1048588}" in told[2], told[2])
    holds("message.max.bytes=100000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=100000, DEFAULT_CONFIG:message.max.bytes=1048588}" in told[3], told[3])
    configure(2, [("brokers", None)], "--delete-config", "message.max.bytes")
    eventually(lambda: [produce(partition, 900_000, "free")[0] for partition in range(3)] == [0, 0, 0], "all take them again")
    wanted["default"] = before["default"]
    all_know(wanted)
with check("settings of topics, groups and client metrics are told by all"):
    configure(2, [("topics", "t")], "--add-config", "max.message.bytes=960000")
    configure(3, [("groups", "g")], "--add-config", "consumer.session.timeout.ms=46000")
    configure(1, [("client-metrics", "m")], "--add-config", "interval.ms=60000")
    wanted["topic"] = sorted([*before["topic"], ("max.message.bytes", "960000")])
    wanted["group"], wanted["metrics"] = [("consumer.session.timeout.ms", "46000")], [("interval.ms", "60000")]
    all_know(wanted)
with check("a logger's level is the named broker's, which alone tells it, until it ends"):
    levels = {node: level(node) for node in NODES}
    configure(1, [("broker-loggers", "2")], "--add-config", f"{LOGGER}=TRACE")
    eventually(lambda: {node: level(node) for node in NODES} == {**levels, 2: "TRACE"}, "the level of broker 2")
    equal([level(1, of=2), level(3, of=2), level(2, of=2)], [INVALID_REQUEST, INVALID_REQUEST, "TRACE"])
    holds(f"{LOGGER}=TRACE" in run(3, "kafka-configs", "--describe", "--entity-type", "broker-loggers", "--entity-name", "2").out, "the tool does not show it")
    configure(1, [("broker-loggers", "2")], "--delete-config", LOGGER)
    eventually(lambda: level(2) == levels[2], "the level of before")
    configure(1, [("broker-loggers", "3")], "--add-config", f"{LOGGER}=ERROR")
    ask("restart 3")
    eventually(lambda: level(3) == levels[3], "the level after a restart", 40)
    eventually(lambda: known(3) == wanted, lambda: known(3), 40)
with check("the controller dies: the others tell the same, hold to it, and take more"):
    status = run(1, "kafka-metadata-quorum", "describe", "--status").out
    controller = int(re.search(r"LeaderId:\s+(\d)", status)[1])
    away.add(controller)
    ask(f"crash {controller}")
    eventually(lambda: controller not in leaders().values() and -1 not in leaders().values(), "others lead", 40)
    all_know(wanted, living())
    eventually(lambda: all(produce(partition, 900_000, client)[1] > 0 for client in ("c", "d") for partition in range(3)), "c and d are stopped by each leader", 30)
    one, other = living()
    eventually(lambda: create(one, f"again-{time.time()}", 30, "many") == THROTTLED, "changes of topics are counted", 30)
    configure(one, [("clients", "later")], "--add-config", "producer_byte_rate=10000")
    configure(other, [("users", "carol")], "--add-config", "SCRAM-SHA-512=[password=secret]")
    configure(one, [("brokers", None)], "--add-config", "message.max.bytes=930000")
    wanted["quotas"] = sorted([*wanted["quotas"], ([("client-id", "later")], [("producer_byte_rate", 10000.0)])])
    wanted["users"].append(("carol", [(2, 4096)]))
    wanted["default"] = sorted([*before["default"], ("message.max.bytes", "930000")])
    all_know(wanted, living())
with check("who comes back knows what was set without it, and holds to it"):
    ask(f"start {controller}")
    away.clear()
    eventually(lambda: known(controller) == wanted, lambda: known(controller), 40)
    eventually(lambda: tool("kafka-leader-election", "--bootstrap-server", NODES[one], "--election-type", "preferred", "--all-topic-partitions").code == "0", "the first replicas are in sync, and lead", 40)
    eventually(lambda: leaders() == {0: 1, 1: 2, 2: 3}, "each leads one again", 40)
    eventually(lambda: all(produce(partition, 900_000, "later")[1] > 0 for partition in range(3)), "it is stopped by all", 20)
    equal([produce(partition, 940_000, "free")[0] for partition in range(3)], [0, 0, 0], "the topic's own setting comes first")
    run(one, "kafka-configs", "--alter", "--entity-type", "topics", "--entity-name", "t", "--delete-config", "max.message.bytes")
    eventually(lambda: [produce(partition, 940_000, "free")[0] for partition in range(3)] == [TOO_LARGE, 0, TOO_LARGE], "broker 2 has a setting of its own")
finish()

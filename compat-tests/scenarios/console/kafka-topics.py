# scenario: kafka-topics: creates, lists, describes, alters and deletes topics, and is refused as Kafka refuses
# tier: normal
# limit: 120
# needs: kafka-$WITH
# each: 2.2.2 2.8.2 3.9.1 4.4.0
# shows: java-$WITH: admin
from harness import *

tool = Tools(WITH)


def topics(*arguments):
    return tool("kafka-topics", "--bootstrap-server", BOOTSTRAP, *arguments, limit=10)


def described(topic):
    """The describe's words: "Topic: a", "PartitionCount: 3", …; blanks after colons differ between the versions."""
    run = topics("--describe", "--topic", topic)
    equal(run.code, "0", run)
    return [[word.strip().replace(": ", ":") for word in line.split("\t") if word.strip()] for line in run.lines if line.strip()]


def refused(run, error):
    """Refused with this error; its message is in the broker's own words, so only the exception's name is compared."""
    equal(run.code, "1", run)
    holds(error in run.out + run.error, f"no {error!r} in {run}")


with check("create"):
    run = topics("--create", "--topic", "orders", "--partitions", 3, "--replication-factor", 1, "--config", "retention.ms=100000", "--config", "cleanup.policy=compact")
    equal(run.code, "0", run)
    run = topics("--create", "--topic", "plain", "--partitions", 1, "--replication-factor", 1)
    equal(run.code, "0", run)
with check("list"):
    eventually(lambda: [t for t in topics("--list").lines if not t.startswith("_")] == ["orders", "plain"], "both topics are listed", 10)
with check("describe"):
    head, *partitions = described("orders")
    for word in ("Topic:orders", "PartitionCount:3", "ReplicationFactor:1"):
        holds(word in head, f"no {word} in {head}")
    configs = next(word for word in head if word.startswith("Configs:"))
    holds({"retention.ms=100000", "cleanup.policy=compact"} <= set(configs[8:].split(",")), head)
    for number, partition in enumerate(partitions):
        for word in ("Topic:orders", f"Partition:{number}", "Leader:1", "Replicas:1", "Isr:1"):
            holds(word in partition, f"no {word} in {partition}")
    equal(len(partitions), 3)
with check("alter to five partitions"):
    equal(topics("--alter", "--topic", "orders", "--partitions", 5).code, "0")
    eventually(lambda: len(described("orders")) == 6, "five partitions", 10)
with check("refusals"):
    refused(topics("--create", "--topic", "orders", "--partitions", 1, "--replication-factor", 1),
            "TopicExistsException" if WITH != "2.2.2" else "already exists")  # 2.2 lists the topics first and says so itself
    refused(topics("--create", "--topic", "no such/name", "--partitions", 1, "--replication-factor", 1), "InvalidTopicException")
    refused(topics("--create", "--topic", "far", "--partitions", 1, "--replication-factor", 3), "InvalidReplicationFactorException")
    refused(topics("--alter", "--topic", "orders", "--partitions", 2), "InvalidPartitionsException")
    if numbers(WITH) >= (2, 4):  # before, a name that fits no topic described nothing and deleted nothing, in silence
        refused(topics("--describe", "--topic", "unknown"), "does not exist")
with check("delete"):
    equal(topics("--delete", "--topic", "orders").code, "0")
    eventually(lambda: [t for t in topics("--list").lines if not t.startswith("_")] == ["plain"], "one topic is left", 10)
    if numbers(WITH) >= (2, 4):
        refused(topics("--delete", "--topic", "orders"), "does not exist")
with check("created again, a deleted topic is empty and has its own partitions"):
    # Kafka 2.8 takes a moment until the old one is gone
    eventually(lambda: topics("--create", "--topic", "orders", "--partitions", 2, "--replication-factor", 1).code == "0", "created", 20)
    eventually(lambda: len(described("orders")) == 3, "two partitions", 10)
finish()

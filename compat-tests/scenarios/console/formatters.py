# scenario: formatters: Kafka's own formatters of 2.8 and 4.4 read what is in __consumer_offsets and __transaction_state
# tier: normal
# limit: 180
# needs: kafka-2.8.2 kafka-4.4.0
# against: klamm 2.8.2 4.4.0
#
# The formatters of 2.8.2 do not know the versions in which 4.4.0 writes commits (4) and transactions (1), nor does Klamm
# write older ones; they read its groups.
import base64, itertools, json
from harness import *
from kwire import Connection

VERSIONS = ("2.8.2", "4.4.0")
COUNT, PARTITIONS = 100, 4
OF_2_8 = {"offsets": "kafka.coordinator.group.GroupMetadataManager$OffsetsMessageFormatter",
          "groups": "kafka.coordinator.group.GroupMetadataManager$GroupMetadataMessageFormatter",
          "transactions": "kafka.coordinator.transaction.TransactionLog$TransactionLogMessageFormatter"}
OF_4_4 = {"offsets": "org.apache.kafka.tools.consumer.OffsetsMessageFormatter",
          "groups": "org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter",
          "transactions": "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"}
TOPICS = {"offsets": "__consumer_offsets", "groups": "__consumer_offsets", "transactions": "__transaction_state"}
tools = {version: Tools(version) for version in VERSIONS}


def formatted(version, formatter, topic):
    run = tools[version]("kafka-console-consumer", "--bootstrap-server", BOOTSTRAP, "--topic", topic, "--from-beginning",
                         "--timeout-ms", "4000", "--formatter", formatter, limit=60)
    equal(run.code, "0", str(run))
    return run.out


def objects(what):
    """(key, value) as the formatter of 4.4.0 shows them, one after the other without an end of line."""
    text, at, decode = formatted("4.4.0", OF_4_4[what], TOPICS[what]), 0, json.JSONDecoder().raw_decode
    while at < len(text.rstrip()):
        shown, at = decode(text, at)
        yield shown["key"]["data"], shown["value"] and shown["value"]["data"]


def committed(group):
    asked = {"GroupId": group, "Topics": [{"Name": "work", "PartitionIndexes": list(range(PARTITIONS))}]}
    told = Connection(BOOTSTRAP).call("OffsetFetch", 5, asked)
    return {p["PartitionIndex"]: p["CommittedOffset"] for p in told["Topics"][0]["Partitions"]}


for version in VERSIONS:
    with check(f"the producer of {version} commits a transaction, the consumer of {version} its offsets in a group"):
        where = "--producer-props" if numbers(version) < (4, 2) else "--command-property"
        run = tools[version]("org.apache.kafka.tools.ProducerPerformance", "--topic", "work", "--num-records", COUNT, "--record-size", "10", "--throughput", "-1",
                             "--transactional-id", f"writer-{version}", "--transaction-duration-ms", "60000", where, "bootstrap.servers=" + BOOTSTRAP, limit=60)
        holds(f"{COUNT} records sent" in run.out, str(run))
        run = tools[version]("kafka-console-consumer", "--bootstrap-server", BOOTSTRAP, "--topic", "work", "--from-beginning", "--group", f"reader-{version}",
                             "--max-messages", COUNT, "--timeout-ms", "20000", limit=40)
        holds(f"Processed a total of {COUNT} messages" in run.out + run.error, str(run))
with check("OffsetsMessageFormatter of 4.4.0 shows what was committed"):
    seen = {}
    for key, value in objects("offsets"):
        if key["topic"] == "work":
            seen.setdefault(key["group"], {})[key["partition"]] = value["offset"]
    equal(seen, {f"reader-{version}": committed(f"reader-{version}") for version in VERSIONS})
with check("GroupMetadataMessageFormatter of 4.4.0 shows the generations of the groups, and their members"):
    shown = list(objects("groups"))
    for version in VERSIONS:
        joined, left = [value for key, value in shown if key["group"] == f"reader-{version}"][-2:]
        (member,) = joined["members"]
        equal((joined["generation"], joined["protocolType"], joined["protocol"], joined["leader"]), (1, "consumer", "range", member["memberId"]))
        equal((member["clientHost"], member["rebalanceTimeout"]), ("/127.0.0.1", 300000))
        holds(all(b"work" in base64.b64decode(member[field]) for field in ("subscription", "assignment")), str(member))
        equal((left["generation"], left["protocolType"], left["members"]), (2, "consumer", []))
with check("TransactionLogMessageFormatter of 4.4.0 shows how the transactions went"):
    shown = list(objects("transactions"))
    for version in VERSIONS:
        states = [value for key, value in shown if key["transactionalId"] == f"writer-{version}"]
        went = [state for state, _ in itertools.groupby(value["transactionStatus"] for value in states)]
        equal(went, ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"])
        equal({topic["topic"] for value in states for topic in value["transactionPartitions"] or []}, {"work"})
with check("GroupMetadataMessageFormatter of 2.8.2 shows the groups"):
    text = formatted("2.8.2", OF_2_8["groups"], "__consumer_offsets")
    for version in VERSIONS:
        for wanted in (f"groupId=reader-{version}, generation=1, protocolType=Some(consumer), currentState=Stable, members=HashMap(",
                       f"groupId=reader-{version}, generation=2, protocolType=Some(consumer), currentState=Empty, members=HashMap())"):
            holds(wanted in text, f"{wanted} is not in {text[-3000:]}")
finish()

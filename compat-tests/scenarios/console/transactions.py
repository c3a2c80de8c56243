# scenario: transactions: Java's transactional producer of 2.8, 3.9 and 4.4, and what kafka-transactions lists, describes and aborts
# tier: normal
# limit: 240
# needs: kafka-2.8.2 kafka-3.9.1 kafka-4.4.0
# shows: java-*: transactions
# shows: java-4.4.0: admin
import re
from harness import *
from kwire import Connection, batch

VERSIONS = ("2.8.2", "3.9.1", "4.4.0")
COUNT = 3000
tools = {v: Tools(v) for v in VERSIONS}
newest = tools["4.4.0"]


def perf(version, topic):
    where = "--producer-props" if numbers(version) < (4, 2) else "--command-property"
    return tools[version]("org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", COUNT,
                          "--record-size", "100", "--throughput", "-1", "--transactional-id", topic,
                          "--transaction-duration-ms", "200", where, "bootstrap.servers=" + BOOTSTRAP, limit=60)


def read(version, topic, isolation):
    run = tools[version]("kafka-console-consumer", "--bootstrap-server", BOOTSTRAP, "--topic", topic, "--from-beginning",
                         "--isolation-level", isolation, "--max-messages", COUNT, "--timeout-ms", "20000", limit=40)
    told = re.search(r"Processed a total of (\d+) messages", run.out + run.error)
    return int(told.group(1)) if told else 0, run


def transactions(*arguments):
    return newest("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", BOOTSTRAP, *arguments, limit=40)


for version in VERSIONS:
    with check(f"the producer of {version} writes in transactions, and all versions read what it committed"):
        run = perf(version, "perf-" + version)
        holds(f"{COUNT} records sent" in run.out, f"the producer: {run}")
        for reader in VERSIONS:
            count, run = read(reader, "perf-" + version, "read_committed")
            equal(count, COUNT, f"messages that {reader} read: {run}")

with check("kafka-transactions lists and describes them"):
    listed = transactions("list")
    seen = {line.split()[0]: line.split()[3] for line in listed.lines if line.startswith("perf-")}
    equal(seen, {"perf-" + version: "CompleteCommit" for version in VERSIONS}, str(listed))
    described = transactions("describe", "--transactional-id", "perf-4.4.0")
    holds(any(line.split()[1:2] == ["perf-4.4.0"] for line in described.lines), str(described))
    producers = transactions("describe-producers", "--topic", "perf-4.4.0", "--partition", "0")
    equal(producers.code, "0", str(producers))
with check("there is no hanging transaction"):
    found = transactions("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "1")
    equal((found.code, len(found.lines)), ("0", 1), str(found))

with check("a transaction that its producer left open is found, and aborted by hand"):
    # A producer of before, without a coordinator that would end its transaction in time: it is the longest allowed.
    broker = Connection(BOOTSTRAP)
    begun = broker.call("InitProducerId", 4, {"TransactionalId": "left", "TransactionTimeoutMs": 900000})
    who = {"V3AndBelowTransactionalId": "left", "V3AndBelowProducerId": begun["ProducerId"], "V3AndBelowProducerEpoch": 0}
    broker.call("AddPartitionsToTxn", 3, {**who, "V3AndBelowTopics": [{"Name": "perf-4.4.0", "Partitions": [0]}]})
    records = batch([(b"k", b"v")], pid=begun["ProducerId"], epoch=0, seq=0, attributes=16)
    data = [{"Name": "perf-4.4.0", "PartitionData": [{"Index": 0, "Records": records}]}]
    written = broker.call("Produce", 9, {"TransactionalId": "left", "Acks": -1, "TimeoutMs": 5000, "TopicData": data})
    offset = written["Responses"][0]["PartitionResponses"][0]["BaseOffset"]

    def stable():
        asked = {"Name": "perf-4.4.0", "Partitions": [{"PartitionIndex": 0, "CurrentLeaderEpoch": -1, "Timestamp": -1}]}
        told = broker.call("ListOffsets", 6, {"ReplicaId": -1, "IsolationLevel": 1, "Topics": [asked]})
        return told["Topics"][0]["Partitions"][0]["Offset"]

    equal(stable(), offset, "the last stable offset")
    aborted = transactions("abort", "--topic", "perf-4.4.0", "--partition", "0", "--start-offset", str(offset))
    equal(aborted.code, "0", str(aborted))
    equal(stable(), offset + 2, "the last stable offset")

finish()

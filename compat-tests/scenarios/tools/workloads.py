# scenario: workloads: the tools that produce, consume, measure and verify do on Klamm what they do on Kafka: perf tests, end-to-end latency, verifiable clients, the reset of a Streams application
# tier: all
# limit: 240
# against: klamm 4.4.0
# needs: kafka-4.4.0
# shows: java-4.4.0: admin groups
import json, re
from harness import *

tool = Tools("4.4.0")
SERVER = ("--bootstrap-server", BOOTSTRAP)


def ended(run, code="0"):
    equal(run.code, code, str(run))
    return run


def end_offsets(topic):
    """Each partition's end, by kafka-get-offsets."""
    lines = ended(tool("kafka-get-offsets", *SERVER, "--topic", topic)).lines
    return {int(partition): int(end) for _, partition, end in (line.split(":") for line in lines)}


def events(run, name):
    """The JSON lines with this name that a verifiable client has printed."""
    lines = [json.loads(line) for line in run.lines if line.startswith("{")]
    return [line for line in lines if line["name"] == name]


def topic(name, partitions=3):
    ended(tool("kafka-topics", *SERVER, "--create", "--topic", name, "--partitions", partitions))


def committed(group, topic):
    """Offset and end of each partition, by kafka-consumer-groups."""
    lines = ended(tool("kafka-consumer-groups", *SERVER, "--describe", "--group", group)).lines
    rows = [line.split() for line in lines if f" {topic} " in line]
    return {int(row[2]): (int(row[3]), int(row[4])) for row in rows}


with check("kafka-producer-perf-test sends as many records as it is told to, with every codec"):
    topic("perf")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        run = ended(tool("kafka-producer-perf-test", *SERVER, "--topic", "perf", "--num-records", 2000, "--record-size", 200, "--throughput", -1, "--command-property", f"compression.type={codec}", limit=60))
        holds(re.match(r"2000 records sent, [\d.]+ records/sec", run.lines[-1]), run)
    equal(sum(end_offsets("perf").values()), 10_000)
with check("kafka-producer-perf-test sends in transactions, which readers of committed records see whole"):
    topic("perf-txn", 1)
    run = ended(tool("kafka-producer-perf-test", *SERVER, "--topic", "perf-txn", "--num-records", 500, "--record-size", 100, "--throughput", 1000, "--transactional-id", "perf", "--transaction-duration-ms", 100, limit=60))
    holds(run.lines[-1].startswith("500 records sent"), run)
    read = ended(tool("kafka-console-consumer", *SERVER, "--topic", "perf-txn", "--from-beginning", "--isolation-level", "read_committed", "--max-messages", 500, "--timeout-ms", 20_000, limit=60))
    equal(len(read.lines), 500)
    holds(end_offsets("perf-txn")[0] > 500, "no markers")
with check("kafka-consumer-perf-test reads all of them, in a group that commits"):
    run = ended(tool("kafka-consumer-perf-test", *SERVER, "--topic", "perf", "--num-records", 10_000, "--group", "perf", "--hide-header", limit=60))
    equal(int(run.lines[-1].split(", ")[4]), 10_000)
with check("kafka-consumer-perf-test says when there is nothing more to read"):
    run = tool("kafka-consumer-perf-test", *SERVER, "--topic", "perf", "--num-records", 10_000, "--group", "perf", "--timeout", 2000, limit=60)
    holds(ended(run) and "Exiting before consuming the expected number of records: timeout (2000 ms) exceeded" in run.out, run)
with check("kafka-e2e-latency sees each record that it sends"):
    topic("latency", 1)
    run = ended(tool("kafka-e2e-latency", *SERVER, "--topic", "latency", "--num-records", 200, "--producer-acks", "all", "--record-size", 64, limit=60))
    holds(re.search(r"Avg latency: [\d.]+ ms", run.out) and "Percentiles: 50th = " in run.out, run)
    equal(end_offsets("latency"), {0: 200})
with check("kafka-verifiable-producer is acknowledged all that it sends, in order"):
    topic("verified", 2)
    run = ended(tool("kafka-verifiable-producer", *SERVER, "--topic", "verified", "--max-messages", 1000, "--acks", -1, "--repeating-keys", 5, limit=60))
    acknowledged = events(run, "producer_send_success")
    equal(sorted(int(event["value"]) for event in acknowledged), list(range(1000)))
    equal([events(run, "tool_data")[0][key] for key in ("sent", "acked")], [1000, 1000])
    for partition, end in end_offsets("verified").items():
        offsets = [event["offset"] for event in acknowledged if event["partition"] == partition]
        equal(sorted(offsets), list(range(end)), f"offsets of partition {partition}")
with check("kafka-verifiable-consumer reads each of them once, and commits what it has read"):
    run = ended(tool("kafka-verifiable-consumer", *SERVER, "--topic", "verified", "--group-id", "verifier", "--max-messages", 1000, "--verbose", limit=60))
    equal(sorted(int(event["value"]) for event in events(run, "record_data")), list(range(1000)))
    equal(sum(event["count"] for event in events(run, "records_consumed")), 1000)
    equal(sorted(partition["partition"] for partition in events(run, "partitions_assigned")[0]["partitions"]), [0, 1])
    holds(all(event["success"] for event in events(run, "offsets_committed")), "a commit failed")
    equal(all(offset == end for offset, end in committed("verifier", "verified").values()), True, "all is committed")
with check("kafka-streams-application-reset takes an application back to its beginning, and its inner topics away"):
    inner = "app-store-changelog"
    topic("input", 1)
    topic(inner, 1)
    for name in ("input", inner):
        ended(tool("kafka-console-producer", *SERVER, "--topic", name, stdin="a\nb\nc\n"))
    ended(tool("kafka-console-consumer", *SERVER, "--topic", "input", "--from-beginning", "--max-messages", 3, "--group", "app"))
    equal(committed("app", "input"), {0: (3, 3)})
    arguments = [*SERVER, "--application-id", "app", "--input-topics", "input"]
    dry = ended(tool("kafka-streams-application-reset", *arguments, "--dry-run", "--internal-topics", inner, limit=60))
    holds(re.search(r"Topic: input Partition: 0 Offset: 0", dry.out) and inner in dry.out, dry)
    equal(committed("app", "input"), {0: (3, 3)})
    ended(tool("kafka-streams-application-reset", *arguments, "--internal-topics", inner, limit=60))
    equal(committed("app", "input"), {0: (0, 3)})
    equal(inner in ended(tool("kafka-topics", *SERVER, "--list")).lines, False, "the inner topic is there")
    ended(tool("kafka-streams-application-reset", *arguments, "--to-offset", 2, limit=60))
    equal(committed("app", "input"), {0: (2, 3)})
    unknown = tool("kafka-streams-application-reset", *SERVER, "--application-id", "nobody", "--input-topics", "none", limit=60)
    holds(unknown.code == "1" and "Following input topics are not found" in unknown.out + unknown.error, unknown)
finish()

# scenario: exporter: a Prometheus exporter shows the offsets that Kafka's tools tell, and where commits are written as it can read them, those and lags; it follows what is written, read and deleted, and goes on after a restart
# tier: all
# limit: 120
# needs: python-exporter kafka-4.4.0
# against: klamm 2.8.2 3.9.1
# shows: exporter: own restart
#
# It takes commits from the group coordinator's own topic, __consumer_offsets, and knows those of Apache Kafka 2.8.2 and
# 3.9.1. Those of 4.4.0, and so Klamm's, are of version 4, which it cannot read. Its ListOffsets is of a version that 4.4.0 does
# not serve any more, and Klamm does.
import re, urllib.request
from harness import *

tool = Tools("4.4.0")
SERVER = ("--bootstrap-server", BOOTSTRAP)
HTTP = next(free_ports())
READS_COMMITS = not KLAMM


def run(name, *arguments, stdin=""):
    done = tool(name, *SERVER, *arguments, stdin=stdin, limit=60)
    equal(done.code, "0", f"{name}: {done}")
    return done.lines


def write(count):
    keys = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")  # so that each partition gets some
    run("kafka-console-producer", "--topic", "work", *keys, stdin="".join(f"{n}:value\n" for n in range(count)))


def read(count, group="team"):
    run("kafka-console-consumer", "--topic", "work", "--group", group, "--from-beginning", "--max-messages", count, "--timeout-ms", 20_000)


def shown(metric, **labels):
    """The exporter's values of a metric, by partition, of those that have these labels."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{HTTP}/metrics", timeout=5).read().decode()
    found = {}
    for told, value in re.findall(rf"^{metric}\{{(.*)\}} (\S+)$", page, re.M):
        told = dict(re.findall(r'(\w+)="([^"]*)"', told))
        if labels.items() <= told.items():
            found[int(told["partition"])] = int(float(value))
    return found


def told(time="latest"):
    return {int(partition): int(offset) for _, partition, offset in (line.split(":") for line in run("kafka-get-offsets", "--topic", "work", "--time", time))}


def group(column, name="team"):
    """A column of kafka-consumer-groups, by partition."""
    lines = [line.split() for line in run("kafka-consumer-groups", "--describe", "--group", name) if line.strip()]
    place = lines[0].index(column)
    return {int(row[2]): int(row[place]) for row in lines[1:] if row[1] == "work"}


def agree(end, name="team"):
    """What the exporter shows becomes what Kafka's tools tell, which is this sum of ends."""
    ends, begins, offsets, lags = told(), told("earliest"), group("CURRENT-OFFSET", name), group("LAG", name)
    equal(sum(ends.values()), end, "records in all")
    wanted = ends, begins, offsets if READS_COMMITS else {}, lags if READS_COMMITS else {}
    see = lambda: (shown("kafka_topic_highwater", topic="work"), shown("kafka_topic_lowwater", topic="work"),
                   shown("kafka_consumer_group_offset", group=name, topic="work"), shown("kafka_consumer_group_lag", group=name, topic="work"))
    eventually(lambda: see() == wanted, lambda: f"{see()}\n  wanted: {wanted}", 20)
    print(f"ends, begins, offsets, lags: {wanted}")


run("kafka-topics", "--create", "--topic", "work", "--partitions", 3)
write(300)
read(120)
(WORK / "delete").write_text('{"partitions": [{"topic": "work", "partition": 1, "offset": 1}], "version": 1}')
with open(WORK / "exporter.log", "w") as log:
    exporter = subprocess.Popen([sys.executable, "-m", "prometheus_kafka_consumer_group_exporter", "-b", BOOTSTRAP, "-p", str(HTTP), "--from-start", "--topic-interval", "1", "--high-water-interval", "0.5", "--low-water-interval", "0.5"], stdout=log, stderr=log)


def answers():
    holds(exporter.poll() is None, (WORK / "exporter.log").read_text()[-1500:])
    with contextlib.suppress(OSError):
        return shown("kafka_topic_highwater", topic="work")


with check("offsets, commits and lags are those that Kafka's tools tell"):
    eventually(answers, lambda: (WORK / "exporter.log").read_text()[-1500:], 30)
    agree(300)
with check("they follow what is written, read, and deleted"):
    write(100)
    agree(400)
    read(200)
    agree(400)
    read(50, "others")
    agree(400, "others")
    run("kafka-delete-records", "--offset-json-file", WORK / "delete")
    holds(told("earliest")[1] == 1, "nothing was deleted")
    agree(400)
with check("commits are counted, or it says why not"):
    counts = shown("kafka_consumer_group_commits_total", group="team", topic="work")
    if READS_COMMITS:
        holds(len(counts) == 3 and min(counts.values()) >= 1, counts)
    else:
        holds("Can't parse __consumer_offsets topic message value with unsupported version 4." in (WORK / "exporter.log").read_text(), "it says nothing of commits")
with check("a group that is deleted is not shown any more"):
    run("kafka-consumer-groups", "--delete", "--group", "others")
    eventually(lambda: shown("kafka_consumer_group_offset", group="others") == {}, lambda: shown("kafka_consumer_group_offset", group="others"))
with check("it goes on after a restart"):
    ask("restart")
    write(10)
    read(30)
    agree(410)
exporter.kill()
finish()

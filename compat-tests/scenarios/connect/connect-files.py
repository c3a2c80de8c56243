# scenario: connect-files: connect-standalone and connect-distributed 3.9 carry lines from a file through a topic into another, over restarts of the broker and of the worker; distributed, each line is written exactly once though the worker is killed
# tier: all
# limit: 300
# against: klamm 4.4.0
# needs: connect kafka-4.4.0
# shows: connect: own exactly-once restart
from connect import *

tool = Tools("4.4.0")
port = next(free_ports())
WORKER = {"bootstrap.servers": BOOTSTRAP, "listeners": f"http://127.0.0.1:{port}", **PLAIN}


def connectors(name):
    """The files that a source reads and a sink writes, and the settings of both; their topic is made."""
    source, sink = WORK / f"{name}.in", WORK / f"{name}.out"
    made = tool("kafka-topics", "--bootstrap-server", BOOTSTRAP, "--create", "--topic", name, "--partitions", 1)  # lines are in order then
    equal(made.code, "0", str(made))
    common = {"tasks.max": 1}
    return source, sink, {"connector.class": FILE_SOURCE, "file": source, "topic": name, **common}, {"connector.class": FILE_SINK, "file": sink, "topics": name, **common}


def arrives(worker, sink, wanted, seconds=60):
    eventually(lambda: worker.lives() and lines_of(sink) == wanted, lambda: f"{len(wanted)} lines; {len(lines_of(sink))} are there: {lines_of(sink)[-3:]}", seconds)


with check("connect-standalone carries lines from one file into another"):
    source, sink, source_settings, sink_settings = connectors("alone")
    settings = properties("standalone", {**WORKER, "offset.storage.file.filename": WORK / "standalone.offsets"})
    files = [properties("alone-source", {"name": "alone-source", **source_settings}), properties("alone-sink", {"name": "alone-sink", **sink_settings})]
    lines = [f"line {n}" for n in range(100)]
    append(source, lines)
    worker = Worker("standalone", "standalone", settings, *files)
    arrives(worker, sink, lines)
with check("it goes on when the broker was restarted"):
    ask("restart")
    more = [f"after the restart {n}" for n in range(50)]
    append(source, more)
    lines += more
    arrives(worker, sink, lines)
with check("and when it was stopped and started, where it was"):
    time.sleep(1)  # what it has done is noted by now
    worker.stop()
    more = [f"while it was away {n}" for n in range(20)]
    append(source, more)
    lines += more
    worker = Worker("standalone", "standalone", settings, *files)
    arrives(worker, sink, lines)
    group = tool("kafka-consumer-groups", "--bootstrap-server", BOOTSTRAP, "--describe", "--group", "connect-alone-sink")
    holds(any(line.split()[:2] == ["connect-alone-sink", "alone"] for line in group.lines), group)
worker.stop()

INNER = {"config.storage.topic": "connect-configs", "offset.storage.topic": "connect-offsets", "status.storage.topic": "connect-status"}
DISTRIBUTED = {
    **WORKER, **INNER, "group.id": "workers", "exactly.once.source.support": "enabled", "offset.storage.partitions": 3, "status.storage.partitions": 2,
    **{key.replace("topic", "replication.factor"): 1 for key in INNER}, "scheduled.rebalance.max.delay.ms": 0, "session.timeout.ms": 6000, "heartbeat.interval.ms": 1000, "consumer.session.timeout.ms": 6000, "consumer.heartbeat.interval.ms": 1000,
}
with check("connect-distributed keeps its connectors in topics that it makes, compacted"):
    source, sink, source_settings, sink_settings = connectors("shared")
    settings = properties("distributed", DISTRIBUTED)
    lines = [f"line {n}" for n in range(200)]
    append(source, lines)
    worker = Worker("distributed", "distributed", settings)
    eventually(lambda: worker.lives() and rest(port, "GET", "/connectors") == [], "it answers", 90)
    for name, of in (("shared-source", source_settings), ("shared-sink", sink_settings)):
        words = {key: str(value) for key, value in of.items()}
        eventually(lambda: rest(port, "PUT", f"/connectors/{name}/config", words), f"{name} is taken", 60)
        eventually(lambda: runs(port, name), lambda: f"{name} runs: {rest(port, 'GET', f'/connectors/{name}/status')}", 60)
    arrives(worker, sink, lines)
    for name, partitions in ((INNER["config.storage.topic"], 1), (INNER["offset.storage.topic"], 3), (INNER["status.storage.topic"], 2)):
        described = tool("kafka-topics", "--bootstrap-server", BOOTSTRAP, "--describe", "--topic", name).out
        holds(f"PartitionCount: {partitions}\t" in described and "cleanup.policy=compact" in described, described)
with check("a worker that was killed goes on, and each line is in the topic exactly once"):
    for round in range(2):
        more = [f"round {round} line {n}" for n in range(100)]
        append(source, more[:50])
        worker.stop(signal.SIGKILL)
        append(source, more[50:])
        lines += more
        worker = Worker("distributed", "distributed", settings)
        eventually(lambda: worker.lives() and runs(port, "shared-source"), "the source runs again", 90)
    def committed():
        return tool("kafka-console-consumer", "--bootstrap-server", BOOTSTRAP, "--topic", "shared", "--from-beginning", "--isolation-level", "read_committed", "--timeout-ms", 4000, limit=40).lines
    eventually(lambda: len(committed()) >= len(lines), "all lines are in the topic", 60)
    equal(committed(), lines)
    eventually(lambda: lines_of(sink)[-1:] == lines[-1:], "the sink has the last line", 60)
    equal(sorted(set(lines_of(sink))), sorted(lines))
with check("a connector is paused, resumed, reset to its beginning and deleted"):
    rest(port, "PUT", "/connectors/shared-source/stop")
    stopped = lambda: (rest(port, "GET", "/connectors/shared-source/status") or {}).get("connector", {}).get("state") == "STOPPED"
    eventually(stopped, "it is stopped", 30)
    offsets = rest(port, "GET", "/connectors/shared-source/offsets")
    equal(len(offsets["offsets"]), 1)
    eventually(lambda: rest(port, "DELETE", "/connectors/shared-source/offsets"), "its offsets are reset", 30)
    equal(rest(port, "GET", "/connectors/shared-source/offsets"), {"offsets": []})
    rest(port, "PUT", "/connectors/shared-source/resume")
    eventually(lambda: len(committed()) == 2 * len(lines), "it has read all again", 60)
    for name in ("shared-source", "shared-sink"):
        rest(port, "DELETE", f"/connectors/{name}")
    eventually(lambda: rest(port, "GET", "/connectors") == [], "they are gone", 30)
worker.stop()
finish()

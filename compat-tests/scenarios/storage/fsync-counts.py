# scenario: fsync-counts: the system calls that sync are those that docs/durability.md promises, under both flush policies
# tier: normal
# limit: 120
# needs: strace
# against: klamm
# broker: none
#
# The broker runs under strace; the same script, first under klamm.flush.policy=kafka and then under group-commit, creates a topic,
# produces one after another and eight at a time, and leaves the broker idle. kill -9 and restarts cannot show this:
# the page cache outlives both.
import re, signal
from harness import *
import kwire

ONE_BY_ONE, PRODUCERS, EACH = 20, 8, 25
TRACE = WORK / "trace"
CALL = re.compile(r"^\d+ +(fdatasync|fsync|pwritev|pwritev2|pwrite64)\(\d+<([^>]+)>")

traced = ["strace", "-f", "-y", "-s", "0", "-e", "trace=fdatasync,fsync,pwritev,pwritev2,pwrite64", "-o", str(TRACE)]
try:
    process = own_klamm(f"log.dirs={WORK / 'data'}", "num.partitions=1", wrapper=traced)
except AssertionError as error:
    raise SystemExit(f"FAILED {error}; may this user trace processes (kernel.yama.ptrace_scope, seccomp)?")


def calls(folder):
    """(syncs of segments, syncs of anything, writes to segments) in the trace that concern a folder."""
    # A call that another thread interrupts stands in two lines; the first names the file.
    found = [match.groups() for match in map(CALL.match, TRACE.read_text().splitlines()) if match]
    found = [(call, path) for call, path in found if folder in path]
    syncs = [path for call, path in found if call in ("fdatasync", "fsync")]
    return sum(path.endswith(".log") for path in syncs), len(syncs), sum(call.startswith("pwrite") and path.endswith(".log") for call, path in found)


def since(before, folder):
    return tuple(now - then for now, then in zip(calls(folder), before))


def produce(connection, topic, acks):
    data = [{"Name": topic, "PartitionData": [{"Index": 0, "Records": kwire.batch([(None, b"x" * 100)])}]}]
    answer = connection.call("Produce", 8, {"Acks": acks, "TimeoutMs": 5000, "TopicData": data})
    equal(answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"], 0, "Produce")


def create(connection, topic):
    answer = connection.call("CreateTopics", 2, {"Topics": [{"Name": topic, "NumPartitions": 1, "ReplicationFactor": 1}], "timeoutMs": 10000})
    equal(answer["Topics"][0]["ErrorCode"], 0, "CreateTopics")


def set_policy(connection, policy):
    entry = {"Name": "klamm.flush.policy", "ConfigOperation": 0, "Value": policy}
    answer = connection.call("IncrementalAlterConfigs", 0, {"Resources": [{"ResourceType": 4, "ResourceName": "", "Configs": [entry]}], "ValidateOnly": False})
    equal(answer["Responses"][0]["ErrorCode"], 0, "IncrementalAlterConfigs")


def at_once(topic):
    def one():
        connection = kwire.Connection(BOOTSTRAP, 30)
        for _ in range(EACH):
            produce(connection, topic, -1)
        done.append(1)
    done = []
    threads = [threading.Thread(target=one) for _ in range(PRODUCERS)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    equal(len(done), PRODUCERS, "producers that came to their end")


connection = kwire.Connection(BOOTSTRAP)
for policy in ("kafka", "group-commit"):
    waits = policy == "group-commit"
    folder = f"/{policy}-0"
    before = calls("/data/")[1]
    with check(f"{policy}: a change of settings and a new topic are synced before they are answered"):
        set_policy(connection, policy)
        create(connection, policy)
        holds(calls("/data/")[1] > before, "no sync")
    with check(f"{policy}: {ONE_BY_ONE} records, one after another"):
        before = calls(folder)
        for number in range(ONE_BY_ONE):
            produce(connection, policy, (1, -1)[number % 2])
        segments, others, writes = since(before, folder)
        print(f"{segments} syncs of the segment, {others} in the folder, {writes} writes")
        equal(writes, ONE_BY_ONE, "writes to the segment")
        equal(segments, ONE_BY_ONE if waits else 0, "syncs of the segment")
        equal(others > segments, waits, "the names and small files are synced with the first record")
    with check(f"{policy}: {PRODUCERS} producers at once, {EACH} records each"):
        before = calls(folder)
        at_once(policy)
        segments, others, writes = since(before, folder)
        print(f"{segments} syncs of the segment, {others} in the folder, {writes} writes")
        equal(writes, PRODUCERS * EACH, "writes to the segment")
        if waits:
            holds(EACH <= segments < PRODUCERS * EACH, f"{segments} syncs for {PRODUCERS * EACH} acknowledgements")
        equal(others - segments, 0, "other syncs in the folder")
    with check(f"{policy}: nothing to do, nothing to sync"):
        checkpoint = WORK / "data/replication-offset-checkpoint"
        end = f"{policy} 0 {ONE_BY_ONE + PRODUCERS * EACH}"
        eventually(lambda: checkpoint.exists() and end in checkpoint.read_text().splitlines(), "the checkpoint of what was produced", 20)
        time.sleep(1)  # the other checkpoints are written beside it
        before = calls("/data/")
        time.sleep(6)
        equal(since(before, "/data/"), (0, 0, 0), "calls")
with check("a stop in order ends it"):
    os.kill(int(TRACE.read_text().split(" ", 1)[0]), signal.SIGTERM)  # strace itself would let go of the broker
    equal(process.wait(20), 0, "exit code")
if failures:
    print((WORK / "broker.log").read_text()[-3000:], "\n".join(TRACE.read_text().splitlines()[-60:]))
finish()

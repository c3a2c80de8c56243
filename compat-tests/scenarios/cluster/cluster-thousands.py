# scenario: cluster-thousands: three nodes with two thousand partitions on each: one is killed and comes back; how long partitions are without a leader, replicas out of sync, and what the idle cluster costs
# tier: all
# limit: 500
# needs: python-new kafka-4.4.0
# against: klamm 4.4.0
# nodes: 3
# broker: default.replication.factor=3 min.insync.replicas=2
#
# The topic is made by kafka-topics. Each of the nodes is killed once, among them the active controller.
from harness import *
import kwire

COUNT = 2000
MOVED = (5, 6, 7, 19, 20)  # no leader, another leader, not in time, too few in sync before and after the append
tool = Tools("4.4.0")
ADDRESSES = dict(enumerate(BOOTSTRAP.split(","), 1))


def partitions(of):
    """Leader and number in sync of each partition, as a node sees it."""
    with contextlib.closing(kwire.Connection(ADDRESSES[of], 10)) as connection:
        answer = connection.call("Metadata", 9, {"Topics": [{"Name": "many"}], "AllowAutoTopicCreation": False})
    return [(p["LeaderId"], len(p["IsrNodes"])) for p in answer["Topics"][0]["Partitions"]]


def all_are(count, nodes=(1, 2, 3)):
    """Whether each of these nodes sees all partitions led by one of them, with so many replicas in sync."""
    with contextlib.suppress(OSError, kwire.Closed):
        return all(len(seen) == COUNT and all(leader in nodes and in_sync == count for leader, in_sync in seen) for seen in map(partitions, nodes))


def each_takes_a_record(nodes=(1, 2, 3)):
    """Produces a record with acks=all to each partition, as a client does that asks again who leads; returns how long it took."""
    begin, left, record = time.time(), set(range(COUNT)), kwire.batch([(None, b"x")])
    while left:
        holds(time.time() - begin < 90, f"{len(left)} partitions take no record, of them {sorted(left)[:10]}")
        with contextlib.suppress(OSError, kwire.Closed):
            leaders = {number: leader for number, (leader, _) in enumerate(partitions(nodes[0])) if number in left}
            for node in nodes:
                led = [number for number, leader in leaders.items() if leader == node]
                with contextlib.closing(kwire.Connection(ADDRESSES[node], 60)) as connection:
                    answer = connection.call("Produce", 9, {"TransactionalId": None, "Acks": -1, "TimeoutMs": 30000, "TopicData": [{"Name": "many", "PartitionData": [{"Index": number, "Records": record} for number in led]}]})
                codes = {p["Index"]: p["ErrorCode"] for topic in answer["Responses"] for p in topic["PartitionResponses"]}
                holds(set(codes.values()) <= {0, *MOVED}, codes)
                left -= {number for number, code in codes.items() if code == 0}
    return time.time() - begin


def usage(node):
    """Processor seconds of a node's process until now, MiB in memory, and open files."""
    pid = ask(f"pid {node}")
    ticks = sum(map(int, pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
    resident = next(int(line.split()[1]) for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS"))
    return ticks / os.sysconf("SC_CLK_TCK"), resident / 1024, len(os.listdir(f"/proc/{pid}/fd"))


def idle(seconds=10):
    """What the nodes need while nobody asks them for anything."""
    before = [usage(node) for node in ADDRESSES]
    time.sleep(seconds)
    after = [usage(node) for node in ADDRESSES]
    load = os.getloadavg()[0]
    return ", ".join(f"node {node}: {100 * (b[0] - a[0]) / seconds:.1f} % of a core, {b[1]:.0f} MiB, {b[2]} files" for node, a, b in zip(ADDRESSES, before, after)) + f" (load {load:.1f})"


with check("nothing to do with no partitions"):
    eventually(lambda: tool("kafka-topics", "--bootstrap-server", BOOTSTRAP, "--list").code == "0", "the tool is answered")
    print(idle())
with check("two thousand partitions are made"):
    begin = time.time()
    made = tool("kafka-topics", "--bootstrap-server", BOOTSTRAP, "--create", "--topic", "many", "--partitions", COUNT, "--replication-factor", 3, limit=120)
    equal(made.code, "0", made)
    told = time.time() - begin
    eventually(lambda: all_are(3), "all are led", 120)
    print(f"answered after {told:.1f} s, led and in sync after {time.time() - begin:.1f} s")
with check("each takes a record"):
    print(f"{each_takes_a_record():.1f} s")
with check("nothing to do with two thousand"):
    time.sleep(5)
    print(idle())
for victim in ADDRESSES:
    others = [node for node in ADDRESSES if node != victim]
    with check(f"node {victim} is killed and comes back"):
        led = sum(leader == victim for leader, _ in partitions(others[0]))
        begin = time.time()
        ask(f"crash {victim}")
        eventually(lambda: all_are(2, others), "all are led again", 120)
        headless = time.time() - begin
        written = headless + each_takes_a_record(others)
        begin = time.time()
        ask(f"start {victim}")
        eventually(lambda: all(in_sync == 3 for node in others for _, in_sync in partitions(node)), "all replicas in sync", 120)
        print(f"it led {led}; all led again as the others see it {headless:.2f} s after the kill, each had a record after {written:.2f} s; it is in sync everywhere {time.time() - begin:.1f} s after its start (load {os.getloadavg()[0]:.1f})")
with check("the preferred leaders lead again by command"):
    begin = time.time()
    eventually(lambda: all_are(3), "all replicas in sync", 60)
    done = tool("kafka-leader-election", "--bootstrap-server", BOOTSTRAP, "--election-type", "preferred", "--all-topic-partitions", limit=120)
    equal(done.code, "0", done)
    eventually(lambda: all_are(3) and max(sum(leader == node for leader, _ in partitions(1)) for node in ADDRESSES) < COUNT // 2, "the leaders are spread", 60)
    print(f"{time.time() - begin:.1f} s")
    each_takes_a_record()
finish()

# scenario: cluster-refusals: two nodes with one id, one of another cluster, voters that disagree, swapped directories, logs that were cut, clocks apart, a lost majority: each is refused or heals, and says what was found where
# tier: all
# limit: 240
# needs: python-new faketime
# against: klamm
# broker: none
from nodes import *
from endless import *


def one_is_refused(*those, words):
    """Whichever of them hears of the other first ends, with these words; the other one waits, unless it has heard of it too."""
    ended = eventually(lambda: next((node for node in those if node.process.poll() is not None), None), "one of them ends", 60)
    ended.is_refused(*words)
    [other] = [node for node in those if node is not ended]
    eventually(lambda: other.process.poll() is not None or f":{ended.controller}: Connection refused" in other.said(), "the other one misses it", 60)
    if other.process.poll() is None:
        other.says("this node belongs to no cluster yet", "missing:", f":{ended.controller}", "cannot be reached")
        other.stop("kill")


def clock(offset):
    """The command that runs another one with its clock set off, but not the one that only measures."""
    library = subprocess.check_output(["faketime", "-f", offset, "printenv", "LD_PRELOAD"], text=True).strip()
    return ["env", f"LD_PRELOAD={library}", f"FAKETIME={offset}", "FAKETIME_DONT_FAKE_MONOTONIC=1"]


def swap_directories():
    one.data.rename(WORK / "swap")
    two.data.rename(one.data)
    (WORK / "swap").rename(two.data)


def write(count=2000):
    """Writes so many numbered records, and waits until each is acknowledged."""
    producer = Producer({**quiet, "acks": "all", "enable.idempotence": True, "message.timeout.ms": 60000})
    first = len(acknowledged["work"])

    def tell(number):
        def told(error, message):
            holds(error is None, f"{number}: {error}")
            acknowledged["work"][number] = (message.partition(), message.offset())
        return told

    for number in range(first, first + count):
        producer.produce("work", b"%d " % number + b"x" * 100, partition=number % PARTITIONS, on_delivery=tell(number))
        producer.poll(0)
    equal(producer.flush(60), 0, "left in the queue")
    sent["work"] = range(first + count)


def all_in_sync():
    eventually(lambda: in_sync(admin), "all replicas in sync", 60)


def nothing_is_lost():
    all_in_sync()
    each_is_there_once("work", 30)
    logs = lambda node, partition: b"".join(file.read_bytes() for file in sorted((node.data / f"work-{partition}").glob("*.log")))
    for partition in range(PARTITIONS):
        eventually(lambda: len({logs(node, partition) for node in nodes}) == 1, f"the replicas of work-{partition} have the same bytes", 20)


def cut(node, partition, size):
    """Takes bytes from the end of a partition's log."""
    segment = max((node.data / f"work-{partition}").glob("*.log"))
    os.truncate(segment, max(0, segment.stat().st_size - size))


def leader(partition):
    return admin.list_topics("work", 10).topics["work"].partitions[partition].leader


nodes = [Node(f"node-{number}", number) for number in PORTS]
one, two, three = nodes

with check("voters that disagree form no cluster"):
    one.start()
    two.start({"controller.quorum.voters": ",".join(VOTERS.split(",")[:2])})
    one_is_refused(one, two, words=("[1, 2, 3] at node 1", "[1, 2] at node 2", "same list"))
nodes = one, two, three = fresh(*nodes)
with check("another node answers at a voter's address"):
    one.start()
    wrong = Node("wrong", 7, place=2).start({"controller.quorum.voters": VOTERS.replace("2@", "7@")})
    one_is_refused(one, wrong, words=("controller.quorum.voters names", "node 7"))
nodes = one, two, three = fresh(*nodes)
with check("three nodes, the clock of one an hour behind, of another an hour ahead, form a cluster and serve"):
    one.start(wrapper=clock("-1h"))
    two.start()
    three.start(wrapper=clock("+1h"))
    well(*nodes)
    admin = create(NewTopic("work", PARTITIONS, 3))
    acknowledged["work"] = {}
    write()
    nothing_is_lost()
    time.sleep(4)  # longer than a session
    well(*nodes)
    for node in nodes:
        node.stop()
        node.start()
    well(*nodes)
    nothing_is_lost()
with check("a second process with the id of a node, as voter and as broker"):
    twin = Node("twin", 2, place=4).start()
    twin.is_refused("node.id=2", f"127.0.0.1:{two.controller}")
    broker, twin = Node("broker", 4, place=5), Node("broker-twin", 4, place=6)
    only_broker = lambda node: {"process.roles": "broker", "listeners": f"PLAINTEXT://127.0.0.1:{node.port}"}
    broker.start(only_broker(broker))
    well(broker)
    twin.start(only_broker(twin)).is_refused("node.id=4")
    well(broker, *nodes)
    broker.stop()
    write()
with check("a node of another cluster"):
    stranger = Node("stranger", 8)
    alone = {"controller.quorum.voters": f"8@127.0.0.1:{stranger.controller}", "default.replication.factor": None, "min.insync.replicas": None}
    stranger.start(alone)
    well(stranger)
    stranger.stop()
    stranger.start(only_broker(stranger)).is_refused("cluster")
    well(*nodes)
    write()
with check("two nodes whose directories were swapped"):
    for node in (one, two):
        node.stop()
    swap_directories()
    one.start()
    two.start()
    one.is_refused("node.id=2", "node.id=1", one.data)
    two.is_refused("node.id=1", "node.id=2", two.data)
    swap_directories()
    one.start()
    two.start()
    well(*nodes)
    write()
    nothing_is_lost()
with check("a follower whose log was cut while it was stopped"):
    follower = next(node for node in nodes if node.number != leader(0))
    follower.stop()
    cut(follower, 0, 1000)
    write()
    follower.start()
    follower.says("the logs of work-0 are not as the last stop, which was clean, has left them")
    nothing_is_lost()
with check("a leader whose log was cut while it was stopped"):
    led = next(node for node in nodes if node.number == leader(1))
    led.stop()
    cut(led, 1, 100000)
    led.start()
    led.says("the logs of work-1 are not as the last stop, which was clean, has left them")
    nothing_is_lost()
with check("all stopped, and the log of a leader was cut"):
    led = next(node for node in nodes if node.number == leader(2))
    for node in nodes:
        node.process.terminate()
    for node in nodes:
        node.process.wait(30)
    cut(led, 2, 100000)
    for node in nodes:
        node.start()
    led.says("the logs of work-2 are not as the last stop, which was clean, has left them")
    well(*nodes)
    nothing_is_lost()
with check("all stopped one after the other, and the log of the last one was cut"):
    write()
    for node in nodes:
        node.stop()
        time.sleep(0.3)
    for partition in range(PARTITIONS):
        cut(three, partition, 100000)
    for node in nodes:
        node.start()
    three.says("the logs of work-0, work-1, work-2, work-3 are not as the last stop, which was clean, has left them")
    well(*nodes)
    nothing_is_lost()
with check("all stopped, and a folder of the last one is gone"):
    write()
    for node in nodes:
        node.stop()
        time.sleep(0.3)
    shutil.rmtree(three.data / "work-0")
    for node in nodes:
        node.start()
    three.says("work-0", "the partition's folder is gone", three.data)
    well(*nodes)
    nothing_is_lost()
with check("a lost majority is told by log, health and errors, and is over when a node comes back"):
    for node in (two, three):
        node.stop("kill")
    one.says("no majority", f"node 2", f"node 3", "Start these nodes again", seconds=20)
    told = one.health()
    print("health:", *told, sep="\n")
    holds(any("no majority" in line for line in told), told)
    lonely = {**quiet, "bootstrap.servers": f"127.0.0.1:{one.port}"}
    failed = []
    producer = Producer({**lonely, "acks": "all", "message.timeout.ms": 8000})
    producer.produce("work", b"lost", partition=0, on_delivery=lambda error, message: failed.append(error))
    producer.flush(20)
    print("a producer is told:", failed)
    holds(failed and failed[0] is not None, "it was acknowledged")
    asking = AdminClient(lonely)  # its future needs it alive
    begin = time.time()
    try:
        asking.create_topics([NewTopic("more", 1, 1)], request_timeout=8, operation_timeout=5)["more"].result(20)
        raise AssertionError("a topic was made")
    except KafkaException as error:
        print(f"who makes a topic is told after {time.time() - begin:.1f} s:", error)
        holds("no majority" in str(error) and "node 2" in str(error) and "node 3" in str(error), error)
    two.start()
    well(one, two)
    three.start()
    well(*nodes)
    all_in_sync()
with check("a majority that is lost for good: one node goes on alone, with all that was acknowledged"):
    write()
    for node in nodes:
        node.stop("kill")
    released = subprocess.run([os.environ["KLAMM_BIN"], "release", "--alone", str(one.data)], capture_output=True, text=True)
    print(released.stdout + released.stderr)
    equal(released.returncode, 0, released.stderr)
    holds("never start the other nodes" in released.stdout, released.stdout)
    one.start({"controller.quorum.voters": f"1@127.0.0.1:{one.controller}", "default.replication.factor": None, "min.insync.replicas": None})
    well(one)
    quiet["bootstrap.servers"] = group["bootstrap.servers"] = f"127.0.0.1:{one.port}"
    each_is_there_once("work", 30)
    write()
    each_is_there_once("work", 30)
    [before] = [line for line in (two.data / "meta.properties").read_text().splitlines() if line.startswith("cluster.id=")]
    two.start()
    # the quorum or the controller says it, whichever is asked first; both name the cluster that this node knows
    two.is_refused("cluster", before.removeprefix("cluster.id="))
for node in nodes:
    node.process.kill()
finish()

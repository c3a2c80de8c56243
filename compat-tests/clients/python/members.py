"""Members of a group in any client, each a process of its own, and what must hold of what they say.

A member is a program with the arguments BOOTSTRAP TOPIC GROUP ASSIGNOR [INSTANCE] that reads a topic and commits after each
poll, and at the latest before it gives a partition back. It says, a line each:

    assigned PARTITION…              all that it has now, after each change
    read PARTITION OFFSET VALUE      it has handled a record
    committed PARTITION OFFSET       the coordinator has answered so
    said TEXT                        anything else: an error

A line on its standard input, or its end, asks it to leave; then it ends with 0. Its session lasts 6 s, that of an instance 30.
"""
import collections
from exactly_once import Feed, PATIENCE, create, java
from harness import *

CLIENTS = os.environ["CLIENTS"]
GO = os.environ["GO_PROGRAMS"]


def program(client):
    """The command of a client's member, and the assignor that its groups use: a cooperative one where the client has one.

    Java has one since 2.4, but before 3.5 two members may own a partition at once when one of them was late with its SyncGroup,
    a fault of the client (KAFKA-13419, KAFKA-14016) whose signs 2 of 5 runs here showed.
    """
    kind, _, version = client.partition("-")
    if kind == "java":
        return java(version, "GroupMember"), "cooperative-sticky" if numbers(version) >= (3, 5) else "range"
    return {
        "librdkafka": ([sys.executable, f"{CLIENTS}/python/member_librdkafka.py"], "cooperative-sticky"),
        "kafka_python": ([sys.executable, f"{CLIENTS}/python/member_kafka_python.py"], "range"),
        "franz_go": ([f"{GO}/franz-go-member"], "cooperative-sticky"),
        "sarama": ([f"{GO}/sarama-member"], "range"),
        "kafkajs": (["node", f"{CLIENTS}/node/member.js"], "round robin"),
    }[kind]


def may_be_static(client):
    return client != "kafkajs" and not client.startswith(("java-0.", "java-1."))


class Read:
    """A record that a member handled, and when; when that was committed, if the member had the partition until then."""

    def __init__(self, member, partition, offset, value):
        self.member, self.partition, self.offset, self.value = member, partition, offset, value
        self.at, self.committed_at = time.time(), None

    def __repr__(self):
        return f"{self.member.name}: {self.partition}@{self.offset} at {self.at:.2f}" + (f", committed at {self.committed_at:.2f}" if self.committed_at else "")


class Member:
    """One process, with all that it said."""

    def __init__(self, name, client, group, assignor=None, instance=None):
        command, its_own = program(client)
        self.name, self.instance, self.killed = name, instance, False
        self.reads, self.pending, self.assigned, self.gains, self.said = [], collections.defaultdict(list), (), 0, set()
        self.history = []
        self.process = subprocess.Popen([*command, BOOTSTRAP, "numbers", group, assignor or its_own, *filter(None, [instance])],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(WORK / f"{name}.log", "w"), text=True)
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()

    def listen(self):
        for line in self.process.stdout:
            word, *rest = line.split()
            if word == "read":
                read = Read(self, *map(int, rest))
                self.reads.append(read)
                self.pending[read.partition].append(read)
            elif word == "committed":
                partition, offset = map(int, rest)
                while self.pending[partition] and self.pending[partition][0].offset < offset:
                    self.pending[partition].pop(0).committed_at = time.time()
            elif word == "assigned":
                now = tuple(sorted(map(int, rest)))
                self.gains += bool(set(now) - set(self.assigned))
                self.assigned = now
                self.history.append(f"{time.time():.2f}: {list(now)}")
                for partition in set(self.pending) - set(now):
                    del self.pending[partition]
            elif line not in self.said:
                self.said.add(line)
                print(f"{self.name} {line.rstrip()}"[:300], flush=True)

    def leave(self):
        self.process.stdin.close()
        code = self.process.wait(30)
        self.listener.join(10)
        self.assigned = ()
        equal(code, 0, f"exit code of {self.name}: {(WORK / (self.name + '.log')).read_text()[-2000:]}")

    def kill(self):
        self.killed, self.assigned_before_its_end = True, self.assigned
        self.process.kill()
        self.process.wait()
        self.listener.join(10)
        self.assigned = ()

    def stood_still(self, since):
        """The longest time in ms between two records of one partition that it has had since then and has still."""
        times = collections.defaultdict(lambda: [since])
        for read in list(self.reads):
            if read.at > since and read.partition in self.assigned:
                times[read.partition].append(read.at)
        return max((round(1000 * (b - a)) for all in times.values() for a, b in zip(all, all[1:])), default=0)


def share_all(members, partitions):
    """Whether each partition has one member, and each member about as many as any other."""
    held = [member.assigned for member in members]
    counts = [len(one) for one in held]
    return sorted(p for one in held for p in one) == list(range(partitions)) and max(counts) - min(counts) <= 1


def handled(members):
    """All that handled a value, by value."""
    by_value = collections.defaultdict(list)
    for member in members:
        for read in list(member.reads):
            by_value[read.value].append(read)
    return by_value


def none_lost(members, count):
    missing = sorted(set(range(count)) - set(handled(members)))
    equal(missing[:20], [], f"{len(missing)} of {count} were handled by no member")


def none_twice(members):
    twice = {value: reads for value, reads in handled(members).items() if len(reads) > 1}
    equal(dict(list(twice.items())[:10]), {}, f"{len(twice)} were handled twice")


def none_after_its_commit(members):
    """What was committed is not handled again, unless by a member that had lost the partition unawares, whose commit was refused."""
    def again(reads):
        return any(a is not b and a.committed_at and b.at > a.committed_at and (b.committed_at or b.member.killed) for a in reads for b in reads)

    wrong = {value: reads for value, reads in handled(members).items() if len(reads) > 1 and again(reads)}
    equal(dict(list(wrong.items())[:10]), {}, f"{len(wrong)} were handled again after they were committed")


class Team:
    """A group under load: who was ever in it (everybody), who is now (present), and what it is fed with."""

    def __init__(self, clients, assignor=None, partitions=10, a_second=300, replicas=1):
        self.clients, self.assignor, self.partitions, self.everybody, self.present = clients, assignor, partitions, [], []
        create("numbers", partitions=partitions, replicas=replicas)
        behind = lambda count: count - sum(len(member.reads) for member in self.everybody)
        self.feed = Feed(lambda number: [("numbers", None, f"{number}", 0)], a_second, partitions, behind)

    def client(self, number):
        return self.clients[number % len(self.clients)]

    def join(self, instance=None, number=None):
        """Starts a member: of the next client, or of the one that had this number."""
        number = len(self.everybody) if number is None else number
        member = Member(f"member-{len(self.everybody)}-{self.client(number)}", self.client(number), "team", self.assignor, instance)
        member.number = number
        self.everybody.append(member)
        self.present.append(member)
        return member

    def settle(self, seconds=40 * PATIENCE):
        """Waits until those that are present share all partitions and handle what is written from now on; returns how many ms each stood still."""
        since = time.time()
        shared = lambda: share_all(self.present, self.partitions)
        eventually(shared, lambda: f"they share all: {[member.assigned for member in self.present]}", seconds)
        count = self.feed.count
        eventually(lambda: shared() and set(range(count)) <= set(handled(self.everybody)), lambda: f"all up to {count} is handled", seconds)
        return [member.stood_still(since) for member in self.present]

    def end(self):
        """Lets all leave when all is handled, and judges what was handled."""
        with check("all of them leave"):
            count = self.feed.stop()
            eventually(lambda: set(range(count)) <= set(handled(self.everybody)), "all is handled", 60 * PATIENCE)
            stay = [member for member in self.present if member.instance]
            for member in self.present:
                if member not in stay:
                    member.leave()
            # A static one does not say that it leaves: who rebalances then waits for it until its session ends.
            eventually(lambda: not stay or share_all(stay, self.partitions), "the static ones share all", 30)
            for member in stay:
                member.leave()
        with check("none is lost"):
            none_lost(self.everybody, count)
        with check("none is handled again after it was committed"):
            none_after_its_commit(self.everybody)
        print(f"{count} records, {sum(len(member.reads) for member in self.everybody)} times handled by {len(self.everybody)} members")
        if failures:
            for member in self.everybody:
                print(member.name, "had", *member.history, (WORK / (member.name + ".log")).read_text()[-1500:])

"""Applications that read and write in transactions, killed and started again, what they are fed with, and what must be there in the end."""
import collections, random, shutil
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from harness import *
import endless, kwire
from endless import quiet

PARTITIONS = 2
# Apache Kafka takes long to start; what repeats itself for long has ever more to restore and to read.
PATIENCE = (1 if KLAMM else 4) * (3 if os.environ["SOAK"] else 1)
BEHIND_MAX = 3000  # records that are fed and not yet written out


def java(version, program, *arguments):
    """The command of a class of that version's jars, or of a program in clients/java, which is compiled first."""
    folder = pathlib.Path(os.environ["KAFKA_JARS"]) / version
    classes, path = WORK / f"classes-{version}", f"{folder}/libs/*"
    source = pathlib.Path(os.environ["CLIENTS"]) / f"java/{program}.java"
    if source.exists() and not (classes / f"{program}.class").exists():
        subprocess.run(["javac", "-nowarn", "-proc:none", "-Xlint:-options", "-cp", path, "-d", classes, source], check=True)
    return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dlog4j.configuration=file:{folder}/log4j.properties",
            f"-Dlog4j2.configurationFile={folder}/log4j2.properties", "-cp", f"{classes}:{path}", program, *map(str, arguments)]


class Application:
    """A process that is started again whenever it ends, as a service manager does. What it says is in WORK/NAME.log."""

    def __init__(self, name, command, before=lambda: None):
        self.log, self.command, self.before = WORK / f"{name}.log", command, before
        self.starts, self.ended, self.lock = 0, False, threading.Lock()
        self.start()
        self.keeper = threading.Thread(target=self.keep, daemon=True)
        self.keeper.start()

    def start(self):
        self.before()
        with open(self.log, "a") as output:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self.starts += 1

    def keep(self):
        while True:
            self.process.wait()
            with self.lock:
                if self.ended:
                    return
                self.start()

    def kill(self):
        self.process.kill()

    def end(self, seconds=30):
        """Ends it as an operator does."""
        with self.lock:
            self.ended = True
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.process.kill()

    def said(self):
        return self.log.read_text(errors="replace")


class Feed:
    """Writes what make(number) names, as (topic, key, value, timestamp), for number 0 and on, until it is stopped; it waits while `behind(count)` is too much."""

    def __init__(self, make, a_second, partitions=PARTITIONS, behind=lambda count: 0):
        self.make, self.a_second, self.partitions, self.behind, self.count, self.ended, self.errors = make, a_second, partitions, behind, 0, False, []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        producer = Producer({**quiet, "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 120000})
        begin = time.time()
        while not self.ended:
            for topic, key, value, timestamp in self.make(self.count):
                producer.produce(topic, value, key, partition=self.count % self.partitions, timestamp=timestamp,
                                 on_delivery=lambda error, message: error and self.errors.append(str(error)))
            self.count += 1
            producer.poll(max(0, begin + self.count / self.a_second - time.time()))
            while self.behind(self.count) > BEHIND_MAX and not self.ended:
                begin += 0.1
                producer.poll(0.1)
        if producer.flush(120):
            self.errors.append("not all was acknowledged")

    def stop(self):
        """Returns how many numbers were written."""
        self.ended = True
        self.thread.join(130)
        equal(self.errors[:3], [], f"{len(self.errors)} errors of the feed")
        return self.count


class Watch:
    """Counts what `read_committed` sees of some topics, while it is being written."""

    def __init__(self, *topics):
        self.topics, self.count = topics, collections.Counter()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        reader = consumer("read_committed", self.topics)
        while True:
            for message in reader.consume(1000, 0.2):
                if not message.error():
                    self.count[message.topic()] += 1

    def goes_on(self, seconds=40):
        """Waits until more is committed to each topic than now, and more than what may have been under way."""
        known = dict(self.count)
        eventually(lambda: all(self.count[topic] > known.get(topic, 0) + 100 for topic in self.topics), f"more than {known} in the output", seconds * PATIENCE)
        return dict(self.count)


def consumer(isolation, topics, **settings):
    made = Consumer({**quiet, "group.id": "reader", "isolation.level": isolation, "enable.auto.commit": False, "fetch.wait.max.ms": 100, **settings})
    made.assign([TopicPartition(topic, partition, 0) for topic in topics for partition in range(PARTITIONS)])
    return made


def create(*topics, replicas=1, partitions=PARTITIONS):
    endless.create(*(NewTopic(topic, partitions, replicas) for topic in topics))


def coordinator(kind, name):
    """The node that coordinates a group (kind 0) or a transactional id (kind 1)."""
    def asked():
        for address in BOOTSTRAP.split(","):
            with contextlib.suppress(OSError, kwire.Closed):
                told = kwire.Connection(address).call("FindCoordinator", 3, {"Key": name, "KeyType": kind})
                if told["ErrorCode"] == 0:
                    return told["NodeId"]

    return eventually(asked, f"the coordinator of {name}", 30)


def read(isolation, *topics, seconds=60 * PATIENCE):
    """All (key, value) of the topics that this isolation shows, up to their ends."""
    reader, records, ended, limit = consumer(isolation, topics, **{"enable.partition.eof": True}), [], set(), time.time() + seconds
    while len(ended) < len(topics) * PARTITIONS:
        holds(time.time() < limit, f"after {seconds} s: {len(records)} read, the ends of {ended} reached")
        for message in reader.consume(1000, 0.2):
            if not message.error():
                records.append((message.key().decode(), message.value().decode()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add((message.topic(), message.partition()))
    reader.close()
    return records


def surplus(*topics):
    """What `read_uncommitted` shows beyond `read_committed`: what was aborted. It must show all that was committed."""
    committed = collections.Counter(read("read_committed", *topics))
    everything = collections.Counter(read("read_uncommitted", *topics))
    missing = committed - everything
    equal(dict(missing), {}, "committed, but hidden from read_uncommitted")
    return everything - committed


def copier(name, number):
    """The command of one of the programs that copy `input` to `output` as members of one group."""
    transactional_id = f"copier-{number}"
    if name == "java":
        return java("4.4.0", "org.apache.kafka.tools.TransactionalMessageCopier", "--broker-list", BOOTSTRAP, "--input-topic", "input",
                    "--input-partition", -1, "--output-topic", "output", "--consumer-group", "copiers", "--transactional-id", transactional_id,
                    "--transaction-size", 50, "--transaction-timeout", 6000, "--enable-random-aborts", "--group-mode", "--use-group-metadata")
    if name.startswith("java-"):
        return java(name.removeprefix("java-"), "PartitionCopier", BOOTSTRAP, "input", number, "output", "copiers", transactional_id)
    program = {"librdkafka": [sys.executable, f"{os.environ['CLIENTS']}/python/copier.py"], "franz-go": [f"{os.environ['GO_PROGRAMS']}/copier"]}[name]
    return [*program, BOOTSTRAP, "input", "output", "copiers", transactional_id]


class Copies:
    """Two programs that copy what is fed, killed in rounds, and the judgement of what they wrote."""

    def __init__(self, name, replicas=1):
        create("input", "output", replicas=replicas)
        self.watch = Watch("output")
        self.feed = Feed(lambda number: [("input", f"{number % 50}", f"{number}", 0)], 200, behind=lambda count: count - self.watch.count["output"])
        self.programs = [Application(f"copier-{number}", copier(name, number)) for number in range(2)]
        with check("both copy"):
            self.watch.goes_on()

    def go_on(self):
        print(self.watch.goes_on()["output"], "of", self.feed.count, "are in the output")

    def rounds(self, count, *happenings):
        for number in range(count):
            time.sleep(random.random() * 2)
            happens = happenings[number % len(happenings)]
            with check(f"round {number + 1}: goes on after {happens.__name__}"):
                happens(self)
                self.go_on()

    def judge(self):
        count = self.feed.stop()
        with check("all is copied"):
            eventually(lambda: self.watch.count["output"] >= count, lambda: f"{self.watch.count['output']} of {count}", 60 * PATIENCE)
        for program in self.programs:
            program.end()
        with check("read_committed sees each record once"):
            numbers = collections.Counter(int(value) for _, value in read("read_committed", "output"))
            lost, twice = [n for n in range(count) if n not in numbers], [n for n, times in numbers.items() if times > 1]
            equal((len(lost), lost[:20], len(twice), twice[:20], len(numbers)), (0, [], 0, [], count), "lost, copied twice, in all")
        with check("read_uncommitted sees all that, and what was aborted"):
            aborted = surplus("output")
            holds(aborted, "nothing was aborted")
            equal([value for _, value in aborted if not 0 <= int(value) < count], [], "aborted, but never fed")
            print(f"{count} copied, {aborted.total()} aborted")
        print("starts of the programs:", [program.starts for program in self.programs])
        if failures:
            print(*(program.said()[-4000:] for program in self.programs), sep="\n")


def program_killed(copies):
    random.choice(copies.programs).kill()


def broker_killed(_):
    ask("kill")


def all_killed(copies):
    for program in copies.programs:
        program.kill()
    ask("kill")

"""What Python scenarios share: the broker's address, requests to the runner, checks that collect, and Kafka's own tools."""
import base64, contextlib, os, pathlib, socket, subprocess, sys, threading, time, traceback

BOOTSTRAP = os.environ["BOOTSTRAP"]
PORT = int(os.environ["PORT"])
AGAINST = os.environ["AGAINST"]
WITH = os.environ["WITH"]
WORK = pathlib.Path(os.environ["WORK"])
KLAMM = AGAINST == "klamm"


def ask(request):
    """Asks the runner: restart, kill (each comes back running), stop, crash, start, pause, continue, pid; of several nodes, with the number of one."""
    print("@" + request, flush=True)
    word, _, rest = sys.stdin.readline().strip().partition(" ")
    if word != "ok":
        raise SystemExit(f"the runner could not {request} the broker: {rest}")
    return rest


failures = []


@contextlib.contextmanager
def check(name):
    """One thing that must be seen. A failure is told at once and ends the scenario at its end, so that one run shows all."""
    begin = time.time()
    try:
        yield
        print(f"ok {name} ({time.time() - begin:.1f} s)", flush=True)
    except Exception as e:
        where = traceback.extract_tb(e.__traceback__)[-1]
        failures.append(f"{name} ({time.time() - begin:.1f} s), line {where.lineno}: {type(e).__name__}: {e}")
        print(f"FAILED {failures[-1]}", flush=True)


def equal(seen, wanted, what="seen"):
    if seen != wanted:
        raise AssertionError(f"{what}: {str(seen)[:1500]}\n  wanted: {str(wanted)[:1500]}")


def holds(condition, message):
    if not condition:
        raise AssertionError(message)


def eventually(condition, what, seconds=20):
    """Waits until condition() is true and returns it."""
    end = time.time() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.time() > end:
            raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.05)


def free_ports(begin=PORT + 2):
    """Ports that nobody listens on now, one after the other, outside of the range for outgoing connections."""
    for port in (*range(begin, 24500), *range(24000, begin)):
        with contextlib.suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            yield port


def klamm_process(folder, settings, log, wrapper=()):
    """A broker with these settings, by the command `wrapper` if there is one; a setting that is None is left out. What it says is added to `log`."""
    words = [word for key, value in settings.items() if value is not None for word in ("--override", f"{key}={value}")]
    with open(log, "a") as output:
        return subprocess.Popen([*wrapper, os.environ["KLAMM_BIN"], *words], stdout=output, stderr=output, cwd=folder)


def own_klamm(*overrides, wrapper=()):
    """Starts a broker of the scenario's own, by the command `wrapper` if there is one, and returns its process when it answers. What it says is in WORK/broker.log."""
    import kwire
    log = WORK / "broker.log"
    words = [word for override in (f"listeners=PLAINTEXT://127.0.0.1:{PORT}", *overrides) for word in ("--override", override)]
    with open(log, "a") as output:
        process = subprocess.Popen([*wrapper, os.environ["KLAMM_BIN"], *words], stdout=output, stderr=output)

    def answers():
        holds(process.poll() is None, f"the broker ended with {process.poll()}: {log.read_text()[-1500:]}")
        with contextlib.suppress(OSError, kwire.Closed):
            return kwire.Connection(BOOTSTRAP).call("ApiVersions", 0)

    eventually(answers, "the broker answers", 30)
    return process


class SmallDisk:
    """A file system of its own, of so many bytes in memory, at a folder in a mount namespace of its own: `inside` is the command that runs others there, `seen` where it is seen from out here."""

    def __init__(self, folder, size):
        folder.mkdir()
        namespace = ["unshare", "-m"] if os.getuid() == 0 else ["unshare", "-rm"]
        self.holder = subprocess.Popen([*namespace, "bash", "-c", f"mount -t tmpfs -o size={size} tmpfs {folder} && echo mounted && exec sleep infinity"], stdout=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "mounted\n":
            raise SystemExit("FAILED no file system can be mounted here: run as root or allow user namespaces (kernel.unprivileged_userns_clone)")
        self.inside = ["nsenter", "-t", str(self.holder.pid), "-m"] + ([] if os.getuid() == 0 else ["-U", "--preserve-credentials"])
        self.seen = pathlib.Path(f"/proc/{self.holder.pid}/root") / folder.relative_to("/")

    def fill_up(self):
        """Leaves no block, by a file `filler`."""
        with open(self.seen / "filler", "ab", buffering=0) as filler, contextlib.suppress(OSError):
            while filler.write(b"x" * 4096):
                pass


def finish():
    if failures:
        print(f"{len(failures)} failed:", *failures, sep="\n", flush=True)
    sys.stdout.flush()
    os._exit(1 if failures else 0)


class Run:
    """What a tool printed (out), its standard error and its exit code; code is "timeout" when its time was over."""

    def __init__(self, code, out, error):
        self.code, self.out, self.error = code, out, error
        self.lines = out.splitlines()

    def __str__(self):
        noise = ("\tat ", "SLF4J", "WARNING:")
        kept = [line for line in (self.out + "\n" + self.error).splitlines() if line and not line.startswith(noise)]
        return f"exit {self.code}: " + " | ".join(kept)[-1200:]


CLASSES = {
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "kafka.tools.ConsoleConsumer",
    "kafka-simple-consumer-shell": "kafka.tools.SimpleConsumerShell",
    "kafka-topics": "kafka.admin.TopicCommand",
    "kafka-consumer-groups": "kafka.admin.ConsumerGroupCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
    "kafka-get-offsets": "kafka.tools.GetOffsetShell",
    "kafka-delete-records": "kafka.admin.DeleteRecordsCommand",
    "kafka-log-dirs": "kafka.admin.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-streams-application-reset": "org.apache.kafka.tools.StreamsResetter",
    "kafka-replica-verification": "org.apache.kafka.tools.ReplicaVerificationTool",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-share-consumer-perf-test": "org.apache.kafka.tools.ShareConsumerPerformance",
    "kafka-verifiable-share-consumer": "org.apache.kafka.tools.VerifiableShareConsumer",
}
MOVED = {  # VERSION from which the tool is the tools module's
    "kafka-configs": ("4.4.0", "org.apache.kafka.tools.ConfigCommand"),
    "kafka-get-offsets": ("4.0.0", "org.apache.kafka.tools.GetOffsetShell"),
    "kafka-delete-records": ("4.0.0", "org.apache.kafka.tools.DeleteRecordsCommand"),
    "kafka-log-dirs": ("3.7.0", "org.apache.kafka.tools.LogDirsCommand"),
    "kafka-dump-log": ("4.0.0", "org.apache.kafka.tools.DumpLogSegments"),
    "kafka-console-producer": ("4.0.0", "org.apache.kafka.tools.ConsoleProducer"),
    "kafka-console-consumer": ("3.9.0", "org.apache.kafka.tools.consumer.ConsoleConsumer"),
    "kafka-topics": ("3.7.0", "org.apache.kafka.tools.TopicCommand"),
    "kafka-consumer-groups": ("3.8.0", "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"),
}


def numbers(version):
    return tuple(map(int, version.split(".")))


class Tools:
    """The command-line tools of one version of Kafka, all in one JVM that starts with the first of them."""

    def __init__(self, version):
        self.version, self.process, self.lock = version, None, threading.Lock()

    def start(self):
        folder = pathlib.Path(os.environ["KAFKA_JARS"]) / self.version
        opens = [f"--add-opens=java.base/{p}=ALL-UNNAMED" for p in ("java.nio", "sun.nio.ch", "java.lang", "java.util")]
        self.process = subprocess.Popen(
            ["java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Dfile.encoding=UTF-8",
             "-Djava.security.manager=allow", *opens, "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
             f"-Dlog4j.configuration=file:{folder}/log4j.properties", f"-Dlog4j2.configurationFile={folder}/log4j2.properties",
             "-cp", f"{os.environ['TOOL_HOST']}:{folder}/libs/*", "ToolHost"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def class_of(self, name):
        since, moved = MOVED.get(name, ("99", None))
        return moved if numbers(self.version) >= numbers(since) else CLASSES.get(name, name)

    def __call__(self, name, *arguments, stdin="", limit=30):
        with self.lock:
            if self.process is None:
                self.start()
            encode = lambda text: base64.b64encode(str(text).encode()).decode() or "-"
            self.process.stdin.write(" ".join(map(encode, (self.class_of(name), int(limit * 1000), stdin, *arguments))) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline().split()
        if len(answer) != 3:
            raise AssertionError(f"the JVM with the tools of {self.version} ended in {name}")
        decode = lambda field: base64.b64decode("" if field == "-" else field).decode(errors="replace")
        return Run(answer[0], decode(answer[1]), decode(answer[2]))


def side_by_side(work, arguments):
    """Calls work(argument) for each argument, at most three at once, and waits for all."""
    slots = threading.Semaphore(3)

    def one(argument):
        with slots:
            work(argument)

    threads = [threading.Thread(target=one, args=(a,)) for a in arguments]
    for t in threads: t.start()
    for t in threads: t.join()

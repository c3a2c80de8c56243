# scenario: transcript: Kafka's tools print on Klamm what they print on Apache Kafka, call by call
# tier: normal
# limit: 300
# needs: kafka-4.4.0
# shows: java-4.4.0: admin
#
# transcript.txt holds each call ("$ …") with its exit code and what Apache Kafka 4.4.0 lets it print. Where Klamm differs,
# the reason stands below it ("~ …"), and then what Klamm lets it print (clients/python/transcripts.py: RECORD, SEEN).
import json, re
from transcripts import *

FILE = pathlib.Path(__file__).with_name("transcript.txt")
tool = Tools("4.4.0")
FILES = {
    "first": {"partitions": [{"topic": "t", "partition": 0, "offset": 1}], "version": 1},
    "beyond": {"partitions": [{"topic": "t", "partition": 1, "offset": 99}], "version": 1},
    "topics": {"topics": [{"topic": "t"}], "version": 1},
    "assignment": {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]},
    "negative": {"partitions": [{"topic": "t", "partition": 0, "offset": -5}], "version": 1},
    "unknown": {"partitions": [{"topic": "none", "partition": 0, "offset": 1, "replicas": [1]}], "version": 1},
    "twice": {"partitions": [{"topic": "t", "partition": 0, "offset": 1, "replicas": [1]}] * 2, "version": 1},
    "later": {"partitions": [{"topic": "t", "partition": 0, "offset": 1, "replicas": [1]}], "topics": [{"topic": "t"}], "version": 9},
    "empty": {"partitions": [], "topics": [], "version": 1},
    "nowhere": {"partitions": [{"topic": "t", "partition": 0, "replicas": [9]}], "version": 1},
    "nobody": {"partitions": [{"topic": "t", "partition": 0, "replicas": []}], "version": 1},
    "doubled": {"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}], "version": 1},
    "no-partition": {"partitions": [{"topic": "t", "partition": 99, "replicas": [1]}], "version": 1},
    "lost": {"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/nowhere"]}], "version": 1},
    "short": {"partitions": [{"topic": "t"}], "version": 1},
}
TEXTS = {"resets": "t,0,1\nt,1,0\n", "odd-resets": "t,zero\n", "no-json": "{nothing", "client": "request.timeout.ms=20000\n"}
# A part of the broker that logs.
LOGGER = "klamm_server.api" if KLAMM else "kafka.server.KafkaApis"


def paths():
    for name, content in FILES.items():
        (WORK / name).write_text(json.dumps(content))
    for name, content in TEXTS.items():
        (WORK / name).write_text(content)
    return {"logger": LOGGER, **{name: str(WORK / name) for name in (*FILES, *TEXTS)}}


PLACES = paths()
OPTIONS = r"^Option( \(.*\))? +Description.*|^usage: .*?(?=^\S+: error: )"
AFTER_COMMAND = ("kafka-cluster",)
# What differs from run to run, and what stands for it.
UNSTABLE = [
    (re.escape(str(WORK)), "WORK"), (re.escape(LOGGER), "LOGGER"),
    (re.escape(os.environ["BROKER_DIR"]) + r"[\w/.-]*", "DATA"),
    (re.escape(BOOTSTRAP), "HOST:PORT"), (r"127\.0\.0\.1:\d+|localhost:\d+", "HOST:PORT"), (rf"\b{PORT}\b", "PORT"), (rf"\b{PORT + 1}\b", "PORT"),
    (r"/?127\.0\.0\.1|localhost", "HOST"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "UUID"),
    (r"(?<![\w-])(?!ConsumerGroupHeartbeat|AlterShareGroupOffsets|LatestCoordinatorEpoch|max-life-time-period)[A-Za-z0-9_-]{22}(?![\w-])", "ID"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d+\S*", "TIME"), (r"\b1[6-9]\d{11}\b", "TIME"),
    (r"(Epoch|HighWatermark):(\s+)\d+", r"\1:\2N"), (r"(\d+\s+ID\s+)\d+(\s+0\s+TIME)", r"\1N\2"), (r"(adminclient|consumer)-\d+", r"\1-N"),
    # in any order
    (r"\[[\w-]+\](?:, \[[\w-]+\])+", lambda options: ", ".join(sorted(options[0].split(", ")))), (r"(Valid \w+ are: |only supports operations ).*", r"\1…"),
]


def shown(run):
    """What a call printed, without what differs from run to run, stack traces, what options a tool has, and blank lines."""
    text = "\n".join(re.sub(OPTIONS, "OPTIONS\n", said, flags=re.M | re.S) for said in (run.out, run.error))
    for pattern, word in UNSTABLE:
        text = re.sub(pattern, word, text)
    noise = ("\tat ", "SLF4J", "\t... ", "WARNING:", "exit ", "ToolHost$Exit")
    lines = [re.sub(r"[ \t]+", " ", line).rstrip() for line in text.splitlines() if line.strip() and not line.startswith(noise)]
    return [f"= {run.code}", *lines]


def call(line):
    words, _, records = line.partition(" < ")
    name, *arguments = words.format(**PLACES).split()
    server = ["--broker-list" if name == "kafka-replica-verification" else "--bootstrap-server", BOOTSTRAP]
    arguments = [arguments[0], *server, *arguments[1:]] if name in AFTER_COMMAND else [*server, *arguments]
    return shown(tool(name, *arguments, stdin="".join(record + "\n" for record in records.split()), limit=40))


repeat(FILE, call)

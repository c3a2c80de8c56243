# scenario: dump-log: what Kafka's log dumpers print of segments that were filled as the fixtures is what they print of the fixtures
# tier: normal
# limit: 150
# needs: kafka-4.4.0 kafka-3.9.1 kafka-2.8.2 kafka-0.11.0.3
# against: klamm 4.4.0
#
# The programs that filled fixtures/v2-4.4 by way of Kafka 4.4.0 fill this broker; then the files are compared, and what
# DumpLogSegments of 3.9.1 prints of them with P.dump.txt.gz. dump-log-differences.md lists what may differ, and why.
import gzip, re
from harness import *
from engine import Broker

FIXTURES = pathlib.Path(os.environ["CLIENTS"]).parents[1] / "fixtures"
JARS = pathlib.Path(os.environ["KAFKA_JARS"])
DATA = pathlib.Path(os.environ["BROKER_DIR"]) / "data"
FILES = (".index", ".log", ".snapshot", ".timeindex", ".txnindex")
SETTINGS = [("internal.segment.bytes", "4000"), ("index.interval.bytes", "300"), ("segment.index.bytes", "4096"), ("retention.ms", "-1")]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FILLED = {**{f"{codec}-create": codec for codec in CODECS}, "none-append": "none", "gzip-append": "gzip", "backwards-create": "backwards", "idempotent-create": "idempotent"}
MASKS = {  # the fields that differences.md may name
    "LogAppendTime": (r"LogAppendTime: \d+", r"LogAppendTime: …"),
    "crc": (r" crc: \d+", r" crc: …"),
    "timestamp in .timeindex": (r"(?m)^timestamp: \d+", r"timestamp: …"),
    "producerId": (r"producerId: \d+", r"producerId: …"),
}
tools = {version: Tools(version) for version in ("0.11.0.3", "2.8.2", "3.9.1", "4.4.0")}


def allowed():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in (pathlib.Path(__file__).parent / "dump-log-differences.md").read_text().splitlines() if line.startswith("| `")]
    return {(topic.strip("`"), field.strip("`")) for topic, field, _ in rows}


def fill(*arguments):
    """Runs the program that filled the fixtures, with the clients of 4.4.0."""
    classes, libs = WORK / "classes", JARS / "4.4.0/libs/*"
    subprocess.run(["javac", "-nowarn", "-encoding", "UTF-8", "-cp", libs, "-sourcepath", FIXTURES / "make", "-d", classes, FIXTURES / "make/FillV2.java"], check=True)
    subprocess.run(["java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={JARS}/4.4.0/log4j2.properties", "-cp", f"{classes}:{libs}", "FillV2", BOOTSTRAP, *arguments], check=True)


def files(folder, kinds=FILES):
    return sorted(f for f in folder.iterdir() if f.suffix in kinds)


def dump(version, wanted, *arguments):
    """The dump of many files in one run; by folder, with names relative to it."""
    run = tools[version]("kafka-dump-log", "--files", ",".join(map(str, wanted)), *arguments, limit=60)
    equal(run.code, "0", run)
    holds("Exception" not in run.error, run.error[-2000:])
    by_folder = {}
    for part in re.split(r"(?m)^(?=Dumping )", run.out.replace(f"{DATA}/", "")):
        if part.startswith("Dumping "):
            by_folder.setdefault(part.split("/")[0][len("Dumping "):], []).append(part)
    return {folder: "".join(parts) for folder, parts in by_folder.items()}


def masked(seen, wanted, topic, needed):
    """Both texts without the fields that may differ in this topic; notes those that do."""
    for field in (field for t, field in allowed() if t == topic):
        pattern, blank = MASKS[field]
        if re.findall(pattern, seen) != re.findall(pattern, wanted):
            needed.add((topic, field))
        seen, wanted = re.sub(pattern, blank, seen), re.sub(pattern, blank, wanted)
    return seen.split("\n"), wanted.split("\n")


with check("the same input"):
    for topic in FILLED:
        Broker(BOOTSTRAP).topic(topic, 1, SETTINGS + [("message.timestamp.type", "LogAppendTime")] * topic.endswith("append"))
    fill(*(f"{how}={topic}" for topic, how in FILLED.items()))
ask("stop")
for topic in FILLED:
    with check(f"{topic} has the files of the fixture" + ("" if topic.endswith("append") else ", to the byte")):
        ours, theirs = (files(parent / f"{topic}-0") for parent in (DATA, FIXTURES / "v2-4.4"))
        equal([f.name for f in ours], [f.name for f in theirs])
        equal([f.stat().st_size for f in ours], [f.stat().st_size for f in theirs], "sizes")
        if not topic.endswith("append"):
            for one, other in zip(ours, theirs):
                holds(one.read_bytes() == other.read_bytes(), f"{one.name} differs")

ours = {}
with check("kafka-dump-log 3.9.1 reads them"):
    ours = dump("3.9.1", [f for topic in FILLED for f in files(DATA / f"{topic}-0")], "--deep-iteration", "--print-data-log")
needed = set()
for topic in FILLED:
    with check(f"and prints of {topic} what it prints of the fixture"):
        theirs = gzip.decompress((FIXTURES / f"v2-4.4/{topic}-0.dump.txt.gz").read_bytes()).decode(errors="replace")
        seen, wanted = masked(ours.get(f"{topic}-0", ""), theirs, topic, needed)
        for number, (one, other) in enumerate(zip(seen, wanted), 1):
            equal(one, other, f"line {number}")
        equal(len(seen), len(wanted), "lines")
with check("each row of the differences is needed"):
    equal(allowed() - needed, set(), "rows")

for version in ("0.11.0.3", "2.8.2", "4.4.0"):
    with check(f"kafka-dump-log {version} reads them and finds the indexes sane"):
        readable = [topic for topic in FILLED if topic != "zstd-create" or version != "0.11.0.3"]
        for kinds, arguments in (((".log",), ("--deep-iteration", "--print-data-log")), ((".index", ".timeindex"), ()), ((".index",), ("--index-sanity-check",)), ((".index",), ("--verify-index-only",))):
            told = "".join(dump(version, [f for topic in readable for f in files(DATA / f"{topic}-0", kinds)], *arguments).values())
            complaints = [line for line in told.splitlines() if re.search(r"Mismatches|Non-consecutive|isvalid: false|Index timestamp|Found timestamp|out of order|not the last", line)]
            equal(complaints[:3], [], f"{kinds} {arguments}")
            holds(told.count("Dumping ") >= 9, told[:300])
finish()

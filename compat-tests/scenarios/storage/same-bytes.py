# scenario: same-bytes: the same requests leave the same segments, index entries, producer states and epochs on the disk as in Kafka 2.8.2 and 4.4.0
# tier: normal
# limit: 120
# against: klamm 2.8.2 4.4.0
#
# Requests are made by hand, so that every byte of them is fixed: small segments that roll by size, by timestamp and by full
# indexes; producers with sequences; several partitions at once; the formats before V2. What Kafka wrote is in
# same-bytes-VERSION.json; RECORD=1 with --against VERSION writes it anew. Kafka 4 takes no Produce before v3: there 2.8.2 is
# the measure, for all else 4.4.0 is, and of 2.8.2 only what stands in the logs and at which positions indexes point.
import hashlib, json, struct, zlib
from harness import *
import kwire
from engine import Broker

HERE = pathlib.Path(__file__).parent
BASE = 1_700_000_000_000
SEGMENT = "segment.bytes" if AGAINST == "2.8.2" else "internal.segment.bytes"
broker = Broker(BOOTSTRAP)


def noise(seed, length):
    """Bytes that look random and are the same in every run."""
    return b"".join(hashlib.sha256(b"%d %d" % (seed, i)).digest() for i in range(length // 32 + 1))[:length]


def records(seed, count=3):
    """Null keys, empty values, headers and timestamps that go back, as a real topic has them."""
    return [(None if (seed + i) % 3 == 0 else b"key-%d" % i, None if (seed + i) % 7 == 3 else noise(seed * 100 + i, (seed * 37 + i * 61) % 300), (i * 7) % 5 * 10,
             [(b"h", b"v"), (b"none", None)] if (seed + i) % 4 == 1 else []) for i in range(count)]


def produce(topic, batches, version=8, acks=-1):
    """Appends to partitions 0, 1, … one batch each."""
    data = [{"Index": p, "Records": b} for p, b in enumerate(batches)]
    answer = broker.call("Produce", version, {"Acks": acks, "TimeoutMs": 10000, "TopicData": [{"Name": topic, "PartitionData": data}]})
    if acks:
        equal([p["ErrorCode"] for p in answer["Responses"][0]["PartitionResponses"]], [0] * len(batches), f"Produce v{version} to {topic}")


def gzipped(batch):
    """The same V2 batch with its records in gzip, whose bytes are fixed by this side."""
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = struct.pack(">h", struct.unpack(">h", batch[21:23])[0] | 1) + batch[23:61] + pack.compress(batch[61:]) + pack.flush()
    return batch[:8] + struct.pack(">i", len(body) + 9) + batch[12:17] + struct.pack(">I", kwire.crc32c(body)) + body


def fill():
    small = [(SEGMENT, "1500"), ("index.interval.bytes", "300"), ("segment.index.bytes", "4096"), ("retention.ms", "-1")]
    forever = ("retention.ms", "-1")
    broker.topic("size", 1, small)
    broker.topic("default", 1, [forever])
    broker.topic("gzip", 1, small)
    for n in range(40):
        batch = kwire.batch(records(n, 1 + n % 5), timestamp=BASE + (n * 13 % 40) * 1000)
        produce("size", [batch], (3, 5, 7, 8)[n % 4], (-1, 1, 0)[n % 3])
        produce("default", [batch])
        produce("gzip", [gzipped(batch)])
    broker.topic("index-full", 1, [("segment.index.bytes", "48"), ("index.interval.bytes", "1"), forever])
    broker.topic("time-index-full", 1, [("segment.index.bytes", "48"), ("index.interval.bytes", "1"), forever])
    for n in range(20):
        produce("index-full", [kwire.batch(records(n), timestamp=BASE)])
        produce("time-index-full", [kwire.batch(records(n), timestamp=BASE + n * 1000)])
    broker.topic("rolls-by-time", 1, [("segment.ms", "60000"), ("index.interval.bytes", "100"), forever])
    for n, seconds in enumerate((0, 10, 59, 61, 62, 10, 130, 180, 190, 250, 100, 251, 1000)):
        produce("rolls-by-time", [kwire.batch(records(n), timestamp=BASE + seconds * 1000)])
    broker.topic("sequences", 1, small)
    for n in range(24):
        producer, turn = 1000 + n % 3, n // 3
        count = 1 + n % 2
        first = sum(1 + (producer - 1000 + 3 * t) % 2 for t in range(turn))
        produce("sequences", [kwire.batch(records(n, count), timestamp=BASE + n * 1000, pid=producer, epoch=0, seq=first)])
    produce("sequences", [kwire.batch(records(99), timestamp=BASE + 99_000, pid=1001, epoch=1, seq=0)])
    broker.topic("partitions", 3, small)
    for n in range(20):
        produce("partitions", [kwire.batch(records(n * 3 + p), timestamp=BASE + n * 1000) for p in range(1 + n % 3)])
    if AGAINST != "4.4.0":
        broker.topic("old-0", 1, small)
        broker.topic("old-1", 1, small)
        for n in range(20):
            plain = [(key, value) for key, value, *_ in records(n, 1 + n % 4)]
            produce("old-0", [kwire.message_set(plain, 0)], n % 2)
            produce("old-1", [kwire.message_set(plain, 1, BASE + n * 1000)], 2)


def files():
    """Of a log its size and digest, of all else every byte, by topic and file."""
    seen = {}
    for folder in sorted((pathlib.Path(os.environ["BROKER_DIR"]) / "data").glob("*-[0-9]*")):
        if folder.name.startswith("__"):
            continue
        of = seen[folder.name] = {}
        for file in sorted(folder.iterdir()):
            content = file.read_bytes()
            if file.suffix == ".log":
                of[file.name] = f"{len(content)} bytes, {hashlib.sha256(content).hexdigest()[:32]}"
            elif file.suffix == ".index":
                of[file.name] = [list(struct.unpack(">ii", content[i:i + 8])) for i in range(0, len(content), 8)]
            elif file.suffix == ".timeindex":
                of[file.name] = [list(struct.unpack(">qi", content[i:i + 12])) for i in range(0, len(content), 12)]
            elif file.name == "leader-epoch-checkpoint":
                of[file.name] = content.decode().split()
            elif file.name != "partition.metadata":
                of[file.name] = content.hex()
    return seen


def what_all_versions_share(partition):
    """Logs, and the positions at which index entries point."""
    return {name: [position for _, position in content] if name.endswith(".index") else content for name, content in partition.items() if name.endswith((".log", ".index"))}


with check("the requests"):
    fill()
ask("stop")
seen = files()
if os.environ.get("RECORD"):
    (HERE / f"same-bytes-{AGAINST}.json").write_text(json.dumps(seen, indent=None, separators=(",", ":")).replace('"},"', '"},\n"').replace('},"', '},\n"') + "\n")
golden = {version: json.loads((HERE / f"same-bytes-{version}.json").read_text()) for version in ("2.8.2", "4.4.0")}
for partition in golden["2.8.2"] if KLAMM else golden[AGAINST]:
    version = AGAINST if not KLAMM else "4.4.0" if partition in golden["4.4.0"] else "2.8.2"
    with check(f"{partition} as {version} wrote it"):
        there, wanted = seen.get(partition, {}), golden[version][partition]
        equal(sorted(there), sorted(wanted), "files")
        for file in wanted:
            equal(there[file], wanted[file], file)
    if KLAMM and version != "2.8.2":
        with check(f"{partition} has the batches of 2.8.2"):
            equal(what_all_versions_share(seen[partition]), what_all_versions_share(golden["2.8.2"][partition]))
finish()

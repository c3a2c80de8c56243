# scenario: odd-frames: hostile, broken and merely strange frames get what Apache Kafka gives them, and disturb nobody else
# tier: quick
# limit: 200
# broker: num.partitions=1
# against: klamm 2.8.2 4.4.0
#
# The cases are the lines of odd-frames.tsv beside this file: what is sent (hex; "/" is a pause), what 4.4.0 and 2.8.2 did,
# and which of the two Klamm follows (or, in words, what it does instead). Written by `RECORD=1` against each version.
# Compared is: each answer's bytes, but for what differs between any two brokers (see shape), and how it ends.
from concurrent.futures import ThreadPoolExecutor
from frames import *
from harness import *

TABLE = pathlib.Path(__file__).with_suffix(".tsv")
RECORD = os.environ.get("RECORD")


def sent_requests(data):
    """Correlation id, key and version of every frame that has them, in order."""
    return [(f[4:8], *struct.unpack(">hh", f[:4])) for f in split(data)[0] if len(f) >= 8]


def shape(answer, requests, cluster):
    """An answer with everything left out that differs between any two brokers: list of APIs, port, cluster id, offsets."""
    key, version = next(((k, v) for correlation, k, v in requests if correlation == answer[:4]), (None, None))
    requests[:] = [r for r in requests if r[0] != answer[:4]] + [r for r in requests if r[0] == answer[:4]][1:]
    head, body = answer[:4].hex() + " ", answer[4:]
    if key == 18 and body[:2] == b"\0\0":
        return head + "the APIs"
    if key == 3:
        for mask in (cluster.encode(), i32(PORT)):
            body = body.replace(mask, b"")
        if len(body) > 500:
            return head + "all topics"
    if key == 10:
        return head + body[:6].hex()  # the error message is in the broker's own words
    if key == 0 and len(body) > 20:
        tail = len(body) - (20 if version >= 2 else 12 if version == 1 else 8)
        offset = struct.unpack(">q", body[tail:tail + 8])[0]
        return head + body[:tail].hex() + (" no offset " if offset < 0 else " an offset ") + body[tail + 8:].hex()
    if key == 1 and len(body) > 50:
        return head + fetched(body, version)
    return head + body.hex()


def fetched(body, version):
    """Per partition of a one-topic Fetch answer: its error and whether it has records (offsets depend on the past)."""
    at = 8 if version >= 1 else 4
    at += 2 + struct.unpack(">h", body[at:at + 2])[0]
    count, at, told = struct.unpack(">i", body[at:at + 4])[0], at + 4, []
    for _ in range(count):
        partition, error = struct.unpack(">ih", body[at:at + 6])
        at += 14 + (8 if version >= 4 else 0)
        if version >= 4:
            at += 4 + 16 * max(0, struct.unpack(">i", body[at:at + 4])[0])
        size = struct.unpack(">i", body[at:at + 4])[0]
        at += 4 + max(0, size)
        told.append(f"{partition}:{error}:{'records' if size > 0 else 'none'}")
    return " ".join(told)


def react(row, cluster):
    data = [bytes.fromhex(part) for part in row["sent"].split("/")]
    wanted = wanted_of(row)
    known = None if RECORD else 0 if wanted.startswith("no answer") else len(wanted.split("; ")[0].split(", then "))
    patience = 1.2 if RECORD else 2.0 if "stays open" not in wanted or known else 0.5
    answers, rest, end = attempt(PORT, data if len(data) > 1 else data[0], 0.3 if "pause" in row["how"] else 0.002,
                                 "half-close" in row["how"], known, patience)
    requests = sent_requests(b"".join(data))
    if "brief" in row["how"]:
        order = [a[:4] for a in answers]
        return f"{len(answers)} answers {'in order' if order == sorted(order) else 'out of order'}; {end}"
    told = ", then ".join(shape(a, requests, cluster) for a in answers)
    return (told or "no answer") + (f" and {rest.hex()}" if rest else "") + "; " + end


def wanted_of(row):
    if not KLAMM:
        return row.get(AGAINST, "")
    return row.get(row["klamm"], row["klamm"])


lines = TABLE.read_text().splitlines()
names = lines[0].split("\t")
rows = [dict(zip(names, line.split("\t"))) for line in lines[1:]]
bystander = Connection(PORT)
bystander.call(metadata(4, ["odd-topic"]))
# v1's reply: node array, controller, then per topic error first; 0 when the topic has a leader
eventually(lambda: b"\0\0\0\x09odd-topic\0\0\0\0\x01\0\0" in bystander.call(metadata(1, ["odd-topic"])), "odd-topic has a leader")
bystander.call(produce(3, 1, batch()))  # something to fetch
# the group's coordinator is there: FindCoordinator v0, and OffsetFetch v1 until it answers for the group
eventually(lambda: bystander.call(request(10, 0, text("nobody")))[4:6] == i16(0), "a coordinator")
eventually(lambda: bystander.call(request(9, 1, text("nobody") + i32(1) + text("odd-topic") + i32(1) + i32(0)))[-2:] == i16(0), "the coordinator has loaded")
answer = bystander.call(metadata(4))
cluster = answer[answer.index(b"\0\x16") + 2:][:22].decode()

in_order = [row for row in rows if row["group"] == "Records"]  # these build on each other
free = [row for row in rows if row["group"] != "Records"]
with ThreadPoolExecutor(12) as pool:
    seen = dict(zip((r["case"] for r in free), pool.map(lambda r: react(r, cluster), free)))
seen.update((row["case"], react(row, cluster)) for row in in_order)

if RECORD:
    for row in rows:
        row[AGAINST] = seen[row["case"]]
    TABLE.write_text("\n".join("\t".join(x) for x in [names] + [[row.get(n, "") for n in names] for row in rows]) + "\n")
for row in rows:
    if seen[row["case"]] != wanted_of(row) and not RECORD:
        failures.append(row["case"])
        print(f"FAILED {row['group']}: {row['case']}\n  sent   {row['sent'][:160]}\n  seen   {seen[row['case']]}\n  wanted {wanted_of(row)}")
with check("a connection that was open all the time still works"):
    holds(bystander.call(api_versions(0, 99))[:6] == i32(99) + b"\0\0", "no answer")
print(f"{len(rows) - len(failures)} of {len(rows)} cases as {'Apache Kafka' if KLAMM else 'recorded'}")
finish()

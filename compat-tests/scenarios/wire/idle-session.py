# scenario: idle-session: a steady fetch session over a thousand idle partitions costs under 100 bytes each way, and wakes for one record
# tier: quick
# limit: 90
from frames import *
from harness import *

PARTITIONS = 1000


def fetch(session, epoch, partitions=(), wait=100):
    """Fetch v11 in a session (KIP-227): the answer's session and its partitions as number -> (error, bytes of records)."""
    parts = b"".join(i32(p) + i32(-1) + i64(0) + i64(-1) + i32(1 << 20) for p in partitions)
    topics = i32(1) + text("many") + i32(len(partitions)) + parts if partitions else i32(0)
    sent, received = connection.sent, connection.received
    body = i32(-1) + i32(wait) + i32(1) + i32(50 << 20) + b"\0" + i32(session) + i32(epoch) + topics + i32(0) + text("")
    answer = connection.call(request(1, 11, body))
    error, session = struct.unpack(">hi", answer[8:14])
    equal(error, 0, "error")
    seen, at = {}, 18
    for _ in range(struct.unpack(">i", answer[14:18])[0]):
        at += 2 + struct.unpack(">h", answer[at:at + 2])[0]
        count, at = struct.unpack(">i", answer[at:at + 4])[0], at + 4
        for _ in range(count):
            partition, failed = struct.unpack(">ih", answer[at:at + 6])
            at += 6 + 8 + 8 + 8
            at += 4 + 16 * max(0, struct.unpack(">i", answer[at:at + 4])[0]) + 4
            size = struct.unpack(">i", answer[at:at + 4])[0]
            at += 4 + max(0, size)
            seen[partition] = (failed, max(0, size))
    return session, seen, connection.sent - sent, connection.received - received


connection = Connection(PORT)
creation = request(19, 2, i32(1) + text("many") + i32(PARTITIONS) + i16(1) + i32(0) + i32(0) + i32(30000) + b"\0")
created = i32(1) + text("many") + i16(0) + i16(-1)
eventually(lambda: connection.call(creation)[8:] == created, "the topic")  # Kafka 2.8 listens before it knows itself
# until every partition has a leader, asked as Metadata v1: error 0, partition, leader 1
eventually(lambda: connection.call(metadata(1, ["many"])).count(b"\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1") == PARTITIONS, "leaders", 60)
with check("the first fetch opens a session and answers for every partition"):
    session, seen, _, _ = eventually(lambda: (lambda r: r if len(r[1]) == PARTITIONS and all(x == (0, 0) for x in r[1].values()) else None)(fetch(0, 0, range(PARTITIONS))), "all partitions", 30)
    holds(session > 0, f"session {session}")
with check("idle rounds cost under 100 bytes each way"):
    for epoch in range(1, 21):
        again, seen, sent, received = fetch(session, epoch, wait=20)
        equal((again, seen), (session, {}), "idle round")
        holds(sent < 100 and received < 100, f"{sent} bytes sent, {received} received")
    print(f"{sent} bytes sent, {received} received")
with check("a waiting fetch wakes for one record in one of them"):
    writer = Connection(PORT)
    threading.Timer(0.5, lambda: writer.call(produce(3, 1, batch(), "many", 777))).start()
    begin = time.time()
    _, seen, _, _ = fetch(session, 21, wait=15000)
    holds(time.time() - begin < 10, "it slept on")
    equal({p: (e, size > 0) for p, (e, size) in seen.items()}, {777: (0, True)})
finish()

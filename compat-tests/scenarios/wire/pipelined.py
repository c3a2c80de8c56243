# scenario: pipelined: hundreds of requests in one write, also behind a long poll, are all done, once and in order
# tier: quick
# limit: 60
from frames import *
from harness import *

# More than a broker may want to have under way at once, in one buffer: what it takes off it must not be forgotten.
SMALL = 400


def end(connection, topic):
    """ListOffsets v1: the end of partition 0."""
    answer = connection.call(request(2, 1, i32(-1) + i32(1) + text(topic) + i32(1) + i32(0) + i64(-1)))
    return struct.unpack(">q", answer[-8:])[0]


def ready(connection, topic):
    eventually(lambda: connection.call(metadata(1, [topic])).count(b"\0\0\0\0\0\0\0\1\0\0\0\1\0\0\0\1"), f"{topic} is there", 30)


connection = Connection(PORT)
for acks in (1, -1):
    topic = f"acks-{acks % 3}"
    ready(connection, topic)
    with check(f"{SMALL} Produce requests in one write with acks={acks} are answered in order, and all are in the log"):
        connection.send(b"".join(frame(produce(3, acks, batch(), topic, correlation=n)) for n in range(SMALL)))
        answers = [connection.answer() for _ in range(SMALL)]
        equal([struct.unpack(">i", a[:4])[0] for a in answers], list(range(SMALL)), "correlation ids")
        equal([struct.unpack(">q", a[-20:-12])[0] for a in answers], list(range(SMALL)), "offsets")
        equal(end(connection, topic), SMALL, "the end of the log")
ready(connection, "silent")
with check(f"{SMALL} with acks=0 are all in the log"):
    connection.send(b"".join(frame(produce(3, 0, batch(), "silent", correlation=n)) for n in range(SMALL)))
    equal(end(connection, "silent"), SMALL, "the end of the log")
ready(connection, "behind")
with check(f"{SMALL} behind a fetch that waits are done when it has been answered"):
    other = Connection(PORT)
    ready(other, "empty")
    other.send(frame(fetch4("empty", wait=700, correlation=SMALL)) + b"".join(frame(produce(3, 1, batch(), "behind", correlation=n)) for n in range(SMALL)))
    equal(struct.unpack(">i", other.answer()[:4])[0], SMALL, "the fetch is answered first")
    equal([struct.unpack(">i", other.answer()[:4])[0] for _ in range(SMALL)], list(range(SMALL)), "correlation ids")
    equal(end(connection, "behind"), SMALL, "the end of the log")
finish()

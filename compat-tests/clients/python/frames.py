"""Requests as bytes, written by hand and by no codec of ours, and a connection that sends them as they are."""
import socket, struct, time, zlib

h = bytes.fromhex


def i16(n): return struct.pack(">h", n)
def i32(n): return struct.pack(">i", n)
def i64(n): return struct.pack(">q", n)
def text(s): return i16(-1) if s is None else i16(len(s.encode())) + s.encode()
def compact(s): return bytes([len(s) + 1]) + s.encode()
def frame(b): return i32(len(b)) + b


def request(key, version, body=b"", correlation=7, client="odd", flexible=False):
    return i16(key) + i16(version) + i32(correlation) + text(client) + (b"\0" if flexible else b"") + body


def crc32c(b):
    c = 0xFFFFFFFF
    for x in b:
        c ^= x
        for _ in range(8):
            c = (c >> 1) ^ (0x82F63B78 if c & 1 else 0)
    return c ^ 0xFFFFFFFF


RECORD = h("0e00000001027800")  # length 7, attributes, time delta 0, offset delta 0, null key, value "x", no headers


def batch(crc=None, records=RECORD, count=1, last=0, magic=2, attributes=0, pid=-1, epoch=-1, sequence=-1, base=0, length=None, time=1700000000000):
    body = struct.pack(">hiqqqhii", attributes, last, time, time, pid, epoch, sequence, count) + records
    return i64(base) + i32(9 + len(body) if length is None else length) + i32(-1) + bytes([magic]) + struct.pack(">I", crc32c(body) if crc is None else crc) + body


def message(crc=None, magic=1):
    """A message of the formats before 0.11."""
    body = bytes([magic, 0]) + (i64(1700000000000) if magic else b"") + i32(-1) + i32(1) + b"x"
    return i64(0) + i32(len(body) + 4) + (struct.pack(">I", zlib.crc32(body)) if crc is None else i32(crc)) + body


def api_versions(version=0, correlation=7):
    return request(18, version, compact("odd") + compact("1") + b"\0" if version >= 3 else b"", correlation, flexible=version >= 3)


def metadata(version=1, topics=(), correlation=7):
    return request(3, version, i32(len(topics)) + b"".join(map(text, topics)) + (b"\1" if version >= 4 else b""), correlation)


def produce(version, acks, records, topic="odd-topic", partition=0, correlation=7):
    head = (text(None) if version >= 3 else b"") + i16(acks) + i32(1000)
    return request(0, version, head + i32(1) + text(topic) + i32(1) + i32(partition) + i32(len(records)) + records, correlation)


def fetch4(topic="odd-topic", partitions=((0, 0, 1000000),), wait=10, most=1000000, correlation=7):
    body = i32(-1) + i32(wait) + i32(1) + i32(most) + b"\0"
    parts = b"".join(i32(p) + i64(offset) + i32(size) for p, offset, size in partitions)
    return request(1, 4, body + (i32(1) + text(topic) + i32(len(partitions)) + parts if topic else i32(0)), correlation)


class Connection:
    def __init__(self, port, host="127.0.0.1"):
        self.socket = socket.create_connection((host, port), 5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent = self.received = 0

    def send(self, data):
        self.socket.sendall(data)
        self.sent += len(data)

    def answer(self, limit=40):
        """One whole answer without its length."""
        self.socket.settimeout(limit)
        n = struct.unpack(">i", self.take(4))[0]
        return self.take(n)

    def take(self, n):
        b = b""
        while len(b) < n:
            c = self.socket.recv(n - len(b))
            if not c:
                raise EOFError(f"closed after {len(b)} of {n} bytes")
            b += c
        self.received += n
        return b

    def call(self, data):
        self.send(frame(data))
        return self.answer()

    def close(self):
        self.socket.close()


def attempt(port, data, pause=0.002, half_close=False, answers=None, patience=2.0):
    """Sends a case on a connection of its own and says what came: whole answers, what was left over, how it ended.
    Where `answers` are known to come, it waits only a moment for more after them."""
    c = Connection(port)
    got, end = b"", "stays open"
    try:
        parts = data if isinstance(data, list) else [data]
        for part in parts:
            c.send(part)
            if len(parts) > 1:
                time.sleep(pause)
        if half_close:
            c.socket.shutdown(socket.SHUT_WR)
        deadline = time.time() + patience
        while True:
            c.socket.settimeout(max(0.01, deadline - time.time()))
            chunk = c.socket.recv(65536)
            if not chunk:
                end = "closed"
                break
            got += chunk
            if answers is not None and len(split(got)[0]) >= answers:
                deadline = min(deadline, time.time() + 0.3)
    except socket.timeout:
        pass
    except (ConnectionResetError, BrokenPipeError):
        end = "closed"
    c.close()
    return *split(got), end


def split(got):
    """Whole frames without their lengths, and what is left over."""
    frames = []
    while len(got) >= 4:
        n = struct.unpack(">i", got[:4])[0]
        if n < 0 or len(got) < 4 + n:
            break
        frames.append(got[4:4 + n])
        got = got[4 + n:]
    return frames, got

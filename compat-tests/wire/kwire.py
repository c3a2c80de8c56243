"""A Kafka client of bytes, driven by src/protocol/schema: any API, any version, plain dicts in and out."""
import glob, json, os, socket, struct, zlib

SCHEMA = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../src/protocol/schema')
APIS = {}
for path in glob.glob(SCHEMA + '/wire/[0-9]*.json'):
    d = json.load(open(path))
    APIS[d['name']] = d
BY_KEY = {d['key']: d for d in APIS.values()}
P = {'int8': 'b', 'int16': 'h', 'uint16': 'H', 'int32': 'i', 'uint32': 'I', 'int64': 'q', 'float64': 'd'}


def within(v, s):
    if s in (None, 'none'):
        return False
    if s.endswith('+'):
        return v >= int(s[:-1])
    if '-' in s:
        a, b = s.split('-')
        return int(a) <= v <= int(b)
    return v == int(s)


def span(s):
    a, _, b = s.partition('-')
    return int(a), int(b or a)


class Reader:
    def __init__(self, b):
        self.b, self.p = b, 0

    def take(self, n):
        if n < 0 or self.p + n > len(self.b):
            raise ValueError(f'past the end at {self.p}+{n} of {len(self.b)}')
        x = self.b[self.p:self.p + n]
        self.p += n
        return x

    def num(self, f):
        return struct.unpack('>' + f, self.take(struct.calcsize('>' + f)))[0]

    def uvarint(self):
        r = sh = 0
        while True:
            c = self.take(1)[0]
            r |= (c & 127) << sh
            sh += 7
            if c < 128:
                return r


def uvarint(n):
    o = b''
    while n > 127:
        o += bytes([n & 127 | 128])
        n >>= 7
    return o + bytes([n])


def default(f, v):
    d, t = f.get('default'), f['type']
    if t.startswith('[]'):
        return None if d == 'null' else []
    if t in P:
        if d is None:
            return 0
        return float(d) if t == 'float64' else int(str(d), 0)
    if t == 'bool':
        return str(d).lower() == 'true'
    if t == 'uuid':
        return '00' * 16
    if t == 'string':
        return None if d == 'null' else (d or '')
    if t in ('bytes', 'records'):
        return None if d == 'null' or (t == 'records' and within(v, f.get('nullable'))) else b''
    if d == 'null':
        return None
    return {}


def enc_value(x, f, t, v, flex, element=False):
    if t in P:
        return struct.pack('>' + P[t], x)
    if t == 'bool':
        return struct.pack('b', 1 if x is True else 0 if x is False else x)
    if t == 'uuid':
        return bytes.fromhex(x)
    compact = flex and f.get('flexibleVersions') != 'none'
    if t in ('string', 'bytes', 'records'):
        b = x.encode('utf-8', 'surrogateescape') if isinstance(x, str) else x
        if compact:
            return uvarint(0) if b is None else uvarint(len(b) + 1) + b
        h = '>h' if t == 'string' else '>i'
        return struct.pack(h, -1) if b is None else struct.pack(h, len(b)) + b
    if t.startswith('[]'):
        if x is None:
            return uvarint(0) if flex else struct.pack('>i', -1)
        head = uvarint(len(x) + 1) if flex else struct.pack('>i', len(x))
        return head + b''.join(enc_value(y, f, t[2:], v, flex, True) for y in x)
    if within(v, f.get('nullable')) and not element:
        if x is None:
            return b'\xff'
        return b'\x01' + enc_struct(x, f['fields'], v, flex)
    return enc_struct(x or {}, f['fields'], v, flex)


def enc_struct(x, fields, v, flex):
    o = b''
    for f in fields:
        if within(v, f['versions']) and not within(v, f.get('tagged')):
            o += enc_value(x[f['name']] if f['name'] in x else default(f, v), f, f['type'], v, flex)
    if flex:
        tags = []
        for f in fields:
            if within(v, f.get('tagged')) and f['name'] in x and x[f['name']] != default(f, v):
                tags.append((f['tag'], enc_value(x[f['name']], f, f['type'], v, flex)))
        tags.sort()
        o += uvarint(len(tags)) + b''.join(uvarint(t) + uvarint(len(b)) + b for t, b in tags)
    return o


def dec_value(r, f, t, v, flex, element=False):
    if t in P:
        return r.num(P[t])
    if t == 'bool':
        return r.num('b') != 0
    if t == 'uuid':
        return r.take(16).hex()
    compact = flex and f.get('flexibleVersions') != 'none'
    if t in ('string', 'bytes', 'records'):
        n = r.uvarint() - 1 if compact else r.num('h') if t == 'string' else r.num('i')
        if n < 0:
            return None
        b = r.take(n)
        return b.decode('utf-8', 'surrogateescape') if t == 'string' else b
    if t.startswith('[]'):
        n = r.uvarint() - 1 if flex else r.num('i')
        return None if n < 0 else [dec_value(r, f, t[2:], v, flex, True) for _ in range(n)]
    if within(v, f.get('nullable')) and not element and r.num('b') < 0:
        return None
    return dec_struct(r, f['fields'], v, flex)


def dec_struct(r, fields, v, flex):
    o = {}
    for f in fields:
        if within(v, f['versions']):
            o[f['name']] = dec_value(r, f, f['type'], v, flex) if not within(v, f.get('tagged')) else default(f, v)
    if flex:
        tags = {f['tag']: f for f in fields if within(v, f.get('tagged'))}
        for _ in range(r.uvarint()):
            t, b = r.uvarint(), None
            b = r.take(r.uvarint())
            if t in tags:
                o[tags[t]['name']] = dec_value(Reader(b), tags[t], tags[t]['type'], v, flex)
            else:
                o.setdefault('_unknown_tags', []).append((t, b.hex()))
    return o


def request(api, v, body, corr=1, client='bar'):
    d = APIS[api]
    flex = within(v, d['request']['flexible'])
    c = client.encode() if client is not None else None
    head = struct.pack('>hhi', d['key'], v, corr) + (struct.pack('>h', -1) if c is None else struct.pack('>h', len(c)) + c)
    return head + (b'\0' if flex else b'') + enc_struct(body, d['request']['fields'], v, flex)


def response(api, v, frame):
    d = APIS[api]
    flex = within(v, d['response']['flexible'])
    r = Reader(frame)
    corr = r.num('i')
    if flex and api != 'ApiVersions':
        for _ in range(r.uvarint()):
            r.uvarint(); r.take(r.uvarint())
    start = r.p
    try:
        o = dec_struct(r, d['response']['fields'], v, flex)
    except ValueError:
        if api != 'ApiVersions':
            raise
        r.p = start  # an unsupported version is answered as v0
        o = dec_struct(r, d['response']['fields'], 0, False)
    if r.p != len(frame):
        o['_rest'] = frame[r.p:].hex()
    return corr, o


class Closed(Exception):
    pass


class Connection:
    def __init__(self, bootstrap, timeout=10):
        host, port = bootstrap.rsplit(':', 1)
        self.s = socket.create_connection((host, int(port)), timeout)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.corr = 0

    def read(self, n):
        b = b''
        while len(b) < n:
            try:
                c = self.s.recv(n - len(b))
            except ConnectionResetError:
                c = b''
            if not c:
                raise Closed()
            b += c
        return b

    def send(self, frame):
        try:
            self.s.sendall(struct.pack('>i', len(frame)) + frame)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed()

    def receive(self):
        return self.read(struct.unpack('>i', self.read(4))[0])

    def call(self, api, v, body=None, client='bar'):
        self.corr += 1
        self.send(request(api, v, body or {}, self.corr, client))
        corr, o = response(api, v, self.receive())
        assert corr == self.corr, f'correlation id {corr}, sent {self.corr}'
        return o

    def close(self):
        self.s.close()


def crc32c(data, _t=[]):
    if not _t:
        for i in range(256):
            c = i
            for _ in range(8):
                c = (c >> 1) ^ 0x82F63B78 if c & 1 else c >> 1
            _t.append(c)
    c = 0xFFFFFFFF
    for b in data:
        c = _t[(c ^ b) & 255] ^ (c >> 8)
    return c ^ 0xFFFFFFFF


def varint(n):
    n = (n << 1) ^ (n >> 63)
    return uvarint(n & (1 << 64) - 1)


def batch(records, base=0, timestamp=1_700_000_000_000, pid=-1, epoch=-1, seq=-1, attributes=0, leader_epoch=-1):
    """A V2 batch of (key, value[, timestamp delta[, headers]])."""
    body = b''
    top = 0
    for i, rec in enumerate(records):
        key, value = rec[0], rec[1]
        dt = rec[2] if len(rec) > 2 else 0
        headers = rec[3] if len(rec) > 3 else []
        top = max(top, dt)
        r = b'\0' + varint(dt) + varint(i)
        for x in (key, value):
            r += varint(-1) if x is None else varint(len(x)) + x
        r += varint(len(headers))
        for n, x in headers:
            r += varint(len(n)) + n + (varint(-1) if x is None else varint(len(x)) + x)
        body += varint(len(r)) + r
    n = len(records)
    tail = struct.pack('>hiqqqhii', attributes, n - 1, timestamp, timestamp + top, pid, epoch, seq, n) + body
    return struct.pack('>qiib', base, len(tail) + 9, leader_epoch, 2) + struct.pack('>I', crc32c(tail)) + tail


def message_set(records, magic=1, timestamp=1_700_000_000_000):
    """An uncompressed message set of V0 or V1."""
    o = b''
    for i, (key, value) in enumerate(records):
        m = struct.pack('>bb', magic, 0) + (struct.pack('>q', timestamp + i) if magic else b'')
        for x in (key, value):
            m += struct.pack('>i', -1) if x is None else struct.pack('>i', len(x)) + x
        m = struct.pack('>I', zlib.crc32(m)) + m
        o += struct.pack('>qi', i, len(m)) + m
    return o

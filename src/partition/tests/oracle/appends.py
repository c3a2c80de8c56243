#!/usr/bin/env python3
"""Asks a real Apache Kafka what it stores of what clients of every age send, and writes appends-VERSION.jsonl.

    appends.py 2.8.2|4.4.0 PORT FOLDER [TOPIC…]

starts that Kafka on 127.0.0.1:PORT (and PORT+1) with its data in FOLDER. Each topic is one line: its settings, then for
each append the name of what was sent, the version of the Produce, the answer and the clock, then the segment and its
indexes in hexadecimal, as they were after a clean stop. The first line holds what was sent, by name. 4.4.0 is asked
only what it still serves: format V2 and Produce from v3 on.
"""
import json, pathlib, struct, subprocess, sys, time, zlib

HERE = pathlib.Path(__file__).resolve().parent
COMPAT = HERE / '../../../../compat-tests'
sys.path.insert(0, str(COMPAT / 'wire'))
from kwire import Connection, batch, crc32c  # noqa: E402

T0 = 1_700_000_000_000
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


# --- codecs, in the plainest form that a decoder takes ---

def gzip(data):
    c = zlib.compressobj(9, zlib.DEFLATED, 31)
    return c.compress(data) + c.flush()


def snappy_raw(data):
    assert 60 < len(data) <= 65536
    length, n = b'', len(data)
    while n > 127:
        length, n = length + bytes([n & 127 | 128]), n >> 7
    return length + bytes([n]) + bytes([61 << 2]) + struct.pack('<H', len(data) - 1) + data


def snappy(data):
    block = snappy_raw(data)
    return b'\x82SNAPPY\0' + struct.pack('>iii', 1, 1, len(block)) + block


def lz4(data, checksum=b'\x82'):
    return b'\x04\x22\x4d\x18\x60\x40' + checksum + struct.pack('<I', len(data) | 1 << 31) + data + b'\0\0\0\0'


def lz4_of_old(data):
    return lz4(data, b'\x1a')  # the checksum covers the magic number too


def zstd(data):
    size = struct.pack('<H', len(data) - 256) if len(data) >= 256 else bytes([len(data)])
    return b'\x28\xb5\x2f\xfd' + (b'\x60' if len(data) >= 256 else b'\x20') + size + struct.pack('<I', len(data) << 3 | 1)[:3] + data


# --- batches ---

def message(magic, offset, key, value, timestamp=T0, attributes=0, crc=None):
    m = struct.pack('>bb', magic, attributes) + (struct.pack('>q', timestamp) if magic else b'')
    for x in (key, value):
        m += struct.pack('>i', -1) if x is None else struct.pack('>i', len(x)) + x
    m = struct.pack('>I', zlib.crc32(m) if crc is None else crc) + m
    return struct.pack('>qi', offset, len(m)) + m


THREE = [(b'key-1', b'the first value', T0 + 5), (b'key-2', b'the second value', T0 + 9), (b'key-3', b'the third value', T0 + 7)]


def messages(magic, offsets=(0, 1, 2), records=THREE):
    return b''.join(message(magic, o, k, v, t) for o, (k, v, t) in zip(offsets, records))


def wrapper(magic, codec, pack, inner=None, offset=2, timestamp=T0 + 9, attributes=0):
    return message(magic, offset, None, pack(messages(magic) if inner is None else inner), timestamp, codec | attributes)


def compressed(codec, pack, records, **more):
    plain = batch(records, attributes=codec, **more)
    b = plain[:61] + pack(plain[61:])
    return b[:8] + struct.pack('>i', len(b) - 12) + b[12:17] + struct.pack('>I', crc32c(b[21:])) + b[21:]


def broken(b, at, new):
    b = b[:at] + new + b[at + len(new):]
    return b[:17] + struct.pack('>I', crc32c(b[21:])) + b[21:]


V2 = [(k, v, t - T0) for k, v, t in THREE]
NULL_KEYS = [(b'key-1', b'v'), (None, b'without a key'), (b'key-3', None), (None, None)]
CODECS = [('gzip', GZIP, gzip), ('snappy', SNAPPY, snappy), ('raw snappy', SNAPPY, snappy_raw)]

# What is sent: name: (versions of the Produce, bytes)
INPUTS = {}
for magic, versions in ((0, (0, 2)), (1, (2, 1))):
    def add(name, data, versions=versions):
        INPUTS[f'v{magic} {name}'] = (versions, data)
    add('one', message(magic, 0, b'k', b'v', T0 + 1))
    add('three', messages(magic))
    add('null key and value', message(magic, 0, None, None, T0 + 2), versions[:1])
    add('offsets from 40', messages(magic, (40, 41, 42)), versions[:1])
    for name, codec, pack in CODECS + [('lz4', LZ4, lz4_of_old if magic == 0 else lz4), ('lz4 with the other checksum', LZ4, lz4 if magic == 0 else lz4_of_old)]:
        add(name, wrapper(magic, codec, pack), versions[:1])
    add('gzip of offsets 0', wrapper(magic, GZIP, gzip, messages(magic, (0, 0, 0)), 0), versions[:1])
    add('gzip of absolute offsets', wrapper(magic, GZIP, gzip, messages(magic, (70, 71, 72)), 72), versions[:1])
    add('gzip of two', wrapper(magic, GZIP, gzip, messages(magic, (0, 1)), 1), versions[:1])
    add('gzip of wrong checksums', wrapper(magic, GZIP, gzip, message(magic, 0, b'k', b'v', crc=5)), versions[:1])
    add('gzip of the other format', wrapper(magic, GZIP, gzip, messages(1 - magic)), versions[:1])
    add('gzip of null keys', wrapper(magic, GZIP, gzip, messages(magic, (0, 1, 2), [(None, b'v', T0), (b'k', b'w', T0), (None, None, T0)])), versions[:1])
    add('gzip twice', wrapper(magic, GZIP, gzip) * 2, versions[:1])
    add('gzip in gzip', wrapper(magic, GZIP, gzip, wrapper(magic, GZIP, gzip)), versions[:1])
    add('one and gzip', message(magic, 0, b'k', b'v') + wrapper(magic, GZIP, gzip), versions[:1])
    add('zstd', wrapper(magic, ZSTD, zstd), versions[:1])
    add('wrong checksum', message(magic, 0, b'k', b'v', crc=5), versions[:1])
    add('cut off', message(magic, 0, b'k', b'v')[:-1], versions[:1])
    add('one and one cut off', message(magic, 0, b'k', b'v') + message(magic, 1, b'k', b'w')[:-1], versions[:1])
INPUTS['v1 without a time'] = ((2,), message(1, 0, b'k', b'v', -1))
INPUTS['v1 time -5'] = ((2,), message(1, 0, b'k', b'v', -5))
INPUTS['v1 with an append time'] = ((2,), message(1, 0, b'k', b'v', T0, 8))
INPUTS['v1 gzip with an append time'] = ((2,), wrapper(1, GZIP, gzip, attributes=8))
INPUTS['v1 gzip with a wrong time'] = ((2,), wrapper(1, GZIP, gzip, timestamp=T0 + 77))
INPUTS['v1 and v0'] = ((2,), message(1, 0, b'k', b'v') + message(0, 1, b'k', b'v'))
for name, data in {
    'one': batch([(b'k', b'v')], timestamp=T0 + 1),
    'three': batch(V2),
    'null keys': batch(NULL_KEYS),
    'headers': batch([(b'k', b'v', 0, [(b'h', b'x'), (b'', None)])]),
    'without a time': batch([(b'k', b'v')], timestamp=-1),
    'time -5': batch([(b'k', b'v')], timestamp=-5),
    'times -5 and now': batch([(b'k', b'v', 0), (b'k', b'v', 5 + T0)], timestamp=-5),
    'time in 2100': batch([(b'k', b'v', 0), (b'k', b'w', 4102444800000 - T0)]),
    'gzip': compressed(GZIP, gzip, V2),
    'gzip of null keys': compressed(GZIP, gzip, NULL_KEYS),
    'snappy': compressed(SNAPPY, snappy, V2),
    'raw snappy': compressed(SNAPPY, snappy_raw, V2),
    'lz4': compressed(LZ4, lz4, V2),
    'lz4 with the other checksum': compressed(LZ4, lz4_of_old, V2),
    'zstd': compressed(ZSTD, zstd, V2),
    'gzip with a wrong largest time': broken(compressed(GZIP, gzip, V2), 35, struct.pack('>q', T0 + 500)),
    'a wrong largest time': broken(batch(V2), 35, struct.pack('>q', T0 + 500)),
    'leader epoch 9': batch(V2, leader_epoch=9),
    'base offset 7': struct.pack('>q', 7) + batch(V2)[8:],
    'with an append time': batch(V2, attributes=8),
    'control': batch([(b'\0\0\0\1', b'\0\0\0\0\0\0')], attributes=32),
    'idempotent': batch(V2, pid=4711, epoch=0, seq=0),
    'idempotent, gzip': compressed(GZIP, gzip, V2, pid=4711, epoch=0, seq=3),
    'count of 4': broken(batch(V2), 57, struct.pack('>i', 4)),
    'gzip with a count of 4': broken(compressed(GZIP, gzip, V2), 57, struct.pack('>i', 4)),
    'unknown codec': broken(batch(V2), 21, struct.pack('>h', 5)),
}.items():
    INPUTS[f'v2 {name}'] = ((8,), data)
INPUTS['v2 zstd in an old request'] = ((6,), INPUTS['v2 zstd'][1])
INPUTS['v2 three in an old request'] = ((3,), INPUTS['v2 three'][1])
INPUTS['v2 in a request of v2'] = ((2,), INPUTS['v2 three'][1])

FORMATS = {0: '0.9.0', 1: '0.10.2', 2: None}


def topics(version):
    for magic in (0, 1, 2) if version == '2.8.2' else (2,):
        for codec in (None, 'uncompressed', 'gzip', 'snappy', 'lz4', 'zstd'):
            yield magic, 'CreateTime', codec, False
        for codec in (None, 'gzip'):
            yield magic, 'LogAppendTime', codec, False
        yield magic, 'CreateTime', None, True


def name_of(magic, timestamp_type, codec, compacted):
    return f'v{magic}-{timestamp_type}-{codec or "producer"}' + ('-compacted' if compacted else '')


def oracle(*words):
    return subprocess.run([COMPAT / 'oracle/kafka', *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def create(connection, topic):
    magic, timestamp_type, codec, compacted = topic
    configs = {'retention.ms': '-1', 'index.interval.bytes': '100', 'message.timestamp.type': timestamp_type}
    if FORMATS[magic]:
        configs['message.format.version'] = FORMATS[magic]
    if codec:
        configs['compression.type'] = codec
    if compacted:
        configs['cleanup.policy'] = 'compact'
    request = {'Topics': [{'Name': name_of(*topic), 'NumPartitions': 1, 'ReplicationFactor': 1, 'Configs': [{'Name': k, 'Value': v} for k, v in configs.items()]}], 'timeoutMs': 30000}
    answer = connection.call('CreateTopics', 4, request)
    while answer['Topics'][0]['ErrorCode'] == 38:  # the broker has not registered yet
        time.sleep(0.2)
        answer = connection.call('CreateTopics', 4, request)
    assert answer['Topics'][0]['ErrorCode'] == 0, answer


def produce(connection, topic, version, data):
    now = time.time_ns() // 1_000_000
    body = {'Acks': 1, 'TimeoutMs': 5000, 'TopicData': [{'Name': topic, 'PartitionData': [{'Index': 0, 'Records': data}]}]}
    answer = connection.call('Produce', version, body)['Responses'][0]['PartitionResponses'][0]
    return {
        'now': max(now, answer.get('LogAppendTimeMs', -1)), 'error': answer['ErrorCode'], 'base_offset': answer['BaseOffset'], 'log_append_time': answer.get('LogAppendTimeMs', -1),
        'message': answer.get('ErrorMessage'), 'record_errors': [[e['BatchIndex'], e['BatchIndexErrorMessage']] for e in answer.get('RecordErrors', [])],
    }


def appends(connection, version, topic):
    for name, (versions, data) in INPUTS.items():
        for v in versions:
            if version == '4.4.0' and v < 3:
                continue
            if topic[1] == 'LogAppendTime':
                v = max(v, 2)  # below, the answer does not tell the time
            yield {'input': name, 'version': v, **produce(connection, name_of(*topic), v, data)}


def entries(path, size):
    content = path.read_bytes() if path.exists() else b''
    while content and not any(content[-size:]):
        content = content[:-size]
    return content.hex()


def main(version, port, folder):
    oracle('start', version, port, folder)
    connection = Connection(f'127.0.0.1:{port}', 60)
    told = []
    try:
        for topic in topics(version):
            create(connection, topic)
        time.sleep(5)
        for topic in topics(version):
            told.append((topic, list(appends(connection, version, topic))))
    finally:
        oracle('stop', folder)
    with open(HERE / f'appends-{version}.jsonl', 'w') as out:
        sent = {name for _, all_of_it in told for name in (a['input'] for a in all_of_it)}
        print(json.dumps({name: data.hex() for name, (_, data) in INPUTS.items() if name in sent}), file=out)
        for topic, all_of_it in told:
            data = pathlib.Path(folder) / 'data' / (name_of(*topic) + '-0')
            segment = data / ('0' * 20)
            magic, timestamp_type, codec, compacted = topic
            print(json.dumps({
                'magic': magic, 'timestamp_type': timestamp_type, 'compression': codec, 'compacted': compacted, 'appends': all_of_it,
                'log': segment.with_suffix('.log').read_bytes().hex(), 'index': entries(segment.with_suffix('.index'), 8), 'timeindex': entries(segment.with_suffix('.timeindex'), 12),
            }), file=out)


main(*sys.argv[1:4])

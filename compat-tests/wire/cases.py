"""What is asked of every broker: per API a valid body and, one line each, what is changed in it.

`API(name, body, before, edges=…, skip=…, cases=…)`: `body` may refer to the state `s` (its unique name, ids of topics,
answers so far); `before` are steps that set a case's own state up. Every version is asked the valid body, then the
body with each field at the edges of its type (except fields in `skip`), then each of `cases`: a patch (a dict of field
to value) or a list of steps, in which `ME` stands for the version under test.
"""
import struct
from engine import T0, UNKNOWN_ID, ZERO
from kwire import batch, crc32c, message_set

ME = None
MAX = {'int8': 127, 'int16': 2**15 - 1, 'int32': 2**31 - 1, 'int64': 2**63 - 1}
LONG = 'x' * 250
NO_SUCH = {'Topic': 'no-such', 'Name': 'no-such', 'TopicId': UNKNOWN_ID}

KEEP = ('retention.ms', '-1')  # the records' time is fixed, and so in the past

FIXTURES = {
    # name: (partitions, configs, batches in partition 0)
    'plain': (2, (KEEP,), [batch([(b'k', b'a'), (b'k', b'b', 5)], timestamp=T0 + i * 1000) for i in range(3)]),
    'empty': (1, (), []),
    'sink': (1, (KEEP,), []),
    'configured': (1, (('retention.ms', '86400000'), ('cleanup.policy', 'compact,delete'), ('max.message.bytes', '2000')), []),
    'append-time': (1, (('message.timestamp.type', 'LogAppendTime'),), []),
    'trimmed': (1, (KEEP,), [batch([(b'k', b'v')], timestamp=T0 + i) for i in range(4)]),
}
GROUPS = ('with-offsets', 'with-member')


def partitions(name='PartitionIndex', **more):
    return [{name: 0, **more}]


def by_id(name):
    return lambda s: s.ids.get(name, UNKNOWN_ID)


# --- data -----------------------------------------------------------------------------------------------------------

def records(s):
    """In the format of the version's age."""
    return batch([(b'k', b'v')], timestamp=T0) if s.version >= 3 else message_set([(b'k', b'v')], 1 if s.version == 2 else 0)


def produce(topic='sink', records=records, **more):
    return {'Acks': 1, 'TimeoutMs': 1000, 'TopicData': [{'Name': topic, 'TopicId': by_id(topic), 'PartitionData': [{'Index': 0, 'Records': records}]}], **more}


def own(s):
    return s.name


def own_produce(records=records, **more):
    return lambda s: produce(s.name, records, **more)


def broken(b, at, new, recrc=True):
    """A batch with bytes replaced, and its checksum made right again."""
    b = b[:at] + new + b[at + len(new):]
    return b[:17] + struct.pack('>I', crc32c(b[21:])) + b[21:] if recrc and at >= 21 else b


ONE = batch([(b'k', b'v')], timestamp=T0)
TWO = batch([(b'k', b'v'), (b'k', b'w', 3)], timestamp=T0)
BAD_RECORDS = {
    'no records': {'Records': b''},
    'null records': {'Records': None},
    'wrong CRC': {'Records': broken(ONE, 17, b'\1\2\3\4', False)},
    'two batches': {'Records': ONE + ONE},
    'one stray byte': {'Records': ONE + b'\0'},
    'cut off': {'Records': ONE[:-1]},
    'only the head': {'Records': ONE[:20]},
    'record count 5': {'Records': broken(ONE, 57, struct.pack('>i', 5))},
    'record count 0': {'Records': broken(ONE, 57, struct.pack('>i', 0))},
    'record count -1': {'Records': broken(ONE, 57, struct.pack('>i', -1))},
    'last offset delta 9': {'Records': broken(ONE, 23, struct.pack('>i', 9))},
    'base offset 7': {'Records': struct.pack('>q', 7) + ONE[8:]},
    'magic 3': {'Records': broken(ONE, 16, b'\3', False)},
    'magic -1': {'Records': broken(ONE, 16, b'\xff', False)},
    'batch length 10': {'Records': broken(ONE, 8, struct.pack('>i', 10), False)},
    'batch length max': {'Records': broken(ONE, 8, struct.pack('>i', 2**31 - 1), False)},
    'batch length -1': {'Records': broken(ONE, 8, struct.pack('>i', -1), False)},
    'unknown codec': {'Records': broken(ONE, 21, struct.pack('>h', 7))},
    'gzip of nothing': {'Records': broken(ONE, 21, struct.pack('>h', 1))},
    'snappy of nothing': {'Records': broken(ONE, 21, struct.pack('>h', 2))},
    'lz4 of nothing': {'Records': broken(ONE, 21, struct.pack('>h', 3))},
    'zstd of nothing': {'Records': broken(ONE, 21, struct.pack('>h', 4))},
    'log append time from a client': {'Records': broken(ONE, 21, struct.pack('>h', 8))},
    'control batch': {'Records': broken(ONE, 21, struct.pack('>h', 32))},
    'transactional without an id': {'Records': broken(ONE, 21, struct.pack('>h', 16))},
    'delete horizon flag': {'Records': broken(ONE, 21, struct.pack('>h', 64))},
    'unused attributes': {'Records': broken(ONE, 21, struct.pack('>h', 0x4000))},
    'time in 2100': {'Records': batch([(b'k', b'v')], timestamp=4102444800000)},
    'time -1': {'Records': batch([(b'k', b'v')], timestamp=-1)},
    'time -5': {'Records': batch([(b'k', b'v')], timestamp=-5)},
    'leader epoch 9 in the batch': {'Records': batch([(b'k', b'v')], timestamp=T0, leader_epoch=9)},
    'producer id without a sequence': {'Records': batch([(b'k', b'v')], timestamp=T0, pid=77, epoch=0)},
    'sequence without a producer id': {'Records': batch([(b'k', b'v')], timestamp=T0, seq=3)},
    'producer epoch -1': {'Records': batch([(b'k', b'v')], timestamp=T0, pid=77, epoch=-1, seq=0)},
    'too large': {'Records': batch([(b'k', b'v' * 1_100_000)], timestamp=T0)},
    'null key and value': {'Records': batch([(None, None)], timestamp=T0)},
    'headers': {'Records': batch([(b'k', b'v', 0, [(b'h', b'x'), (b'', None)])], timestamp=T0)},
    'message v0': {'Records': message_set([(b'k', b'v')], 0)},
    'message v1': {'Records': message_set([(b'k', b'v')], 1)},
    'two messages v1': {'Records': message_set([(b'k', b'v'), (None, b'w')], 1)},
    'message v1 wrong CRC': {'Records': broken(message_set([(b'k', b'v')], 1), 12, b'\1\2\3\4', False)},
    'record length wrong': {'Records': broken(ONE, 61, b'\x02')},
    'a null key for a compacted topic': {'Name': 'configured', 'TopicId': by_id('configured'), 'Records': batch([(None, b'v')], timestamp=T0)},
    'too large for its topic': {'Name': 'configured', 'TopicId': by_id('configured'), 'Records': batch([(b'k', b'v' * 3000)], timestamp=T0)},
    'log append time': {'Name': 'append-time', 'TopicId': by_id('append-time')},
}


def idempotent(seq, pid=9000, epoch=0, count=1):
    return own_produce(batch([(b'k', b'v')] * count, timestamp=T0, pid=pid, epoch=epoch, seq=seq))


def topic(partitions=1, configs=(KEEP,), records=()):
    return ('@topic', own, partitions, configs, records)


def fetch(topic='plain', offset=0, **more):
    return {
        'ReplicaId': -1, 'MaxWaitMs': 0, 'MinBytes': 0, 'MaxBytes': 1 << 20, 'IsolationLevel': 0,
        'Topics': [{'Topic': topic, 'TopicId': by_id(topic), 'Partitions': [{'Partition': 0, 'FetchOffset': offset, 'PartitionMaxBytes': 1 << 20}]}],
        'ForgottenTopicsData': [], **more}


def session(s, epoch, topics=()):
    """The next request of the session that the first answer opened."""
    first = s.answers[0]
    return fetch(SessionId=first.get('SessionId', 0) if isinstance(first, dict) else 0, SessionEpoch=epoch, Topics=list(topics))


def patch_partition(body, partition):
    body['Topics'][0]['Partitions'][0]['Partition'] = partition
    return body


def trim(s, offset):
    return {'Topics': [{'Name': s.name, 'Partitions': [{'PartitionIndex': 0, 'Offset': offset}]}], 'TimeoutMs': 1000}


def list_offsets(topic='plain', timestamp=-1, **more):
    return {'ReplicaId': -1, 'Topics': [{'Name': topic, 'Partitions': [{'PartitionIndex': 0, 'Timestamp': timestamp, 'MaxNumOffsets': 10}]}], **more}


def epochs(topic='plain', epoch=0, **more):
    return {'ReplicaId': -1, 'Topics': [{'Topic': topic, 'Partitions': [{'Partition': 0, 'LeaderEpoch': epoch}]}], **more}


# --- groups ---------------------------------------------------------------------------------------------------------

def join(s, member='', **more):
    return {'GroupId': s.name, 'SessionTimeoutMs': 60000, 'RebalanceTimeoutMs': 60000, 'MemberId': member, 'ProtocolType': 'consumer', 'Protocols': [{'Name': 'range', 'Metadata': b'\1\2'}], **more}


def sync(s, **more):
    return {'GroupId': s.name, 'GenerationId': 1, 'MemberId': s.member(), 'ProtocolType': 'consumer', 'ProtocolName': 'range', 'Assignments': [{'MemberId': s.member(), 'Assignment': b'\7'}], **more}


JOINED = [('JoinGroup', 3, join)]
SYNCED = JOINED + [('SyncGroup', 2, sync)]


def commit(s, group=None, **more):
    return {'GroupId': group or s.name, 'GenerationIdOrMemberEpoch': -1, 'MemberId': '', 'RetentionTimeMs': -1, 'Topics': [
        {'Name': 'plain', 'TopicId': by_id('plain'), 'Partitions': [{'PartitionIndex': 0, 'CommittedOffset': 3, 'CommittedLeaderEpoch': 0, 'CommitTimestamp': -1, 'CommittedMetadata': 'm'}]}], **more}


def patched_commit(s, **fields):
    body = commit(s)
    body['Topics'][0]['Partitions'][0].update(fields)
    return body


COMMITTED = [('OffsetCommit', 5, commit)]


def offset_fetch(group, topics='plain', asked=(0,), **more):
    topics_ = None if topics is None else [{'Name': topics, 'TopicId': by_id(topics), 'PartitionIndexes': list(asked)}]
    return {'GroupId': group, 'Topics': topics_, 'Groups': [{'GroupId': group, 'MemberId': None, 'MemberEpoch': -1, 'Topics': topics_}], **more}


# --- topics and configs ---------------------------------------------------------------------------------------------

def create(s, **more):
    return {'Topics': [{'Name': s.name, 'NumPartitions': 2, 'ReplicationFactor': 1, 'Assignments': [], 'Configs': []}], 'timeoutMs': 30000, 'validateOnly': False, **more}


ENDED = ('@pause', 0.3)  # the markers of a transaction are written behind the answer to EndTxn
APPLIED = ('@pause', 0.1)  # Kafka's brokers follow its controller in their own time


def configs(*pairs):
    return {'Configs': [{'Name': k, 'Value': v} for k, v in pairs]}


def assigned(*brokers, first=0):
    return {'Assignments': [{'PartitionIndex': first + i, 'BrokerIds': list(b)} for i, b in enumerate(brokers)]}


def alter(kind=2, name=own, pairs=(('retention.ms', '5000'),), operation=0):
    return {'Resources': [{'ResourceType': kind, 'ResourceName': name, 'Configs': [{'Name': k, 'Value': v, 'ConfigOperation': operation} for k, v in pairs]}], 'ValidateOnly': False}


def describe(kind, name, keys):
    return {'Resources': [{'ResourceType': kind, 'ResourceName': name, 'ConfigurationKeys': keys}]}


CONFIG_VALUES = [
    ('retention.ms', '-1'), ('retention.ms', '-2'), ('retention.ms', 'x'), ('retention.ms', ''), ('retention.ms', None), ('retention.ms', ' 7 '), ('retention.ms', '1.5'),
    ('retention.ms', '99999999999999999999'), ('cleanup.policy', 'compact'), ('cleanup.policy', 'delete,compact'), ('cleanup.policy', 'shred'), ('cleanup.policy', ''), ('cleanup.policy', ' delete , compact '),
    ('compression.type', 'brotli'), ('compression.type', 'ZSTD'), ('compression.type', 'gzip'), ('compression.gzip.level', '10'), ('compression.gzip.level', '-1'), ('compression.zstd.level', '99'), ('min.insync.replicas', '0'), ('min.insync.replicas', '5'), ('segment.bytes', '13'), ('segment.bytes', '1048576'), ('segment.bytes', '2147483648'),
    ('message.timestamp.type', 'Never'), ('message.timestamp.type', 'LogAppendTime'), ('unclean.leader.election.enable', 'yes'), ('unclean.leader.election.enable', 'TRUE'),
    ('no.such.key', '1'), ('', '1'), ('message.format.version', '0.10.0'), ('message.format.version', 'x'), ('message.downconversion.enable', 'true'), ('min.cleanable.dirty.ratio', '1.5'), ('min.cleanable.dirty.ratio', '0.5'),
    ('max.message.bytes', '-1'), ('flush.messages', '0'), ('leader.replication.throttled.replicas', '0:1'), ('leader.replication.throttled.replicas', 'x'), ('leader.replication.throttled.replicas', '*'),
    ('remote.storage.enable', 'true'), ('local.retention.ms', '5'), ('segment.ms', '0'), ('min.compaction.lag.ms', '-1'), ('max.compaction.lag.ms', '0'), ('file.delete.delay.ms', '-1'), ('preallocate', 'true'),
]
BROKER_VALUES = [
    ('log.retention.ms', '70000'), ('log.retention.ms', 'x'), ('log.cleaner.threads', '2'), ('log.cleaner.threads', '0'), ('node.id', '2'), ('log.dirs', '/x'), ('no.such.key', '1'),
    ('message.max.bytes', '2000000'), ('message.max.bytes', '-1'), ('num.io.threads', '9'), ('num.network.threads', '900'), ('max.connections', '5000'), ('max.connections.per.ip.overrides', 'localhost:2'),
    ('listeners', 'PLAINTEXT://127.0.0.1:1'), ('advertised.listeners', 'x'), ('background.threads', '11'), ('min.insync.replicas', '1'), ('log.segment.bytes', '1'), ('num.partitions', '7'), ('auto.create.topics.enable', 'false'),
]
GROUP_VALUES = [
    *(('consumer.session.timeout.ms', v) for v in ('45000', '60000', '44999', '60001', ' 46000 ', '0', 'x', '')), ('consumer.heartbeat.interval.ms', '4999'), ('consumer.assignment.interval.ms', '15001'), ('consumer.assignor.offload.enable', 'maybe'),
    *(('share.auto.offset.reset', v) for v in ('earliest', 'EARLIEST', 'by_duration:PT1H', 'by_duration:-PT1H')), ('share.isolation.level', 'x'), ('share.delivery.count.limit', '11'), ('share.record.lock.duration.ms', '1000'), ('share.partition.max.record.locks', '4001'), ('share.renew.acknowledge.enable', '1'),
    ('streams.num.standby.replicas', '3'), ('streams.num.warmup.replicas', '21'), ('streams.task.offset.interval.ms', '14999'), ('streams.assignor.name', 'x'), ('streams.rack.aware.assignment.tags', 'a,,b'), ('streams.rack.aware.assignment.tags', 'a,a'), ('streams.acceptable.recovery.lag', '-1'), ('errors.deadletterqueue.topic.name', '__x'), ('errors.deadletterqueue.topic.name', 'a b'), ('no.such', '1'), ('retention.ms', '1'),
]
LEVELS = [('root', v) for v in ('INFO', 'info', 'LOUD', '', None, 'OFF', ' INFO ')] + [('no.such', 'INFO'), ('no.such', 'LOUD'), ('', 'INFO')]
FREE_NAMES = ['x' * 249, 'a.b_c', 'AB', '-x', '_x', '.x']  # the last letter becomes the version, so that each is new
TOPIC_NAMES = ['', '.', '..', 'a b', 'ü', LONG, 'a/b', '__consumer_offsets', 'plain', *FREE_NAMES]


def value_cases(kind, name, values):
    word = {2: '', 8: 'logger ', 32: 'group '}[kind]
    return {f'{word}{k}={v}'[:60]: [('@topic', own), (ME, ME, alter(kind, name, ((k, v),)))] if kind == 2 else alter(kind, name, ((k, v),)) for k, v in values}


def known(s, step=0, **more):
    """The producer as an InitProducerId told."""
    answer = s.answers[step] if step < len(s.answers) and isinstance(s.answers[step], dict) else {}
    return {'TransactionalId': s.name, 'ProducerId': answer.get('ProducerId', -1), 'ProducerEpoch': answer.get('ProducerEpoch', -1), **more}


INIT = ('InitProducerId', 4, lambda s: {'TransactionalId': s.name, 'TransactionTimeoutMs': 60000})


def add(s, topic='plain', **more):
    topics, k = [{'Name': topic, 'Partitions': [0]}], known(s, **more)
    return {'Transactions': [{**k, 'VerifyOnly': False, 'Topics': topics}], **{'V3AndBelow' + name: value for name, value in k.items()}, 'V3AndBelowTopics': topics}


def verify(s, **more):
    body = add(s, **more)
    body['Transactions'][0]['VerifyOnly'] = True
    return body


def end(s, committed=True, **more):
    return {**known(s, **more), 'Committed': committed}


def txn_commit(s, **more):
    return {**known(s), 'GroupId': s.name, 'GenerationIdOrMemberEpoch': -1, 'MemberId': '', 'GroupInstanceId': None, 'Topics': [
        {'Name': 'plain', 'TopicId': by_id('plain'), 'Partitions': [{'PartitionIndex': 0, 'CommittedOffset': 3, 'CommittedLeaderEpoch': 0, 'CommittedMetadata': 'm'}]}], **more}


ADD = ('AddPartitionsToTxn', 3, add)
ADD_OFFSETS = ('AddOffsetsToTxn', 3, lambda s: known(s, GroupId=s.name))
ADD_OFFSETS_THIRD = ('AddOffsetsToTxn', 3, lambda s: known(s, 2, GroupId=s.name))
# Each of these is answered as wrong, whatever the request goes on to say.
STRANGERS = {'another id': {'TransactionalId': 'no-such', 'V3AndBelowTransactionalId': 'no-such'}, 'no id': {'TransactionalId': '', 'V3AndBelowTransactionalId': ''}, 'another producer': {'ProducerId': 987654321, 'V3AndBelowProducerId': 987654321},
             'a later epoch': {'ProducerEpoch': 7, 'V3AndBelowProducerEpoch': 7}, 'no epoch': {'ProducerEpoch': -1, 'V3AndBelowProducerEpoch': -1}}


def markers(s, **more):
    return {'Markers': [{**known(s), 'TransactionResult': True, 'Topics': [{'Name': s.name, 'PartitionIndexes': [0]}], 'CoordinatorEpoch': 0, 'TransactionVersion': 0, **more}]}


def in_transaction(s, sequence=0, **more):
    data = batch([(b'k', b'v')], timestamp=T0, pid=known(s)['ProducerId'], epoch=known(s)['ProducerEpoch'], seq=sequence, attributes=16)
    return {'TransactionalId': s.name, 'Acks': -1, 'TimeoutMs': 5000, 'TopicData': [{'Name': s.name, 'TopicId': by_id(s.name)(s), 'PartitionData': [{'Index': 0, 'Records': data}]}], **more}


ACL = {'ResourceType': 2, 'ResourceName': 't', 'ResourcePatternType': 3, 'Principal': 'User:a', 'Host': '*', 'Operation': 3, 'PermissionType': 3}
ACL_FILTER = {'ResourceTypeFilter': 1, 'ResourceNameFilter': None, 'PatternTypeFilter': 1, 'PrincipalFilter': None, 'HostFilter': None, 'Operation': 1, 'PermissionType': 1}


def quota(entity, ops, only=False):
    entry = {'Entity': [{'EntityType': kind, 'EntityName': name} for kind, name in entity], 'Ops': [{'Key': op[0], 'Value': op[1], 'Remove': len(op) > 2} for op in ops]}
    return {'Entries': [entry], 'ValidateOnly': only}


def filtered(components, strict=False):
    return {'Components': [{'EntityType': kind, 'MatchType': match, 'Match': name} for kind, match, name in components], 'Strict': strict}


def move(path='/no/such/directory', topic='plain', partitions=(0,)):
    return {'Dirs': [{'Path': path, 'Topics': [{'Name': topic, 'Partitions': list(partitions)}]}]}


def describe_dirs(topic='plain', partitions=(0,)):
    return {'Topics': [{'Topic': topic, 'Partitions': list(partitions)}]}


def credential(name, **more):
    return {'Name': name, 'Mechanism': 1, 'Iterations': 4096, 'Salt': b'salt', 'SaltedPassword': b'p' * 32, **more}


def scram(upsertions=(), deletions=()):
    return {'Upsertions': list(upsertions), 'Deletions': [{'Name': name, 'Mechanism': mechanism} for name, mechanism in deletions]}


def whose(s):
    return {'Users': [{'Name': s.name}]}


def API(name, body, before=(), skip=(), cases=None, edges=True):
    return {'name': name, 'body': body, 'before': list(before), 'skip': set(skip), 'cases': cases or {}, 'edges': edges}


def ask(body, *more):
    """Steps that end with the version under test."""
    return [*more, (ME, ME, body)]


APIS = [
    API('ApiVersions', {'ClientSoftwareName': 'wire', 'ClientSoftwareVersion': '1'}, cases={
        'dots and dashes': {'ClientSoftwareName': 'a.b-c'}, 'ends with a dot': {'ClientSoftwareName': 'a.'}, 'a space': {'ClientSoftwareVersion': '1 2'},
        'another cluster': {'ClusterId': 'other', 'NodeId': 1}, 'this cluster': {'ClusterId': lambda s: s.cluster, 'NodeId': 1}, 'this cluster, another node': {'ClusterId': lambda s: s.cluster, 'NodeId': 2},
        'a cluster without a node': {'ClusterId': 'other'}, 'a node without a cluster': {'NodeId': 1},
    }),
    # before others have made so many topics that it takes pages
    API('DescribeTopicPartitions', {'Topics': [{'Name': 'plain'}]}, cases={
        'all': {'Topics': []}, 'unknown': {'Topics': [{'Name': 'no-such'}]}, 'bad name': {'Topics': [{'Name': 'a b'}]}, 'empty name': {'Topics': [{'Name': ''}]}, 'twice': {'Topics': [{'Name': 'plain'}] * 2}, 'two': {'Topics': [{'Name': 'plain'}, {'Name': 'empty'}]}, **{f'limit {n}': {'ResponsePartitionLimit': n} for n in (0, 1, -1, 2)}, 'two, limit 1': {'Topics': [{'Name': 'plain'}, {'Name': 'empty'}], 'ResponsePartitionLimit': 1}, 'cursor': {'Cursor': {'TopicName': 'plain', 'PartitionIndex': 1}}, 'cursor beyond': {'Cursor': {'TopicName': 'plain', 'PartitionIndex': 9}}, 'cursor negative': {'Cursor': {'TopicName': 'plain', 'PartitionIndex': -1}}, 'cursor at another topic': {'Topics': [{'Name': 'plain'}, {'Name': 'empty'}], 'Cursor': {'TopicName': 'f', 'PartitionIndex': 0}}, 'cursor at an unknown topic': {'Cursor': {'TopicName': 'zzz', 'PartitionIndex': 0}}, 'consumer offsets': {'Topics': [{'Name': '__consumer_offsets'}], 'ResponsePartitionLimit': 1},
    }),
    API('Metadata', {'Topics': [{'Name': 'plain'}], 'AllowAutoTopicCreation': False}, skip={'TopicId', 'Name'}, cases={
        'all topics': {'Topics': None}, 'no topics': {'Topics': []}, 'two, one unknown': {'Topics': [{'Name': 'plain'}, {'Name': own}]}, 'twice': {'Topics': [{'Name': 'plain'}, {'Name': 'plain'}]},
        'authorized operations': {'IncludeClusterAuthorizedOperations': True, 'IncludeTopicAuthorizedOperations': True},
        'authorized operations of an unknown topic': {'Topics': [{'Name': own}], 'IncludeTopicAuthorizedOperations': True},
        'by id': {'Topics': [{'Name': None, 'TopicId': by_id('plain')}]}, 'by unknown id': {'Topics': [{'Name': None, 'TopicId': UNKNOWN_ID}]}, 'by zero id': {'Topics': [{'Name': None, 'TopicId': ZERO}]},
        'by id and name': {'Topics': [{'Name': 'plain', 'TopicId': by_id('plain')}]}, 'by id and another name': {'Topics': [{'Name': 'empty', 'TopicId': by_id('plain')}]}, 'name and unknown id': {'Topics': [{'Name': 'plain', 'TopicId': UNKNOWN_ID}]},
        'by id and by name': {'Topics': [{'Name': None, 'TopicId': by_id('plain')}, {'Name': 'empty'}]}, 'known and unknown id': {'Topics': [{'Name': None, 'TopicId': by_id('plain')}, {'Name': None, 'TopicId': UNKNOWN_ID}]},
        'creates': {'Topics': [{'Name': own}], 'AllowAutoTopicCreation': True}, 'empty name': {'Topics': [{'Name': ''}]}, 'null name': {'Topics': [{'Name': None}]}, 'no such': {'Topics': [{'Name': own}]}, 'creates no bad name': {'Topics': [{'Name': 'a b'}], 'AllowAutoTopicCreation': True},
        'creates no long name': {'Topics': [{'Name': LONG}], 'AllowAutoTopicCreation': True}, 'creates, colliding': {'Topics': [{'Name': lambda s: s.name + '.x'}, {'Name': lambda s: s.name + '_x'}], 'AllowAutoTopicCreation': True},
        'consumer offsets': {'Topics': [{'Name': '__consumer_offsets'}]},
    }),
    API('Produce', produce(), skip={'TransactionalId', 'Records'}, cases={
        **BAD_RECORDS, **{f'acks=0, {k}': {**v, 'Acks': 0} for k, v in BAD_RECORDS.items() if k in ('no records', 'wrong CRC', 'too large', 'message v0')},
        'acks=0': {'Acks': 0}, 'acks=-1': {'Acks': -1}, 'acks=2': {'Acks': 2}, 'acks=0, unknown topic': {**NO_SUCH, 'Acks': 0}, 'unknown topic': NO_SUCH, 'zero id': {'Name': '', 'TopicId': ZERO},
        'unknown partition': {'Index': 9}, 'negative partition': {'Index': -1}, 'consumer offsets': {'Name': '__consumer_offsets', 'TopicId': by_id('__consumer_offsets')},
        'partition twice': {'PartitionData': [{'Index': 0, 'Records': records}, {'Index': 0, 'Records': records}]}, 'one good, one bad partition': {'PartitionData': [{'Index': 0, 'Records': records}, {'Index': 7, 'Records': records}]},
        'one good, one unknown topic': {'TopicData': lambda s: [*produce()['TopicData'], *produce('no-such')['TopicData']]}, 'topic twice': {'TopicData': lambda s: produce()['TopicData'] * 2},
        'offsets count up': [topic(), (ME, ME, own_produce()), (ME, ME, own_produce()), ('ListOffsets', 5, lambda s: list_offsets(s.name))],
        'sequence from 0': [topic(), (ME, ME, idempotent(0)), (ME, ME, idempotent(1)), (ME, ME, idempotent(0)), (ME, ME, idempotent(1)), (ME, ME, idempotent(3))],
        'sequence from 5': [topic(), (ME, ME, idempotent(5)), (ME, ME, idempotent(6)), (ME, ME, idempotent(5))],
        'newer epoch': [topic(), (ME, ME, idempotent(0)), (ME, ME, idempotent(1, epoch=1)), (ME, ME, idempotent(0, epoch=1)), (ME, ME, idempotent(1, epoch=0))],
        'batches of three': [topic(), (ME, ME, idempotent(0, count=3)), (ME, ME, idempotent(0)), (ME, ME, idempotent(1)), (ME, ME, idempotent(3, count=2)), (ME, ME, idempotent(2, count=2))],
        'a duplicate beyond five': [topic(), *[(ME, ME, idempotent(i)) for i in range(6)], (ME, ME, idempotent(0)), (ME, ME, idempotent(1))],
        'in a transaction': [topic(), INIT, ('AddPartitionsToTxn', 3, lambda s: add(s, s.name, **{k: v for k, v in known(s).items()})), (ME, ME, in_transaction)] , 'in a transaction that it was not added to': [topic(), INIT, (ME, ME, in_transaction)], 'in a transaction of another id': [topic(), INIT, (ME, ME, lambda s: in_transaction(s, TransactionalId='no-such'))], 'in no transactional id': [topic(), INIT, (ME, ME, lambda s: in_transaction(s, TransactionalId=None))],
        'sequence at its maximum': [topic(), (ME, ME, idempotent(2**31 - 1)), (ME, ME, idempotent(0))],
    }),
    API('Fetch', fetch(), skip={'MaxWaitMs', 'MinBytes', 'ReplicaId', 'ReplicaEpoch', 'ReplicaDirectoryId', 'ClusterId', 'ReplicaState'}, cases={
        'unknown topic': NO_SUCH, 'zero id': {'Topic': '', 'TopicId': ZERO}, 'unknown partition': {'Partition': 9}, 'empty partition': {'Partition': 1}, 'empty partition, offset 1': {'Partition': 1, 'FetchOffset': 1},
        'at the end': {'FetchOffset': 6}, 'beyond the end': {'FetchOffset': 7}, 'inside a batch': {'FetchOffset': 3}, 'before the start': fetch('trimmed', 0), 'from the start': fetch('trimmed', 2),
        'one byte': {'MaxBytes': 1, 'PartitionMaxBytes': 1}, 'one byte a partition': {'PartitionMaxBytes': 1}, 'one byte in all': {'MaxBytes': 1}, '100 bytes a partition': {'PartitionMaxBytes': 100}, '100 bytes in all': {'MaxBytes': 100},
        'no bytes': {'MaxBytes': 0, 'PartitionMaxBytes': 0}, 'negative bytes': {'MaxBytes': -1, 'PartitionMaxBytes': -1}, 'committed': {'IsolationLevel': 1}, 'isolation level 2': {'IsolationLevel': 2},
        'partition twice': {'Partitions': [{'Partition': 0, 'FetchOffset': 0, 'PartitionMaxBytes': 9999}, {'Partition': 0, 'FetchOffset': 2, 'PartitionMaxBytes': 9999}]},
        'two partitions': {'Partitions': [{'Partition': 1, 'FetchOffset': 0, 'PartitionMaxBytes': 9999}, {'Partition': 0, 'FetchOffset': 2, 'PartitionMaxBytes': 9999}]},
        'leader epoch 0': {'CurrentLeaderEpoch': 0}, 'leader epoch 1': {'CurrentLeaderEpoch': 1}, 'last fetched epoch 0': {'LastFetchedEpoch': 0, 'FetchOffset': 3}, 'last fetched epoch 5': {'LastFetchedEpoch': 5, 'FetchOffset': 3},
        'last fetched epoch at the end': {'LastFetchedEpoch': 0, 'FetchOffset': 6}, 'last fetched epoch beyond the end': {'LastFetchedEpoch': 0, 'FetchOffset': 7},
        'a follower that is none': {'ReplicaId': 5, 'ReplicaState': {'ReplicaId': 5, 'ReplicaEpoch': 1}}, 'a follower with the id of the broker': {'ReplicaId': 1, 'ReplicaState': {'ReplicaId': 1, 'ReplicaEpoch': -1}}, 'the debugging consumer': {'ReplicaId': -2, 'ReplicaState': {'ReplicaId': -2, 'ReplicaEpoch': -1}},
        'another cluster': {'ClusterId': 'other'}, 'a rack': {'RackId': 'r1'}, 'waits for bytes': {'MaxWaitMs': 100, 'MinBytes': 1 << 30}, 'waits at the end': {'MaxWaitMs': 100, 'MinBytes': 1, 'FetchOffset': 6}, 'negative wait': {'MaxWaitMs': -5, 'MinBytes': 1, 'FetchOffset': 6},
        'session 0, epoch 0': [(ME, ME, fetch(SessionId=0, SessionEpoch=0))], 'session 0, epoch 1': [(ME, ME, fetch(SessionId=0, SessionEpoch=1))], 'session 0, epoch 7': [(ME, ME, fetch(SessionId=0, SessionEpoch=7))],
        'unknown session': [(ME, ME, fetch(SessionId=123456, SessionEpoch=1))], 'unknown session, epoch 0': [(ME, ME, fetch(SessionId=123456, SessionEpoch=0))], 'unknown session is closed': [(ME, ME, fetch(SessionId=123456, SessionEpoch=-1))], 'negative session': [(ME, ME, fetch(SessionId=-4, SessionEpoch=1))],
        'session': [(ME, ME, fetch(SessionEpoch=0)), (ME, ME, lambda s: session(s, 1)), (ME, ME, lambda s: session(s, 2, fetch('empty')['Topics'])), (ME, ME, lambda s: session(s, 3, fetch('plain', 2)['Topics'])), (ME, ME, lambda s: session(s, 4)), (ME, ME, lambda s: session(s, 4)), (ME, ME, lambda s: session(s, 9))],
        'session forgets': [(ME, ME, fetch(SessionEpoch=0)), (ME, ME, lambda s: {**session(s, 1), 'ForgottenTopicsData': [{'Topic': 'plain', 'TopicId': by_id('plain'), 'Partitions': [0]}]}), (ME, ME, lambda s: session(s, 2))],
        'session forgets what it never had': [(ME, ME, fetch(SessionEpoch=0)), (ME, ME, lambda s: {**session(s, 1), 'ForgottenTopicsData': [{'Topic': 'empty', 'TopicId': by_id('empty'), 'Partitions': [0, 5, -1]}]}), (ME, ME, lambda s: session(s, 2))],
        'session with an unknown topic': [(ME, ME, fetch('no-such', SessionEpoch=0)), (ME, ME, lambda s: session(s, 1))], 'session of nothing': [(ME, ME, fetch(SessionEpoch=0, Topics=[])), (ME, ME, lambda s: session(s, 1))],
        'session with an unknown partition': [(ME, ME, lambda s: {**patch_partition(fetch(SessionEpoch=0), 9)}), (ME, ME, lambda s: session(s, 1))],
        'session at the end': [(ME, ME, fetch('plain', 6, SessionEpoch=0)), (ME, ME, lambda s: session(s, 1)), (ME, ME, lambda s: session(s, -1))],
        'session is closed': [(ME, ME, fetch(SessionEpoch=0)), (ME, ME, lambda s: session(s, -1)), (ME, ME, lambda s: session(s, 1))],
        'session is replaced': [(ME, ME, fetch(SessionEpoch=0)), (ME, ME, lambda s: session(s, 0, fetch('empty')['Topics'])), (ME, ME, lambda s: session(s, 1))],
        'session of deleted topic': [topic(), (ME, ME, lambda s: fetch(s.name, SessionEpoch=0)), (ME, ME, lambda s: session(s, 1))],
    }),
    API('ListOffsets', list_offsets(), skip={'ReplicaId', 'TimeoutMs'}, cases={
        **{f'timestamp {t}': {'Timestamp': t} for t in (-2, -1, -3, -4, -5, -6, -7, -100, 0, T0, T0 + 1, T0 + 1000, T0 + 1003, T0 + 2005, T0 + 2006)}, 'unknown topic': NO_SUCH, 'unknown partition': {'PartitionIndex': 9},
        **{f'empty partition, timestamp {t}': {'PartitionIndex': 1, 'Timestamp': t} for t in (-2, -1, -3, -4, -5, -6, T0)}, **{f'trimmed, timestamp {t}': list_offsets('trimmed', t) for t in (-2, -1, -3, -4, -5, T0, T0 + 3)},
        'committed': {'IsolationLevel': 1}, 'isolation level 2': {'IsolationLevel': 2}, 'leader epoch 0': {'CurrentLeaderEpoch': 0}, 'leader epoch 1': {'CurrentLeaderEpoch': 1}, 'leader epoch -2': {'CurrentLeaderEpoch': -2},
        'replica 1': {'ReplicaId': 1}, 'replica 5': {'ReplicaId': 5}, 'replica -2': {'ReplicaId': -2}, 'replica -3': {'ReplicaId': -3}, 'offsets 0': {'MaxNumOffsets': 0}, 'offsets -1': {'MaxNumOffsets': -1},
        'partition twice': {'Partitions': [{'PartitionIndex': 0, 'Timestamp': -1, 'MaxNumOffsets': 1}] * 2}, 'topic twice': {'Topics': list_offsets()['Topics'] * 2}, 'topic twice, two partitions': {'Topics': list_offsets()['Topics'] + [{'Name': 'plain', 'Partitions': [{'PartitionIndex': 1, 'Timestamp': -1}]}]}, 'the timeout': {'TimeoutMs': 1000},
    }),
    API('OffsetForLeaderEpoch', epochs(), skip={'ReplicaId'}, cases={
        **{f'epoch {e}': {'LeaderEpoch': e} for e in (-2, -1, 0, 1, 7)}, 'unknown topic': NO_SUCH, 'unknown partition': {'Partition': 9}, 'empty partition': {'Partition': 1}, 'empty partition, epoch -1': {'Partition': 1, 'LeaderEpoch': -1}, 'empty partition, epoch 1': {'Partition': 1, 'LeaderEpoch': 1},
        'current epoch 0': {'CurrentLeaderEpoch': 0}, 'current epoch 1': {'CurrentLeaderEpoch': 1}, 'replica -2': {'ReplicaId': -2}, 'replica 5': {'ReplicaId': 5}, 'partition twice': {'Partitions': [{'Partition': 0, 'LeaderEpoch': 0}] * 2}, 'topic twice': {'Topics': epochs()['Topics'] * 2}, 'trimmed': epochs('trimmed'),
    }),
    API('InitProducerId', {'TransactionalId': None, 'TransactionTimeoutMs': 60000}, skip={'TransactionalId', 'KeepPreparedTxn', 'Enable2Pc'}, cases={
        'transactional': {'TransactionalId': own}, 'transactional, again': [INIT, (ME, ME, lambda s: {'TransactionalId': s.name, 'TransactionTimeoutMs': 60000, 'ProducerId': -1, 'ProducerEpoch': -1})], 'transactional, goes on': [INIT, (ME, ME, lambda s: {**known(s), 'TransactionTimeoutMs': 60000})], 'transactional, goes on twice': [INIT, (ME, ME, lambda s: {**known(s), 'TransactionTimeoutMs': 60000}), (ME, ME, lambda s: {**known(s), 'TransactionTimeoutMs': 60000})],
        'transactional, fenced': [INIT, INIT, (ME, ME, lambda s: {**known(s), 'TransactionTimeoutMs': 60000})], 'transactional, another producer': [INIT, (ME, ME, lambda s: {**known(s), 'ProducerId': 987654321, 'TransactionTimeoutMs': 60000})], 'transactional, an open transaction': [INIT, ADD, (ME, ME, lambda s: {'TransactionalId': s.name, 'TransactionTimeoutMs': 60000, 'ProducerId': -1, 'ProducerEpoch': -1})],
        'transactional, producer id without epoch': {'TransactionalId': own, 'ProducerId': 5}, 'transactional, time-out 0': {'TransactionalId': own, 'TransactionTimeoutMs': 0}, 'transactional, time-out too long': {'TransactionalId': own, 'TransactionTimeoutMs': 900001},
        'producer id without epoch': {'ProducerId': 5}, 'epoch without producer id': {'ProducerEpoch': 5}, 'both': {'ProducerId': 5, 'ProducerEpoch': 5}, 'empty transactional id': {'TransactionalId': ''}, 'negative timeout': {'TransactionTimeoutMs': -1},
    }),
    API('AddPartitionsToTxn', add, before=[INIT], edges=False, cases={
        **STRANGERS, 'unknown topic': {'Name': 'no-such'}, 'unknown partition': {'Partitions': [9]}, 'one known, one not': {'Partitions': [0, 9]}, 'no topics': {'Topics': [], 'V3AndBelowTopics': []}, 'consumer offsets': {'Name': '__consumer_offsets'},
        'again': [INIT, ADD, (ME, ME, add)], 'verify': [INIT, (ME, ME, verify)], 'verify what is in it': [INIT, ADD, (ME, ME, verify)], 'verify, another id': [INIT, ADD, (ME, ME, lambda s: verify(s, TransactionalId='no-such'))], 'verify, a later epoch': [INIT, ADD, (ME, ME, lambda s: verify(s, ProducerEpoch=7))],
        'fenced': [INIT, INIT, (ME, ME, add)], 'no transactions': {'Transactions': []},
    }),
    API('AddOffsetsToTxn', lambda s: known(s, GroupId=s.name), before=[INIT], edges=False, cases={**STRANGERS, 'no group': {'GroupId': ''}, 'again': [INIT, ADD_OFFSETS, (ME, ME, lambda s: known(s, GroupId=s.name))], 'fenced': [INIT, INIT, (ME, ME, lambda s: known(s, GroupId=s.name))]}),
    API('EndTxn', end, before=[INIT, ADD], edges=False, cases={
        **STRANGERS, 'abort': [INIT, ADD, (ME, ME, lambda s: end(s, False))], 'nothing to commit': [INIT, (ME, ME, end)], 'nothing to abort': [INIT, (ME, ME, lambda s: end(s, False))], 'fenced': [INIT, INIT, (ME, ME, end)],
        'abort what is committed': [INIT, ADD, ('EndTxn', 3, end), ENDED, (ME, ME, lambda s: end(s, False))], 'commit what is aborted': [INIT, ADD, ('EndTxn', 3, lambda s: end(s, False)), ENDED, (ME, ME, end)],
    }),
    API('WriteTxnMarkers', markers, before=[topic(), INIT], edges=False, cases={
        'unknown topic': {'Name': 'no-such'}, 'unknown partition': {'PartitionIndexes': [9]}, 'no markers': {'Markers': []}, 'abort': {'TransactionResult': False},
        'an earlier coordinator': [topic(), INIT, (ME, ME, lambda s: markers(s, CoordinatorEpoch=5)), (ME, ME, lambda s: markers(s, CoordinatorEpoch=4))], 'an earlier epoch': [topic(), INIT, INIT, ('WriteTxnMarkers', 1, lambda s: markers(s, **{k: v for k, v in known(s, 2).items() if k[0] == 'P'})), (ME, ME, markers)],
        'an open transaction': [topic(), INIT, ('AddPartitionsToTxn', 3, lambda s: add(s, s.name)), ('Produce', 9, in_transaction), (ME, ME, lambda s: markers(s, TransactionResult=False)), ('ListOffsets', 5, lambda s: {**list_offsets(s.name, -1), 'IsolationLevel': 1})],
    }),
    API('TxnOffsetCommit', txn_commit, before=[INIT, ADD_OFFSETS], edges=False, cases={
        **STRANGERS, 'not added': [INIT, (ME, ME, txn_commit)], 'unknown topic': NO_SUCH, 'unknown partition': {'PartitionIndex': 9}, 'metadata too long': {'CommittedMetadata': 'm' * 4097}, 'no group': {'GroupId': ''}, 'a member of no group': {'MemberId': 'nobody'}, 'a generation of no group': {'GenerationIdOrMemberEpoch': 5}, 'a static member of no group': {'GroupInstanceId': 'i'},
        'pending': [INIT, ADD_OFFSETS, (ME, ME, txn_commit), ('OffsetFetch', 7, lambda s: {'GroupId': s.name, 'RequireStable': True, 'Topics': [{'Name': 'plain', 'PartitionIndexes': [0]}]}), ('OffsetFetch', 7, lambda s: {'GroupId': s.name, 'RequireStable': False, 'Topics': [{'Name': 'plain', 'PartitionIndexes': [0]}]})],
        'a live group': [*SYNCED, INIT, ADD_OFFSETS_THIRD, (ME, ME, lambda s: txn_commit(s, **known(s, 2)))], 'wrong generation': [*SYNCED, INIT, ADD_OFFSETS_THIRD, (ME, ME, lambda s: txn_commit(s, **known(s, 2), GenerationIdOrMemberEpoch=7, MemberId=s.member()))], 'a stranger to a live group': [*SYNCED, INIT, ADD_OFFSETS_THIRD, (ME, ME, lambda s: txn_commit(s, **known(s, 2), GenerationIdOrMemberEpoch=1, MemberId='x'))],
    }),
    API('DescribeProducers', {'Topics': [{'Name': 'empty', 'PartitionIndexes': [0]}]}, edges=False, cases={
        'unknown topic': {'Name': 'no-such'}, 'unknown partition': {'PartitionIndexes': [9]}, 'no topics': {'Topics': []}, 'an open transaction': [topic(), INIT, ('Produce', 12, in_transaction), (ME, ME, lambda s: {'Topics': [{'Name': s.name, 'PartitionIndexes': [0]}]})],
    }),
    API('DescribeTransactions', lambda s: {'TransactionalIds': [s.name]}, before=[INIT], edges=False, cases={'unknown': {'TransactionalIds': ['no-such']}, 'no id': {'TransactionalIds': ['']}, 'none': {'TransactionalIds': []}, 'open': [INIT, ADD, (ME, ME, lambda s: {'TransactionalIds': [s.name]})]}),
    API('ListTransactions', lambda s: {'StateFilters': [], 'ProducerIdFilters': [known(s)['ProducerId']], 'DurationFilter': -1}, before=[INIT], edges=False, cases={
        'open': [INIT, ADD, (ME, ME, lambda s: {'StateFilters': ['Ongoing'], 'ProducerIdFilters': [known(s)['ProducerId']], 'DurationFilter': -1})], 'another state': {'StateFilters': ['Ongoing']}, 'unknown state': {'StateFilters': ['nonsense', 'Empty']}, 'only unknown states': {'StateFilters': ['nonsense']}, 'passing states': {'StateFilters': ['Dead', 'PrepareEpochFence']}, 'an unknown producer': {'ProducerIdFilters': [987654321]}, 'long': {'StateFilters': ['Ongoing'], 'DurationFilter': 86400000},
        **{f'pattern {pattern}': {'TransactionalIdPattern': pattern} for pattern in ('.*', '', None, 'no-such', '.', '(', '[', '*', 'a)(b', '(?=a)', r'(a)\1', r'\p{Greek}*.*', r'\q', '(?i).*', 'a{2000}', '(?x).* # all')}, 'its own name': lambda s: {'TransactionalIdPattern': s.name}, 'the end of its name': lambda s: {'TransactionalIdPattern': s.name[-1]}, 'the name and nothing': lambda s: {'TransactionalIdPattern': f'x|{s.name}|{s.name}y'},
    }),
    API('DeleteRecords', lambda s: {'Topics': [{'Name': s.name, 'Partitions': [{'PartitionIndex': 0, 'Offset': 1}]}], 'TimeoutMs': 1000}, before=[topic(records=[TWO, TWO])], skip={'TimeoutMs'}, cases={
        'to the end': {'Offset': -1}, 'at the end': {'Offset': 4}, 'beyond the end': {'Offset': 5}, 'offset -2': {'Offset': -2}, 'unknown topic': NO_SUCH, 'unknown partition': {'PartitionIndex': 9}, 'bad name': {'Name': 'a b'},
        'twice': [topic(records=[TWO, TWO]), (ME, ME, lambda s: trim(s, 3)), (ME, ME, lambda s: trim(s, 1)), ('ListOffsets', 5, lambda s: list_offsets(s.name, -2)), ('Fetch', 11, lambda s: fetch(s.name, 2)), ('Fetch', 11, lambda s: fetch(s.name, 3))],
        'consumer offsets': {'Name': '__consumer_offsets'}, 'partition twice': {'Partitions': [{'PartitionIndex': 0, 'Offset': 1}, {'PartitionIndex': 0, 'Offset': 2}]}, 'a compacted topic': {'Name': 'configured', 'Offset': 0}, 'timeout 0': {'TimeoutMs': 0}, 'timeout -1': {'TimeoutMs': -1},
    }),
    API('FindCoordinator', {'Key': 'g', 'KeyType': 0, 'CoordinatorKeys': ['g']}, skip={'KeyType'}, cases={
        'two keys': {'CoordinatorKeys': ['g', 'h']}, 'a key twice': {'CoordinatorKeys': ['g', 'g']}, 'no keys': {'CoordinatorKeys': []}, **{f'key type {t}': {'KeyType': t} for t in (2, 3, 9, -1)}, 'share key': {'KeyType': 2, 'Key': 'g:' + 'AAAAAAAAAAAAAAAAAAAAAQ' + ':0', 'CoordinatorKeys': ['g:AAAAAAAAAAAAAAAAAAAAAQ:0']},
        'empty key': {'Key': '', 'CoordinatorKeys': ['']},
    }),
    API('JoinGroup', join, skip={'RebalanceTimeoutMs', 'GroupId'}, cases={
        'no group id': {'GroupId': ''}, 'null group id': {'GroupId': None},
        'rebalance timeout 0': {'RebalanceTimeoutMs': 0}, 'rebalance timeout -1': {'RebalanceTimeoutMs': -1}, 'session too short': {'SessionTimeoutMs': 5999}, 'session shortest': {'SessionTimeoutMs': 6000}, 'session longest': {'SessionTimeoutMs': 1800000}, 'session too long': {'SessionTimeoutMs': 1800001}, 'no protocol type': {'ProtocolType': ''}, 'two protocols': {'Protocols': [{'Name': 'range', 'Metadata': b'1'}, {'Name': 'other', 'Metadata': b'2'}]},
        'protocol twice': {'Protocols': [{'Name': 'range', 'Metadata': b'1'}] * 2}, 'unknown member': {'MemberId': 'nobody'}, 'static': {'GroupInstanceId': 'i'}, 'static, unknown member': {'GroupInstanceId': 'i', 'MemberId': 'nobody'}, 'bad instance': {'GroupInstanceId': 'a b'}, 'dots': {'GroupInstanceId': '..'}, 'instance too long': {'GroupInstanceId': LONG}, 'a reason': {'Reason': 'r' * 300},
        'joins with the id it was given': [(ME, ME, join), (ME, ME, lambda s: join(s, s.member()))], 'joins again': [*JOINED, (ME, ME, lambda s: join(s, s.member()))], 'joins again, synced': [*SYNCED, (ME, ME, lambda s: join(s, s.member()))],
        'joins a synced group with other metadata': [*SYNCED, (ME, ME, lambda s: join(s, s.member(), Protocols=[{'Name': 'range', 'Metadata': b'9'}]))], 'another protocol type': [*SYNCED, (ME, ME, lambda s: join(s, ProtocolType='connect'))], 'another protocol': [*SYNCED, (ME, ME, lambda s: join(s, Protocols=[{'Name': 'sticky', 'Metadata': b''}]))],
        'static again': [(ME, ME, lambda s: join(s, GroupInstanceId='i')), (ME, ME, lambda s: join(s, GroupInstanceId='i')), (ME, ME, lambda s: join(s, s.member(0), GroupInstanceId='i')), (ME, ME, lambda s: join(s, s.member(1), GroupInstanceId='i'))],
        'static again, synced': [('JoinGroup', 5, lambda s: join(s, GroupInstanceId='i')), ('SyncGroup', 3, lambda s: sync(s, GroupInstanceId='i')), (ME, ME, lambda s: join(s, GroupInstanceId='i')), ('Heartbeat', 3, lambda s: {'GroupId': s.name, 'GenerationId': 1, 'MemberId': s.member(), 'GroupInstanceId': 'i'})],
        'a group with offsets only': [*COMMITTED, (ME, ME, join)],
    }),
    API('SyncGroup', sync, before=JOINED, cases={
        'wrong generation': {'GenerationId': 2}, 'unknown member': {'MemberId': 'nobody'}, 'unknown group': {'GroupId': 'no-such'}, 'another protocol type': {'ProtocolType': 'connect'}, 'another protocol': {'ProtocolName': 'sticky'}, 'no protocol': {'ProtocolName': None, 'ProtocolType': None}, 'no assignments': {'Assignments': []}, 'assignment of others': {'Assignments': [{'MemberId': 'x', 'Assignment': b'1'}]},
        'an instance that it has not': {'GroupInstanceId': 'i'}, 'again': [*SYNCED, (ME, ME, sync)], 'again with another assignment': [*SYNCED, (ME, ME, lambda s: sync(s, Assignments=[{'MemberId': s.member(), 'Assignment': b'\x09'}]))],
        'after leaving': [*SYNCED, ('LeaveGroup', 1, lambda s: {'GroupId': s.name, 'MemberId': s.member()}), (ME, ME, sync)],
    }),
    API('Heartbeat', lambda s: {'GroupId': s.name, 'GenerationId': 1, 'MemberId': s.member()}, before=SYNCED, cases={
        'wrong generation': {'GenerationId': 2}, 'older generation': {'GenerationId': 0}, 'unknown member': {'MemberId': 'nobody'}, 'unknown group': {'GroupId': 'no-such'}, 'an instance that it has not': {'GroupInstanceId': 'i'}, 'before the sync': [*JOINED, (ME, ME, lambda s: {'GroupId': s.name, 'GenerationId': 1, 'MemberId': s.member()})],
        'an empty group': [*COMMITTED, (ME, ME, lambda s: {'GroupId': s.name, 'GenerationId': -1, 'MemberId': ''})], 'static': [('JoinGroup', 5, lambda s: join(s, GroupInstanceId='i')), ('SyncGroup', 3, lambda s: sync(s, GroupInstanceId='i')), (ME, ME, lambda s: {'GroupId': s.name, 'GenerationId': 1, 'MemberId': s.member(), 'GroupInstanceId': 'i'}), (ME, ME, lambda s: {'GroupId': s.name, 'GenerationId': 1, 'MemberId': 'other', 'GroupInstanceId': 'i'})],
    }),
    API('LeaveGroup', lambda s: {'GroupId': s.name, 'MemberId': s.member(), 'Members': [{'MemberId': s.member()}]}, before=SYNCED, cases={
        'unknown member': {'MemberId': 'nobody', 'Members': [{'MemberId': 'nobody'}]}, 'unknown group': {'GroupId': 'no-such'}, 'no members': {'Members': []}, 'twice': {'Members': lambda s: [{'MemberId': s.member()}] * 2}, 'one known, one not': {'Members': lambda s: [{'MemberId': s.member()}, {'MemberId': 'x'}]}, 'by unknown instance': {'Members': [{'MemberId': '', 'GroupInstanceId': 'i'}]}, 'a reason': {'Members': lambda s: [{'MemberId': s.member(), 'Reason': 'r'}]},
        'by instance': [('JoinGroup', 5, lambda s: join(s, GroupInstanceId='i')), ('SyncGroup', 3, lambda s: sync(s, GroupInstanceId='i')), (ME, ME, lambda s: {'GroupId': s.name, 'MemberId': s.member(), 'Members': [{'MemberId': '', 'GroupInstanceId': 'i'}]}), ('DescribeGroups', 5, lambda s: {'Groups': [s.name]})],
        'by instance and another id': [('JoinGroup', 5, lambda s: join(s, GroupInstanceId='i')), (ME, ME, lambda s: {'GroupId': s.name, 'MemberId': 'x', 'Members': [{'MemberId': 'x', 'GroupInstanceId': 'i'}]})],
        'a pending member': [('JoinGroup', 5, join), (ME, ME, lambda s: {'GroupId': s.name, 'MemberId': s.member(), 'Members': [{'MemberId': s.member()}]})],
    }),
    API('DescribeGroups', lambda s: {'Groups': [s.name]}, before=SYNCED, cases={
        'unknown': {'Groups': ['no-such']}, 'empty id': {'Groups': ['']}, 'operations': {'IncludeAuthorizedOperations': True}, 'operations of an unknown group': {'Groups': ['no-such'], 'IncludeAuthorizedOperations': True}, 'twice': {'Groups': lambda s: [s.name, s.name]}, 'with offsets only': {'Groups': ['with-offsets']}, 'before the sync': [*JOINED, (ME, ME, lambda s: {'Groups': [s.name]})],
        'left': [*SYNCED, ('LeaveGroup', 1, lambda s: {'GroupId': s.name, 'MemberId': s.member()}), (ME, ME, lambda s: {'Groups': [s.name]})], 'static': [('JoinGroup', 5, lambda s: join(s, GroupInstanceId='i')), ('SyncGroup', 3, lambda s: sync(s, GroupInstanceId='i')), (ME, ME, lambda s: {'Groups': [s.name]})], 'a pending member': [('JoinGroup', 5, join), APPLIED, (ME, ME, lambda s: {'Groups': [s.name]})],
    }),
    API('ListGroups', {'StatesFilter': [], 'TypesFilter': []}, cases={**{f'state {x}': {'StatesFilter': [x]} for x in ('Stable', 'stable', 'Empty', 'Dead', 'PreparingRebalance', 'nonsense', '')}, 'two states': {'StatesFilter': ['Stable', 'Empty']}, **{f'type {x}': {'TypesFilter': [x]} for x in ('classic', 'Classic', 'consumer', 'share', 'nonsense', '')}}),
    API('OffsetCommit', commit, skip={'RetentionTimeMs', 'CommitTimestamp'}, cases={
        'unknown topic': NO_SUCH, 'zero id': {'Name': '', 'TopicId': ZERO}, 'unknown partition': {'PartitionIndex': 9}, 'negative offset': {'CommittedOffset': -1}, 'offset -5': {'CommittedOffset': -5}, 'metadata too long': {'CommittedMetadata': 'm' * 4097}, 'metadata longest': {'CommittedMetadata': 'm' * 4096}, 'a member of no group': {'MemberId': 'nobody'}, 'a generation of no group': {'GenerationIdOrMemberEpoch': 5}, 'a static member of no group': {'GroupInstanceId': 'i'}, 'retention 0': {'RetentionTimeMs': 0}, 'time 5': {'CommitTimestamp': 5}, 'unknown topic, no group': {**NO_SUCH, 'MemberId': 'nobody', 'GenerationIdOrMemberEpoch': 4},
        'no group id': {'GroupId': ''}, 'a member': [*SYNCED, (ME, ME, lambda s: commit(s, GenerationIdOrMemberEpoch=1, MemberId=s.member()))], 'wrong generation': [*SYNCED, (ME, ME, lambda s: commit(s, GenerationIdOrMemberEpoch=2, MemberId=s.member()))], 'not a member of a live group': [*SYNCED, (ME, ME, commit)], 'a member before the sync': [*JOINED, (ME, ME, lambda s: commit(s, GenerationIdOrMemberEpoch=1, MemberId=s.member()))], 'a stranger to a live group': [*SYNCED, (ME, ME, lambda s: commit(s, GenerationIdOrMemberEpoch=1, MemberId='x'))], 'a member without a generation': [*SYNCED, (ME, ME, lambda s: commit(s, MemberId=s.member()))],
        'and fetched': [(ME, ME, commit), ('OffsetFetch', 5, lambda s: offset_fetch(s.name))], 'and fetched, null metadata': [(ME, ME, lambda s: patched_commit(s, CommittedMetadata=None)), ('OffsetFetch', 5, lambda s: offset_fetch(s.name))], 'partition twice': {'Partitions': [{'PartitionIndex': 0, 'CommittedOffset': 3, 'CommittedMetadata': ''}] * 2}, 'topic twice': {'Topics': lambda s: commit(s)['Topics'] * 2}, 'consumer offsets': {'Name': '__consumer_offsets', 'TopicId': by_id('__consumer_offsets')},
    }),
    API('OffsetFetch', offset_fetch('with-offsets'), cases={
        'all': offset_fetch('with-offsets', None), 'unknown group': offset_fetch('no-such'), 'all of an unknown group': offset_fetch('no-such', None), 'unknown topic': offset_fetch('with-offsets', 'no-such'), 'other partitions': offset_fetch('with-offsets', asked=(0, 1, 9, -1)), 'no partitions': offset_fetch('with-offsets', asked=()), 'a partition twice': offset_fetch('with-offsets', asked=(0, 0)), 'stable': {'RequireStable': True}, 'no group': offset_fetch(''), 'a live group': [*SYNCED, ('OffsetCommit', 5, lambda s: commit(s, GenerationIdOrMemberEpoch=1, MemberId=s.member())), (ME, ME, lambda s: offset_fetch(s.name))],
        'a member': {'MemberId': 'm', 'MemberEpoch': 3}, 'a member epoch': {'MemberEpoch': 3}, 'two groups': {'Groups': lambda s: offset_fetch('with-offsets')['Groups'] + offset_fetch('no-such')['Groups']}, 'a group twice': {'Groups': lambda s: offset_fetch('with-offsets')['Groups'] * 2}, 'no groups': {'Groups': []}, 'no topics': {'Topics': [], 'Groups': [{'GroupId': 'with-offsets', 'MemberId': None, 'MemberEpoch': -1, 'Topics': []}]}, 'zero id': {'Groups.Topics.TopicId': ZERO}, 'topic twice': {'Topics': lambda s: offset_fetch('with-offsets')['Topics'] * 2, 'Groups': lambda s: [{**offset_fetch('with-offsets')['Groups'][0], 'Topics': offset_fetch('with-offsets')['Topics'] * 2}]},
    }),
    API('OffsetDelete', lambda s: {'GroupId': s.name, 'Topics': [{'Name': 'plain', 'Partitions': [{'PartitionIndex': 0}]}]}, before=COMMITTED, cases={
        'unknown group': {'GroupId': 'no-such'}, 'unknown topic': {'Name': 'no-such'}, 'unknown partition': {'PartitionIndex': 9}, 'a partition without an offset': {'PartitionIndex': 1}, 'a live group': [*SYNCED, (ME, ME, lambda s: {'GroupId': s.name, 'Topics': [{'Name': 'plain', 'Partitions': [{'PartitionIndex': 0}]}]})], 'and fetched': [*COMMITTED, (ME, ME, lambda s: {'GroupId': s.name, 'Topics': [{'Name': 'plain', 'Partitions': [{'PartitionIndex': 0}]}]}), ('OffsetFetch', 5, lambda s: offset_fetch(s.name)), ('DescribeGroups', 5, lambda s: {'Groups': [s.name]})],
    }),
    API('DeleteGroups', lambda s: {'GroupsNames': [s.name]}, before=COMMITTED, cases={'unknown': {'GroupsNames': ['no-such']}, 'empty': {'GroupsNames': ['']}, 'twice': {'GroupsNames': lambda s: [s.name, s.name]}, 'one known, one not': {'GroupsNames': lambda s: [s.name, 'no-such']}, 'a live group': [*SYNCED, (ME, ME, lambda s: {'GroupsNames': [s.name]})], 'again': [*COMMITTED, (ME, ME, lambda s: {'GroupsNames': [s.name]}), (ME, ME, lambda s: {'GroupsNames': [s.name]}), ('OffsetFetch', 5, lambda s: offset_fetch(s.name))]}),
    API('CreateTopics', create, skip={'timeoutMs', 'Topics.Name'}, cases={
        'null name': {'Name': None}, 
        **{f'name {n[:20]!r}{len(n)}': {'Name': (lambda s, n=n: n[:-1] + str(s.version)) if n in FREE_NAMES else n} for n in TOPIC_NAMES}, 'exists': {'Name': 'plain'}, 'exists, validate only': {'Name': 'plain', 'validateOnly': True}, 'collides': [('@topic', lambda s: s.name + '.x'), (ME, ME, lambda s: {**create(s), 'Topics': [{**create(s)['Topics'][0], 'Name': s.name + '_x'}]})],
        **{f'{p} partitions': {'NumPartitions': p} for p in (-2, -1, 0, 3, 10001)}, **{f'{r} replicas': {'ReplicationFactor': r} for r in (-2, -1, 0, 2, 5)}, 'assigned': {'NumPartitions': -1, 'ReplicationFactor': -1, **assigned([1], [1])}, 'assigned and counted': assigned([1]), 'assigned and partitions counted': {'ReplicationFactor': -1, **assigned([1])}, 'assigned, unknown broker': {'NumPartitions': -1, 'ReplicationFactor': -1, **assigned([9])}, 'assigned, broker twice': {'NumPartitions': -1, 'ReplicationFactor': -1, **assigned([1, 1])}, 'assigned, no brokers': {'NumPartitions': -1, 'ReplicationFactor': -1, **assigned([])}, 'assigned, from 1': {'NumPartitions': -1, 'ReplicationFactor': -1, **assigned([1], first=1)}, 'assigned, two sizes': {'NumPartitions': -1, 'ReplicationFactor': -1, **assigned([1], [1, 9])}, 'assigned, negative broker': {'NumPartitions': -1, 'ReplicationFactor': -1, **assigned([-1])}, 'assigned, partition twice': {'NumPartitions': -1, 'ReplicationFactor': -1, 'Assignments': [{'PartitionIndex': 0, 'BrokerIds': [1]}] * 2},
        **{f'{k}={v}'[:60]: configs((k, v)) for k, v in CONFIG_VALUES}, 'config twice': configs(('retention.ms', '1'), ('retention.ms', '2')), 'two configs': configs(('retention.ms', '1000'), ('cleanup.policy', 'compact')), 'topic twice': {'Topics': lambda s: create(s)['Topics'] * 2}, 'one good, one bad': {'Topics': lambda s: create(s)['Topics'] + [{**create(s)['Topics'][0], 'Name': 'a b'}]}, 'validate only': {'validateOnly': True}, 'validate only, bad config': {'validateOnly': True, **configs(('retention.ms', 'x'))}, 'timeout 0': {'timeoutMs': 0}, 'timeout -1': {'timeoutMs': -1}, 'and described': [(ME, ME, create), ('@topic', own, 2), ('DescribeConfigs', 2, lambda s: describe(2, s.name, ['retention.ms']))],
    }),
    API('DeleteTopics', lambda s: {'Topics': [{'Name': s.name, 'TopicId': ZERO}], 'TopicNames': [s.name], 'TimeoutMs': 30000}, before=[topic()], skip={'TimeoutMs'}, cases={
        'by id': {'Topics': lambda s: [{'Name': None, 'TopicId': s.ids.get(s.name, UNKNOWN_ID)}]}, 'by name and id': {'Topics': lambda s: [{'Name': s.name, 'TopicId': s.ids.get(s.name, UNKNOWN_ID)}]}, 'by name and another id': {'Topics': lambda s: [{'Name': s.name, 'TopicId': UNKNOWN_ID}]}, 'by nothing': {'Topics': [{'Name': None, 'TopicId': ZERO}]}, 'by unknown id': {'Topics': [{'Name': None, 'TopicId': UNKNOWN_ID}]}, 'unknown': {'Topics': [{'Name': 'no-such'}], 'TopicNames': ['no-such']}, 'bad name': {'Topics': [{'Name': 'a b'}], 'TopicNames': ['a b']}, 'no topics': {'Topics': [], 'TopicNames': []},
        'twice': {'Topics': lambda s: [{'Name': s.name}] * 2, 'TopicNames': lambda s: [s.name] * 2}, 'id and name of one topic': {'Topics': lambda s: [{'Name': s.name, 'TopicId': ZERO}, {'Name': None, 'TopicId': s.ids.get(s.name, UNKNOWN_ID)}]}, 'one known, one not': {'Topics': lambda s: [{'Name': s.name}, {'Name': 'no-such'}], 'TopicNames': lambda s: [s.name, 'no-such']}, 'timeout 0': {'TimeoutMs': 0}, 'timeout -1': {'TimeoutMs': -1}, 'unknown id twice': {'Topics': [{'Name': None, 'TopicId': UNKNOWN_ID}] * 2},
    }),
    API('CreatePartitions', lambda s: {'Topics': [{'Name': s.name, 'Count': 2, 'Assignments': None}], 'TimeoutMs': 30000, 'ValidateOnly': False}, before=[topic()], skip={'TimeoutMs'}, cases={
        **{f'count {c}': {'Count': c} for c in (-1, 0, 1, 3, 10002)}, 'unknown': {'Name': 'no-such'}, 'bad name': {'Name': 'a b'}, 'assigned': {'Assignments': [{'BrokerIds': [1]}]}, 'assigned too many': {'Assignments': [{'BrokerIds': [1]}] * 2}, 'assigned none': {'Assignments': []}, 'unknown broker': {'Assignments': [{'BrokerIds': [9]}]}, 'two brokers': {'Assignments': [{'BrokerIds': [1, 9]}]}, 'broker twice': {'Assignments': [{'BrokerIds': [1, 1]}]}, 'no brokers': {'Assignments': [{'BrokerIds': []}]}, 'validate only': {'ValidateOnly': True}, 'topic twice': {'Topics': lambda s: [{'Name': s.name, 'Count': 2, 'Assignments': None}] * 2}, 'timeout 0': {'TimeoutMs': 0}, 'consumer offsets': {'Name': '__consumer_offsets', 'Count': 5},
    }),
    API('ElectLeaders', lambda s: {'ElectionType': 0, 'TopicPartitions': [{'Topic': 'plain', 'Partitions': [0]}], 'TimeoutMs': 30000}, edges=False, cases={
        'unclean': {'ElectionType': 1}, **{f'type {t}': {'ElectionType': t} for t in (-128, -1, 2, 127)}, 'empty name': {'Topic': ''}, **{f'partition {p}': {'Partitions': [p]} for p in (-1, 2147483647)}, 'no partitions': {'Partitions': []}, 'unknown topic': {'Topic': 'no-such'}, 'unknown partition': {'Partitions': [0, 99]}, 'partition twice': {'Partitions': [0, 0]}, 'topic twice': {'TopicPartitions': [{'Topic': 'plain', 'Partitions': [0]}] * 2}, 'no topics': {'TopicPartitions': []}, 'timeout 0': {'TimeoutMs': 0},
    }),
    API('AlterPartitionReassignments', lambda s: {'TimeoutMs': 30000, 'Topics': [{'Name': s.name, 'Partitions': [{'PartitionIndex': 0, 'Replicas': [1]}]}]}, before=[topic()], skip={'TimeoutMs'}, cases={
        'cancel': {'Replicas': None}, 'unknown topic': {'Name': 'no-such'}, 'unknown partition': {'PartitionIndex': 99}, 'unknown broker': {'Replicas': [9]}, 'two brokers': {'Replicas': [1, 9]}, 'broker twice': {'Replicas': [1, 1]}, 'no brokers': {'Replicas': []}, 'the number stays': {'AllowReplicationFactorChange': False}, 'no topics': {'Topics': []}, 'timeout 0': {'TimeoutMs': 0},
    }),
    API('ListPartitionReassignments', {'TimeoutMs': 30000, 'Topics': [{'Name': 'plain', 'PartitionIndexes': [0]}]}, skip={'TimeoutMs'}, cases={'all': {'Topics': None}, 'unknown topic': {'Name': 'no-such'}, 'unknown partition': {'PartitionIndexes': [99]}, 'timeout 0': {'TimeoutMs': 0}}),
    API('UpdateFeatures', {'timeoutMs': 30000, 'FeatureUpdates': [{'Feature': 'transaction.version', 'MaxVersionLevel': 2, 'UpgradeType': 1}], 'ValidateOnly': True}, edges=False, cases={
        **{f'{f} {l}, kind {t}': {'FeatureUpdates': [{'Feature': f, 'MaxVersionLevel': l, 'UpgradeType': t}]} for f, l, t in [('transaction.version', 1, 1), ('transaction.version', 3, 1), ('transaction.version', -1, 1), ('no.such', 1, 1), ('no.such', 0, 2), ('', 1, 1), ('metadata.version', 33, 1), ('metadata.version', 34, 1), ('metadata.version', 6, 1), ('metadata.version', 7, 1)]},
        'twice': {'FeatureUpdates': [{'Feature': 'transaction.version', 'MaxVersionLevel': 2, 'UpgradeType': 1}] * 2}, 'one good, one bad': {'FeatureUpdates': [{'Feature': 'transaction.version', 'MaxVersionLevel': 2, 'UpgradeType': 1}, {'Feature': 'no.such', 'MaxVersionLevel': 1, 'UpgradeType': 1}]}, 'nothing': {'FeatureUpdates': []}, 'timeout 0': {'timeoutMs': 0},
    }),
    API('DescribeQuorum', {'Topics': [{'TopicName': '__cluster_metadata', 'Partitions': [{'PartitionIndex': 0}]}]}, cases={
        'partition twice': {'Partitions': [{'PartitionIndex': 0}, {'PartitionIndex': 0}]}, 'two partitions': {'Partitions': [{'PartitionIndex': 0}, {'PartitionIndex': 1}]},
        'two topics': {'Topics': [{'TopicName': '__cluster_metadata', 'Partitions': [{'PartitionIndex': 0}]}, {'TopicName': 'plain', 'Partitions': [{'PartitionIndex': 0}]}]}, 'a topic of clients': {'TopicName': 'plain'},
    }),
    # A null name of a listener ends the controller of Kafka 4.4.0.
    API('AddRaftVoter', {'ClusterId': lambda s: s.cluster, 'TimeoutMs': 1000, 'VoterId': 9, 'VoterDirectoryId': UNKNOWN_ID, 'Listeners': [{'Name': 'CONTROLLER', 'Host': '127.0.0.1', 'Port': 1}], 'AckWhenCommitted': True}, skip={'Listeners'}, cases={
        'no cluster': {'ClusterId': None}, 'another cluster and no listener': {'ClusterId': 'other', 'Listeners': []}, 'no voter and no listener': {'VoterId': -1, 'Listeners': []},
        'no listener': {'Listeners': []}, 'another listener': {'Name': 'PLAINTEXT'},
    }),
    API('RemoveRaftVoter', {'ClusterId': lambda s: s.cluster, 'VoterId': 9, 'VoterDirectoryId': UNKNOWN_ID}, cases={'no cluster': {'ClusterId': None}, 'the only voter': {'VoterId': 1}, 'another cluster and no voter': {'ClusterId': 'other', 'VoterId': -1}}),
    API('UnregisterBroker', {'BrokerId': 99}, edges=False, cases={f'broker {b}': {'BrokerId': b} for b in (0, -1, 2147483647)}),
    API('DescribeConfigs', lambda s: describe(2, 'configured', None), cases={
        'synonyms': {'IncludeSynonyms': True}, 'documentation': {'IncludeDocumentation': True}, 'no keys': {'ConfigurationKeys': []}, 'one key': {'ConfigurationKeys': ['retention.ms']}, 'unknown key': {'ConfigurationKeys': ['no.such']}, 'unknown topic': {'ResourceName': 'no-such'}, 'bad topic': {'ResourceName': 'a b'}, 'no topic': {'ResourceName': ''}, 'untouched topic': {'ResourceName': 'empty', 'IncludeSynonyms': True}, 'resource twice': {'Resources': describe(2, 'plain', ['retention.ms'])['Resources'] * 2}, 'consumer offsets': {'ResourceName': '__consumer_offsets', 'IncludeSynonyms': True},
        'broker': describe(4, '1', None), 'broker with synonyms': {**describe(4, '1', None), 'IncludeSynonyms': True}, 'all brokers': describe(4, '', None), 'broker 9': describe(4, '9', None), 'broker x': describe(4, 'x', None), 'broker -1': describe(4, '-1', None), 'broker, one key': describe(4, '1', ['log.retention.hours', 'num.io.threads', 'no.such']), **{f'resource type {t}': describe(t, '1', None) for t in (0, 1, 3, 5, 16, 32, 64, 127, -1)}, 'group': describe(32, 'with-member', None), 'no group': describe(32, '', None), 'loggers': describe(8, '1', ['no.such']), 'loggers of broker 9': describe(8, '9', None), 'loggers of nobody': describe(8, '', None), 'loggers of broker x': describe(8, 'x', None), 'loggers of broker 01': describe(8, '01', ['no.such']), 'the root logger': [('IncrementalAlterConfigs', 1, alter(8, '1', (('root', 'INFO'),))), (ME, ME, {**describe(8, '1', ['root']), 'IncludeSynonyms': True, 'IncludeDocumentation': True})], 'the root logger, and no more': [('IncrementalAlterConfigs', 1, alter(8, '1', (('root', 'INFO'),))), (ME, ME, describe(8, '1', ['root']))],
        'group with settings': [('IncrementalAlterConfigs', 1, alter(32, own, (('consumer.session.timeout.ms', ' 46000 '), ('share.auto.offset.reset', 'earliest'), ('streams.rack.aware.assignment.tags', 'a, b'), ('streams.acceptable.recovery.lag', '7')))), APPLIED, (ME, ME, lambda s: {**describe(32, s.name, None), 'IncludeSynonyms': True, 'IncludeDocumentation': True})], 'group, two keys': describe(32, 'no-such', ['share.isolation.level', 'streams.acceptable.recovery.lag']), 'client metrics': describe(16, 'm', None), 'no client metrics': describe(16, '', None),
    }),
    API('AlterConfigs', alter(), before=[topic()], cases={
        **value_cases(2, own, CONFIG_VALUES), 'unknown topic': alter(2, 'no-such'), 'bad topic': alter(2, 'a b'), 'no topic': alter(2, ''), 'validate only': {'ValidateOnly': True}, 'key twice': alter(2, own, (('retention.ms', '1'), ('retention.ms', '2'))), 'no configs': alter(2, own, ()), 'resource twice': lambda s: {**alter(), 'Resources': alter()['Resources'] * 2}, **{f'broker {b}': alter(4, b, (('log.cleaner.threads', '2'),)) for b in ('9', 'x', '-1')}, **{f'resource type {t}': alter(t, '1', (('a', '1'),)) for t in (0, 1, 3, 5, 8, 127, -1)},
        'replaces': [topic(1, (('retention.ms', '7'), ('cleanup.policy', 'compact'))), (ME, ME, alter()), APPLIED, ('DescribeConfigs', 2, lambda s: describe(2, s.name, ['retention.ms', 'cleanup.policy']))], 'consumer offsets': {**alter(2, '__consumer_offsets'), 'ValidateOnly': True},
        **value_cases(32, own, GROUP_VALUES), 'no group': alter(32, '', ()), 'group, key twice': alter(32, own, (('share.isolation.level', 'read_committed'),) * 2),
        'replaces those of a group': [('IncrementalAlterConfigs', 1, alter(32, own, (('consumer.session.timeout.ms', '46000'),))), APPLIED, (ME, ME, alter(32, own, (('share.isolation.level', 'read_committed'),))), APPLIED, ('DescribeConfigs', 2, lambda s: describe(32, s.name, ['consumer.session.timeout.ms', 'share.isolation.level']))],
    }),
    API('IncrementalAlterConfigs', alter(), before=[topic()], cases={
        **value_cases(2, own, CONFIG_VALUES), **{f'broker {k}={v}'[:60]: {**alter(4, '1', ((k, v),)), 'ValidateOnly': True} for k, v in BROKER_VALUES}, **{f'brokers {k}={v}'[:60]: {**alter(4, '', ((k, v),)), 'ValidateOnly': True} for k, v in BROKER_VALUES}, 'unknown topic': alter(2, 'no-such'), 'bad topic': alter(2, 'a b'), 'no topic': alter(2, ''), 'validate only': {'ValidateOnly': True}, 'key twice': alter(2, own, (('retention.ms', '1'), ('retention.ms', '2'))), 'no configs': alter(2, own, ()), 'resource twice': lambda s: {**alter(), 'Resources': alter()['Resources'] * 2}, **{f'broker {b}': alter(4, b, (('log.cleaner.threads', '2'),)) for b in ('9', 'x', '-1')}, **{f'resource type {t}': alter(t, '1', (('a', '1'),)) for t in (0, 1, 3, 5, 127, -1)},
        **{f'operation {o}': alter(2, own, (('retention.ms', '5'),), o) for o in (-1, 0, 1, 2, 3, 4)}, **{f'operation {o} on a list': alter(2, own, (('cleanup.policy', 'compact'),), o) for o in (0, 1, 2, 3, 4)}, 'subtracts what is there': [topic(1, (('cleanup.policy', 'compact,delete'),)), (ME, ME, alter(2, own, (('cleanup.policy', 'delete'),), 3)), APPLIED, ('DescribeConfigs', 2, lambda s: describe(2, s.name, ['cleanup.policy']))], 'appends twice': [topic(), (ME, ME, alter(2, own, (('cleanup.policy', 'compact'),), 2)), (ME, ME, alter(2, own, (('cleanup.policy', 'compact'),), 2)), APPLIED, ('DescribeConfigs', 2, lambda s: describe(2, s.name, ['cleanup.policy']))], 'deletes what is not set': alter(2, own, (('retention.ms', None),), 1), 'deletes an unknown key': alter(2, own, (('no.such', None),), 1), 'deletes with a value': alter(2, own, (('retention.ms', '4'),), 1),
        **value_cases(32, own, GROUP_VALUES), 'no group': alter(32, '', (('share.isolation.level', 'read_committed'),)), 'group, key twice': alter(32, own, (('share.isolation.level', 'read_committed'),) * 2), **{f'operation {o} on a group': alter(32, own, (('streams.rack.aware.assignment.tags', 'a'),), o) for o in (-1, 1, 2, 3, 4)}, 'deletes an unknown key of a group': alter(32, own, (('no.such', None),), 1), 'group, validate only': lambda s: {**alter(32, own, (('share.isolation.level', 'read_committed'),)), 'ValidateOnly': True},
        'group, session and heartbeat': alter(32, own, (('consumer.session.timeout.ms', '45000'), ('consumer.heartbeat.interval.ms', '15000'))), 'group, taken back': [(ME, ME, alter(32, own, (('share.isolation.level', 'read_committed'),))), (ME, ME, alter(32, own, (('share.isolation.level', None),), 1)), APPLIED, ('DescribeConfigs', 2, lambda s: describe(32, s.name, ['share.isolation.level']))],
        **value_cases(8, '1', LEVELS), **{f'operation {o} on a logger': alter(8, '1', (('root', 'INFO'),), o) for o in (-1, 1, 2, 3, 4)}, **{f'operation {o} on no logger': alter(8, '1', (('no.such', 'INFO'),), o) for o in (1, 2, 4)}, **{f'loggers of broker {b!r}': alter(8, b, (('root', 'INFO'),)) for b in ('', 'x', '9', '-1', '01', '+1', ' 1')}, 'loggers, none': alter(8, '1', ()), 'logger, key twice': alter(8, '1', (('root', 'INFO'),) * 2), 'logger, null key twice': alter(8, '1', (('root', None),) * 2), 'logger, null and another broker': alter(8, '9', (('root', None),)), 'logger, one good, one bad': alter(8, '1', (('root', 'INFO'), ('no.such', 'INFO'))),
        'loggers twice': {'Resources': alter(8, '1', (('root', 'INFO'),))['Resources'] * 2}, 'a topic, loggers, and a group': lambda s: {'Resources': [*alter()['Resources'], *alter(8, '1', (('root', 'LOUD'),))['Resources'], *alter(32, own, (('share.isolation.level', 'x'),))['Resources']]},
    }),
    API('AlterReplicaLogDirs', move(), cases={
        'relative path': move('relative'), 'no directories': {'Dirs': []}, 'unknown topic': move(topic='no-such'), 'unknown partition': move(partitions=(99,)), 'negative partition': move(partitions=(-1,)), 'no partitions': move(partitions=()), 'several': move(partitions=(0, 1, 99)), 'two directories': lambda s: {'Dirs': move()['Dirs'] + move('/no/such/either')['Dirs']},
    }),
    API('DescribeLogDirs', describe_dirs(), cases={
        'unknown topic': describe_dirs('no-such'), 'unknown partition': describe_dirs(partitions=(99,)), 'negative partition': describe_dirs(partitions=(-1,)), 'no partitions': describe_dirs(partitions=()), 'two partitions': describe_dirs(partitions=(0, 1)), 'known and unknown': describe_dirs(partitions=(0, 99)), 'no topics': {'Topics': []},
    }, skip={'Topics'}),
    API('DescribeCluster', {'IncludeClusterAuthorizedOperations': False, 'EndpointType': 1}, cases={'operations': {'IncludeClusterAuthorizedOperations': True}, 'controllers': {'EndpointType': 2}, 'endpoint 0': {'EndpointType': 0}, 'fenced too': {'IncludeFencedBrokers': True}}),
    API('ListConfigResources', {'ResourceTypes': []}, cases={f'type {t}': {'ResourceTypes': [t]} for t in (0, 1, 2, 4, 8, 16, 32, 99, -1)}),
    API('DescribeAcls', {'ResourceTypeFilter': 1, 'ResourceNameFilter': None, 'PatternTypeFilter': 1, 'PrincipalFilter': None, 'HostFilter': None, 'Operation': 1, 'PermissionType': 1}),
    API('CreateAcls', {'Creations': [ACL]}, cases={'none': {'Creations': []}, 'two': {'Creations': [ACL, ACL]}}),
    API('DeleteAcls', {'Filters': [ACL_FILTER]}, cases={'none': {'Filters': []}, 'two': {'Filters': [ACL_FILTER, ACL_FILTER]}}),
    API('CreateDelegationToken', {'Renewers': [], 'MaxLifetimeMs': -1}, cases={'for another': {'OwnerPrincipalType': 'User', 'OwnerPrincipalName': 'a'}, 'renewers': {'Renewers': [{'PrincipalType': 'User', 'PrincipalName': 'a'}]}}),
    API('RenewDelegationToken', {'Hmac': b'none', 'RenewPeriodMs': 1000}),
    API('ExpireDelegationToken', {'Hmac': b'none', 'ExpiryTimePeriodMs': 1000}),
    API('DescribeDelegationToken', {'Owners': None}, cases={'of nobody': {'Owners': []}, 'of one': {'Owners': [{'PrincipalType': 'User', 'PrincipalName': 'a'}]}}),
    API('AlterClientQuotas', quota([('client-id', own)], [('producer_byte_rate', 1000.0)]), edges=False, cases={
        **{f'{key}={value}': quota([('client-id', own)], [(key, value)]) for key in ('producer_byte_rate', 'request_percentage', 'controller_mutation_rate', 'connection_creation_rate', 'no_such') for value in (1.0, 1.5, 0.0, -1.0, 1e19, 1e300, float('inf'), float('nan'))},
        **{f'of an address {key}={value}': quota([('ip', '10.0.0.1')], [(key, value)], only=True) for key, value in (('connection_creation_rate', 5.0), ('connection_creation_rate', 1.5), ('connection_creation_rate', 1e10), ('producer_byte_rate', 5.0))},
        'all clients': quota([('client-id', None)], [('consumer_byte_rate', 1e9)], only=True), 'a user': quota([('user', own)], [('consumer_byte_rate', 5.0)]), 'both': quota([('user', own), ('client-id', own)], [('consumer_byte_rate', 5.0)]),
        'validate only': quota([('user', own)], [('consumer_byte_rate', 5.0)], only=True), 'no address': quota([('ip', 'no.such.host.invalid')], [('connection_creation_rate', 1.0)]), 'an address and a user': quota([('ip', '10.0.0.1'), ('user', 'u')], [('connection_creation_rate', 1.0)]),
        'nobody': quota([], [('producer_byte_rate', 1.0)]), 'a planet': quota([('planet', 'x')], [('producer_byte_rate', 1.0)]), 'no type': quota([('', None)], [('producer_byte_rate', 1.0)]), 'empty user': quota([('user', '')], [('producer_byte_rate', 1.0)]),
        'empty client': quota([('client-id', '')], [('producer_byte_rate', 1.0)]), 'empty address': quota([('ip', '')], [('connection_creation_rate', 1.0)]), 'type twice': quota([('user', 'a'), ('user', own)], [('producer_byte_rate', 1.0)]), 'key twice': quota([('user', own)], [('producer_byte_rate', 1.0), ('producer_byte_rate', 2.0)]),
        'no change': quota([('user', own)], []), 'removes what is not there': quota([('user', own)], [('producer_byte_rate', 1.0, True)]), 'removes no such key': quota([('user', own)], [('no_such', 1.0, True)]), 'no entries': {'Entries': []},
        'entity twice': lambda s: {'Entries': quota([('user', s.name)], [('producer_byte_rate', 1.0)])['Entries'] * 2},
    }),
    API('DescribeClientQuotas', filtered([('client-id', 0, own)]), before=[('AlterClientQuotas', 1, quota([('client-id', own)], [('producer_byte_rate', 1000.0)])), ('AlterClientQuotas', 1, quota([('user', own), ('client-id', own)], [('request_percentage', 5.5)])), APPLIED], edges=False, cases={
        'strict': filtered([('client-id', 0, own)], True), 'both': filtered([('user', 0, own), ('client-id', 2, None)], True), 'none strict': filtered([], True), 'a default user': filtered([('user', 1, None)]), 'addresses': filtered([('ip', 2, None)]),
        'address and user': filtered([('ip', 2, None), ('user', 2, None)]), 'a planet': filtered([('planet', 2, None)]), 'match 9': filtered([('user', 9, None)]), 'match -1': filtered([('user', -1, None)]), 'exactly nothing': filtered([('user', 0, None)]),
        'default with a name': filtered([('user', 1, 'x')]), 'any with a name': filtered([('user', 2, 'x')]), 'no type': filtered([('', 2, None)]), 'type twice': filtered([('user', 2, None), ('user', 2, None)]),
    }),
    API('AlterUserScramCredentials', lambda s: scram([credential(s.name)]), edges=False, cases={
        **{f'mechanism {m}': lambda s, m=m: scram([credential(s.name, Mechanism=m)]) for m in (-1, 0, 2, 3, 127)}, **{f'{n} iterations of {m}': lambda s, n=n, m=m: scram([credential(s.name, Mechanism=m, Iterations=n)]) for m in (1, 2) for n in (-1, 0, 4095, 16384, 16385, 2147483647)},
        'no name': scram([credential('')]), 'no name and no mechanism': scram([credential('', Mechanism=9, Iterations=1)]), 'a long name': lambda s: scram([credential(s.name + LONG)]), 'an odd name': lambda s: scram([credential(s.name + 'a,b=ü ')]), 'no salt': lambda s: scram([credential(s.name, Salt=b'')]), 'a long salt': lambda s: scram([credential(s.name, Salt=b's' * 10000)]), 'no salted password': lambda s: scram([credential(s.name, SaltedPassword=b'')]), 'a short salted password': lambda s: scram([credential(s.name, SaltedPassword=b'short')]),
        'nothing': scram(), 'twice': lambda s: scram([credential(s.name)] * 2), 'both mechanisms': lambda s: scram([credential(s.name), credential(s.name, Mechanism=2)]), 'good and bad': lambda s: scram([credential(s.name), credential(s.name, Mechanism=9)]), 'bad and good': lambda s: scram([credential(s.name, Mechanism=9), credential(s.name)]), 'too few iterations and good': lambda s: scram([credential(s.name, Iterations=1), credential(s.name, Mechanism=2)]), 'one user good, one bad': lambda s: scram([credential(s.name), credential(s.name + '2', Mechanism=0)]),
        'deletes what is not there': lambda s: scram([], [(s.name, 1)]), 'deletes twice what is not there': lambda s: scram([], [(s.name, 1)] * 2), 'deletes nobody': scram([], [('', 1)]), 'deletes by no mechanism': lambda s: scram([], [(s.name, 9)]), 'sets and deletes what is not there': lambda s: scram([credential(s.name)], [(s.name, 1)]), 'sets, deletes another': lambda s: scram([credential(s.name)], [('nobody', 1)]), 'mechanism 3, set and deleted': lambda s: scram([credential(s.name, Mechanism=3)], [(s.name, 3)]),
        'and described': [(ME, ME, lambda s: scram([credential(s.name, Iterations=5000)])), APPLIED, ('DescribeUserScramCredentials', 0, whose)], 'again': [(ME, ME, lambda s: scram([credential(s.name)])), (ME, ME, lambda s: scram([credential(s.name, Iterations=6000)])), APPLIED, ('DescribeUserScramCredentials', 0, whose)], 'the other mechanism too': [(ME, ME, lambda s: scram([credential(s.name)])), (ME, ME, lambda s: scram([credential(s.name, Mechanism=2)])), APPLIED, ('DescribeUserScramCredentials', 0, whose)],
        'and deleted': [(ME, ME, lambda s: scram([credential(s.name)])), (ME, ME, lambda s: scram([], [(s.name, 2)])), (ME, ME, lambda s: scram([credential(s.name)], [(s.name, 1)])), (ME, ME, lambda s: scram([], [(s.name, 1)])), APPLIED, (ME, ME, lambda s: scram([], [(s.name, 1)])), ('DescribeUserScramCredentials', 0, whose)],
    }),
    API('DescribeUserScramCredentials', {'Users': None}, cases={'none named': {'Users': []}, 'unknown': {'Users': [{'Name': 'x'}]}, 'twice': {'Users': [{'Name': 'x'}] * 2}, 'empty': {'Users': [{'Name': ''}]}}),
]

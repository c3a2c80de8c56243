"""Runs the cases against one broker and turns its answers into what can be compared between brokers."""
import copy, json, re, socket, struct, time
import kwire
from kwire import APIS, Closed, Connection, within

CLIENT = 'wire'
SILENT, PATIENT = 0.3, 10  # seconds
T0 = 1_700_000_000_000
ZERO = '00' * 16
UNKNOWN_ID = 'ab' * 16


class State:
    """What a case's body may refer to: its own unique name, the topics' ids, the answers so far."""

    def __init__(self, fixtures, name, version):
        self.ids, self.name, self.version, self.answers = fixtures.ids, name, version, []
        self.cluster = fixtures.cluster

    def member(self, step=0):
        answer = self.answers[step] if step < len(self.answers) else None
        return answer.get('MemberId', 'nobody') if isinstance(answer, dict) else 'nobody'


def resolve(x, s):
    if callable(x):
        return resolve(x(s), s)
    if isinstance(x, dict):
        return {k: resolve(v, s) for k, v in x.items()}
    if isinstance(x, list):
        return [resolve(v, s) for v in x]
    return x


def paths(fields, body, at=()):
    """Every field of a request with the path to it through first elements."""
    for f in fields:
        here = at + (f['name'],)
        yield here, f
        if 'fields' in f:
            yield from paths(f['fields'], body, here)


def place(body, path):
    """The struct that holds a path's last field, or None where an array on the way is empty."""
    for name in path[:-1]:
        body = body.get(name)
        if isinstance(body, list):
            body = body[0] if body else None
        if body is None:
            return None
    return body


def patched(api, body, patch, s):
    """A body with some fields changed; a field is named alone where that is unambiguous, else as a.b.c."""
    body = copy.deepcopy(body)
    for name, value in patch.items():
        wanted = tuple(name.split('.'))
        for path, _ in paths(APIS[api]['request']['fields'], body):
            if path[-len(wanted):] == wanted and place(body, path) is not None:
                place(body, path)[path[-1]] = resolve(value, s)
                if wanted[0] not in ('Topic', 'Name', 'TopicId', 'GroupId'):
                    break
    return body


class Broker:
    """A connection that is opened again when it was closed, and the fixtures' ids."""

    def __init__(self, bootstrap):
        self.bootstrap, self.ids, self.cluster, self.connection = bootstrap, {}, None, None

    def call(self, api, version, body, timeout=PATIENT):
        if self.connection is None:
            self.connection = Connection(self.bootstrap)
        c = self.connection
        c.s.settimeout(timeout)
        try:
            if api == 'Produce' and body.get('Acks') == 0:
                c.corr += 1
                c.send(kwire.request(api, version, body, c.corr, CLIENT))
                c.call('ApiVersions', 0, {})
                return 'no answer'
            return c.call(api, version, body, CLIENT)
        except Closed:
            self.drop()
            return 'closed'
        except (TimeoutError, socket.timeout):
            self.drop()
            return 'silence'
        except (ValueError, struct.error) as error:
            self.drop()
            return f'cannot be decoded: {error}'

    def drop(self):
        if self.connection:
            self.connection.close()
        self.connection = None

    def topic(self, name, partitions=1, configs=(), records=()):
        """Creates a topic, waits until it is led and can be read, and fills partition 0."""
        request = {'Topics': [{'Name': name, 'NumPartitions': partitions, 'ReplicationFactor': 1, 'Configs': [{'Name': k, 'Value': v} for k, v in configs]}], 'timeoutMs': 30000}
        answer = self.call('CreateTopics', 4, request, 30)
        # A broker that has just started is not registered yet; one that was sent rubbish before may have closed.
        while answer == 'closed' or answer['Topics'][0]['ErrorCode'] == 38:
            time.sleep(0.2)
            answer = self.call('CreateTopics', 4, request, 30)
        assert answer['Topics'][0]['ErrorCode'] in (0, 36), answer
        deadline = time.time() + 30
        while time.time() < deadline:
            partitions_asked = [{'PartitionIndex': p, 'Timestamp': -1} for p in range(partitions)]
            led = self.call('ListOffsets', 5, {'ReplicaId': -1, 'Topics': [{'Name': name, 'Partitions': partitions_asked}]})
            if all(p['ErrorCode'] == 0 for t in led['Topics'] for p in t['Partitions']):
                break
            time.sleep(0.01)
        for batch in records:
            answer = self.call('Produce', 8, {'Acks': -1, 'TimeoutMs': 5000, 'TopicData': [{'Name': name, 'PartitionData': [{'Index': 0, 'Records': batch}]}]})
            assert answer['Responses'][0]['PartitionResponses'][0]['ErrorCode'] == 0, answer

    def learn_ids(self):
        answer = self.call('Metadata', 12 if self.newest('Metadata') >= 12 else 9, {'Topics': None})
        self.cluster = answer['ClusterId']
        self.ids = {t['Name']: t.get('TopicId', ZERO) for t in answer['Topics']}

    def newest(self, api):
        answer = self.call('ApiVersions', 0, {})
        return next((k['MaxVersion'] for k in answer['ApiKeys'] if k['ApiKey'] == APIS[api]['key']), -1)


def run_steps(broker, steps, s, expected=None):
    """The answers of a case's steps, not yet masked. A step is (api, version, body), or a topic to create."""
    told = []
    for step in steps:
        if step[0] == '@topic':
            broker.topic(*[resolve(x, s) for x in step[1:]])
            answer = broker.call('Metadata', 12, {'Topics': [{'Name': resolve(step[1], s)}]}) if broker.can_ids else {}
            s.ids = dict(s.ids)
            for t in answer.get('Topics', ()):
                s.ids[t['Name']] = t['TopicId']
        elif step[0] == '@pause':
            time.sleep(step[1])
        elif step[0] == '@reconnect':
            broker.drop()
        else:
            api, version, body = step
            version = s.version if version is None else version
            # Where Kafka never answered, little time is given; where it did, nobody fails for being slow.
            is_silent = expected is not None and len(told) < len(expected) and expected[len(told)] == 'silence'
            timeout = 2 if expected is None else SILENT if is_silent else PATIENT
            answer = broker.call(api, version, resolve(body, s), timeout)
            s.answers.append(answer)
            told.append((api, answer))
    return told


# Settings in which the broker that was recorded had to be started otherwise.
STARTED_WITH = set('''listeners advertised.listeners log.dir log.dirs broker.id node.id process.roles controller.quorum.voters
    controller.listener.names offsets.topic.replication.factor transaction.state.log.replication.factor transaction.state.log.min.isr
    share.coordinator.state.topic.replication.factor share.coordinator.state.topic.min.isr zookeeper.connect'''.split())
UUID = re.compile('[0-9a-f]{8}-[0-9a-f-]{27}|[A-Za-z0-9_-]{22}$')


def masked(api, answer, fixtures):
    """An answer without what differs between any two brokers: ids, times, addresses, the words of messages."""
    if not isinstance(answer, dict):
        return answer
    return mask_struct(api, answer, fixtures)


def mask_struct(api, x, fixtures):
    o = {}
    for k, v in x.items():
        if isinstance(v, dict):
            o[k] = mask_struct(api, v, fixtures)
        elif isinstance(v, list) and v and isinstance(v[0], dict):
            kept = [e for e in v if shown(api, k, e, fixtures)]
            o[k] = sorted((mask_struct(api, e, fixtures) for e in kept), key=lambda e: json.dumps(e, sort_keys=True))
        else:
            o[k] = mask_value(api, k, v, x)
    return o


def shown(api, field, element, fixtures):
    """Lists of all topics or groups hold what earlier cases left behind; only the fixtures count."""
    if api in ('Metadata', 'DescribeTopicPartitions') and field == 'Topics' and fixtures.whole:
        return element['Name'] in fixtures.topics
    if api == 'DescribeUserScramCredentials' and field == 'Results':
        return fixtures.main != api or not element['User'].startswith('alteruserscram')
    if api == 'ListGroups' and field == 'Groups':
        return element['GroupId'] in fixtures.groups
    if api == 'ListConfigResources' and field == 'ConfigResources':
        return element['ResourceType'] not in (2, 16, 32) or element['ResourceName'] in fixtures.topics
    if field in ('Configs', 'Synonyms') and element.get('Name') in STARTED_WITH:
        return False
    if api == 'ApiVersions' and field in ('ApiKeys', 'SupportedFeatures', 'FinalizedFeatures'):
        return element.get('ApiKey') == 18
    return True


def mask_value(api, k, v, struct_):
    if isinstance(v, bytes):
        return records(v) if k in ('Records', 'RecordSet') else v.hex()
    if k == 'TopicId' and v != ZERO:
        return '<id>' if v != UNKNOWN_ID else v
    if k in ('LogDir', 'PartitionSize', 'TotalBytes', 'UsableBytes') and v not in ('', -1, 0):
        return '<of the machine>'
    if k == 'ClusterId' and v:
        return '<cluster>'
    if k == 'Host' and v:
        return '<host>'
    if k == 'Port' and v > 0:
        return '<port>'
    if k in ('ErrorMessage', 'BatchIndexErrorMessage') and v:
        return '<message>'
    if k == 'Documentation' and v:
        return '<text>'
    if isinstance(v, str) and k in ('MemberId', 'Leader'):
        return UUID.sub('<uuid>', v)
    if k in ('ProducerId', 'SessionId', 'FinalizedFeaturesEpoch') and v > 0:
        return '<some>'
    if api == 'DescribeQuorum' and k in ('LeaderEpoch', 'HighWatermark', 'LogEndOffset', 'LastFetchTimestamp', 'LastCaughtUpTimestamp') and v > 0:
        return '<some>'
    if k in ('LogAppendTimeMs', 'LogAppendTime', 'TransactionStartTimeMs', 'LastTimestamp') and v > T0 + 10_000_000:
        return '<now>'
    if k == 'Timestamp' and isinstance(v, int) and v > T0 + 10_000_000_000:
        return '<now>'
    if k == 'BaseOffset' and api == 'Produce' and v >= 0 and struct_.get('_sink'):
        return '<offset>'
    return v


def records(b):
    """Batches and messages, one word each: base offset, magic, attributes, count or the message itself."""
    words = []
    while len(b) >= 17:
        base, size = struct.unpack('>qi', b[:12])
        if len(b) < 12 + size:
            break
        if b[16] == 2:
            attributes, = struct.unpack('>h', b[21:23])
            count, = struct.unpack('>i', b[57:61])
            words.append(f'{base}:v2:{attributes}:{count}:{struct.unpack(">i", b[12:16])[0]}')
        else:
            words.append(f'{base}:v{b[16]}:{b[17]}:{b[12:12 + size].hex()}')
        b = b[12 + size:]
    return ' '.join(words) + (f' +{len(b)}' if b else '')

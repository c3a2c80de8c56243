#!/usr/bin/env python3
"""Asks Klamm what Apache Kafka was asked, and compares the decoded answers field by field.

    differential.py [PART…]               start target/release/klamm (or KLAMM_BIN) and compare; PART of "Api case" chooses cases
    differential.py --bootstrap HOST:PORT compare a broker that runs already (BROKER_LOG names its log)
    differential.py --record VERSION      ask Apache Kafka VERSION (4.4.0, or 2.8.2 for the versions that 4.x dropped)
                                          and write golden-VERSION.jsonl; with --bootstrap one that runs already
    --port N  the port for a broker that is started here   --all  print every difference, also the accepted ones
    --accept  write accepted.tsv: each field of each case that differs and has a reason

What may differ is in two places: engine.masked (ids, times, addresses, the words of messages) and differences.md, one
row a reason with patterns for the cases and fields that it explains. What a pattern covers counts only where accepted.tsv
names it: that file has no patterns. A row or a line that nothing needs any more is an error too.
"""
import argparse, collections, fnmatch, json, os, pathlib, re, socket, subprocess, sys, tempfile, time
import engine
from cases import APIS, FIXTURES, GROUPS, LONG, MAX, ME
from engine import Broker, State, ZERO, UNKNOWN_ID, masked, patched, paths, place, resolve, run_steps
from kwire import APIS as SCHEMA, BY_KEY, within

HERE = pathlib.Path(__file__).resolve().parent
KLAMM = pathlib.Path(os.environ.get('KLAMM_BIN') or HERE / '../../target/release/klamm')
NEWEST = {'ApiVersions': 5, 'Metadata': 13, 'Produce': 13, 'Fetch': 18, 'ListOffsets': 11, 'OffsetForLeaderEpoch': 4, 'InitProducerId': 5, 'AddPartitionsToTxn': 5, 'AddOffsetsToTxn': 4, 'EndTxn': 5, 'WriteTxnMarkers': 2, 'TxnOffsetCommit': 6, 'DescribeProducers': 0, 'DescribeTransactions': 0, 'ListTransactions': 2, 'DeleteRecords': 2, 'FindCoordinator': 6, 'JoinGroup': 9, 'SyncGroup': 5, 'Heartbeat': 4, 'LeaveGroup': 5, 'DescribeGroups': 6, 'ListGroups': 5, 'OffsetCommit': 10, 'OffsetFetch': 10, 'OffsetDelete': 0, 'DeleteGroups': 3, 'CreateTopics': 7, 'DeleteTopics': 6, 'CreatePartitions': 3, 'ElectLeaders': 2, 'AlterPartitionReassignments': 1, 'ListPartitionReassignments': 0, 'UpdateFeatures': 2, 'DescribeQuorum': 2, 'AddRaftVoter': 1, 'RemoveRaftVoter': 0, 'UnregisterBroker': 0, 'DescribeConfigs': 4, 'AlterConfigs': 2, 'IncrementalAlterConfigs': 1, 'AlterReplicaLogDirs': 2, 'DescribeLogDirs': 5, 'DescribeCluster': 2, 'ListConfigResources': 1, 'DescribeTopicPartitions': 0, 'DescribeAcls': 3, 'CreateAcls': 3, 'DeleteAcls': 3, 'CreateDelegationToken': 3, 'RenewDelegationToken': 2, 'ExpireDelegationToken': 2, 'DescribeDelegationToken': 3, 'AlterClientQuotas': 1, 'DescribeClientQuotas': 1, 'DescribeUserScramCredentials': 0, 'AlterUserScramCredentials': 0}
# The versions that 4.x does not serve any more; their reference is 2.8.2.
DROPPED = {'DescribeAcls': 0, 'CreateAcls': 0, 'DeleteAcls': 0, 'CreateDelegationToken': 0, 'RenewDelegationToken': 0, 'ExpireDelegationToken': 0, 'DescribeDelegationToken': 0, 'AlterReplicaLogDirs': 0, 'DescribeLogDirs': 0, 'Produce': 2, 'Fetch': 3, 'ListOffsets': 0, 'OffsetCommit': 1, 'OffsetFetch': 0, 'CreateTopics': 1, 'DeleteTopics': 0, 'OffsetForLeaderEpoch': 1, 'DescribeConfigs': 0, 'WriteTxnMarkers': 0}


def oracle_of(api, version):
    return '2.8.2' if version <= DROPPED.get(api, -1) else '4.4.0'


# --- the cases ------------------------------------------------------------------------------------------------------

def edge_values(f):
    t = f['type']
    if t in MAX:
        return [-2, -1, 0, 1, -MAX[t] - 1, MAX[t]]
    return {'string': ['', None, 'no-such', 'a b', LONG], 'uuid': [ZERO, UNKNOWN_ID], 'bool': [True, False], 'bytes': [None, b''], 'records': []}.get(t, [[], None] if t.startswith('[]') else [None])


def word(value):
    return f'{len(value)} characters' if isinstance(value, str) and len(value) > 60 else repr(value)


def cases_of(api, version):
    """(name, steps) of every case of an API that a version can express."""
    fields, valid = SCHEMA[api['name']]['request']['fields'], api['body']
    yield 'valid', [*api['before'], (ME, ME, valid)]
    sample = resolve(valid, State(engine_fixtures, 'sample', version))
    for path, f in paths(fields, sample) if api['edges'] else ():
        holder = place(sample, path)
        if holder is None or '.'.join(path) in api['skip'] or any(part in api['skip'] for part in path) or not all(within(version, g['versions']) for g in along(fields, path)):
            continue
        for value in edge_values(f):
            if holder.get(f['name']) != value or type(holder.get(f['name'])) is not type(value):
                yield f'{".".join(path)} = {word(value)}', [*api['before'], (ME, ME, edged(valid, path, value))]
    for name, case in api['cases'].items():
        if isinstance(case, list):
            yield name, case
        else:
            yield name, [*api['before'], (ME, ME, changed(api['name'], valid, case))]


def along(fields, path):
    for name in path:
        f = next(f for f in fields if f['name'] == name)
        yield f
        fields = f.get('fields', ())


def edged(valid, path, value):
    def body(s):
        b = resolve(valid, s)
        place(b, path)[path[-1]] = value
        return b
    return body


def changed(api, valid, patch):
    return lambda s: patched(api, resolve(valid, s), resolve(patch, s) if callable(patch) else patch, s)


def is_too_much(api, name, version):
    """2.8.2 sets no limit to the partitions of one request, and dies of them."""
    return oracle_of(api, version) == '2.8.2' and api == 'CreateTopics' and ('10001' in name or name.endswith('NumPartitions = 2147483647'))


def label(*words):
    return re.sub('[^a-z0-9]+', '-', ' '.join(words).lower()).strip('-')[:200]


# --- one run --------------------------------------------------------------------------------------------------------

class Fixtures:
    ids, cluster, topics, groups = {}, None, tuple(FIXTURES), GROUPS


engine_fixtures = Fixtures()


def prepare(broker):
    deadline = time.time() + 60
    for name, (count, configs, batches) in FIXTURES.items():
        broker.topic(name, count, configs, batches)
    broker.call('DeleteRecords', 1, {'Topics': [{'Name': 'trimmed', 'Partitions': [{'PartitionIndex': 0, 'Offset': 2}]}], 'TimeoutMs': 5000})
    broker.can_ids = broker.newest('Metadata') >= 12
    from cases import commit, join, sync
    s = State(broker, 'with-member', 0)
    while broker.call('FindCoordinator', 0, {'Key': 'with-member'})['ErrorCode'] != 0:
        time.sleep(0.1)  # this is what creates __consumer_offsets
    while time.time() < deadline:
        s.answers = [broker.call('JoinGroup', 3, resolve(join(s, SessionTimeoutMs=1800000), s))]
        if s.answers[0]['ErrorCode'] == 0:
            break
        time.sleep(0.1)
    answer = broker.call('SyncGroup', 2, sync(s))
    assert answer['ErrorCode'] == 0, (s.answers, answer)
    while time.time() < deadline:
        answer = broker.call('OffsetCommit', 5, resolve(commit(s, 'with-offsets'), s))
        if answer['Topics'][0]['Partitions'][0]['ErrorCode'] == 0:
            break
        time.sleep(0.1)
    while broker.call('InitProducerId', 4, {'TransactionalId': None, 'TransactionTimeoutMs': 60000})['ErrorCode'] == 14:
        time.sleep(0.1)  # the first block of producer ids is on its way
    while broker.call('FindCoordinator', 1, {'Key': 'first', 'KeyType': 1})['ErrorCode'] != 0:
        time.sleep(0.1)  # this is what creates __transaction_state
    while broker.call('InitProducerId', 4, {'TransactionalId': 'first', 'TransactionTimeoutMs': 60000})['ErrorCode'] != 0:
        time.sleep(0.1)
    broker.learn_ids()


def answer_all(broker, wanted, golden=None):
    """{(api, case, version): masked answers} for the versions that `wanted` says."""
    prepare(broker)
    told, spent = {}, collections.Counter()
    engine_fixtures.ids, engine_fixtures.cluster = broker.ids, broker.cluster
    for api in APIS:
        for version in range(NEWEST[api['name']] + 1):
            for name, steps in cases_of(api, version):
                if is_too_much(api['name'], name, version) or not wanted(api['name'], name, version):
                    continue
                s = State(broker, label(api['name'], name, f'v{version}'), version)
                steps = [step if step[0] is not ME else (api['name'], step[1], step[2]) for step in steps]
                begin = time.time()
                expected = None if golden is None else golden.get((api['name'], name, version), ())
                answers = run_steps(broker, steps, s, expected)
                spent[api['name'], name] += time.time() - begin
                if name == 'null records':
                    broker.drop()  # 2.8.2 answers it twice
                if (api['name'], name, version) in told:
                    raise SystemExit(f'two cases are named {api["name"]} {name}')
                f = Fixtures()
                f.main = api['name']
                f.own = any(step[0] == '@topic' for step in steps)
                told[api['name'], name, version] = unnamed([finish(a, answer, f, api['name'], steps, s) for a, answer in answers], s.name)
    if os.environ.get('SLOW'):
        print(*spent.most_common(20), sep='\n')
    return told


def unnamed(answers, own):
    """Without the case's own name, so that the same answer in two versions is one line of the golden file."""
    return json.loads(json.dumps(answers).replace(own, '<own>'))


def finish(name, answer, fixtures, api, steps, s):
    body = resolve(steps[-1][2], s) if len(steps[-1]) == 3 and name == api else {}
    fixtures.whole = not (body.get('Topics') if isinstance(body, dict) else True)
    out = masked(name, answer, fixtures)
    if name == 'Produce' and not fixtures.own and isinstance(out, dict):
        for t in out['Responses']:
            for p in t['PartitionResponses']:
                if p['BaseOffset'] >= 0:
                    p['BaseOffset'] = '<offset>'
    return out


# --- golden files ---------------------------------------------------------------------------------------------------

def golden_path(version):
    return HERE / f'golden-{version}.jsonl'


def spans(versions):
    """[0,1,2,5] as "0-2,5"."""
    parts, versions = [], sorted(versions)
    for v in versions:
        if parts and parts[-1][1] == v - 1:
            parts[-1][1] = v
        else:
            parts.append([v, v])
    return ','.join(f'{a}-{b}' if a < b else str(a) for a, b in parts)


def unspan(text):
    for part in text.split(','):
        a, _, b = part.partition('-')
        yield from range(int(a), int(b or a) + 1)


def write_golden(version, told):
    grouped = {}
    for (api, case, v), answers in told.items():
        grouped.setdefault((api, case, json.dumps(answers, sort_keys=True)), []).append(v)
    with golden_path(version).open('w') as out:
        for (api, case, answers), versions in grouped.items():
            out.write(f'{{"api": "{api}", "case": {json.dumps(case)}, "versions": "{spans(versions)}", "answers": {answers}}}\n')


def read_golden():
    golden = {}
    for version in ('4.4.0', '2.8.2'):
        if golden_path(version).exists():
            for line in golden_path(version).open():
                d = json.loads(line)
                for v in unspan(d['versions']):
                    if oracle_of(d['api'], v) == version:
                        golden[d['api'], d['case'], v] = d['answers']
    return golden


# --- comparison -----------------------------------------------------------------------------------------------------

def differences(kafka, klamm, at=''):
    if isinstance(kafka, dict) and isinstance(klamm, dict):
        for k in sorted(kafka.keys() | klamm.keys()):
            yield from differences(kafka.get(k, '(absent)'), klamm.get(k, '(absent)'), f'{at}.{k}' if at else k)
    elif isinstance(kafka, list) and isinstance(klamm, list):
        keyed = [by_name(x) for x in (kafka, klamm)]
        if all(keyed):
            yield from differences(*keyed, at)
        elif len(kafka) != len(klamm):
            yield at, kafka, klamm
        else:
            for i, (a, b) in enumerate(zip(kafka, klamm)):
                yield from differences(a, b, f'{at}[{i}]')
    elif at.endswith('Records') and ':v0:' in str(kafka) + str(klamm) or ':v1:' in str(kafka) + str(klamm):
        # Kafka fills what it announced before it had converted with a part of a message, which clients skip.
        if without_rest(kafka) != without_rest(klamm):
            yield at, kafka, klamm
    elif kafka != klamm and not (klamm == '<message>' and not kafka and at.endswith('Message')):
        yield at, kafka, klamm


def without_rest(records):
    return re.sub(r' [+][0-9]+$', '', records) if isinstance(records, str) else records


def by_name(elements):
    """A list of named things as a dict, so that one missing entry is one difference."""
    if len(elements) > 1 and all(isinstance(e, dict) and 'Name' in e and 'Value' in e for e in elements):
        return {e['Name']: e for e in elements}
    return None


class Accepted:
    """The rows of differences.md."""

    def __init__(self, path):
        self.rows, self.used = [], set()
        for line in path.read_text().splitlines() if path.exists() else ():
            cells = [c.strip().replace('\\|', '|') for c in re.split(r'(?<!\\)\|', line.strip('| '))]
            if len(cells) == 5 and cells[0] in NEWEST:
                self.rows.append(cells)

    def reason(self, api, case, version, field):
        for i, (a, versions, c, f, reason) in enumerate(self.rows):
            if a == api and version in unspan(versions) and any(fnmatch.fnmatchcase(case, p.strip(' `')) for p in c.split(' / ')) and any(fnmatch.fnmatchcase(field, p.strip(' `').replace('[', '[[]')) for p in f.split(' / ')):
                self.used.add(i)
                return reason
        return None

    def unused(self):
        return [row for i, row in enumerate(self.rows) if i not in self.used]


class Listed:
    """The lines of accepted.tsv: API, versions, case, field."""

    PATH = HERE / 'accepted.tsv'

    def __init__(self):
        self.known, self.seen = set(), {}
        for line in self.PATH.read_text().splitlines() if self.PATH.exists() else ():
            api, versions, case, field = line.split('\t')
            self.known.update((api, version, case, field) for version in unspan(versions))

    def holds(self, *difference):
        self.seen[difference] = None
        return difference in self.known

    def unused(self):
        return self.grouped(sorted(self.known - self.seen.keys()))

    def write(self):
        self.PATH.write_text(''.join('\t'.join(line) + '\n' for line in self.grouped(self.seen)))

    @staticmethod
    def grouped(differences):
        lines = {}
        for api, version, case, field in differences:
            lines.setdefault((api, case, field), []).append(version)
        return [(api, spans(versions), case, field) for (api, case, field), versions in lines.items()]


def compare(golden, told, everything, partial, accept):
    accepted, listed, found, open_ = Accepted(HERE / 'differences.md'), Listed(), collections.OrderedDict(), 0
    for key, answers in told.items():
        if key not in golden:
            found.setdefault((key[0], key[1], '', 'nothing recorded', '', None), []).append(key[2])
            continue
        for field, kafka, klamm in differences(golden[key], answers):
            reason = accepted.reason(key[0], key[1], key[2], field)
            if reason is not None and not listed.holds(key[0], key[2], key[1], field) and not accept:
                reason = None
            if reason is None or everything:
                found.setdefault((key[0], key[1], field, json.dumps(kafka), json.dumps(klamm), reason), []).append(key[2])
    for (api, case, field, kafka, klamm, reason), versions in found.items():
        open_ += reason is None
        print(f'{api} v{spans(versions)}, {case}: {field}: Kafka {kafka[:300]}, Klamm {klamm[:300]}' + (f'  (accepted: {reason})' if reason else ''))
    missing = [] if partial else sorted(golden.keys() - told.keys())
    for key in missing[:10]:
        print('recorded, but no case any more:', *key)
    unused = [] if partial else accepted.unused()
    for row in unused:
        print('differences.md accepts what does not differ:', ' | '.join(row))
    if accept:
        listed.write()
    absent = [] if partial or accept else listed.unused()
    for line in absent[:40]:
        print('accepted.tsv names what does not differ:', *line)
    print(f'{len(told)} requests with {sum(map(len, told.values()))} answers compared; {open_} differences; {len(accepted.used)} reasons for {len(listed.seen)} accepted ones')
    return not open_ and not missing and not unused and not absent


def offered(broker):
    """What a broker says that it serves: each API with its newest version."""
    return [(BY_KEY[k['ApiKey']]['name'], k['MaxVersion']) for k in broker.call('ApiVersions', 0, {})['ApiKeys']]


def complaints(log):
    """Lines of the broker's log that only a fault of its own writes."""
    if log and pathlib.Path(log).exists():
        text = re.sub('\x1b\\[[0-9;]*m', '', pathlib.Path(log).read_text(errors='replace'))
        return [line for line in text.splitlines() if ' ERROR ' in line or 'panicked' in line]
    return []


# --- brokers started here -------------------------------------------------------------------------------------------

def start_klamm(port, folder):
    log = open(folder / 'klamm.log', 'w')
    overrides = [f'listeners=PLAINTEXT://127.0.0.1:{port}', f'log.dirs={folder}/data', 'num.partitions=4', 'group.initial.rebalance.delay.ms=0']
    process = subprocess.Popen([KLAMM.resolve(), *(w for o in overrides for w in ('--override', o))], cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    for _ in range(500):
        try:
            socket.create_connection(('127.0.0.1', port), 1).close()
            return process
        except OSError:
            time.sleep(0.02)
    raise SystemExit('Klamm does not listen: ' + (folder / 'klamm.log').read_text())


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument('--bootstrap')
    arguments.add_argument('--record')
    arguments.add_argument('--port', type=int, default=24510)
    arguments.add_argument('--all', action='store_true')
    arguments.add_argument('--accept', action='store_true')
    arguments.add_argument('parts', nargs='*')
    a = arguments.parse_args()
    if a.accept and a.parts:
        arguments.error('--accept is of all cases')
    begin = time.time()
    chosen = lambda api, case: not a.parts or any(part in f'{api} {case}' for part in a.parts)
    with tempfile.TemporaryDirectory(prefix='klamm-wire-') as folder:
        folder = pathlib.Path(folder)
        if a.record:
            oracle = HERE / '../oracle/kafka'
            if not a.bootstrap:
                subprocess.run(['bash', oracle, 'start', a.record, str(a.port), folder], check=True)
            try:
                broker = Broker(a.bootstrap or f'127.0.0.1:{a.port}')
                told = answer_all(broker, lambda api, case, version: oracle_of(api, version) == a.record and chosen(api, case))
            finally:
                if not a.bootstrap:
                    subprocess.run(['bash', oracle, 'stop', folder])
            if a.parts:
                told = {**{k: v for k, v in read_golden().items() if oracle_of(k[0], k[2]) == a.record}, **told}
            write_golden(a.record, told)
            print(f'{len(told)} requests recorded in {time.time() - begin:.1f} s')
            return 0
        process = None if a.bootstrap else start_klamm(a.port, folder)
        try:
            broker, golden = Broker(a.bootstrap or f'127.0.0.1:{a.port}'), read_golden()
            uncovered = [f'{name} is served up to v{newest}; the cases go to v{NEWEST.get(name, -1)}' for name, newest in offered(broker) if NEWEST.get(name) != newest]
            told = answer_all(broker, lambda api, case, version: chosen(api, case), golden)
        finally:
            if process:
                process.terminate()
                process.wait()
        good = compare(golden, told, a.all, bool(a.parts), a.accept)
        for line in uncovered:
            print(line)
            good = False
        errors = complaints(os.environ.get('BROKER_LOG') or folder / 'klamm.log')
        for line in errors[:40]:
            print('in the log:', line[:400])
        print(f'{time.time() - begin:.1f} s')
        return 0 if good and not errors else 1


if __name__ == '__main__':
    sys.exit(main())

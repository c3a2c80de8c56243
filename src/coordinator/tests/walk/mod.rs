//! The world of the walk: the real state machine, its log in memory, and real partitions on a simulated disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use klamm_coordinator::TransactionSettings;
use klamm_coordinator::transaction::{
    Effects, End, Init, Now, Partitions, Producer, Reply, Request, Ticket, TransactionRecord,
    TransactionShard, TransactionVersion, WriteMarkers,
};
use klamm_model::{
    ErrorCode, IsolationLevel, LeaderEpoch, NodeId, ProducerEpoch, ProducerId, TopicPartition, Uuid,
};
use klamm_partition::{
    AppendOptions, Leadership, Origin, Partition, PartitionSettings, ReadOptions, Reader, TransactionMarker,
    Verification, VerificationGuard,
};
use klamm_records::control::ControlRecord;
use klamm_records::{BatchBuilder, BatchSettings, batches};
use klamm_storage::{LogConfig, LogStore, StoreSettings};
use klamm_testing::{SeededRandom, SimulatedClock, SimulatedDisk};

/// What happens next.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A producer starts anew; perhaps it does not hear the answer.
    Init { producer: usize, is_heard: bool },
    /// A producer sends a batch; perhaps it is under way for long after the coordinator was asked.
    Produce { producer: usize, partition: usize, is_late: bool },
    /// A batch that was under way arrives.
    Arrive { which: usize },
    /// A producer ends its transaction; perhaps it does not hear the answer, and ends it again later.
    End { producer: usize, is_commit: bool, is_heard: bool },
    /// A marker is written; perhaps the network brings it once more, later.
    Mark { which: usize, again: bool },
    /// A marker that was under way for long arrives.
    Stray { which: usize },
    /// Another coordinator takes over.
    Restart,
    /// More time passes than a transaction may take.
    Wait,
}

/// How a transaction has ended, as far as its producer was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Nothing,
    Committed,
    Aborted,
}

/// A transaction as its producer sees it.
struct Story {
    told: Told,
    /// Whether its producer has asked to commit it.
    may_be_visible: bool,
    /// What the partitions have taken of it.
    taken: BTreeSet<String>,
}

/// A process with a transactional id. Two share one id, so that one fences the other.
struct Client {
    transactional_id: &'static str,
    version: TransactionVersion,
    identity: Option<(ProducerId, ProducerEpoch)>,
    sequences: [i32; 2],
    /// The number of its open transaction.
    story: Option<usize>,
    /// An end whose answer it has not heard. It does nothing else before.
    ending: Option<bool>,
    /// After an error it may only abort, or start anew.
    failed: bool,
}

/// A batch that was sent when the coordinator had said yes.
struct UnderWay {
    producer: usize,
    partition: usize,
    story: usize,
    value: String,
    batch: Bytes,
    guard: Option<VerificationGuard>,
}

pub(crate) struct World {
    shard: TransactionShard,
    log: Vec<(Bytes, Option<Bytes>)>,
    coordinator_epoch: i32,
    now: Now,
    next_id: i64,
    partitions: Vec<Partition>,
    _stores: Vec<LogStore>,
    clients: Vec<Client>,
    stories: Vec<Story>,
    under_way: Vec<UnderWay>,
    markers: Vec<(WriteMarkers, BTreeSet<usize>)>,
    /// Markers that nobody waits for: repeated ones, and those of coordinators that are gone.
    strays: Vec<(TransactionMarker, usize)>,
    refused: BTreeSet<String>,
    values: usize,
}

const NODE: NodeId = NodeId(1);
const TOPIC: &str = "t";

fn partition(index: i32) -> (Partition, LogStore) {
    let clock = Arc::new(SimulatedClock::new(1_700_000_000_000));
    let (disk, random) = (Arc::new(SimulatedDisk::new(1)), Arc::new(SeededRandom::new(1)));
    let log_dirs = vec![Path::new("/data").to_owned()];
    let store = LogStore::open(StoreSettings::new(log_dirs, NODE, disk, clock.clone(), random));
    let store = store.expect("an empty directory");
    store.load(&|_| LogConfig::default()).expect("nothing to load");
    let id = Uuid([7; 16]);
    let log = store.create(&TopicPartition::new(TOPIC, index), id, LogConfig::default()).expect("a log");
    let partition = Partition::new(id, NODE, log, 0, PartitionSettings::default(), clock);
    let leadership = Leadership {
        leader: Some(NODE),
        leader_epoch: LeaderEpoch(0),
        partition_epoch: 0,
        replicas: vec![NODE],
        isr: vec![NODE],
        lost: Vec::new(),
    };
    partition.become_leader(&leadership).expect("it leads");
    (partition, store)
}

fn client(transactional_id: &'static str, version: TransactionVersion) -> Client {
    Client {
        transactional_id,
        version,
        identity: None,
        sequences: [0; 2],
        story: None,
        ending: None,
        failed: false,
    }
}

impl World {
    pub(crate) fn new() -> World {
        let (partitions, stores) = (0..2).map(partition).unzip();
        let (old, new) = (TransactionVersion::OLD, TransactionVersion::NEW);
        let mut world = World {
            shard: TransactionShard::new(Arc::new(TransactionSettings::default()), 0),
            log: Vec::new(),
            coordinator_epoch: 0,
            now: Now { wall_ms: 1_000_000, monotonic_ms: 0 },
            next_id: 0,
            partitions,
            _stores: stores,
            clients: vec![client("shared", new), client("shared", new), client("old", old)],
            stories: Vec::new(),
            under_way: Vec::new(),
            markers: Vec::new(),
            strays: Vec::new(),
            refused: BTreeSet::new(),
            values: 0,
        };
        let effects = world.shard.finish_loading(world.now);
        world.carry_out(effects);
        world
    }

    pub(crate) fn take(&mut self, step: Step) {
        match step {
            Step::Init { producer, is_heard } => self.init(producer, is_heard),
            Step::Produce { producer, partition, is_late } => self.produce(producer, partition, is_late),
            Step::Arrive { which } if !self.under_way.is_empty() => {
                let batch = self.under_way.remove(which % self.under_way.len());
                self.arrive(batch);
            }
            Step::Arrive { .. } => {}
            Step::End { producer, is_commit, is_heard } => self.end(producer, is_commit, is_heard),
            Step::Mark { which, again } => self.mark(which, again),
            Step::Stray { which } if !self.strays.is_empty() => {
                let (marker, partition) = self.strays.remove(which % self.strays.len());
                self.write(&marker, partition);
            }
            Step::Stray { .. } => {}
            Step::Restart => self.restart(),
            Step::Wait => self.wait(),
        }
    }

    fn init(&mut self, producer: usize, is_heard: bool) {
        let init = Init {
            transactional_id: self.clients[producer].transactional_id.to_owned(),
            timeout_ms: 15_000,
            has: None,
            unused: None,
        };
        let reply = self.ask(Request::Init(init));
        let client = &mut self.clients[producer];
        // What it did before is over for it, however it ended.
        (client.identity, client.story, client.ending, client.failed) = (None, None, None, false);
        client.sequences = [0; 2];
        if let (Reply::Producer(id, epoch), true) = (reply, is_heard) {
            client.identity = Some((id, epoch));
        }
    }

    fn produce(&mut self, producer: usize, partition: usize, is_late: bool) {
        let client = &self.clients[producer];
        let Some((id, epoch)) = client.identity.filter(|_| client.ending.is_none() && !client.failed) else {
            return;
        };
        // The next batch of a partition waits for the one before.
        if self.under_way.iter().any(|one| one.producer == producer && one.partition == partition) {
            return;
        }
        let story = client.story.unwrap_or_else(|| {
            self.stories.push(Story { told: Told::Nothing, may_be_visible: false, taken: BTreeSet::new() });
            self.stories.len() - 1
        });
        let sequence = client.sequences[partition];
        let (version, transactional_id) = (client.version, client.transactional_id.to_owned());
        self.clients[producer].story = Some(story);
        self.values += 1;
        let value = format!("{story}/{}", self.values);
        let named = Producer { transactional_id, id, epoch };
        let places = Partitions::from([(TOPIC.into(), [partition as i32].into())]);
        let is_implicit = version.raises_epochs();
        if !is_implicit {
            let add = Request::Add { producer: named.clone(), partitions: places.clone(), version };
            if self.ask(add) != Reply::Done {
                self.clients[producer].failed = true;
                return;
            }
        }
        let verification = self.partitions[partition].verify_transaction(id, epoch, sequence, is_implicit);
        let guard = match verification {
            Verification::Ongoing => None,
            Verification::Needed(guard) => {
                let question = match is_implicit {
                    true => Request::Add { producer: named, partitions: places, version },
                    false => Request::Verify { producer: named, partitions: places },
                };
                let is_in = match self.ask(question) {
                    Reply::Done => true,
                    Reply::Verified(all) => all.iter().all(|(_, _, error)| *error == ErrorCode::None),
                    _ => false,
                };
                if !is_in {
                    self.clients[producer].failed = true;
                    self.refused.insert(value);
                    return;
                }
                Some(guard)
            }
        };
        let mut builder = BatchBuilder::v2(BatchSettings {
            producer_id: id,
            producer_epoch: epoch,
            base_sequence: sequence,
            transactional: true,
            ..Default::default()
        });
        builder.append(1_700_000_000_000, None, Some(value.as_bytes()), &[]);
        let batch = UnderWay { producer, partition, story, value, batch: builder.build(), guard };
        if is_late {
            self.under_way.push(batch);
        } else {
            self.arrive(batch);
        }
    }

    fn arrive(&mut self, batch: UnderWay) {
        // A batch of an old producer that is late by a transaction carries the epoch of the next one. From that
        // only the second part of KIP-890 protects, so here the network loses it.
        let client = &self.clients[batch.producer];
        if !client.version.raises_epochs() && client.story.is_some_and(|story| story != batch.story) {
            return;
        }
        let options = AppendOptions {
            origin: Origin::Client,
            produce_version: 12,
            acks: -1,
            expected_leader_epoch: None,
            guard: batch.guard,
        };
        let appended = self.partitions[batch.partition].append_as_leader(batch.batch, &options);
        let client = &mut self.clients[batch.producer];
        let is_current = client.story == Some(batch.story);
        match appended {
            Ok(_) => {
                self.stories[batch.story].taken.insert(batch.value);
                if is_current {
                    client.sequences[batch.partition] += 1;
                }
            }
            Err(_) => {
                self.refused.insert(batch.value);
                client.failed |= is_current;
            }
        }
    }

    fn end(&mut self, producer: usize, is_commit: bool, is_heard: bool) {
        let client = &self.clients[producer];
        let Some((id, epoch)) = client.identity else { return };
        let Some(story) = client.story else { return };
        // It gives up on batches that it has not heard of, and then it may only abort.
        let is_waiting =
            self.under_way.iter().any(|batch| batch.producer == producer && batch.story == story);
        // What was asked without an answer is asked again, and nothing else.
        let is_commit = client.ending.unwrap_or(is_commit && !client.failed && !is_waiting);
        let transactional_id = client.transactional_id.to_owned();
        let (named, version) = (Producer { transactional_id, id, epoch }, client.version);
        let before = self.shard.transaction(&named.transactional_id).cloned();
        let is_of_now =
            before.as_ref().is_some_and(|now| (now.producer_id, now.producer_epoch) == (id, epoch));
        let reply = self.ask(Request::End(End { producer: named.clone(), is_commit, version, unused: None }));
        if !is_of_now {
            let after = self.shard.transaction(&named.transactional_id);
            assert_eq!(after, before.as_ref(), "an end with an earlier epoch has changed something");
        }
        let client = &mut self.clients[producer];
        client.ending = Some(is_commit);
        self.stories[story].may_be_visible |= is_commit;
        if !is_heard {
            return;
        }
        match reply {
            Reply::Producer(id, epoch) => {
                self.stories[story].told = if is_commit { Told::Committed } else { Told::Aborted };
                if client.version.raises_epochs() {
                    client.sequences = [0; 2];
                }
                // Without a new epoch, who does not know what became of a batch knows no next sequence.
                let goes_on = client.version.raises_epochs() || !is_waiting;
                (client.identity, client.story, client.ending) = (goes_on.then_some((id, epoch)), None, None);
                client.failed = false;
            }
            Reply::Refused(ErrorCode::ConcurrentTransactions) => {}
            // It is fenced, or its transaction is gone: it can only start anew.
            _ => (client.identity, client.story, client.ending) = (None, None, None),
        }
    }

    fn mark(&mut self, which: usize, again: bool) {
        let places: Vec<(usize, usize)> = self
            .markers
            .iter()
            .enumerate()
            .flat_map(|(number, (_, left))| left.iter().map(move |partition| (number, *partition)))
            .collect();
        let Some((number, partition)) = places.get(which % places.len().max(1)).copied() else {
            return self.note_written();
        };
        let marker = marker_of(&self.markers[number].0);
        self.write(&marker, partition);
        self.markers[number].1.remove(&partition);
        // Before KIP-890 nothing but the order of one connection keeps a repeated marker from the next transaction.
        if again && marker.transaction_version >= 2 {
            self.strays.push((marker, partition));
        }
        self.note_written();
    }

    /// Writes a marker as the node does it: whoever is behind, by epoch or by coordinator, has nothing to do.
    fn write(&self, marker: &TransactionMarker, partition: usize) {
        if let Err(error) = self.partitions[partition].end_transaction(marker, None) {
            let fenced = [ErrorCode::InvalidProducerEpoch, ErrorCode::TransactionCoordinatorFenced];
            assert!(fenced.contains(&error.code()), "{error}");
        }
    }

    /// Tells the coordinator of all whose markers are written.
    fn note_written(&mut self) {
        let (done, rest) =
            std::mem::take(&mut self.markers).into_iter().partition(|(_, left)| left.is_empty());
        self.markers = rest;
        let done: Vec<(WriteMarkers, BTreeSet<usize>)> = done;
        for (markers, _) in done {
            let written = Request::MarkersWritten { producer: markers.producer, unused: None };
            assert_eq!(self.ask(written), Reply::Done);
        }
    }

    fn restart(&mut self) {
        self.coordinator_epoch += 1;
        // What the last one has not heard of may come yet, or never.
        for (markers, left) in std::mem::take(&mut self.markers) {
            self.strays.extend(left.into_iter().map(|partition| (marker_of(&markers), partition)));
        }
        let settings = Arc::new(TransactionSettings::default());
        self.shard = TransactionShard::new(settings, self.coordinator_epoch);
        for (key, value) in &self.log {
            let record = TransactionRecord::decode(key.clone(), value.clone()).expect("a record");
            self.shard.replay(record);
        }
        let effects = self.shard.finish_loading(self.now);
        self.carry_out(effects);
    }

    fn wait(&mut self) {
        self.now.wall_ms += 30_000;
        self.now.monotonic_ms += 30_000;
        while let Some(effects) = self.shard.expire(self.now) {
            self.carry_out(effects);
        }
    }

    fn ask(&mut self, request: Request) -> Reply {
        let effects = self.shard.handle(self.now, Ticket(0), request.clone());
        match self.carry_out(effects).expect("an answer") {
            Reply::NeedsProducerId => {
                self.next_id += 1;
                let unused = Some(ProducerId(self.next_id));
                let again = match request {
                    Request::Init(init) => Request::Init(Init { unused, ..init }),
                    Request::End(end) => Request::End(End { unused, ..end }),
                    Request::MarkersWritten { producer, .. } => Request::MarkersWritten { producer, unused },
                    other => panic!("{other:?} needs no id"),
                };
                let effects = self.shard.handle(self.now, Ticket(0), again);
                self.carry_out(effects).expect("an answer")
            }
            reply => reply,
        }
    }

    fn carry_out(&mut self, effects: Effects) -> Option<Reply> {
        let mut answer = None;
        let mut todo = vec![effects];
        while let Some(effects) = todo.pop() {
            answer = effects.replies.into_iter().map(|(_, reply)| reply).next().or(answer);
            for markers in effects.commands {
                let indexes = markers.partitions.values().flatten();
                let left = indexes.map(|index| *index as usize).collect();
                self.markers.push((markers, left));
            }
            for write in effects.writes {
                for record in write.records {
                    self.log.push(record.encode().expect("encodes"));
                    self.shard.replay(record);
                }
                todo.push(self.shard.completed(self.now, write.then, Ok(())));
            }
        }
        answer
    }

    /// Lets everything come to its end: what is under way arrives, transactions time out, markers are written.
    pub(crate) fn settle(&mut self) {
        while let Some(batch) = self.under_way.pop() {
            self.arrive(batch);
        }
        self.restart();
        for _ in 0..2 {
            self.wait();
            while !self.markers.is_empty() {
                self.mark(0, false);
            }
        }
    }

    /// Nobody who reads committed data sees what nobody has asked to commit, at any time.
    pub(crate) fn check_visible(&self) {
        for value in self.partitions.iter().flat_map(read_committed) {
            let story = value.split('/').next().and_then(|number| number.parse::<usize>().ok());
            let is_asked = story.is_some_and(|story| self.stories[story].may_be_visible);
            assert!(is_asked, "{value} is visible before it was asked to commit");
        }
    }

    pub(crate) fn check(&self) {
        let committed: BTreeSet<String> = self.partitions.iter().flat_map(read_committed).collect();
        for partition in &self.partitions {
            let offsets = partition.offsets();
            assert_eq!(offsets.last_stable, offsets.log_end, "a transaction is open for ever");
        }
        for value in &committed {
            assert!(!self.refused.contains(value), "{value} was refused, and is there");
        }
        for (number, story) in self.stories.iter().enumerate() {
            let seen: BTreeSet<&String> =
                committed.iter().filter(|value| value.starts_with(&format!("{number}/"))).collect();
            let taken: BTreeSet<&String> = story.taken.iter().collect();
            match story.told {
                Told::Committed => assert_eq!(seen, taken, "{number} was committed"),
                Told::Aborted => assert!(seen.is_empty(), "{number} was aborted, and {seen:?} is there"),
                Told::Nothing => {
                    assert!(seen.is_empty() || seen == taken, "of {number} only {seen:?} is there");
                }
            }
        }
    }
}

fn marker_of(markers: &WriteMarkers) -> TransactionMarker {
    TransactionMarker {
        producer_id: markers.producer.id,
        producer_epoch: markers.producer.epoch,
        coordinator_epoch: markers.coordinator_epoch,
        is_commit: markers.is_commit,
        transaction_version: markers.version.0 as i8,
    }
}

/// What a consumer shows: it skips what the broker lists as aborted, from there up to the abort marker.
fn read_committed(partition: &Partition) -> Vec<String> {
    let options = ReadOptions {
        reader: Reader::Consumer(IsolationLevel::ReadCommitted),
        bytes_max: 1 << 24,
        at_least_one: true,
        current_leader_epoch: None,
        last_fetched_epoch: None,
    };
    let read = partition.read(0, &options).expect("a read");
    let mut aborted: BTreeMap<i64, ProducerId> = BTreeMap::new();
    for transaction in read.aborted.expect("a list") {
        aborted.insert(transaction.first_offset, transaction.producer_id);
    }
    let mut skipped = BTreeSet::new();
    let mut values = Vec::new();
    let bytes = read.slice.map(|slice| slice.to_bytes().expect("bytes")).unwrap_or_default();
    for batch in batches(bytes) {
        let batch = batch.expect("a batch");
        let producer = batch.header.producer_id;
        let begun = aborted.range(..=batch.header.last_offset()).map(|(first, id)| (*first, *id));
        for (first, id) in begun.collect::<Vec<_>>() {
            aborted.remove(&first);
            skipped.insert(id);
        }
        if batch.header.is_control() {
            if let Ok(ControlRecord::EndTxn(marker)) = batch.control_record()
                && !marker.commit
            {
                skipped.remove(&producer);
            }
        } else if !skipped.contains(&producer) {
            let records = batch.records().expect("records");
            values.extend(
                records
                    .into_iter()
                    .map(|record| String::from_utf8(record.value.expect("a value").to_vec()).expect("text")),
            );
        }
    }
    values
}

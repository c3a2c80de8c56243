//! The replicas, the controller that decides about them, and what is under way between them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use klamm_model::{LeaderEpoch, NodeId, Offset, TopicPartition, Uuid};
use klamm_partition::{
    ActiveBrokers, AppendOptions, Fetched, FollowerProgress, IsrAnswer, IsrChange, Leadership, Origin,
    Partition, PartitionSettings, ReadError, ReadOptions, Reader,
};
use klamm_records::{BatchBuilder, BatchSettings};
use klamm_storage::{LogConfig, LogStore, StoreSettings};
use klamm_testing::{SeededRandom, SimulatedClock, SimulatedDisk};

const TOPIC: Uuid = Uuid([7; 16]);

/// `min.insync.replicas`.
pub(crate) const IN_SYNC_MIN: usize = 2;

/// One step of the walk. Those that mean nothing where the world stands change nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// A node that believes that it leads appends a record for acks=all.
    Append(usize),
    /// A follower asks, and the leader that it believes in answers; the answer is under way.
    Fetch(usize),
    /// A follower gets its answer.
    Deliver(usize),
    /// It never does.
    Lose(usize),
    /// A leader proposes a change of the in-sync replicas; it is under way.
    Propose(usize),
    /// The controller decides about a proposal. If its answer is lost, the leader learns from the metadata.
    Decide { node: usize, is_lost: bool },
    /// A node hears of the newest metadata.
    Learn(usize),
    /// The controller elects a member of the ISR.
    Elect(usize),
    /// The controller has not heard of a node for too long, be it alive or not.
    Fence(usize),
    /// It hears of it again.
    Unfence(usize),
    /// A process dies.
    Kill(usize),
    /// It starts, and registers anew.
    Start(usize),
    /// Time passes, in milliseconds.
    Wait(u64),
}

pub(crate) struct Node {
    pub(crate) id: NodeId,
    disk: SimulatedDisk,
    pub(crate) process: Option<Process>,
}

pub(crate) struct Process {
    _store: LogStore,
    pub(crate) partition: Partition,
    brokers: Arc<ActiveBrokers>,
    pub(crate) broker_epoch: i64,
    answer: Option<Answer>,
    proposal: Option<IsrChange>,
}

/// A leader's answer under way.
enum Answer {
    Fetched(Fetched),
    Diverging { diverging: (LeaderEpoch, Offset), leader_epoch: LeaderEpoch },
}

/// A record whose producer waits.
pub(crate) struct Waiting {
    pub(crate) node: usize,
    pub(crate) broker_epoch: i64,
    pub(crate) offset: Offset,
    pub(crate) leader_epoch: LeaderEpoch,
    pub(crate) value: u64,
}

/// How often the walk came to what it is for.
#[derive(Default, Debug)]
pub(crate) struct Tally {
    pub(crate) acknowledged: u64,
    pub(crate) unknown: u64,
    elections: u64,
    truncations: u64,
    isr_changes: u64,
    kills: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        self.acknowledged += other.acknowledged;
        self.unknown += other.unknown;
        self.elections += other.elections;
        self.truncations += other.truncations;
        self.isr_changes += other.isr_changes;
        self.kills += other.kills;
    }

    pub(crate) fn is_rich(&self) -> bool {
        let all =
            [self.acknowledged, self.unknown, self.elections, self.truncations, self.isr_changes, self.kills];
        all.iter().all(|count| *count > 20)
    }
}

pub(crate) struct World {
    clock: Arc<SimulatedClock>,
    pub(crate) nodes: Vec<Node>,
    /// What the controller has committed.
    pub(crate) committed: Leadership,
    /// The registrations of brokers that are not fenced.
    active: BTreeMap<NodeId, i64>,
    next_broker_epoch: i64,
    next_value: u64,
    pub(crate) waiting: Vec<Waiting>,
    /// What was acknowledged or read, by offset.
    pub(crate) seen: BTreeMap<Offset, u64>,
    pub(crate) end_told: Offset,
    /// What was seen to be wrong on the way.
    pub(crate) violation: Option<String>,
    pub(crate) tally: Tally,
    target_magic: i8,
}

impl Default for World {
    /// Of the newest format.
    fn default() -> World {
        World::storing(2)
    }
}

impl World {
    /// Three replicas in sync that store this format; the first one leads.
    pub(crate) fn storing(target_magic: i8) -> World {
        let ids = [NodeId(1), NodeId(2), NodeId(3)];
        let mut world = World {
            clock: Arc::new(SimulatedClock::new(1_700_000_000_000)),
            nodes: ids
                .iter()
                .map(|id| Node { id: *id, disk: SimulatedDisk::new(id.0 as u64), process: None })
                .collect(),
            committed: Leadership {
                leader: Some(ids[0]),
                leader_epoch: LeaderEpoch(0),
                partition_epoch: 0,
                replicas: ids.to_vec(),
                isr: ids.to_vec(),
                lost: Vec::new(),
            },
            active: BTreeMap::new(),
            next_broker_epoch: 1,
            next_value: 1,
            waiting: Vec::new(),
            seen: BTreeMap::new(),
            end_told: 0,
            violation: None,
            tally: Tally::default(),
            target_magic,
        };
        for (node, id) in ids.iter().enumerate() {
            let broker_epoch = world.open(node);
            world.active.insert(*id, broker_epoch);
        }
        (0..3).for_each(|node| world.learn(node));
        world
    }

    pub(crate) fn step(&mut self, step: Step) {
        match step {
            Step::Append(node) => self.append(node),
            Step::Fetch(node) => self.fetch(node),
            Step::Deliver(node) => self.deliver(node),
            Step::Lose(node) => drop(self.process(node).and_then(|process| process.answer.take())),
            Step::Propose(node) => self.propose(node),
            Step::Decide { node, is_lost } => self.decide(node, is_lost),
            Step::Learn(node) => self.learn(node),
            Step::Elect(node) => self.elect(node),
            Step::Fence(node) => self.fence(node),
            Step::Unfence(node) => self.unfence(node),
            Step::Kill(node) => self.kill(node),
            Step::Start(node) => self.start(node),
            Step::Wait(ms) => self.clock.advance(Duration::from_millis(ms)),
        }
    }

    fn process(&mut self, node: usize) -> Option<&mut Process> {
        self.nodes[node].process.as_mut()
    }

    /// Starts a process; returns the epoch of its registration.
    fn open(&mut self, node: usize) -> i64 {
        let Node { id, disk, .. } = &self.nodes[node];
        let log_dirs = vec![Path::new("/data").to_owned()];
        let random = Arc::new(SeededRandom::new(id.0 as u64));
        let settings = StoreSettings::new(log_dirs, *id, Arc::new(disk.clone()), self.clock.clone(), random);
        let store = LogStore::open(settings).unwrap();
        store.load(&|_| LogConfig::default()).unwrap();
        let name = TopicPartition::new("t", 0);
        let log = store.create(&name, TOPIC, LogConfig::default()).unwrap();
        let high_watermark = store.high_watermark(&name).unwrap_or(0);
        let settings = PartitionSettings {
            in_sync_replicas_min: IN_SYNC_MIN,
            target_magic: self.target_magic,
            ..PartitionSettings::default()
        };
        let brokers = Arc::new(ActiveBrokers::default());
        let partition = Partition::new(TOPIC, *id, log, high_watermark, settings, self.clock.clone())
            .with_brokers(brokers.clone());
        let broker_epoch = self.next_broker_epoch;
        self.next_broker_epoch += 1;
        let process =
            Process { _store: store, partition, brokers, broker_epoch, answer: None, proposal: None };
        self.nodes[node].process = Some(process);
        broker_epoch
    }

    fn append(&mut self, node: usize) {
        let value = self.next_value;
        let Some(process) = self.process(node) else { return };
        let mut batch = BatchBuilder::v2(BatchSettings::default());
        batch.append(1_700_000_000_000, None, Some(&value.to_be_bytes()), &[]);
        let options = AppendOptions {
            origin: Origin::Client,
            produce_version: 13,
            acks: -1,
            expected_leader_epoch: None,
            guard: None,
        };
        let broker_epoch = process.broker_epoch;
        let Ok(appended) = process.partition.append_as_leader(batch.build(), &options) else { return };
        self.next_value += 1;
        self.waiting.push(Waiting {
            node,
            broker_epoch,
            offset: appended.base_offset,
            leader_epoch: appended.leader_epoch,
            value,
        });
    }

    fn fetch(&mut self, node: usize) {
        let id = self.nodes[node].id;
        let Some(process) = &self.nodes[node].process else { return };
        let partition = &process.partition;
        let Some(leader) = partition.leader().filter(|leader| *leader != id) else { return };
        let (leader_epoch, from) = (partition.leader_epoch(), partition.offsets().log_end);
        let Some(of_leader) = &self.nodes[leader.0 as usize - 1].process else { return };
        if self.active.get(&id).is_some_and(|registered| *registered > process.broker_epoch) {
            return;
        }
        let options = ReadOptions {
            reader: Reader::Follower,
            bytes_max: 200,
            at_least_one: true,
            current_leader_epoch: Some(leader_epoch),
            last_fetched_epoch: partition.log().latest_epoch(),
        };
        let progress = FollowerProgress {
            node: id,
            broker_epoch: process.broker_epoch,
            leader_epoch: Some(leader_epoch),
            log_end: from,
            log_start: 0,
        };
        let answer = match of_leader.partition.read_for_follower(&options, progress) {
            Ok(read) => match read.diverging {
                Some(diverging) => Answer::Diverging { diverging, leader_epoch },
                None => Answer::Fetched(Fetched {
                    from,
                    leader_epoch,
                    records: read.slice.map(|slice| slice.to_bytes().unwrap()).unwrap_or_default(),
                    high_watermark: read.offsets.high_watermark,
                    log_start: read.offsets.log_start,
                }),
            },
            Err(ReadError::OutOfRange(offsets)) => {
                let violation = "a follower asks for what its leader may have";
                self.violation = Some(format!("{violation}: node {id} asks for {from} of {offsets:?}"));
                return;
            }
            Err(_) => return,
        };
        self.nodes[node].process.as_mut().expect("it runs").answer = Some(answer);
    }

    fn deliver(&mut self, node: usize) {
        let Some(process) = self.process(node) else { return };
        // What is refused was overtaken by an election.
        match process.answer.take() {
            Some(Answer::Fetched(fetched)) => drop(process.partition.append_as_follower(fetched)),
            Some(Answer::Diverging { diverging, leader_epoch }) => {
                let before = process.partition.offsets().log_end;
                let cut = process.partition.truncate_diverging(diverging, leader_epoch);
                self.tally.truncations += u64::from(cut.is_ok_and(|end| end < before));
            }
            None => {}
        }
    }

    fn propose(&mut self, node: usize) {
        let Some(process) = self.process(node) else { return };
        process.partition.reconsider_high_watermark();
        if let Some(change) = process.partition.propose_isr_change() {
            process.proposal = Some(change);
        }
    }

    fn decide(&mut self, node: usize, is_lost: bool) {
        let id = self.nodes[node].id;
        let active = self.active.clone();
        let Some(change) = self.process(node).and_then(|process| process.proposal.take()) else { return };
        let committed = &mut self.committed;
        let is_current = committed.leader == Some(id)
            && committed.leader_epoch == change.leader_epoch
            && committed.partition_epoch == change.partition_epoch;
        let may_join = |(member, epoch): &(NodeId, i64)| {
            active.get(member).is_some_and(|registered| *epoch == -1 || epoch == registered)
        };
        let answer = match is_current {
            false => IsrAnswer::Unknown,
            true if !change.isr.iter().all(may_join) => IsrAnswer::Refused,
            true => {
                committed.isr = change.isr.iter().map(|(member, _)| *member).collect();
                committed.partition_epoch += 1;
                self.tally.isr_changes += 1;
                IsrAnswer::Changed {
                    leader_epoch: committed.leader_epoch,
                    partition_epoch: committed.partition_epoch,
                    isr: committed.isr.clone(),
                }
            }
        };
        let answer = if is_lost { IsrAnswer::Unknown } else { answer };
        self.process(node).expect("it runs").partition.isr_answered(&change, answer);
    }

    fn learn(&mut self, node: usize) {
        let (committed, active) = (self.committed.clone(), self.active.clone());
        let id = self.nodes[node].id;
        let Some(process) = self.process(node) else { return };
        process.brokers.replace(active);
        process.partition.reconsider_high_watermark();
        if committed.leader == Some(id) {
            process.partition.become_leader(&committed).unwrap();
        } else {
            process.partition.become_follower(&committed);
        }
    }

    fn elect(&mut self, node: usize) {
        let id = self.nodes[node].id;
        if self.committed.isr.contains(&id) && self.active.contains_key(&id) {
            self.lead(Some(id));
        }
    }

    fn lead(&mut self, leader: Option<NodeId>) {
        self.committed.leader = leader;
        self.committed.leader_epoch.0 += 1;
        self.committed.partition_epoch += 1;
        self.tally.elections += 1;
    }

    /// The last member of an ISR stays it, and nobody leads.
    fn fence(&mut self, node: usize) {
        let id = self.nodes[node].id;
        self.active.remove(&id);
        if self.committed.isr.len() > 1 && self.committed.isr.contains(&id) {
            self.committed.isr.retain(|member| *member != id);
            self.committed.partition_epoch += 1;
        }
        if self.committed.leader == Some(id) {
            let next = self.committed.isr.iter().find(|member| self.active.contains_key(member)).copied();
            self.lead(next);
        }
    }

    fn unfence(&mut self, node: usize) {
        let id = self.nodes[node].id;
        let Some(process) = &self.nodes[node].process else { return };
        self.active.insert(id, process.broker_epoch);
        if self.committed.leader.is_none() && self.committed.isr.contains(&id) {
            self.lead(Some(id));
        }
    }

    fn kill(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        if node.process.take().is_some() {
            node.disk = node.disk.kill();
            self.tally.kills += 1;
        }
    }

    fn start(&mut self, node: usize) {
        if self.nodes[node].process.is_none() {
            // Its registration ends the session of the process before it.
            self.fence(node);
            self.open(node);
            self.learn(node);
        }
    }
}

/// The records of a log, by offset: the epoch of each and its value.
pub(crate) fn records_of(bytes: Bytes) -> BTreeMap<Offset, (LeaderEpoch, u64)> {
    let mut found = BTreeMap::new();
    for batch in klamm_records::batches(bytes) {
        let batch = batch.unwrap();
        for record in batch.records().unwrap() {
            let value = record.value.as_ref().expect("a value");
            let value = u64::from_be_bytes(value[..].try_into().unwrap());
            found.insert(record.offset, (batch.header.partition_leader_epoch, value));
        }
    }
    found
}

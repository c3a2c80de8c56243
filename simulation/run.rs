//! One run of one seed: a cluster forms, clients use it while it is mistreated, all faults end, it heals, and what
//! the clients saw is held against what is there.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use klamm_io::{Disk, OpenMode};
use klamm_model::{IsolationLevel, topic_name};
use klamm_testing::{HostClock, SeededRandom};
use tokio::task::JoinHandle;

use crate::checker::{self, Check, Final, Violation};
use crate::client::admin::{self, Moves, NewTopic};
use crate::client::consumer::{self, Subject};
use crate::client::member::{self, Group};
use crate::client::producer::{self, Kind};
use crate::client::transactor::{self, Identity, Protocol};
use crate::client::{Client, Surroundings};
use crate::faults::{FaultCounts, Troublemaker};
use crate::history::{Acks, Committer, Fate, History, Outcome, Recorder};
use crate::observer::{Counts, Observer};
use crate::settings::{BROKER_PORT, INTERNAL_PARTITIONS, LOG_DIR, min_in_sync};
use crate::trace::Trace;
use crate::world::{CLIENT_HOSTS, World, client_address};

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) nodes: i32,
    /// How long the cluster is mistreated.
    pub(crate) trouble: Duration,
}

impl Plan {
    /// Whether there are many topics: each fifth seed has them.
    fn has_crowd(&self) -> bool {
        self.seed.is_multiple_of(5)
    }
}

/// What came of it.
pub(crate) struct Report {
    /// All of the run, the time before and after the trouble too.
    pub(crate) simulated: Duration,
    pub(crate) counts: Counts,
    pub(crate) faults: FaultCounts,
    pub(crate) acknowledged: u64,
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
    pub(crate) read: u64,
    /// Offset commits of members that were answered.
    pub(crate) commits: u64,
    /// Transactions that were committed, as their producers know.
    pub(crate) transactions: u64,
    pub(crate) lost_with_acks_of_leader: u64,
    /// What all that was delivered and all lines of the trace come to: runs of one seed have the same.
    pub(crate) digest: u64,
    pub(crate) violations: Vec<Violation>,
}

/// How long a cluster may take to form, or to heal.
const HEALING_MAX: Duration = Duration::from_secs(180);

/// How long clients work on when all has healed: longer than a transaction may stay open.
const WORK_AFTER_HEALING: Duration = Duration::from_secs(30);

/// How often the nodes are looked at.
const LOOK_EVERY: u64 = 5;

/// The time after which clients that were asked to stop must have ended.
const CLIENTS_END_MAX: Duration = Duration::from_secs(150);

struct Running {
    world: World,
    observer: Observer,
    troublemaker: Troublemaker,
    surroundings: Surroundings,
    random: SeededRandom,
    violations: Vec<Violation>,
}

/// Runs a plan. Everything follows from it; what happens goes into the trace.
pub(crate) fn run(plan: &Plan, trace: &Trace) -> Report {
    let trace = trace.clone();
    trace.clone().follow(move || {
        let random = SeededRandom::new(plan.seed);
        let world = World::new(plan.nodes, &random, trace);
        let clock = world.clients.runtime.block_on(async { HostClock::starting_now(0) });
        let brokers = world.nodes.iter().map(|node| SocketAddr::new(node.address, BROKER_PORT)).collect();
        let surroundings = Surroundings::new(Recorder::default(), Arc::new(clock), brokers);
        let troublemaker = Troublemaker::new(random.fork(), Duration::ZERO);
        let observer = Observer::new(min_in_sync(plan.nodes));
        let mut running =
            Running { world, observer, troublemaker, surroundings, random, violations: Vec::new() };
        running.run(plan)
    })
}

impl Running {
    fn run(&mut self, plan: &Plan) -> Report {
        (0..CLIENT_HOSTS).for_each(|index| drop(self.world.network.host(client_address(index))));
        (0..self.world.nodes.len()).for_each(|index| self.world.start(index));
        let topics = topics(plan.nodes);
        let (mut finally, mut committed) = (Final::new(), Final::new());
        if self.heal("the cluster has not formed") {
            self.make_topics(&topics);
            let clients = self.start_clients(&topics, plan.has_crowd());
            let end = self.world.now() + plan.trouble;
            while self.world.now() < end && self.is_well() {
                self.step(true);
            }
            self.troublemaker.end_all(&mut self.world);
            if self.heal("the cluster has not healed") && self.watch_work() && self.end_clients(clients) {
                self.heal("the cluster has not come to rest");
                finally = self.read_all(IsolationLevel::ReadUncommitted);
                committed = self.read_all(IsolationLevel::ReadCommitted);
                self.ask_offsets();
                self.compare_replicas();
            }
        }
        let history = self.surroundings.recorder.take();
        let mut violations = std::mem::take(&mut self.violations);
        violations.append(&mut self.observer.violations);
        violations.extend(checker::check(&history, &finally, &committed));
        for text in self.world.trace.panics() {
            violations.push(Violation { check: Check::Died, text });
        }
        self.report(&history, &finally, violations)
    }

    fn report(&self, history: &History, finally: &Final, violations: Vec<Violation>) -> Report {
        let count = |wanted: fn(&Outcome) -> bool| {
            history.sent.iter().filter(|sent| wanted(&sent.outcome)).count() as u64
        };
        Report {
            simulated: self.world.now(),
            counts: self.observer.counts,
            faults: self.troublemaker.counts,
            acknowledged: count(|outcome| matches!(outcome, Outcome::Appended(_))),
            refused: count(|outcome| *outcome == Outcome::Failed),
            unknown: count(|outcome| *outcome == Outcome::Unknown),
            read: history.reads.iter().map(|read| read.records.len() as u64).sum(),
            commits: history.commits.iter().filter(|commit| commit.fate == Fate::Done).count() as u64,
            transactions: history.transactions.iter().filter(|ended| ended.is_committed()).count() as u64,
            digest: self.world.network.digest() ^ self.world.trace.digest(),
            lost_with_acks_of_leader: checker::lost_with_acks_of_leader(history, finally),
            violations,
        }
    }

    fn is_well(&self) -> bool {
        self.observer.violations.is_empty() && self.world.trace.panics().is_empty()
    }

    /// One step of the world, with or without new trouble.
    fn step(&mut self, with_trouble: bool) {
        for index in self.world.step() {
            self.troublemaker.restart_later(&self.world, index);
        }
        if (self.world.now().as_millis() as u64).is_multiple_of(LOOK_EVERY) {
            self.observer.look(&self.world);
        }
        if with_trouble {
            self.troublemaker.step(&mut self.world, &self.observer);
        } else {
            self.troublemaker.end_due(&mut self.world);
        }
    }

    fn pass(&mut self, time: Duration) {
        let until = self.world.now() + time;
        while self.world.now() < until && self.is_well() {
            self.step(false);
        }
    }

    /// Waits until all replicas are in sync, and have been so for a moment.
    fn heal(&mut self, failure: &str) -> bool {
        let until = self.world.now() + HEALING_MAX;
        let mut amiss = None;
        while self.world.now() < until && self.is_well() {
            self.pass(Duration::from_millis(500));
            amiss = self.observer.what_is_amiss(&self.world);
            if amiss.is_none() {
                return true;
            }
        }
        if let Some(amiss) = amiss {
            let text = format!("{failure} after {HEALING_MAX:?}: {amiss}");
            self.violations.push(Violation { check: Check::NotHealed, text });
        }
        false
    }

    fn client(&self, index: u64) -> Client {
        let host = self.world.network.process_on(client_address(index as u8));
        Client::new(self.surroundings.clone(), host, self.random.fork())
    }

    fn make_topics(&mut self, topics: &[(NewTopic, bool)]) {
        let mut client = self.client(0);
        let topics: Vec<NewTopic> = topics.iter().map(|(topic, _)| topic.clone()).collect();
        let made = self.world.clients.runtime.spawn(async move {
            for topic in &topics {
                admin::create(&mut client, topic).await;
            }
        });
        self.finish(made, "no topics can be made");
        self.heal("the new topics are not in sync");
    }

    /// Waits for something that clients do while nothing is done to the cluster.
    fn finish<T>(&mut self, task: JoinHandle<T>, failure: &str) -> Option<T> {
        let until = self.world.now() + CLIENTS_END_MAX;
        while !task.is_finished() && self.world.now() < until && self.is_well() {
            self.step(false);
        }
        if !task.is_finished() {
            let text = format!("{failure} within {CLIENTS_END_MAX:?}");
            self.violations.push(Violation { check: Check::NotHealed, text });
            return None;
        }
        self.world.clients.runtime.block_on(task).ok()
    }

    /// Lets all clients work on, and sees that each kind of them gets something done.
    fn watch_work(&mut self) -> bool {
        let from = self.world.now();
        self.pass(WORK_AFTER_HEALING);
        let idle = self.surroundings.recorder.look(|history| checker::idle_since(history, from));
        for who in &idle {
            let text = format!("{who} got nothing done in {WORK_AFTER_HEALING:?} after all had healed");
            self.violations.push(Violation { check: Check::NotHealed, text });
        }
        idle.is_empty() && self.is_well()
    }

    fn start_clients(&mut self, topics: &[(NewTopic, bool)], with_crowd: bool) -> Vec<JoinHandle<()>> {
        let mut tasks = Vec::new();
        let mut subjects = Vec::new();
        let mut number = 0;
        for (topic, lasts) in topics {
            for partition in 0..topic.partitions {
                subjects.push(Subject { topic: topic.name.clone(), partition, lasts: *lasts });
                let kinds = [(Acks::All, true), (Acks::All, true), (Acks::All, false), (Acks::Leader, false)];
                for (acks, is_idempotent) in kinds {
                    number += 1;
                    let kind = Kind { acks, is_idempotent };
                    let client = self.client(u64::from(number));
                    let work = producer::produce(client, number, topic.name.clone(), partition, kind);
                    tasks.push(self.world.clients.runtime.spawn(work));
                }
            }
            if !*lasts {
                let work = admin::recreate(self.client(1), topic.clone());
                tasks.push(self.world.clients.runtime.spawn(work));
            }
        }
        let moves = Moves {
            nodes: self.world.nodes.len() as i32,
            topics: moved(topics),
            replicas: usize::from(topics[0].0.replicas.unsigned_abs()),
        };
        let work = admin::move_about(self.client(2), moves);
        tasks.push(self.world.clients.runtime.spawn(work));
        if with_crowd {
            let like = NewTopic { name: CROWD.to_owned(), partitions: 1, ..topics[0].0.clone() };
            tasks.push(self.world.clients.runtime.spawn(admin::crowd(self.client(3), like)));
        }
        for group in groups() {
            for _ in 0..3 {
                number += 1;
                let work = member::take_part(self.client(u64::from(number)), number, group.clone());
                tasks.push(self.world.clients.runtime.spawn(work));
            }
        }
        for identity in identities() {
            let identity = Arc::new(identity);
            for _ in 0..2 {
                number += 1;
                let work = transactor::transact(self.client(u64::from(number)), number, identity.clone());
                tasks.push(self.world.clients.runtime.spawn(work));
            }
        }
        for (index, subject) in subjects.iter().filter(|subject| subject.lasts).enumerate() {
            let number = 2000 + index as u32;
            let isolation = IsolationLevel::ReadUncommitted;
            let work =
                consumer::watch_end(self.client(u64::from(number)), number, isolation, subject.clone());
            tasks.push(self.world.clients.runtime.spawn(work));
        }
        for number in 0..4 {
            let isolation =
                if number % 2 == 0 { IsolationLevel::ReadUncommitted } else { IsolationLevel::ReadCommitted };
            let work = consumer::consume(self.client(u64::from(number)), number, isolation, subjects.clone());
            tasks.push(self.world.clients.runtime.spawn(work));
        }
        tasks
    }

    fn end_clients(&mut self, clients: Vec<JoinHandle<()>>) -> bool {
        self.surroundings.stop();
        clients.into_iter().all(|client| self.finish(client, "the clients' work has not ended").is_some())
    }

    /// All that consumers can read in the end of the topics that clients write to.
    fn read_all(&mut self, isolation: IsolationLevel) -> Final {
        let mut topics = self.observer.topics();
        topics.retain(|_, (name, _)| !topic_name::is_internal(name));
        let mut finally = Final::new();
        let mut client = Some(self.client(0));
        for (name, partitions) in topics.values().cloned().collect::<Vec<_>>() {
            for partition in 0..partitions {
                let (name, mut own) = (name.to_string(), client.take().unwrap_or_else(|| self.client(0)));
                let task = self.world.clients.runtime.spawn(async move {
                    loop {
                        let (back, read) = consumer::read_all(own, isolation, &name, partition).await;
                        match read {
                            Some(read) => return (back, read),
                            None => own = back,
                        }
                        own.rest(300).await;
                    }
                });
                if let Some((back, (place, records))) = self.finish(task, "not everything can be read") {
                    client = Some(back);
                    finally.insert(place, records);
                }
            }
        }
        finally
    }

    /// Which offsets all groups have committed in the end, for the history.
    fn ask_offsets(&mut self) {
        let groups = groups().into_iter().chain(identities().into_iter().map(|identity| identity.group()));
        for group in groups {
            let mut client = self.client(0);
            let asked: Vec<i32> = (0..group.partitions).collect();
            let task = self.world.clients.runtime.spawn(async move {
                while member::committed(&mut client, &group, &asked).await.is_none() {
                    client.rest(300).await;
                }
            });
            self.finish(task, "not all committed offsets can be read");
        }
    }

    /// Holds the bytes of all replicas against each other.
    fn compare_replicas(&mut self) {
        let mut logs: BTreeMap<(String, i32), (i32, Vec<u8>)> = BTreeMap::new();
        for (name, partitions) in self.observer.topics().values() {
            for partition in 0..*partitions {
                for node in &self.world.nodes {
                    let folder = format!("{LOG_DIR}/{name}-{partition}");
                    let Some(bytes) = log_bytes(&node.disk, Path::new(&folder)) else { continue };
                    let key = (name.to_string(), partition);
                    let (first, known) = logs.entry(key).or_insert_with(|| (node.id, bytes.clone()));
                    if *known != bytes {
                        let common = known.iter().zip(&bytes).take_while(|(one, other)| one == other).count();
                        let text = format!(
                            "{name}-{partition}: node {first} has {} bytes and node {} has {}; {common} are the same",
                            known.len(),
                            node.id,
                            bytes.len()
                        );
                        self.violations.push(Violation { check: Check::ReplicasDiffer, text });
                    }
                }
            }
        }
    }
}

/// The bytes of all segments of a log, in order.
fn log_bytes(disk: &dyn Disk, folder: &Path) -> Option<Vec<u8>> {
    let entries = disk.read_dir(folder).ok()?;
    let mut bytes = Vec::new();
    for entry in entries.iter().filter(|entry| entry.name.ends_with(".log")) {
        let file = disk.open(&folder.join(&entry.name), OpenMode::Read).ok()?;
        let mut content = vec![0; usize::try_from(file.len().ok()?).ok()?];
        file.read_exact_at(&mut content, 0).ok()?;
        bytes.extend(content);
    }
    Some(bytes)
}

/// A topic that is never deleted, and how many partitions it has.
const LASTING: (&str, i32) = ("lasting", 2);

/// How the names of the many topics begin that nobody writes to.
pub(crate) const CROWD: &str = "crowd";

/// The topics whose partitions are moved: all, those of the coordinators too.
fn moved(topics: &[(NewTopic, bool)]) -> Vec<(String, i32)> {
    let internal = [topic_name::GROUP_METADATA, topic_name::TRANSACTION_STATE];
    let internal = internal.map(|name| (name.to_owned(), INTERNAL_PARTITIONS));
    topics.iter().map(|(topic, _)| (topic.name.clone(), topic.partitions)).chain(internal).collect()
}

/// The groups of a run. They commit offsets, but need not read what is there.
fn groups() -> Vec<Group> {
    let group = |number| Group {
        committer: Committer::Members(number),
        topic: LASTING.0.to_owned(),
        partitions: LASTING.1,
    };
    vec![group(1), group(2)]
}

/// The transactional ids of a run.
fn identities() -> Vec<Identity> {
    let identity = |(number, protocol)| Identity {
        number,
        protocol,
        topic: LASTING.0.to_owned(),
        partitions: LASTING.1,
        last: AtomicI64::new(0),
    };
    [(1, Protocol::Old), (2, Protocol::New)].map(identity).into()
}

/// The topics of a run, and whether they last.
fn topics(nodes: i32) -> Vec<(NewTopic, bool)> {
    let replicas = nodes.min(3) as i16;
    let min_in_sync = min_in_sync(nodes);
    let topic =
        |name: &str, partitions| NewTopic { name: name.to_owned(), partitions, replicas, min_in_sync };
    vec![(topic(LASTING.0, LASTING.1), true), (topic("fleeting", 1), false)]
}

#[cfg(all(test, tokio_unstable))]
mod tests {
    use super::*;

    /// Real time, the kernel's randomness or a second thread would make a failure that nobody can repeat.
    #[test]
    fn one_seed_is_one_run_down_to_the_last_line_of_its_trace() {
        let digest = |seed| {
            let trace = Trace::new(false);
            let report = run(&Plan { seed, nodes: 3, trouble: Duration::from_secs(40) }, &trace);
            (report.digest, report.simulated, report.acknowledged, report.read, report.counts)
        };
        let first = digest(7);
        assert!(first.2 > 1000 && first.3 > 1000, "nothing happened: {first:?}");
        assert_eq!(first, digest(7));
        assert_ne!(first, digest(8));
    }
}

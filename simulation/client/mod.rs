//! Clients as applications have them: producers, consumers and admins that retry, each with connections and
//! metadata of its own.
//!
//! They speak through Klamm's own codec: that it is Kafka's protocol is what `compat-tests` shows with real clients;
//! here it is about what a cluster promises.

pub(crate) mod admin;
pub(crate) mod connection;
pub(crate) mod consumer;
pub(crate) mod member;
pub(crate) mod producer;
pub(crate) mod transactor;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use klamm_io::Clock;
use klamm_model::TopicId;
use klamm_protocol::Request;
use klamm_protocol::messages::{FindCoordinatorRequest, MetadataRequest, metadata::MetadataRequestTopic};
use klamm_testing::{HostClock, SeededRandom, SimulatedHost};

use crate::history::{Place, Recorder};
use connection::{Connection, NoAnswer};

/// How long a client waits for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// What all clients of a run share.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub(crate) recorder: Recorder,
    pub(crate) clock: Arc<HostClock>,
    pub(crate) brokers: Vec<SocketAddr>,
    stopping: Arc<AtomicBool>,
}

impl Surroundings {
    pub(crate) fn new(recorder: Recorder, clock: Arc<HostClock>, brokers: Vec<SocketAddr>) -> Surroundings {
        Surroundings { recorder, clock, brokers, stopping: Arc::default() }
    }

    /// Asks clients to begin nothing new.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.monotonic()
    }
}

/// One client: where it sits, and whom it knows.
pub(crate) struct Client {
    pub(crate) surroundings: Surroundings,
    pub(crate) host: SimulatedHost,
    pub(crate) random: SeededRandom,
    connections: BTreeMap<SocketAddr, Arc<Connection>>,
    /// The newest leader epoch that it was told of each partition.
    newest: BTreeMap<Place, i32>,
}

/// What a coordinator coordinates, by the number that FindCoordinator has for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Coordinated {
    Group = 0,
    Transaction = 1,
}

/// Where a partition is, as a broker told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) place: Place,
    pub(crate) leader: SocketAddr,
    pub(crate) leader_epoch: i32,
}

impl Client {
    pub(crate) fn new(surroundings: Surroundings, host: SimulatedHost, random: SeededRandom) -> Client {
        Client { surroundings, host, random, connections: BTreeMap::new(), newest: BTreeMap::new() }
    }

    /// An open connection to a broker; the one that was used before, if there is one.
    pub(crate) async fn connection(&mut self, address: SocketAddr) -> Result<Arc<Connection>, NoAnswer> {
        if let Some(connection) = self.connections.get(&address) {
            return Ok(connection.clone());
        }
        let connection = Arc::new(Connection::open(&self.host, address).await?);
        self.connections.insert(address, connection.clone());
        Ok(connection)
    }

    /// The connection to a broker has failed: the next request opens another.
    pub(crate) fn forget(&mut self, address: SocketAddr) {
        self.connections.remove(&address);
    }

    /// Asks one broker.
    pub(crate) async fn ask<R: Request>(
        &mut self,
        address: SocketAddr,
        version: i16,
        request: &R,
    ) -> Result<R::Response, NoAnswer> {
        self.ask_patiently(address, version, request, PATIENCE).await
    }

    /// Asks one broker something that it may take its time for.
    pub(crate) async fn ask_patiently<R: Request>(
        &mut self,
        address: SocketAddr,
        version: i16,
        request: &R,
        patience: Duration,
    ) -> Result<R::Response, NoAnswer> {
        let connection = self.connection(address).await?;
        let answer = connection.ask(version, request, patience).await;
        if answer.is_err() {
            self.forget(address);
        }
        answer
    }

    /// The broker that coordinates a group or a transactional id, as some broker tells.
    pub(crate) async fn coordinator(&mut self, kind: Coordinated, key: &str) -> Option<SocketAddr> {
        let coordinator_keys = vec![key.to_owned()];
        let request = FindCoordinatorRequest { key_type: kind as i8, coordinator_keys, ..Default::default() };
        let answer = self.ask_any(4, &request).await.ok()?;
        let found = answer.coordinators.into_iter().next().filter(|found| found.error_code == 0)?;
        Some(SocketAddr::new(found.host.parse().ok()?, u16::try_from(found.port).ok()?))
    }

    /// Asks any broker.
    pub(crate) async fn ask_any<R: Request>(
        &mut self,
        version: i16,
        request: &R,
    ) -> Result<R::Response, NoAnswer> {
        let count = self.surroundings.brokers.len() as u64;
        let address = self.surroundings.brokers[self.random.below(count) as usize];
        self.ask(address, version, request).await
    }

    /// Looks a partition up at some broker. `None` if there is none that serves it, or no answer.
    pub(crate) async fn find(&mut self, topic: &str, partition: i32) -> Option<Found> {
        let wanted = MetadataRequestTopic { name: Some(topic.to_owned()), ..Default::default() };
        let request = MetadataRequest { topics: Some(vec![wanted]), ..Default::default() };
        let answer = self.ask_any(12, &request).await.ok()?;
        let topic = answer.topics.into_iter().next().filter(|topic| topic.error_code == 0)?;
        let found = topic.partitions.into_iter().find(|found| found.partition_index == partition)?;
        let leader = answer.brokers.iter().find(|broker| broker.node_id == found.leader_id)?;
        let leader = SocketAddr::new(leader.host.parse().ok()?, u16::try_from(leader.port).ok()?);
        let place = Place { topic: topic.topic_id, partition };
        // A node that is cut off tells of a leader of before; clients do not go back to it (KIP-320).
        let newest = self.newest.entry(place).or_insert(found.leader_epoch);
        if found.leader_epoch < *newest {
            return None;
        }
        *newest = found.leader_epoch;
        Some(Found { place, leader, leader_epoch: found.leader_epoch })
    }

    /// The id of a topic, if a broker knows it.
    pub(crate) async fn topic_id(&mut self, topic: &str) -> Option<TopicId> {
        let wanted = MetadataRequestTopic { name: Some(topic.to_owned()), ..Default::default() };
        let request = MetadataRequest { topics: Some(vec![wanted]), ..Default::default() };
        let answer = self.ask_any(12, &request).await.ok()?;
        answer.topics.first().filter(|topic| topic.error_code == 0).map(|topic| topic.topic_id)
    }

    /// Sleeps for a random time below `most_ms`.
    pub(crate) async fn rest(&self, most_ms: u64) {
        let millis = self.random.below(most_ms.max(1));
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

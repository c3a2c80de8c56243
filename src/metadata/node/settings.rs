//! What a node needs to start, and why it cannot.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use klamm_io::{Clock, Disk, Random};
use klamm_model::{NodeId, Uuid};

use crate::controller::{ConfigRules, TopicDefaults};
use crate::planted::Planted;
use crate::quorum::introduction::Introduction;
use crate::quorum::network::QuorumNetwork;
use crate::quorum::replica_key::ReplicaKey;

/// What a node needs to start.
pub struct Settings {
    /// `node.id`.
    pub node_id: NodeId,
    /// The id of the log directory that holds the metadata log.
    pub directory_id: Uuid,
    /// The cluster, or how one is found.
    pub identity: Identity,
    /// Where other members reach this node; without a host if there are none.
    pub address: (String, u16),
    /// The name of the listener that members of the quorum use, the first of `controller.listener.names`.
    pub listener: String,
    /// `controller.quorum.voters`; this node alone where there are no others. Empty where the voters are not
    /// configured, but known to the quorum itself.
    pub voters: Vec<Voter>,
    /// `controller.quorum.bootstrap.servers`.
    pub bootstrap_servers: Vec<(String, u16)>,
    /// The folder of the metadata log, `klamm-metadata` in the first log directory. It is made if need be.
    pub dir: PathBuf,
    /// Files.
    pub disk: Arc<dyn Disk>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Topic ids, placements and election time-outs come from here.
    pub random: Arc<dyn Random>,
    /// The way to the other members; [`NoPeers`](crate::NoPeers) where there are none.
    pub network: Arc<dyn QuorumNetwork>,
    /// What new topics get.
    pub defaults: TopicDefaults,
    /// Which settings exist.
    pub rules: Arc<dyn ConfigRules>,
    /// Times and sizes.
    pub quorum: QuorumSettings,
}

impl Settings {
    /// This node as a member of the quorum.
    pub(crate) fn key(&self) -> ReplicaKey {
        ReplicaKey::new(self.node_id, self.directory_id)
    }

    /// Whether nothing in the settings names another member.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(&self.voters[..], [voter] if voter.id == self.node_id)
    }

    /// What this node says of itself in the process that has drawn the number `run`.
    pub(crate) fn introduction(&self, run: u64, cluster_id: Option<String>) -> Introduction {
        let mut configured: Vec<i32> = self.voters.iter().map(|voter| voter.id.0).collect();
        configured.sort_unstable();
        Introduction { key: self.key(), run, cluster_id, configured }
    }
}

/// To which cluster the directory of a node belongs.
#[derive(Clone)]
pub enum Identity {
    /// To this one, as `meta.properties` says.
    Of(String),
    /// To none yet.
    New {
        /// What a new cluster is called, and which one is to be found; `None` for any.
        wanted: Option<String>,
        /// Writes into `meta.properties` to which cluster the directory belongs. It is on the disk when this
        /// returns.
        keep: Keep,
    },
}

/// Keeps the id of a cluster.
pub type Keep = Arc<dyn Fn(&str) -> io::Result<()> + Send + Sync>;

/// A voter as the configuration names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voter {
    /// Its `node.id`.
    pub id: NodeId,
    /// Host of its controller listener.
    pub host: String,
    /// Port of its controller listener.
    pub port: u16,
}

impl Voter {
    /// Host and port of its controller listener.
    pub(super) fn address(&self) -> (String, u16) {
        (self.host.clone(), self.port)
    }
}

impl fmt::Display for Voter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} at {}:{}", self.id, self.host, self.port)
    }
}

/// Times and sizes of the quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuorumSettings {
    /// How often a leader shows that it lives.
    pub heartbeat: Duration,
    /// After how long without a leader a voter stands for election, at least.
    pub election_timeout_min: Duration,
    /// And at most.
    pub election_timeout_max: Duration,
    /// After how long without a heartbeat a broker is fenced (`broker.session.timeout.ms`).
    pub broker_session_timeout: Duration,
    /// How often leadership is given back to preferred leaders (`leader.imbalance.check.interval.seconds`); never
    /// without `auto.leader.rebalance.enable`.
    pub rebalance_leaders_every: Option<Duration>,
    /// How many entries the log grows by before a snapshot is made.
    pub snapshot_entries: u64,
    /// How many bytes the log grows by before a snapshot is made (`metadata.log.max.record.bytes.between.snapshots`).
    pub snapshot_bytes: u64,
    /// How many entries stay in the log behind a snapshot, for voters that are a little late.
    pub entries_kept: u64,
    /// By how much a test raises the versions of the node's files and of its messages to others, to see old and new nodes in
    /// one cluster.
    pub versions_raised: u8,
    /// A mistake that a test makes the controller make.
    pub planted: Planted,
}

impl Default for QuorumSettings {
    fn default() -> QuorumSettings {
        QuorumSettings {
            heartbeat: Duration::from_millis(200),
            election_timeout_min: Duration::from_millis(1000),
            election_timeout_max: Duration::from_millis(2000),
            broker_session_timeout: Duration::from_secs(9),
            rebalance_leaders_every: Some(Duration::from_secs(300)),
            snapshot_entries: 10_000,
            snapshot_bytes: 20 << 20,
            entries_kept: 1000,
            versions_raised: 0,
            planted: Planted::default(),
        }
    }
}

/// Below this, a busy machine would have a new election all the time.
const ELECTION_TIMEOUT_MIN: Duration = Duration::from_millis(50);

impl QuorumSettings {
    /// The same with the times of `controller.quorum.election.timeout.ms` and `controller.quorum.fetch.timeout.ms`. A voter
    /// that hears of no leader stands for election after a random time between them, whichever is longer; four or more
    /// heartbeats of the leader come in the shorter one.
    pub fn with_timeouts(self, election: Duration, fetch: Duration) -> QuorumSettings {
        let election_timeout_min = election.min(fetch).max(ELECTION_TIMEOUT_MIN);
        let election_timeout_max = election.max(fetch).max(election_timeout_min * 3 / 2);
        let heartbeat = self.heartbeat.min(election_timeout_min / 4);
        QuorumSettings { heartbeat, election_timeout_min, election_timeout_max, ..self }
    }
}

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The files cannot be used.
    #[error("the metadata log in {dir} cannot be opened: {source}")]
    Storage {
        /// The folder.
        dir: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// The settings contradict each other.
    #[error("the metadata quorum cannot be set up: {0}")]
    Settings(String),
    /// The node does not fit into the cluster that it was to form or join.
    #[error("this node does not become a member of the cluster: {0}")]
    Membership(String),
    /// The quorum did not start.
    #[error("the metadata quorum did not start: {0}")]
    Quorum(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is configured, several heartbeats must come before somebody stands for election, and not all at one time.
    #[test]
    fn timeouts_leave_room_for_heartbeats_and_chance() {
        let millis = Duration::from_millis;
        let with = |election, fetch| QuorumSettings::default().with_timeouts(millis(election), millis(fetch));
        assert_eq!(with(1000, 2000), QuorumSettings::default(), "those of Kafka change nothing");
        for (election, fetch, heartbeat, least, most) in [
            (2000, 1000, 200, 1000, 2000),
            (300, 600, 75, 300, 600),
            (4000, 10_000, 200, 4000, 10_000),
            (1000, 1000, 200, 1000, 1500),
            (0, 0, 12, 50, 75),
        ] {
            let found = with(election, fetch);
            assert_eq!(found.heartbeat.as_millis(), heartbeat, "{election} {fetch}");
            assert_eq!(found.election_timeout_min.as_millis(), least, "{election} {fetch}");
            assert_eq!(found.election_timeout_max.as_millis(), most, "{election} {fetch}");
        }
    }
}

//! Starting a node: files, threads, and the way to a leader.
//!
//! A quorum of one begins to lead within milliseconds: a new one forms itself and elects itself, and one that
//! restarts finds its own granted vote on disk and goes on. Neither waits for an election time-out.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use klamm_io::{Clock, Disk, Random};
use klamm_model::{NodeId, Uuid};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{AsyncRuntime, Config, SnapshotPolicy};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use super::controller_task::{self, Surroundings};
use super::sessions::Sessions;
use super::{MetadataNode, PeerCall};
use crate::controller::{ConfigRules, TopicDefaults};
use crate::image::Image;
use crate::planted::Planted;
use crate::quorum::disk_thread::DiskThread;
use crate::quorum::log::{LOG_FILE, LogStore, VOTE_FILE, form_alone};
use crate::quorum::network::{self, Network, QuorumNetwork};
use crate::quorum::state_machine::{SNAPSHOT_FILE, StateMachine};
use crate::quorum::{Raft, Runtime, VoterNode};

/// How many requests may wait to be decided; who comes then waits to wait.
const JOBS_WAITING_MAX: usize = 1024;

/// How many messages of other voters may wait.
const PEER_CALLS_WAITING_MAX: usize = 1024;

/// What a node needs to start.
pub struct Settings {
    /// `node.id`.
    pub node_id: NodeId,
    /// The id of the log directory that holds the metadata log.
    pub directory_id: Uuid,
    /// The cluster's id, as `meta.properties` says.
    pub cluster_id: String,
    /// All voters, this node among them.
    pub voters: Vec<Voter>,
    /// The folder of the metadata log, `klamm-metadata` in the first log directory. It is made if need be.
    pub dir: PathBuf,
    /// Files.
    pub disk: Arc<dyn Disk>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Topic ids, placements and election time-outs come from here.
    pub random: Arc<dyn Random>,
    /// The way to the other voters; [`NoPeers`](crate::NoPeers) where there are none.
    pub network: Arc<dyn QuorumNetwork>,
    /// What new topics get.
    pub defaults: TopicDefaults,
    /// Which settings exist.
    pub rules: Arc<dyn ConfigRules>,
    /// Times and sizes.
    pub quorum: QuorumSettings,
}

/// A member of the quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voter {
    /// Its `node.id`.
    pub id: NodeId,
    /// The id of its log directory, where it is known.
    pub directory_id: Uuid,
    /// Host of its controller listener.
    pub host: String,
    /// Port of its controller listener.
    pub port: u16,
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
    /// How many entries the log grows by before a snapshot is made.
    pub snapshot_entries: u64,
    /// How many bytes the log grows by before a snapshot is made (`metadata.log.max.record.bytes.between.snapshots`).
    pub snapshot_bytes: u64,
    /// How many entries stay in the log behind a snapshot, for voters that are a little late.
    pub entries_kept: u64,
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
            snapshot_entries: 10_000,
            snapshot_bytes: 20 << 20,
            entries_kept: 1000,
            planted: Planted::default(),
        }
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
    /// The quorum did not start.
    #[error("the metadata quorum did not start: {0}")]
    Quorum(String),
}

impl MetadataNode {
    /// Starts a node on a thread of its own. When this returns, a quorum of one leads, and the image holds
    /// everything that was ever answered; with more voters, [`MetadataNode::watch`] tells when there is a
    /// leader.
    ///
    /// # Errors
    /// When the files cannot be used, or the settings contradict each other.
    pub fn start(settings: Settings) -> Result<MetadataNode, StartError> {
        let id = settings.node_id;
        let disk_thread = DiskThread::spawn().map_err(|error| StartError::Quorum(error.to_string()))?;
        let (started, start) = std::sync::mpsc::channel();
        let run = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(started.send(Err(StartError::Quorum(error.to_string())))),
            };
            let seed = settings.random.next_u64();
            runtime.block_on(Runtime::scope(seed, async move {
                match Running::start(settings, disk_thread).await {
                    Ok((running, node)) => {
                        if started.send(Ok(node)).is_ok() {
                            running.until_stopped().await;
                        }
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
            }));
        };
        let thread = std::thread::Builder::new().name("klamm-metadata".to_owned()).spawn(run);
        let thread = thread.map_err(|error| StartError::Quorum(error.to_string()))?;
        let ended = |_| StartError::Quorum("its thread ended".to_owned());
        let node = start.recv().map_err(ended).and_then(|result| result)?;
        debug_assert_eq!(node.id, id);
        *node.thread.lock() = Some(thread);
        Ok(node)
    }

    /// Starts a node on the caller's runtime, which must have one thread, with all disk work done in place:
    /// what simulation needs. The future that comes with the node does its work and ends after
    /// [`MetadataNode::shutdown`] or drop.
    ///
    /// # Errors
    /// As [`MetadataNode::start`].
    pub async fn start_here(
        settings: Settings,
    ) -> Result<(MetadataNode, impl Future<Output = ()>), StartError> {
        let seed = settings.random.next_u64();
        let start = Running::start(settings, DiskThread::inline());
        let (running, node) = Runtime::scope(seed, start).await?;
        let work = Runtime::scope(seed.wrapping_add(1), running.until_stopped());
        Ok((node, work))
    }
}

/// What runs on the metadata thread.
struct Running {
    raft: Raft,
    peers: mpsc::Receiver<PeerCall>,
    stop: oneshot::Receiver<()>,
    failed: watch::Sender<Option<String>>,
    disk_thread: DiskThread,
}

impl Running {
    async fn start(
        settings: Settings,
        disk_thread: DiskThread,
    ) -> Result<(Running, MetadataNode), StartError> {
        let id = settings.node_id;
        check_voters(&settings)?;
        let storage = |source| StartError::Storage { dir: settings.dir.clone(), source };
        make_dir(&settings).map_err(storage)?;
        if let [_] = settings.voters[..]
            && is_new(&settings).map_err(storage)?
        {
            form_alone(&*settings.disk, &settings.dir, id.0 as u64, members(&settings.voters))
                .map_err(storage)?;
        }
        let log = LogStore::open(&settings.disk, &disk_thread, &settings.dir).map_err(storage)?;
        let (machine, images) =
            StateMachine::open(&settings.disk, &disk_thread, &settings.dir, &settings.cluster_id)
                .map_err(storage)?;
        let published = machine.publisher();
        let pristine = log.is_pristine();
        let config = config(&settings).map_err(StartError::Settings)?;
        let network = Network { carrier: Arc::clone(&settings.network) };
        let fatal = |error: &dyn std::fmt::Display| StartError::Quorum(error.to_string());
        let raft = Raft::new(id.0 as u64, Arc::new(config), network, log.clone(), machine)
            .await
            .map_err(|error| fatal(&error))?;
        if pristine {
            raft.initialize(members(&settings.voters)).await.map_err(|error| fatal(&error))?;
        }
        if settings.voters.len() == 1 {
            lead_alone(&raft, id).await.map_err(StartError::Quorum)?;
        }
        let (jobs, waiting) = mpsc::channel(JOBS_WAITING_MAX);
        let (peers, peer_calls) = mpsc::channel(PEER_CALLS_WAITING_MAX);
        let (stop, stopped) = oneshot::channel();
        let (failed, failure) = watch::channel(None);
        publish_controller(&raft, &published);
        let (addresses, known) = watch::channel(addresses(&raft));
        Runtime::spawn(follow_quorum(raft.clone(), published, addresses));
        let sessions =
            Arc::new(Sessions::new(settings.clock.clone(), settings.quorum.broker_session_timeout));
        let surroundings = Surroundings {
            id,
            clock: settings.clock,
            random: settings.random,
            defaults: settings.defaults,
            rules: settings.rules,
            quorum: settings.quorum,
        };
        Runtime::spawn(controller_task::run(
            raft.clone(),
            log,
            images.clone(),
            waiting,
            sessions.clone(),
            surroundings,
        ));
        let node = MetadataNode {
            id,
            images,
            jobs,
            peers,
            failure,
            addresses: known,
            sessions: sessions.clone(),
            stop: Mutex::new(Some(stop)),
            thread: Mutex::new(None),
        };
        Ok((Running { raft, peers: peer_calls, stop: stopped, failed, disk_thread }, node))
    }

    /// Serves the other voters until the node is stopped or fails.
    async fn until_stopped(mut self) {
        let mut metrics = self.raft.metrics();
        loop {
            tokio::select! {
                biased;
                _ = &mut self.stop => break,
                changed = metrics.changed() => {
                    let state = metrics.borrow_watched().running_state.clone();
                    if let Err(error) = state {
                        tracing::error!("the metadata quorum ended on this node: {error}");
                        self.failed.send_replace(Some(error.to_string()));
                        break;
                    }
                    if changed.is_err() {
                        break;
                    }
                }
                call = self.peers.recv() => {
                    let Some((message, sender)) = call else { break };
                    let raft = self.raft.clone();
                    Runtime::spawn(async move {
                        // The other voter may have given up waiting.
                        let _ = sender.send(network::answer(&raft, message).await);
                    });
                }
            }
        }
        self.disk_thread.close();
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!("the metadata quorum did not stop cleanly: {error}");
        }
    }
}

fn check_voters(settings: &Settings) -> Result<(), StartError> {
    if settings.node_id.0 < 0 {
        return Err(StartError::Settings(format!("node {} has a negative number", settings.node_id)));
    }
    if settings.voters.iter().any(|voter| voter.id == settings.node_id) {
        return Ok(());
    }
    let message = format!("node {} is not among the voters of the quorum", settings.node_id);
    Err(StartError::Settings(message))
}

fn make_dir(settings: &Settings) -> io::Result<()> {
    if settings.disk.exists(&settings.dir)? {
        return Ok(());
    }
    settings.disk.create_dir_all(&settings.dir)?;
    settings.dir.parent().map_or(Ok(()), |parent| settings.disk.sync_dir(parent))
}

/// Whether no file of a quorum is there yet.
fn is_new(settings: &Settings) -> io::Result<bool> {
    for name in [LOG_FILE, VOTE_FILE, SNAPSHOT_FILE] {
        if settings.disk.exists(&settings.dir.join(name))? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn members(voters: &[Voter]) -> BTreeMap<u64, VoterNode> {
    let node = |voter: &Voter| VoterNode {
        directory_id: voter.directory_id.0.iter().map(|byte| format!("{byte:02x}")).collect(),
        host: voter.host.clone(),
        port: voter.port,
    };
    voters.iter().map(|voter| (voter.id.0 as u64, node(voter))).collect()
}

fn config(settings: &Settings) -> Result<Config, String> {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let quorum = &settings.quorum;
    let config = Config {
        cluster_name: settings.cluster_id.clone(),
        heartbeat_interval: millis(quorum.heartbeat),
        election_timeout_min: millis(quorum.election_timeout_min),
        election_timeout_max: millis(quorum.election_timeout_max),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(quorum.snapshot_entries),
        max_in_snapshot_log_to_keep: quorum.entries_kept,
        // Ticks drive heartbeats and elections, of which a single voter needs neither: it leads from its start
        // on, and must not wake an idle machine dozens of times a second.
        enable_tick: settings.voters.len() > 1,
        // A node that was cut off must not unseat a leader that works (KIP-996 does the same in Kafka).
        enable_pre_vote: Some(true),
        ..Config::default()
    };
    config.validate().map_err(|error| error.to_string())
}

/// Makes a quorum of one lead, and waits until it has applied all that its log holds.
async fn lead_alone(raft: &Raft, id: NodeId) -> Result<(), String> {
    let own = id.0 as u64;
    if raft.metrics().borrow_watched().current_leader != Some(own) {
        raft.trigger().elect(false).await.map_err(|error| error.to_string())?;
    }
    let wait = raft.wait(None);
    let leads = wait.metrics(|metrics| metrics.current_leader == Some(own), "this node leads").await;
    leads.map_err(|error| error.to_string())?;
    raft.wait_for_recovery(None).await.map_err(|error| error.to_string())?;
    Ok(())
}

/// Says in the image who the controller is.
fn publish_controller(raft: &Raft, published: &watch::Sender<Arc<Image>>) {
    let leader = raft.metrics().borrow_watched().current_leader;
    let controller = leader.map(|leader| NodeId(leader as i32));
    published.send_if_modified(|image| {
        let changed = image.controller != controller;
        if changed {
            Arc::make_mut(image).controller = controller;
        }
        changed
    });
}

/// Publishes who leads and who belongs to the quorum, whenever that changes.
async fn follow_quorum(
    raft: Raft,
    published: watch::Sender<Arc<Image>>,
    known: watch::Sender<BTreeMap<NodeId, (String, u16)>>,
) {
    let mut metrics = raft.metrics();
    while metrics.changed().await.is_ok() {
        publish_controller(&raft, &published);
        let now = addresses(&raft);
        known.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
    }
}

fn addresses(raft: &Raft) -> BTreeMap<NodeId, (String, u16)> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let nodes = metrics.membership_config.membership().nodes();
    nodes.map(|(id, node)| (NodeId(*id as i32), (node.host.clone(), node.port))).collect()
}

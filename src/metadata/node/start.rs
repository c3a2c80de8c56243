//! Starting a node: files, threads, and the way to a leader.
//!
//! A quorum of one begins to lead within milliseconds: a new one forms itself and elects itself, and one that
//! restarts finds its own granted vote on disk and goes on. Neither waits for an election time-out.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use klamm_io::Disk;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::Fatal;
use openraft::{AsyncRuntime, Config, SnapshotPolicy};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use super::controller_task::{self, Job, Surroundings};
use super::forming::{self, Settled};
use super::membership::Members;
use super::orders::Order;
use super::serving::Running;
use super::sessions::Sessions;
use super::settings::{Identity, Settings, StartError};
use super::tool_file;
use super::{Addresses, MetadataNode};
use crate::image::Image;
use crate::quorum::disk_thread::DiskThread;
use crate::quorum::log::{LOG_FILE, LogStore, VOTE_FILE, form_alone};
use crate::quorum::network::Network;
use crate::quorum::replica_key::ReplicaKey;
use crate::quorum::state_machine::{SNAPSHOT_FILE, StateMachine};
use crate::quorum::{Membership, Raft, Runtime, TypeConfig, VoterNode};

/// How many requests may wait to be decided; who comes then waits to wait.
const JOBS_WAITING_MAX: usize = 1024;

/// How many messages of other members, and other orders, may wait.
const ORDERS_WAITING_MAX: usize = 1024;

/// How long the node that formed a cluster waits between its tries to lead it. The others have to be there first.
const FIRST_ELECTION_PAUSE: Duration = Duration::from_millis(100);

/// How often it tries; then the election time-outs take over.
const FIRST_ELECTIONS_MAX: u32 = 30;

impl MetadataNode {
    /// Starts a node on a thread of its own. When this returns for a node whose directory belongs to a cluster, a
    /// quorum of one leads, and the image holds everything that was ever answered; with more voters,
    /// [`MetadataNode::watch`] tells when there is a leader. A node with a new directory is still looking for its
    /// cluster: [`MetadataNode::joined`] tells when it has found it.
    ///
    /// # Errors
    /// When the files cannot be used, or the settings contradict each other.
    pub fn start(settings: Settings) -> Result<MetadataNode, StartError> {
        let disk_thread = DiskThread::spawn(settings.clock.clone());
        let disk_thread = disk_thread.map_err(|error| StartError::Quorum(error.to_string()))?;
        let (started, start) = std::sync::mpsc::channel();
        let seed = settings.random.next_u64();
        let (node, work) = prepare(settings, disk_thread)?;
        let run = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(started.send(Err(StartError::Quorum(error.to_string())))),
            };
            runtime.block_on(Runtime::scope(seed, async move {
                if work.is_new() {
                    let _ = started.send(Ok(()));
                    return work.settle_and_run().await;
                }
                match work.open().await {
                    Ok(running) => {
                        if started.send(Ok(())).is_ok() {
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
        start.recv().map_err(ended).and_then(|result| result)?;
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
        let (node, work) = prepare(settings, DiskThread::inline())?;
        let stage = if work.is_new() {
            Stage::New(Box::new(work))
        } else {
            Stage::Open(Runtime::scope(seed, work.open()).await?)
        };
        let rest = async move {
            match stage {
                Stage::New(work) => work.settle_and_run().await,
                Stage::Open(running) => running.until_stopped().await,
            }
        };
        Ok((node, Runtime::scope(seed.wrapping_add(1), rest)))
    }
}

/// How far a start is.
enum Stage {
    New(Box<Work>),
    Open(Running),
}

/// What does the work of a node, before its log is open.
struct Work {
    settings: Settings,
    /// A number that tells this process from others that have a copy of its directory.
    run: u64,
    disk_thread: DiskThread,
    published: watch::Sender<Arc<Image>>,
    jobs: mpsc::Receiver<Box<dyn Job>>,
    orders: mpsc::Receiver<Order>,
    stop: oneshot::Receiver<()>,
    failed: watch::Sender<Option<String>>,
    addresses: watch::Sender<Addresses>,
    joined: watch::Sender<Option<Result<(), String>>>,
    lost: watch::Sender<Option<String>>,
    sessions: Arc<Sessions>,
}

/// The node and what will do its work. Nothing runs yet.
fn prepare(settings: Settings, disk_thread: DiskThread) -> Result<(MetadataNode, Work), StartError> {
    if settings.node_id.0 < 0 {
        return Err(StartError::Settings(format!("node {} has a negative number", settings.node_id)));
    }
    let cluster_id = match &settings.identity {
        Identity::Of(cluster_id) => cluster_id,
        Identity::New { .. } => "",
    };
    let (published, images) = watch::channel(Arc::new(Image::empty(cluster_id)));
    let (jobs, waiting) = mpsc::channel(JOBS_WAITING_MAX);
    let (orders, waiting_orders) = mpsc::channel(ORDERS_WAITING_MAX);
    let (stop, stopped) = oneshot::channel();
    let (failed, failure) = watch::channel(None);
    let (addresses, known) = watch::channel(BTreeMap::new());
    let (joined, joining) = watch::channel(None);
    let (lost, majority) = watch::channel(None);
    let sessions = Arc::new(Sessions::new(settings.clock.clone(), settings.quorum.broker_session_timeout));
    let node = MetadataNode {
        id: settings.node_id,
        configured: settings.voters.iter().map(|voter| voter.id).collect(),
        listener: settings.listener.clone(),
        images,
        jobs,
        orders,
        failure,
        addresses: known,
        joined: joining,
        majority,
        sessions: sessions.clone(),
        disk_thread: disk_thread.clone(),
        clock: settings.clock.clone(),
        stop: Mutex::new(Some(stop)),
        thread: Mutex::new(None),
    };
    let work = Work {
        run: settings.random.next_u64(),
        settings,
        disk_thread,
        published,
        jobs: waiting,
        orders: waiting_orders,
        stop: stopped,
        failed,
        addresses,
        joined,
        lost,
        sessions,
    };
    Ok((node, work))
}

impl Work {
    /// Whether the directory belongs to no cluster yet.
    fn is_new(&self) -> bool {
        matches!(self.settings.identity, Identity::New { .. })
    }

    /// Finds the cluster, and does the work of a member of it.
    async fn settle_and_run(mut self) {
        let joined = self.joined.clone();
        let failed = |error: StartError| {
            // Who waits for it says again that the node is no member.
            let why = match error {
                StartError::Membership(why) => why,
                other => other.to_string(),
            };
            drop(joined.send_replace(Some(Err(why))));
        };
        let Settings { identity, .. } = &self.settings;
        let Identity::New { wanted, keep } = identity.clone() else {
            unreachable!("the cluster is looked for only by a node that has none");
        };
        if let Err(source) = make_dir(&self.settings) {
            return failed(StartError::Storage { dir: self.settings.dir.clone(), source });
        }
        let settled = forming::settle(
            &self.settings,
            self.run,
            wanted.as_deref(),
            &keep,
            (&mut self.orders, &mut self.stop),
            &self.lost,
        )
        .await;
        self.lost.send_replace(None);
        let Settled { cluster_id, is_former } = match settled {
            Ok(Some(settled)) => settled,
            Ok(None) => return,
            Err(error) => return failed(error),
        };
        self.settings.identity = Identity::Of(cluster_id);
        match self.open().await {
            Ok(running) => {
                if is_former {
                    Runtime::spawn(elect_first(running.raft.clone()));
                }
                running.until_stopped().await;
            }
            Err(error) => failed(error),
        }
    }

    /// Opens the files and begins to take part.
    async fn open(self) -> Result<Running, StartError> {
        let Work {
            settings,
            run,
            disk_thread,
            published,
            jobs,
            orders,
            stop,
            failed,
            addresses,
            joined,
            sessions,
            lost,
        } = self;
        let Identity::Of(cluster_id) = settings.identity.clone() else {
            unreachable!("the cluster is found before the log is opened");
        };
        let own = settings.key();
        let storage = |source| StartError::Storage { dir: settings.dir.clone(), source };
        make_dir(&settings).map_err(storage)?;
        if !holds_metadata(&*settings.disk, &settings.dir).map_err(storage)? {
            if !settings.is_alone() {
                return Err(storage(missing_files(&cluster_id)));
            }
            let members = BTreeMap::from([(own, node_of(&settings.address))]);
            form_alone(&*settings.disk, &settings.dir, own, members, None).map_err(storage)?;
        }
        tool_file::keep(&settings, &cluster_id).map_err(storage)?;
        let (disk, dir, raised) = (&settings.disk, &settings.dir, settings.quorum.versions_raised);
        let log = LogStore::open(disk, &disk_thread, dir, raised).map_err(storage)?;
        let machine = StateMachine::open(disk, &disk_thread, dir, &cluster_id, published.clone(), raised)
            .map_err(storage)?;
        let config = config(&settings, &cluster_id).map_err(StartError::Settings)?;
        let network = Network::new(&settings, run, Some(cluster_id.clone()));
        let fatal = |error: &dyn std::fmt::Display| StartError::Quorum(error.to_string());
        let raft = Raft::new(own, Arc::new(config), network.clone(), log.clone(), machine)
            .await
            .map_err(|error| fatal(&error))?;
        let membership = membership(&raft).await.map_err(|error| fatal(&error))?;
        if membership.voter_ids().eq([own]) {
            lead_alone(&raft, own).await.map_err(StartError::Quorum)?;
        }
        addresses.send_replace(addresses_in(&membership));
        let images = published.subscribe();
        let members =
            Arc::new(Members::new(raft.clone(), network, &settings, failed.clone(), images.clone()));
        publish_controller(&members, &published);
        Runtime::spawn(members.clone().forget_gone());
        Runtime::spawn(members.clone().watch_majority(images.clone(), lost));
        Runtime::spawn(follow_quorum(members.clone(), published, addresses));
        Runtime::spawn(members.clone().watch_unlisted());
        Runtime::spawn(members.clone().keep_own());
        Runtime::spawn(members.clone().finish_changes());
        let surroundings = Surroundings {
            id: settings.node_id,
            clock: settings.clock,
            random: settings.random,
            defaults: settings.defaults,
            rules: settings.rules,
            quorum: settings.quorum,
        };
        let deciding = controller_task::run(raft.clone(), log, images, jobs, sessions, surroundings);
        Runtime::spawn(deciding);
        joined.send_replace(Some(Ok(())));
        Ok(Running { raft, members, orders, stop, failed, disk_thread })
    }
}

/// Has the node that formed a cluster lead it as soon as the others are there.
async fn elect_first(raft: Raft) {
    for _ in 0..FIRST_ELECTIONS_MAX {
        tokio::time::sleep(FIRST_ELECTION_PAUSE).await;
        if raft.current_leader().await.is_some() || raft.trigger().elect(true).await.is_err() {
            return;
        }
    }
}

fn missing_files(cluster_id: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!(
            "the log is gone, although the directory belongs to cluster {cluster_id}. If log.dirs was changed, name the \
             directory with klamm-metadata first. If the folder is lost, so are the votes of this node: start it with \
             an empty directory, and it joins as a new member and copies what it had"
        ),
    )
}

fn make_dir(settings: &Settings) -> io::Result<()> {
    if settings.disk.exists(&settings.dir)? {
        return Ok(());
    }
    settings.disk.create_dir_all(&settings.dir)?;
    settings.dir.parent().map_or(Ok(()), |parent| settings.disk.sync_dir(parent))
}

/// Whether a file of the quorum is in this folder.
///
/// # Errors
/// When the disk cannot tell.
pub fn holds_metadata(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
    for name in [LOG_FILE, VOTE_FILE, SNAPSHOT_FILE] {
        if disk.exists(&dir.join(name))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn node_of((host, port): &(String, u16)) -> VoterNode {
    VoterNode { host: host.clone(), port: *port }
}

/// The members as this node knows them.
async fn membership(raft: &Raft) -> Result<Membership, Fatal<TypeConfig>> {
    // Metrics are published only some time after the start.
    raft.with_raft_state(|state| state.membership_state.effective().membership().clone()).await
}

fn config(settings: &Settings, cluster_id: &str) -> Result<Config, String> {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let quorum = &settings.quorum;
    let config = Config {
        cluster_name: cluster_id.to_owned(),
        heartbeat_interval: millis(quorum.heartbeat),
        election_timeout_min: millis(quorum.election_timeout_min),
        election_timeout_max: millis(quorum.election_timeout_max),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(quorum.snapshot_entries),
        max_in_snapshot_log_to_keep: quorum.entries_kept,
        // Ticks drive heartbeats and elections, of which a single member needs neither: it leads from its start
        // on, and must not wake an idle machine dozens of times a second. They begin with the second member.
        enable_tick: !settings.is_alone(),
        // A node that was cut off must not unseat a leader that works (KIP-996 does the same in Kafka).
        enable_pre_vote: Some(true),
        ..Config::default()
    };
    config.validate().map_err(|error| error.to_string())
}

/// Makes a quorum of one lead, and waits until it has applied all that its log holds.
async fn lead_alone(raft: &Raft, own: ReplicaKey) -> Result<(), String> {
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
fn publish_controller(members: &Members, published: &watch::Sender<Arc<Image>>) {
    let controller = members.controller();
    published.send_if_modified(|image| {
        let changed = image.controller != controller;
        if changed {
            Arc::make_mut(image).controller = controller;
        }
        changed
    });
}

/// Publishes who leads and who belongs to the quorum, whenever that changes. A leader that is silent changes nothing,
/// so it is looked for now and then.
async fn follow_quorum(
    members: Arc<Members>,
    published: watch::Sender<Arc<Image>>,
    known: watch::Sender<Addresses>,
) {
    let raft = &members.raft;
    let mut metrics = raft.metrics();
    loop {
        publish_controller(&members, &published);
        members.note_cut_off();
        members.network.note_addresses(&members.membership());
        members.note_caught_up();
        let now = addresses_in(&members.membership());
        let has_others = now.len() > 1;
        if has_others {
            raft.runtime_config().tick(true);
        }
        known.send_if_modified(|known| {
            // The first metrics may come before the members are in them.
            let changed = *known != now && !now.is_empty();
            if changed {
                *known = now;
            }
            changed
        });
        tokio::select! {
            biased;
            changed = metrics.changed() => if changed.is_err() {
                return;
            },
            () = tokio::time::sleep(members.silence / 4), if has_others => {}
        }
    }
}

/// Where the members listen. Of a node that comes back with another directory, the one that votes.
fn addresses_in(membership: &Membership) -> Addresses {
    let address = |key: ReplicaKey, votes: bool| {
        let node = membership.get_node(&key)?;
        Some((key.id, (node.address(), votes)))
    };
    let learners = membership.learner_ids().filter_map(|key| address(key, false));
    learners.chain(membership.voter_ids().filter_map(|key| address(key, true))).collect()
}

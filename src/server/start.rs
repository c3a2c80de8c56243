//! Starting and stopping: the order in which a node's parts come up and go down.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use klamm_config::{BrokerConfig, FlushPolicy, QuorumVoter};
use klamm_io::{Clock, Disk, Listener, Network, Random, Threads};
use klamm_metadata::{Identity, KafkaRules, MetadataNode, QuorumSettings, Settings, TopicDefaults, Voter};
use klamm_model::{Named, Uuid};
use klamm_protocol::messages::BrokerRegistrationRequest;
use klamm_storage::{Cleaner, LogStore, StorageError, StoreSettings};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::admin;
use crate::adoption::{self, TakeoverError};
use crate::background;
use crate::broker_channel::BrokerChannel;
use crate::cleaning;
use crate::client_quotas::ClientQuotas;
use crate::context::{Context, MALFORMED_LOG_EVERY, topic_config};
use crate::controller_channel::ControllerChannel;
use crate::coordinators::Coordinators;
use crate::directories;
use crate::directory_assignments;
use crate::elections::Elections;
use crate::fetch_sessions::FetchSessions;
use crate::image_follower::{self, Followed, Follower};
use crate::isr_changes::{self, IsrChanges};
use crate::lease::Lease;
use crate::lifecycle;
use crate::limits::{Connections, Limits, RateLimit};
use crate::listener::{self, BindError, Bound};
use crate::loggers::Loggers;
use crate::marker_channel::MarkerChannel;
use crate::metadata_folder;
use crate::metrics::Metrics;
use crate::moves;
use crate::partition_table::PartitionTable;
use crate::peers::{LostConnections, Peers, QuorumCarrier};
use crate::producer_ids::ProducerIds;
use crate::replica_fetcher::{self, ReplicaFetchers};
use crate::replication_throttle::ReplicationThrottle;
use crate::stop::Stop;
use crate::strays;
use crate::suspicion;
use crate::topic_creation::CreationsUnderWay;
use crate::view::NodeView;

/// What a node stands on: the real things, or a simulation's.
#[derive(Clone)]
pub struct Machine {
    /// Files.
    pub disk: Arc<dyn Disk>,
    /// Sockets.
    pub network: Arc<dyn Network>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub random: Arc<dyn Random>,
    /// Where work is done that may wait for the disk.
    pub threads: Threads,
    /// What of the process is logged.
    pub loggers: Arc<Loggers>,
}

/// Why a node did not start. Nothing was changed on the disk unless the message says so.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port could not be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A data directory could not be opened.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A data directory could not be looked through.
    #[error(transparent)]
    Strays(#[from] strays::LookError),
    /// A directory of Apache Kafka could not be taken over.
    #[error(transparent)]
    Takeover(#[from] TakeoverError),
    /// The folder with the metadata is not where it is looked for.
    #[error("{0}")]
    NoMetadata(String),
    /// The cluster's metadata could not be opened.
    #[error(transparent)]
    Metadata(#[from] klamm_metadata::StartError),
    /// The controller did not take this broker in.
    #[error("this broker was not taken into the cluster: {0}")]
    Registration(#[from] lifecycle::RegistrationError),
}

/// A node that runs.
pub struct Server {
    /// Where it listens: the listener's name, its address, and whether it is for controllers.
    pub listeners: Vec<(String, SocketAddr, bool)>,
    /// Where metrics and health are served over HTTP, if anywhere.
    pub http: Option<SocketAddr>,
    /// Says that clients are served.
    ready: watch::Sender<bool>,
    context: Arc<Context>,
    stop: watch::Sender<bool>,
    stopping: Stop,
    /// Why this node's partitions no longer follow the metadata.
    following_failure: watch::Receiver<Option<String>>,
    tasks: JoinSet<()>,
}

/// How long a stop waits for connections to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a stop waits until another voter leads the metadata quorum.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts a node. Ports come first: if one cannot be had, nothing on the disk has been touched. Controllers are
/// served next, because the quorum has no leader before its nodes hear each other, and so are metrics and health, which tell
/// what a node waits for; clients are served last.
pub async fn start(config: BrokerConfig, machine: Machine) -> Result<Server, StartError> {
    let (ready, is_ready) = watch::channel(false);
    let bound = listener::bind(&config, &*machine.network, &is_ready).await?;
    let http = listener::bind_http(&config, &*machine.network).await?;
    let store = Arc::new(LogStore::open(store_settings(&config, &machine))?);
    store.set_group_commit(config.klamm_flush_policy == FlushPolicy::GroupCommit);
    adoption::take_over(&store, &config, &topic_defaults(&config), &machine)?;
    metadata_folder::check(&store, &config, &*machine.disk).map_err(StartError::NoMetadata)?;
    let config = Arc::new(config);
    let deletes_strays =
        strays::may_be_deleted(&*machine.disk, &directories::usable(&store), &store.metadata_dir())?;
    if !config.is_alone() {
        // Other members learn this node's directory, which must be the same after a crash.
        store.write_identities()?;
    }
    let address = quorum_address(&config, &bound);
    let lost = Arc::new(LostConnections::default());
    let settings = metadata_settings(&config, &machine, &store, address, lost.clone());
    let metadata = Arc::new(start_metadata(settings, machine.threads).await?);
    let [incarnation, next_incarnation] = [(); 2].map(|()| Uuid::from_random(machine.random.next_16()));
    let registration = lifecycle::registration(&config, incarnation, &store, &bound);
    let network = machine.network.clone();
    let peers = Peers::new(network.clone(), format!("klamm-broker-{}", config.node_id)).telling(lost.clone());
    let (context, follower) =
        compose(config.clone(), machine, store, metadata.clone(), peers, deletes_strays);
    let mut server = Server::new(context.clone(), ready);
    let (quorum, clients) = bound.into_iter().partition(|bound| bound.endpoint().serves_quorum);
    server.listen(quorum);
    server.serve_http(http);
    server.tasks.spawn(suspicion::watch(context, network, lost, server.stopping.clone()));
    metadata.joined().await?;
    if config.roles.broker {
        server.begin_as_broker(registration, next_incarnation, follower, deletes_strays).await?;
    }
    server.listen(clients);
    server.ready.send_replace(true);
    Ok(server)
}

/// Starts this node's part of the quorum, on a thread of its own where there is to be one.
async fn start_metadata(
    settings: Settings,
    threads: Threads,
) -> Result<MetadataNode, klamm_metadata::StartError> {
    match threads {
        Threads::Own => MetadataNode::start(settings),
        Threads::Inline => {
            let (node, work) = MetadataNode::start_here(settings).await?;
            tokio::spawn(work);
            Ok(node)
        }
    }
}

impl Server {
    /// Registers the broker and opens its partitions. Where they turn out not to be as a clean stop has left them, it
    /// registers again, as `next_incarnation` and after an unclean stop: it must not be taken for one that has all
    /// that was acknowledged.
    async fn begin_as_broker(
        &mut self,
        mut registration: BrokerRegistrationRequest,
        next_incarnation: Uuid,
        mut follower: Follower,
        deletes_strays: bool,
    ) -> Result<(), StartError> {
        let context = self.context.clone();
        let (metadata, config) = (&context.metadata, &context.static_config);
        registration.cluster_id = context.store.cluster_id().to_owned();
        directories::note_lost(&context.store, &metadata.image(), config.node_id);
        register(&context, registration.clone()).await?;
        let image = metadata.image();
        let config_of = |topic: &str| topic_config(&image, topic, config.node_id, config);
        let report = context.store.open_logs(&|name| image_follower::log_config(&config_of(&name.topic)))?;
        strays::clear(&context.store, config.node_id, &image, deletes_strays);
        tracing::debug!("opened the logs: {report:?}");
        if !report.changed_logs.is_empty() {
            tracing::warn!(
                "the logs of {} are not as the last stop, which was clean, has left them: this broker counts as one \
                 that has lost records, and is in sync with no leader until it has copied what is missing",
                Named(&report.changed_logs)
            );
            registration.incarnation_id = next_incarnation;
            registration.previous_broker_epoch = -1;
            register(&context, registration).await?;
        }
        lifecycle::unfence(&context).await?;
        let image = metadata.image();
        follower.apply(&image);
        let recovered = follower.recovered.clone();
        background::update_config(&context, &image);
        self.follow(follower);
        if report.unchecked_logs > 0 {
            // It is not among the tasks that a stop waits for: the store ends it when it is closed.
            let threads = context.threads;
            tokio::spawn(threads.run(move || context.store.recover(&|| recovered.notify_one())));
        }
        Ok(())
    }
}

/// Registers the broker, unless the quorum fails on this node.
async fn register(context: &Context, registration: BrokerRegistrationRequest) -> Result<(), StartError> {
    let broker_epoch = tokio::select! {
        biased;
        registered = lifecycle::register(context, registration) => registered?,
        why = context.metadata.failure() => return Err(klamm_metadata::StartError::Membership(why).into()),
    };
    context.broker_epoch.store(broker_epoch, Ordering::Release);
    Ok(())
}

/// Puts the parts of a node together. None of them does anything yet.
fn compose(
    config: Arc<BrokerConfig>,
    machine: Machine,
    store: Arc<LogStore>,
    metadata: Arc<MetadataNode>,
    peers: Peers,
    deletes_strays: bool,
) -> (Arc<Context>, Follower) {
    let partitions = Arc::new(PartitionTable::default());
    let (coordinators, environment) =
        Coordinators::new(&config, &machine, metadata.clone(), partitions.clone());
    let replica_fetchers = Arc::new(ReplicaFetchers::new(machine.network.clone()));
    let elections: Arc<Elections> = Arc::default();
    let followed = Followed {
        partitions: partitions.clone(),
        coordinators: coordinators.clone(),
        replica_fetchers: replica_fetchers.clone(),
        active_brokers: Arc::default(),
        elections: elections.clone(),
    };
    let clock = machine.clock.clone();
    let (follower, applied) =
        Follower::new(config.node_id, config.clone(), store.clone(), followed, clock, deletes_strays);
    let node_id = config.node_id;
    let cleaner = Cleaner::new(store.clone(), cleaning::cleaner_settings(&config));
    let context = Context {
        node_id,
        current_config: ArcSwap::new(config.clone()),
        fetch_sessions: fetch_sessions(&config, &machine),
        replica_fetchers,
        isr_changes: IsrChanges::default(),
        leader_throttle: ReplicationThrottle::default(),
        follower_throttle: ReplicationThrottle::default(),
        questions: BrokerChannel::new(machine.network.clone(), format!("broker-{node_id}-questions")),
        markers: MarkerChannel::new(machine.network.clone(), node_id),
        connections: Connections::new(Limits::of(&config)),
        client_quotas: ClientQuotas::new(&config, metadata.watch(), machine.clock.clone()),
        metrics: Metrics::new(),
        elections,
        broker_epoch: AtomicI64::new(-1),
        static_config: config,
        controller: ControllerChannel::new(node_id, metadata.clone(), peers, machine.clock.clone()),
        metadata,
        partitions,
        groups: coordinators.groups,
        transactions: coordinators.transactions,
        cleaner,
        store,
        producer_ids: ProducerIds::default(),
        malformed_log: RateLimit::new(MALFORMED_LOG_EVERY),
        not_created_log: RateLimit::new(MALFORMED_LOG_EVERY),
        refused_log: RateLimit::new(MALFORMED_LOG_EVERY),
        creations_under_way: CreationsUnderWay::default(),
        lease: Lease::default(),
        applied,
        moves: Notify::new(),
        heartbeat_now: Notify::new(),
        registration_lost: watch::channel(None).0,
        clock: machine.clock,
        threads: machine.threads,
        loggers: machine.loggers,
    };
    let context = Arc::new(context);
    environment.set_context(&context);
    (context, follower)
}

impl Server {
    /// What the handlers of requests see.
    #[cfg(test)]
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// What a simulation may see of the node.
    pub fn view(&self) -> NodeView {
        NodeView(self.context.clone())
    }

    fn new(context: Arc<Context>, ready: watch::Sender<bool>) -> Server {
        let (stop, stopping) = Stop::channel();
        let (_, following_failure) = watch::channel(None);
        Server {
            listeners: Vec::new(),
            http: None,
            ready,
            context,
            stop,
            stopping,
            following_failure,
            tasks: JoinSet::new(),
        }
    }

    /// Has this node's partitions follow the metadata from now on, and looks after them.
    fn follow(&mut self, follower: Follower) {
        let (failure, following_failure) = watch::channel(None);
        self.following_failure = following_failure;
        directories::watch(&self.context, &follower, failure.clone());
        let (context, stop) = (self.context.clone(), self.stopping.clone());
        let images = context.metadata.watch();
        self.tasks.spawn(image_follower::follow_images(follower, context, images, stop, failure));
        self.tasks.spawn(isr_changes::run(self.context.clone(), self.stopping.clone()));
        self.tasks.spawn(replica_fetcher::run(self.context.clone(), self.stopping.clone()));
        self.tasks.spawn(background::maintain(self.context.clone(), self.stopping.clone()));
        self.tasks.spawn(background::remove_deleted(self.context.clone(), self.stopping.clone()));
        self.tasks.spawn(lifecycle::stay(self.context.clone(), self.stopping.clone()));
        self.tasks.spawn(cleaning::clean(self.context.clone(), self.stopping.clone()));
        self.tasks.spawn(moves::run(self.context.clone(), self.stopping.clone()));
        self.tasks.spawn(directory_assignments::run(self.context.clone(), self.stopping.clone()));
    }

    fn serve_http(&mut self, listener: Option<Arc<dyn Listener>>) {
        let Some(listener) = listener else { return };
        self.http = Some(listener.local_addr());
        self.tasks.spawn(admin::serve(
            listener,
            self.context.clone(),
            self.ready.subscribe(),
            self.stopping.clone(),
        ));
    }

    /// Takes connections from now on.
    fn listen(&mut self, bound: Vec<Bound>) {
        for bound in bound {
            let endpoint = bound.endpoint();
            self.listeners.push((endpoint.name.clone(), bound.address(), endpoint.is_controller));
            self.tasks.spawn(listener::serve(bound, self.context.clone(), self.stopping.clone()));
        }
    }

    /// Returns only if the node can no longer keep or follow the cluster's metadata, with the reason; then the
    /// process should end, and what was acknowledged is on the disk.
    pub async fn failed(&self) -> String {
        let mut following = self.following_failure.clone();
        let following = async {
            let reason =
                following.wait_for(Option::is_some).await.map(|reason| reason.clone().unwrap_or_default());
            match reason {
                Ok(reason) => reason,
                // It ended without a failure, as at a stop.
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            reason = self.context.metadata.failure() => reason,
            reason = following => reason,
        }
    }

    /// Ends connections when their answers are out, closes the logs and marks the stop as a clean one. False if they could
    /// not be closed cleanly, which is told.
    pub async fn stop(mut self) -> bool {
        if self.context.static_config.roles.broker {
            lifecycle::take_leave(&self.context).await;
        }
        self.context.metadata.hand_over(HAND_OVER_TIMEOUT).await;
        self.stop.send_replace(true);
        let tasks = &mut self.tasks;
        let ended = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_TIMEOUT, ended).await.is_err() {
            tracing::warn!("some connections did not end within {STOP_TIMEOUT:?} and are cut off");
            self.tasks.shutdown().await;
        }
        background::checkpoint(&self.context.partitions, &self.context.store);
        let closed = self.context.store.close(Some(self.context.broker_epoch()));
        if let Err(error) = &closed {
            tracing::error!("the logs were not closed cleanly, the next start will check them: {error}");
        }
        self.context.metadata.shutdown();
        closed.is_ok()
    }
}

fn fetch_sessions(config: &BrokerConfig, machine: &Machine) -> FetchSessions {
    let slots = usize::try_from(config.max_incremental_fetch_session_cache_slots).unwrap_or(0);
    FetchSessions::new(slots, FETCH_SESSION_EVICTION, machine.random.clone())
}

/// `min.incremental.fetch.session.eviction.ms`, which Kafka keeps to itself.
const FETCH_SESSION_EVICTION: Duration = Duration::from_secs(120);

fn store_settings(config: &BrokerConfig, machine: &Machine) -> StoreSettings {
    let Machine { disk, clock, random, .. } = machine.clone();
    StoreSettings {
        cluster_id: config.cluster_id.clone(),
        joins_later: true,
        recovery_threads: usize::try_from(config.num_recovery_threads_per_data_dir).unwrap_or(1),
        producer_expiration_ms: i64::from(config.producer_id_expiration_ms),
        threads: machine.threads,
        ..StoreSettings::new(config.log_dirs.clone(), config.node_id, disk, clock, random)
    }
}

/// Where other members of the quorum reach this node. A node that is alone and has no listener for them is not
/// reached.
fn quorum_address(config: &BrokerConfig, bound: &[Bound]) -> (String, u16) {
    if config.is_alone() && !config.listeners.iter().any(|listener| listener.is_controller) {
        return (String::new(), 0);
    }
    let (host, port) = config.quorum_address();
    // The system may have chosen the port.
    let chosen = bound.iter().map(Bound::endpoint).find(|endpoint| endpoint.serves_quorum).map(|it| it.port);
    (host, if port == 0 { chosen.unwrap_or(0) } else { port })
}

/// What the metadata needs to start. `address` is where other members reach this node.
pub(crate) fn metadata_settings(
    config: &Arc<BrokerConfig>,
    machine: &Machine,
    store: &Arc<LogStore>,
    address: (String, u16),
    lost: Arc<LostConnections>,
) -> Settings {
    let alone = Voter { id: config.node_id, host: address.0.clone(), port: address.1 };
    let voters = config.quorum_voters.iter().map(voter).collect();
    let identity = match store.cluster_id() {
        "" => {
            let wanted = store.wanted_cluster_id().map(str::to_owned);
            let store = store.clone();
            let keep = move |cluster_id: &str| store.join_cluster(cluster_id).map_err(io::Error::other);
            Identity::New { wanted, keep: Arc::new(keep) }
        }
        cluster_id => Identity::Of(cluster_id.to_owned()),
    };
    Settings {
        node_id: config.node_id,
        directory_id: store.directory_ids()[0].1,
        identity,
        address,
        listener: config
            .controller_listener_names
            .first()
            .cloned()
            .unwrap_or_else(|| "CONTROLLER".to_owned()),
        voters: if config.is_alone() { vec![alone] } else { voters },
        bootstrap_servers: config.quorum_bootstrap_servers.clone(),
        dir: store.metadata_dir(),
        disk: machine.disk.clone(),
        clock: machine.clock.clone(),
        random: machine.random.clone(),
        network: Arc::new(QuorumCarrier::new(machine.network.clone(), config.node_id, lost)),
        defaults: topic_defaults(config),
        rules: Arc::new(KafkaRules::new(Arc::clone(config))),
        quorum: QuorumSettings {
            broker_session_timeout: millis(config.broker_session_timeout_ms.max(1)),
            rebalance_leaders_every: config.auto_leader_rebalance_enable.then(|| {
                Duration::from_secs(
                    u64::try_from(config.leader_imbalance_check_interval_seconds).unwrap_or(1),
                )
            }),
            snapshot_bytes: u64::try_from(config.metadata_log_max_record_bytes_between_snapshots)
                .unwrap_or(u64::MAX),
            ..QuorumSettings::default().with_timeouts(
                millis(config.controller_quorum_election_timeout_ms),
                millis(config.controller_quorum_fetch_timeout_ms),
            )
        },
    }
}

fn millis(number: i32) -> Duration {
    Duration::from_millis(u64::try_from(number).unwrap_or(0))
}

/// A voter as the configuration names it.
fn voter(voter: &QuorumVoter) -> Voter {
    Voter { id: voter.id, host: voter.host.clone(), port: voter.port }
}

/// What new topics get here.
pub(crate) fn topic_defaults(config: &BrokerConfig) -> TopicDefaults {
    let factor = |number: i32| i16::try_from(number).unwrap_or(i16::MAX);
    TopicDefaults {
        num_partitions: config.num_partitions,
        replication_factor: factor(config.default_replication_factor),
        delete_topics: config.delete_topic_enable,
        offsets_partitions: config.offsets_topic_num_partitions,
        offsets_replication_factor: config.offsets_topic_replication_factor,
        offsets_segment_bytes: config.offsets_topic_segment_bytes,
        transactions_partitions: config.transaction_state_log_num_partitions,
        transactions_replication_factor: config.transaction_state_log_replication_factor,
        transactions_segment_bytes: config.transaction_state_log_segment_bytes,
        transactions_min_isr: config.transaction_state_log_min_isr,
    }
}

#[cfg(test)]
pub(crate) mod cluster_tests;
#[cfg(test)]
mod coordinator_tests;
#[cfg(test)]
mod full_disk_tests;
#[cfg(test)]
mod group_commit_tests;
#[cfg(test)]
mod registration_tests;
#[cfg(test)]
mod replication_tests;
#[cfg(test)]
mod roles_tests;
#[cfg(test)]
mod tests;

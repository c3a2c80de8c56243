//! What a handler may use: the image of the cluster, this node's partitions, the coordinators, and the way to
//! the controller.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use klamm_config::{BrokerConfig, DynamicConfigs, TopicConfig};
use klamm_coordinator::{GroupCoordinator, TransactionCoordinator};
use klamm_io::{Clock, Threads};
use klamm_metadata::{Broker, ConfigResource, Image, MetadataNode};
use klamm_model::{ErrorCode, NodeId, ProducerId, TopicId, TopicPartition, topic_name};
use klamm_storage::{Cleaner, LogStore, StorageErrorKind};
use tokio::sync::{Notify, watch};

use crate::api::Call;
use crate::broker_channel::BrokerChannel;
use crate::client_quotas::ClientQuotas;
use crate::controller_channel::{ControllerChannel, ForController};
use crate::elections::Elections;
use crate::fetch_sessions::FetchSessions;
use crate::image_follower::Applied;
use crate::isr_changes::IsrChanges;
use crate::lease::Lease;
use crate::lifecycle::registration_lost;
use crate::limits::{Connections, RateLimit};
use crate::listener::Endpoint;
use crate::loggers::Loggers;
use crate::marker_channel::MarkerChannel;
use crate::metrics::Metrics;
use crate::partition_table::PartitionTable;
use crate::producer_ids::ProducerIds;
use crate::replica_fetcher::ReplicaFetchers;
use crate::replication_throttle::ReplicationThrottle;
use crate::topic_creation::CreationsUnderWay;

/// Everything that handlers share. It holds no rules of its own.
pub(crate) struct Context {
    pub(crate) node_id: NodeId,
    /// The configuration as it was at start; see [`Context::config`] for what is in force.
    pub(crate) static_config: Arc<BrokerConfig>,
    pub(crate) current_config: ArcSwap<BrokerConfig>,
    pub(crate) metadata: Arc<MetadataNode>,
    pub(crate) controller: ControllerChannel,
    pub(crate) partitions: Arc<PartitionTable>,
    pub(crate) groups: Arc<GroupCoordinator>,
    pub(crate) transactions: Arc<TransactionCoordinator>,
    pub(crate) store: Arc<LogStore>,
    pub(crate) cleaner: Cleaner,
    pub(crate) fetch_sessions: FetchSessions,
    pub(crate) replica_fetchers: Arc<ReplicaFetchers>,
    pub(crate) isr_changes: IsrChanges,
    pub(crate) leader_throttle: ReplicationThrottle,
    pub(crate) follower_throttle: ReplicationThrottle,
    /// For questions that other brokers answer at once.
    pub(crate) questions: BrokerChannel,
    pub(crate) markers: MarkerChannel,
    pub(crate) producer_ids: ProducerIds,
    pub(crate) connections: Arc<Connections>,
    pub(crate) client_quotas: ClientQuotas,
    pub(crate) metrics: Metrics,
    pub(crate) elections: Arc<Elections>,
    pub(crate) malformed_log: RateLimit,
    pub(crate) not_created_log: RateLimit,
    pub(crate) refused_log: RateLimit,
    pub(crate) creations_under_way: CreationsUnderWay,
    pub(crate) applied: Applied,
    /// Woken when a partition is to move into another log directory.
    pub(crate) moves: Notify,
    /// Woken when the controller should hear of this broker before the next heartbeat is due.
    pub(crate) heartbeat_now: Notify,
    /// The epoch of this broker's registration; -1 before it has one.
    pub(crate) broker_epoch: AtomicI64,
    /// Until when this broker is sure to lead what it leads.
    pub(crate) lease: Lease,
    /// Why this process has no place in the cluster any more, once it hears of that.
    pub(crate) registration_lost: watch::Sender<Option<String>>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Where work is done that may wait for the disk.
    pub(crate) threads: Threads,
    pub(crate) loggers: Arc<Loggers>,
}

/// How long the answer to a creation waits until this node has opened the new partitions.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a change may wait for the controller where the request does not say.
pub(crate) const CONTROLLER_TIMEOUT: Duration = Duration::from_secs(30);

/// How often the log may speak of frames that cannot be read, or of connections that are refused.
pub(crate) const MALFORMED_LOG_EVERY: Duration = Duration::from_secs(1);

impl Context {
    /// The configuration in force, dynamic changes included.
    pub(crate) fn config(&self) -> Arc<BrokerConfig> {
        self.current_config.load_full()
    }

    /// The epoch of this broker's registration; -1 before it has one.
    pub(crate) fn broker_epoch(&self) -> i64 {
        self.broker_epoch.load(Ordering::Acquire)
    }

    /// Why this process has no place in the cluster any more, if an image says so or the controller did.
    pub(crate) fn why_lost(&self, image: &Image) -> Option<String> {
        let told = self.registration_lost.borrow().clone();
        told.or_else(|| registration_lost(image, self.node_id, self.broker_epoch()))
    }

    /// The newest image of the cluster that this node has.
    pub(crate) fn image(&self) -> Arc<Image> {
        self.metadata.image()
    }

    /// What to say of a partition that is not served here, named by its topic's id or, in older requests, by name. As in
    /// Kafka, one that the cluster knows is led by another node, as far as this one can tell
    /// (NOT_LEADER_OR_FOLLOWER): it is not open yet, or its log is being recovered. Clients ask again for all of
    /// these.
    pub(crate) fn missing_partition(&self, id: Option<TopicId>, name: &str, partition: i32) -> ErrorCode {
        let image = self.image();
        let topic = id.map_or_else(|| image.topic_by_name(name), |id| image.topic(id));
        let Some(topic) = topic else {
            let by_name = ErrorCode::UnknownTopicOrPartition;
            return id.map_or(by_name, |_| ErrorCode::UnknownTopicId);
        };
        if usize::try_from(partition).map_or(true, |index| index >= topic.partitions.len()) {
            return ErrorCode::UnknownTopicOrPartition;
        }
        if self.partitions.load().is_offline(topic.id, partition) {
            return ErrorCode::KafkaStorageError;
        }
        let failure = self.store.failure_of(&TopicPartition::new(topic.name.clone(), partition));
        match failure.map(|failure| failure.kind) {
            None | Some(StorageErrorKind::Recovering) => ErrorCode::NotLeaderOrFollower,
            Some(_) => ErrorCode::KafkaStorageError,
        }
    }

    /// An id that no producer ever had.
    pub(crate) async fn unused_producer_id(&self) -> Result<ProducerId, ErrorCode> {
        self.producer_ids.next(&self.controller, self.node_id, self.broker_epoch()).await
    }

    /// The partition of `__consumer_offsets` that a group belongs to; `None` while the topic does not exist.
    pub(crate) fn offsets_partition_of(&self, group: &str) -> Option<i32> {
        let image = self.image();
        let count = image.topic_by_name(topic_name::GROUP_METADATA)?.partitions.len() as i32;
        Some(klamm_coordinator::partition_of(group, count))
    }

    /// The value in force of a broker's key that the configuration has no field for: as it was set for this broker, for
    /// all, or at the start.
    pub(crate) fn broker_setting(&self, image: &Image, key: &str) -> Option<String> {
        let (broker, cluster) = dynamic_broker_configs(image, self.node_id);
        let set = broker.get(key).or_else(|| cluster.get(key)).cloned();
        set.or_else(|| self.static_config.value(key))
    }

    /// A topic's settings in force.
    pub(crate) fn topic_config(&self, image: &Image, topic: &str) -> TopicConfig {
        topic_config(image, topic, self.node_id, &self.static_config)
    }
}

/// A topic's settings in force: its own, the brokers', the file's, the defaults.
pub(crate) fn topic_config(
    image: &Image,
    topic: &str,
    node: NodeId,
    static_config: &BrokerConfig,
) -> TopicConfig {
    let (broker, cluster) = dynamic_broker_configs(image, node);
    let dynamic = DynamicConfigs { broker: Some(&broker), cluster: Some(&cluster) };
    TopicConfig::effective(&image.topic_config(topic), &dynamic, static_config)
}

/// Settings by key.
type Configs = Arc<BTreeMap<String, String>>;

/// What was set while running: for one broker, and for all of them.
pub(crate) fn dynamic_broker_configs(image: &Image, node: NodeId) -> (Configs, Configs) {
    (image.config_of(&ConfigResource::Broker(Some(node))), image.config_of(&ConfigResource::Broker(None)))
}

/// Where a client that came in on `endpoint` reaches a broker. A node that was not told what to advertise
/// says the address that the client itself came by, which works wherever the client sits.
pub(crate) fn reach(
    broker: &Broker,
    node: NodeId,
    endpoint: &Endpoint,
    local: SocketAddr,
) -> Option<(String, u16)> {
    if broker.id == node && endpoint.advertised.is_none() {
        return Some(found_at(endpoint, local));
    }
    let found = broker.endpoint(&endpoint.name)?;
    Some((found.host.clone(), found.port))
}

/// Where a client has found this node: the address that it came by to a listener.
pub(crate) fn found_at(endpoint: &Endpoint, local: SocketAddr) -> (String, u16) {
    (local.ip().to_canonical().to_string(), endpoint.port)
}

impl Context {
    /// Has the controller decide a request. One that came in on a listener of controllers was sent to the
    /// controller that its sender knows, and goes no further.
    pub(crate) async fn decide<R: ForController>(
        &self,
        call: &Call,
        request: R,
        timeout: Duration,
    ) -> R::Response {
        if call.endpoint.is_controller {
            return request.decide(self.metadata.within(timeout)).await;
        }
        self.controller.ask_for_client(request, timeout).await
    }

    /// Returns when this node's partitions have followed the newest metadata, so that a client which was told
    /// of a new topic finds it. `timeout_ms` is the client's; nothing is lost when it passes.
    pub(crate) async fn await_applied(&self, timeout_ms: i32) {
        let timeout = u64::try_from(timeout_ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis);
        self.applied.wait_for(self.image().offset, timeout.unwrap_or(OPEN_TIMEOUT)).await;
    }
}

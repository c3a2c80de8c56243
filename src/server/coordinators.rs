//! The coordinators of this node, and what they see of it.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use klamm_config::BrokerConfig;
use klamm_coordinator::transaction::WriteMarkers;
use klamm_coordinator::{
    GroupCoordinator, GroupEnvironment, GroupSettings, TransactionCoordinator, TransactionEnvironment,
    TransactionSettings,
};
use klamm_io::BoxFuture;
use klamm_metadata::{Image, MetadataNode};
use klamm_model::{ErrorCode, ProducerId, topic_name};
use klamm_partition::Partition;

use crate::context::Context;
use crate::lease;
use crate::partition_table::PartitionTable;
use crate::start::Machine;
use crate::transaction_markers;

/// All coordinators, as those tell them who leads what.
#[derive(Clone)]
pub(crate) struct Coordinators {
    pub(crate) groups: Arc<GroupCoordinator>,
    pub(crate) transactions: Arc<TransactionCoordinator>,
}

/// What a coordinator sees of this node.
pub(crate) struct Environment {
    metadata: Arc<MetadataNode>,
    partitions: Arc<PartitionTable>,
    /// All else; it holds the coordinators, so it is known only after them.
    context: OnceLock<Weak<Context>>,
}

impl Coordinators {
    /// Coordinators that lead nothing yet, and their surroundings, which have to be told of the context.
    pub(crate) fn new(
        config: &BrokerConfig,
        machine: &Machine,
        metadata: Arc<MetadataNode>,
        partitions: Arc<PartitionTable>,
    ) -> (Coordinators, Arc<Environment>) {
        let environment = Arc::new(Environment { metadata, partitions, context: OnceLock::new() });
        let (clock, random) = (machine.clock.clone(), machine.random.clone());
        let groups =
            GroupCoordinator::new(group_settings(config), clock.clone(), random, environment.clone());
        let settings = transaction_settings(config);
        let transactions = TransactionCoordinator::new(settings, clock, environment.clone());
        let (groups, transactions) = (Arc::new(groups), Arc::new(transactions));
        (Coordinators { groups, transactions }, environment)
    }

    /// Whether a topic is one of theirs.
    pub(crate) fn own(topic: &str) -> bool {
        matches!(topic, topic_name::GROUP_METADATA | topic_name::TRANSACTION_STATE)
    }

    /// Tells the owner of a partition whether this node leads it now.
    pub(crate) fn on_leadership(&self, partition: &Partition) {
        let name = partition.topic_partition();
        let (index, epoch) = (name.partition, partition.leader_epoch());
        match (&*name.topic, partition.is_leader()) {
            (topic_name::GROUP_METADATA, true) => self.groups.on_elected(index, epoch),
            (topic_name::TRANSACTION_STATE, true) => self.transactions.on_elected(index, epoch),
            (topic, false) => self.on_resigned(topic, index),
            (_, true) => {}
        }
    }

    /// Tells the owner of a partition that this node leads it, and that its log is still being recovered.
    pub(crate) fn on_recovering(&self, topic: &str, index: i32) {
        match topic {
            topic_name::GROUP_METADATA => self.groups.on_recovering(index),
            topic_name::TRANSACTION_STATE => self.transactions.on_recovering(index),
            _ => {}
        }
    }

    /// Tells the owner of a partition that this node does not lead it any more.
    pub(crate) fn on_resigned(&self, topic: &str, index: i32) {
        match topic {
            topic_name::GROUP_METADATA => self.groups.on_resigned(index),
            topic_name::TRANSACTION_STATE => self.transactions.on_resigned(index),
            _ => {}
        }
    }
}

impl Environment {
    pub(crate) fn set_context(&self, context: &Arc<Context>) {
        let _ = self.context.set(Arc::downgrade(context));
    }

    fn context(&self) -> Option<Arc<Context>> {
        self.context.get()?.upgrade()
    }

    async fn led_partition_alone(&self, partition: Option<Arc<Partition>>, time: Duration) -> bool {
        match (self.context(), partition) {
            (Some(context), Some(partition)) => lease::led_alone(&context, &partition, time).await,
            _ => false,
        }
    }

    fn partition_count(&self, topic: &str) -> i32 {
        let image = self.metadata.image();
        image.topic_by_name(topic).map_or(0, |topic| topic.partitions.len() as i32)
    }
}

impl GroupEnvironment for Environment {
    fn offsets_partition(&self, index: i32) -> Option<Arc<Partition>> {
        self.partitions.by_name(topic_name::GROUP_METADATA, index)
    }

    fn offsets_partition_count(&self) -> i32 {
        self.partition_count(topic_name::GROUP_METADATA)
    }

    fn image(&self) -> Arc<Image> {
        self.metadata.image()
    }

    fn led_alone(&self, index: i32, time: Duration) -> BoxFuture<'_, bool> {
        Box::pin(self.led_partition_alone(self.offsets_partition(index), time))
    }
}

impl TransactionEnvironment for Environment {
    fn transactions_partition(&self, index: i32) -> Option<Arc<Partition>> {
        self.partitions.by_name(topic_name::TRANSACTION_STATE, index)
    }

    fn transactions_partition_count(&self) -> i32 {
        self.partition_count(topic_name::TRANSACTION_STATE)
    }

    fn image(&self) -> Arc<Image> {
        self.metadata.image()
    }

    fn led_alone(&self, index: i32, time: Duration) -> BoxFuture<'_, bool> {
        Box::pin(self.led_partition_alone(self.transactions_partition(index), time))
    }

    fn unused_producer_id(&self) -> BoxFuture<'_, Result<ProducerId, ErrorCode>> {
        Box::pin(async move {
            let context = self.context().ok_or(ErrorCode::CoordinatorNotAvailable)?;
            context.unused_producer_id().await
        })
    }

    fn write_markers(&self, markers: WriteMarkers) {
        if let Some(context) = self.context.get() {
            tokio::spawn(transaction_markers::write_all(context.clone(), markers));
        }
    }
}

fn group_settings(config: &BrokerConfig) -> GroupSettings {
    GroupSettings {
        group_min_session_timeout_ms: config.group_min_session_timeout_ms,
        group_max_session_timeout_ms: config.group_max_session_timeout_ms,
        group_initial_rebalance_delay_ms: config.group_initial_rebalance_delay_ms,
        group_max_size: config.group_max_size,
        offset_metadata_max_bytes: config.offset_metadata_max_bytes,
        offsets_retention_minutes: config.offsets_retention_minutes,
        offsets_retention_check_interval_ms: config.offsets_retention_check_interval_ms,
        offsets_commit_timeout_ms: config.offsets_commit_timeout_ms,
        offsets_load_buffer_size: config.offsets_load_buffer_size,
        queued_max_requests: config.queued_max_requests,
        ..GroupSettings::default()
    }
}

fn transaction_settings(config: &BrokerConfig) -> TransactionSettings {
    TransactionSettings {
        max_timeout_ms: config.transaction_max_timeout_ms,
        transactional_id_expiration_ms: config.transactional_id_expiration_ms,
        abort_timed_out_transaction_cleanup_interval_ms: config
            .transaction_abort_timed_out_transaction_cleanup_interval_ms,
        remove_expired_transaction_cleanup_interval_ms: config
            .transaction_remove_expired_transaction_cleanup_interval_ms,
        load_buffer_size: config.transaction_state_log_load_buffer_size,
        queued_max_requests: config.queued_max_requests,
        request_timeout_ms: config.request_timeout_ms,
        ..TransactionSettings::default()
    }
}

//! The controller's decisions, as pure functions: a request and the image go in; records and a complete reply
//! with Kafka's error codes come out. Nothing here changes an image: [`apply`](crate::apply) alone does.
//!
//! The codes are those of Apache Kafka 4.4.0, asked case by case (`tests/golden`); the messages are our own.

mod alter_partition;
mod brokers;
mod client_quotas;
mod configs;
mod create_partitions;
mod create_topics;
mod delete_topics;
mod directories;
mod elect_leaders;
mod election;
pub(crate) mod features;
mod partition_reassignments;
mod placement;
mod producer_ids;
mod reassignment;
mod scram_credentials;
mod update_features;

use std::collections::BTreeMap;

use klamm_io::Random;
use klamm_model::{ErrorCode, NodeId, TimestampMs};

use crate::planted::Planted;

pub use alter_partition::alter_partition;
pub use brokers::{fence_brokers, heartbeat_broker, register_broker, unregister_broker};
pub use client_quotas::alter_client_quotas;
pub use configs::{alter_configs, incremental_alter_configs};
pub use create_partitions::create_partitions;
pub use create_topics::{InternalTopic, create_topics, request_for_auto_creation};
pub use delete_topics::delete_topics;
pub use directories::assign_replicas_to_dirs;
pub use elect_leaders::{REBALANCED_MAX, elect_leaders, rebalance_leaders, refuse_elections};
pub(crate) use features::KRAFT_VERSION;
pub use partition_reassignments::{
    alter_partition_reassignments, list_partition_reassignments, refuse_reassignments,
};
pub use producer_ids::{PRODUCER_ID_BLOCK_LEN, allocate_producer_ids};
pub use scram_credentials::alter_user_scram_credentials;
pub use update_features::update_features;

/// What a decision depends on beside the request and the image.
#[derive(Clone, Copy)]
pub struct ControllerContext<'a> {
    /// The time of the wall.
    pub now_ms: TimestampMs,
    /// Where topic ids and the first broker of a placement come from.
    pub random: &'a dyn Random,
    /// What a topic gets that says nothing.
    pub defaults: &'a TopicDefaults,
    /// Which settings exist and which values they take.
    pub rules: &'a dyn ConfigRules,
    /// A mistake that a test makes.
    pub planted: Planted,
}

/// What the broker's own configuration says about new topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDefaults {
    /// `num.partitions`.
    pub num_partitions: i32,
    /// `default.replication.factor`.
    pub replication_factor: i16,
    /// `delete.topic.enable`.
    pub delete_topics: bool,
    /// `offsets.topic.num.partitions`.
    pub offsets_partitions: i32,
    /// `offsets.topic.replication.factor`.
    pub offsets_replication_factor: i16,
    /// `offsets.topic.segment.bytes`.
    pub offsets_segment_bytes: i32,
    /// `transaction.state.log.num.partitions`.
    pub transactions_partitions: i32,
    /// `transaction.state.log.replication.factor`.
    pub transactions_replication_factor: i16,
    /// `transaction.state.log.segment.bytes`.
    pub transactions_segment_bytes: i32,
    /// `transaction.state.log.min.isr`.
    pub transactions_min_isr: i32,
}

impl Default for TopicDefaults {
    /// Kafka's defaults.
    fn default() -> TopicDefaults {
        TopicDefaults {
            num_partitions: 1,
            replication_factor: 1,
            delete_topics: true,
            offsets_partitions: 50,
            offsets_replication_factor: 3,
            offsets_segment_bytes: 104_857_600,
            transactions_partitions: 50,
            transactions_replication_factor: 3,
            transactions_segment_bytes: 104_857_600,
            transactions_min_isr: 2,
        }
    }
}

/// Which settings exist and which values they take: the table of `klamm-config`, or that of a test.
pub trait ConfigRules: Send + Sync + 'static {
    /// Says what is wrong with a topic's settings as a whole, or nothing.
    fn validate_topic(&self, configs: &BTreeMap<String, String>) -> Result<(), String>;

    /// Says what is wrong with a group's settings as a whole, or nothing.
    fn validate_group(&self, configs: &BTreeMap<String, String>) -> Result<(), String>;

    /// Says what is wrong with the dynamic settings of one broker, or with those of all, as a whole. `changed`
    /// are the keys that the request names.
    fn validate_broker(
        &self,
        broker: Option<NodeId>,
        configs: &BTreeMap<String, String>,
        changed: &[&str],
    ) -> Result<(), BrokerConfigError>;

    /// The value in force of a key that topics and brokers call the same, for a topic that has these overrides,
    /// given what was set dynamically for all brokers. `None` where there is none.
    fn topic_setting(
        &self,
        key: &str,
        overrides: &BTreeMap<String, String>,
        cluster: &BTreeMap<String, String>,
    ) -> Option<String>;

    /// For a topic's key that holds a list: what it holds where nothing is set. `None` for a key that holds no
    /// list, to which nothing can be appended.
    fn topic_list_default(&self, key: &str) -> Option<String>;

    /// As [`ConfigRules::topic_list_default`], for a broker's key.
    fn broker_list_default(&self, key: &str) -> Option<String>;

    /// All settings of a topic that has these overrides, for the reply to CreateTopics, given what was set
    /// dynamically for all brokers.
    fn describe_topic(
        &self,
        overrides: &BTreeMap<String, String>,
        cluster: &BTreeMap<String, String>,
    ) -> Vec<DescribedConfig>;
}

/// Why a broker's settings are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerConfigError {
    /// The code of the reply: 42 for a key that cannot be changed at run time, 40 for a bad value.
    pub code: ErrorCode,
    /// What is wrong.
    pub message: String,
}

/// One setting of a topic, as the reply to CreateTopics shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedConfig {
    /// Key.
    pub name: String,
    /// Value; `None` where it is hidden or there is none.
    pub value: Option<String>,
    /// Whether it cannot be changed.
    pub read_only: bool,
    /// Kafka's number of where the value comes from: 1 the topic, 3 all brokers, 4 the file, 5 the default.
    pub source: i8,
    /// Whether the value is a secret.
    pub sensitive: bool,
}

/// How long a message may be.
const MESSAGE_BYTES_MAX: usize = 1000;

/// Why one item of a request is refused.
#[derive(Debug)]
struct Refusal {
    code: ErrorCode,
    message: String,
}

impl Refusal {
    /// A message may quote what the client sent, which can be longer than what an answer can carry.
    fn new(code: ErrorCode, message: impl Into<String>) -> Refusal {
        let mut message: String = message.into();
        if message.len() > MESSAGE_BYTES_MAX {
            message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
            message.push('…');
        }
        Refusal { code, message }
    }
}

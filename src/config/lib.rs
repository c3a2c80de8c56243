//! The settings of brokers, topics and groups: one table of data (`keys.tsv`) says what exists, of which type,
//! with which default and range, and who may change it while the broker runs; everything else here reads it.
//!
//! This crate must never open a file, read the environment or a clock, or log: texts are handed in, and
//! values, warnings and errors come out. It knows neither topics that exist nor nodes that are alive.

mod broker;
mod client_metrics;
mod describe;
mod environment;
mod group;
mod kafka_version;
mod key;
mod legacy;
mod listeners;
mod load;
mod properties;
mod roles;
mod source;
mod table;
mod topic;
mod validate;
mod value;

pub use broker::{BrokerConfig, FlushPolicy};
pub use client_metrics::{InvalidClientMetrics, describe_client_metrics, validate_client_metrics};
pub use describe::{
    ConfigEntry, ConfigSource, ConfigSynonym, describe_broker, describe_cluster_default, describe_group,
    describe_topic,
};
pub use environment::{key_of_variable, settings_of_environment};
pub use group::validate_group_configs;
pub use key::{Allowed, DefaultValue, Importance, Key, Kind, Scope, Synonym, Update};
pub use listeners::{AdvertisedListener, Listener, SecurityProtocol};
pub use load::load;
pub use properties::{Property, parse_properties};
pub use roles::{QuorumVoter, Roles};
pub use source::{ConfigError, Source, Sources, Warning};
pub use table::{broker_key, broker_keys, group_key, group_keys, nearest, topic_key, topic_keys};
pub use topic::{CleanupPolicy, CompressionType, DynamicConfigs, ThrottledReplicas, TopicConfig};
pub use validate::{InvalidConfig, check_value, validate_broker_configs, validate_topic_configs};
pub use value::{list_items, validate};

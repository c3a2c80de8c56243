//! The settings that this Klamm knows, for the controller.

use std::collections::BTreeMap;
use std::sync::Arc;

use klamm_config::{BrokerConfig, DynamicConfigs, Key, Kind, Update};
use klamm_model::{ErrorCode, NodeId};

use crate::controller::{BrokerConfigError, ConfigRules, DescribedConfig, TopicDefaults};

/// The rules of `klamm-config`'s table, with the defaults of this broker.
pub struct KafkaRules {
    broker: Arc<BrokerConfig>,
}

impl KafkaRules {
    /// Rules on top of what the broker was started with.
    pub fn new(broker: Arc<BrokerConfig>) -> KafkaRules {
        KafkaRules { broker }
    }
}

impl ConfigRules for KafkaRules {
    fn validate_topic(&self, configs: &BTreeMap<String, String>) -> Result<(), String> {
        klamm_config::validate_topic_configs(configs, &self.broker).map_err(|error| error.message)
    }

    fn validate_broker(
        &self,
        broker: Option<NodeId>,
        configs: &BTreeMap<String, String>,
        changed: &[&str],
    ) -> Result<(), BrokerConfigError> {
        for name in changed {
            // As in Kafka, a key that nobody knows is kept: a plug-in of some node may know it.
            let Some(key) = klamm_config::broker_key(name) else { continue };
            check_broker_key(key, broker.is_some(), configs.get(*name))
                .map_err(|message| BrokerConfigError { code: ErrorCode::InvalidRequest, message })?;
        }
        Ok(())
    }

    fn validate_group(&self, configs: &BTreeMap<String, String>) -> Result<(), String> {
        klamm_config::validate_group_configs(configs, &self.broker).map_err(|error| error.message)
    }

    fn topic_setting(
        &self,
        key: &str,
        overrides: &BTreeMap<String, String>,
        cluster: &BTreeMap<String, String>,
    ) -> Option<String> {
        let set = overrides.get(key).or_else(|| cluster.get(key)).cloned();
        set.or_else(|| self.broker.value(key))
    }

    fn topic_list_default(&self, key: &str) -> Option<String> {
        let key = klamm_config::topic_key(key).filter(|key| key.kind == Kind::List)?;
        let inherited = key.synonyms.first().and_then(|synonym| self.broker.value(synonym.name));
        Some(inherited.or_else(|| key.default_text().map(str::to_owned)).unwrap_or_default())
    }

    fn broker_list_default(&self, key: &str) -> Option<String> {
        let key = klamm_config::broker_key(key).filter(|key| key.kind == Kind::List)?;
        Some(self.broker.value(key.name).unwrap_or_default())
    }

    fn describe_topic(
        &self,
        overrides: &BTreeMap<String, String>,
        cluster: &BTreeMap<String, String>,
    ) -> Vec<DescribedConfig> {
        let dynamic = DynamicConfigs { broker: None, cluster: Some(cluster) };
        let entries = klamm_config::describe_topic(overrides, &dynamic, &self.broker);
        let described = entries.into_iter().map(|entry| DescribedConfig {
            name: entry.name,
            value: entry.value,
            read_only: entry.read_only,
            source: entry.source as i8,
            sensitive: entry.sensitive,
        });
        described.collect()
    }
}

fn check_broker_key(key: &Key, for_one: bool, value: Option<&String>) -> Result<(), String> {
    let name = key.name;
    match key.update {
        Update::ReadOnly => Err(format!("Cannot update these configs dynamically: [{name}]")),
        Update::PerBroker if !for_one => Err(format!(
            "Cannot update these configs at default cluster level, broker id must be specified: [{name}]"
        )),
        Update::PerBroker | Update::ClusterWide => match value {
            Some(value) => klamm_config::check_value(key, value),
            None => Ok(()),
        },
    }
}

impl TopicDefaults {
    /// What the broker was started with.
    pub fn of(broker: &BrokerConfig) -> TopicDefaults {
        TopicDefaults {
            num_partitions: broker.num_partitions,
            replication_factor: i16::try_from(broker.default_replication_factor).unwrap_or(i16::MAX),
            delete_topics: broker.delete_topic_enable,
            offsets_partitions: broker.offsets_topic_num_partitions,
            offsets_replication_factor: broker.offsets_topic_replication_factor,
            offsets_segment_bytes: broker.offsets_topic_segment_bytes,
            transactions_partitions: broker.transaction_state_log_num_partitions,
            transactions_replication_factor: broker.transaction_state_log_replication_factor,
            transactions_segment_bytes: broker.transaction_state_log_segment_bytes,
            transactions_min_isr: broker.transaction_state_log_min_isr,
        }
    }
}

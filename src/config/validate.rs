//! Checks of settings that clients want to change: what CreateTopics, AlterConfigs and IncrementalAlterConfigs
//! answer with INVALID_CONFIG (40) if it fails.

use std::collections::BTreeMap;

use crate::broker::BrokerConfig;
use crate::key::{Key, Scope, Update};
use crate::table;
use crate::topic::{DynamicConfigs, topic_value};
use crate::value::validate;

/// Why a change was refused, in a sentence for whoever asked for it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct InvalidConfig {
    /// The key that is wrong.
    pub key: String,
    /// What is wrong with it and what would be right.
    pub message: String,
}

impl InvalidConfig {
    fn new(key: &str, message: String) -> InvalidConfig {
        InvalidConfig { key: key.to_owned(), message }
    }
}

/// Checks all settings of a topic as they would stand after a change.
pub fn validate_topic_configs(
    settings: &BTreeMap<String, String>,
    broker: &BrokerConfig,
) -> Result<(), InvalidConfig> {
    for (name, value) in settings {
        let key = table::topic_key(name)
            .ok_or_else(|| InvalidConfig::new(name, unknown(Scope::Topic, name, "topic")))?;
        check(key, value)?;
    }
    let number = |name: &str| -> Option<i64> {
        topic_value(name, settings, &DynamicConfigs::default(), broker)?.parse().ok()
    };
    if let (Some(least), Some(most)) = (number("min.compaction.lag.ms"), number("max.compaction.lag.ms"))
        && least > most
    {
        return Err(InvalidConfig::new(
            "min.compaction.lag.ms",
            format!("min.compaction.lag.ms={least} must not be greater than max.compaction.lag.ms={most}"),
        ));
    }
    if settings.get("remote.storage.enable").is_some_and(|value| value.trim().eq_ignore_ascii_case("true")) {
        return Err(InvalidConfig::new(
            "remote.storage.enable",
            "remote.storage.enable=true: this broker has no tiered storage".to_owned(),
        ));
    }
    Ok(())
}

/// Checks settings of one broker (`for_one`), or of all brokers, as they would stand after a change.
pub fn validate_broker_configs(
    settings: &BTreeMap<String, String>,
    for_one: bool,
) -> Result<(), InvalidConfig> {
    for (name, value) in settings {
        let base = listener_key(name).unwrap_or(name);
        let key = table::broker_key(base)
            .ok_or_else(|| InvalidConfig::new(name, unknown(Scope::Broker, name, "broker")))?;
        match key.update {
            Update::ReadOnly => {
                return Err(InvalidConfig::new(
                    name,
                    format!("{name} is read when the broker starts and cannot be changed while it runs"),
                ));
            }
            Update::PerBroker if !for_one => {
                return Err(InvalidConfig::new(
                    name,
                    format!("{name} differs from broker to broker: change it for one broker, not for all"),
                ));
            }
            Update::PerBroker | Update::ClusterWide => check(key, value)?,
        }
    }
    Ok(())
}

/// `ssl.keystore.type` of `listener.name.internal.ssl.keystore.type`.
pub(crate) fn listener_key(name: &str) -> Option<&str> {
    let (_, key) = name.strip_prefix("listener.name.")?.split_once('.')?;
    // A SASL mechanism may stand between: listener.name.internal.scram-sha-256.sasl.jaas.config
    match table::broker_key(key) {
        Some(_) => Some(key),
        None => key.split_once('.').map(|(_, key)| key).filter(|key| table::broker_key(key).is_some()),
    }
}

fn check(key: &Key, value: &str) -> Result<(), InvalidConfig> {
    validate(key, value).map_err(|expected| {
        let shown = if key.is_sensitive() { "(hidden)" } else { value };
        InvalidConfig::new(key.name, format!("{}={shown}: {expected}", key.name))
    })
}

fn unknown(scope: Scope, name: &str, whose: &str) -> String {
    match table::nearest(scope, name) {
        Some(nearest) => format!("a {whose} has no setting {name:?}; did you mean {nearest}?"),
        None => format!("a {whose} has no setting {name:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    fn topic_error(pairs: &[(&str, &str)]) -> Option<String> {
        let broker = BrokerConfig::defaults();
        validate_topic_configs(&settings(pairs), &broker).err().map(|error| error.message)
    }

    fn broker_error(pairs: &[(&str, &str)], for_one: bool) -> Option<String> {
        validate_broker_configs(&settings(pairs), for_one).err().map(|error| error.message)
    }

    #[test]
    fn settings_of_topics() {
        assert_eq!(topic_error(&[]), None);
        assert_eq!(topic_error(&[("retention.ms", "-1"), ("cleanup.policy", "compact,delete")]), None);
        // Old tools set keys that newer Kafkas dropped.
        assert_eq!(topic_error(&[("message.format.version", "0.10.2")]), None);
        let message = topic_error(&[("retention.ms", "-2")]).unwrap();
        assert_eq!(message, "retention.ms=-2: expected a whole number from -1 to 9223372036854775807");
        let message = topic_error(&[("retention.mss", "1")]).unwrap();
        assert_eq!(message, "a topic has no setting \"retention.mss\"; did you mean retention.ms?");
        assert!(topic_error(&[("min.compaction.lag.ms", "5"), ("max.compaction.lag.ms", "4")]).is_some());
        assert!(topic_error(&[("remote.storage.enable", "true")]).is_some());
        assert_eq!(topic_error(&[("remote.storage.enable", "false")]), None);
    }

    #[test]
    fn settings_of_brokers() {
        assert_eq!(broker_error(&[("log.retention.ms", "1000")], true), None);
        assert_eq!(broker_error(&[("log.retention.ms", "1000")], false), None);
        assert!(
            broker_error(&[("num.partitions", "3")], true).unwrap().contains("read when the broker starts")
        );
        assert!(broker_error(&[("ssl.keystore.type", "PEM")], false).unwrap().contains("one broker"));
        assert_eq!(broker_error(&[("ssl.keystore.type", "PEM")], true), None);
        assert_eq!(broker_error(&[("listener.name.a.ssl.keystore.type", "PEM")], true), None);
        assert_eq!(broker_error(&[("listener.name.a.scram-sha-256.sasl.jaas.config", "x")], true), None);
        assert!(
            broker_error(&[("max.connections", "many")], false).unwrap().contains("expected a whole number")
        );
        assert!(
            broker_error(&[("max.conections", "1")], false)
                .unwrap()
                .contains("did you mean max.connections?")
        );
    }
}

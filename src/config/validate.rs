//! Checks of settings that clients want to change with CreateTopics, AlterConfigs and IncrementalAlterConfigs.

use std::collections::BTreeMap;

use crate::broker::BrokerConfig;
use crate::key::{Key, Kind, Scope, Update};
use crate::table;
use crate::topic::{DynamicConfigs, topic_value};
use crate::value::{fault, java_double, parse_double, validate};

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
    pub(crate) fn new(key: &str, message: String) -> InvalidConfig {
        InvalidConfig { key: key.to_owned(), message }
    }
}

/// Checks all settings of a topic as they would stand after a change. A failure is answered with INVALID_CONFIG
/// (40). Settings that Kafka 4 dropped and old tools still make are taken; they change nothing.
pub fn validate_topic_configs(
    settings: &BTreeMap<String, String>,
    broker: &BrokerConfig,
) -> Result<(), InvalidConfig> {
    for (name, value) in settings {
        let key = table::topic_key(name).ok_or_else(|| InvalidConfig::new(name, unknown(name)))?;
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
            format!(
                "conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
            ),
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

/// Checks the settings of one broker (`for_one`), or of all brokers, that a client wants to change. A failure is
/// answered with INVALID_REQUEST (42), as Apache Kafka does. A key that nobody knows is kept, as in Kafka: what is
/// throttled during a reassignment is set so, and plug-ins have keys of their own.
pub fn validate_broker_configs(
    changed: &BTreeMap<String, String>,
    for_one: bool,
) -> Result<(), InvalidConfig> {
    for (name, value) in changed {
        let base = listener_key(name);
        let Some(key) = table::broker_key(base.unwrap_or(name)) else { continue };
        let refused = match key.update {
            Update::ReadOnly => {
                format!("{name} is read when the broker starts and cannot be changed while it runs")
            }
            Update::PerBroker if !for_one => {
                format!("{name} differs from broker to broker: change it for one broker, not for all")
            }
            Update::PerBroker => format!("{name} cannot be changed while this version of Klamm runs"),
            Update::ClusterWide => match check(key, value) {
                Ok(()) => continue,
                Err(error) => error.message,
            },
        };
        return Err(InvalidConfig::new(name, refused));
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

/// Checks a value that a client wants to set. The error is in Kafka's words.
pub fn check_value(key: &Key, value: &str) -> Result<(), String> {
    validate(key, value).map_err(|_| {
        let shown = match parse_double(value.trim()) {
            _ if key.is_sensitive() => "(hidden)".to_owned(),
            Some(number) if key.kind == Kind::Double => java_double(number),
            _ => value.to_owned(),
        };
        format!("Invalid value {shown} for configuration {}: {}", key.name, fault(key, value))
    })
}

fn check(key: &Key, value: &str) -> Result<(), InvalidConfig> {
    check_value(key, value).map_err(|message| InvalidConfig::new(key.name, message))
}

fn unknown(name: &str) -> String {
    match table::nearest(Scope::Topic, name) {
        Some(nearest) => format!("Unknown topic config name: {name}; did you mean {nearest}?"),
        None => format!("Unknown topic config name: {name}"),
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
        assert_eq!(message, "Invalid value -2 for configuration retention.ms: Value must be at least -1");
        let message = topic_error(&[("retention.mss", "1")]).unwrap();
        assert_eq!(message, "Unknown topic config name: retention.mss; did you mean retention.ms?");
        assert!(topic_error(&[("min.compaction.lag.ms", "5"), ("max.compaction.lag.ms", "4")]).is_some());
        assert!(topic_error(&[("remote.storage.enable", "true")]).is_some());
        assert_eq!(topic_error(&[("remote.storage.enable", "false")]), None);
    }

    #[test]
    fn settings_of_brokers() {
        for name in ["log.retention.ms", "max.connections", "log.cleaner.threads"] {
            assert_eq!(broker_error(&[(name, "1000")], true), None, "{name}");
            assert_eq!(broker_error(&[(name, "1000")], false), None, "{name}");
        }
        // What kafka-reassign-partitions --throttle sets, and what nobody knows.
        assert_eq!(broker_error(&[("leader.replication.throttled.rate", "5"), ("my.own", "5")], true), None);
        let read_only = broker_error(&[("num.partitions", "3")], true).unwrap();
        assert!(read_only.contains("read when the broker starts"), "{read_only}");
        let for_all = broker_error(&[("ssl.keystore.type", "PEM")], false).unwrap();
        assert!(for_all.contains("one broker"), "{for_all}");
        // A keystore that is taken and not used would make people believe in a protection that is not there.
        for name in [
            "listeners",
            "ssl.keystore.type",
            "listener.name.a.ssl.keystore.type",
            "listener.name.a.scram-sha-256.sasl.jaas.config",
        ] {
            assert!(broker_error(&[(name, "x")], true).unwrap().contains("cannot be changed"), "{name}");
        }
        let wrong = broker_error(&[("max.connections", "many")], false).unwrap();
        assert!(
            wrong.starts_with("Invalid value many for configuration max.connections: Not a number"),
            "{wrong}"
        );
    }
}

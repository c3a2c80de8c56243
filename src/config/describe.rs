//! What DescribeConfigs answers: each key with its value, where the value comes from, and what else is known.

use std::collections::{BTreeMap, BTreeSet};

use crate::broker::{BrokerConfig, value_of};
use crate::group::group_value;
use crate::key::{Key, Kind, Update};
use crate::table;
use crate::topic::{DynamicConfigs, topic_value};
use crate::validate::listener_key;
use crate::value::{java_double, parse_double};

/// Where a value comes from. The numbers are those of DescribeConfigs (KIP-226).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i8)]
pub enum ConfigSource {
    /// Set for the topic.
    DynamicTopic = 1,
    /// Set for this broker while it ran.
    DynamicBroker = 2,
    /// Set for all brokers while they ran.
    DynamicDefaultBroker = 3,
    /// Set in a source that is read at start.
    StaticBroker = 4,
    /// Nobody set it.
    Default = 5,
    /// The level of a logger.
    DynamicBrokerLogger = 6,
    /// Set for a subscription to the metrics of clients.
    ClientMetrics = 7,
    /// Set for the group.
    Group = 8,
}

/// One place that gives a key a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigSynonym {
    /// The key there, which may have another name.
    pub name: String,
    /// The value there; `None` if it is secret.
    pub value: Option<String>,
    /// The place.
    pub source: ConfigSource,
}

/// One key of a resource as clients see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigEntry {
    /// The key.
    pub name: String,
    /// The value in force; `None` for null and for secrets.
    pub value: Option<String>,
    /// Where the value comes from.
    pub source: ConfigSource,
    /// It cannot be changed while the broker runs.
    pub read_only: bool,
    /// Its value is never shown.
    pub sensitive: bool,
    /// All places that give it a value, the one in force first.
    pub synonyms: Vec<ConfigSynonym>,
    /// Its type; `None` for a key that nobody knows.
    pub kind: Option<Kind>,
    /// What it does.
    pub documentation: String,
}

impl ConfigEntry {
    /// A logger with its level.
    pub fn of_logger(logger: String, level: &str) -> ConfigEntry {
        ConfigEntry {
            name: logger,
            value: Some(level.to_owned()),
            source: ConfigSource::DynamicBrokerLogger,
            read_only: false,
            sensitive: false,
            synonyms: Vec::new(),
            kind: None,
            documentation: String::new(),
        }
    }

    /// What DescribeConfigs v0 asks instead of the source: whether nobody set it.
    pub fn is_default(&self) -> bool {
        self.source == ConfigSource::Default
    }

    /// The type's number on the wire, 0 for a key that nobody knows.
    pub fn kind_code(&self) -> i8 {
        self.kind.map_or(0, |kind| kind as i8)
    }
}

/// The newest release whose keys are described even if nobody set them.
const DESCRIBED_KAFKA: &str = "4.4";

/// What stands in place of a release for the keys that only Klamm has.
const OWN: &str = "klamm";

/// All keys of a topic, sorted by name: those of today's Kafka, and older ones if they were set for the topic or
/// its broker.
pub fn describe_topic(
    settings: &BTreeMap<String, String>,
    dynamic: &DynamicConfigs<'_>,
    broker: &BrokerConfig,
) -> Vec<ConfigEntry> {
    table::topic_keys()
        .iter()
        .filter(|key| {
            let is_set = |name| broker.values.contains_key(name) || dynamic.value(name).is_some();
            is_described(key)
                || settings.contains_key(key.name)
                || (!key.internal && key.synonyms.iter().any(|synonym| is_set(synonym.name)))
        })
        .map(|key| {
            let value = topic_value(key.name, settings, dynamic, broker);
            let own = settings.get(key.name).map(|_| ConfigSynonym {
                name: key.name.to_owned(),
                value: value.clone(),
                source: ConfigSource::DynamicTopic,
            });
            let inherited = key
                .synonyms
                .first()
                .map(|first| broker_synonyms(first.name, dynamic, broker))
                .unwrap_or_default();
            let synonyms: Vec<ConfigSynonym> = own.into_iter().chain(inherited).collect();
            entry(key.name, Some(key), value, synonyms, false)
        })
        .collect()
}

/// All keys of a group, sorted by name; internal ones only if they were set for it. Klamm acts on none of them: they are
/// those of newer protocols.
pub fn describe_group(
    settings: &BTreeMap<String, String>,
    dynamic: &DynamicConfigs<'_>,
    broker: &BrokerConfig,
) -> Vec<ConfigEntry> {
    let keys = table::group_keys().iter().filter(|key| !key.internal || settings.contains_key(key.name));
    keys.map(|key| {
        let value = group_value(key.name, settings, dynamic, broker);
        let own = settings.get(key.name).map(|_| ConfigSynonym {
            name: key.name.to_owned(),
            value: value.clone(),
            source: ConfigSource::Group,
        });
        let inherited = match key.synonyms.first() {
            Some(first) => broker_synonyms(first.name, dynamic, broker),
            // As in Kafka, a key that no broker has is its own.
            None => vec![ConfigSynonym {
                name: key.name.to_owned(),
                value: key.default_text().map(str::to_owned),
                source: ConfigSource::Default,
            }],
        };
        entry(key.name, Some(key), value, own.into_iter().chain(inherited).collect(), false)
    })
    .collect()
}

/// All keys of this broker, sorted by name: those of today's Kafka, and any other that was set. Kafka's quotas of
/// replication are among the latter.
pub fn describe_broker(dynamic: &DynamicConfigs<'_>, broker: &BrokerConfig) -> Vec<ConfigEntry> {
    let mut names: BTreeSet<&str> =
        table::broker_keys().iter().filter(|key| is_described(key)).map(|key| key.name).collect();
    names.extend(broker.values.keys().map(String::as_str));
    for layer in [dynamic.broker, dynamic.cluster].into_iter().flatten() {
        names.extend(layer.keys().map(String::as_str));
    }
    names
        .into_iter()
        .map(|name| {
            let value = value_of(name, dynamic, &broker.values, &broker.defaults);
            broker_entry(name, value, broker_synonyms(name, dynamic, broker))
        })
        .collect()
}

/// What was set for all brokers while they ran, sorted by name: the answer for the broker without a name.
pub fn describe_cluster_default(cluster: &BTreeMap<String, String>) -> Vec<ConfigEntry> {
    cluster
        .iter()
        .map(|(name, value)| {
            let synonym = ConfigSynonym {
                name: name.clone(),
                value: shown(name, value),
                source: ConfigSource::DynamicDefaultBroker,
            };
            broker_entry(name, Some(value.clone()), vec![synonym])
        })
        .collect()
}

fn is_described(key: &Key) -> bool {
    [DESCRIBED_KAFKA, OWN].contains(&key.last_kafka) && !key.internal
}

fn key_of(name: &str) -> Option<&'static Key> {
    table::broker_key(listener_key(name).unwrap_or(name))
}

/// A value as it may be shown. What a key means that nobody knows is not known either, so it counts as secret.
fn shown(name: &str, value: &str) -> Option<String> {
    key_of(name).filter(|key| !key.is_sensitive()).map(|_| value.to_owned())
}

fn broker_entry(name: &str, value: Option<String>, synonyms: Vec<ConfigSynonym>) -> ConfigEntry {
    let key = key_of(name);
    // In Apache Kafka some more can be changed for one broker: listeners, TLS and SASL.
    let read_only = key.is_none_or(|key| key.update != Update::ClusterWide);
    entry(name, key, value, synonyms, read_only)
}

fn entry(
    name: &str,
    key: Option<&Key>,
    value: Option<String>,
    synonyms: Vec<ConfigSynonym>,
    read_only: bool,
) -> ConfigEntry {
    let sensitive = key.is_none_or(Key::is_sensitive);
    let is_double = key.is_some_and(|key| key.kind == Kind::Double);
    let value = value.map(|value| match parse_double(value.trim()) {
        Some(number) if is_double => java_double(number),
        _ => value,
    });
    ConfigEntry {
        name: name.to_owned(),
        value: value.filter(|_| !sensitive),
        source: synonyms.first().map_or(ConfigSource::Default, |synonym| synonym.source),
        read_only,
        sensitive,
        synonyms,
        kind: key.map(|key| key.kind),
        documentation: key.map(Key::documentation).unwrap_or_default(),
    }
}

/// The names that give a broker's key its meaning, finest unit first.
fn group_of(name: &str) -> &'static [&'static str] {
    const GROUPS: &[&[&str]] = &[
        &["log.roll.ms", "log.roll.hours"],
        &["log.roll.jitter.ms", "log.roll.jitter.hours"],
        &["log.retention.ms", "log.retention.minutes", "log.retention.hours"],
    ];
    if name == "log.flush.interval.ms" {
        return &["log.flush.interval.ms", "log.flush.scheduler.interval.ms"];
    }
    GROUPS.iter().copied().find(|group| group.contains(&name)).unwrap_or_default()
}

/// Every place that gives the key a value, strongest first. As in Apache Kafka, what comes before the first place
/// that uses the key's own name is left out: with `log.retention.hours` alone, `log.retention.ms` has no synonym.
fn broker_synonyms(name: &str, dynamic: &DynamicConfigs<'_>, broker: &BrokerConfig) -> Vec<ConfigSynonym> {
    let own = [name];
    let names: Vec<&str> = match (group_of(name), listener_key(name)) {
        ([], Some(base)) => vec![name, base],
        ([], None) => own.to_vec(),
        (group, _) => group.to_vec(),
    };
    let from_layer = |layer: Option<&BTreeMap<String, String>>, name: &str| layer?.get(name).cloned();
    let mut synonyms = Vec::new();
    for source in [
        ConfigSource::DynamicBroker,
        ConfigSource::DynamicDefaultBroker,
        ConfigSource::StaticBroker,
        ConfigSource::Default,
    ] {
        for name in &names {
            let value = match source {
                ConfigSource::DynamicBroker => from_layer(dynamic.broker, name),
                ConfigSource::DynamicDefaultBroker => from_layer(dynamic.cluster, name),
                ConfigSource::StaticBroker => {
                    broker.values.get(*name).map(|(value, _)| value.trim().to_owned())
                }
                _ => broker.default_value(name),
            };
            if let Some(value) = value {
                synonyms.push(ConfigSynonym { name: name.to_string(), value: shown(name, &value), source });
            }
        }
    }
    let before = synonyms.iter().take_while(|synonym| synonym.name != name).count();
    synonyms.split_off(before)
}

#[cfg(test)]
mod tests;

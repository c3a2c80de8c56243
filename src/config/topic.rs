//! The settings of a topic, typed, and where each of them comes from.

use std::collections::BTreeMap;

use klamm_model::{NodeId, TimestampType};

use crate::broker::BrokerConfig;
use crate::kafka_version::magic_of;
use crate::key::Key;
use crate::table;
use crate::value::{list_items, parse_boolean, parse_double, validate};

/// What was set for brokers while the cluster ran (KIP-226).
#[derive(Clone, Copy, Default, Debug)]
pub struct DynamicConfigs<'a> {
    /// For this broker; wins.
    pub broker: Option<&'a BTreeMap<String, String>>,
    /// For every broker.
    pub cluster: Option<&'a BTreeMap<String, String>>,
}

impl<'a> DynamicConfigs<'a> {
    /// The value of a broker's key. A value that is not valid (an older or newer node may have let it in) counts
    /// as not set.
    pub(crate) fn value(&self, key: &str) -> Option<&'a str> {
        [self.broker, self.cluster].into_iter().flatten().find_map(|layer| {
            let value = layer.get(key)?;
            let known = table::broker_key(key)?;
            validate(known, value).is_ok().then(|| value.trim())
        })
    }
}

/// What happens to old records (`cleanup.policy`). Neither of both keeps everything for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CleanupPolicy {
    /// Old segments are deleted.
    pub delete: bool,
    /// Only the last record of each key is kept.
    pub compact: bool,
}

/// How the broker stores what it gets (`compression.type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompressionType {
    /// As the producer sent it.
    Producer,
    /// Without compression.
    Uncompressed,
    /// With gzip.
    Gzip,
    /// With snappy.
    Snappy,
    /// With LZ4.
    Lz4,
    /// With zstd.
    Zstd,
}

/// All settings of a topic that Klamm acts on, each with its value in force.
#[derive(Clone, PartialEq, Debug)]
pub struct TopicConfig {
    /// `cleanup.policy`
    pub cleanup_policy: CleanupPolicy,
    /// `compression.type`
    pub compression_type: CompressionType,
    /// `compression.gzip.level`; -1 is the codec's own default.
    pub compression_gzip_level: i32,
    /// `compression.lz4.level`
    pub compression_lz4_level: i32,
    /// `compression.zstd.level`
    pub compression_zstd_level: i32,
    /// `delete.retention.ms`
    pub delete_retention_ms: i64,
    /// `file.delete.delay.ms`
    pub file_delete_delay_ms: i64,
    /// `flush.messages`
    pub flush_messages: i64,
    /// `flush.ms`
    pub flush_ms: i64,
    /// `index.interval.bytes`
    pub index_interval_bytes: i32,
    /// `max.compaction.lag.ms`
    pub max_compaction_lag_ms: i64,
    /// `max.decompressed.message.bytes`
    pub max_decompressed_message_bytes: i32,
    /// `max.message.bytes`
    pub max_message_bytes: i32,
    /// `message.format.version`: the format that records are stored in, by its magic number: 0, 1 or 2.
    pub message_format_magic: i8,
    /// `message.timestamp.after.max.ms`
    pub message_timestamp_after_max_ms: i64,
    /// `message.timestamp.before.max.ms`
    pub message_timestamp_before_max_ms: i64,
    /// `message.timestamp.type`
    pub message_timestamp_type: TimestampType,
    /// `min.cleanable.dirty.ratio`
    pub min_cleanable_dirty_ratio: f64,
    /// `min.compaction.lag.ms`
    pub min_compaction_lag_ms: i64,
    /// `min.insync.replicas`
    pub min_insync_replicas: i32,
    /// `preallocate`
    pub preallocate: bool,
    /// `retention.bytes`; `None` is no limit.
    pub retention_bytes: Option<i64>,
    /// `retention.ms`; `None` is no limit.
    pub retention_ms: Option<i64>,
    /// `segment.bytes`, or `internal.segment.bytes`, which tests set lower than people may.
    pub segment_bytes: i32,
    /// `segment.index.bytes`
    pub segment_index_bytes: i32,
    /// `segment.jitter.ms`
    pub segment_jitter_ms: i64,
    /// `segment.ms`
    pub segment_ms: i64,
    /// `unclean.leader.election.enable`
    pub unclean_leader_election_enable: bool,
    /// `leader.replication.throttled.replicas`
    pub leader_throttled: ThrottledReplicas,
    /// `follower.replication.throttled.replicas`
    pub follower_throttled: ThrottledReplicas,
}

/// The replicas of a topic whose replication is limited.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ThrottledReplicas {
    /// All of them.
    All,
    /// These: partition and broker.
    Some(Vec<(i32, i32)>),
}

impl ThrottledReplicas {
    /// From a list that was validated: `*`, or pairs like `0:1`.
    fn parse(text: &str) -> ThrottledReplicas {
        let items = list_items(text);
        if items.contains(&"*") {
            return ThrottledReplicas::All;
        }
        let pair = |item: &str| {
            let (partition, broker) = item.split_once(':')?;
            Some((partition.trim().parse().ok()?, broker.trim().parse().ok()?))
        };
        ThrottledReplicas::Some(items.into_iter().filter_map(pair).collect())
    }

    /// Whether the replica of a partition on a broker is one of them.
    pub fn holds(&self, partition: i32, broker: NodeId) -> bool {
        match self {
            ThrottledReplicas::All => true,
            ThrottledReplicas::Some(pairs) => pairs.contains(&(partition, broker.0)),
        }
    }
}

impl TopicConfig {
    /// What is in force for a topic: its own settings, then what the synonyms of each key say for the broker,
    /// then the defaults. Keys that nobody knows and values that are not valid count as not set.
    pub fn effective(
        topic: &BTreeMap<String, String>,
        dynamic: &DynamicConfigs<'_>,
        broker: &BrokerConfig,
    ) -> TopicConfig {
        let text = |name: &str| {
            topic_value(name, topic, dynamic, broker)
                .unwrap_or_else(|| panic!("{name} has a default in the table of keys"))
        };
        let int = |name: &str| checked::<i32>(name, &text(name));
        let long = |name: &str| checked::<i64>(name, &text(name));
        let boolean = |name: &str| parse_boolean(&text(name)) == Some(true);
        let policy = text("cleanup.policy");
        TopicConfig {
            cleanup_policy: CleanupPolicy {
                delete: list_items(&policy).contains(&"delete"),
                compact: list_items(&policy).contains(&"compact"),
            },
            compression_type: match text("compression.type").as_str() {
                "uncompressed" => CompressionType::Uncompressed,
                "gzip" => CompressionType::Gzip,
                "snappy" => CompressionType::Snappy,
                "lz4" => CompressionType::Lz4,
                "zstd" => CompressionType::Zstd,
                _ => CompressionType::Producer,
            },
            compression_gzip_level: int("compression.gzip.level"),
            compression_lz4_level: int("compression.lz4.level"),
            compression_zstd_level: int("compression.zstd.level"),
            delete_retention_ms: long("delete.retention.ms"),
            file_delete_delay_ms: long("file.delete.delay.ms"),
            flush_messages: long("flush.messages"),
            flush_ms: long("flush.ms"),
            index_interval_bytes: int("index.interval.bytes"),
            max_compaction_lag_ms: long("max.compaction.lag.ms"),
            max_decompressed_message_bytes: int("max.decompressed.message.bytes"),
            max_message_bytes: int("max.message.bytes"),
            message_format_magic: magic_of(&text("message.format.version")).unwrap_or(2),
            message_timestamp_after_max_ms: long("message.timestamp.after.max.ms"),
            message_timestamp_before_max_ms: long("message.timestamp.before.max.ms"),
            message_timestamp_type: match text("message.timestamp.type").as_str() {
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            min_cleanable_dirty_ratio: parse_double(&text("min.cleanable.dirty.ratio")).unwrap_or(0.5),
            min_compaction_lag_ms: long("min.compaction.lag.ms"),
            min_insync_replicas: int("min.insync.replicas"),
            preallocate: boolean("preallocate"),
            retention_bytes: Some(long("retention.bytes")).filter(|bytes| *bytes >= 0),
            retention_ms: Some(long("retention.ms")).filter(|ms| *ms >= 0),
            segment_bytes: match topic_value("internal.segment.bytes", topic, dynamic, broker) {
                Some(bytes) => checked("internal.segment.bytes", &bytes),
                None => int("segment.bytes"),
            },
            segment_index_bytes: int("segment.index.bytes"),
            segment_jitter_ms: long("segment.jitter.ms"),
            segment_ms: long("segment.ms"),
            unclean_leader_election_enable: boolean("unclean.leader.election.enable"),
            leader_throttled: ThrottledReplicas::parse(&text("leader.replication.throttled.replicas")),
            follower_throttled: ThrottledReplicas::parse(&text("follower.replication.throttled.replicas")),
        }
    }
}

fn checked<T: std::str::FromStr>(name: &str, text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{name}={text} was checked before it is read"))
}

/// The value of a topic's key that is in force, as text; `None` for null and for keys that nobody knows.
pub(crate) fn topic_value(
    name: &str,
    topic: &BTreeMap<String, String>,
    dynamic: &DynamicConfigs<'_>,
    broker: &BrokerConfig,
) -> Option<String> {
    let key = table::topic_key(name)?;
    match topic.get(name) {
        Some(value) if validate(key, value).is_ok() => Some(value.trim().to_owned()),
        _ => default_value(key, dynamic, broker),
    }
}

/// What the broker's keys say for a topic's key. The first synonym that has any value decides, and so
/// `log.retention.ms` beats `log.retention.hours` wherever both are set.
pub(crate) fn default_value(
    key: &Key,
    dynamic: &DynamicConfigs<'_>,
    broker: &BrokerConfig,
) -> Option<String> {
    let from_broker = key.synonyms.iter().find_map(|synonym| {
        let value = dynamic.value(synonym.name).map(str::to_owned).or_else(|| broker.value(synonym.name))?;
        if synonym.factor == 1 {
            return Some(value);
        }
        let number: i64 = value.parse().ok()?;
        // Below zero means "no limit", in whatever unit.
        Some(if number < 0 { -1 } else { number.saturating_mul(synonym.factor) }.to_string())
    });
    from_broker.or_else(|| key.default_text().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sources, load};

    fn broker(overrides: &[(&str, &str)]) -> BrokerConfig {
        let overrides = overrides.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        load(&Sources { overrides, ..Sources::default() }).unwrap().0
    }

    fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    fn effective(topic: &[(&str, &str)], broker_overrides: &[(&str, &str)]) -> TopicConfig {
        TopicConfig::effective(&settings(topic), &DynamicConfigs::default(), &broker(broker_overrides))
    }

    #[test]
    fn defaults_are_kafkas() {
        let config = effective(&[], &[]);
        assert_eq!(config.retention_ms, Some(7 * 24 * 3_600_000));
        assert_eq!(config.retention_bytes, None);
        assert_eq!(config.segment_bytes, 1 << 30);
        assert_eq!(config.segment_ms, 7 * 24 * 3_600_000);
        assert_eq!(config.max_message_bytes, 1_048_588);
        assert_eq!(config.cleanup_policy, CleanupPolicy { delete: true, compact: false });
        assert_eq!(config.compression_type, CompressionType::Producer);
        assert_eq!((config.flush_messages, config.flush_ms), (i64::MAX, i64::MAX));
        assert_eq!(config.message_timestamp_after_max_ms, 3_600_000);
    }

    /// With retention set in two units, Kafka takes the finer one; a broker that took the other would delete
    /// records too early.
    #[test]
    fn the_finer_unit_wins_over_the_coarser_one() {
        let retention = |overrides: &[(&str, &str)]| effective(&[], overrides).retention_ms;
        assert_eq!(retention(&[("log.retention.hours", "1")]), Some(3_600_000));
        assert_eq!(retention(&[("log.retention.hours", "1"), ("log.retention.minutes", "2")]), Some(120_000));
        assert_eq!(retention(&[("log.retention.minutes", "2"), ("log.retention.ms", "3")]), Some(3));
        assert_eq!(retention(&[("log.retention.hours", "-1")]), None);
        assert_eq!(retention(&[("log.retention.ms", "-1")]), None);
        assert_eq!(effective(&[], &[("log.roll.hours", "2")]).segment_ms, 7_200_000);
        assert_eq!(effective(&[], &[("log.roll.jitter.hours", "2")]).segment_jitter_ms, 7_200_000);
        assert_eq!(effective(&[], &[("log.flush.scheduler.interval.ms", "9")]).flush_ms, 9);
        assert_eq!(
            effective(&[], &[("log.flush.scheduler.interval.ms", "9"), ("log.flush.interval.ms", "8")])
                .flush_ms,
            8
        );
    }

    #[test]
    fn a_topics_own_setting_wins_and_dynamic_ones_come_next() {
        let broker = broker(&[("log.retention.ms", "1"), ("log.segment.bytes", "1048577")]);
        let (own, cluster) = (settings(&[("log.retention.ms", "3")]), settings(&[("log.retention.ms", "2")]));
        let cluster_only = DynamicConfigs { broker: None, cluster: Some(&cluster) };
        let both = DynamicConfigs { broker: Some(&own), cluster: Some(&cluster) };
        let none = settings(&[]);
        let retention = |topic: &BTreeMap<String, String>, dynamic: &DynamicConfigs<'_>| {
            TopicConfig::effective(topic, dynamic, &broker).retention_ms
        };
        assert_eq!(retention(&none, &DynamicConfigs::default()), Some(1));
        assert_eq!(retention(&none, &cluster_only), Some(2));
        assert_eq!(retention(&none, &both), Some(3));
        assert_eq!(retention(&settings(&[("retention.ms", "4")]), &both), Some(4));
        assert_eq!(TopicConfig::effective(&none, &both, &broker).segment_bytes, 1_048_577);
    }

    /// The format of a topic is that of its own key, then that of the broker's; a broker that stored another one
    /// would shut out the old clients for which the key was set.
    #[test]
    fn the_message_format_follows_the_topics_key_and_then_the_brokers() {
        let magic =
            |topic: &[(&str, &str)], broker: &[(&str, &str)]| effective(topic, broker).message_format_magic;
        assert_eq!(magic(&[], &[]), 2);
        assert_eq!(magic(&[("message.format.version", "0.9.0.1")], &[]), 0);
        assert_eq!(magic(&[("message.format.version", "0.10.2")], &[]), 1);
        assert_eq!(magic(&[], &[("log.message.format.version", "0.10.0-IV0")]), 1);
        assert_eq!(
            magic(&[("message.format.version", "2.8")], &[("log.message.format.version", "0.8.2")]),
            2
        );
        // From 3.0 on Kafka ignored the key; whoever sets it all the same wants it to be followed.
        assert_eq!(
            magic(&[("message.format.version", "0.8.2")], &[("inter.broker.protocol.version", "3.9")]),
            0
        );
    }

    /// Metadata may hold what this version does not know, from a newer node; it must not stop the broker.
    #[test]
    fn what_is_not_valid_counts_as_not_set() {
        let config =
            effective(&[("retention.ms", "soon"), ("no.such.key", "1"), ("segment.bytes", "1")], &[]);
        assert_eq!(config, effective(&[], &[]));
        let dynamic = settings(&[("log.retention.ms", "later"), ("max.connections", "many")]);
        let dynamic = DynamicConfigs { broker: Some(&dynamic), cluster: None };
        let broker = broker(&[]);
        assert_eq!(TopicConfig::effective(&settings(&[]), &dynamic, &broker), config);
        assert_eq!(broker.with_dynamic(&dynamic), broker);
    }

    #[test]
    fn values_with_blanks_are_read() {
        let config = effective(
            &[
                ("cleanup.policy", " compact , delete "),
                ("retention.ms", " 5 "),
                ("min.cleanable.dirty.ratio", "0.25f"),
            ],
            &[],
        );
        assert_eq!(config.min_cleanable_dirty_ratio, 0.25);
        assert_eq!(config.cleanup_policy, CleanupPolicy { delete: true, compact: true });
        assert_eq!(config.retention_ms, Some(5));
        assert_eq!(effective(&[("internal.segment.bytes", "100")], &[]).segment_bytes, 100);
    }
}

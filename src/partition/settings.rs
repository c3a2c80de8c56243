//! What a topic's configs mean to a partition.

use klamm_model::TimestampType;
use klamm_records::Compression;

/// The part of a topic's configs that decides what a partition accepts. The log has its own part
/// (`LogConfig`).
#[derive(Clone, Debug)]
pub struct PartitionSettings {
    /// The format that records are stored in (`message.format.version`): 0, 1 or 2.
    pub target_magic: i8,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`.
    pub timestamp_after_max_ms: i64,
    /// `max.message.bytes`: the largest batch.
    pub batch_bytes_max: usize,
    /// Whether `cleanup.policy` holds `compact`, so that each record needs a key.
    pub is_compacted: bool,
    /// `compression.type`; `None` keeps what the producer chose.
    pub compression: Option<Compression>,
    /// The level for `compression`, `None` for the codec's default.
    pub compression_level: Option<i32>,
    /// What a compressed batch may expand to, in bytes.
    pub expanded_bytes_max: usize,
    /// `min.insync.replicas`.
    pub in_sync_replicas_min: usize,
    /// `replica.lag.time.max.ms`.
    pub replica_lag_max_ms: u64,
    /// Whether `leader.replication.throttled.replicas` names this replica.
    pub is_throttled_as_leader: bool,
    /// Whether `follower.replication.throttled.replicas` names it.
    pub is_throttled_as_follower: bool,
}

impl Default for PartitionSettings {
    /// Kafka's defaults.
    fn default() -> PartitionSettings {
        PartitionSettings {
            target_magic: 2,
            timestamp_type: TimestampType::CreateTime,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 3_600_000,
            batch_bytes_max: 1_048_588,
            is_compacted: false,
            compression: None,
            compression_level: None,
            expanded_bytes_max: klamm_records::compression::EXPANDED_BYTES_MAX,
            in_sync_replicas_min: 1,
            replica_lag_max_ms: 30_000,
            is_throttled_as_leader: false,
            is_throttled_as_follower: false,
        }
    }
}

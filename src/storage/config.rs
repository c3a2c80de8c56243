//! The settings of one log.

/// What becomes of old records (`cleanup.policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanupPolicy {
    /// Whole segments go by age and size.
    pub delete: bool,
    /// Of each key the last record stays.
    pub compact: bool,
}

/// What a log needs to know of its topic's config. The default is Apache Kafka's.
#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    /// `segment.bytes`: a segment never grows above it.
    pub segment_bytes: u64,
    /// `segment.ms`: a batch so much later than a segment's first one begins the next.
    pub segment_ms: i64,
    /// `segment.jitter.ms`: up to so much is taken off `segment_ms`, by chance.
    pub segment_jitter_ms: i64,
    /// `segment.index.bytes`: a segment ends when its index has that size.
    pub segment_index_bytes: u64,
    /// `index.interval.bytes`: the index has an entry for so many bytes of log, about.
    pub index_interval_bytes: u64,
    /// `retention.ms`; `None` keeps records of any age.
    pub retention_ms: Option<i64>,
    /// `retention.bytes`; `None` keeps any amount.
    pub retention_bytes: Option<u64>,
    /// `file.delete.delay.ms`: how long files live on under the name `.deleted`, for readers.
    pub file_delete_delay_ms: i64,
    /// `cleanup.policy`.
    pub cleanup: CleanupPolicy,
    /// `delete.retention.ms`: how long tombstones and transaction markers outlive the compaction that could have
    /// removed them.
    pub delete_retention_ms: i64,
    /// `min.compaction.lag.ms`: a segment with a record younger than that is not compacted.
    pub min_compaction_lag_ms: i64,
    /// `max.compaction.lag.ms`: a log with a record that waits for longer is compacted, however few there are.
    pub max_compaction_lag_ms: i64,
    /// `min.cleanable.dirty.ratio`: which share of the bytes must be new before the log is compacted, 0 to 1.
    pub min_cleanable_dirty_ratio: f64,
    /// `flush.messages`: after so many records the log is synced to the disk.
    pub flush_messages: u64,
    /// `flush.ms`: maintenance syncs a log that was not for so long; `None` leaves it to the system.
    pub flush_ms: Option<i64>,
    /// `preallocate`: a new segment file gets its full size at once.
    pub preallocate: bool,
    /// `max.message.bytes`: the largest batch. The store does not enforce it; it is here for the reader of
    /// the settings.
    pub max_message_bytes: u64,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            segment_bytes: 1 << 30,
            segment_ms: 7 * 24 * 60 * 60 * 1000,
            segment_jitter_ms: 0,
            segment_index_bytes: 10 << 20,
            index_interval_bytes: 4096,
            retention_ms: Some(7 * 24 * 60 * 60 * 1000),
            retention_bytes: None,
            file_delete_delay_ms: 60_000,
            cleanup: CleanupPolicy { delete: true, compact: false },
            delete_retention_ms: 24 * 60 * 60 * 1000,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
            min_cleanable_dirty_ratio: 0.5,
            flush_messages: i64::MAX as u64,
            flush_ms: None,
            preallocate: false,
            max_message_bytes: 1_048_588,
        }
    }
}

impl LogConfig {
    /// After how long a segment takes no more appends. The active segment is never compacted, so a log with a
    /// `max.compaction.lag.ms` has to end its segments by then (KIP-354).
    pub fn segment_ms_max(&self) -> i64 {
        if self.cleanup.compact && self.max_compaction_lag_ms > 0 {
            self.segment_ms.min(self.max_compaction_lag_ms)
        } else {
            self.segment_ms
        }
    }
}

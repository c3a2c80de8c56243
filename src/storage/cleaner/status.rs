//! What is told about the cleaner, for metrics and for people.

use std::time::Duration;

use klamm_model::{TimestampMs, TopicPartition};

use super::rewrite::CleanedLog;

/// A snapshot of the cleaner's counters, all since its start, and of what it does now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CleanerStatus {
    /// Rounds over a log, those included that were given up.
    pub rounds: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written to new segments.
    pub bytes_written: u64,
    /// Records in new segments.
    pub records_kept: u64,
    /// Records that went.
    pub records_dropped: u64,
    /// How long the last round took.
    pub last_duration: Duration,
    /// How long all rounds took together.
    pub total_duration: Duration,
    /// When the last round ended, by the clock's wall time.
    pub last_run_ms: Option<TimestampMs>,
    /// The largest share of new bytes of any log, as of the last look, in percent.
    pub dirty_percent_max: f64,
    /// The logs that are compacted right now.
    pub cleaning: Vec<TopicPartition>,
    /// The logs that could not be compacted, and why.
    pub uncleanable: Vec<(TopicPartition, String)>,
}

impl CleanerStatus {
    pub(super) fn add(&mut self, work: &CleanedLog, duration: Duration, now_ms: TimestampMs) {
        self.rounds += 1;
        self.bytes_read += work.bytes_read;
        self.bytes_written += work.bytes_written;
        self.records_kept += work.records_kept;
        self.records_dropped += work.records_dropped;
        self.last_duration = duration;
        self.total_duration += duration;
        self.last_run_ms = Some(now_ms);
    }
}

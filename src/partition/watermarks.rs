//! The high watermark, kept in one place whose one setter asserts the order of offsets.

use klamm_model::Offset;
use klamm_storage::Log;

use crate::planted::planted;

/// The offsets of a partition at one moment, `log_start <= last_stable <= high_watermark <= log_end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartitionOffsets {
    /// The first offset that can be read.
    pub log_start: Offset,
    /// Below it no transaction is open (KIP-98).
    pub last_stable: Offset,
    /// Below it all in-sync replicas have everything.
    pub high_watermark: Offset,
    /// The next offset to be given.
    pub log_end: Offset,
}

/// The high watermark of a partition; it never goes back for a client (KIP-207).
pub(crate) struct Watermarks {
    high_watermark: Offset,
}

impl Watermarks {
    pub(crate) fn new(checkpointed: Offset, log: &Log) -> Watermarks {
        let (start, end) = (log.log_start_offset(), log.log_end_offset());
        let checkpointed = if planted!(BeginAtLogEnd) { end } else { checkpointed };
        Watermarks { high_watermark: checkpointed.clamp(start, end) }
    }

    pub(crate) fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// Raises the high watermark; says whether it moved. A lower value changes nothing: it is what a leader
    /// computes before it has heard of all its followers.
    pub(crate) fn raise(&mut self, to: Offset, log: &Log) -> bool {
        let end = log.log_end_offset();
        assert!(to <= end, "a high watermark of {to} is beyond {end}, the end of {}", log.topic_partition());
        let moved = to > self.high_watermark;
        if moved {
            self.high_watermark = to;
            log.on_high_watermark(to);
        }
        moved
    }

    /// Follows the log when it was cut below the high watermark, or begins above it.
    pub(crate) fn follow_log(&mut self, log: &Log) {
        self.high_watermark = self.high_watermark.clamp(log.log_start_offset(), log.log_end_offset());
    }

    pub(crate) fn offsets(&self, log: &Log) -> PartitionOffsets {
        let log_end = log.log_end_offset();
        let log_start = log.log_start_offset();
        let high_watermark = self.high_watermark.max(log_start);
        let last_stable = match planted!(ForgetOpenTransactions) {
            true => high_watermark,
            false => log.last_stable_offset(high_watermark).clamp(log_start, high_watermark),
        };
        PartitionOffsets { log_start, last_stable, high_watermark, log_end }
    }
}

//! Which log is compacted next, and from where to where.

use std::sync::Arc;

use klamm_model::{Offset, TimestampMs};

use crate::error::StorageError;
use crate::log::{CleaningView, Log};
use crate::segment::LogSegment;

/// A log that could be compacted.
pub(super) struct Candidate {
    pub(super) log: Arc<Log>,
    pub(super) view: CleaningView,
    /// Below, the log was compacted before.
    pub(super) first_dirty: Offset,
    /// The base offset of the first segment that has to stay as it is.
    pub(super) first_uncleanable: Offset,
    /// Whether a record waits for longer than `max.compaction.lag.ms`.
    is_overdue: bool,
    cleanable_bytes: u64,
    total_bytes: u64,
}

impl Candidate {
    /// Looks at a log. Everything below its high watermark is replicated.
    pub(super) fn new(
        log: Arc<Log>,
        now_ms: TimestampMs,
        high_watermark: Offset,
    ) -> Result<Candidate, StorageError> {
        let config = log.config();
        let view = log.cleaning_view();
        let first_dirty = first_dirty(&log);
        // The lag must be over for all records of a segment, and no transaction in it may be open.
        let mut end = log.last_stable_offset(high_watermark).min(active_offset(&view));
        if config.min_compaction_lag_ms > 0 {
            for segment in closed_from(&view, first_dirty) {
                let newest = segment.age_timestamp()?.unwrap_or(TimestampMs::MAX);
                if newest > now_ms.saturating_sub(config.min_compaction_lag_ms) {
                    end = end.min(segment.base_offset());
                    break;
                }
            }
        }
        let end = end.max(first_dirty);
        let first_uncleanable =
            closed_from(&view, end).first().map_or(active_offset(&view), |segment| segment.base_offset());
        let mut is_overdue = false;
        if config.max_compaction_lag_ms != i64::MAX {
            for segment in closed_from(&view, first_dirty) {
                let oldest = segment.first_timestamp()?;
                is_overdue |= oldest > 0 && oldest < now_ms.saturating_sub(config.max_compaction_lag_ms);
            }
        }
        let bytes = |segments: &[Arc<LogSegment>]| segments.iter().map(|s| s.size()).sum::<u64>();
        let cleanable_bytes = bytes(view.between(first_dirty, first_uncleanable));
        let clean_bytes = bytes(view.between(Offset::MIN, first_dirty));
        let total_bytes = clean_bytes + cleanable_bytes;
        Ok(Candidate { log, view, first_dirty, first_uncleanable, is_overdue, cleanable_bytes, total_bytes })
    }

    /// Which share of what can be compacted is new.
    pub(super) fn dirty_ratio(&self) -> f64 {
        if self.total_bytes == 0 { 0.0 } else { self.cleanable_bytes as f64 / self.total_bytes as f64 }
    }

    /// Whether compaction is due.
    pub(super) fn is_due(&self) -> bool {
        (self.is_overdue && self.cleanable_bytes > 0)
            || self.dirty_ratio() > self.log.config().min_cleanable_dirty_ratio
    }
}

/// Where compaction goes on: where it ended or, where that makes no sense any more, at the start of the log.
fn first_dirty(log: &Log) -> Offset {
    let (start, end) = (log.log_start_offset(), log.log_end_offset());
    let cleaned = log.cleaned_offset().unwrap_or(start);
    if cleaned > end {
        tracing::warn!(
            partition = %log.topic_partition(), cleaned, end,
            "the log was said to be compacted further than it goes; compacting it from its start"
        );
        return start;
    }
    cleaned.max(start)
}

fn active_offset(view: &CleaningView) -> Offset {
    view.segments.last().expect("a log has a segment").base_offset()
}

/// The segments but the active one, from the one that holds an offset on.
fn closed_from(view: &CleaningView, from: Offset) -> &[Arc<LogSegment>] {
    view.between(from, active_offset(view))
}

//! Offsets that are missing between one segment and the next: what a recovery makes of them.

use std::ops::Range;
use std::sync::Arc;

use klamm_model::Offset;

use super::Log;
use crate::error::StorageError;
use crate::segment::LogSegment;

/// What a gap between two segments comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gap {
    /// A cleaner's work, or older than the stop that is recovered from.
    Legal,
    /// The log was compacted once, but nothing says that it was up to here.
    Doubtful,
    /// The stop that is recovered from took the end of the first segment, and not the second.
    Lost,
}

impl Log {
    /// After a power cut the end of a segment can be missing although a later one is there: the system writes
    /// them back in any order. That is certain only where nothing else makes gaps: above the recovery point, below
    /// which all was on the disk, and in a log that no cleaner has ever touched. In doubt all that is whole stays
    /// in service, as with Apache Kafka.
    pub(super) fn judge_gap(
        &self,
        segments: &[Arc<LogSegment>],
        gap: &Range<Offset>,
        recovery_point: Offset,
    ) -> Result<Gap, StorageError> {
        if gap.end <= recovery_point || self.config().cleanup.compact {
            return Ok(Gap::Legal);
        }
        if let Some(cleaned) = self.cleaned_offset() {
            return Ok(if gap.end <= cleaned { Gap::Legal } else { Gap::Doubtful });
        }
        for segment in segments {
            if segment.has_gaps()? {
                return Ok(Gap::Doubtful);
            }
        }
        Ok(Gap::Lost)
    }
}

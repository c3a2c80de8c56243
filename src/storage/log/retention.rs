//! What makes a log shorter at its beginning: age, size, and DeleteRecords.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use klamm_model::{Offset, TimestampMs};

use super::{Log, Writer};
use crate::deletion::rename_segment_files;
use crate::error::{ReadError, StorageError};
use crate::segment::LogSegment;

impl Log {
    /// Moves the start of the log up to an offset, which must not be above the high watermark: the caller
    /// knows that. Files go with the next retention. Returns the start.
    pub fn delete_records_before(&self, offset: Offset) -> Result<Offset, ReadError> {
        let _writer = self.writer.lock();
        self.check_writable("delete records from")?;
        let (start, end) = (self.log_start_offset(), self.log_end_offset());
        if offset > end || offset < 0 {
            return Err(ReadError::OutOfRange { start, end });
        }
        self.move_start_to(offset)?;
        Ok(self.log_start_offset())
    }

    fn move_start_to(&self, offset: Offset) -> Result<(), StorageError> {
        if offset <= self.log_start_offset() {
            return Ok(());
        }
        self.log_start_offset.store(offset, Ordering::Release);
        self.producers.lock().on_log_start_offset(offset);
        let mut epochs = self.epochs.write();
        if epochs.truncate_from_start(offset) { self.write_epochs(&epochs) } else { Ok(()) }
    }

    /// Whether the start of the log is not simply the start of its first segment, so that a checkpoint must
    /// remember it.
    pub(crate) fn has_start_within_segment(&self) -> bool {
        self.log_start_offset() > self.segments.load()[0].base_offset()
    }

    /// Removes segments that are before the log start offset, and, if `cleanup.policy` has `delete`, those that
    /// are too old or too many. Only what is below the high watermark goes. Returns how many segments went.
    ///
    /// With `cleanup.policy=compact` alone nothing goes by age or size.
    pub fn apply_retention(
        &self,
        now_ms: TimestampMs,
        high_watermark: Offset,
    ) -> Result<usize, StorageError> {
        let mut writer = self.writer.lock();
        self.check_writable("apply retention to")?;
        let config = self.config.load_full();
        let start = self.log_start_offset();
        let mut removed =
            self.remove_first(&mut writer, high_watermark, "before the log start", |_, next| {
                Ok(next.is_some_and(|next| next <= start))
            })?;
        if !config.cleanup.delete {
            return Ok(removed);
        }
        if let Some(bytes_max) = config.retention_bytes {
            let mut excess = self.size().saturating_sub(bytes_max);
            removed += self.remove_first(&mut writer, high_watermark, "too many bytes", |segment, _| {
                let goes = segment.size() <= excess && excess > 0;
                excess -= if goes { segment.size() } else { 0 };
                Ok(goes)
            })?;
        }
        if let Some(age_max) = config.retention_ms {
            removed += self.remove_first(&mut writer, high_watermark, "too old", |segment, _| {
                let newest = segment.age_timestamp()?;
                Ok(newest.is_some_and(|newest| now_ms.saturating_sub(newest) > age_max))
            })?;
        }
        Ok(removed)
    }

    /// Removes the first segments for which `goes`. The last one, if it holds anything, is rolled first.
    fn remove_first(
        &self,
        writer: &mut Writer,
        high_watermark: Offset,
        reason: &'static str,
        mut goes: impl FnMut(&LogSegment, Option<Offset>) -> Result<bool, StorageError>,
    ) -> Result<usize, StorageError> {
        let segments = self.segments.load_full();
        let mut doomed = 0;
        for (index, segment) in segments.iter().enumerate() {
            let next = segments.get(index + 1).map(|next| next.base_offset());
            let is_last_and_empty = next.is_none() && segment.size() == 0;
            let end = next.unwrap_or_else(|| self.log_end_offset());
            if is_last_and_empty || high_watermark < end || !goes(segment, next)? {
                break;
            }
            doomed += 1;
        }
        if doomed == 0 {
            return Ok(0);
        }
        if doomed == segments.len() {
            self.roll_at(writer, self.log_end_offset(), &self.config.load_full())?;
        }
        self.remove_segments(&segments[..doomed], reason)?;
        Ok(doomed)
    }

    fn remove_segments(&self, doomed: &[Arc<LogSegment>], reason: &str) -> Result<(), StorageError> {
        let left = self.segments.load()[doomed.len()..].to_vec();
        // The start moves first: a reader that finds its segment missing is told that the offset is gone.
        self.move_start_to(left[0].base_offset())?;
        self.segments.store(Arc::new(left));
        let due_ms = self.environment.clock.now_ms().saturating_add(self.config.load().file_delete_delay_ms);
        for segment in doomed {
            let base_offset = segment.base_offset();
            tracing::info!(partition = %self.topic_partition, base_offset, reason, "deleting a segment");
            segment.set_removed();
            let paths = rename_segment_files(&*self.environment.disk, &self.dir, base_offset)?;
            segment.close_files();
            self.environment.deletions.add_files(paths, due_ms);
        }
        self.unsynced.names.store(true, Ordering::Release);
        Ok(())
    }
}

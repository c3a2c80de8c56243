//! Cutting the end of a log off.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use klamm_model::Offset;

use super::{Log, LogEnd, Writer};
use crate::error::StorageError;
use crate::planted::planted;
use crate::producers::Producers;
use crate::segment::LogSegment;

impl Log {
    /// Removes all batches that end at or behind the offset, and the epochs that begin there. Returns whether there
    /// were any batches.
    ///
    /// When it fails the log goes offline, because memory and disk may disagree.
    pub fn truncate_to(&self, offset: Offset) -> Result<bool, StorageError> {
        let _syncing = self.syncing.lock();
        let mut writer = self.writer.lock();
        self.check_writable("truncate")?;
        if offset >= self.log_end_offset() {
            // An epoch may begin at the end, of a leader that wrote nothing, and be none of the next leader's.
            self.truncate_epochs(offset).map_err(|error| self.set_offline(error))?;
            return Ok(false);
        }
        writer.truncations += 1;
        tracing::info!(partition = %self.topic_partition, from = self.log_end_offset(), to = offset, "truncating");
        let first = self.segments.load()[0].base_offset();
        let result = if offset < first {
            self.restart_at(&mut writer, offset)
        } else {
            self.cut_at(&mut writer, offset)
        };
        result.map(|()| true).map_err(|error| self.set_offline(error))
    }

    /// Removes everything; the next record gets this offset.
    pub fn truncate_fully_and_start_at(&self, offset: Offset) -> Result<(), StorageError> {
        let _syncing = self.syncing.lock();
        let mut writer = self.writer.lock();
        self.check_writable("truncate")?;
        tracing::info!(partition = %self.topic_partition, offset, "removing all records and starting anew");
        self.restart_at(&mut writer, offset).map_err(|error| self.set_offline(error))
    }

    fn cut_at(&self, writer: &mut Writer, offset: Offset) -> Result<(), StorageError> {
        let segments = self.segments.load_full();
        let kept = segments.partition_point(|segment| segment.base_offset() <= offset).max(1);
        let active = &segments[kept - 1];
        let cut = active.find(offset, active.size())?;
        let position = cut.map_or(active.size(), |found| found.position);
        // A batch goes as a whole, so the log may end before the offset that was asked for.
        let end_offset = cut.map_or(Ok(offset), |found| active.first_offset_of(&found))?.min(offset);
        let went_back = self.move_points_back_to(end_offset);
        self.sealed_point.fetch_min(active.base_offset(), Ordering::AcqRel);
        if went_back {
            // Before anything is cut: should the power go on the way, the next start looks at what is left.
            self.write_recovery_points()?;
        }
        // Readers see the new end first, and what they remember is void from then on. Then the files go, the
        // last one first: a crash leaves a log that ends between the new end and the old one, without a hole.
        self.end.store(Arc::new(LogEnd { offset: end_offset, segment: active.base_offset(), position }));
        self.positions.clear();
        self.segments.store(Arc::new(segments[..kept].to_vec()));
        for segment in segments[kept..].iter().rev() {
            self.remove_now(segment)?;
        }
        active.truncate(offset)?;
        // What was cut must not come back from under what is written in its place: half of each would be a log
        // that no leader ever had.
        if !planted!(self.environment, TruncateWithoutSync) {
            active.sync_log()?;
        }
        self.sync_dir(&self.dir)?;
        self.log_start_offset.fetch_min(end_offset, Ordering::AcqRel);
        self.truncate_epochs(end_offset)?;
        self.reload_producers(writer, end_offset)
    }

    fn truncate_epochs(&self, end_offset: Offset) -> Result<(), StorageError> {
        let mut epochs = self.epochs.write();
        if epochs.truncate_from_end(end_offset) { self.write_epochs(&epochs) } else { Ok(()) }
    }

    pub(super) fn restart_at(&self, writer: &mut Writer, offset: Offset) -> Result<(), StorageError> {
        writer.truncations += 1;
        let went_back = self.move_points_back_to(offset);
        self.sealed_point.store(offset, Ordering::Release);
        if went_back {
            self.write_recovery_points()?;
        }
        let segments = self.segments.load_full();
        for segment in segments.iter().rev() {
            self.remove_now(segment)?;
        }
        let snapshots = self.snapshot_offsets()?;
        self.remove_snapshots(&snapshots, |_| true)?;
        writer.snapshot_offset = None;
        let config = self.config.load_full();
        let segment = Arc::new(LogSegment::create(&self.place(), offset, &config)?);
        // The start moves before the list, so that a reader of old offsets is told that they are gone.
        self.log_start_offset.store(offset, Ordering::Release);
        self.segments.store(Arc::new(vec![segment.clone()]));
        self.publish_end(offset, &segment);
        self.positions.clear();
        self.sync_dir(&self.dir)?;
        *self.producers.lock() = Producers::starting_at(offset);
        let mut epochs = self.epochs.write();
        epochs.clear();
        self.write_epochs(&epochs)
    }

    /// Lets the recovery point and the end of what was compacted be no further than the log. Returns whether
    /// either was, so that their files say something wrong.
    fn move_points_back_to(&self, offset: Offset) -> bool {
        let recovery_point = self.recovery_point.fetch_min(offset, Ordering::AcqRel);
        recovery_point.max(self.cleaned_offset.fetch_min(offset, Ordering::AcqRel)) > offset
    }

    pub(super) fn write_recovery_points(&self) -> Result<(), StorageError> {
        self.environment.recovery_point_went_back.get().map_or(Ok(()), |write| write(self.directory_id))
    }

    fn remove_now(&self, segment: &LogSegment) -> Result<(), StorageError> {
        segment.set_removed();
        segment.close_files();
        crate::deletion::remove_segment_files(&*self.environment.disk, &self.dir, segment.base_offset())
    }
}

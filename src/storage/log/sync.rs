//! Bringing a log to the disk for good: what survives a power cut, and the recovery point that says so.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use klamm_io::OpenMode;
use klamm_model::Offset;

use super::Log;
use crate::error::StorageError;
use crate::leader_epochs;
use crate::open_files::file_path;
use crate::planted::planted;
use crate::producer_snapshot;

impl Log {
    /// Waits until all batches appended so far are on the disk. Several callers at once share the work.
    pub fn flush(&self) -> Result<(), StorageError> {
        self.sync_up_to(self.log_end_offset())
    }

    /// As [`Log::flush`] without the active segment: what rolling has left behind.
    pub fn flush_rolled(&self) -> Result<(), StorageError> {
        self.sync_up_to(self.active().base_offset())
    }

    /// Whether a rolled segment waits to be synced.
    pub fn has_unsynced_rolled(&self) -> bool {
        self.sealed_point.load(Ordering::Acquire) < self.active().base_offset()
    }

    /// Whether the last sync is as long ago as `flush.ms` allows. By the monotonic clock: one of the wall that is set
    /// back would put syncs off for as long.
    pub(crate) fn is_sync_due(&self) -> bool {
        let now_ms = self.environment.clock.monotonic_ms();
        let passed_ms = now_ms.saturating_sub(self.unsynced.last_sync_ms.load(Ordering::Relaxed));
        self.config().flush_ms.is_some_and(|flush_ms| i64::try_from(passed_ms).is_ok_and(|ms| ms >= flush_ms))
    }

    fn sync_up_to(&self, offset: Offset) -> Result<(), StorageError> {
        let _syncing = self.syncing.lock();
        self.check_usable("sync")?;
        let now_ms = self.environment.clock.monotonic_ms();
        self.unsynced.last_sync_ms.store(now_ms, Ordering::Relaxed);
        let mut sealed_point = self.sealed_point.load(Ordering::Acquire);
        if self.recovery_point() < offset || sealed_point < self.active().base_offset() {
            // After a failed sync the kernel may have dropped what it could not write: the log can no longer
            // say what is on the disk, and trying again would lie.
            sealed_point = self.sync_segments(offset).map_err(|error| self.sync_failed(error))?;
        }
        self.sync_names()?;
        self.recovery_point.fetch_max(offset, Ordering::AcqRel);
        self.sealed_point.fetch_max(sealed_point, Ordering::AcqRel);
        if self.log_end_offset() <= offset { self.forget_recovery_start() } else { Ok(()) }
    }

    fn sync_failed(&self, error: StorageError) -> StorageError {
        if planted!(self.environment, SwallowFailedSync) {
            return error;
        }
        self.note_failed_sync();
        self.set_offline(error)
    }

    /// Returns where the first segment begins that is not on the disk with its indexes.
    fn sync_segments(&self, offset: Offset) -> Result<Offset, StorageError> {
        let mut sealed_point = self.sealed_point.load(Ordering::Acquire);
        let segments = self.segments.load_full();
        let first = segments.partition_point(|segment| segment.base_offset() <= sealed_point);
        for (index, segment) in segments.iter().enumerate().skip(first.saturating_sub(1)) {
            if segment.base_offset() >= offset {
                break;
            }
            let next_base = segments.get(index + 1).map(|next| next.base_offset());
            match self.sync_segment(segment, next_base) {
                // Retention was faster.
                Err(error) if error.is_not_found() && segment.is_removed() => {}
                result => result?,
            }
            sealed_point = next_base.unwrap_or(sealed_point);
        }
        Ok(sealed_point)
    }

    fn sync_segment(
        &self,
        segment: &crate::segment::LogSegment,
        next_base: Option<Offset>,
    ) -> Result<(), StorageError> {
        if !planted!(self.environment, DropSegmentSync) {
            segment.sync_log()?;
        }
        // The indexes of the active segment are made anew by recovery.
        if let Some(next_base) = next_base {
            segment.sync_indexes()?;
            self.sync_file(&file_path(&self.dir, next_base, producer_snapshot::SUFFIX))?;
        }
        Ok(())
    }

    /// Syncs the names in the folder, the folder's own, and the small files whose loss would hurt.
    pub(super) fn sync_names(&self) -> Result<(), StorageError> {
        let unsynced = &self.unsynced;
        let skips_epochs = planted!(self.environment, SkipEpochSync);
        once(&unsynced.epochs, || {
            if skips_epochs { Ok(()) } else { self.sync_file(&self.dir.join(leader_epochs::FILE_NAME)) }
        })?;
        if planted!(self.environment, SkipNameSync) {
            return Ok(());
        }
        once(&unsynced.names, || self.sync_dir(&self.dir))?;
        once(&unsynced.folder, || self.dir.parent().map_or(Ok(()), |parent| self.sync_dir(parent)))
    }

    fn sync_file(&self, path: &Path) -> Result<(), StorageError> {
        let file = match self.environment.disk.open(path, OpenMode::ReadWrite) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            result => result.map_err(|error| StorageError::io(path, "open for a sync", &error))?,
        };
        file.sync_data().map_err(|error| self.sync_failed(StorageError::io(path, "sync", &error)))
    }

    pub(super) fn sync_dir(&self, path: &Path) -> Result<(), StorageError> {
        self.environment
            .disk
            .sync_dir(path)
            .map_err(|error| StorageError::io(path, "sync the names in", &error))
    }

    /// Brings everything to the disk so that the next start need not look at the batches: the indexes, a
    /// snapshot of the producers, and a sync.
    pub(crate) fn close(&self) -> Result<(), StorageError> {
        {
            let mut writer = self.writer.lock();
            self.check_usable("close")?;
            // An append behind the mark of a clean stop would never be found again.
            self.is_closed.store(true, Ordering::Release);
            let active = self.active();
            active.finish()?;
            active.sync_indexes()?;
            self.producers.lock().set_end_offset(self.log_end_offset());
            self.write_snapshot(&mut writer)?;
            if let Some(offset) = writer.snapshot_offset {
                self.sync_file(&file_path(&self.dir, offset, producer_snapshot::SUFFIX))?;
            }
        }
        self.flush()
    }
}

/// Does something if the flag is up, and takes it down if that succeeds.
fn once(flag: &AtomicBool, action: impl FnOnce() -> Result<(), StorageError>) -> Result<(), StorageError> {
    if !flag.swap(false, Ordering::AcqRel) {
        return Ok(());
    }
    action().inspect_err(|_| flag.store(true, Ordering::Release))
}

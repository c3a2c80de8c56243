//! What is done from time to time: checkpoints, retention, delayed deletion, syncs that are due.

use std::sync::atomic::Ordering;

use klamm_model::{Offset, TimestampMs, TopicPartition, Uuid};

use super::{LogStore, Shared, Unopened};
use crate::checkpoint::{self, Offsets};
use crate::error::StorageError;
use crate::log::Log;
use crate::planted::planted;

impl LogStore {
    /// Remembers high watermarks, and writes the checkpoint files of all directories: recovery points, log start
    /// offsets, high watermarks.
    pub fn checkpoint(&self, high_watermarks: &[(TopicPartition, Offset)]) -> Result<(), StorageError> {
        let _changing = self.changing.lock();
        if !self.is_loaded.load(Ordering::Acquire) {
            return Ok(());
        }
        self.shared.high_watermarks.lock().extend(high_watermarks.iter().cloned());
        self.shared.write_checkpoints()
    }

    /// Writes the log start offsets, so that they outlive a kill: for the end of a DeleteRecords.
    pub fn checkpoint_log_start_offsets(&self) -> Result<(), StorageError> {
        let _changing = self.changing.lock();
        if !self.is_loaded.load(Ordering::Acquire) {
            return Ok(());
        }
        let shared = &self.shared;
        for directory in &shared.directories {
            let mut checkpoints = directory.checkpoints();
            let offsets = shared.log_start_offsets_in(directory.id);
            checkpoints.write(&*shared.environment.disk, checkpoint::LOG_START_OFFSETS, &offsets)?;
        }
        Ok(())
    }

    /// Writes up to where the logs of a directory were compacted.
    pub(crate) fn checkpoint_cleaned(&self, directory: Uuid) -> Result<(), StorageError> {
        self.shared.write_recovery_points(directory)
    }

    /// Syncs the segments that appends have left behind, and logs whose `flush.ms` is over. Cheap when there is
    /// nothing to do; to be called often, on a thread that may block.
    pub fn flush_due(&self, now_ms: TimestampMs) {
        for log in self.logs() {
            if log.failure().is_some() {
                // It said so when it went offline, and the disk may be back.
                let _ = log.note_failed_sync_again();
                continue;
            }
            let is_due = log
                .config()
                .flush_ms
                .is_some_and(|flush_ms| now_ms.saturating_sub(log.last_sync_ms()) >= flush_ms);
            let result = if is_due && log.recovery_point() < log.log_end_offset() {
                log.flush()
            } else if log.has_unsynced_rolled() {
                log.flush_rolled()
            } else {
                continue;
            };
            report(&log, "sync", result);
        }
    }

    /// Tries the deletions again that failed.
    fn delete_undeleted(&self) {
        let _changing = self.changing.lock();
        let undeleted: Vec<TopicPartition> = self.shared.undeleted.lock().keys().cloned().collect();
        for tp in undeleted {
            if let Err(error) = self.delete_again(&tp) {
                tracing::error!(partition = %tp, %error, "the partition cannot be deleted");
            }
        }
    }

    /// Retention, expiry of producers, and removal of what was deleted long enough ago. Returns how many
    /// segments went. Failures are logged; they concern one log each.
    ///
    /// Logs without a high watermark are left alone.
    pub fn run_maintenance(
        &self,
        now_ms: TimestampMs,
        high_watermark: &dyn Fn(&TopicPartition) -> Option<Offset>,
    ) -> usize {
        self.delete_undeleted();
        let mut removed = 0;
        for log in self.logs() {
            log.expire_producers(now_ms);
            let Some(high_watermark) = high_watermark(log.topic_partition()) else { continue };
            removed += report(&log, "retention", log.apply_retention(now_ms, high_watermark)).unwrap_or(0);
        }
        if let Err(error) = self.shared.environment.deletions.run(&*self.shared.environment.disk, now_ms) {
            tracing::warn!(%error, "deleted files cannot be removed; trying again later");
        }
        removed
    }
}

impl Shared {
    pub(super) fn write_checkpoints(&self) -> Result<(), StorageError> {
        for directory in &self.directories {
            let mut checkpoints = directory.checkpoints();
            let recovery_points = self.recovery_points_in(directory.id);
            let log_start_offsets = self.log_start_offsets_in(directory.id);
            let high_watermarks = self.high_watermarks_in(directory.id);
            let cleaned_offsets = self.cleaned_offsets_in(directory.id);
            let files = [
                (checkpoint::RECOVERY_POINTS, &recovery_points),
                (checkpoint::LOG_START_OFFSETS, &log_start_offsets),
                (checkpoint::HIGH_WATERMARKS, &high_watermarks),
                (checkpoint::CLEANED_OFFSETS, &cleaned_offsets),
            ];
            checkpoints.write_all(&*self.environment.disk, files)?;
        }
        Ok(())
    }

    /// Writes the recovery points of one directory, and up to where its logs were compacted.
    pub(super) fn write_recovery_points(&self, directory_id: Uuid) -> Result<(), StorageError> {
        for directory in self.directories.iter().filter(|directory| directory.id == directory_id) {
            let mut checkpoints = directory.checkpoints();
            let disk = &*self.environment.disk;
            let offsets = self.recovery_points_in(directory_id);
            checkpoints.write(disk, checkpoint::RECOVERY_POINTS, &offsets)?;
            let offsets = self.cleaned_offsets_in(directory_id);
            checkpoints.write(disk, checkpoint::CLEANED_OFFSETS, &offsets)?;
        }
        Ok(())
    }

    fn recovery_points_in(&self, directory: Uuid) -> Offsets {
        self.offsets_in(
            directory,
            |log| Some(log.recovery_point_to_remember()),
            |unopened| unopened.recovery_point,
        )
    }

    fn log_start_offsets_in(&self, directory: Uuid) -> Offsets {
        let forgets = planted!(self.environment, ForgetLogStart);
        let of_log = |log: &Log| (log.has_start_within_segment() && !forgets).then(|| log.log_start_offset());
        self.offsets_in(directory, of_log, |unopened| unopened.log_start_offset)
    }

    fn high_watermarks_in(&self, directory: Uuid) -> Offsets {
        let known = self.high_watermarks.lock().clone();
        let of_log = |log: &Log| known.get(log.topic_partition()).copied();
        self.offsets_in(directory, of_log, |unopened| unopened.high_watermark)
    }

    fn cleaned_offsets_in(&self, directory: Uuid) -> Offsets {
        self.offsets_in(directory, Log::cleaned_offset, |unopened| unopened.cleaned_offset)
    }

    fn offsets_in(
        &self,
        directory: Uuid,
        of_log: impl Fn(&Log) -> Option<Offset>,
        of_unopened: impl Fn(&Unopened) -> Option<Offset>,
    ) -> Offsets {
        let logs = self.logs.read();
        let logs = logs.iter().filter(|(_, log)| log.directory_id() == directory);
        let mut offsets: Offsets = logs.filter_map(|(tp, log)| Some((tp.clone(), of_log(log)?))).collect();
        let unopened = self.unopened.lock();
        let unopened = unopened.iter().filter(|(_, unopened)| unopened.directory == directory);
        offsets.extend(unopened.filter_map(|(tp, unopened)| Some((tp.clone(), of_unopened(unopened)?))));
        offsets.sort();
        offsets
    }
}

fn report<T>(log: &Log, action: &str, result: Result<T, StorageError>) -> Option<T> {
    // A log that is offline has said so when it went.
    let is_news = log.failure().is_none();
    result
        .inspect_err(|error| {
            if is_news {
                tracing::error!(partition = %log.topic_partition(), %error, "{action} failed");
            }
        })
        .ok()
}

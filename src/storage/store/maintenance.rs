//! What is done from time to time: checkpoints, retention, delayed deletion, syncs that are due.

use klamm_model::{Offset, TimestampMs, TopicPartition, Uuid};

use super::LogStore;
use crate::checkpoint::Offsets;
use crate::error::StorageError;
use crate::log::Log;

impl LogStore {
    /// Remembers high watermarks, and writes the checkpoint files of all directories: recovery points, log start
    /// offsets, high watermarks.
    pub fn checkpoint(&self, high_watermarks: &[(TopicPartition, Offset)]) -> Result<(), StorageError> {
        let _changing = self.changing.lock();
        self.high_watermarks.lock().extend(high_watermarks.iter().cloned());
        self.write_checkpoints()
    }

    /// Writes the log start offsets, so that they outlive a kill: for the end of a DeleteRecords.
    pub fn checkpoint_log_start_offsets(&self) -> Result<(), StorageError> {
        let _changing = self.changing.lock();
        for directory in &self.directories {
            let offsets = self.log_start_offsets_in(directory.id);
            directory.write_log_start_offsets(&*self.environment.disk, &offsets)?;
        }
        Ok(())
    }

    pub(super) fn write_checkpoints(&self) -> Result<(), StorageError> {
        for directory in &self.directories {
            let recovery_points = self.offsets_in(directory.id, |log| Some(log.recovery_point()));
            let log_start_offsets = self.log_start_offsets_in(directory.id);
            let high_watermarks = {
                let known = self.high_watermarks.lock();
                self.offsets_in(directory.id, |log| known.get(log.topic_partition()).copied())
            };
            directory.write_checkpoints(
                &*self.environment.disk,
                &recovery_points,
                &log_start_offsets,
                &high_watermarks,
            )?;
        }
        Ok(())
    }

    fn log_start_offsets_in(&self, directory: Uuid) -> Offsets {
        self.offsets_in(directory, |log| log.has_start_within_segment().then(|| log.log_start_offset()))
    }

    fn offsets_in(&self, directory: Uuid, offset: impl Fn(&Log) -> Option<Offset>) -> Offsets {
        let logs = self.logs.read();
        let logs = logs.iter().filter(|(_, log)| log.directory_id() == directory);
        logs.filter_map(|(tp, log)| Some((tp.clone(), offset(log)?))).collect()
    }

    /// Syncs the segments that appends have left behind, and logs whose `flush.ms` is over. Cheap when there is
    /// nothing to do; to be called often, on a thread that may block.
    pub fn flush_due(&self, now_ms: TimestampMs) {
        for log in self.logs() {
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

    /// Retention, expiry of producers, and removal of what was deleted long enough ago. Returns how many
    /// segments went. Failures are logged; they concern one log each.
    ///
    /// Logs without a high watermark are left alone.
    pub fn run_maintenance(
        &self,
        now_ms: TimestampMs,
        high_watermark: &dyn Fn(&TopicPartition) -> Option<Offset>,
    ) -> usize {
        let mut removed = 0;
        for log in self.logs() {
            log.expire_producers(now_ms);
            let Some(high_watermark) = high_watermark(log.topic_partition()) else { continue };
            removed += report(&log, "retention", log.apply_retention(now_ms, high_watermark)).unwrap_or(0);
        }
        if let Err(error) = self.environment.deletions.run(&*self.environment.disk, now_ms) {
            tracing::warn!(%error, "deleted files cannot be removed; trying again later");
        }
        removed
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

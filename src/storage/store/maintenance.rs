//! What is done from time to time: checkpoints, retention, delayed deletion, syncs that are due.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use klamm_model::{Offset, TimestampMs, TopicPartition, Uuid};

use super::{LogDirectory, LogStore, Shared, Unopened};
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

    /// Writes the log start offsets, so that they outlive a kill: for the end of a DeleteRecords. Directories that
    /// are offline already are left out; one that fails now is an error, and does not keep the others from it.
    pub fn checkpoint_log_start_offsets(&self) -> Result<(), StorageError> {
        let _changing = self.changing.lock();
        if !self.is_loaded.load(Ordering::Acquire) {
            return Ok(());
        }
        let shared = &self.shared;
        let mut result = Ok(());
        for directory in shared.online() {
            let mut checkpoints = directory.checkpoints();
            let offsets = shared.log_start_offsets_in(directory.id);
            let disk = &*shared.environment.disk;
            result = result.and(checkpoints.write(disk, checkpoint::LOG_START_OFFSETS, &offsets));
        }
        result
    }

    /// Writes up to where the logs of a directory were compacted.
    pub(crate) fn checkpoint_cleaned(&self, directory: Uuid) -> Result<(), StorageError> {
        self.shared.write_recovery_points(directory)
    }

    /// Whether every acknowledgement waits for a sync from now on ([`FlushDue::BeforeAcknowledgement`]).
    ///
    /// [`FlushDue::BeforeAcknowledgement`]: crate::FlushDue::BeforeAcknowledgement
    pub fn set_group_commit(&self, group_commit: bool) {
        self.shared.environment.syncer.set_group_commit(group_commit);
    }

    /// Syncs the segments that appends have left behind, and logs whose `flush.ms` is over. Cheap when there is
    /// nothing to do; to be called often, on a thread that may block.
    pub fn flush_due(&self) {
        let futures: Vec<Arc<Log>> = self.shared.futures.read().values().cloned().collect();
        for log in self.logs().into_iter().chain(futures) {
            if log.failure().is_some() {
                // It said so when it went offline, and the disk may be back.
                let _ = log.note_failed_sync_again();
                continue;
            }
            let result = if log.is_sync_due() && log.recovery_point() < log.log_end_offset() {
                log.flush()
            } else if log.has_unsynced_rolled() {
                log.flush_rolled()
            } else {
                continue;
            };
            report(&log, "sync", result);
        }
    }

    /// Forgets the producers of all logs that were silent for too long (`producer.id.expiration.ms`).
    pub fn expire_producers(&self, now_ms: TimestampMs) {
        for log in self.logs() {
            log.expire_producers(now_ms);
        }
    }

    /// Retention, and removal of what was deleted long enough ago. Returns how many
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
            let Some(high_watermark) = high_watermark(log.topic_partition()) else { continue };
            removed += report(&log, "retention", log.apply_retention(now_ms, high_watermark)).unwrap_or(0);
        }
        self.remove_deleted(now_ms);
        removed
    }

    /// Removes files and folders that were deleted long enough ago. Failures are logged, and tried again.
    pub fn remove_deleted(&self, now_ms: TimestampMs) {
        if let Err(error) = self.shared.environment.deletions.run(&*self.shared.environment.disk, now_ms) {
            tracing::warn!(%error, "deleted files cannot be removed; trying again later");
        }
    }

    /// When the next deleted file or folder has to go; `None` if there is none.
    pub fn next_removal_ms(&self) -> Option<TimestampMs> {
        self.shared.environment.deletions.next_due_ms()
    }

    /// Has `notify` called, on any thread, when [`LogStore::next_removal_ms`] may have become earlier. It must not
    /// wait. Only the first one counts.
    pub fn on_deletion(&self, notify: impl Fn() + Send + Sync + 'static) {
        self.shared.environment.deletions.set_notify(Box::new(notify));
    }
}

impl Shared {
    pub(super) fn write_checkpoints(&self) -> Result<(), StorageError> {
        self.in_each_directory(|directory| self.write_checkpoints_of(directory))
    }

    /// Does something in all directories that work, and tells the first failure that left its directory online:
    /// one that went offline has said so, and is nothing that the others suffer from.
    fn in_each_directory(
        &self,
        action: impl Fn(&LogDirectory) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let mut result = Ok(());
        for directory in self.online() {
            match action(directory) {
                Err(error) if result.is_ok() && directory.health.is_online() => result = Err(error),
                _ => {}
            }
        }
        result
    }

    /// Writes the checkpoint files of one directory.
    pub(super) fn write_checkpoints_of(&self, directory: &LogDirectory) -> Result<(), StorageError> {
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
        checkpoints.write_all(&*self.environment.disk, files)
    }

    /// Writes the recovery points of one directory, and up to where its logs were compacted.
    pub(super) fn write_recovery_points(&self, directory_id: Uuid) -> Result<(), StorageError> {
        let Some(directory) = self.directory(directory_id) else { return Ok(()) };
        let mut checkpoints = directory.checkpoints();
        let disk = &*self.environment.disk;
        let offsets = self.recovery_points_in(directory_id);
        checkpoints.write(disk, checkpoint::RECOVERY_POINTS, &offsets)?;
        let offsets = self.cleaned_offsets_in(directory_id);
        checkpoints.write(disk, checkpoint::CLEANED_OFFSETS, &offsets)
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
        let (logs, futures) = (self.logs.read(), self.futures.read());
        let logs = logs.iter().chain(futures.iter()).filter(|(_, log)| log.directory_id() == directory);
        let mut offsets: Offsets = logs.filter_map(|(tp, log)| Some((tp.clone(), of_log(log)?))).collect();
        let unopened = self.unopened.lock();
        let undecided = self.undecided.lock();
        let folders = unopened.iter().map(|(tp, one)| (tp, std::slice::from_ref(one)));
        for (tp, folders) in folders.chain(undecided.iter().map(|(tp, folders)| (tp, &folders[..]))) {
            let within = folders.iter().filter(|one| one.directory == directory);
            offsets.extend(within.filter_map(|one| Some((tp.clone(), of_unopened(one)?))));
        }
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

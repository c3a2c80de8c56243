//! Deleting partitions: their folders get another name at once, and go after `file.delete.delay.ms`.

use std::io;
use std::path::{Path, PathBuf};

use klamm_model::{TopicPartition, Uuid};

use super::moves::Interrupted;
use super::{LogStore, random_id, suffixed_name};
use crate::deletion::DELETED_FOLDER_SUFFIX;
use crate::error::StorageError;
use crate::log::{Environment, Log};
use crate::planted::planted;

/// A folder of a deleted partition, or of one that has moved, that still has its name.
#[derive(Clone)]
pub(super) struct Undeleted {
    pub(super) directory: Uuid,
    pub(super) folder: PathBuf,
    pub(super) delay_ms: i64,
}

impl LogStore {
    /// Deletes a partition, with the copy of it that is on its way into another directory. Returns whether it was
    /// there.
    ///
    /// After a failure the partition is not served any more, and the deletion is tried again: by another call,
    /// by [`LogStore::run_maintenance`], and before a partition of that name is made. What lies in a directory that
    /// is offline is a failure too, but hinders nobody from making a partition of that name in another one.
    pub fn delete(&self, tp: &TopicPartition) -> Result<bool, StorageError> {
        let _changing = self.changing.lock();
        self.shared.recoveries.cancel(tp);
        let log = self.shared.logs.write().remove(tp);
        let future = self.shared.futures.write().remove(tp);
        let unsettled = self.shared.unsettled.lock().remove(tp);
        let mut unopened = self.shared.undecided.lock().remove(tp).unwrap_or_default();
        unopened.extend(self.shared.unopened.lock().remove(tp));
        self.delete_interrupted(tp);
        if log.is_some() || !unopened.is_empty() {
            self.shared.high_watermarks.lock().remove(tp);
        }
        // Its copy has one of two names; the one that it has not is no failure.
        if let Some(unsettled) = unsettled {
            for folder in unsettled.folders(tp) {
                self.delete_folder_later(tp, unsettled.directory, folder, 0);
            }
        }
        for log in log.iter().chain(&future) {
            self.delete_later(log);
        }
        for unopened in unopened {
            self.delete_folder_later(tp, unopened.directory, unopened.folder, 0);
        }
        let was_there = self.delete_again(tp)?;
        let left = self.shared.undeleted.lock().get(tp).cloned().unwrap_or_default();
        for directory in &self.shared.directories {
            if left.iter().any(|undeleted| undeleted.directory == directory.id) {
                directory.health.check("delete a partition in")?;
            }
        }
        Ok(was_there)
    }

    fn delete_interrupted(&self, tp: &TopicPartition) {
        let mut interrupted = self.shared.interrupted.lock();
        for Interrupted(open) in interrupted.extract_if(.., |Interrupted(open)| open.topic_partition == *tp) {
            self.delete_folder_later(tp, open.directory_id, open.dir, 0);
        }
    }

    /// Takes a log out of use; [`LogStore::delete_again`] then gives its folder the new name.
    pub(super) fn delete_later(&self, log: &Log) {
        log.set_deleted();
        let delay_ms = log.config().file_delete_delay_ms;
        self.delete_folder_later(log.topic_partition(), log.directory_id(), log.dir(), delay_ms);
    }

    /// As [`LogStore::delete_later`], for a folder of which no log is open.
    pub(super) fn delete_folder_later(
        &self,
        tp: &TopicPartition,
        directory: Uuid,
        folder: PathBuf,
        delay_ms: i64,
    ) {
        let undeleted = Undeleted { directory, folder, delay_ms };
        self.shared.undeleted.lock().entry(tp.clone()).or_default().push(undeleted);
    }

    /// Gives the folders of a deleted partition their new names, if they still have the old ones. Returns whether
    /// there was one. Those in directories that are offline keep theirs, and are found by the start that finds
    /// the directory mended. The caller holds `changing`.
    pub(super) fn delete_again(&self, tp: &TopicPartition) -> Result<bool, StorageError> {
        let waiting = self.shared.undeleted.lock().get(tp).cloned().unwrap_or_default();
        let is_online = |id: Uuid| self.shared.online().any(|directory| directory.id == id);
        let mut left = waiting.clone();
        let mut result = Ok(!waiting.is_empty());
        for undeleted in waiting.iter().filter(|undeleted| is_online(undeleted.directory)) {
            match self.rename_for_deletion(&undeleted.folder, tp, undeleted.delay_ms) {
                Ok(()) => left.retain(|other| other.folder != undeleted.folder),
                Err(_) if !is_online(undeleted.directory) => {}
                Err(error) => result = Err(error),
            }
        }
        let mut all = self.shared.undeleted.lock();
        match left.is_empty() {
            true => all.remove(tp),
            false => all.insert(tp.clone(), left),
        };
        result
    }

    /// Tries the deletions again that failed.
    pub(super) fn delete_undeleted(&self) {
        let _changing = self.changing.lock();
        let undeleted: Vec<TopicPartition> = self.shared.undeleted.lock().keys().cloned().collect();
        for tp in undeleted {
            if let Err(error) = self.delete_again(&tp) {
                tracing::error!(partition = %tp, %error, "the partition cannot be deleted");
            }
        }
    }

    fn rename_for_deletion(
        &self,
        from: &Path,
        tp: &TopicPartition,
        delay_ms: i64,
    ) -> Result<(), StorageError> {
        let Environment { disk, clock, random, deletions, .. } = &*self.shared.environment;
        let parent = from.parent().unwrap_or(from);
        let to = parent.join(suffixed_name(tp, random_id(&**random), DELETED_FOLDER_SUFFIX));
        match disk.rename(from, &to) {
            Ok(()) => deletions.add_folder(to, clock.now_ms().saturating_add(delay_ms)),
            // An attempt before this one has renamed it, and failed behind that.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StorageError::io(from, "rename for deletion", &error)),
        }
        let failed = |error| StorageError::io(from, "rename for deletion", &error);
        if !planted!(self.shared.environment, DeleteWithoutSync) {
            disk.sync_dir(parent).map_err(failed)?;
        }
        tracing::debug!(partition = %tp, folder = %from.display(), "deleted a log");
        Ok(())
    }
}

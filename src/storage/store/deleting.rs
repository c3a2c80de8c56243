//! Deleting partitions: their folders get another name at once, and go after `file.delete.delay.ms`.

use std::collections::BTreeMap;
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
        let mut deleted = self.delete_all(std::slice::from_ref(tp));
        deleted.pop().expect("one was asked for")
    }

    /// As [`LogStore::delete`], for many, each of which is named once; the results stand in the same order. The new names
    /// of all are synced together.
    pub fn delete_all(&self, tps: &[TopicPartition]) -> Vec<Result<bool, StorageError>> {
        let _changing = self.changing.lock();
        tps.iter().for_each(|tp| self.take_out(tp));
        let renamed = tps.iter().zip(self.delete_all_again(tps));
        renamed.map(|(tp, renamed)| renamed.and_then(|was_there| self.check_deleted(tp, was_there))).collect()
    }

    /// Takes all that there is of a partition out of use.
    fn take_out(&self, tp: &TopicPartition) {
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
    }

    /// What is left in a directory that is offline is a failure.
    fn check_deleted(&self, tp: &TopicPartition, was_there: bool) -> Result<bool, StorageError> {
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
        let mut deleted = self.delete_all_again(std::slice::from_ref(tp));
        deleted.pop().expect("one was asked for")
    }

    /// As [`LogStore::delete_again`], for many: all are renamed, and then the directories synced.
    fn delete_all_again(&self, tps: &[TopicPartition]) -> Vec<Result<bool, StorageError>> {
        let waiting = |tp| self.shared.undeleted.lock().get(tp).cloned().unwrap_or_default();
        let waiting: Vec<Vec<Undeleted>> = tps.iter().map(waiting).collect();
        let rename = |(tp, waiting): (&TopicPartition, &Vec<Undeleted>)| {
            let renamed = waiting.iter().map(|one| self.rename_for_deletion(&one.folder, tp, one.delay_ms));
            renamed.collect::<Vec<_>>()
        };
        let renamed: Vec<Vec<Result<(), StorageError>>> = tps.iter().zip(&waiting).map(rename).collect();
        let mut synced = BTreeMap::new();
        let mut results = Vec::with_capacity(tps.len());
        for ((tp, waiting), renamed) in tps.iter().zip(waiting).zip(renamed) {
            let (mut left, mut result) = (Vec::new(), Ok(!waiting.is_empty()));
            for (undeleted, renamed) in waiting.into_iter().zip(renamed) {
                match renamed.and_then(|()| self.sync_parent(&undeleted.folder, &mut synced)) {
                    Ok(()) => {
                        tracing::debug!(partition = %tp, folder = %undeleted.folder.display(), "deleted a log");
                    }
                    Err(error) => {
                        if self.shared.online().any(|directory| directory.id == undeleted.directory) {
                            result = Err(error);
                        }
                        left.push(undeleted);
                    }
                }
            }
            let mut all = self.shared.undeleted.lock();
            match left.is_empty() {
                true => all.remove(tp),
                false => all.insert(tp.clone(), left),
            };
            results.push(result);
        }
        results
    }

    /// Tries the deletions again that failed.
    pub(super) fn delete_undeleted(&self) {
        let _changing = self.changing.lock();
        let undeleted: Vec<TopicPartition> = self.shared.undeleted.lock().keys().cloned().collect();
        for (tp, deleted) in undeleted.iter().zip(self.delete_all_again(&undeleted)) {
            if let Err(error) = deleted {
                tracing::error!(partition = %tp, %error, "the partition cannot be deleted");
            }
        }
    }

    /// Gives a folder its new name, which is not synced yet.
    fn rename_for_deletion(
        &self,
        from: &Path,
        tp: &TopicPartition,
        delay_ms: i64,
    ) -> Result<(), StorageError> {
        let Environment { disk, clock, random, deletions, .. } = &*self.shared.environment;
        let to = parent_of(from).join(suffixed_name(tp, random_id(&**random), DELETED_FOLDER_SUFFIX));
        match disk.rename(from, &to) {
            Ok(()) => deletions.add_folder(to, clock.now_ms().saturating_add(delay_ms)),
            // An attempt before this one has renamed it, and failed behind that.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(not_renamed(from, &error)),
        }
        Ok(())
    }

    /// Syncs the names in the directory of a folder that was renamed, unless that was done or tried already.
    fn sync_parent(
        &self,
        folder: &Path,
        synced: &mut BTreeMap<PathBuf, io::Result<()>>,
    ) -> Result<(), StorageError> {
        if planted!(self.shared.environment, DeleteWithoutSync) {
            return Ok(());
        }
        let (disk, parent) = (&*self.shared.environment.disk, parent_of(folder));
        let synced = synced.entry(parent.to_owned()).or_insert_with(|| disk.sync_dir(parent));
        synced.as_ref().map_err(|error| not_renamed(folder, error)).copied()
    }
}

fn parent_of(folder: &Path) -> &Path {
    folder.parent().unwrap_or(folder)
}

fn not_renamed(folder: &Path, error: &io::Error) -> StorageError {
    StorageError::io(folder, "rename for deletion", error)
}

//! Files and folders that are to go later.
//!
//! What is deleted is renamed at once, so that a crash does not bring it back, and removed after
//! `file.delete.delay.ms`, when readers have let go of it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use klamm_io::Disk;
use klamm_model::{Offset, TimestampMs};
use parking_lot::Mutex;

use crate::error::StorageError;
use crate::open_files::file_path;
use crate::producer_snapshot;
use crate::segment::{LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX};

/// The end of the name of a file that is to go.
pub(crate) const DELETED_SUFFIX: &str = ".deleted";
/// The end of the name of a partition's folder that is to go.
pub(crate) const DELETED_FOLDER_SUFFIX: &str = "-delete";

/// The end of the name of the folder of a partition that is on its way into another log directory.
pub(crate) const FUTURE_FOLDER_SUFFIX: &str = "-future";

/// What the file of a segment gets behind its name that recovery took out of its log.
const SET_ASIDE_SUFFIX: &str = ".cut";

/// All files of a segment. The one with the batches goes first: the others are orphans without it, which the
/// next start removes.
const SEGMENT_SUFFIXES: [&str; 5] =
    [LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, producer_snapshot::SUFFIX];

/// Something to remove, and when.
#[derive(Clone, Debug)]
struct Deletion {
    due_ms: TimestampMs,
    path: PathBuf,
    is_folder: bool,
}

/// How long what could not be removed waits for the next try, in milliseconds.
const RETRY_AFTER_MS: i64 = 10_000;

/// What waits to be removed.
#[derive(Default)]
pub(crate) struct Deletions {
    waiting: Mutex<Vec<Deletion>>,
    /// Told that something was added.
    notify: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Deletions {
    pub(crate) fn add_folder(&self, path: PathBuf, due_ms: TimestampMs) {
        self.add([Deletion { due_ms, path, is_folder: true }]);
    }

    pub(crate) fn add_files(&self, paths: Vec<PathBuf>, due_ms: TimestampMs) {
        self.add(paths.into_iter().map(|path| Deletion { due_ms, path, is_folder: false }));
    }

    fn add(&self, deletions: impl IntoIterator<Item = Deletion>) {
        self.waiting.lock().extend(deletions);
        if let Some(notify) = self.notify.get() {
            notify();
        }
    }

    pub(crate) fn set_notify(&self, notify: Box<dyn Fn() + Send + Sync>) {
        let _ = self.notify.set(notify);
    }

    /// When the next one is due.
    pub(crate) fn next_due_ms(&self) -> Option<TimestampMs> {
        self.waiting.lock().iter().map(|deletion| deletion.due_ms).min()
    }

    /// Removes what is due. What cannot be removed is due again in a while.
    pub(crate) fn run(&self, disk: &dyn Disk, now_ms: TimestampMs) -> Result<usize, StorageError> {
        let mut waiting = self.waiting.lock();
        let (due, later): (Vec<Deletion>, Vec<Deletion>) =
            std::mem::take(&mut *waiting).into_iter().partition(|deletion| deletion.due_ms <= now_ms);
        *waiting = later;
        drop(waiting);
        let (mut removed, mut failure) = (0, Ok(()));
        for deletion in due {
            let path = &deletion.path;
            let result = if deletion.is_folder { disk.remove_dir_all(path) } else { disk.remove_file(path) };
            match result {
                Ok(()) => removed += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    failure = Err(StorageError::io(path, "remove", &error));
                    let due_ms = now_ms.saturating_add(RETRY_AFTER_MS);
                    self.waiting.lock().push(Deletion { due_ms, ..deletion });
                }
            }
        }
        failure.map(|()| removed)
    }
}

/// Gives the files of a segment the name of deleted ones and returns their paths.
pub(crate) fn rename_segment_files(
    disk: &dyn Disk,
    directory: &Path,
    base_offset: Offset,
) -> Result<Vec<PathBuf>, StorageError> {
    let mut renamed = Vec::new();
    for suffix in SEGMENT_SUFFIXES {
        let from = file_path(directory, base_offset, suffix);
        let to = file_path(directory, base_offset, &format!("{suffix}{DELETED_SUFFIX}"));
        match disk.rename(&from, &to) {
            Ok(()) => renamed.push(to),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StorageError::io(&from, "rename for deletion", &error)),
        }
    }
    Ok(renamed)
}

/// A name for what is set aside that nothing has yet: what an earlier recovery has set aside must stay, it may be
/// the only copy. The second one is `….cut.1`.
pub(crate) fn free_name(
    disk: &dyn Disk,
    directory: &Path,
    base_offset: Offset,
    suffix: &str,
) -> Result<PathBuf, StorageError> {
    let numbers = std::iter::once(String::new()).chain((1u64..).map(|number| format!(".{number}")));
    for number in numbers {
        let path = file_path(directory, base_offset, &format!("{suffix}{SET_ASIDE_SUFFIX}{number}"));
        match disk.exists(&path) {
            Ok(false) => return Ok(path),
            Ok(true) => {}
            Err(error) => return Err(StorageError::io(&path, "look for", &error)),
        }
    }
    unreachable!("the numbers do not end")
}

/// Takes a segment out of its log but keeps its records, as `<base offset>.log.cut`. Returns where they are.
pub(crate) fn set_segment_aside(
    disk: &dyn Disk,
    directory: &Path,
    base_offset: Offset,
) -> Result<PathBuf, StorageError> {
    let log = file_path(directory, base_offset, LOG_SUFFIX);
    let kept = free_name(disk, directory, base_offset, LOG_SUFFIX)?;
    disk.rename(&log, &kept).map_err(|error| StorageError::io(&log, "set aside", &error))?;
    remove_segment_files(disk, directory, base_offset)?;
    Ok(kept)
}

/// Removes the files of a segment at once.
pub(crate) fn remove_segment_files(
    disk: &dyn Disk,
    directory: &Path,
    base_offset: Offset,
) -> Result<(), StorageError> {
    for suffix in SEGMENT_SUFFIXES {
        remove_if_there(disk, &file_path(directory, base_offset, suffix))?;
    }
    Ok(())
}

pub(crate) fn remove_if_there(disk: &dyn Disk, path: &Path) -> Result<(), StorageError> {
    match disk.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StorageError::io(path, "remove", &error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use klamm_io::OpenMode;
    use klamm_testing::{Failure, Fault, OperationKind, SimulatedDisk};

    use super::*;

    /// A full disk waits for the space of what was deleted, and an idle broker sleeps: the next removal is known,
    /// and told when it changes.
    #[test]
    fn what_is_deleted_goes_when_it_is_due_and_not_before() {
        let disk = SimulatedDisk::new(1);
        let (early, late) = (PathBuf::from("/early"), PathBuf::from("/late"));
        for path in [&early, &late] {
            disk.open(path, OpenMode::CreateOrOpen).unwrap();
        }
        let deletions = Deletions::default();
        let told = Arc::new(AtomicUsize::new(0));
        let counter = told.clone();
        deletions.set_notify(Box::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        assert_eq!(deletions.next_due_ms(), None);
        deletions.add_files(vec![late.clone()], 2000);
        deletions.add_files(vec![early.clone()], 1000);
        assert_eq!((deletions.next_due_ms(), told.load(Ordering::Relaxed)), (Some(1000), 2));
        assert_eq!(deletions.run(&disk, 999).unwrap(), 0);
        let fault = disk.inject(Fault::new(Failure::Device).of(OperationKind::Remove).times(1));
        deletions.run(&disk, 1000).unwrap_err();
        disk.clear(fault);
        assert_eq!(deletions.next_due_ms(), Some(2000));
        assert_eq!(deletions.run(&disk, 2000).unwrap(), 1);
        assert!(disk.exists(&early).unwrap() && !disk.exists(&late).unwrap());
        assert_eq!(deletions.next_due_ms(), Some(1000 + RETRY_AFTER_MS));
        assert_eq!(deletions.run(&disk, 1000 + RETRY_AFTER_MS).unwrap(), 1);
        assert_eq!((deletions.next_due_ms(), disk.exists(&early).unwrap()), (None, false));
    }
}

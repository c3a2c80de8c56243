//! Files and folders that are to go later.
//!
//! What is deleted is renamed at once, so that a crash does not bring it back, and removed after
//! `file.delete.delay.ms`, when readers have let go of it.

use std::io;
use std::path::{Path, PathBuf};

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

/// What waits to be removed.
#[derive(Default)]
pub(crate) struct Deletions {
    waiting: Mutex<Vec<Deletion>>,
}

impl Deletions {
    pub(crate) fn add_folder(&self, path: PathBuf, due_ms: TimestampMs) {
        self.waiting.lock().push(Deletion { due_ms, path, is_folder: true });
    }

    pub(crate) fn add_files(&self, paths: Vec<PathBuf>, due_ms: TimestampMs) {
        let file = |path| Deletion { due_ms, path, is_folder: false };
        self.waiting.lock().extend(paths.into_iter().map(file));
    }

    /// Removes what is due. What cannot be removed is tried again next time.
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
                    self.waiting.lock().push(deletion);
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

/// Takes a segment out of its log but keeps its records, as `<base offset>.log.cut`. Returns where they are.
pub(crate) fn set_segment_aside(
    disk: &dyn Disk,
    directory: &Path,
    base_offset: Offset,
) -> Result<PathBuf, StorageError> {
    let log = file_path(directory, base_offset, LOG_SUFFIX);
    let kept = file_path(directory, base_offset, &format!("{LOG_SUFFIX}{SET_ASIDE_SUFFIX}"));
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

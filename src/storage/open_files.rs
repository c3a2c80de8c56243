//! Open files, bounded in number for the whole process.
//!
//! A log has some files per segment, and a node thousands of segments, but only few are in use at a time. Each
//! file is a [`FileSlot`] that opens itself on use; when more than the allowed number are open, the ones not
//! used lately are closed (the clock algorithm). Using a file that is open takes no lock.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use klamm_io::{Disk, File, OpenMode};
use klamm_model::Offset;
use parking_lot::Mutex;

use crate::error::StorageError;

/// Keeps the number of open files bounded.
pub(crate) struct OpenFiles {
    disk: Arc<dyn Disk>,
    limit: usize,
    open: Mutex<VecDeque<Weak<SlotState>>>,
}

/// A file that is opened on use.
pub(crate) struct FileSlot {
    state: Arc<SlotState>,
    files: Arc<OpenFiles>,
}

struct SlotState {
    directory: Arc<Path>,
    base_offset: Offset,
    suffix: &'static str,
    opened: ArcSwapOption<Opened>,
    is_used: AtomicBool,
    /// Whether another file may soon have the name.
    is_retired: AtomicBool,
    opening: Mutex<()>,
}

struct Opened(Arc<dyn File>);

impl OpenFiles {
    pub(crate) fn new(disk: Arc<dyn Disk>, limit: usize) -> Arc<OpenFiles> {
        Arc::new(OpenFiles { disk, limit: limit.max(1), open: Mutex::new(VecDeque::new()) })
    }

    /// The file `<20-digit base offset><suffix>` of a directory.
    pub(crate) fn slot(
        self: &Arc<OpenFiles>,
        directory: &Arc<Path>,
        base_offset: Offset,
        suffix: &'static str,
    ) -> FileSlot {
        let state = SlotState {
            directory: directory.clone(),
            base_offset,
            suffix,
            opened: ArcSwapOption::empty(),
            is_used: AtomicBool::new(false),
            is_retired: AtomicBool::new(false),
            opening: Mutex::new(()),
        };
        FileSlot { state: Arc::new(state), files: self.clone() }
    }

    /// How many files are open, at most.
    #[cfg(test)]
    fn open_count(&self) -> usize {
        let open = self.open.lock();
        open.iter().filter_map(Weak::upgrade).filter(|slot| slot.opened.load().is_some()).count()
    }

    fn admit(&self, slot: &Arc<SlotState>) {
        let mut open = self.open.lock();
        open.push_back(Arc::downgrade(slot));
        // Each turn either shortens the queue or takes a mark away, so two rounds are enough.
        let mut turns = 2 * open.len();
        while open.len() > self.limit && turns > 0 {
            turns -= 1;
            let Some(oldest) = open.pop_front() else { break };
            let Some(oldest) = oldest.upgrade() else { continue };
            if oldest.is_used.swap(false, Ordering::Relaxed) {
                open.push_back(Arc::downgrade(&oldest));
            } else {
                oldest.opened.store(None);
            }
        }
    }
}

impl FileSlot {
    pub(crate) fn path(&self) -> PathBuf {
        file_path(&self.state.directory, self.state.base_offset, self.state.suffix)
    }

    /// The file, which must exist.
    pub(crate) fn existing(&self, context: &'static str) -> Result<Arc<dyn File>, StorageError> {
        self.get(OpenMode::ReadWrite, context)
    }

    /// The file, made if need be.
    pub(crate) fn created(&self, context: &'static str) -> Result<Arc<dyn File>, StorageError> {
        self.get(OpenMode::CreateOrOpen, context)
    }

    fn get(&self, mode: OpenMode, context: &'static str) -> Result<Arc<dyn File>, StorageError> {
        let state = &self.state;
        if let Some(opened) = &*state.opened.load() {
            // A plain load first: the mark is nearly always there, and a store would bounce the cache line.
            if !state.is_used.load(Ordering::Relaxed) {
                state.is_used.store(true, Ordering::Relaxed);
            }
            return Ok(opened.0.clone());
        }
        let opening = state.opening.lock();
        if let Some(opened) = &*state.opened.load() {
            return Ok(opened.0.clone());
        }
        let path = self.path();
        let file =
            self.files.disk.open(&path, mode).map_err(|error| StorageError::io(&path, context, &error))?;
        // Asked behind the opening: whoever takes the name away says so first.
        if state.is_retired.load(Ordering::SeqCst) {
            return Err(StorageError::io(&path, context, &io::ErrorKind::NotFound.into()));
        }
        state.is_used.store(true, Ordering::Relaxed);
        state.opened.store(Some(Arc::new(Opened(file.clone()))));
        drop(opening);
        self.files.admit(state);
        Ok(file)
    }

    /// Says that the name will no longer be this file's: from now on it is used only while it stays open, and
    /// when it is to be opened again it counts as missing.
    pub(crate) fn retire(&self) {
        self.state.is_retired.store(true, Ordering::SeqCst);
    }

    /// Closes the file until its next use.
    pub(crate) fn close(&self) {
        self.state.opened.store(None);
        self.state.is_used.store(false, Ordering::Relaxed);
    }
}

/// `<20-digit offset><suffix>` in a directory, Kafka's way to name files.
pub(crate) fn file_path(directory: &Path, offset: Offset, suffix: &str) -> PathBuf {
    directory.join(format!("{offset:020}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use klamm_testing::SimulatedDisk;

    /// Guards the bound on descriptors: many segments are used in turn, and few stay open.
    #[test]
    fn only_so_many_files_stay_open() {
        let disk = Arc::new(SimulatedDisk::new(1));
        let directory: Arc<Path> = Path::new("/logs").into();
        disk.create_dir_all(&directory).unwrap();
        let files = OpenFiles::new(disk, 4);
        let slots: Vec<FileSlot> = (0..20).map(|offset| files.slot(&directory, offset, ".log")).collect();
        for round in 0..3u8 {
            for slot in &slots {
                let file = slot.created("test").unwrap();
                file.write_all_at(&[&[round]], u64::from(round)).unwrap();
                assert!(files.open_count() <= 5);
            }
        }
        let mut content = [0; 3];
        slots[7].existing("test").unwrap().read_exact_at(&mut content, 0).unwrap();
        assert_eq!(content, [0, 1, 2]);
    }

    /// Guards readers of a segment that was replaced: under the old name stands another file, with other batches.
    #[test]
    fn a_retired_file_is_never_taken_for_the_one_that_has_its_name() {
        let disk = Arc::new(SimulatedDisk::new(1));
        let directory: Arc<Path> = Path::new("/logs").into();
        disk.create_dir_all(&directory).unwrap();
        let files = OpenFiles::new(disk.clone(), 4);
        let slot = files.slot(&directory, 7, ".log");
        slot.created("test").unwrap().write_all_at(&[b"old"], 0).unwrap();
        disk.replace(&slot.path(), b"new").unwrap();
        slot.retire();
        let mut content = [0; 3];
        slot.existing("test").unwrap().read_exact_at(&mut content, 0).unwrap();
        assert_eq!(&content, b"old");
        slot.close();
        assert!(slot.existing("test").err().unwrap().is_not_found());
    }

    #[test]
    fn a_file_that_is_not_there_is_named_in_the_error() {
        let disk = Arc::new(SimulatedDisk::new(1));
        let files = OpenFiles::new(disk, 4);
        let slot = files.slot(&Path::new("/none").into(), 7, ".log");
        let error = slot.existing("read").err().unwrap();
        assert!(error.is_not_found());
        assert!(error.to_string().starts_with("read /none/00000000000000000007.log: "), "{error}");
    }
}

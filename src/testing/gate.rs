//! A disk on which some reads or syncs wait until a test lets them through: work that takes long, at will.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use klamm_io::{Disk, Entry, File, OpenMode};

use crate::SimulatedDisk;

/// A disk whose reads or syncs of certain files wait. Clones are the same disk.
#[derive(Clone)]
pub struct GatedDisk {
    disk: SimulatedDisk,
    folder: &'static str,
    extension: &'static str,
    gates_syncs: bool,
    door: Arc<(Mutex<Door>, Condvar)>,
}

#[derive(Default)]
struct Door {
    is_open: bool,
    waiting: usize,
}

struct GatedFile {
    file: Arc<dyn File>,
    gate: GatedDisk,
}

impl GatedDisk {
    /// Reads of files with this extension, in folders of this name, wait from now on.
    pub fn new(disk: SimulatedDisk, folder: &'static str, extension: &'static str) -> GatedDisk {
        GatedDisk { disk, folder, extension, gates_syncs: false, door: Arc::default() }
    }

    /// As [`GatedDisk::new`], for syncs in the place of reads.
    pub fn of_syncs(disk: SimulatedDisk, folder: &'static str, extension: &'static str) -> GatedDisk {
        GatedDisk { gates_syncs: true, ..GatedDisk::new(disk, folder, extension) }
    }

    /// Returns when a call waits, or has waited.
    pub fn await_arrival(&self) {
        let door = self.door.1.wait_while(self.door(), |door| door.waiting == 0);
        drop(door.unwrap_or_else(PoisonError::into_inner));
    }

    /// Lets all calls through, from now on.
    pub fn open_up(&self) {
        self.door().is_open = true;
        self.door.1.notify_all();
    }

    fn door(&self) -> MutexGuard<'_, Door> {
        self.door.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) {
        let mut door = self.door();
        door.waiting += 1;
        self.door.1.notify_all();
        drop(self.door.1.wait_while(door, |door| !door.is_open).unwrap_or_else(PoisonError::into_inner));
    }
}

impl File for GatedFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        if !self.gate.gates_syncs {
            self.gate.wait();
        }
        self.file.read_at(buffer, position)
    }
    fn write_all_at(&self, parts: &[&[u8]], position: u64) -> io::Result<()> {
        self.file.write_all_at(parts, position)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        if self.gate.gates_syncs {
            self.gate.wait();
        }
        self.file.sync_data()
    }
}

impl Disk for GatedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = self.disk.open(path, mode)?;
        let is_gated = path.parent().is_some_and(|folder| folder.ends_with(self.folder))
            && path.extension().is_some_and(|extension| extension == self.extension);
        Ok(if is_gated { Arc::new(GatedFile { file, gate: self.clone() }) } else { file })
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir_all(path)
    }
    fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.disk.read_dir(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_file(path)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dir_all(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.sync_dir(path)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.disk.lock(path)
    }
    fn space(&self, path: &Path) -> io::Result<(u64, u64)> {
        self.disk.space(path)
    }
}

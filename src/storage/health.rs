//! Which log directories work, and which have failed.
//!
//! A [`WatchedDisk`] stands between the store and the machine's disk. It sees every call on a log directory,
//! whoever makes it, and takes the directory offline with the first one that shows that the device is broken.
//! From then on all calls on it fail at once, until the process starts anew: what a broken device says cannot
//! be relied on, so nothing but a look at it by a person brings it back. A disk that is full is not broken.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use klamm_io::{Disk, Entry, File, OpenMode};
use klamm_model::TimestampMs;

use crate::error::{StorageError, StorageErrorKind};

/// What is done when a directory fails: its path and the reason.
pub(crate) type Listener = dyn Fn(&Path, &StorageError) + Send + Sync;

/// The state of one log directory.
pub(crate) struct DirectoryHealth {
    path: PathBuf,
    failure: OnceLock<StorageError>,
    listener: OnceLock<Arc<Listener>>,
}

impl DirectoryHealth {
    pub(crate) fn new(path: &Path) -> Arc<DirectoryHealth> {
        let (failure, listener) = (OnceLock::new(), OnceLock::new());
        Arc::new(DirectoryHealth { path: path.to_owned(), failure, listener })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Why the directory is offline, if it is.
    pub(crate) fn failure(&self) -> Option<&StorageError> {
        self.failure.get()
    }

    pub(crate) fn is_online(&self) -> bool {
        self.failure.get().is_none()
    }

    /// Sets who is told of a failure, once; of one that has been before, at once.
    pub(crate) fn set_listener(&self, listener: Arc<Listener>) {
        if let Some(failure) = self.failure() {
            listener(&self.path, failure);
        }
        let _ = self.listener.set(listener);
    }

    /// Takes the directory offline. The log hears of the first reason only.
    pub(crate) fn fail(&self, failure: StorageError) {
        if self.failure.set(failure.clone()).is_err() {
            return;
        }
        tracing::error!(
            directory = %self.path.display(), %failure,
            "the log directory goes offline with all its partitions; repair or replace it, then start again"
        );
        if let Some(listener) = self.listener.get() {
            listener(&self.path, &failure);
        }
    }

    /// An error that says that the directory is offline, if it is.
    pub(crate) fn check(&self, context: &'static str) -> Result<(), StorageError> {
        match self.failure() {
            None => Ok(()),
            Some(failure) => {
                let kind = StorageErrorKind::DirectoryOffline(failure.to_string());
                Err(StorageError::new(&self.path, context, kind))
            }
        }
    }

    fn refuse(&self) -> io::Result<()> {
        match self.failure() {
            None => Ok(()),
            Some(failure) => Err(io::Error::other(Offline(failure.to_string()))),
        }
    }

    fn observe<T>(&self, path: &Path, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && is_device_failure(error)
        {
            self.fail(StorageError::io(path, "use", error));
        }
        result
    }
}

/// What a call on an offline directory answers.
#[derive(Debug)]
struct Offline(String);

impl fmt::Display for Offline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the log directory is offline since an earlier failure: {}", self.0)
    }
}

impl std::error::Error for Offline {}

/// Whether an error says that the device or its file system is broken or gone. Too many open files, missing
/// rights and a full disk say something else.
pub(crate) fn is_device_failure(error: &io::Error) -> bool {
    /// EIO, ENXIO, ENODEV, EROFS, EUCLEAN (a damaged file system), ESTALE (a server that forgot it).
    const CODES: [i32; 6] = [5, 6, 19, 30, 117, 116];
    error.raw_os_error().is_some_and(|code| CODES.contains(&code))
}

/// A disk of which log directories are watched.
pub(crate) struct WatchedDisk {
    disk: Arc<dyn Disk>,
    directories: Vec<Arc<DirectoryHealth>>,
}

impl WatchedDisk {
    pub(crate) fn new(disk: Arc<dyn Disk>, directories: Vec<Arc<DirectoryHealth>>) -> WatchedDisk {
        WatchedDisk { disk, directories }
    }

    /// The log directory in which a path lies; the innermost, should one lie in another.
    fn directory_of(&self, path: &Path) -> Option<&Arc<DirectoryHealth>> {
        let holds = self.directories.iter().filter(|directory| path.starts_with(&directory.path));
        holds.max_by_key(|directory| directory.path.as_os_str().len())
    }

    fn call<T>(&self, path: &Path, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.directory_of(path) {
            None => call(),
            Some(directory) => {
                directory.refuse()?;
                directory.observe(path, call())
            }
        }
    }

    fn watch(&self, path: &Path, file: Arc<dyn File>) -> Arc<dyn File> {
        match self.directory_of(path) {
            None => file,
            Some(directory) => {
                Arc::new(WatchedFile { file, path: path.to_owned(), directory: directory.clone() })
            }
        }
    }
}

impl Disk for WatchedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.call(path, || self.disk.open(path, mode)).map(|file| self.watch(path, file))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.call(path, || self.disk.create_dir_all(path))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.call(path, || self.disk.read_dir(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(from, || self.disk.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.call(path, || self.disk.remove_file(path))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.call(path, || self.disk.remove_dir_all(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.call(path, || self.disk.sync_dir(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.call(path, || self.disk.exists(path))
    }

    fn lock(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.call(path, || self.disk.lock(path))
    }

    fn space(&self, path: &Path) -> io::Result<(u64, u64)> {
        self.call(path, || self.disk.space(path))
    }
}

struct WatchedFile {
    file: Arc<dyn File>,
    path: PathBuf,
    directory: Arc<DirectoryHealth>,
}

impl WatchedFile {
    fn call<T>(&self, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.directory.refuse()?;
        self.directory.observe(&self.path, call())
    }
}

impl File for WatchedFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.call(|| self.file.read_at(buffer, position))
    }

    fn write_all_at(&self, parts: &[&[u8]], position: u64) -> io::Result<()> {
        self.call(|| self.file.write_all_at(parts, position))
    }

    fn len(&self) -> io::Result<u64> {
        self.call(|| self.file.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.call(|| self.file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.call(|| self.file.sync_data())
    }

    fn modified_ms(&self) -> io::Result<Option<TimestampMs>> {
        self.call(|| self.file.modified_ms())
    }

    fn set_modified_ms(&self, modified_ms: TimestampMs) -> io::Result<()> {
        self.call(|| self.file.set_modified_ms(modified_ms))
    }

    fn is_cached(&self, position: u64, len: u64) -> bool {
        self.file.is_cached(position, len)
    }

    fn expect_sequential_reads(&self) {
        self.file.expect_sequential_reads();
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.descriptor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use klamm_testing::{Failure, Fault, OperationKind, SimulatedDisk};

    fn watched(disk: &SimulatedDisk) -> (WatchedDisk, Arc<DirectoryHealth>, Arc<DirectoryHealth>) {
        let (one, other) =
            (DirectoryHealth::new(Path::new("/one")), DirectoryHealth::new(Path::new("/other")));
        disk.create_dir_all(Path::new("/one")).unwrap();
        disk.create_dir_all(Path::new("/other")).unwrap();
        (WatchedDisk::new(Arc::new(disk.clone()), vec![one.clone(), other.clone()]), one, other)
    }

    /// A device that has failed once may answer again, with anything. So its directory stays offline, for files
    /// that are open too, and its neighbour works on.
    #[test]
    fn one_failure_of_the_device_is_the_end_of_its_directory_alone() {
        let simulated = SimulatedDisk::new(1);
        let (disk, one, other) = watched(&simulated);
        let file = disk.open(Path::new("/one/a"), OpenMode::CreateNew).unwrap();
        simulated.inject(Fault::new(Failure::Device).of(OperationKind::Write).on("/one").times(1));
        assert!(file.write_all_at(&[b"x"], 0).is_err());
        assert!(!one.is_online() && other.is_online());
        let error = file.write_all_at(&[b"x"], 0).unwrap_err().to_string();
        assert!(error.contains("offline") && error.contains("/one/a"), "{error}");
        assert!(file.read_at(&mut [0], 0).is_err() && disk.read_dir(Path::new("/one")).is_err());
        disk.replace(Path::new("/other/b"), b"y").unwrap();
    }

    #[test]
    fn a_full_disk_and_a_missing_file_are_no_failure_of_the_device() {
        let simulated = SimulatedDisk::new(1);
        let (disk, one, _) = watched(&simulated);
        simulated.inject(Fault::new(Failure::NoSpace).of(OperationKind::Write).times(1));
        assert!(disk.replace(Path::new("/one/a"), b"x").is_err());
        assert!(disk.read(Path::new("/one/missing")).is_err());
        assert!(one.is_online());
        disk.replace(Path::new("/one/a"), b"x").unwrap();
        for code in [24, 13, 2, 28, 122] {
            assert!(!is_device_failure(&io::Error::from_raw_os_error(code)), "{code}");
        }
    }
}

//! Files: what the log store asks of a disk, and the disk of the machine.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use klamm_model::TimestampMs;

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// For reading; it must exist.
    Read,
    /// For reading and writing; it must exist.
    ReadWrite,
    /// For reading and writing; it is made if it does not exist and keeps its content if it does.
    CreateOrOpen,
    /// For reading and writing; it must not exist.
    CreateNew,
}

/// One entry of a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Entry {
    /// The name, without the directory.
    pub name: String,
    /// Whether it is a directory itself.
    pub is_dir: bool,
}

/// A file that is open. All positions are in bytes from its start.
pub trait File: Send + Sync {
    /// Reads up to `buffer.len()` bytes at `position`; fewer at the end of the file.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;

    /// Writes all of `parts`, one behind the other, at `position`.
    fn write_all_at(&self, parts: &[&[u8]], position: u64) -> io::Result<()>;

    /// The file's size.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file holds nothing.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts the file, or makes it longer with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Returns when all data that was written is on the disk (`fdatasync`).
    fn sync_data(&self) -> io::Result<()>;

    /// When the file's data was last written, by the clock of the machine; `None` where that is not known.
    fn modified_ms(&self) -> io::Result<Option<TimestampMs>> {
        Ok(None)
    }

    /// Whether a part of the file is in memory, so that reading it does not wait for the disk. It looks at both
    /// ends of the part, which the kernel reads ahead together; where the system cannot tell, it says yes.
    fn is_cached(&self, _position: u64, _len: u64) -> bool {
        true
    }

    /// Sets what [`File::modified_ms`] says, for a file that takes the place of an older one; where that is not
    /// known, nothing happens.
    fn set_modified_ms(&self, _modified_ms: TimestampMs) -> io::Result<()> {
        Ok(())
    }

    /// Says that the file is about to be read from one end to the other, so that the system may read ahead.
    fn expect_sequential_reads(&self) {}

    /// The descriptor, for `sendfile`; a simulated file has none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Reads exactly `buffer.len()` bytes at `position`.
    fn read_exact_at(&self, mut buffer: &mut [u8], mut position: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            let count = self.read_at(buffer, position)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buffer = &mut buffer[count..];
            position += count as u64;
        }
        Ok(())
    }
}

/// A file system. Paths are what `log.dirs` and the command line say; names in errors are the caller's work.
///
/// What is durable when: a file's data after [`File::sync_data`]; a created, renamed or removed name after
/// [`Disk::sync_dir`] of the directory that holds it.
pub trait Disk: Send + Sync + 'static {
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;

    /// Makes a directory and those above it; it may exist already.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// What a directory holds, ordered by name.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>>;

    /// Renames a file or directory, replacing a file of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory with all that it holds.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Returns when all names made, renamed and removed in a directory are on the disk.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Whether a file or directory of this name is there.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Takes an exclusive lock that ends with the process, on a file that is made if need be. The lock is
    /// held as long as the file is; `WouldBlock` if another process has it.
    fn lock(&self, path: &Path) -> io::Result<Arc<dyn File>>;

    /// The size of the file system and what is free on it, in bytes.
    fn space(&self, path: &Path) -> io::Result<(u64, u64)>;

    /// Reads a whole small file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.open(path, OpenMode::Read)?;
        let mut content = vec![0; file.len()? as usize];
        file.read_exact_at(&mut content, 0)?;
        Ok(content)
    }

    /// Replaces a small file so that a crash leaves either the old content or the new: written beside it as
    /// `<name>.tmp`, synced, renamed, and the directory synced.
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut temporary = PathBuf::from(path).into_os_string();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        let file = self.open(&temporary, OpenMode::CreateOrOpen)?;
        file.set_len(0)?;
        file.write_all_at(&[content], 0)?;
        file.sync_data()?;
        self.rename(&temporary, path)?;
        path.parent().map_or(Ok(()), |parent| self.sync_dir(parent))
    }
}

/// The file system of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDisk;

struct SystemFile(std::fs::File);

impl File for SystemFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(&self.0, buffer, position)
    }

    fn write_all_at(&self, parts: &[&[u8]], mut position: u64) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            // The kernel takes at most IOV_MAX (1024) parts in one call.
            let most = rest.len().min(1024);
            let written = match rustix::io::pwritev(&self.0, &rest[..most], position) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            position += written as u64;
            IoSlice::advance_slices(&mut rest, written);
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn modified_ms(&self) -> io::Result<Option<TimestampMs>> {
        let since = self.0.metadata()?.modified()?.duration_since(std::time::UNIX_EPOCH);
        Ok(since.ok().and_then(|since| i64::try_from(since.as_millis()).ok()))
    }

    fn is_cached(&self, position: u64, len: u64) -> bool {
        let is_cached_at = |position| {
            let mut byte = [0];
            let mut parts = [IoSliceMut::new(&mut byte)];
            let read = rustix::io::preadv2(&self.0, &mut parts, position, rustix::io::ReadWriteFlags::NOWAIT);
            read != Err(rustix::io::Errno::AGAIN)
        };
        is_cached_at(position) && is_cached_at(position + len.saturating_sub(1))
    }

    fn set_modified_ms(&self, modified_ms: TimestampMs) -> io::Result<()> {
        let since = std::time::Duration::from_millis(u64::try_from(modified_ms).unwrap_or(0));
        self.0.set_modified(std::time::UNIX_EPOCH + since)
    }

    fn expect_sequential_reads(&self) {
        // It is advice: where it is not taken, reading is only slower.
        let _ = rustix::fs::fadvise(&self.0, 0, None, rustix::fs::Advice::Sequential);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

#[allow(clippy::disallowed_methods, reason = "this is the one place that may touch the file system")]
impl Disk for SystemDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(mode != OpenMode::Read);
        match mode {
            OpenMode::Read | OpenMode::ReadWrite => {}
            OpenMode::CreateOrOpen => {
                options.create(true).truncate(false);
            }
            OpenMode::CreateNew => {
                options.create_new(true);
            }
        }
        Ok(Arc::new(SystemFile(options.open(path)?)))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.push(Entry { name, is_dir: entry.file_type()?.is_dir() });
        }
        entries.sort();
        Ok(entries)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        // The parent of a relative path of one part is the empty path: the working directory.
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        std::fs::File::open(path)?.sync_all()
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        std::fs::exists(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file =
            std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        // Java locks with fcntl, so only the same kind of lock keeps Apache Kafka out.
        match rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Arc::new(SystemFile(file))),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn space(&self, path: &Path) -> io::Result<(u64, u64)> {
        let found = rustix::fs::statvfs(path)?;
        Ok((found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
    }
}

//! The small files of a log: snapshots of its producers, and its leader epochs.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use klamm_io::{Disk, OpenMode};
use klamm_model::Offset;

use super::{Log, Writer};
use crate::checkpoint::epochs_content;
use crate::error::StorageError;
use crate::leader_epochs::{self, LeaderEpochs};
use crate::open_files::file_path;
use crate::planted::planted;
use crate::producer_snapshot;

impl Log {
    /// Writes a snapshot of the producers, as of their end offset, unless the last one is of that offset. It is
    /// synced with the segment that it precedes; its checksum tells if a crash came before.
    pub(super) fn write_snapshot(&self, writer: &mut Writer) -> Result<(), StorageError> {
        let (offset, content) = {
            let producers = self.producers.lock();
            (producers.end_offset(), producer_snapshot::encode(&producers))
        };
        if writer.snapshot_offset.is_some_and(|newest| newest >= offset)
            || offset == 0
            || planted!(self.environment, SkipProducerSnapshot)
        {
            return Ok(());
        }
        let path = file_path(&self.dir, offset, producer_snapshot::SUFFIX);
        let disk = &*self.environment.disk;
        if !says(disk, &path, &content) {
            write_whole(disk, &path, &content)
                .map_err(|error| StorageError::io(&path, "write the producer snapshot", &error))?;
        }
        self.unsynced.names.store(true, Ordering::Release);
        writer.snapshot_offset = Some(offset);
        Ok(())
    }

    /// Replaces the file with the leader epochs. A kill leaves the old or the new one; a power cut may leave
    /// none until the next sync, and recovery then learns the epochs from the batches.
    pub(super) fn write_epochs(&self, epochs: &LeaderEpochs) -> Result<(), StorageError> {
        let path = self.dir.join(leader_epochs::FILE_NAME);
        replace_unsynced(&*self.environment.disk, &path, epochs_content(epochs.entries()).as_bytes())
            .map_err(|error| StorageError::io(&path, "write the leader epochs", &error))?;
        self.unsynced.epochs.store(true, Ordering::Release);
        self.unsynced.names.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether the file holds these leader epochs. A full disk then costs a log that is opened nothing.
    pub(super) fn says_epochs(&self, epochs: &LeaderEpochs) -> bool {
        let path = self.dir.join(leader_epochs::FILE_NAME);
        says(&*self.environment.disk, &path, epochs_content(epochs.entries()).as_bytes())
    }

    /// Removes the snapshots whose offset fits.
    pub(super) fn remove_snapshots(
        &self,
        offsets: &[Offset],
        is_doomed: impl Fn(Offset) -> bool,
    ) -> Result<(), StorageError> {
        for offset in offsets.iter().copied().filter(|offset| is_doomed(*offset)) {
            let path = file_path(&self.dir, offset, producer_snapshot::SUFFIX);
            match self.environment.disk.remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StorageError::io(&path, "remove the producer snapshot", &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The offsets of the snapshots in the folder, rising.
    pub(super) fn snapshot_offsets(&self) -> Result<Vec<Offset>, StorageError> {
        let entries = self.environment.disk.read_dir(&self.dir);
        let entries = entries.map_err(|error| StorageError::io(&self.dir, "list", &error))?;
        let offset_of = |name: &str| name.strip_suffix(producer_snapshot::SUFFIX)?.parse().ok();
        let mut offsets: Vec<Offset> = entries.iter().filter_map(|entry| offset_of(&entry.name)).collect();
        offsets.sort_unstable();
        Ok(offsets)
    }
}

/// Whether a file holds exactly this. One that cannot be read does not: to write it will tell why.
fn says(disk: &dyn Disk, path: &Path, content: &[u8]) -> bool {
    disk.read(path).is_ok_and(|found| found == content)
}

/// Replaces a small file. A kill or a full disk leaves the old content or the new; the sync is left to the caller.
pub(super) fn replace_unsynced(disk: &dyn Disk, path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    write_whole(disk, &temporary, content)?;
    disk.rename(&temporary, path)
}

pub(crate) fn write_whole(disk: &dyn Disk, path: &Path, content: &[u8]) -> std::io::Result<()> {
    let file = disk.open(path, OpenMode::CreateOrOpen)?;
    file.set_len(0)?;
    file.write_all_at(&[content], 0)
}

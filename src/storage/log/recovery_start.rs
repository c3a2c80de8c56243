//! `recovery-start` in a partition's folder: from where on the next start must look at the batches, whatever the
//! checkpoints and a mark of a clean stop say. Apache Kafka leaves a file of this name alone.
//!
//! Two things ask for it. After a sync that failed, Linux takes the pages for written: what is read back may be in
//! memory only, and no later sync brings it to the disk, so it has to be written again. And a recovery that begins
//! below the recovery point, because an index is missing, leaves indexes half made when it is interrupted, which
//! nobody would look at again.
//!
//! The file holds the version, the offset, and why, a line each.

use std::path::Path;
use std::sync::atomic::Ordering;

use klamm_io::Disk;
use klamm_model::Offset;

use super::Log;
use super::recovery::first_to_recover;
use super::snapshots::write_whole;
use crate::deletion::remove_if_there;
use crate::error::StorageError;
use crate::small_files::read_if_there;

const FILE_NAME: &str = "recovery-start";
const VERSION: &str = "0";
const REWRITE_BYTES: usize = 1 << 20;

/// Why a log must be recovered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// A sync failed: what is found has to be written again.
    FailedSync,
    /// The indexes from there on are made anew.
    LostIndex,
}

/// What the file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RecoveryStart {
    pub(super) offset: Offset,
    pub(super) cause: Cause,
}

impl RecoveryStart {
    /// Reads the file, if there is one. One that a crash has left half written asks for everything.
    pub(super) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<RecoveryStart>, StorageError> {
        let path = dir.join(FILE_NAME);
        let content = read_if_there(disk, &path, "read the start of the recovery")?;
        let everything = RecoveryStart { offset: 0, cause: Cause::FailedSync };
        Ok(content.map(|content| RecoveryStart::parse(&content).unwrap_or(everything)))
    }

    fn parse(content: &[u8]) -> Option<RecoveryStart> {
        let mut lines = std::str::from_utf8(content).ok()?.strip_suffix('\n')?.lines();
        let (version, offset, cause) = (lines.next()?, lines.next()?, lines.next()?);
        let cause = match cause {
            "failed-sync" => Cause::FailedSync,
            "lost-index" => Cause::LostIndex,
            _ => return None,
        };
        let offset = offset.parse().ok().filter(|offset| *offset >= 0)?;
        (version == VERSION && lines.next().is_none()).then_some(RecoveryStart { offset, cause })
    }

    fn content(self) -> String {
        let cause = match self.cause {
            Cause::FailedSync => "failed-sync",
            Cause::LostIndex => "lost-index",
        };
        format!("{VERSION}\n{}\n{cause}\n", self.offset)
    }

    /// Leaves the file for the next start, on the disk when this returns.
    pub(super) fn write(self, disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
        let path = dir.join(FILE_NAME);
        disk.replace(&path, self.content().as_bytes())
            .map_err(|error| StorageError::io(&path, "note the start of the recovery", &error))
    }
}

impl Log {
    /// From where on to recover, with what was noted before. A recovery that begins below the recovery point is
    /// noted first.
    pub(super) fn noted_start(
        &self,
        from: Option<Offset>,
        noted: Option<RecoveryStart>,
        recovery_point: Option<Offset>,
    ) -> Result<Option<Offset>, StorageError> {
        let offsets = from.into_iter().chain(noted.map(|noted| noted.offset));
        let Some(from) = offsets.min() else { return Ok(None) };
        let is_low = recovery_point.is_some_and(|point| from < point);
        if is_low && noted.is_none_or(|noted| from < noted.offset) {
            let cause = noted.map_or(Cause::LostIndex, |noted| noted.cause);
            RecoveryStart { offset: from, cause }.write(&*self.environment.disk, &self.dir)?;
        }
        self.unsynced.recovery_start.store(noted.is_some() || is_low, Ordering::Release);
        Ok(Some(from))
    }

    /// A sync failed. The next process must write again what this one cannot bring to the disk; a machine that was
    /// started anew reads what is there. So the note need not be synced, which would hardly work now either.
    pub(super) fn note_failed_sync(&self) {
        self.unsynced.failed_sync.store(true, Ordering::Release);
        if let Err(error) = self.note_failed_sync_again() {
            tracing::error!(
                partition = %self.topic_partition, %error,
                "a sync failed and this cannot be noted for the next start; trying again. Until the note is there, \
                 restart the machine and not only the process"
            );
        }
    }

    /// Writes the note if it is still to be written.
    pub(crate) fn note_failed_sync_again(&self) -> Result<(), StorageError> {
        if !self.unsynced.failed_sync.load(Ordering::Acquire) {
            return Ok(());
        }
        let start = RecoveryStart { offset: self.recovery_point(), cause: Cause::FailedSync };
        let path = self.dir.join(FILE_NAME);
        // What failed may have taken the log directory offline.
        write_whole(&*self.environment.unwatched_disk, &path, start.content().as_bytes())
            .map_err(|error| StorageError::io(&path, "note a failed sync in", &error))?;
        self.unsynced.failed_sync.store(false, Ordering::Release);
        Ok(())
    }

    /// Empties the indexes of the segments that recovery looks at, and removes the snapshots behind their start: made
    /// anew they are written in any case.
    pub(super) fn forget_what_recovery_makes(&self, from: Offset) -> Result<(), StorageError> {
        let segments = self.segments.load_full();
        let first = first_to_recover(&segments, from);
        segments[first..].iter().try_for_each(|segment| segment.empty_indexes())?;
        let base_offset = segments[first].base_offset();
        self.remove_snapshots(&self.snapshot_offsets()?, |offset| offset > base_offset)
    }

    /// Writes everything from the segment that holds the offset on once more, as it stands, so that a sync has
    /// something to bring to the disk.
    pub(super) fn rewrite_from(&self, offset: Offset) -> Result<(), StorageError> {
        if let Some(topic_id) = self.topic_id() {
            self.write_topic_id(topic_id)?;
        }
        self.write_epochs(&self.epochs.read())?;
        let segments = self.segments.load_full();
        for segment in &segments[first_to_recover(&segments, offset)..] {
            let (file, path) = (segment.file()?, segment.path());
            let failed = |error| StorageError::io(&path, "write once more", &error);
            let mut position = 0;
            while position < segment.size() {
                let len = usize::try_from(segment.size() - position).unwrap_or(usize::MAX).min(REWRITE_BYTES);
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, position).map_err(failed)?;
                file.write_all_at(&[&bytes], position).map_err(failed)?;
                position += len as u64;
            }
        }
        Ok(())
    }

    /// What the file asked for is done, and on the disk.
    pub(super) fn forget_recovery_start(&self) -> Result<(), StorageError> {
        if !self.unsynced.recovery_start.load(Ordering::Acquire) {
            return Ok(());
        }
        remove_if_there(&*self.environment.disk, &self.dir.join(FILE_NAME))?;
        self.sync_dir(&self.dir)?;
        self.unsynced.recovery_start.store(false, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read_and_a_wreck_asks_for_everything() {
        let disk = klamm_testing::SimulatedDisk::new(1);
        let dir = Path::new("/");
        assert_eq!(RecoveryStart::read(&disk, dir), Ok(None));
        for start in [
            RecoveryStart { offset: 17, cause: Cause::FailedSync },
            RecoveryStart { offset: 0, cause: Cause::LostIndex },
        ] {
            start.write(&disk, dir).unwrap();
            assert_eq!(RecoveryStart::read(&disk, dir), Ok(Some(start)));
        }
        for wreck in ["", "0\n", "0\n17\n", "0\n17\nfailed-sy", "0\n17\nfailed-sync", "1\n17\nlost-index\n"] {
            disk.replace(&dir.join(FILE_NAME), wreck.as_bytes()).unwrap();
            let found = RecoveryStart::read(&disk, dir).unwrap().unwrap();
            assert_eq!(found, RecoveryStart { offset: 0, cause: Cause::FailedSync }, "{wreck:?}");
        }
    }
}

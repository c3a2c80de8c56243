//! A segment that compaction makes: it has names of its own until it takes the place of older ones.

use std::io;
use std::path::Path;

use klamm_io::Disk;
use klamm_model::{Offset, TimestampMs};

use super::{LogSegment, SUFFIXES, SegmentPlace};
use crate::deletion::remove_if_there;
use crate::error::StorageError;
use crate::index_entry::{Entry, OffsetEntry, TimeEntry};
use crate::open_files::file_path;

/// The end of the name of a file that is not finished, and goes with the next start.
pub(crate) const CLEANED_SUFFIX: &str = ".cleaned";
/// The end of the name of a file that is whole, and takes the place of others with the next start if not before.
pub(crate) const SWAP_SUFFIX: &str = ".swap";

const CLEANED_SUFFIXES: [&str; 4] =
    [".log.cleaned", ".index.cleaned", ".timeindex.cleaned", ".txnindex.cleaned"];

impl LogSegment {
    /// A new segment under the names of an unfinished one. What an earlier attempt has left goes.
    pub(crate) fn create_cleaned(
        place: &SegmentPlace<'_>,
        base_offset: Offset,
    ) -> Result<LogSegment, StorageError> {
        let segment = LogSegment::open_named(place, base_offset, 0, CLEANED_SUFFIXES);
        segment.make_empty(0)?;
        Ok(segment)
    }

    /// When the file with the batches was last written, where that is known.
    pub(crate) fn modified_ms(&self) -> Result<Option<TimestampMs>, StorageError> {
        let failed = |error| StorageError::io(&self.path(), "look at", &error);
        self.file()?.modified_ms().map_err(failed)
    }

    /// Sets what [`LogSegment::modified_ms`] says.
    pub(crate) fn set_modified_ms(&self, modified_ms: TimestampMs) -> Result<(), StorageError> {
        let failed = |error| StorageError::io(&self.path(), "set the time of", &error);
        self.file()?.set_modified_ms(modified_ms).map_err(failed)
    }

    /// Bytes of the offset index and of the time index.
    pub(crate) fn index_sizes(&self) -> Result<(u64, u64), StorageError> {
        Ok((self.offsets.len()? * OffsetEntry::SIZE as u64, self.times.len()? * TimeEntry::SIZE as u64))
    }
}

/// Gives the files of a segment another ending in place of `from`. Those that it does not have are left out.
pub(crate) fn change_suffixes(
    disk: &dyn Disk,
    directory: &Path,
    base_offset: Offset,
    (from, to): (&str, &str),
) -> Result<(), StorageError> {
    for suffix in SUFFIXES {
        let old = file_path(directory, base_offset, &format!("{suffix}{from}"));
        let new = file_path(directory, base_offset, &format!("{suffix}{to}"));
        match disk.rename(&old, &new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StorageError::io(&old, "rename", &error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes the files of a segment that was to replace others. The one with the batches goes last: together with
/// any other it is taken for unfinished.
pub(crate) fn remove_replacement(
    disk: &dyn Disk,
    directory: &Path,
    base_offset: Offset,
) -> Result<(), StorageError> {
    for ending in [SWAP_SUFFIX, CLEANED_SUFFIX] {
        for suffix in SUFFIXES.iter().rev() {
            remove_if_there(disk, &file_path(directory, base_offset, &format!("{suffix}{ending}")))?;
        }
    }
    Ok(())
}

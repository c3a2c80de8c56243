//! What opening a log asks of a segment: where it ends, whether it is as it was closed, and counting it anew.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use klamm_model::Offset;

use super::{LargestTimestamp, LogSegment, Progress};
use crate::config::LogConfig;
use crate::error::StorageError;
use crate::walk::{Found, Scanned, Walk};

/// More bytes than `index.interval.bytes` of any sane topic: so much behind the last entry of the index of a
/// segment that was closed would be a wonder.
const UNINDEXED_BYTES_MAX: u64 = 1 << 20;

impl LogSegment {
    /// The first index that is obviously broken, and why. `next` is where the next segment begins.
    pub(crate) fn broken_index(
        &self,
        next: Option<Offset>,
    ) -> Result<Option<(PathBuf, String)>, StorageError> {
        let size = self.size();
        let is_here = |offset: Offset| self.can_hold(offset) && next.is_none_or(|next| offset < next);
        let is_near = |relative: u32| is_here(self.base_offset.saturating_add(i64::from(relative)));
        let problem = self
            .offsets
            .problem(|entry| u64::from(entry.position) < size && is_near(entry.relative_offset))?;
        if let Some(problem) = problem {
            return Ok(Some((self.offsets.slot().path(), problem)));
        }
        if let Some(problem) = self.times.problem(|entry| is_near(entry.relative_offset))? {
            return Ok(Some((self.times.slot().path(), problem)));
        }
        let problem = self.aborted.problem(|entry| is_here(entry.last_offset))?;
        Ok(problem.map(|problem| (self.aborted.slot().path(), problem)))
    }

    /// Empties the indexes, also on the disk.
    pub(crate) fn empty_indexes(&self) -> Result<(), StorageError> {
        self.offsets.reset()?;
        self.times.reset()?;
        self.aborted.reset()
    }

    /// Forgets all but the bytes of the files, so that a scan can count them again with [`LogSegment::add`].
    pub(crate) fn begin_recovery(&self) {
        self.offsets.recount();
        self.times.recount();
        self.aborted.recount();
        *self.progress.lock() = Progress {
            bytes_since_index_entry: 0,
            largest: Some(LargestTimestamp::none(self.base_offset)),
            first_timestamp: None,
        };
        self.formats.cut(0);
        self.size.store(0, Ordering::Release);
    }

    /// Writes index blocks that have gathered in a scan.
    pub(crate) fn continue_recovery(&self) -> Result<(), StorageError> {
        self.write_index_blocks()
    }

    /// The offset that follows the last batch, read from the last entry of the index on.
    pub(crate) fn read_next_offset(&self) -> Result<Offset, StorageError> {
        let (file, path, size) = (self.file()?, self.path(), self.size());
        let start = self.offsets.last()?.map_or(0, |entry| u64::from(entry.position));
        let start = if start < size { start } else { 0 };
        let mut next = self.base_offset;
        let mut walk = Walk::new(&*file, &path, start, size);
        while let Some(found) = walk.next_head()? {
            next = found.header.next_offset();
        }
        Ok(next)
    }

    /// Whether a cleaner, or a leader that had been cleaned, has left its traces: offsets without a record among
    /// those of the segment. Looks no further than its first bytes that are no valid batch.
    pub(crate) fn has_gaps(&self) -> Result<bool, StorageError> {
        let (file, path) = (self.file()?, self.path());
        // With checksums: what a power cut has left of a batch can look like one with fewer records.
        let mut walk = Walk::scan(&*file, &path, 0, self.size());
        let mut expected = self.base_offset;
        while let Scanned::Valid(Found { header, .. }, _) = walk.next_valid()? {
            let tells_first_offset = header.magic >= 2 || !header.is_compressed();
            let is_thinned =
                header.magic >= 2 && i64::from(header.record_count) < i64::from(header.last_offset_delta) + 1;
            if is_thinned || (tells_first_offset && header.base_offset > expected) {
                return Ok(true);
            }
            expected = header.next_offset();
        }
        Ok(false)
    }

    /// Whether the files agree that the log may end at this offset, without reading the log: a cheap check of
    /// what a checkpoint says.
    pub(crate) fn may_end_at(&self, end_offset: Offset) -> Result<bool, StorageError> {
        let is_above_index = match self.offsets.last()? {
            None => true,
            Some(entry) => {
                u64::from(entry.position) < self.size()
                    && self.base_offset + i64::from(entry.relative_offset) < end_offset
            }
        };
        let fits_size =
            if self.size() == 0 { end_offset == self.base_offset } else { end_offset > self.base_offset };
        Ok(is_above_index && fits_size && self.can_hold(end_offset - 1 + i64::from(self.size() == 0)))
    }

    /// Whether the segment ends with a whole batch just before this offset, and its indexes are those of its
    /// end: what a close leaves. Looks at nothing before the last index entry.
    pub(crate) fn ends_whole_at(&self, end_offset: Offset, config: &LogConfig) -> Result<bool, StorageError> {
        if !self.may_end_at(end_offset)?
            || self
                .times
                .last()?
                .is_some_and(|entry| self.base_offset + i64::from(entry.relative_offset) >= end_offset)
        {
            return Ok(false);
        }
        let size = self.size();
        let start = self.offsets.last()?.map_or(0, |entry| u64::from(entry.position));
        let (file, path) = (self.file()?, self.path());
        let mut walk = Walk::new(&*file, &path, start, size);
        let (mut next_offset, mut newest) = (self.base_offset, -1);
        while let Some(found) = walk.next_head()? {
            // An index with its last entries missing is none that a close has left, whatever the interval was.
            if found.position - start > UNINDEXED_BYTES_MAX.max(config.index_interval_bytes) {
                return Ok(false);
            }
            next_offset = found.header.next_offset();
            newest = found.header.max_timestamp.max(newest);
        }
        let has_newest_time = self.times.last()?.map_or(-1, |entry| entry.timestamp) >= newest;
        Ok(walk.position() == size && next_offset == end_offset && has_newest_time)
    }
}

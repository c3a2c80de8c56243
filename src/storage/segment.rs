//! One segment of a log: the file with the batches, and its three indexes.

mod aborted;
mod cleaned;
mod recovery;
mod times;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use klamm_io::File;
use klamm_model::{LeaderEpoch, Offset, TimestampMs};
use klamm_records::{Batch, BatchHeader};
use parking_lot::Mutex;

use crate::config::LogConfig;
use crate::entry_file::EntryFile;
use crate::error::StorageError;
use crate::formats::KnownFormats;
use crate::index_entry::{AbortedEntry, Entry, OffsetEntry, TimeEntry};
use crate::open_files::{FileSlot, OpenFiles};
use crate::walk::{Found, Walk};

pub(crate) const LOG_SUFFIX: &str = ".log";
pub(crate) const OFFSET_INDEX_SUFFIX: &str = ".index";
pub(crate) const TIME_INDEX_SUFFIX: &str = ".timeindex";
pub(crate) const TRANSACTION_INDEX_SUFFIX: &str = ".txnindex";

pub(crate) use cleaned::{CLEANED_SUFFIX, SWAP_SUFFIX, change_suffixes, remove_replacement};

/// The files of a segment.
pub(crate) const SUFFIXES: [&str; 4] =
    [LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX];

/// A record found by its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundOffset {
    /// Its offset.
    pub offset: Offset,
    /// Its timestamp.
    pub timestamp: TimestampMs,
    /// The epoch of the leader that appended it; none in old formats.
    pub leader_epoch: LeaderEpoch,
}

/// A segment. Readers use it while the one writer of the log adds to it.
pub(crate) struct LogSegment {
    base_offset: Offset,
    created_ms: TimestampMs,
    log: FileSlot,
    offsets: EntryFile<OffsetEntry>,
    times: EntryFile<TimeEntry>,
    aborted: EntryFile<AbortedEntry>,
    size: AtomicU64,
    is_removed: AtomicBool,
    formats: KnownFormats,
    progress: Mutex<Progress>,
}

/// The largest timestamp of a segment, and the last offset of the first batch that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LargestTimestamp {
    pub(crate) timestamp: TimestampMs,
    pub(crate) offset: Offset,
}

struct Progress {
    bytes_since_index_entry: u64,
    /// Read from the time index on first use.
    largest: Option<LargestTimestamp>,
    /// The largest timestamp of the first batch: what `segment.ms` counts from.
    first_timestamp: Option<TimestampMs>,
}

/// Where the files of segments are, and what opens them.
pub(crate) struct SegmentPlace<'a> {
    pub(crate) directory: &'a Arc<Path>,
    pub(crate) files: &'a Arc<OpenFiles>,
    pub(crate) now_ms: TimestampMs,
}

impl LogSegment {
    /// A segment whose file is there with so many bytes.
    pub(crate) fn open(place: &SegmentPlace<'_>, base_offset: Offset, size: u64) -> LogSegment {
        LogSegment::open_named(place, base_offset, size, SUFFIXES)
    }

    fn open_named(
        place: &SegmentPlace<'_>,
        base_offset: Offset,
        size: u64,
        suffixes: [&'static str; 4],
    ) -> LogSegment {
        let [log, offsets, times, aborted] =
            suffixes.map(|suffix| place.files.slot(place.directory, base_offset, suffix));
        LogSegment {
            base_offset,
            created_ms: place.now_ms,
            log,
            offsets: EntryFile::open(offsets),
            times: EntryFile::open(times),
            aborted: EntryFile::open(aborted),
            size: AtomicU64::new(size),
            is_removed: AtomicBool::new(false),
            formats: KnownFormats::default(),
            progress: Mutex::new(Progress {
                bytes_since_index_entry: 0,
                largest: None,
                first_timestamp: None,
            }),
        }
    }

    /// A segment whose file is there.
    pub(crate) fn open_file(
        place: &SegmentPlace<'_>,
        base_offset: Offset,
    ) -> Result<LogSegment, StorageError> {
        let segment = LogSegment::open(place, base_offset, 0);
        let size = segment.file()?.len();
        let size = size.map_err(|error| StorageError::io(&segment.path(), "open the log", &error))?;
        segment.size.store(size, Ordering::Release);
        // Most segments will not be read soon.
        segment.close_files();
        Ok(segment)
    }

    /// A new segment; its file is made, empty.
    pub(crate) fn create(
        place: &SegmentPlace<'_>,
        base_offset: Offset,
        config: &LogConfig,
    ) -> Result<LogSegment, StorageError> {
        let segment = LogSegment::open(place, base_offset, 0);
        segment.make_empty(if config.preallocate { config.segment_bytes } else { 0 })?;
        Ok(segment)
    }

    fn make_empty(&self, preallocated: u64) -> Result<(), StorageError> {
        let file = self.log.created("create the segment")?;
        let failed = |error| StorageError::io(&self.log.path(), "create the segment", &error);
        if file.len().map_err(failed)? != 0 {
            file.set_len(0).map_err(failed)?;
        }
        if preallocated > 0 {
            file.set_len(preallocated).map_err(failed)?;
        }
        // Left-overs of a segment of the same offset that was removed must not come back to life.
        self.empty_indexes()?;
        self.progress.lock().largest = Some(LargestTimestamp::none(self.base_offset));
        Ok(())
    }

    pub(crate) fn base_offset(&self) -> Offset {
        self.base_offset
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.log.path()
    }

    /// Whether a batch of V0 or V1 stands in a part, which begins with a batch.
    pub(crate) fn holds_old_formats(&self, file: &dyn File, part: Range<u64>) -> Result<bool, StorageError> {
        let path = self.path();
        self.formats.is_old_in(Walk::new(file, &path, part.start, part.end), part)
    }

    pub(crate) fn created_ms(&self) -> TimestampMs {
        self.created_ms
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    /// Says that the files are about to go, or to be replaced. Who reads may see that they are missing, but never
    /// another segment's in their place.
    pub(crate) fn set_removed(&self) {
        self.is_removed.store(true, Ordering::SeqCst);
        self.log.retire();
        self.offsets.slot().retire();
        self.times.slot().retire();
        self.aborted.slot().retire();
    }

    pub(crate) fn file(&self) -> Result<Arc<dyn File>, StorageError> {
        self.log.existing("open the log")
    }

    /// Whether an offset is near enough for the indexes, which hold relative ones.
    pub(crate) fn can_hold(&self, offset: Offset) -> bool {
        offset.checked_sub(self.base_offset).is_some_and(|delta| (0..=i64::from(i32::MAX)).contains(&delta))
    }

    /// Whether an index has its full size. One place of the time index is kept for the entry at the end.
    pub(crate) fn has_full_index(&self, config: &LogConfig) -> Result<bool, StorageError> {
        let offsets_max = config.segment_index_bytes / OffsetEntry::SIZE as u64;
        let times_max = config.segment_index_bytes / TimeEntry::SIZE as u64;
        Ok(self.offsets.len()? >= offsets_max || self.times.len()? + 1 >= times_max)
    }

    /// Writes bytes behind the last batch. They are not visible before [`LogSegment::add`].
    ///
    /// After a failure the file is cut back; [`WriteFailure::NotUndone`] says that even this failed.
    pub(crate) fn write(&self, parts: &[&[u8]]) -> Result<(), WriteFailure> {
        // Index blocks go first: when the disk is full the append fails before it has changed anything.
        self.write_index_blocks().map_err(WriteFailure::Undone)?;
        let file = self.file().map_err(WriteFailure::Undone)?;
        let position = self.size();
        file.write_all_at(parts, position).map_err(|error| {
            let written = StorageError::io(&self.path(), "append to", &error).at(position);
            match file.set_len(position) {
                Ok(()) => WriteFailure::Undone(written),
                Err(error) => {
                    let undo = StorageError::io(&self.path(), "cut a failed append off", &error).at(position);
                    WriteFailure::NotUndone(Box::new((written, undo)))
                }
            }
        })
    }

    fn write_index_blocks(&self) -> Result<(), StorageError> {
        self.offsets.write_block()?;
        self.times.write_block()?;
        self.aborted.write_block()
    }

    /// Counts a batch that stands behind the last one, in the indexes too, just as Kafka 4.4 does: when an
    /// entry is due, it holds the last offset of this batch and the position at which it begins.
    pub(crate) fn add(&self, header: &BatchHeader, config: &LogConfig) -> Result<(), StorageError> {
        let position = self.size();
        let mut largest = self.largest_timestamp()?;
        if header.max_timestamp > largest.timestamp {
            largest = LargestTimestamp { timestamp: header.max_timestamp, offset: header.last_offset() };
        }
        let is_due = {
            let mut progress = self.progress.lock();
            if position == 0 {
                progress.first_timestamp = Some(header.max_timestamp);
            }
            progress.largest = Some(largest);
            let is_due = progress.bytes_since_index_entry > config.index_interval_bytes;
            progress.bytes_since_index_entry =
                header.size as u64 + if is_due { 0 } else { progress.bytes_since_index_entry };
            is_due
        };
        if is_due && self.can_hold(header.last_offset()) && u32::try_from(position).is_ok() {
            self.offsets.len()?;
            self.offsets.push(OffsetEntry {
                relative_offset: (header.last_offset() - self.base_offset) as u32,
                position: position as u32,
            });
            self.add_time_entry(largest)?;
        }
        let end = position + header.size as u64;
        if header.magic >= 2 {
            self.formats.learn_only_v2(position..end);
        }
        self.size.store(end, Ordering::Release);
        Ok(())
    }

    /// An entry only if the timestamp is above that of the last one.
    fn add_time_entry(&self, largest: LargestTimestamp) -> Result<(), StorageError> {
        let last = self.times.last()?.map_or(-1, |entry| entry.timestamp);
        if largest.timestamp > last && self.can_hold(largest.offset) {
            let relative_offset = (largest.offset - self.base_offset) as u32;
            self.times.push(TimeEntry { timestamp: largest.timestamp, relative_offset });
        }
        Ok(())
    }

    /// Brings all indexes to the disk's files: the segment takes no more appends, or the log is closed.
    pub(crate) fn finish(&self) -> Result<(), StorageError> {
        self.add_time_entry(self.largest_timestamp()?)?;
        self.offsets.finish()?;
        self.times.finish()?;
        self.aborted.finish_unless_empty()?;
        self.trim()
    }

    /// Cuts off what follows the batches.
    pub(crate) fn trim(&self) -> Result<(), StorageError> {
        let file = self.file()?;
        let failed = |error| StorageError::io(&self.path(), "trim", &error);
        // A file that was allocated in advance.
        if file.len().map_err(failed)? != self.size() {
            file.set_len(self.size()).map_err(failed)?;
        }
        Ok(())
    }

    /// Waits until the batches are on the disk.
    pub(crate) fn sync_log(&self) -> Result<(), StorageError> {
        self.file()?.sync_data().map_err(|error| StorageError::io(&self.path(), "sync", &error))
    }

    /// Waits until the indexes are on the disk.
    pub(crate) fn sync_indexes(&self) -> Result<(), StorageError> {
        self.offsets.sync()?;
        self.times.sync()?;
        self.aborted.sync()
    }

    /// What retention by time looks at: the largest timestamp, or when the file was last written if its
    /// records have none or cannot be read; `None` if that is not known either.
    pub(crate) fn age_timestamp(&self) -> Result<Option<TimestampMs>, StorageError> {
        match self.largest_timestamp() {
            Ok(largest) if largest.timestamp >= 0 => Ok(Some(largest.timestamp)),
            Ok(_) => self.modified_ms(),
            // One that is damaged must not stay for ever, nor go before its time.
            Err(error) if error.is_of_content() => self.modified_ms(),
            Err(error) => Err(error),
        }
    }

    /// The largest timestamp of the first batch; -1 if there is none.
    pub(crate) fn first_timestamp(&self) -> Result<TimestampMs, StorageError> {
        if let Some(timestamp) = self.progress.lock().first_timestamp {
            return Ok(timestamp);
        }
        if self.size() == 0 {
            return Ok(-1);
        }
        let (file, path) = (self.file()?, self.path());
        let first = Walk::new(&*file, &path, 0, self.size()).next_head()?;
        let timestamp = first.map_or(-1, |found| found.header.max_timestamp);
        self.progress.lock().first_timestamp = Some(timestamp);
        Ok(timestamp)
    }

    /// A walk that begins at or before the batch that holds the offset: where the index says, or at 0.
    ///
    /// The index may be wrong, after decay of the disk or a bug of long ago. The batches are the truth: where
    /// none begins, or one that cannot belong to the entry, the walk begins at 0.
    fn walk_near<'a>(
        &self,
        file: &'a dyn File,
        path: &'a Path,
        offset: Offset,
        end: u64,
    ) -> Result<Walk<'a>, StorageError> {
        let relative = offset.saturating_sub(self.base_offset);
        let entry = self.offsets.last_where(|entry| i64::from(entry.relative_offset) <= relative)?;
        if let Some(entry) = entry.filter(|entry| u64::from(entry.position) < end) {
            let position = u64::from(entry.position);
            let mut walk = Walk::new(file, path, position, end);
            let entry_offset = self.base_offset + i64::from(entry.relative_offset);
            match walk.next_head() {
                Ok(Some(found)) if self.is_likely(file, &found, entry_offset) => {
                    walk.go_back_to(found.position);
                    return Ok(walk);
                }
                // The batch that is damaged, and not the index, is to blame where the batches before lead to it.
                Err(error) if error.is_of_content() && leads_to(file, path, position, end) => {
                    return Err(error);
                }
                _ => {}
            }
            tracing::warn!(segment = %path.display(), offset, "the offset index is wrong; searching without it");
        }
        Ok(Walk::new(file, path, 0, end))
    }

    /// Whether a batch can be the one that an index entry means.
    fn is_likely(&self, file: &dyn File, found: &Found, entry_offset: Offset) -> bool {
        let offset = found.header.base_offset;
        if found.header.magic >= 2 {
            return (self.base_offset..=entry_offset).contains(&offset);
        }
        // A compressed message of an old format tells only its last offset, so its checksum must decide.
        self.can_hold(offset) && self.batch(file, found).is_ok_and(|batch| batch.check_crc().is_ok())
    }

    /// The first batch that ends at or behind the offset, among those that begin before `end`.
    pub(crate) fn find(&self, offset: Offset, end: u64) -> Result<Option<Found>, StorageError> {
        let (file, path) = (self.file()?, self.path());
        let mut walk = self.walk_near(&*file, &path, offset, end)?;
        while let Some(found) = walk.next_head()? {
            if found.header.last_offset() >= offset {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The first record of this segment, at or behind `from`, whose timestamp is not below.
    pub(crate) fn find_timestamp(
        &self,
        timestamp: TimestampMs,
        from: Offset,
        end: u64,
    ) -> Result<Option<FoundOffset>, StorageError> {
        let entry = self.times.last_where(|entry| entry.timestamp <= timestamp)?;
        let below = entry.map_or(self.base_offset, |e| self.base_offset + i64::from(e.relative_offset));
        let (file, path) = (self.file()?, self.path());
        let mut walk = self.walk_near(&*file, &path, below.max(from), end)?;
        while let Some(found) = walk.next_head()? {
            if found.header.max_timestamp < timestamp {
                continue;
            }
            let fits = |offset, time| time >= timestamp && offset >= from;
            if let Some(found) = self.find_record(&*file, &found, fits)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The first record that has the largest timestamp of this segment.
    pub(crate) fn find_largest_timestamp(&self, end: u64) -> Result<Option<FoundOffset>, StorageError> {
        let largest = self.largest_timestamp()?;
        let (file, path) = (self.file()?, self.path());
        let mut walk = self.walk_near(&*file, &path, largest.offset, end)?;
        while let Some(found) = walk.next_head()? {
            if found.header.max_timestamp != largest.timestamp {
                continue;
            }
            return self.find_record(&*file, &found, |_, time| time == largest.timestamp);
        }
        Ok(None)
    }

    /// The first record of a batch that fits.
    fn find_record(
        &self,
        file: &dyn File,
        found: &Found,
        fits: impl FnMut(Offset, TimestampMs) -> bool,
    ) -> Result<Option<FoundOffset>, StorageError> {
        let record = self.batch(file, found)?.find_record(fits).map_err(|error| {
            StorageError::corrupt(&self.path(), "read records", error.to_string()).at(found.position)
        })?;
        let leader_epoch = found.header.partition_leader_epoch;
        Ok(record.map(|(offset, timestamp)| FoundOffset { offset, timestamp, leader_epoch }))
    }

    /// The first offset of a batch.
    pub(crate) fn first_offset_of(&self, found: &Found) -> Result<Offset, StorageError> {
        if found.header.magic >= 2 || !found.header.is_compressed() {
            return Ok(found.header.base_offset);
        }
        self.batch(&*self.file()?, found)?.first_offset().map_err(|error| {
            StorageError::corrupt(&self.path(), "read records", error.to_string()).at(found.position)
        })
    }

    /// Reads a whole batch.
    pub(crate) fn batch(&self, file: &dyn File, found: &Found) -> Result<Batch, StorageError> {
        let mut bytes = vec![0; found.header.size];
        file.read_exact_at(&mut bytes, found.position)
            .map_err(|error| StorageError::io(&self.path(), "read a batch", &error).at(found.position))?;
        Ok(Batch { header: found.header, bytes: Bytes::from(bytes) })
    }

    /// Removes the batch that holds the offset and all behind it.
    pub(crate) fn truncate(&self, offset: Offset) -> Result<(), StorageError> {
        let Some(found) = self.find(offset, self.size())? else { return Ok(()) };
        let relative = offset - self.base_offset;
        self.offsets.truncate(|entry| i64::from(entry.relative_offset) < relative)?;
        self.times.truncate(|entry| i64::from(entry.relative_offset) < relative)?;
        self.aborted.truncate(|entry| entry.last_offset < offset)?;
        self.cut(found.position)?;
        // The last entry of the time index may be older than the largest timestamp that is left.
        let largest = self.scan_largest_timestamp()?;
        let mut progress = self.progress.lock();
        progress.largest = Some(largest);
        progress.bytes_since_index_entry = 0;
        if found.position == 0 {
            progress.first_timestamp = None;
        }
        Ok(())
    }

    fn cut(&self, len: u64) -> Result<(), StorageError> {
        self.formats.cut(len);
        self.size.store(len, Ordering::Release);
        self.file()?.set_len(len).map_err(|error| StorageError::io(&self.path(), "truncate", &error).at(len))
    }

    fn scan_largest_timestamp(&self) -> Result<LargestTimestamp, StorageError> {
        let mut largest = match self.times.last()? {
            None => LargestTimestamp::none(self.base_offset),
            Some(entry) => LargestTimestamp {
                timestamp: entry.timestamp,
                offset: self.base_offset + i64::from(entry.relative_offset),
            },
        };
        let (file, path) = (self.file()?, self.path());
        let mut walk = self.walk_near(&*file, &path, largest.offset, self.size())?;
        while let Some(Found { header, .. }) = walk.next_head()? {
            if header.max_timestamp > largest.timestamp {
                largest = LargestTimestamp { timestamp: header.max_timestamp, offset: header.last_offset() };
            }
        }
        Ok(largest)
    }

    /// Closes the files until they are used again.
    pub(crate) fn close_files(&self) {
        self.log.close();
        self.offsets.slot().close();
        self.times.slot().close();
        self.aborted.slot().close();
    }
}

/// Whether the batches from the beginning on are followed by one at this position.
fn leads_to(file: &dyn File, path: &Path, position: u64, end: u64) -> bool {
    let mut walk = Walk::new(file, path, 0, end);
    while walk.position() < position {
        if !matches!(walk.next_head(), Ok(Some(_))) {
            return false;
        }
    }
    walk.position() == position
}

impl LargestTimestamp {
    fn none(base_offset: Offset) -> LargestTimestamp {
        LargestTimestamp { timestamp: -1, offset: base_offset }
    }
}

/// How a write failed.
#[derive(Debug)]
pub(crate) enum WriteFailure {
    /// The file is as it was.
    Undone(StorageError),
    /// The file may hold a part of what was written, and could not be cut: first why the write failed, then why
    /// cutting did.
    NotUndone(Box<(StorageError, StorageError)>),
}

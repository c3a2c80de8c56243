//! What compaction needs of a log, and how the segments that it makes take the place of older ones.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use klamm_io::Disk;
use klamm_model::{Offset, ProducerId};

use super::{Log, NEVER_CLEANED, Writer};
use crate::cleaner::LastRecord;
use crate::deletion::DELETED_SUFFIX;
use crate::error::StorageError;
use crate::index_entry::AbortedEntry;
use crate::open_files::file_path;
use crate::planted::planted;
use crate::segment::{
    CLEANED_SUFFIX, LogSegment, SUFFIXES, SWAP_SUFFIX, change_suffixes, remove_replacement,
};

/// The segments of a log as they were at a moment.
#[derive(Clone)]
pub(crate) struct CleaningView {
    pub(crate) segments: Arc<Vec<Arc<LogSegment>>>,
    /// Batches that were read before another truncation may never have been.
    truncations: u64,
}

impl CleaningView {
    /// The segments from the one that holds `from` on, as far as they begin below `to`.
    pub(crate) fn between(&self, from: Offset, to: Offset) -> &[Arc<LogSegment>] {
        let first = self.segments.partition_point(|segment| segment.base_offset() <= from).saturating_sub(1);
        let end = self.segments.partition_point(|segment| segment.base_offset() < to);
        if from < to { self.segments.get(first..end).unwrap_or_default() } else { &[] }
    }
}

/// What became of an attempt to replace segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replacement {
    Done,
    /// The log is no longer what was compacted: retention, a truncation, a deletion, a move or a stop came between.
    LogHasChanged,
}

impl Log {
    /// Up to where the log was compacted: below, each key stands once. `None` if it never was.
    pub fn cleaned_offset(&self) -> Option<Offset> {
        Some(self.cleaned_offset.load(Ordering::Acquire)).filter(|offset| *offset != NEVER_CLEANED)
    }

    pub(crate) fn cleaning_view(&self) -> CleaningView {
        let writer = self.writer.lock();
        CleaningView { segments: self.segments.load_full(), truncations: writer.truncations }
    }

    /// Notes up to where the log was compacted, unless it was truncated meanwhile.
    pub(crate) fn set_cleaned_offset(&self, view: &CleaningView, offset: Offset) -> bool {
        let writer = self.writer.lock();
        let is_current = writer.truncations == view.truncations;
        if is_current {
            self.cleaned_offset.store(offset, Ordering::Release);
        }
        is_current
    }

    /// The last record of each producer that is remembered: compaction must leave a trace of it.
    pub(crate) fn last_records_of_producers(&self) -> BTreeMap<ProducerId, LastRecord> {
        let producers = self.producers.lock();
        let last = |state: &crate::producers::ProducerState| {
            let data_offset = state.batches.back().map(|batch| batch.last_offset);
            (state.id, LastRecord { data_offset, epoch: state.epoch })
        };
        producers.iter().map(last).collect()
    }

    /// Makes an empty segment that does not belong to the log yet.
    pub(crate) fn create_cleaned_segment(&self, base_offset: Offset) -> Result<LogSegment, StorageError> {
        self.check_writable("compact")?;
        LogSegment::create_cleaned(&self.place(), base_offset)
    }

    /// Removes what a round that was given up has made.
    pub(crate) fn remove_cleaned_segment(&self, base_offset: Offset) -> Result<(), StorageError> {
        self.check_writable("compact")?;
        remove_replacement(&*self.environment.disk, &self.dir, base_offset)
    }

    /// The aborted transactions that end at or behind `from` and begin below `to`, as the indexes of these
    /// segments and those behind them list them.
    pub(crate) fn aborted_entries(
        view: &CleaningView,
        from: Offset,
        to: Offset,
    ) -> Result<Vec<AbortedEntry>, StorageError> {
        let first = view.segments.partition_point(|segment| segment.base_offset() <= from).saturating_sub(1);
        let mut found = Vec::new();
        for segment in &view.segments[first..] {
            if segment.aborted_transactions(from, to, &mut found)? {
                break;
            }
        }
        Ok(found)
    }

    /// Puts what is below an offset on the disk, and says so in the checkpoint. Recovery then never looks at
    /// what is about to be compacted, and cannot take its gaps for losses.
    pub(crate) fn sync_before_cleaning(&self, offset: Offset) -> Result<(), StorageError> {
        if self.recovery_point() < offset {
            self.flush_rolled()?;
        }
        self.write_recovery_points()
    }

    /// Puts the finished segment at `old[0]`'s offset, whose files still end in `.cleaned`, in the place of
    /// `old`, as Kafka does: it becomes `.swap`, the old files `.deleted`, and then it loses its ending. From the
    /// first step's end on a start after a crash completes the replacement; before, it undoes it.
    ///
    /// When a step fails the others are undone, and the old segments serve on. If that fails too, the log goes
    /// offline.
    pub(crate) fn replace_segments(
        &self,
        view: &CleaningView,
        old: &[Arc<LogSegment>],
        size: u64,
    ) -> Result<Replacement, StorageError> {
        let writer = self.writer.lock();
        self.check_writable("compact")?;
        let base_offset = old[0].base_offset();
        let segments = self.segments.load_full();
        let first = segments.partition_point(|segment| segment.base_offset() < base_offset);
        let is_same = segments.get(first..first + old.len()).is_some_and(|found| {
            found.iter().zip(old).all(|(found, old)| Arc::ptr_eq(found, old))
                && first + old.len() < segments.len()
        });
        if !is_same || writer.truncations != view.truncations || self.is_moving() {
            return Ok(Replacement::LogHasChanged);
        }
        let disk = &*self.environment.disk;
        let mut renames = Renames::default();
        if planted!(self.environment, SwapBeforeClean) {
            renames.put_away(disk, &self.dir, old)?;
        }
        let renamed = change_suffixes(disk, &self.dir, base_offset, (CLEANED_SUFFIX, SWAP_SUFFIX))
            .and_then(|()| self.sync_dir(&self.dir));
        if let Err(error) = renamed {
            // The next start would complete it, even if other records stood there by then.
            remove_replacement(disk, &self.dir, base_offset).map_err(|error| self.set_offline(error))?;
            return Err(error);
        }
        old.iter().for_each(|segment| segment.set_removed());
        // What readers of the old segments learn from now on is void.
        self.positions.clear();
        let swapped = renames.swap(disk, &self.dir, old);
        let replaced = match &swapped {
            Ok(()) => vec![Arc::new(LogSegment::open(&self.place(), base_offset, size))],
            Err(_) => {
                renames
                    .undo(disk)
                    .and_then(|()| remove_replacement(disk, &self.dir, base_offset))
                    .map_err(|error| self.set_offline(error))?;
                let again = |old: &Arc<LogSegment>| {
                    Arc::new(LogSegment::open(&self.place(), old.base_offset(), old.size()))
                };
                old.iter().map(again).collect()
            }
        };
        let mut list = segments[..first].to_vec();
        list.extend(replaced);
        list.extend_from_slice(&segments[first + old.len()..]);
        self.segments.store(Arc::new(list));
        old.iter().for_each(|segment| segment.close_files());
        swapped?;
        self.forget_replaced(&writer, old, renames.deleted)?;
        Ok(Replacement::Done)
    }

    /// Lets the files that were replaced go later, and makes the new names durable.
    fn forget_replaced(
        &self,
        writer: &Writer,
        old: &[Arc<LogSegment>],
        deleted: Vec<PathBuf>,
    ) -> Result<(), StorageError> {
        let now_ms = self.environment.clock.now_ms();
        let due_ms = now_ms.saturating_add(self.config.load().file_delete_delay_ms);
        self.environment.deletions.add_files(deleted, due_ms);
        self.unsynced.names.store(true, Ordering::Release);
        // No segment begins there any more.
        let snapshots: Vec<Offset> = old[1..].iter().map(|segment| segment.base_offset()).collect();
        self.remove_snapshots(&snapshots, |offset| Some(offset) != writer.snapshot_offset)?;
        self.sync_dir(&self.dir)
    }
}

/// Renames that were done, so that they can be undone.
#[derive(Default)]
struct Renames {
    /// Old names and new ones.
    done: Vec<(PathBuf, PathBuf)>,
    /// What is to be removed later.
    deleted: Vec<PathBuf>,
}

impl Renames {
    /// Renames old segments for deletion.
    fn put_away(
        &mut self,
        disk: &dyn Disk,
        directory: &Path,
        old: &[Arc<LogSegment>],
    ) -> Result<(), StorageError> {
        for segment in old {
            for suffix in SUFFIXES {
                let from = file_path(directory, segment.base_offset(), suffix);
                let to = file_path(directory, segment.base_offset(), &format!("{suffix}{DELETED_SUFFIX}"));
                if self.rename(disk, from, to.clone())? {
                    self.deleted.push(to);
                }
            }
        }
        Ok(())
    }

    /// Renames old segments for deletion, and gives the one that replaces them its final name.
    fn swap(
        &mut self,
        disk: &dyn Disk,
        directory: &Path,
        old: &[Arc<LogSegment>],
    ) -> Result<(), StorageError> {
        self.put_away(disk, directory, old)?;
        for suffix in SUFFIXES {
            let base_offset = old[0].base_offset();
            let from = file_path(directory, base_offset, &format!("{suffix}{SWAP_SUFFIX}"));
            self.rename(disk, from, file_path(directory, base_offset, suffix))?;
        }
        Ok(())
    }

    /// Returns whether the file was there.
    fn rename(&mut self, disk: &dyn Disk, from: PathBuf, to: PathBuf) -> Result<bool, StorageError> {
        match disk.rename(&from, &to) {
            Ok(()) => self.done.push((from, to)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(StorageError::io(&from, "rename", &error)),
        }
        Ok(true)
    }

    fn undo(&self, disk: &dyn Disk) -> Result<(), StorageError> {
        for (from, to) in self.done.iter().rev() {
            disk.rename(to, from).map_err(|error| StorageError::io(to, "rename back", &error))?;
        }
        Ok(())
    }
}

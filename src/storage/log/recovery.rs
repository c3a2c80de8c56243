//! Recovery after an unclean stop: which batches are whole, and what they say.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use klamm_io::{File, OpenMode};
use klamm_model::Offset;
use klamm_records::{Batch, BatchHeader};

use super::append::marker_of;
use super::gaps::Gap;
use super::{Log, Writer};
use crate::error::{StorageError, StorageErrorKind};
use crate::open_files::file_path;
use crate::planted::planted;
use crate::producer_snapshot;
use crate::producers::Producers;
use crate::segment::{LOG_SUFFIX, LogSegment};
use crate::walk::{Found, Scanned, Walk};

/// What a recovery has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Segments that were scanned.
    pub segments: usize,
    /// Bytes that were checked.
    pub scanned_bytes: u64,
    /// Bytes that were no whole batches and were cut off, later segments included.
    pub cut_bytes: u64,
}

/// Follows a recovery: is told how many more bytes were checked, and says whether it goes on.
pub(crate) type Progress<'a> = dyn Fn(u64) -> bool + 'a;

/// How many bytes are checked between two looks at whether the recovery goes on.
const STEP_BYTES: u64 = 1 << 20;

/// Why the log must end with a segment.
enum Wreck {
    /// The segment ends in bytes that are no batch.
    NoBatch {
        problem: String,
        /// Where the rest was copied to, if there are whole batches in it.
        kept: Option<PathBuf>,
    },
    /// These offsets are missing before the next segment.
    Lost(Range<Offset>),
}

impl Log {
    /// How many bytes [`Log::recover`] checks from an offset on.
    pub(super) fn bytes_to_recover(&self, from: Offset) -> u64 {
        let segments = self.segments.load();
        segments[first_to_recover(&segments, from)..].iter().map(|segment| segment.size()).sum()
    }

    /// Checks all batches from the segment that holds the offset on, cuts the log at the first one that is not
    /// whole, and makes indexes, leader epochs and producer states anew from what is left.
    /// `recovery_point` is what was on the disk before the stop; `from` may be below it.
    pub(super) fn recover(
        &self,
        from: Offset,
        recovery_point: Offset,
        progress: &Progress<'_>,
    ) -> Result<Recovery, StorageError> {
        let mut writer = self.writer.lock();
        let segments = self.segments.load_full();
        let first = first_to_recover(&segments, from);
        let mut recovery = Recovery::default();
        *self.producers.lock() = self.producers_at(&segments[..first], segments[first].base_offset())?;
        let mut last = first;
        for (index, segment) in segments.iter().enumerate().skip(first) {
            last = index;
            let size = segment.size();
            let next = segments.get(index + 1).map(|next| next.base_offset());
            let mut wreck = self.recover_segment(segment, progress)?;
            match next {
                Some(_) => segment.finish()?,
                // It takes appends, and its last index entries stay in memory until there are enough for a write.
                None => segment.trim()?,
            }
            if wreck.is_none() {
                wreck = self.find_loss(&segments, index, recovery_point)?;
            }
            recovery.segments += 1;
            recovery.scanned_bytes += segment.size();
            recovery.cut_bytes += size - segment.size();
            tracing::debug!(
                partition = %self.topic_partition, base_offset = segment.base_offset(), bytes = segment.size(),
                "checked segment {} of {}", index + 1 - first, segments.len() - first
            );
            if let Some(wreck) = wreck {
                self.tell_of_cut(segment, size, &wreck, &segments[index + 1..]);
                break;
            }
            if let Some(next) = next {
                self.producers.lock().set_end_offset(next);
                self.replace_snapshot(&mut writer)?;
            }
        }
        recovery.cut_bytes += self.set_aside(&segments[last + 1..])?;
        self.segments.store(Arc::new(segments[..=last].to_vec()));
        let end_offset = self.producers.lock().end_offset().max(segments[last].base_offset());
        self.producers.lock().set_end_offset(end_offset);
        let given_again = i64::from(planted!(self.environment, ReuseOffset));
        self.publish_end((end_offset - given_again).max(0), &segments[last]);
        Ok(recovery)
    }

    fn tell_of_cut(&self, segment: &LogSegment, size: u64, wreck: &Wreck, behind: &[Arc<LogSegment>]) {
        let (path, cut_bytes) = (segment.path(), size - segment.size());
        let (partition, position) = (&self.topic_partition, segment.size());
        let bytes_behind: u64 = behind.iter().map(|segment| segment.size()).sum();
        let end_offset = self.producers.lock().end_offset();
        match wreck {
            Wreck::NoBatch { problem, kept: None } if bytes_behind == 0 => tracing::warn!(
                %partition, segment = %path.display(), position, cut_bytes, problem, end_offset,
                "the segment ends in bytes that are no batch, as after a stop in the middle of a write; they are \
                 cut off"
            ),
            Wreck::NoBatch { problem, kept: None } => tracing::error!(
                %partition, segment = %path.display(), position, cut_bytes, problem, end_offset, bytes_behind,
                "the segment ends in bytes that are no batch, and later segments follow. The log ends before them \
                 now; they are out of service and kept beside the log. Check the disk, and take the records from \
                 there or from another replica"
            ),
            Wreck::NoBatch { problem, kept: Some(kept) } => tracing::error!(
                %partition, segment = %path.display(), position, cut_bytes, problem, end_offset, bytes_behind,
                kept = %kept.display(), "the segment is damaged in its middle: whole batches stand behind the \
                 damage. The log ends before it now, and what follows it was kept; check the disk, and take the \
                 records from there or from another replica"
            ),
            Wreck::Lost(gap) => {
                let problem = format!("the records from {} to {} are missing", gap.start, gap.end - 1);
                tracing::error!(
                    %partition, segment = %path.display(), position, problem, bytes_behind,
                    "records between this segment and the next were not yet on the disk when the machine stopped. \
                     The log ends before them now; what was written behind them is out of service and kept beside \
                     the log"
                );
            }
        }
    }

    /// Takes segments out of the log, the last one first, but keeps them beside it. Returns how many bytes.
    fn set_aside(&self, segments: &[Arc<LogSegment>]) -> Result<u64, StorageError> {
        let mut bytes = 0;
        for segment in segments.iter().rev() {
            bytes += segment.size();
            let kept = crate::deletion::set_segment_aside(
                &*self.environment.disk,
                &self.dir,
                segment.base_offset(),
            )?;
            tracing::error!(
                partition = %self.topic_partition, base_offset = segment.base_offset(), bytes = segment.size(),
                kept = %kept.display(), "the records of a segment behind the cut are out of service; the file may \
                 be their only copy: remove it only when they are found elsewhere or not needed"
            );
        }
        Ok(bytes)
    }

    /// The gap behind a segment that was just checked, if the stop has certainly made it. One that it may have made
    /// is told of, and stays.
    fn find_loss(
        &self,
        segments: &[Arc<LogSegment>],
        index: usize,
        recovery_point: Offset,
    ) -> Result<Option<Wreck>, StorageError> {
        let Some(next) = segments.get(index + 1).map(|next| next.base_offset()) else { return Ok(None) };
        let gap = self.producers.lock().end_offset()..next;
        if gap.is_empty() || !segments[index].can_hold(next) {
            return Ok(None);
        }
        match self.judge_gap(segments, &gap, recovery_point)? {
            Gap::Legal => Ok(None),
            Gap::Lost => Ok(Some(Wreck::Lost(gap))),
            Gap::Doubtful => {
                tracing::error!(
                    partition = %self.topic_partition, segment = %segments[index].path().display(),
                    "there are no records from {} to {} behind this segment. The log was compacted once, which \
                     explains it, but a power cut may have taken them; all other records are served. If records \
                     are missing, take them from another replica or their producer", gap.start, gap.end - 1
                );
                Ok(None)
            }
        }
    }

    /// Returns what is wrong with the first batch that is not whole, if there is one.
    fn recover_segment(
        &self,
        segment: &LogSegment,
        progress: &Progress<'_>,
    ) -> Result<Option<Wreck>, StorageError> {
        let config = self.config.load_full();
        let (file, path, size) = (segment.file()?, segment.path(), segment.size());
        segment.begin_recovery();
        let mut producers = self.producers.lock();
        let end_offset = producers.end_offset().max(segment.base_offset());
        producers.set_end_offset(end_offset);
        let mut epoch = None;
        let mut walk = Walk::scan(&*file, &path, 0, size);
        let mut told = 0;
        let problem = loop {
            let (found, batch) = match walk.next_valid()? {
                Scanned::End => break None,
                Scanned::Invalid(problem) => break Some(problem),
                Scanned::Valid(found, batch) => (found, batch),
            };
            let header = &found.header;
            if let Some(problem) = misplacement(segment, header, producers.end_offset()) {
                break Some(problem);
            }
            let marker = match batch.as_ref().map_or(Ok(None), marker_of) {
                Ok(marker) => marker,
                Err(problem) => break Some(problem),
            };
            segment.add(header, &config)?;
            if header.magic >= 2 && epoch < Some(header.partition_leader_epoch) {
                self.learn_epoch(header);
                epoch = Some(header.partition_leader_epoch);
            }
            if let Some(completed) = producers.apply(header, marker) {
                segment.add_transaction(&completed)?;
            }
            if segment.size() - told >= STEP_BYTES {
                self.go_on(progress, segment.size() - told)?;
                told = segment.size();
                segment.continue_recovery()?;
            }
        };
        self.go_on(progress, size - told)?;
        let wreck = match problem {
            None => None,
            Some(problem) => {
                let found = walk.find_behind(segment.size(), producers.end_offset())?;
                let kept = found.map(|found| self.keep_rest(segment, &*file, size, &found)).transpose()?;
                Some(Wreck::NoBatch { problem, kept })
            }
        };
        drop(producers);
        Ok(wreck)
    }

    fn go_on(&self, progress: &Progress<'_>, bytes: u64) -> Result<(), StorageError> {
        if progress(bytes) {
            return Ok(());
        }
        Err(StorageError::new(&self.dir, "check the log in", StorageErrorKind::Recovering))
    }

    /// Copies what stands behind the last whole batch of a segment to a file beside it, durably.
    fn keep_rest(
        &self,
        segment: &LogSegment,
        file: &dyn File,
        size: u64,
        found: &Found,
    ) -> Result<PathBuf, StorageError> {
        let from = segment.size();
        let disk = &*self.environment.disk;
        let suffix = format!(".{from}{LOG_SUFFIX}");
        let kept = crate::deletion::free_name(disk, &self.dir, segment.base_offset(), &suffix)?;
        let failed = |error| StorageError::io(&kept, "keep what follows a damaged batch in", &error);
        let copy = disk.open(&kept, OpenMode::CreateOrOpen).map_err(failed)?;
        copy.set_len(0).map_err(failed)?;
        let mut buffer = vec![0; STEP_BYTES as usize];
        let mut position = from;
        while position < size {
            let count = (size - position).min(STEP_BYTES) as usize;
            let read = |error| StorageError::io(&segment.path(), "read the log", &error).at(position);
            file.read_exact_at(&mut buffer[..count], position).map_err(read)?;
            copy.write_all_at(&[&buffer[..count]], position - from).map_err(failed)?;
            position += count as u64;
        }
        copy.sync_data().map_err(failed)?;
        self.sync_dir(&self.dir)?;
        tracing::warn!(
            partition = %self.topic_partition, segment = %segment.path().display(), position = found.position,
            offset = found.header.base_offset, "here whole batches begin again"
        );
        Ok(kept)
    }

    /// The file may be older than a truncation, and then tells an earlier epoch of what was written in place of the
    /// old: the batches are right.
    fn learn_epoch(&self, header: &BatchHeader) {
        let mut epochs = self.epochs.write();
        if epochs.epoch_of(header.base_offset) < Some(header.partition_leader_epoch) {
            epochs.truncate_from_end(header.base_offset);
            epochs.assign(header.partition_leader_epoch, header.base_offset);
        }
    }

    /// As [`Log::write_snapshot`], also where there is one of that offset but another content: it may be a wreck.
    fn replace_snapshot(&self, writer: &mut Writer) -> Result<(), StorageError> {
        writer.snapshot_offset = None;
        self.write_snapshot(writer)
    }

    pub(super) fn remove_snapshots_above(
        &self,
        writer: &mut Writer,
        end_offset: Offset,
    ) -> Result<(), StorageError> {
        let offsets = self.snapshot_offsets()?;
        self.remove_snapshots(&offsets, |offset| offset > end_offset)?;
        writer.snapshot_offset = offsets.into_iter().rfind(|offset| *offset <= end_offset);
        Ok(())
    }

    /// Sets the producers to what they were at an offset: from the newest good snapshot up to there, and from
    /// the batches behind it.
    pub(super) fn reload_producers(
        &self,
        writer: &mut Writer,
        end_offset: Offset,
    ) -> Result<(), StorageError> {
        self.remove_snapshots_above(writer, end_offset)?;
        let producers = self.producers_at(&self.segments.load(), end_offset)?;
        *self.producers.lock() = producers;
        Ok(())
    }

    fn producers_at(
        &self,
        segments: &[Arc<LogSegment>],
        end_offset: Offset,
    ) -> Result<Producers, StorageError> {
        let mut producers = self.newest_snapshot(end_offset)?;
        let from = producers.end_offset();
        let first = segments.partition_point(|segment| segment.base_offset() <= from).saturating_sub(1);
        for segment in segments.iter().skip(first) {
            if producers.end_offset() >= end_offset || segment.base_offset() >= end_offset {
                break;
            }
            self.replay(segment, &mut producers, end_offset)?;
        }
        producers.set_end_offset(end_offset);
        Ok(producers)
    }

    /// The producers as the newest readable snapshot up to an offset says; without one, none, from the start of
    /// the log on.
    fn newest_snapshot(&self, end_offset: Offset) -> Result<Producers, StorageError> {
        let now_ms = self.environment.clock.now_ms();
        for offset in self.snapshot_offsets()?.into_iter().rev().filter(|offset| *offset <= end_offset) {
            let path = file_path(&self.dir, offset, producer_snapshot::SUFFIX);
            let content = self.environment.disk.read(&path);
            let content =
                content.map_err(|error| StorageError::io(&path, "read the producer snapshot", &error))?;
            match producer_snapshot::decode(&content) {
                Ok(states) => {
                    let mut producers = Producers::starting_at(offset);
                    states.into_iter().for_each(|state| producers.insert(state));
                    producers.expire(now_ms, self.environment.producer_expiration_ms);
                    return Ok(producers);
                }
                Err(problem) => {
                    tracing::warn!(path = %path.display(), problem, "the producer snapshot is broken; using an earlier one");
                    self.remove_snapshots(&[offset], |_| true)?;
                }
            }
        }
        Ok(Producers::starting_at(self.log_start_offset.load(Ordering::Acquire)))
    }

    /// Follows the batches of a segment between the producers' end and an offset.
    fn replay(
        &self,
        segment: &LogSegment,
        producers: &mut Producers,
        end_offset: Offset,
    ) -> Result<(), StorageError> {
        let (file, path) = (segment.file()?, segment.path());
        let start = segment.find(producers.end_offset(), segment.size())?;
        let Some(Found { position, .. }) = start else { return Ok(()) };
        let mut walk = Walk::new(&*file, &path, position, segment.size());
        while let Some(found) = walk.next_whole_head()? {
            if found.header.last_offset() >= end_offset {
                break;
            }
            let marker = self.read_marker(segment, &*file, &found)?;
            producers.apply(&found.header, marker);
        }
        Ok(())
    }

    fn read_marker(
        &self,
        segment: &LogSegment,
        file: &dyn File,
        found: &Found,
    ) -> Result<Option<crate::producers::Marker>, StorageError> {
        if !found.header.is_control() || !found.header.has_producer_id() {
            return Ok(None);
        }
        let batch: Batch = segment.batch(file, found)?;
        marker_of(&batch).map_err(|problem| {
            StorageError::corrupt(&segment.path(), "read a marker", problem).at(found.position)
        })
    }
}

/// The number of the segment that holds an offset.
pub(super) fn first_to_recover(segments: &[Arc<LogSegment>], from: Offset) -> usize {
    segments.partition_point(|segment| segment.base_offset() <= from).saturating_sub(1)
}

/// What is wrong with where a batch stands, whose checksum does not cover its offset.
fn misplacement(segment: &LogSegment, header: &BatchHeader, end_offset: Offset) -> Option<String> {
    let (base_offset, last_offset) = (header.base_offset, header.last_offset());
    if header.last_offset_delta < 0 || !segment.can_hold(last_offset) || last_offset < end_offset {
        return Some(format!(
            "the batch at offset {base_offset} does not belong here, where offset {end_offset} is expected"
        ));
    }
    None
}

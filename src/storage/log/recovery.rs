//! Recovery after an unclean stop: which batches are whole, and what they say.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use klamm_io::File;
use klamm_model::Offset;
use klamm_records::{Batch, BatchHeader};

use super::append::marker_of;
use super::{Log, Writer};
use crate::error::StorageError;
use crate::open_files::file_path;
use crate::producer_snapshot;
use crate::producers::Producers;
use crate::segment::LogSegment;
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

impl Log {
    /// Checks all batches from the segment that holds the offset on, cuts the log at the first one that is not
    /// whole, and makes indexes, leader epochs and producer states anew from what is left.
    pub(super) fn recover(&self, from: Offset) -> Result<Recovery, StorageError> {
        let mut writer = self.writer.lock();
        let segments = self.segments.load_full();
        let first = segments.partition_point(|segment| segment.base_offset() <= from).saturating_sub(1);
        let mut recovery = Recovery::default();
        *self.producers.lock() = self.producers_at(&segments[..first], segments[first].base_offset())?;
        let mut last = first;
        for (index, segment) in segments.iter().enumerate().skip(first) {
            last = index;
            let size = segment.size();
            let mut problem = self.recover_segment(segment)?;
            let next = segments.get(index + 1).map(|next| next.base_offset());
            if problem.is_none() {
                problem = next.filter(|next| *next > from).and_then(|next| self.find_gap(segment, next));
            }
            recovery.segments += 1;
            recovery.scanned_bytes += segment.size();
            recovery.cut_bytes += size - segment.size();
            tracing::info!(
                partition = %self.topic_partition, base_offset = segment.base_offset(), bytes = segment.size(),
                "recovered segment {} of {}", index + 1 - first, segments.len() - first
            );
            if let Some(problem) = problem {
                tracing::warn!(
                    partition = %self.topic_partition, base_offset = segment.base_offset(),
                    position = segment.size(), cut_bytes = size - segment.size(), problem,
                    "the segment ends in bytes that are no batch; they are cut off, and what follows them goes"
                );
                break;
            }
            if let Some(next) = next {
                self.producers.lock().set_end_offset(next);
                self.replace_snapshot(&mut writer)?;
            }
        }
        for segment in segments[last + 1..].iter().rev() {
            recovery.cut_bytes += segment.size();
            let kept = crate::deletion::set_segment_aside(
                &*self.environment.disk,
                &self.dir,
                segment.base_offset(),
            )?;
            tracing::warn!(
                partition = %self.topic_partition, base_offset = segment.base_offset(), kept = %kept.display(),
                "a segment behind the cut is set aside; it can be removed when nobody misses its records"
            );
        }
        self.segments.store(Arc::new(segments[..=last].to_vec()));
        let end_offset = self.producers.lock().end_offset().max(segments[last].base_offset());
        self.producers.lock().set_end_offset(end_offset);
        self.publish_end(end_offset, &segments[last]);
        Ok(recovery)
    }

    /// After a power cut the end of a segment can be missing although a later one is there: the system writes
    /// them back in any order. Only a cleaner makes gaps that mean nothing, and what lies below the recovery point
    /// was on the disk, so a gap there is a cleaner's work.
    fn find_gap(&self, segment: &LogSegment, next_base: Offset) -> Option<String> {
        let end_offset = self.producers.lock().end_offset();
        let is_gap = end_offset < next_base && segment.can_hold(next_base) && !self.config().cleanup.compact;
        is_gap.then(|| format!("the records from {end_offset} to {} are missing", next_base - 1))
    }

    /// Returns what is wrong with the first batch that is not whole, if there is one.
    fn recover_segment(&self, segment: &LogSegment) -> Result<Option<String>, StorageError> {
        let config = self.config.load_full();
        let (file, path, size) = (segment.file()?, segment.path(), segment.size());
        segment.begin_recovery()?;
        let mut producers = self.producers.lock();
        let end_offset = producers.end_offset().max(segment.base_offset());
        producers.set_end_offset(end_offset);
        let mut walk = Walk::scan(&*file, &path, 0, size);
        let problem = loop {
            let (found, batch) = match walk.next_valid()? {
                Scanned::End => break None,
                Scanned::Invalid(problem) => break Some(problem),
                Scanned::Valid(found, batch) => (found, batch),
            };
            let header = &found.header;
            if !segment.can_hold(header.last_offset()) || header.last_offset_delta < 0 {
                break Some(format!("the batch at offset {} does not belong here", header.base_offset));
            }
            let marker = match batch.as_ref().map_or(Ok(None), marker_of) {
                Ok(marker) => marker,
                Err(problem) => break Some(problem),
            };
            segment.add(header, &config)?;
            self.learn_epoch(header);
            if let Some(completed) = producers.apply(header, marker) {
                segment.add_transaction(&completed)?;
            }
            segment.continue_recovery()?;
        };
        drop(producers);
        segment.end_recovery()?;
        Ok(problem)
    }

    fn learn_epoch(&self, header: &BatchHeader) {
        let mut epochs = self.epochs.write();
        if header.magic >= 2 && epochs.latest().is_none_or(|e| e.epoch < header.partition_leader_epoch) {
            epochs.assign(header.partition_leader_epoch, header.base_offset);
        }
    }

    /// As [`Log::write_snapshot`], also where there is one of that offset: it may be a wreck.
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
        while let Some(found) = walk.next_head()? {
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

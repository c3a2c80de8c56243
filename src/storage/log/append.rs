//! Appending and rolling.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use klamm_model::{Offset, TimestampMs};
use klamm_records::control::{ControlRecord, EndTxnMarker};
use klamm_records::{Batch, BatchHeader, ValidBatch};

use super::{Log, Writer, roll_jitter_ms};
use crate::config::LogConfig;
use crate::error::{StorageError, StorageErrorKind};
use crate::planted::planted;
use crate::positions::Place;
use crate::producers::Marker;
use crate::segment::{LogSegment, WriteFailure};

/// What an append leaves to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    /// Whether somebody has to wait for the disk: an append does not.
    pub flush_due: FlushDue,
}

/// Whether records that were appended have to be brought to the disk with [`Log::flush_then`] or [`Log::flush`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushDue {
    /// They need not be, or are there already.
    No,
    /// Group commit: they have to be there before they are acknowledged. What nobody acknowledges can wait.
    BeforeAcknowledgement,
    /// `flush.messages` asks for it.
    Always,
}

impl FlushDue {
    /// Whether a sync comes before the answer to a request with these `acks`; with 0 there is none.
    pub fn comes_before_answer(self, acks: i16) -> bool {
        match self {
            FlushDue::No => false,
            FlushDue::BeforeAcknowledgement => acks != 0,
            FlushDue::Always => true,
        }
    }
}

/// A batch on its way into the log.
struct Incoming<'a> {
    header: &'a BatchHeader,
    first_offset: Offset,
    parts: [&'a [u8]; 2],
    marker: Option<Marker>,
}

impl Log {
    /// Appends batches that were validated and got their offsets: one write for all of them, unless they do not
    /// fit one segment. When it fails, nothing of the write that failed is in the log, or the log is offline;
    /// batches that were put into an earlier segment stay.
    ///
    /// Nothing is synced. Where the records need it, the caller is told, and has to wait for
    /// [`Log::flush_then`] before it acknowledges them.
    pub fn append(&self, batches: &[ValidBatch]) -> Result<Appended, StorageError> {
        let mut incoming = Vec::with_capacity(batches.len());
        for ValidBatch { header, head, rest, first_offset, .. } in batches {
            let marker = self.marker(header, || [&head[..], &rest[..]].concat())?;
            incoming.push(Incoming {
                header,
                first_offset: *first_offset,
                parts: [&head[..], &rest[..]],
                marker,
            });
        }
        self.append_all(&incoming)
    }

    /// Appends batches just as another replica has them, offsets and leader epochs included; otherwise as
    /// [`Log::append`].
    pub fn append_replicated(&self, batches: &[Batch]) -> Result<Appended, StorageError> {
        let mut incoming = Vec::with_capacity(batches.len());
        for Batch { header, bytes } in batches {
            let marker = self.marker(header, || bytes.to_vec())?;
            incoming.push(Incoming {
                header,
                first_offset: header.base_offset,
                parts: [&bytes[..], &[]],
                marker,
            });
        }
        self.append_all(&incoming)
    }

    fn marker(
        &self,
        header: &BatchHeader,
        bytes: impl FnOnce() -> Vec<u8>,
    ) -> Result<Option<Marker>, StorageError> {
        if !header.is_control() || !header.has_producer_id() {
            return Ok(None);
        }
        marker_of(&Batch { header: *header, bytes: bytes().into() })
            .map_err(|reason| StorageError::corrupt(&self.dir, "append a marker to", reason))
    }

    fn append_all(&self, incoming: &[Incoming<'_>]) -> Result<Appended, StorageError> {
        if incoming.is_empty() {
            return Ok(Appended { flush_due: FlushDue::No });
        }
        let config = self.config.load_full();
        let mut writer = self.writer.lock();
        self.check_writable("append to")?;
        self.check_order(incoming)?;
        let mut rest = incoming;
        while !rest.is_empty() {
            let (group, behind) = rest.split_at(fitting(rest, config.segment_bytes));
            self.append_group(&mut writer, group, &config)?;
            rest = behind;
        }
        Ok(Appended { flush_due: self.flush_due() })
    }

    /// What is to be done about the records that are not synced, as [`Appended::flush_due`].
    pub fn flush_due(&self) -> FlushDue {
        let unsynced = self.log_end_offset().saturating_sub(self.recovery_point());
        if unsynced > 0 && unsynced as u64 >= self.config.load().flush_messages {
            return FlushDue::Always;
        }
        let waits = unsynced > 0 && self.environment.syncer.is_group_commit();
        if waits { FlushDue::BeforeAcknowledgement } else { FlushDue::No }
    }

    fn check_order(&self, incoming: &[Incoming<'_>]) -> Result<(), StorageError> {
        let mut log_end_offset = self.log_end_offset();
        for batch in incoming {
            let offset = batch.first_offset;
            if offset < log_end_offset || batch.header.last_offset() < offset {
                let kind = StorageErrorKind::OutOfOrder { offset, log_end_offset };
                return Err(StorageError::new(&self.dir, "append to", kind));
            }
            log_end_offset = batch.header.next_offset();
        }
        Ok(())
    }

    fn append_group(
        &self,
        writer: &mut Writer,
        group: &[Incoming<'_>],
        config: &LogConfig,
    ) -> Result<(), StorageError> {
        let (first, last) = (&group[0], &group[group.len() - 1]);
        self.roll_if_due(writer, group, config)?;
        for batch in group {
            // The leader has noted its epoch before; a follower learns it from the batches.
            if batch.header.magic >= 2 && self.latest_epoch() < Some(batch.header.partition_leader_epoch) {
                self.assign_epoch(batch.header.partition_leader_epoch, batch.first_offset)?;
            }
        }
        let segment = self.active();
        let parts: Vec<&[u8]> =
            group.iter().flat_map(|batch| batch.parts).filter(|part| !part.is_empty()).collect();
        if planted!(self.environment, IndexBeforeLog) {
            // The batch is in the indexes and counts before its bytes are there.
            let position = segment.size();
            self.count(&segment, group, config)?;
            self.publish_end(last.header.next_offset(), &segment);
            let failed = |error| StorageError::io(&segment.path(), "append to", &error);
            return segment.file()?.write_all_at(&parts, position).map_err(failed);
        }
        segment.write(&parts).map_err(|failure| match failure {
            WriteFailure::Undone(error) => error,
            WriteFailure::NotUndone(errors) => {
                let (written, undo) = *errors;
                self.set_offline(undo);
                written
            }
        })?;
        // The bytes are there. What follows happens in memory; should it fail all the same, memory and disk
        // disagree, and only a restart mends that.
        self.count(&segment, group, config).map_err(|error| self.set_offline(error))?;
        let offset = last.header.next_offset();
        let position = segment.size();
        self.positions.add_append(Place { offset, segment: segment.base_offset(), position });
        self.publish_end(offset, &segment);
        if planted!(self.environment, RecoveryPointAhead) {
            self.recovery_point.fetch_max(offset, Ordering::AcqRel);
        }
        debug_assert!(offset > first.first_offset, "an append moves the end of the log on");
        Ok(())
    }

    fn count(
        &self,
        segment: &LogSegment,
        group: &[Incoming<'_>],
        config: &LogConfig,
    ) -> Result<(), StorageError> {
        let mut producers = self.producers.lock();
        for batch in group {
            segment.add(batch.header, config)?;
            if let Some(completed) = producers.apply(batch.header, batch.marker) {
                segment.add_transaction(&completed)?;
            }
        }
        Ok(())
    }

    fn roll_if_due(
        &self,
        writer: &mut Writer,
        group: &[Incoming<'_>],
        config: &LogConfig,
    ) -> Result<(), StorageError> {
        let segment = self.active();
        let bytes = group.iter().map(|batch| batch.header.size as u64).sum::<u64>();
        let last_offset = group[group.len() - 1].header.last_offset();
        let is_due = if segment.size() == 0 {
            !segment.can_hold(last_offset)
        } else {
            segment.size() + bytes > config.segment_bytes
                || segment.has_full_index(config)?
                || !segment.can_hold(last_offset)
                || self.is_too_old(writer, &segment, group, config)?
        };
        if !is_due {
            return Ok(());
        }
        // The segment begins where the last one ends, even if the batch comes later (the leader's cleaner took
        // what was between): recovery takes a gap between two segments for a loss.
        let (end_offset, first_offset) = (self.log_end_offset(), group[0].first_offset);
        let is_far = last_offset - end_offset > i64::from(i32::MAX);
        self.roll_at(writer, if is_far { first_offset } else { end_offset }, config)
    }

    /// Whether `segment.ms` has passed between the segment's first batch and the new ones, by their own
    /// timestamps; without timestamps, since the segment was opened.
    fn is_too_old(
        &self,
        writer: &Writer,
        segment: &LogSegment,
        group: &[Incoming<'_>],
        config: &LogConfig,
    ) -> Result<bool, StorageError> {
        let first: TimestampMs = segment.first_timestamp()?;
        let waited = if first >= 0 {
            let newest = group.iter().map(|batch| batch.header.max_timestamp).max().unwrap_or(-1);
            newest.saturating_sub(first)
        } else {
            self.environment.clock.now_ms().saturating_sub(segment.created_ms())
        };
        Ok(waited > config.segment_ms_max() - writer.roll_jitter_ms)
    }

    /// Ends the active segment and begins the next one; does nothing if the active one is empty.
    pub fn roll(&self) -> Result<(), StorageError> {
        let mut writer = self.writer.lock();
        self.check_writable("roll")?;
        let config = self.config.load_full();
        self.roll_at(&mut writer, self.log_end_offset(), &config)
    }

    pub(super) fn roll_at(
        &self,
        writer: &mut Writer,
        base_offset: Offset,
        config: &LogConfig,
    ) -> Result<(), StorageError> {
        let active = self.active();
        if active.size() == 0 && active.base_offset() == base_offset {
            return Ok(());
        }
        assert!(base_offset > active.base_offset(), "segments follow one another");
        active.finish()?;
        // With the snapshot, a recovery of the new segment need not look at earlier ones.
        self.producers.lock().set_end_offset(base_offset);
        self.write_snapshot(writer)?;
        self.unsynced.names.store(true, Ordering::Release);
        let segment = Arc::new(LogSegment::create(&self.place(), base_offset, config)?);
        let mut segments = Vec::clone(&self.segments.load());
        segments.push(segment.clone());
        self.segments.store(Arc::new(segments));
        writer.roll_jitter_ms = roll_jitter_ms(config, &*self.environment.random);
        self.publish_end(self.log_end_offset(), &segment);
        tracing::debug!(partition = %self.topic_partition, base_offset, "began a new segment");
        Ok(())
    }
}

/// How many of the first batches fit a segment together; at least one, however large it is.
fn fitting(batches: &[Incoming<'_>], segment_bytes: u64) -> usize {
    let mut bytes = 0;
    let fit = batches.iter().take_while(|batch| {
        bytes += batch.header.size as u64;
        bytes <= segment_bytes
    });
    fit.count().max(1)
}

/// What a control batch says of a transaction; nothing if the cleaner has emptied it, or if it is of another
/// kind.
pub(super) fn marker_of(batch: &Batch) -> Result<Option<Marker>, String> {
    if !batch.header.is_control() || !batch.header.has_producer_id() || batch.header.record_count == 0 {
        return Ok(None);
    }
    match batch.control_record().map_err(|error| error.to_string())? {
        ControlRecord::EndTxn(EndTxnMarker { commit, coordinator_epoch }) => {
            Ok(Some(Marker { coordinator_epoch, is_abort: !commit, timestamp: batch.header.max_timestamp }))
        }
        ControlRecord::Other { .. } => Ok(None),
    }
}

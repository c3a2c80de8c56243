//! A log that becomes the copy of another one, in another log directory.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use klamm_model::Offset;
use klamm_records::Batch;

use super::Log;
use crate::error::{ReadError, StorageError};

/// Batches on their way from a log into its copy.
#[derive(Debug)]
pub struct Piece {
    /// Where the copy must begin anew before it takes the batches, if it cannot go on where it is.
    restart_at: Option<Offset>,
    /// Where the copied log began.
    log_start_offset: Offset,
    batches: Vec<Batch>,
}

impl Piece {
    /// How many bytes of batches there are.
    pub fn size(&self) -> u64 {
        self.batches.iter().map(|batch| batch.header.size as u64).sum()
    }

    /// Whether there is nothing to do with it.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty() && self.restart_at.is_none()
    }
}

impl Log {
    /// Whether the log is being copied into another directory. No cleaner may touch it then: it could take a
    /// tombstone away before it was copied, and the value that the tombstone deletes would be back.
    pub fn is_moving(&self) -> bool {
        self.is_moving.load(Ordering::Acquire)
    }

    pub(crate) fn set_moving(&self, is_moving: bool) {
        let _writer = self.writer.lock();
        self.is_moving.store(is_moving, Ordering::Release);
    }

    /// How many offsets this log lacks of the one that it copies.
    pub fn lag_behind(&self, source: &Log) -> Offset {
        (source.log_end_offset() - self.log_end_offset()).max(0)
    }

    /// The next batches of `source` that this log lacks, about `bytes_max` bytes of them.
    pub fn next_piece(&self, source: &Log, bytes_max: usize) -> Result<Piece, ReadError> {
        let start = source.log_start_offset();
        let end = self.log_end_offset();
        let is_empty = self.log_start_offset() == end && self.size() == 0;
        let goes_on = end >= start && !(is_empty && end != start);
        let from = if goes_on { end } else { start };
        let slice = source.read(from, bytes_max, source.log_end_offset(), true)?;
        let bytes = match &slice {
            None => Bytes::new(),
            Some(slice) => {
                slice.to_bytes().map_err(|error| StorageError::io(&source.dir, "read for a copy", &error))?
            }
        };
        let mut batches = Vec::new();
        for batch in klamm_records::batches(bytes).lenient() {
            let corrupt = |reason: klamm_records::RecordsError| {
                StorageError::corrupt(&source.dir, "read for a copy", reason.to_string())
            };
            let batch = batch.map_err(corrupt)?;
            // What is damaged must not get a second life as something that was checked.
            batch.check_crc().map_err(corrupt)?;
            batches.push(batch);
        }
        // The log may start within a batch, which is copied whole.
        let first = slice.map_or(from, |slice| slice.first.base_offset.min(from));
        let restart_at = (!goes_on || first < end).then_some(first);
        Ok(Piece { restart_at, log_start_offset: start, batches })
    }

    /// Takes what [`Log::next_piece`] has found.
    pub fn append_piece(&self, piece: &Piece) -> Result<(), StorageError> {
        if let Some(offset) = piece.restart_at {
            self.truncate_fully_and_start_at(offset)?;
        }
        self.append_replicated(&piece.batches)?;
        self.follow_start(piece.log_start_offset)
    }

    fn follow_start(&self, log_start_offset: Offset) -> Result<(), StorageError> {
        if log_start_offset <= self.log_start_offset() || log_start_offset > self.log_end_offset() {
            return Ok(());
        }
        match self.delete_records_before(log_start_offset) {
            Err(ReadError::Storage(error)) => Err(error),
            Ok(_) | Err(ReadError::OutOfRange { .. }) => Ok(()),
        }
    }

    /// Takes over what does not stand in batches: the leader epochs, the producers and the start. Both logs end
    /// at the same offset, and neither takes appends meanwhile.
    pub(crate) fn take_over(&self, source: &Log) -> Result<(), StorageError> {
        let end = self.log_end_offset();
        assert_eq!(end, source.log_end_offset(), "a copy is whole before it takes over");
        self.update_config((*source.config()).clone());
        self.follow_start(source.log_start_offset())?;
        self.take_over_state(source)?;
        let mut writer = self.writer.lock();
        writer.snapshot_offset = None;
        // A producer may outlive its batches, so no recovery of this log must begin before its state as of now.
        let config = self.config.load_full();
        if self.active().size() == 0 {
            self.write_snapshot(&mut writer)
        } else {
            self.roll_at(&mut writer, end, &config)
        }
    }

    /// The part of it that a log holds in memory.
    pub(crate) fn take_over_state(&self, source: &Log) -> Result<(), StorageError> {
        {
            let mut epochs = self.epochs.write();
            *epochs = source.epochs.read().clone();
            self.write_epochs(&epochs)?;
        }
        let mut producers = source.producers.lock().clone();
        producers.set_end_offset(self.log_end_offset());
        *self.producers.lock() = producers;
        Ok(())
    }
}

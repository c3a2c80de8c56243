//! Reading a segment from front to back, batch by batch, in large pieces.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use klamm_io::File;
use klamm_records::{Batch, HEAD_LEN, RecordsError, peek_batch};

use crate::error::StorageError;
use crate::segment::LogSegment;

/// Reads the batches of a segment. A batch that is larger than the buffer is read as a whole all the same.
pub(super) struct Source {
    file: Arc<dyn File>,
    path: PathBuf,
    /// Where the next batch begins.
    position: u64,
    end: u64,
    piece_bytes: usize,
    piece: Bytes,
    piece_start: u64,
}

/// A batch whose checksum is right, and where it stands.
pub(super) struct Read {
    pub(super) position: u64,
    pub(super) batch: Batch,
    /// How many bytes were read from the disk for it.
    pub(super) bytes: u64,
}

impl Source {
    pub(super) fn new(
        segment: &LogSegment,
        position: u64,
        piece_bytes: usize,
    ) -> Result<Source, StorageError> {
        Ok(Source {
            file: segment.file()?,
            path: segment.path(),
            position,
            end: segment.size(),
            piece_bytes: piece_bytes.max(HEAD_LEN),
            piece: Bytes::new(),
            piece_start: position,
        })
    }

    /// The next batch; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Read>, StorageError> {
        let position = self.position;
        let left = self.end.saturating_sub(position);
        if left == 0 {
            return Ok(None);
        }
        let mut bytes = self.fill(HEAD_LEN.min(usize::try_from(left).unwrap_or(HEAD_LEN)))?;
        let header = peek_batch(self.ahead()).map_err(|error| self.invalid(position, &error))?;
        let header = header.filter(|header| header.size as u64 <= left).ok_or_else(|| {
            let reason = format!("the segment ends within the batch, {left} bytes behind its beginning");
            StorageError::corrupt(&self.path, "compact", reason).at(position)
        })?;
        bytes += self.fill(header.size)?;
        let start = (position - self.piece_start) as usize;
        let batch = Batch { header, bytes: self.piece.slice(start..start + header.size) };
        batch.check_crc().map_err(|error| self.invalid(position, &error))?;
        self.position += header.size as u64;
        Ok(Some(Read { position, batch, bytes }))
    }

    /// What of the piece in memory lies ahead.
    fn ahead(&self) -> &[u8] {
        self.piece.get((self.position - self.piece_start) as usize..).unwrap_or_default()
    }

    /// Makes sure that so many bytes, which the file has, lie ahead. Returns how many were read.
    fn fill(&mut self, wanted: usize) -> Result<u64, StorageError> {
        if self.ahead().len() >= wanted {
            return Ok(0);
        }
        let left = usize::try_from(self.end - self.position).unwrap_or(usize::MAX);
        let mut piece = vec![0; wanted.max(self.piece_bytes).min(left)];
        self.file
            .read_exact_at(&mut piece, self.position)
            .map_err(|error| StorageError::io(&self.path, "compact", &error).at(self.position))?;
        let count = piece.len() as u64;
        (self.piece, self.piece_start) = (Bytes::from(piece), self.position);
        Ok(count)
    }

    /// A batch that makes no sense, with its place.
    pub(super) fn invalid(&self, position: u64, error: &RecordsError) -> StorageError {
        StorageError::corrupt(&self.path, "compact", error.to_string()).at(position)
    }
}

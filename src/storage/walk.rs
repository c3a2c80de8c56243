//! Walking over the batches of a segment's file.
//!
//! Nothing is allocated for what a batch claims to be: heads are read through a small window, and a batch is
//! read as a whole only where the file really holds so many bytes.

use std::path::Path;

use bytes::Bytes;
use klamm_io::File;
use klamm_records::{Batch, BatchHeader, HEAD_LEN, peek_batch};

use crate::error::StorageError;

/// What a walk through heads reads at once: about what lies between two entries of the index.
const WINDOW_BYTES: usize = 4096;

/// What a scan of whole batches reads at once.
const SCAN_WINDOW_BYTES: usize = 256 * 1024;

/// A batch above this is checked piece by piece, without holding it.
const WHOLE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Where the part of a V2 batch begins that its checksum covers.
const V2_CHECKED_FROM: usize = 21;

/// Goes from batch to batch between two positions of a file.
pub(crate) struct Walk<'a> {
    file: &'a dyn File,
    path: &'a Path,
    /// Where the next batch begins.
    position: u64,
    end: u64,
    window: Vec<u8>,
    window_start: u64,
    window_bytes: usize,
}

/// A head and where it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) position: u64,
    pub(crate) header: BatchHeader,
}

/// What a scan says of the batch at its position.
pub(crate) enum Scanned {
    /// It is whole and its checksum is right. The bytes are there unless the batch is very large.
    Valid(Found, Option<Batch>),
    /// From here on the file holds no valid batch; why.
    Invalid(String),
    /// The walk has reached its end.
    End,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(file: &'a dyn File, path: &'a Path, position: u64, end: u64) -> Walk<'a> {
        Walk {
            file,
            path,
            position,
            end,
            window: Vec::new(),
            window_start: position,
            window_bytes: WINDOW_BYTES,
        }
    }

    /// A walk that reads everything.
    pub(crate) fn scan(file: &'a dyn File, path: &'a Path, position: u64, end: u64) -> Walk<'a> {
        Walk { window_bytes: SCAN_WINDOW_BYTES, ..Walk::new(file, path, position, end) }
    }

    /// The next head, and the walk stands behind its batch. `None` at the end, or where only a part of a batch
    /// is left.
    pub(crate) fn next_head(&mut self) -> Result<Option<Found>, StorageError> {
        let position = self.position;
        let available = (self.end.saturating_sub(position)).min(HEAD_LEN as u64) as usize;
        let bytes = self.bytes(position, available)?;
        let header = match peek_batch(bytes) {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(None),
            Err(error) => {
                let error = StorageError::corrupt(self.path, "read a batch head", error.to_string());
                return Err(error.at(position));
            }
        };
        if self.end - position < header.size as u64 {
            return Ok(None);
        }
        self.position += header.size as u64;
        Ok(Some(Found { position, header }))
    }

    /// Lets the walk stand again at a position where a batch begins.
    pub(crate) fn go_back_to(&mut self, position: u64) {
        self.position = position;
    }

    /// Reads and checks the next batch.
    pub(crate) fn next_valid(&mut self) -> Result<Scanned, StorageError> {
        let position = self.position;
        if position >= self.end {
            return Ok(Scanned::End);
        }
        let left = self.end - position;
        let available = left.min(HEAD_LEN as u64) as usize;
        let header = match peek_batch(self.bytes(position, available)?) {
            Ok(Some(header)) if header.size as u64 <= left => header,
            Ok(Some(header)) => {
                return Ok(Scanned::Invalid(format!(
                    "the batch at offset {} has {} bytes, of which {left} are there",
                    header.base_offset, header.size
                )));
            }
            Ok(None) => return Ok(Scanned::Invalid(format!("only {left} bytes of a batch are there"))),
            Err(error) => return Ok(Scanned::Invalid(error.to_string())),
        };
        let found = Found { position, header };
        let batch = if header.size > WHOLE_BYTES_MAX && header.magic == 2 {
            if let Err(reason) = self.check_in_pieces(&found)? {
                return Ok(Scanned::Invalid(reason));
            }
            None
        } else {
            let bytes = Bytes::copy_from_slice(self.bytes(position, header.size)?);
            if bytes.len() < header.size {
                return Ok(Scanned::Invalid("the file ends within the batch".to_owned()));
            }
            let batch = Batch { header, bytes };
            if let Err(error) = batch.check_crc() {
                return Ok(Scanned::Invalid(error.to_string()));
            }
            Some(batch)
        };
        self.position += header.size as u64;
        Ok(Scanned::Valid(found, batch))
    }

    fn check_in_pieces(&mut self, found: &Found) -> Result<Result<(), String>, StorageError> {
        let mut position = found.position + V2_CHECKED_FROM as u64;
        let end = found.position + found.header.size as u64;
        let mut checksum = 0;
        while position < end {
            let count = (end - position).min(SCAN_WINDOW_BYTES as u64) as usize;
            let bytes = self.bytes(position, count)?;
            if bytes.is_empty() {
                return Ok(Err("the file ends within the batch".to_owned()));
            }
            checksum = crc32c::crc32c_append(checksum, bytes);
            position += bytes.len() as u64;
        }
        if checksum == found.header.crc {
            return Ok(Ok(()));
        }
        Ok(Err(format!(
            "the batch at offset {} is corrupt (stored crc = {}, computed crc = {checksum})",
            found.header.base_offset, found.header.crc
        )))
    }

    /// Up to `count` bytes at a position, through the window; fewer where the walk ends.
    fn bytes(&mut self, position: u64, count: usize) -> Result<&[u8], StorageError> {
        let window_end = self.window_start + self.window.len() as u64;
        if position < self.window_start || position + count as u64 > window_end {
            let left = self.end.saturating_sub(position);
            let wanted = left.min(count.max(self.window_bytes) as u64) as usize;
            self.window.resize(wanted, 0);
            self.window_start = position;
            let filled = read_up_to(self.file, &mut self.window, position)
                .map_err(|error| StorageError::io(self.path, "read the log", &error).at(position))?;
            self.window.truncate(filled);
        }
        let from = ((position - self.window_start) as usize).min(self.window.len());
        let to = (from + count).min(self.window.len());
        Ok(&self.window[from..to])
    }
}

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_up_to(file: &dyn File, buffer: &mut [u8], position: u64) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], position + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

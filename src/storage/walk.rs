//! Walking over the batches of a segment's file.
//!
//! Nothing is allocated for what a batch claims to be: heads are read through a small window, and a batch is
//! read as a whole only where the file really holds so many bytes.

use std::path::Path;

use bytes::Bytes;
use klamm_io::File;
use klamm_model::Offset;
use klamm_records::{Batch, BatchHeader, HEAD_LEN, peek_batch};

use crate::error::StorageError;

/// What a walk through heads reads at once: about what lies between two entries of the index.
const WINDOW_BYTES: usize = 4096;

/// What a scan of whole batches reads at once: large enough that the disk works at its full speed.
const SCAN_WINDOW_BYTES: usize = 1 << 20;

/// A batch above this is checked piece by piece, without holding it.
const WHOLE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Where the part of a V2 batch begins that its checksum covers.
const V2_CHECKED_FROM: usize = 21;

/// Where the byte stands that tells the format.
const MAGIC_POSITION: usize = 16;

/// The search for a batch behind decay gives up after checksums of so many bytes that were wrong.
const SEARCHED_BYTES_MAX: usize = 256 * 1024 * 1024;

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
    /// It is whole and its checksum is right. Of a control batch the bytes are there: its head does not say
    /// what it means.
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
        file.expect_sequential_reads();
        Walk { window_bytes: SCAN_WINDOW_BYTES, ..Walk::new(file, path, position, end) }
    }

    /// Where the next batch begins.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next head, and the walk stands behind its batch. `None` at the end, which must be the end of a batch: a
    /// walk that took a damaged length for the end of its segment would pass over all records behind it.
    pub(crate) fn next_head(&mut self) -> Result<Option<Found>, StorageError> {
        let (position, left) = (self.position, self.end.saturating_sub(self.position));
        match self.next_whole_head()? {
            None if left > 0 => {
                let available = left.min(HEAD_LEN as u64) as usize;
                let claimed = peek_batch(self.bytes(position, available)?).ok().flatten();
                let problem = match claimed {
                    Some(header) => format!(
                        "the batch at offset {} claims {} bytes, of which {left} are there",
                        header.base_offset, header.size
                    ),
                    None => format!("{left} bytes are there, too few for a batch"),
                };
                let problem = format!(
                    "{problem}: the file is damaged here or was cut short; take it from another replica or a \
                     backup, and check the disk"
                );
                Err(StorageError::corrupt(self.path, "read a batch head", problem).at(position))
            }
            found => Ok(found),
        }
    }

    /// As [`Walk::next_head`], where the part may end within a batch: `None` there too.
    pub(crate) fn next_whole_head(&mut self) -> Result<Option<Found>, StorageError> {
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

    /// Whether what is left at the end begins as a batch of V0 or V1 does.
    pub(crate) fn is_old_at_end(&mut self) -> Result<bool, StorageError> {
        let magic = self.bytes(self.position, MAGIC_POSITION + 1)?.get(MAGIC_POSITION).copied();
        Ok(magic.is_some_and(|magic| magic < 2))
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
        let batch = match self.check(&found)? {
            Ok(batch) => batch,
            Err(problem) => return Ok(Scanned::Invalid(problem)),
        };
        self.position += header.size as u64;
        Ok(Scanned::Valid(found, batch))
    }

    /// Compares the checksum of a batch, in place where the format allows it. The inner result says what is
    /// wrong.
    fn check(&mut self, found: &Found) -> Result<Result<Option<Batch>, String>, StorageError> {
        let header = found.header;
        if header.size > WHOLE_BYTES_MAX && header.magic == 2 {
            return Ok(self.check_in_pieces(found)?.map(|()| None));
        }
        let bytes = self.bytes(found.position, header.size)?;
        if bytes.len() < header.size {
            return Ok(Err("the file ends within the batch".to_owned()));
        }
        if header.magic == 2 && !header.is_control() {
            let computed = crc32c::crc32c(&bytes[V2_CHECKED_FROM..]);
            return Ok(if computed == header.crc {
                Ok(None)
            } else {
                Err(wrong_checksum(&header, computed))
            });
        }
        let batch = Batch { header, bytes: Bytes::copy_from_slice(bytes) };
        Ok(match batch.check_crc() {
            Ok(()) => Ok(header.is_control().then_some(batch)),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Whether a whole batch of V2 with an offset behind `offset` stands anywhere behind a position, and where:
    /// then what does not make sense before it is no torn end but decay in the middle.
    pub(crate) fn find_behind(
        &mut self,
        position: u64,
        offset: Offset,
    ) -> Result<Option<Found>, StorageError> {
        let mut checked_bytes = 0;
        for position in position + 1..self.end.saturating_sub(HEAD_LEN as u64 - 1) {
            let head = self.bytes(position, HEAD_LEN)?;
            // Most places are no batch, which this byte alone tells.
            if head.get(MAGIC_POSITION) != Some(&2) {
                continue;
            }
            let Ok(Some(header)) = peek_batch(head) else { continue };
            let is_likely = header.base_offset > offset
                && header.base_offset - offset < i64::from(i32::MAX)
                && header.last_offset_delta >= 0
                && header.size as u64 <= self.end - position
                && header.size <= WHOLE_BYTES_MAX;
            if !is_likely {
                continue;
            }
            checked_bytes += header.size;
            if checked_bytes > SEARCHED_BYTES_MAX {
                break;
            }
            let found = Found { position, header };
            if self.check(&found)?.is_ok() {
                return Ok(Some(found));
            }
        }
        Ok(None)
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
        let is_right = checksum == found.header.crc;
        Ok(if is_right { Ok(()) } else { Err(wrong_checksum(&found.header, checksum)) })
    }

    /// Up to `count` bytes at a position, through the window; fewer where the walk ends.
    fn bytes(&mut self, position: u64, count: usize) -> Result<&[u8], StorageError> {
        let window_end = self.window_start + self.window.len() as u64;
        if position < self.window_start || position + count as u64 > window_end {
            self.fill(position, count)?;
        }
        let from = ((position - self.window_start) as usize).min(self.window.len());
        let to = (from + count).min(self.window.len());
        Ok(&self.window[from..to])
    }

    /// Moves the window to a position. What it holds from there on already is not read again.
    fn fill(&mut self, position: u64, count: usize) -> Result<(), StorageError> {
        let left = self.end.saturating_sub(position);
        let wanted = left.min(count.max(self.window_bytes) as u64) as usize;
        let skipped = position.checked_sub(self.window_start).map_or(usize::MAX, |skipped| skipped as usize);
        let held = self.window.len().saturating_sub(skipped);
        if held > 0 {
            self.window.copy_within(skipped.., 0);
        }
        self.window.resize(wanted.max(held), 0);
        self.window_start = position;
        let from = position + held as u64;
        let filled = read_up_to(self.file, &mut self.window[held..], from)
            .map_err(|error| StorageError::io(self.path, "read the log", &error).at(from))?;
        self.window.truncate(held + filled);
        Ok(())
    }
}

fn wrong_checksum(header: &BatchHeader, computed: u32) -> String {
    format!(
        "the batch at offset {} is corrupt (stored crc = {}, computed crc = {computed})",
        header.base_offset, header.crc
    )
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

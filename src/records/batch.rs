//! Views of whole batches: iteration over a run of them, their checksum, their records.

use bytes::Bytes;
use klamm_model::Offset;

use crate::compression::{Compression, EXPANDED_BYTES_MAX, decompress};
use crate::error::RecordsError;
use crate::header::{BatchHeader, CRC_POSITION, HEAD_LEN, peek_batch_at};
use crate::legacy::{InnerMessages, check_message_crc, key_and_value};
use crate::record::{Record, read_v2_record};

/// A whole batch: its head, parsed, and all its bytes.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The parsed head.
    pub header: BatchHeader,
    /// The whole batch, head included: `header.size` bytes.
    pub bytes: Bytes,
}

/// Iterates over the batches in `bytes`. An incomplete last batch is an error unless [`BatchIter::lenient`].
pub fn batches(bytes: Bytes) -> BatchIter {
    BatchIter { bytes, position: 0, lenient: false }
}

/// See [`batches`]. It ends after the first error.
#[derive(Clone, Debug)]
pub struct BatchIter {
    bytes: Bytes,
    position: usize,
    lenient: bool,
}

impl BatchIter {
    /// Ends silently where the last batch is cut off, as a consumer does with the end of a Fetch.
    pub fn lenient(mut self) -> BatchIter {
        self.lenient = true;
        self
    }

    /// Where the next batch begins, in bytes.
    pub fn position(&self) -> usize {
        self.position
    }

    fn next_batch(&mut self) -> Result<Option<Batch>, RecordsError> {
        let rest = &self.bytes[self.position..];
        if rest.is_empty() {
            return Ok(None);
        }
        let header = peek_batch_at(rest, self.position)?;
        match header {
            Some(header) if header.size <= rest.len() => {
                let bytes = self.bytes.slice(self.position..self.position + header.size);
                self.position += header.size;
                Ok(Some(Batch { header, bytes }))
            }
            _ if self.lenient => Ok(None),
            _ => Err(RecordsError::Truncated {
                position: self.position,
                size: header.map_or(HEAD_LEN, |header| header.size),
                available: rest.len(),
            }),
        }
    }
}

impl Iterator for BatchIter {
    type Item = Result<Batch, RecordsError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_batch();
        if next.is_err() {
            self.position = self.bytes.len();
        }
        next.transpose()
    }
}

impl Batch {
    /// The batch that `bytes` begin with; what follows it is left out.
    pub fn parse(bytes: Bytes) -> Result<Batch, RecordsError> {
        let empty = RecordsError::Truncated { position: 0, size: HEAD_LEN, available: 0 };
        batches(bytes).next().unwrap_or(Err(empty))
    }

    /// Compares the stored checksum with the bytes: CRC-32C in V2, CRC-32 in V0 and V1.
    pub fn check_crc(&self) -> Result<(), RecordsError> {
        if self.header.magic < 2 {
            return check_message_crc(&self.bytes, self.header.base_offset);
        }
        let (stored, computed) = (self.header.crc, crc32c::crc32c(&self.bytes[CRC_POSITION + 4..]));
        if stored == computed {
            return Ok(());
        }
        Err(RecordsError::InvalidCrc { offset: self.header.base_offset, stored, computed })
    }

    /// The first offset in the batch: for a compressed message of V0 or V1 its content must be looked into.
    pub fn first_offset(&self) -> Result<Offset, RecordsError> {
        if self.header.magic >= 2 || !self.header.is_compressed() {
            return Ok(self.header.base_offset);
        }
        let first = self.find_record(|_, _| true)?;
        Ok(first.map_or(self.header.base_offset, |(offset, _)| offset))
    }

    /// All records, decompressed, with effective offsets and timestamps. A list takes many times the bytes of
    /// tiny records; [`Batch::record_iter`] does not.
    pub fn records(&self) -> Result<Vec<Record>, RecordsError> {
        self.record_iter()?.collect()
    }

    /// The records one by one. Only the decompressed bytes are held in memory, at most
    /// [`EXPANDED_BYTES_MAX`].
    pub fn record_iter(&self) -> Result<RecordIter, RecordsError> {
        self.record_iter_within(EXPANDED_BYTES_MAX)
    }

    /// As [`Batch::record_iter`] with another bound on the decompressed bytes.
    pub fn record_iter_within(&self, limit: usize) -> Result<RecordIter, RecordsError> {
        let header = self.header;
        let source = match (header.magic, header.is_compressed()) {
            (2, _) => self.open_v2(limit)?,
            (_, true) => Source::Wrapped(InnerMessages::open(&header, &self.bytes, limit)?),
            (_, false) => Source::Message(Some(self.bytes.clone())),
        };
        Ok(RecordIter { header, source })
    }

    fn open_v2(&self, limit: usize) -> Result<Source, RecordsError> {
        let (bytes, remaining) = self.expand_v2(limit)?;
        Ok(Source::V2 { bytes, position: 0, remaining })
    }

    /// The records of a batch of V2 one after the other, decompressed, and how many the batch says that they are.
    pub(crate) fn expand_v2(&self, limit: usize) -> Result<(Bytes, u32), RecordsError> {
        let header = &self.header;
        let offset = header.base_offset;
        let count = u32::try_from(header.record_count)
            .map_err(|_| RecordsError::InvalidRecord { offset, reason: "a negative number of records" })?;
        // A batch that the cleaner emptied has no bytes, whatever codec it names.
        let codec = if count == 0 { Compression::None } else { header.compression()? };
        let bytes = decompress(codec, header.magic, &self.bytes.slice(HEAD_LEN..), limit)?;
        Ok((bytes, count))
    }
}

/// See [`Batch::record_iter`]. It ends after the first error.
#[derive(Clone, Debug)]
pub struct RecordIter {
    header: BatchHeader,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    V2 { bytes: Bytes, position: usize, remaining: u32 },
    Message(Option<Bytes>),
    Wrapped(InnerMessages),
    Ended,
}

impl RecordIter {
    fn next_record(&mut self) -> Result<Option<Record>, RecordsError> {
        let header = &self.header;
        let invalid = |reason| RecordsError::InvalidRecord { offset: header.base_offset, reason };
        match &mut self.source {
            Source::Ended => Ok(None),
            Source::V2 { bytes, position, remaining } => {
                if *remaining == 0 {
                    return if *position == bytes.len() {
                        Ok(None)
                    } else {
                        Err(invalid("there are more records than the batch says"))
                    };
                }
                let (record, end) = read_v2_record(bytes, *position).map_err(invalid)?;
                *position = end;
                *remaining -= 1;
                Ok(Some(record.in_batch(header)))
            }
            Source::Message(message) => {
                let Some(message) = message.take() else { return Ok(None) };
                let (key, value) = key_and_value(&message, header.magic).map_err(invalid)?;
                Ok(Some(Record::legacy(header.base_offset, header.max_timestamp, key, value)))
            }
            Source::Wrapped(inner) => {
                let Some(message) = inner.next().transpose()? else { return Ok(None) };
                let (key, value) = key_and_value(&message.bytes, message.magic).map_err(invalid)?;
                Ok(Some(Record::legacy(message.offset, message.timestamp, key, value)))
            }
        }
    }
}

impl Iterator for RecordIter {
    type Item = Result<Record, RecordsError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_record();
        if next.is_err() {
            self.source = Source::Ended;
        }
        next.transpose()
    }
}

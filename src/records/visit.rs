//! Going through all records of a batch while only one of them is in memory.
//!
//! What [`Batch::record_iter`](crate::Batch::record_iter) yields are slices of the whole decompressed batch, so it
//! needs a bound. A conversion has none: what was once accepted must be shown to every client, whatever
//! `max.decompressed.message.bytes` says today.

use bytes::Bytes;
use klamm_model::TimestampType;

use crate::NO_TIMESTAMP;
use crate::batch::Batch;
use crate::compression::{Compression, Decoder};
use crate::error::RecordsError;
use crate::header::{HEAD_LEN, sequence_at};
use crate::legacy::{InnerHead, fields_len, key_and_value, wrapped_offset_base};
use crate::record::{Record, read_v2_record};
use crate::stream::{Broken, DecoderSource, SliceSource, Source, is_at_end};
use crate::varint::read_varint;

impl Batch {
    /// Hands the records out one by one, as [`Batch::record_iter`] yields them, and ends at the first error.
    pub(crate) fn visit_records(
        &self,
        mut visit: impl FnMut(Record) -> Result<(), RecordsError>,
    ) -> Result<(), RecordsError> {
        let visited = match (self.header.magic, self.header.is_compressed()) {
            (2, _) => self.visit_v2(&mut visit),
            (_, true) => self.visit_wrapper(&mut visit),
            (_, false) => key_and_value(&self.bytes, self.header.magic).map_err(Broken::Record).and_then(
                |(key, value)| {
                    let (offset, time) = (self.header.base_offset, self.header.max_timestamp);
                    visit(Record::legacy(offset, time, key, value)).map_err(Broken::Codec)
                },
            ),
        };
        visited.map_err(|broken| match broken {
            Broken::Record(reason) => RecordsError::InvalidRecord { offset: self.header.base_offset, reason },
            Broken::Codec(error) => error,
        })
    }

    fn visit_v2(&self, visit: &mut impl FnMut(Record) -> Result<(), RecordsError>) -> Result<(), Broken> {
        let header = &self.header;
        let records = &self.bytes[HEAD_LEN..];
        match header.record_count {
            ..0 => return Err(Broken::Record("a negative number of records")),
            // A batch that the cleaner emptied has no bytes, whatever codec it names.
            0 if records.is_empty() => return Ok(()),
            _ => {}
        }
        if !header.is_compressed() {
            return self.visit_v2_records(&mut SliceSource { bytes: records, position: 0 }, visit);
        }
        let codec = header.compression().map_err(Broken::Codec)?;
        let decoder = Decoder::new(codec, 2, records, usize::MAX).map_err(Broken::Codec)?;
        self.visit_v2_records(&mut DecoderSource::new(decoder), visit)
    }

    fn visit_v2_records(
        &self,
        source: &mut impl Source,
        visit: &mut impl FnMut(Record) -> Result<(), RecordsError>,
    ) -> Result<(), Broken> {
        let header = &self.header;
        let append_time =
            (header.timestamp_type() == TimestampType::LogAppendTime).then_some(header.max_timestamp);
        for _ in 0..header.record_count {
            let bytes = next_v2_record(source)?;
            let (parts, _) = read_v2_record(&bytes, 0).map_err(Broken::Record)?;
            let own_time = header.base_timestamp.wrapping_add(parts.timestamp_delta);
            let record = Record {
                offset: header.base_offset.wrapping_add(i64::from(parts.offset_delta)),
                timestamp: append_time.unwrap_or(own_time),
                key: parts.key,
                value: parts.value,
                headers: parts.headers,
                sequence: sequence_at(header.base_sequence, parts.offset_delta),
            };
            visit(record).map_err(Broken::Codec)?;
        }
        if is_at_end(source)? {
            Ok(())
        } else {
            Err(Broken::Record("there are more records than the batch says"))
        }
    }

    /// The offsets of the inner messages follow from that of the last one, so they are walked through twice.
    fn visit_wrapper(
        &self,
        visit: &mut impl FnMut(Record) -> Result<(), RecordsError>,
    ) -> Result<(), Broken> {
        let header = &self.header;
        let (codec, value) = self.wrapped()?;
        let open = || Decoder::new(codec, header.magic, &value, usize::MAX).map_err(Broken::Codec);
        let mut last = None;
        let mut source = DecoderSource::new(open()?);
        while let Some(head) = next_inner_head(&mut source)? {
            match source.skip(head.len) {
                Ok(()) => last = Some(head.offset),
                Err(Broken::Record(_)) => break,
                Err(broken) => return Err(broken),
            }
        }
        drop(source);
        let last = last.ok_or(Broken::Record("a compressed message that holds none"))?;
        let base = wrapped_offset_base(header, last).map_err(Broken::Record)?;
        let append_time =
            (header.timestamp_type() == TimestampType::LogAppendTime).then_some(header.max_timestamp);
        let mut source = DecoderSource::new(open()?);
        while let Some(head) = next_inner_head(&mut source)? {
            let Some(bytes) = take(&mut source, head.len)? else { return Ok(()) };
            let (key, value) = key_and_value(&bytes, head.magic).map_err(Broken::Record)?;
            let timestamp = head.timestamp.map_or(NO_TIMESTAMP, |own| append_time.unwrap_or(own));
            let record = Record::legacy(base.wrapping_add(head.offset), timestamp, key, value);
            visit(record).map_err(Broken::Codec)?;
        }
        Ok(())
    }

    /// The codec and the value of a compressed message.
    fn wrapped(&self) -> Result<(Compression, Bytes), Broken> {
        let codec = self.header.compression().map_err(Broken::Codec)?;
        if codec == Compression::Zstd {
            return Err(Broken::Record("zstd in a format that does not know it"));
        }
        let (_, value) = key_and_value(&self.bytes, self.header.magic).map_err(Broken::Record)?;
        Ok((codec, value.ok_or(Broken::Record("a compressed message without a value"))?))
    }
}

fn next_inner_head(source: &mut impl Source) -> Result<Option<InnerHead>, Broken> {
    InnerHead::read(source.peek(fields_len(1))?).map_err(Broken::Record)
}

/// The most bytes that a record's length takes.
const LENGTH_LEN_MAX: usize = 10;

/// All bytes of the next record, its length included.
fn next_v2_record(source: &mut impl Source) -> Result<Bytes, Broken> {
    let (len, length_len) =
        read_varint(source.peek(LENGTH_LEN_MAX)?).map_err(crate::stream::broken_varint)?;
    let len = usize::try_from(len).map_err(|_| Broken::Record("a record's length is negative"))?;
    take(source, len + length_len)?.ok_or(Broken::Record("the batch ends within a record"))
}

/// So many bytes; `None` if there are fewer. Memory grows with what is there, not with what is claimed.
fn take(source: &mut impl Source, count: usize) -> Result<Option<Bytes>, Broken> {
    let Some(bytes) = source.peek(count)?.get(..count).map(Bytes::copy_from_slice) else { return Ok(None) };
    source.skip(count)?;
    Ok(Some(bytes))
}

//! Going through all records of a batch while only one of them is in memory.
//!
//! What [`Batch::record_iter`](crate::Batch::record_iter) yields are slices of the whole decompressed batch, so it
//! needs a bound. A conversion has none: what was once accepted must be shown to every client, whatever
//! `max.decompressed.message.bytes` says today.

use bytes::Bytes;

use crate::NO_TIMESTAMP;
use crate::batch::Batch;
use crate::compression::Decoder;
use crate::error::RecordsError;
use crate::header::HEAD_LEN;
use crate::legacy::key_and_value;
use crate::record::{Record, read_v2_record};
use crate::stream::{Broken, DecoderSource, SliceSource, Source, is_at_end};
use crate::varint::read_varint;
use crate::wrapper::{Wrapper, peek_message};

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
        visited.map_err(|broken| broken.at(self.header.base_offset))
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
        for _ in 0..self.header.record_count {
            let bytes = next_v2_record(source)?;
            let (record, _) = read_v2_record(&bytes, 0).map_err(Broken::Record)?;
            visit(record.in_batch(&self.header)).map_err(Broken::Codec)?;
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
        let wrapper = Wrapper::of(self)?;
        let (base, append_time) = (wrapper.offset_base()?, self.header.append_time());
        let mut source = wrapper.open()?;
        while let Some(head) = peek_message(&mut source)? {
            let Some(bytes) = take(&mut source, head.len)? else { return Ok(()) };
            let (key, value) = key_and_value(&bytes, head.magic).map_err(Broken::Record)?;
            let timestamp = head.timestamp.map_or(NO_TIMESTAMP, |own| append_time.unwrap_or(own));
            let record = Record::legacy(base.wrapping_add(head.offset), timestamp, key, value);
            visit(record).map_err(Broken::Codec)?;
        }
        Ok(())
    }
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

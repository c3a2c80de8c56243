//! A record, as every format's reader yields it.

use std::ops::Range;

use bytes::Bytes;
use klamm_model::{Offset, TimestampMs};

use crate::NO_SEQUENCE;
use crate::header::{BatchHeader, sequence_at};
use crate::varint::{read_varint, read_varlong, varlong_len, write_varint, write_varlong};

/// A header of a record (KIP-82). The same key may stand more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// UTF-8, as clients write it; not checked.
    pub key: Bytes,
    /// Any bytes, or null.
    pub value: Option<Bytes>,
}

/// One record, with the offset and the time that a consumer sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place in the partition.
    pub offset: Offset,
    /// The producer's time or, where the batch says so, the append time; -1 in V0.
    pub timestamp: TimestampMs,
    /// The key, or null.
    pub key: Option<Bytes>,
    /// The value; null is a tombstone.
    pub value: Option<Bytes>,
    /// Headers, in order; none in V0 and V1.
    pub headers: Vec<Header>,
    /// The idempotent producer's sequence number, or -1.
    pub sequence: i32,
}

impl Record {
    pub(crate) fn legacy(
        offset: Offset,
        timestamp: TimestampMs,
        key: Option<Bytes>,
        value: Option<Bytes>,
    ) -> Record {
        Record { offset, timestamp, key, value, headers: Vec::new(), sequence: NO_SEQUENCE }
    }
}

/// A record of V2 before its batch's head makes offset and time of the deltas.
pub(crate) struct V2Record {
    pub(crate) timestamp_delta: i64,
    pub(crate) offset_delta: i32,
    pub(crate) key: Option<Bytes>,
    pub(crate) value: Option<Bytes>,
    pub(crate) headers: Vec<Header>,
}

impl V2Record {
    /// The record as a consumer sees it in a batch with that head.
    pub(crate) fn in_batch(self, header: &BatchHeader) -> Record {
        let own_time = header.base_timestamp.wrapping_add(self.timestamp_delta);
        Record {
            offset: header.base_offset.wrapping_add(i64::from(self.offset_delta)),
            timestamp: header.append_time().unwrap_or(own_time),
            key: self.key,
            value: self.value,
            headers: self.headers,
            sequence: sequence_at(header.base_sequence, self.offset_delta),
        }
    }
}

/// The shortest header: an empty key and a null value.
const HEADER_LEN_MIN: usize = 2;

/// The record that begins at `position` of a V2 batch's decompressed records, and where it ends. Its byte
/// strings are slices of `bytes`.
pub(crate) fn read_v2_record(bytes: &Bytes, position: usize) -> Result<(V2Record, usize), &'static str> {
    let mut headers = Vec::new();
    let (places, end) = walk_v2_record(bytes, position, |key, value| {
        headers.push(Header { key: bytes.slice(key), value: value.map(|value| bytes.slice(value)) });
    })?;
    let V2Places { timestamp_delta, offset_delta, key, value } = places;
    let (key, value) = (key.map(|key| bytes.slice(key)), value.map(|value| bytes.slice(value)));
    Ok((V2Record { timestamp_delta, offset_delta, key, value, headers }, end))
}

/// What a record of V2 says, with the places of key and value.
pub(crate) struct V2Places {
    pub(crate) timestamp_delta: i64,
    pub(crate) offset_delta: i32,
    pub(crate) key: Option<Range<usize>>,
    pub(crate) value: Option<Range<usize>>,
}

/// The record that begins at `position` of a V2 batch's decompressed records, and where it ends; `header` is told the
/// places of each header's key and value.
pub(crate) fn walk_v2_record(
    bytes: &[u8],
    position: usize,
    mut header: impl FnMut(Range<usize>, Option<Range<usize>>),
) -> Result<(V2Places, usize), &'static str> {
    let mut cursor = Cursor { bytes, position, end: bytes.len() };
    let len = cursor.varint()?;
    let len = usize::try_from(len).map_err(|_| "a record's length is negative")?;
    if len > cursor.end - cursor.position {
        return Err("the batch ends within a record");
    }
    cursor.end = cursor.position + len;
    cursor.take(1)?; // attributes, of which none is defined
    let timestamp_delta = cursor.varlong()?;
    let offset_delta = cursor.varint()?;
    let key = cursor.byte_string()?;
    let value = cursor.byte_string()?;
    let count = usize::try_from(cursor.varint()?).map_err(|_| "a record's number of headers is negative")?;
    if count > (cursor.end - cursor.position) / HEADER_LEN_MIN {
        return Err("a record claims more headers than it has bytes");
    }
    for _ in 0..count {
        let key = cursor.byte_string()?.ok_or("a record's header has no key")?;
        header(key, cursor.byte_string()?);
    }
    if cursor.position != cursor.end {
        return Err("a record's length is not that of its fields");
    }
    Ok((V2Places { timestamp_delta, offset_delta, key, value }, cursor.end))
}

struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
    end: usize,
}

impl Cursor<'_> {
    fn take(&mut self, count: usize) -> Result<usize, &'static str> {
        if count > self.end - self.position {
            return Err("a record is shorter than its fields");
        }
        let start = self.position;
        self.position += count;
        Ok(start)
    }

    #[inline]
    fn varint(&mut self) -> Result<i32, &'static str> {
        let read = read_varint(&self.bytes[self.position..self.end]);
        let (value, len) = read.map_err(|_| "a record has a broken varint")?;
        self.position += len;
        Ok(value)
    }

    #[inline]
    fn varlong(&mut self) -> Result<i64, &'static str> {
        let read = read_varlong(&self.bytes[self.position..self.end]);
        let (value, len) = read.map_err(|_| "a record has a broken varint")?;
        self.position += len;
        Ok(value)
    }

    /// Any negative length is a null, as in Kafka.
    #[inline]
    fn byte_string(&mut self) -> Result<Option<Range<usize>>, &'static str> {
        let Ok(len) = usize::try_from(self.varint()?) else { return Ok(None) };
        let start = self.take(len)?;
        Ok(Some(start..start + len))
    }
}

/// Writes a record of V2.
pub(crate) fn write_v2_record(
    out: &mut Vec<u8>,
    (timestamp_delta, offset_delta): (i64, i32),
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: &[Header],
) {
    let count = i32::try_from(headers.len()).unwrap_or(i32::MAX);
    let mut len = 1 + varlong_len(timestamp_delta) + varlong_len(i64::from(offset_delta));
    len += byte_string_len(key) + byte_string_len(value) + varlong_len(i64::from(count));
    for header in headers {
        len += byte_string_len(Some(&header.key)) + byte_string_len(header.value.as_deref());
    }
    write_varlong(out, len as i64);
    out.push(0);
    write_varlong(out, timestamp_delta);
    write_varint(out, offset_delta);
    write_byte_string(out, key);
    write_byte_string(out, value);
    write_varint(out, count);
    for header in headers {
        write_byte_string(out, Some(&header.key));
        write_byte_string(out, header.value.as_deref());
    }
}

fn byte_string_len(bytes: Option<&[u8]>) -> usize {
    bytes.map_or(1, |bytes| varlong_len(bytes.len() as i64) + bytes.len())
}

fn write_byte_string(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => write_varint(out, -1),
        Some(bytes) => {
            write_varlong(out, bytes.len() as i64);
            out.extend_from_slice(bytes);
        }
    }
}

//! Messages of the formats V0 and V1.
//!
//! A message is `offset: i64, size: i32, crc: u32, magic: i8, attributes: i8, (V1: timestamp: i64), key, value`,
//! each byte string with its length as i32, -1 for null; the CRC-32 covers all that follows it. A compressed
//! message holds a run of messages as its value. Its own offset is that of the last of them; inner offsets are
//! absolute in V0 and relative in V1, where with LogAppendTime only the outer message carries the time.

use bytes::Bytes;
use flate2::Crc;
use klamm_model::{Offset, TimestampMs, TimestampType};

use crate::NO_TIMESTAMP;
use crate::compression::{Compression, decompress};
use crate::error::RecordsError;
use crate::header::{BatchHeader, LOG_APPEND_TIME_BIT, LOG_OVERHEAD, V0_SIZE_MIN, read};

/// Where the CRC stands, and where what it covers begins.
const CRC_POSITION: usize = 12;
const CRC_START: usize = 16;
pub(crate) const TIMESTAMP_POSITION: usize = 18;

/// Bytes before the key's length.
pub(crate) const fn fields_len(magic: i8) -> usize {
    if magic == 0 { 18 } else { 26 }
}

/// The key and the value of a message, as slices of it.
pub(crate) fn key_and_value(
    message: &Bytes,
    magic: i8,
) -> Result<(Option<Bytes>, Option<Bytes>), &'static str> {
    let (key, end) = byte_string(message, fields_len(magic))?;
    let (value, end) = byte_string(message, end)?;
    if end != message.len() {
        return Err("a message is longer than its fields");
    }
    Ok((key, value))
}

fn byte_string(message: &Bytes, at: usize) -> Result<(Option<Bytes>, usize), &'static str> {
    const CUT: &str = "a message is shorter than its fields";
    let field = message.get(at..at + 4).ok_or(CUT)?;
    let start = at + 4;
    let Ok(len) = usize::try_from(i32::from_be_bytes(read(field, 0))) else {
        return Ok((None, start));
    };
    if len > message.len() - start {
        return Err(CUT);
    }
    Ok((Some(message.slice(start..start + len)), start + len))
}

pub(crate) fn crc_of(message: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(&message[CRC_START..]);
    crc.sum()
}

/// A message to write. The size and the CRC follow from the rest.
pub(crate) struct Message<'a> {
    pub(crate) offset: Offset,
    pub(crate) magic: i8,
    pub(crate) attributes: i16,
    pub(crate) timestamp: TimestampMs,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
}

/// What a message's attributes say of codec and time; V0 has no times.
pub(crate) fn attributes(magic: i8, compression: Compression, timestamp_type: TimestampType) -> i16 {
    let append_time = magic > 0 && timestamp_type == TimestampType::LogAppendTime;
    compression.attribute_bits() | if append_time { LOG_APPEND_TIME_BIT } else { 0 }
}

pub(crate) fn write_message(out: &mut Vec<u8>, message: &Message<'_>) {
    let start = out.len();
    out.extend_from_slice(&message.offset.to_be_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&[message.magic as u8, message.attributes as u8]);
    if message.magic > 0 {
        out.extend_from_slice(&message.timestamp.to_be_bytes());
    }
    for bytes in [message.key, message.value] {
        out.extend_from_slice(&bytes.map_or(-1, |bytes| bytes.len() as i32).to_be_bytes());
        out.extend_from_slice(bytes.unwrap_or_default());
    }
    let size = (out.len() - start - LOG_OVERHEAD) as i32;
    out[start + 8..start + 12].copy_from_slice(&size.to_be_bytes());
    let crc = crc_of(&out[start..]);
    out[start + CRC_POSITION..start + CRC_START].copy_from_slice(&crc.to_be_bytes());
}

/// What a message in a compressed one begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InnerHead {
    /// Relative in V1.
    pub(crate) offset: Offset,
    /// Bytes of the whole message.
    pub(crate) len: usize,
    pub(crate) magic: i8,
    /// `None` in V0, which has no times.
    pub(crate) timestamp: Option<TimestampMs>,
}

impl InnerHead {
    /// The head that `bytes` begin with. `None` at the end, and where the message is cut off before its fields:
    /// old brokers and clients left such at the end of a wrapper, and Kafka passes over them.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<InnerHead>, &'static str> {
        if bytes.len() < LOG_OVERHEAD {
            return Ok(None);
        }
        let size = i32::from_be_bytes(read(bytes, 8));
        if size < V0_SIZE_MIN {
            return Err("an inner message that is too small");
        }
        let len = size as usize + LOG_OVERHEAD;
        if bytes.len() < len.min(fields_len(1)) {
            return Ok(None);
        }
        let magic = bytes[CRC_START] as i8;
        if !(0..=1).contains(&magic) {
            return Err("an inner message of another format");
        }
        if len < fields_len(magic) + 8 {
            return Err("an inner message that is too small");
        }
        if bytes[CRC_START + 1] & crate::header::COMPRESSION_MASK as u8 != 0 {
            return Err("a compressed message in a compressed message");
        }
        let timestamp = (magic > 0).then(|| i64::from_be_bytes(read(bytes, TIMESTAMP_POSITION)));
        Ok(Some(InnerHead { offset: i64::from_be_bytes(read(bytes, 0)), len, magic, timestamp }))
    }
}

/// The codec and the value of a compressed message.
pub(crate) fn wrapped_value(
    header: &BatchHeader,
    message: &Bytes,
) -> Result<(Compression, Bytes), RecordsError> {
    let invalid = |reason| RecordsError::InvalidRecord { offset: header.base_offset, reason };
    let codec = header.compression()?;
    if codec == Compression::Zstd {
        return Err(invalid("zstd in a format that does not know it"));
    }
    let (_, value) = key_and_value(message, header.magic).map_err(invalid)?;
    Ok((codec, value.ok_or_else(|| invalid("a compressed message without a value"))?))
}

/// What is added to the offsets in a compressed message, of which the last one is `last`.
pub(crate) fn wrapped_offset_base(header: &BatchHeader, last: Offset) -> Result<Offset, &'static str> {
    // An outer offset of 0 comes from old clients that never set it; the inner ones are then all there is.
    if header.magic == 0 || header.base_offset == 0 {
        return Ok(0);
    }
    if header.base_offset < last {
        return Err("a compressed message whose offset is less than that of its last inner one");
    }
    Ok(header.base_offset.wrapping_sub(last))
}

/// The messages in a compressed one.
#[derive(Clone, Debug)]
pub(crate) struct InnerMessages {
    bytes: Bytes,
    position: usize,
    /// What is added to the inner offsets of a V1 wrapper.
    offset_base: Offset,
    /// Overrules the times of inner V1 messages.
    append_time: Option<TimestampMs>,
    wrapper_offset: Offset,
}

/// One message out of a compressed one, with its final offset and time.
#[derive(Clone, Debug)]
pub(crate) struct InnerMessage {
    pub(crate) offset: Offset,
    pub(crate) timestamp: TimestampMs,
    pub(crate) magic: i8,
    pub(crate) bytes: Bytes,
}

impl InnerMessages {
    /// Decompresses a wrapper, to at most `limit` bytes.
    pub(crate) fn open(
        header: &BatchHeader,
        message: &Bytes,
        limit: usize,
    ) -> Result<InnerMessages, RecordsError> {
        let offset = header.base_offset;
        let invalid = |reason| RecordsError::InvalidRecord { offset, reason };
        let (codec, value) = wrapped_value(header, message)?;
        let bytes = decompress(codec, header.magic, &value, limit)?;
        let append_time = header.append_time();
        let mut inner =
            InnerMessages { bytes, position: 0, offset_base: 0, append_time, wrapper_offset: offset };
        let last = inner.clone().try_fold(None, |_, message| message.map(|message| Some(message.offset)))?;
        let last = last.ok_or_else(|| invalid("a compressed message that holds none"))?;
        inner.offset_base = wrapped_offset_base(header, last).map_err(invalid)?;
        Ok(inner)
    }

    fn next_message(&mut self) -> Result<Option<InnerMessage>, &'static str> {
        let rest = &self.bytes[self.position..];
        let Some(head) = InnerHead::read(rest)?.filter(|head| head.len <= rest.len()) else {
            return Ok(None);
        };
        let offset = self.offset_base.wrapping_add(head.offset);
        let timestamp = head.timestamp.map_or(NO_TIMESTAMP, |own| self.append_time.unwrap_or(own));
        let bytes = self.bytes.slice(self.position..self.position + head.len);
        self.position += head.len;
        Ok(Some(InnerMessage { offset, timestamp, magic: head.magic, bytes }))
    }
}

impl Iterator for InnerMessages {
    type Item = Result<InnerMessage, RecordsError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_message() {
            Ok(message) => message.map(Ok),
            Err(reason) => {
                self.position = self.bytes.len();
                Some(Err(RecordsError::InvalidRecord { offset: self.wrapper_offset, reason }))
            }
        }
    }
}

impl InnerMessage {
    /// The checksum of an inner message; the outer one's covers only compressed bytes.
    pub(crate) fn check_crc(&self) -> Result<(), RecordsError> {
        check_message_crc(&self.bytes, self.offset)
    }
}

pub(crate) fn check_message_crc(message: &[u8], offset: Offset) -> Result<(), RecordsError> {
    let stored = u32::from_be_bytes(read(message, CRC_POSITION));
    let computed = crc_of(message);
    if stored == computed { Ok(()) } else { Err(RecordsError::InvalidCrc { offset, stored, computed }) }
}

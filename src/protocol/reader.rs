//! Reads the protocol's primitives from a frame, on guard against hostile bytes.
//!
//! The rules that keep memory in proportion to the bytes (`DESIGN`, "Limits against hostile bytes"):
//! - a length is checked against the bytes that remain before anything is allocated;
//! - an array's count is checked against the bytes that remain, each element counted with the least that it
//!   can take in this version;
//! - the elements of all arrays together take at most [`MEMORY_FACTOR`] times the frame, [`MEMORY_FREE`] aside:
//!   an empty string is one byte on the wire and 24 in memory;
//! - bytes and records are slices of the frame.

use bytes::Bytes;
use klamm_model::Uuid;

use crate::message::Element;
use crate::{DecodeError, DecodeErrorKind, Fields, RecordsField};

/// How many bytes of arrays each byte of a frame justifies. Real requests stay below 14, which a list of topics
/// with names of one letter reaches.
const MEMORY_FACTOR: usize = 16;

/// What a small frame may take whatever its factor.
const MEMORY_FREE: usize = 64 * 1024;

/// A position in a frame that is being decoded.
#[derive(Debug)]
pub struct Reader {
    bytes: Bytes,
    position: usize,
    /// Where the innermost tagged field ends, or the frame.
    end: usize,
    /// What the elements of arrays may still take.
    memory: usize,
}

/// A tagged field that is being read.
pub(crate) struct OpenTag {
    pub(crate) number: u32,
    end_outside: usize,
}

macro_rules! integers {
    ($($(#[$about:meta])* $name:ident: $size:literal;)*) => {$(
        $(#[$about])*
        ///
        /// # Errors
        /// When the bytes end too early.
        #[inline]
        pub fn $name(&mut self) -> Result<$name, DecodeError> {
            Ok($name::from_be_bytes(self.array_of()?))
        }
    )*};
}

impl Reader {
    /// Begins at the first of these bytes.
    pub fn new(bytes: Bytes) -> Reader {
        let end = bytes.len();
        let memory = end.saturating_mul(MEMORY_FACTOR).saturating_add(MEMORY_FREE);
        Reader { bytes, position: 0, end, memory }
    }

    /// How many bytes are left.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.end - self.position
    }

    /// How many bytes were read.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The bytes that are left, as a slice of the frame.
    pub fn rest(&self) -> Bytes {
        self.bytes.slice(self.position..self.end)
    }

    pub(crate) fn unread(&self) -> &[u8] {
        &self.bytes[self.position..self.end]
    }

    #[cold]
    pub(crate) fn error(&self, kind: DecodeErrorKind) -> DecodeError {
        DecodeError::new(self.position, kind)
    }

    #[cold]
    fn truncated(&self, wanted: usize) -> DecodeError {
        self.error(DecodeErrorKind::Truncated { wanted, remaining: self.remaining() })
    }

    #[inline]
    fn array_of<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        match self.bytes[self.position..self.end].first_chunk::<N>() {
            Some(bytes) => {
                self.position += N;
                Ok(*bytes)
            }
            None => Err(self.truncated(N)),
        }
    }

    integers! {
        /// An int8.
        i8: 1;
        /// An int16.
        i16: 2;
        /// A uint16.
        u16: 2;
        /// An int32.
        i32: 4;
        /// An int64.
        i64: 8;
        /// A float64.
        f64: 8;
    }

    /// A boolean: anything but 0 is true.
    ///
    /// # Errors
    /// When the bytes end too early.
    #[inline]
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        Ok(self.i8()? != 0)
    }

    /// 16 bytes of an id.
    ///
    /// # Errors
    /// When the bytes end too early.
    #[inline]
    pub fn uuid(&mut self) -> Result<Uuid, DecodeError> {
        Ok(Uuid(self.array_of()?))
    }

    /// An unsigned variable-length integer. Bits beyond the 32nd are dropped, as in Kafka.
    ///
    /// # Errors
    /// When it does not end within five bytes.
    #[inline]
    pub fn unsigned_varint(&mut self) -> Result<u32, DecodeError> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array_of()?;
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.error(DecodeErrorKind::Varint))
    }

    /// The length of a compact string, array or bytes; `None` for null. Any negative length is null in Kafka.
    #[inline]
    fn compact_length(&mut self) -> Result<Option<usize>, DecodeError> {
        let length = (self.unsigned_varint()? as i32).wrapping_sub(1);
        Ok(usize::try_from(length).ok())
    }

    #[inline]
    fn length(&mut self, flexible: bool) -> Result<Option<usize>, DecodeError> {
        if flexible { self.compact_length() } else { Ok(usize::try_from(self.i32()?).ok()) }
    }

    #[inline]
    fn string_length(&mut self, flexible: bool) -> Result<Option<usize>, DecodeError> {
        if flexible { self.compact_length() } else { Ok(usize::try_from(self.i16()?).ok()) }
    }

    #[inline]
    fn null<T>(&self, allowed: bool) -> Result<Option<T>, DecodeError> {
        if allowed { Ok(None) } else { Err(self.error(DecodeErrorKind::Null)) }
    }

    fn slice(&mut self, length: usize) -> Result<Bytes, DecodeError> {
        if length > self.remaining() {
            return Err(self.truncated(length));
        }
        let start = self.position;
        self.position += length;
        Ok(self.bytes.slice(start..self.position))
    }

    /// A string. What is no UTF-8 is replaced, as Kafka does.
    pub(crate) fn string(&mut self, flexible: bool) -> Result<String, DecodeError> {
        match self.nullable_string(flexible, true)? {
            Some(text) => Ok(text),
            None => Err(self.error(DecodeErrorKind::Null)),
        }
    }

    pub(crate) fn nullable_string(
        &mut self,
        flexible: bool,
        null: bool,
    ) -> Result<Option<String>, DecodeError> {
        let Some(length) = self.string_length(flexible)? else { return self.null(null) };
        if length > i16::MAX as usize {
            return Err(self.error(DecodeErrorKind::StringTooLong(length)));
        }
        if length > self.remaining() {
            return Err(self.truncated(length));
        }
        // Copied, so that a name that outlives its request does not pin the whole frame.
        let text = String::from_utf8_lossy(&self.bytes[self.position..self.position + length]).into_owned();
        self.position += length;
        Ok(Some(text))
    }

    pub(crate) fn bytes(&mut self, flexible: bool) -> Result<Bytes, DecodeError> {
        match self.nullable_bytes(flexible, true)? {
            Some(bytes) => Ok(bytes),
            None => Err(self.error(DecodeErrorKind::Null)),
        }
    }

    pub(crate) fn nullable_bytes(
        &mut self,
        flexible: bool,
        null: bool,
    ) -> Result<Option<Bytes>, DecodeError> {
        match self.length(flexible)? {
            Some(length) => self.slice(length).map(Some),
            None => self.null(null),
        }
    }

    pub(crate) fn records(
        &mut self,
        flexible: bool,
        null: bool,
    ) -> Result<Option<RecordsField>, DecodeError> {
        Ok(self.nullable_bytes(flexible, null)?.map(RecordsField::Bytes))
    }

    /// A struct that is preceded by whether it is there.
    pub(crate) fn nullable_fields<T: Fields>(
        &mut self,
        version: i16,
        null: bool,
    ) -> Result<Option<T>, DecodeError> {
        if self.i8()? < 0 { self.null(null) } else { T::read(self, version).map(Some) }
    }

    /// The same as the value of a tagged field, where it is preceded by an unsigned varint instead of an int8.
    pub(crate) fn nullable_tagged_fields<T: Fields>(
        &mut self,
        version: i16,
        null: bool,
    ) -> Result<Option<T>, DecodeError> {
        if self.unsigned_varint()? == 0 { self.null(null) } else { T::read(self, version).map(Some) }
    }

    pub(crate) fn array<T: Element>(&mut self, version: i16, flexible: bool) -> Result<Vec<T>, DecodeError> {
        match self.nullable_array(version, flexible, true)? {
            Some(elements) => Ok(elements),
            None => Err(self.error(DecodeErrorKind::Null)),
        }
    }

    pub(crate) fn nullable_array<T: Element>(
        &mut self,
        version: i16,
        flexible: bool,
        null: bool,
    ) -> Result<Option<Vec<T>>, DecodeError> {
        let Some(count) = self.length(flexible)? else { return self.null(null) };
        self.claim(count, T::least(version, flexible), size_of::<T>())?;
        let mut elements = Vec::with_capacity(count);
        for _ in 0..count {
            elements.push(T::read_element(self, version, flexible)?);
        }
        Ok(Some(elements))
    }

    /// Says whether so many elements can be there and may be allocated for.
    fn claim(&mut self, count: usize, least: usize, in_memory: usize) -> Result<(), DecodeError> {
        let remaining = self.remaining();
        if count > remaining / least.max(1) {
            return Err(self.error(DecodeErrorKind::Count { count, remaining }));
        }
        match self.memory.checked_sub(count.saturating_mul(in_memory)) {
            Some(left) => self.memory = left,
            None => return Err(self.error(DecodeErrorKind::Memory)),
        }
        Ok(())
    }

    pub(crate) fn tag_count(&mut self) -> Result<u32, DecodeError> {
        self.unsigned_varint()
    }

    /// The number and length of a tagged field; until [`Reader::end_tag`], nothing beyond it can be read.
    pub(crate) fn begin_tag(&mut self) -> Result<OpenTag, DecodeError> {
        let number = self.unsigned_varint()?;
        let length = self.unsigned_varint()? as usize;
        if length > self.remaining() {
            return Err(self.truncated(length));
        }
        let end_outside = self.end;
        self.end = self.position + length;
        Ok(OpenTag { number, end_outside })
    }

    pub(crate) fn skip_tag(&mut self, _tag: &OpenTag) {
        self.position = self.end;
    }

    pub(crate) fn end_tag(&mut self, tag: OpenTag) -> Result<(), DecodeError> {
        let rest = self.remaining();
        if rest > 0 {
            return Err(self.error(DecodeErrorKind::Tag { tag: tag.number, rest }));
        }
        self.end = tag.end_outside;
        Ok(())
    }

    /// Skips tagged fields of which none is known.
    pub(crate) fn skip_tags(&mut self) -> Result<(), DecodeError> {
        for _ in 0..self.tag_count()? {
            let tag = self.begin_tag()?;
            self.skip_tag(&tag);
            self.end_tag(tag)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use crate::messages::{DescribeGroupsRequest, MetadataRequest};

    fn metadata(version: i16, body: &[u8]) -> Result<MetadataRequest, String> {
        MetadataRequest::decode(&mut Reader::new(Bytes::copy_from_slice(body)), version)
            .map_err(|e| e.to_string())
    }

    /// What Apache Kafka does with these bodies was recorded; a broker that is stricter or laxer breaks clients
    /// or lets garbage through.
    #[test]
    fn odd_lengths_read_as_in_kafka() {
        let all_topics = metadata(4, &[0xff, 0xff, 0xff, 0xfe, 0]).unwrap();
        assert_eq!(all_topics.topics, None, "-2 is null where null is allowed");
        assert_eq!(metadata(0, &[0, 0, 0, 0]).unwrap().topics, Some(vec![]));

        let refused = |version, body: &[u8]| metadata(version, body).unwrap_err();
        assert_eq!(refused(0, &[0xff; 4]), "MetadataRequest v0, byte 4: null where none is allowed");
        assert_eq!(
            refused(4, &[0, 0, 0, 1, 0xff, 0xff, 0]),
            "MetadataRequest v4, byte 6: null where none is allowed",
            "a topic's name is never null in v4"
        );
        assert_eq!(
            refused(4, &[0, 0, 0, 1, 0, 5, b'a', b'b']),
            "MetadataRequest v4, byte 6: 5 bytes are claimed, 2 remain"
        );
        assert_eq!(
            refused(4, &[0x7f, 0xff, 0xff, 0xff]),
            "MetadataRequest v4, byte 4: an array of 2147483647 elements does not fit into 0 bytes"
        );
        assert_eq!(
            refused(9, &[0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
            "MetadataRequest v9, byte 5: a variable-length integer does not end within 5 bytes"
        );
        assert_eq!(refused(99, &[]), "MetadataRequest v99, byte 0: version 99 is not known");
    }

    #[test]
    fn a_compact_length_beyond_an_int32_is_null() {
        // 0xffffffff as an unsigned varint is -1 in Java, and minus one for the compact form is below zero.
        let body = [0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 0];
        assert_eq!(metadata(9, &body).unwrap().topics, None);
    }

    #[test]
    fn what_is_no_utf8_is_replaced() {
        let request = metadata(4, &[0, 0, 0, 1, 0, 2, 0xfe, b'a', 1]).unwrap();
        let topics = request.topics.unwrap();
        assert_eq!(topics[0].name.as_deref(), Some("\u{fffd}a"));
    }

    #[test]
    fn tagged_fields_that_nobody_knows_are_skipped_in_any_order() {
        let plain = metadata(9, &[0, 0, 0, 0, 0]).unwrap();
        let tagged = metadata(9, &[0, 0, 0, 0, 2, 5, 1, 0, 4, 2, 1, 1]).unwrap();
        assert_eq!(plain, tagged);
        let short = metadata(9, &[0, 0, 0, 0, 1, 5, 9, 0]).unwrap_err();
        assert_eq!(short, "MetadataRequest v9, byte 7: 9 bytes are claimed, 1 remain");
    }

    /// A tag that claims less than its value takes would let the value run over into what follows.
    #[test]
    fn a_tagged_value_ends_where_it_says() {
        // Fetch v12 with a cluster id (tag 0) of which the length says one byte too few, then one too many.
        let fetch = |length: u8, value: &[u8]| {
            let mut body = vec![0; 4 + 4 + 4 + 4 + 1 + 4 + 4];
            body.extend([1, 1, 1, 1, 0, length]);
            body.extend(value);
            crate::messages::FetchRequest::decode(&mut Reader::new(body.into()), 12)
        };
        assert_eq!(fetch(3, &[3, b'i', b'd']).unwrap().cluster_id.as_deref(), Some("id"));
        let kind = |result: Result<_, DecodeError>| {
            result.map(|_: crate::messages::FetchRequest| ()).unwrap_err().kind().clone()
        };
        assert_eq!(kind(fetch(2, &[3, b'i', b'd'])), DecodeErrorKind::Truncated { wanted: 2, remaining: 1 });
        assert_eq!(kind(fetch(4, &[3, b'i', b'd', 0])), DecodeErrorKind::Tag { tag: 0, rest: 1 });
    }

    #[test]
    fn elements_that_swell_in_memory_are_refused() {
        let names = |count: usize| {
            let mut writer = crate::Writer::new();
            writer.unsigned_varint(count as u32 + 1);
            writer.raw(&vec![1; count]);
            writer.raw(&[0, 0]);
            DescribeGroupsRequest::decode(&mut Reader::new(writer.finish().into_bytes()), 5)
        };
        assert_eq!(names(1_000).unwrap().groups.len(), 1_000, "a small frame may");
        assert_eq!(*names(100_000).unwrap_err().kind(), DecodeErrorKind::Memory);
    }
}

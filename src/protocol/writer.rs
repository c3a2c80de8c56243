//! Writes the protocol's primitives into a frame of chunks.

use bytes::{BufMut, Bytes, BytesMut};
use klamm_model::Uuid;

use crate::frame::{Chunk, Frame};
use crate::message::Element;
use crate::{EncodeError, EncodeErrorKind, Fields, RecordsField};

/// From this length on, bytes become a chunk of their own instead of being copied: below it a copy is cheaper
/// than one more piece for the socket.
const OWN_CHUNK_FROM: usize = 4096;

/// A frame that is being encoded.
#[derive(Debug, Default)]
pub struct Writer {
    /// All bytes of the frame's own, in one piece that is cut only at the end.
    own: BytesMut,
    /// What stands between them, each with the number of own bytes before it.
    between: Vec<(usize, Chunk)>,
    /// How many tagged fields are open; their values stay in one piece, since their length is put before them.
    open_tags: u32,
}

/// A tagged field that is being written: where its one-byte length stands.
pub(crate) struct OpenTag(usize);

macro_rules! integers {
    ($($(#[$about:meta])* $name:ident = $put:ident;)*) => {$(
        $(#[$about])*
        #[inline]
        pub fn $name(&mut self, value: $name) {
            self.own.$put(value);
        }
    )*};
}

impl Writer {
    /// An empty frame.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// An empty frame with room for so many bytes of its own (without those that become chunks).
    pub fn with_capacity(bytes: usize) -> Writer {
        Writer { own: BytesMut::with_capacity(bytes), ..Writer::default() }
    }

    integers! {
        /// An int8.
        i8 = put_i8;
        /// An int16.
        i16 = put_i16;
        /// A uint16.
        u16 = put_u16;
        /// An int32.
        i32 = put_i32;
        /// An int64.
        i64 = put_i64;
        /// A float64.
        f64 = put_f64;
    }

    /// A boolean.
    #[inline]
    pub fn bool(&mut self, value: bool) {
        self.own.put_u8(u8::from(value));
    }

    /// 16 bytes of an id.
    #[inline]
    pub fn uuid(&mut self, value: Uuid) {
        self.own.put_slice(&value.0);
    }

    /// An unsigned variable-length integer.
    #[inline]
    pub fn unsigned_varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.own.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.own.put_u8(value as u8);
    }

    /// Bytes as they are, without a length.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.own.put_slice(bytes);
    }

    fn length(&mut self, length: Option<usize>, flexible: bool) -> Result<(), EncodeError> {
        let signed = match length {
            None => -1,
            Some(length) => i32::try_from(length)
                .ok()
                .filter(|l| *l < i32::MAX)
                .ok_or_else(|| EncodeError::new(EncodeErrorKind::TooLong(length)))?,
        };
        if flexible {
            self.unsigned_varint((signed + 1) as u32);
        } else {
            self.i32(signed);
        }
        Ok(())
    }

    pub(crate) fn string(&mut self, text: &str, flexible: bool) -> Result<(), EncodeError> {
        let Ok(length) = i16::try_from(text.len()) else {
            return Err(EncodeError::new(EncodeErrorKind::StringTooLong(text.len())));
        };
        if flexible {
            self.unsigned_varint(length as u32 + 1);
        } else {
            self.i16(length);
        }
        self.own.put_slice(text.as_bytes());
        Ok(())
    }

    pub(crate) fn nullable_string(&mut self, text: Option<&str>, flexible: bool) -> Result<(), EncodeError> {
        match text {
            Some(text) => self.string(text, flexible)?,
            None if flexible => self.unsigned_varint(0),
            None => self.i16(-1),
        }
        Ok(())
    }

    pub(crate) fn bytes(&mut self, bytes: &Bytes, flexible: bool) -> Result<(), EncodeError> {
        self.length(Some(bytes.len()), flexible)?;
        if bytes.len() >= OWN_CHUNK_FROM && self.open_tags == 0 {
            self.chunk(Chunk::Bytes(bytes.clone()));
        } else {
            self.own.put_slice(bytes);
        }
        Ok(())
    }

    pub(crate) fn nullable_bytes(
        &mut self,
        bytes: Option<&Bytes>,
        flexible: bool,
    ) -> Result<(), EncodeError> {
        match bytes {
            Some(bytes) => self.bytes(bytes, flexible),
            None => self.length(None, flexible),
        }
    }

    pub(crate) fn records(
        &mut self,
        records: Option<&RecordsField>,
        flexible: bool,
    ) -> Result<(), EncodeError> {
        match records {
            None => self.length(None, flexible),
            Some(RecordsField::Bytes(bytes)) => self.bytes(bytes, flexible),
            Some(&RecordsField::External { index, len }) => {
                self.length(Some(len as usize), flexible)?;
                if len > 0 {
                    self.chunk(Chunk::External { index, len });
                }
                Ok(())
            }
        }
    }

    fn chunk(&mut self, chunk: Chunk) {
        self.between.push((self.own.len(), chunk));
    }

    pub(crate) fn nullable_fields<T: Fields>(
        &mut self,
        fields: Option<&T>,
        version: i16,
    ) -> Result<(), EncodeError> {
        match fields {
            Some(fields) => {
                self.i8(1);
                fields.write(self, version)
            }
            None => {
                self.i8(-1);
                Ok(())
            }
        }
    }

    /// The same as the value of a tagged field, where it is preceded by an unsigned varint instead of an int8.
    pub(crate) fn nullable_tagged_fields<T: Fields>(
        &mut self,
        fields: Option<&T>,
        version: i16,
    ) -> Result<(), EncodeError> {
        self.unsigned_varint(u32::from(fields.is_some()));
        fields.map_or(Ok(()), |fields| fields.write(self, version))
    }

    pub(crate) fn array<T: Element>(
        &mut self,
        elements: &[T],
        version: i16,
        flexible: bool,
    ) -> Result<(), EncodeError> {
        self.length(Some(elements.len()), flexible)?;
        for element in elements {
            element.write_element(self, version, flexible)?;
        }
        Ok(())
    }

    pub(crate) fn nullable_array<T: Element>(
        &mut self,
        elements: Option<&[T]>,
        version: i16,
        flexible: bool,
    ) -> Result<(), EncodeError> {
        match elements {
            Some(elements) => self.array(elements, version, flexible),
            None => self.length(None, flexible),
        }
    }

    pub(crate) fn no_tags(&mut self) {
        self.own.put_u8(0);
    }

    pub(crate) fn tag_count(&mut self, present: &[bool]) {
        self.unsigned_varint(present.iter().filter(|p| **p).count() as u32);
    }

    /// The number of a tagged field and room for a short length; [`Writer::end_tag`] fills it in.
    pub(crate) fn begin_tag(&mut self, number: u32) -> OpenTag {
        self.unsigned_varint(number);
        self.own.put_u8(0);
        self.open_tags += 1;
        OpenTag(self.own.len())
    }

    pub(crate) fn end_tag(&mut self, tag: OpenTag) {
        self.open_tags -= 1;
        let OpenTag(start) = tag;
        let length = self.own.len() - start;
        let mut encoded = Writer::with_capacity(5);
        encoded.unsigned_varint(length as u32);
        let more = encoded.own.len() - 1;
        if more > 0 {
            // The value is longer than one byte of length can say: it moves up. Rare, since tagged fields are few
            // and short.
            self.own.put_bytes(0, more);
            self.own.copy_within(start..start + length, start + more);
        }
        self.own[start - 1..start + more].copy_from_slice(&encoded.own);
    }

    /// How many bytes were written, those that stand in files included.
    pub fn len(&self) -> usize {
        self.between.iter().map(|(_, chunk)| chunk.len()).sum::<usize>() + self.own.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The frame as it stands.
    pub fn finish(self) -> Frame {
        let own = self.own.freeze();
        let mut chunks = Vec::with_capacity(2 * self.between.len() + 1);
        let mut cut = 0;
        for (position, chunk) in self.between {
            if position > cut {
                chunks.push(Chunk::Bytes(own.slice(cut..position)));
            }
            chunks.push(chunk);
            cut = position;
        }
        if own.len() > cut {
            chunks.push(Chunk::Bytes(own.slice(cut..)));
        }
        Frame { chunks }
    }

    /// The frame with its length, without the length's own four bytes, patched into its first four bytes, which
    /// the caller wrote as a placeholder.
    pub(crate) fn finish_with_length(mut self) -> Result<Frame, EncodeError> {
        let length = self.len() - 4;
        let encoded =
            i32::try_from(length).map_err(|_| EncodeError::new(EncodeErrorKind::TooLong(length)))?;
        self.own[..4].copy_from_slice(&encoded.to_be_bytes());
        Ok(self.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::fetch::{FetchResponse, FetchableTopicResponse, PartitionData};
    use crate::messages::{ApiVersionsResponse, FetchRequest, MetadataRequest};
    use crate::{ApiKey, Message, Reader, encode_response};

    fn fetch_of(records: Vec<RecordsField>) -> FetchResponse {
        let partitions =
            records.into_iter().map(|records| PartitionData { records: Some(records), ..Default::default() });
        let topic = FetchableTopicResponse {
            topic: "t".to_owned(),
            partitions: partitions.collect(),
            ..Default::default()
        };
        FetchResponse { responses: vec![topic], ..Default::default() }
    }

    fn encoded<M: Message>(message: &M, version: i16) -> Result<Bytes, String> {
        let mut writer = Writer::new();
        message.encode(&mut writer, version).map_err(|e| e.to_string())?;
        Ok(writer.finish().into_bytes())
    }

    /// A fetched megabyte must not be copied on its way out: large bytes keep their address.
    #[test]
    fn large_records_go_out_as_they_are() {
        let large = Bytes::from(vec![7; OWN_CHUNK_FROM]);
        let small = Bytes::from_static(b"small");
        let response = fetch_of(vec![large.clone().into(), small.into(), large.clone().into()]);
        let frame = encode_response(ApiKey::Fetch, 12, 9, &response).unwrap();
        let kept =
            frame.chunks.iter().filter(|c| matches!(c, Chunk::Bytes(b) if b.as_ptr() == large.as_ptr()));
        assert_eq!(kept.count(), 2);
        assert_eq!(frame.chunks.len(), 5);

        let whole = frame.into_bytes();
        assert_eq!(whole[..4], (whole.len() as i32 - 4).to_be_bytes());
        let again = crate::decode_response::<FetchRequest>(whole.slice(4..), 12).unwrap();
        assert_eq!(again, (9, response));
    }

    /// Records in a file: the frame has their length and a hole, and is otherwise what it would be with the bytes.
    #[test]
    fn records_in_a_file_leave_a_hole_of_their_length() {
        let bytes = Bytes::from(vec![7; 6_000]);
        let len = bytes.len() as u32;
        for version in [4, 18] {
            let held =
                encode_response(ApiKey::Fetch, version, 9, &fetch_of(vec![bytes.clone().into()])).unwrap();
            let external = fetch_of(vec![RecordsField::External { index: 3, len }]);
            let mut frame = encode_response(ApiKey::Fetch, version, 9, &external).unwrap();
            assert_eq!(frame.len(), held.len());
            let hole =
                frame.chunks.iter_mut().find(|c| matches!(c, Chunk::External { index: 3, .. })).unwrap();
            assert_eq!(hole.len(), bytes.len());
            *hole = Chunk::Bytes(bytes.clone());
            assert_eq!(frame.into_bytes(), held.into_bytes());
        }
    }

    /// The length of a tagged field takes one byte up to 127 and two from 128: its value moves up then.
    #[test]
    fn a_long_tagged_field_moves_up_for_its_length() {
        for length in [1, 125, 126, 127, 128, 300, 20_000] {
            let request = FetchRequest { cluster_id: Some("x".repeat(length)), ..Default::default() };
            let bytes = encoded(&request, 12).unwrap();
            let again = FetchRequest::decode(&mut Reader::new(bytes), 12).unwrap();
            assert_eq!(again, request, "{length}");
        }
    }

    /// librdkafka up to 2.1 misreads tagged fields of ApiVersions that hold their default.
    #[test]
    fn tagged_fields_with_their_default_are_not_written() {
        let bytes = encoded(&ApiVersionsResponse::default(), 3).unwrap();
        assert_eq!(bytes[..], [0, 0, 1, 0, 0, 0, 0, 0]);
    }

    /// Dropping what the caller said would make a request mean something else; what the protocol calls ignorable
    /// may go.
    #[test]
    fn what_a_version_cannot_carry_is_an_error_unless_ignorable() {
        let request = FetchRequest { rack_id: "r".to_owned(), session_id: 5, ..Default::default() };
        assert_eq!(encoded(&request, 0).unwrap(), encoded(&FetchRequest::default(), 0).unwrap());

        let forgotten =
            FetchRequest { forgotten_topics_data: vec![Default::default()], ..Default::default() };
        let told = encoded(&forgotten, 6).unwrap_err();
        assert_eq!(
            told,
            "FetchRequest v6: FetchRequest.forgotten_topics_data is set, but this version cannot carry it"
        );

        let all = MetadataRequest { topics: None, ..Default::default() };
        let told = encoded(&all, 0).unwrap_err();
        assert_eq!(
            told,
            "MetadataRequest v0: MetadataRequest.topics is null, which this version does not allow"
        );
        assert!(encoded(&all, 1).is_ok());

        assert_eq!(encoded(&all, 99).unwrap_err(), "MetadataRequest v99: version 99 is not known");
        let long = FetchRequest { rack_id: "r".repeat(40_000), ..Default::default() };
        assert!(encoded(&long, 11).unwrap_err().contains("40000 bytes"));
    }
}

//! The header of a request.

use bytes::Bytes;

use crate::{ApiKey, DecodeError, DecodeErrorKind, EncodeError, Reader, Writer};

/// What stands before the body of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHeader {
    /// The API's number.
    pub api_key: i16,
    /// The version of the body.
    pub api_version: i16,
    /// The number by which the client knows the answer.
    pub correlation_id: i32,
    /// What the client calls itself. Not there in ControlledShutdown v0.
    pub client_id: Option<String>,
}

/// The fixed beginning of a request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderPeek {
    /// The API's number.
    pub api_key: i16,
    /// The version of the body.
    pub api_version: i16,
    /// The number by which the client knows the answer.
    pub correlation_id: i32,
}

impl RequestHeader {
    /// The beginning of the header of a frame, without its length, of whatever size; `None` below eight bytes.
    pub fn peek(frame: &[u8]) -> Option<HeaderPeek> {
        let bytes = frame.first_chunk::<8>()?;
        Some(HeaderPeek {
            api_key: i16::from_be_bytes([bytes[0], bytes[1]]),
            api_version: i16::from_be_bytes([bytes[2], bytes[3]]),
            correlation_id: i32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        })
    }

    /// Reads the header in the version that its API and version have; the body follows.
    ///
    /// # Errors
    /// When the API is not known or the bytes are no header.
    pub fn decode(reader: &mut Reader) -> Result<RequestHeader, DecodeError> {
        let key = RequestHeader::peek(reader.unread()).map(|p| (p.api_key, p.api_version));
        let version = match key {
            None => 1,
            Some((key, version)) => match ApiKey::from_i16(key) {
                Some(key) => key.request_header_version(version),
                None => return Err(reader.error(DecodeErrorKind::ApiKey(key))),
            },
        };
        RequestHeader::decode_version(reader, version)
    }

    /// Reads a header of version 0, 1 or 2.
    ///
    /// # Errors
    /// When the bytes are no such header.
    pub fn decode_version(reader: &mut Reader, version: i16) -> Result<RequestHeader, DecodeError> {
        let mut header = RequestHeader {
            api_key: reader.i16()?,
            api_version: reader.i16()?,
            correlation_id: reader.i32()?,
            client_id: None,
        };
        if version >= 1 {
            // Never compact, so that the beginning of a header reads the same in all versions.
            header.client_id = reader.nullable_string(false, true)?;
        }
        if version >= 2 {
            reader.skip_tags()?;
        }
        Ok(header)
    }

    /// Writes a header of version 0, 1 or 2.
    ///
    /// # Errors
    /// When the client id is too long.
    pub fn encode_version(&self, writer: &mut Writer, version: i16) -> Result<(), EncodeError> {
        writer.i16(self.api_key);
        writer.i16(self.api_version);
        writer.i32(self.correlation_id);
        if version >= 1 {
            writer.nullable_string(self.client_id.as_deref(), false)?;
        }
        if version >= 2 {
            writer.no_tags();
        }
        Ok(())
    }

    /// Reads a whole request frame, without its length, up to its body.
    ///
    /// # Errors
    /// As [`RequestHeader::decode`].
    pub fn split(frame: Bytes) -> Result<(RequestHeader, Reader), DecodeError> {
        let mut reader = Reader::new(frame);
        let header = RequestHeader::decode(&mut reader)?;
        Ok((header, reader))
    }
}

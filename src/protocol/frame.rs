//! Whole frames, with their four bytes of length in front.

use bytes::{Bytes, BytesMut};

use crate::{ApiKey, DecodeError, EncodeError, Message, Reader, Request, RequestHeader, Writer};

/// Encoded bytes in pieces, of which some stand in files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Frame {
    /// The pieces in order.
    pub chunks: Vec<Chunk>,
}

/// A piece of a [`Frame`].
#[derive(Clone, Debug, PartialEq)]
pub enum Chunk {
    /// Bytes at hand.
    Bytes(Bytes),
    /// Bytes that the sender takes from the file slice with this index.
    External {
        /// Which slice.
        index: u32,
        /// Its length in bytes.
        len: u32,
    },
}

impl Chunk {
    /// The length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Chunk::Bytes(bytes) => bytes.len(),
            Chunk::External { len, .. } => *len as usize,
        }
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Frame {
    /// The length in bytes, what stands in files included.
    pub fn len(&self) -> usize {
        self.chunks.iter().map(Chunk::len).sum()
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of it in one piece, copied only if it is in several.
    ///
    /// # Panics
    /// When a chunk is external: whoever put a file slice into a message must send the frame chunk by chunk.
    pub fn into_bytes(self) -> Bytes {
        if let [Chunk::Bytes(only)] = self.chunks.as_slice() {
            return only.clone();
        }
        let mut whole = BytesMut::with_capacity(self.len());
        for chunk in &self.chunks {
            match chunk {
                Chunk::Bytes(bytes) => whole.extend_from_slice(bytes),
                Chunk::External { .. } => panic!("a frame with file slices is sent chunk by chunk"),
            }
        }
        whole.freeze()
    }
}

/// A request with its header and length, in the version that the header names.
///
/// # Errors
/// When that version cannot carry what the request says.
pub fn encode_request<R: Request>(header: &RequestHeader, request: &R) -> Result<Bytes, EncodeError> {
    let version = header.api_version;
    let mut writer = Writer::with_capacity(256);
    writer.i32(0);
    header.encode_version(&mut writer, R::KEY.request_header_version(version))?;
    request.encode(&mut writer, version)?;
    Ok(writer.finish_with_length()?.into_bytes())
}

/// A response with its header and length.
///
/// # Errors
/// When this version cannot carry what the response says.
pub fn encode_response<M: Message>(
    key: ApiKey,
    version: i16,
    correlation_id: i32,
    response: &M,
) -> Result<Frame, EncodeError> {
    let mut writer = Writer::with_capacity(512);
    writer.i32(0);
    writer.i32(correlation_id);
    if key.response_header_version(version) >= 1 {
        writer.no_tags();
    }
    response.encode(&mut writer, version)?;
    writer.finish_with_length()
}

/// Reads a response from a frame without its length: the correlation id and the body.
///
/// # Errors
/// When the frame is no such response.
pub fn decode_response<R: Request>(frame: Bytes, version: i16) -> Result<(i32, R::Response), DecodeError> {
    let mut reader = Reader::new(frame);
    let correlation_id = reader.i32()?;
    if R::KEY.response_header_version(version) >= 1 {
        reader.skip_tags()?;
    }
    Ok((correlation_id, R::Response::decode(&mut reader, version)?))
}

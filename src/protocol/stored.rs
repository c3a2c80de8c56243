//! The frames around stored records: the leading version of coordinator and control records, the leading type of
//! coordinator keys, and the frame of KRaft's metadata records.
//!
//! The control records of KRaft (leader change, snapshot header and footer, kraft version, voters) have their
//! version as their own first field and no frame: they are encoded as any message.

use bytes::Bytes;

use crate::records::cluster_metadata::MetadataRecord;
use crate::{CoordinatorKey, DecodeError, DecodeErrorKind, EncodeError, Message, Reader, Writer};

/// The frame version that Kafka writes around metadata records.
const METADATA_FRAME_VERSION: u32 = 1;

/// A record with its leading int16 version: values of coordinators' topics, control records, consumer protocol
/// subscriptions and assignments.
///
/// # Errors
/// When this version cannot carry what the record says.
pub fn encode_versioned<M: Message>(record: &M, version: i16) -> Result<Bytes, EncodeError> {
    let mut writer = Writer::with_capacity(128);
    writer.i16(version);
    record.encode(&mut writer, version)?;
    Ok(writer.finish().into_bytes())
}

/// Reads a record with its leading int16 version, which is returned with it.
///
/// # Errors
/// When the version is not known or the bytes are no such record.
pub fn decode_versioned<M: Message>(bytes: Bytes) -> Result<(M, i16), DecodeError> {
    let mut reader = Reader::new(bytes);
    let version = reader.i16()?;
    Ok((M::decode(&mut reader, version)?, version))
}

/// The key of a record of a coordinator's topic, with its leading type.
///
/// # Errors
/// When a string in it is too long.
pub fn encode_coordinator_key<K: CoordinatorKey>(key: &K) -> Result<Bytes, EncodeError> {
    let mut writer = Writer::with_capacity(64);
    writer.i16(K::TYPE);
    key.encode(&mut writer, 0)?;
    Ok(writer.finish().into_bytes())
}

/// A metadata record in its frame: frame version, key and version as unsigned varints, then the body.
///
/// # Errors
/// When this version cannot carry what the record says.
pub fn encode_metadata_record(record: &MetadataRecord, version: i16) -> Result<Bytes, EncodeError> {
    let mut writer = Writer::with_capacity(128);
    writer.unsigned_varint(METADATA_FRAME_VERSION);
    writer.unsigned_varint(record.api_key() as u32);
    writer.unsigned_varint(version as u32);
    record.encode_body(&mut writer, version)?;
    Ok(writer.finish().into_bytes())
}

/// Reads a metadata record from its frame, with the version it has.
///
/// # Errors
/// When frame version, key or version are not known or the bytes are no such record.
pub fn decode_metadata_record(bytes: Bytes) -> Result<(MetadataRecord, i16), DecodeError> {
    let mut reader = Reader::new(bytes);
    let frame_version = reader.unsigned_varint()?;
    if frame_version != METADATA_FRAME_VERSION {
        return Err(reader.error(DecodeErrorKind::FrameVersion(frame_version)));
    }
    let key = reader.unsigned_varint()?;
    let version = reader.unsigned_varint()?.min(i16::MAX as u32) as i16;
    let known = i16::try_from(key).ok();
    let record = match known {
        Some(key) => MetadataRecord::decode_body(&mut reader, key, version)?,
        None => None,
    };
    match record {
        Some(record) => Ok((record, version)),
        None => Err(reader.error(DecodeErrorKind::MetadataRecord(key))),
    }
}

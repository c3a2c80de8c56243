//! The records of `__consumer_offsets`, as bytes and as values.
//!
//! A key begins with an int16, its kind: 0 and 1 are offset commits, 2 is a classic group, and 3, 11 and 17
//! tell whether a consumer, share or streams group exists. The other kinds up to 23 are parts of such groups.

use std::sync::Arc;

use bytes::Bytes;
use klamm_model::{Offset, Uuid};
use klamm_protocol::records::consumer_offsets::group_metadata_key::GroupMetadataKey;
use klamm_protocol::records::consumer_offsets::group_metadata_value::GroupMetadataValue;
use klamm_protocol::records::consumer_offsets::offset_commit_key::OffsetCommitKey;
use klamm_protocol::records::consumer_offsets::offset_commit_value::OffsetCommitValue;
use klamm_protocol::{DecodeError, EncodeError, decode_versioned, encode_coordinator_key, encode_versioned};

use super::offset_table::OffsetKey;
use super::offsets::CommittedOffset;
use super::unreadable::RecordKey;

const OFFSET_COMMIT_LEGACY: i16 = 0;
const OFFSET_COMMIT: i16 = 1;
const GROUP_METADATA: i16 = 2;
const CONSUMER_GROUP_METADATA: i16 = 3;
const SHARE_GROUP_METADATA: i16 = 11;
const STREAMS_GROUP_METADATA: i16 = 17;

/// The versions of values that Kafka 4.4 writes.
const GROUP_METADATA_VERSION: i16 = 3;
const OFFSET_COMMIT_VERSION: i16 = 4;
/// The only version that carries a time of expiry of the commit's own.
const OFFSET_COMMIT_VERSION_WITH_EXPIRY: i16 = 1;

/// A record of `__consumer_offsets`. A value of `None` is a tombstone. One that is read borrows its names from its key:
/// of millions of commits, most are of the same few groups and topics.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupRecord<Name = Arc<str>> {
    /// A classic group.
    Group {
        /// The group.
        group: Name,
        /// Its state.
        value: Option<GroupMetadataValue>,
    },
    /// A committed offset.
    Offset {
        /// The group.
        group: Name,
        /// The topic.
        topic: Name,
        /// The partition.
        partition: i32,
        /// What was committed.
        value: Option<CommittedOffset>,
    },
    /// Whether a group of a protocol that is not served exists. It is never written.
    Foreign {
        /// The group.
        group: Name,
        /// Whether it exists.
        exists: bool,
    },
}

/// A record that is of a kind that is known and yet cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The key is too short for its kind.
    #[error("the key of kind {kind} is cut off")]
    Key {
        /// The kind.
        kind: i16,
    },
    /// The value is of no version that is known, or damaged.
    #[error("the value of group {:?} cannot be read: {source}", key.group)]
    Value {
        /// What the record is about.
        key: RecordKey,
        /// Why.
        source: DecodeError,
    },
}

impl<Name: AsRef<str>> GroupRecord<Name> {
    /// What it is about, unless it is of a protocol that is not served.
    pub fn key(&self) -> Option<RecordKey> {
        match self {
            GroupRecord::Group { group, .. } => Some(RecordKey::of_group(&group.as_ref().into())),
            GroupRecord::Offset { group, topic, partition, .. } => {
                let (group, topic) = (group.as_ref().into(), topic.as_ref().into());
                Some(RecordKey::of_offset(&group, &topic, *partition))
            }
            GroupRecord::Foreign { .. } => None,
        }
    }
}

impl GroupRecord {
    /// Key and value.
    ///
    /// # Errors
    /// When a name is too long for the format.
    pub fn encode(&self) -> Result<(Bytes, Option<Bytes>), EncodeError> {
        match self {
            GroupRecord::Group { group, value } => {
                let key = encode_coordinator_key(&GroupMetadataKey { group: group.to_string() })?;
                let value = value.as_ref().map(|value| encode_versioned(value, GROUP_METADATA_VERSION));
                Ok((key, value.transpose()?))
            }
            GroupRecord::Offset { group, topic, partition, value } => {
                let (group, topic) = (group.to_string(), topic.to_string());
                let key = encode_coordinator_key(&OffsetCommitKey { group, topic, partition: *partition })?;
                let value = value.as_ref().map(encode_commit);
                Ok((key, value.transpose()?))
            }
            GroupRecord::Foreign { .. } => unreachable!("records of other protocols are never written"),
        }
    }
}

impl<'a> GroupRecord<&'a str> {
    /// The same with names of its own.
    pub fn owned(self) -> GroupRecord {
        match self {
            GroupRecord::Group { group, value } => GroupRecord::Group { group: group.into(), value },
            GroupRecord::Offset { group, topic, partition, value } => {
                GroupRecord::Offset { group: group.into(), topic: topic.into(), partition, value }
            }
            GroupRecord::Foreign { group, exists } => GroupRecord::Foreign { group: group.into(), exists },
        }
    }

    /// Reads a record; `Ok(None)` for one of a kind that no classic group needs.
    ///
    /// # Errors
    /// When the bytes are not what their kind says.
    pub fn decode(
        key: &'a [u8],
        value: Option<&[u8]>,
        record_offset: Offset,
    ) -> Result<Option<GroupRecord<&'a str>>, RecordError> {
        let mut reader = FieldReader::new(key);
        let kind = reader.int16().ok_or(RecordError::Key { kind: -1 })?;
        let cut = || RecordError::Key { kind };
        match kind {
            OFFSET_COMMIT_LEGACY | OFFSET_COMMIT => {
                let group = reader.string().ok_or_else(cut)?;
                let topic = reader.string().ok_or_else(cut)?;
                let partition = reader.int32().ok_or_else(cut)?;
                let value = value.map(|bytes| decode_commit(bytes, record_offset)).transpose();
                let value = value.map_err(|source| RecordError::Value {
                    key: RecordKey::of_offset(&group.into(), &topic.into(), partition),
                    source,
                })?;
                Ok(Some(GroupRecord::Offset { group, topic, partition, value }))
            }
            GROUP_METADATA => {
                let group = reader.string().ok_or_else(cut)?;
                // What its members offer must not keep all the bytes that were read with it.
                let value = value.map(Bytes::copy_from_slice);
                let value = value.map(decode_versioned::<GroupMetadataValue>).transpose();
                let value = value.map_err(|source| RecordError::Value {
                    key: RecordKey::of_group(&group.into()),
                    source,
                })?;
                Ok(Some(GroupRecord::Group { group, value: value.map(|(value, _)| value) }))
            }
            CONSUMER_GROUP_METADATA | SHARE_GROUP_METADATA | STREAMS_GROUP_METADATA => {
                let group = reader.string().ok_or_else(cut)?;
                Ok(Some(GroupRecord::Foreign { group, exists: value.is_some() }))
            }
            _ => Ok(None),
        }
    }
}

fn encode_commit(commit: &CommittedOffset) -> Result<Bytes, EncodeError> {
    let value = OffsetCommitValue {
        offset: commit.offset,
        leader_epoch: commit.leader_epoch,
        metadata: commit.metadata.clone(),
        commit_timestamp: commit.commit_timestamp_ms,
        expire_timestamp: commit.expire_timestamp_ms.unwrap_or(-1),
        topic_id: commit.topic_id,
    };
    match commit.expire_timestamp_ms {
        Some(_) => encode_versioned(&value, OFFSET_COMMIT_VERSION_WITH_EXPIRY),
        None => encode_versioned(&value, OFFSET_COMMIT_VERSION),
    }
}

fn decode_commit(bytes: &[u8], record_offset: Offset) -> Result<CommittedOffset, DecodeError> {
    if let Some(commit) = decode_common_commit(bytes, record_offset) {
        return Ok(commit);
    }
    let (value, _) = decode_versioned::<OffsetCommitValue>(Bytes::copy_from_slice(bytes))?;
    Ok(CommittedOffset {
        offset: value.offset,
        leader_epoch: value.leader_epoch,
        metadata: value.metadata,
        commit_timestamp_ms: value.commit_timestamp,
        expire_timestamp_ms: Some(value.expire_timestamp).filter(|expiry| *expiry >= 0),
        topic_id: value.topic_id,
        record_offset,
    })
}

/// Reads what nearly all commits are, in place: the versions that Kafka has written since 2.1, with nothing unusual in
/// them. `None` for all others, of which the schema tells what they are.
#[inline]
pub(super) fn decode_common_commit(bytes: &[u8], record_offset: Offset) -> Option<CommittedOffset> {
    let mut reader = FieldReader::new(bytes);
    let version = reader.int16()?;
    let is_flexible = match version {
        3 => false,
        4 => true,
        _ => return None,
    };
    let (offset, leader_epoch) = (reader.int64()?, reader.int32()?);
    let metadata = if is_flexible { reader.short_compact_string()? } else { reader.string()? };
    let commit_timestamp_ms = reader.int64()?;
    let topic_id = match (is_flexible, reader.rest) {
        (false, []) | (true, [0]) => Uuid::ZERO,
        // One tagged field: its number, its length, and the id.
        (true, [1, 0, 16, id @ ..]) => Uuid(id.try_into().ok()?),
        _ => return None,
    };
    let metadata = metadata.to_owned();
    let expire_timestamp_ms = None;
    Some(CommittedOffset {
        offset,
        leader_epoch,
        metadata,
        commit_timestamp_ms,
        expire_timestamp_ms,
        topic_id,
        record_offset,
    })
}

/// The key of an offset commit, of which it is not known whether its names are text.
#[inline]
pub(super) fn offset_key(bytes: &[u8]) -> Option<OffsetKey<'_>> {
    let mut reader = FieldReader::new(bytes);
    let kind = reader.int16()?;
    if kind != OFFSET_COMMIT && kind != OFFSET_COMMIT_LEGACY {
        return None;
    }
    let (group, topic) = (reader.byte_string()?, reader.byte_string()?);
    Some(OffsetKey { group, topic, partition: reader.int32()? })
}

/// Reads fields one by one, without copying them.
pub(super) struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> FieldReader<'a> {
        FieldReader { rest: bytes }
    }

    #[inline]
    pub(super) fn int16(&mut self) -> Option<i16> {
        let (head, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(i16::from_be_bytes(*head))
    }

    #[inline]
    pub(super) fn int32(&mut self) -> Option<i32> {
        let (head, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(i32::from_be_bytes(*head))
    }

    #[inline]
    fn int64(&mut self) -> Option<i64> {
        let (head, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(i64::from_be_bytes(*head))
    }

    pub(super) fn string(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.byte_string()?).ok()
    }

    #[inline]
    fn byte_string(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.int16()?).ok()?;
        self.take(length)
    }

    /// A compact string whose length, one more than that of its bytes, is a single byte.
    fn short_compact_string(&mut self) -> Option<&'a str> {
        let (&length, rest) = self.rest.split_first().filter(|(length, _)| (1..0x80).contains(*length))?;
        self.rest = rest;
        std::str::from_utf8(self.take(usize::from(length) - 1)?).ok()
    }

    #[inline]
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(head)
    }
}

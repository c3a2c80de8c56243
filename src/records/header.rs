//! The head of a batch, for all three message formats.

use klamm_model::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs, TimestampType};

use crate::compression::Compression;
use crate::error::RecordsError;
use crate::{NO_SEQUENCE, NO_TIMESTAMP};

/// Bytes of the head of a V2 batch; its records follow.
pub const HEAD_LEN: usize = 61;

/// Bytes of the offset and the size that precede a batch of any format and that its size does not count.
pub const LOG_OVERHEAD: usize = 12;

/// Where the magic stands in every format.
pub const MAGIC_POSITION: usize = 16;

/// Where the CRC of V2 stands; it covers all that follows it.
pub(crate) const CRC_POSITION: usize = 17;
pub(crate) const ATTRIBUTES_POSITION: usize = 21;
pub(crate) const MAX_TIMESTAMP_POSITION: usize = 35;

/// The size fields of the smallest messages: no key, no value.
pub(crate) const V0_SIZE_MIN: i32 = 14;
pub(crate) const V1_SIZE_MIN: i32 = 22;

pub(crate) const COMPRESSION_MASK: i16 = 0x07;
pub(crate) const LOG_APPEND_TIME_BIT: i16 = 0x08;
pub(crate) const TRANSACTIONAL_BIT: i16 = 0x10;
pub(crate) const CONTROL_BIT: i16 = 0x20;
pub(crate) const DELETE_HORIZON_BIT: i16 = 0x40;

/// What stands at the beginning of a batch. A message of V0 or V1 counts as a batch of one, a compressed one
/// as a batch whose first offset only its content tells: there `base_offset` is the message's offset, which is
/// that of its last inner message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// The first offset of the batch as it was appended; compaction may have removed that record.
    pub base_offset: Offset,
    /// Bytes of the whole batch, its head included.
    pub size: usize,
    /// The leader's epoch at the append; none in V0 and V1.
    pub partition_leader_epoch: LeaderEpoch,
    /// The message format: 0, 1 or 2.
    pub magic: i8,
    /// The stored checksum: CRC-32C in V2, CRC-32 in V0 and V1.
    pub crc: u32,
    /// Codec and flags.
    pub attributes: i16,
    /// Distance of the last offset from the base offset; 0 in V0 and V1.
    pub last_offset_delta: i32,
    /// In V2 what the records' timestamps are relative to: the first record's, or the delete horizon.
    pub base_timestamp: TimestampMs,
    /// The largest timestamp, or the append time. In V0 none.
    pub max_timestamp: TimestampMs,
    /// The idempotent producer, if any.
    pub producer_id: ProducerId,
    /// Its epoch.
    pub producer_epoch: ProducerEpoch,
    /// The sequence number of the record at `base_offset`.
    pub base_sequence: i32,
    /// How many records the batch says that it holds; -1 for a compressed message of V0 or V1, which does not
    /// say.
    pub record_count: i32,
}

impl BatchHeader {
    /// The codec of the records.
    pub fn compression(&self) -> Result<Compression, RecordsError> {
        Compression::from_attributes(self.attributes)
    }

    /// Whether the attributes name any codec, known or not.
    pub fn is_compressed(&self) -> bool {
        self.attributes & COMPRESSION_MASK != 0
    }

    /// Whose time the records carry. V0 has no times and counts as create time.
    pub fn timestamp_type(&self) -> TimestampType {
        if self.magic > 0 && self.attributes & LOG_APPEND_TIME_BIT != 0 {
            TimestampType::LogAppendTime
        } else {
            TimestampType::CreateTime
        }
    }

    /// The time that all records carry, whatever their own is, if the log's was asked for.
    pub(crate) fn append_time(&self) -> Option<TimestampMs> {
        (self.timestamp_type() == TimestampType::LogAppendTime).then_some(self.max_timestamp)
    }

    /// Whether the batch belongs to a transaction.
    pub fn is_transactional(&self) -> bool {
        self.magic >= 2 && self.attributes & TRANSACTIONAL_BIT != 0
    }

    /// Whether the batch holds control records, which no client sees.
    pub fn is_control(&self) -> bool {
        self.magic >= 2 && self.attributes & CONTROL_BIT != 0
    }

    /// Whether an idempotent producer wrote it.
    pub fn has_producer_id(&self) -> bool {
        self.producer_id.0 > ProducerId::NONE.0
    }

    /// The last offset of the batch.
    pub fn last_offset(&self) -> Offset {
        self.base_offset.wrapping_add(i64::from(self.last_offset_delta))
    }

    /// The offset that follows the batch.
    pub fn next_offset(&self) -> Offset {
        self.last_offset().wrapping_add(1)
    }

    /// The sequence number of the last record, or -1.
    pub fn last_sequence(&self) -> i32 {
        sequence_at(self.base_sequence, self.last_offset_delta)
    }

    /// When the tombstones and markers in the batch may go (KIP-534), once the cleaner has set it.
    pub fn delete_horizon(&self) -> Option<TimestampMs> {
        (self.magic >= 2 && self.attributes & DELETE_HORIZON_BIT != 0).then_some(self.base_timestamp)
    }

    /// The head of a V2 batch as bytes. The CRC is the stored one.
    pub(crate) fn to_v2_head(self) -> [u8; HEAD_LEN] {
        let mut head = [0; HEAD_LEN];
        head[0..8].copy_from_slice(&self.base_offset.to_be_bytes());
        head[8..12].copy_from_slice(&((self.size - LOG_OVERHEAD) as i32).to_be_bytes());
        head[12..16].copy_from_slice(&self.partition_leader_epoch.0.to_be_bytes());
        head[16] = self.magic as u8;
        head[17..21].copy_from_slice(&self.crc.to_be_bytes());
        head[21..23].copy_from_slice(&self.attributes.to_be_bytes());
        head[23..27].copy_from_slice(&self.last_offset_delta.to_be_bytes());
        head[27..35].copy_from_slice(&self.base_timestamp.to_be_bytes());
        head[35..43].copy_from_slice(&self.max_timestamp.to_be_bytes());
        head[43..51].copy_from_slice(&self.producer_id.0.to_be_bytes());
        head[51..53].copy_from_slice(&self.producer_epoch.0.to_be_bytes());
        head[53..57].copy_from_slice(&self.base_sequence.to_be_bytes());
        head[57..61].copy_from_slice(&self.record_count.to_be_bytes());
        head
    }
}

/// The sequence number `delta` after `base`; they wrap from the largest `i32` to 0.
pub(crate) fn sequence_at(base: i32, delta: i32) -> i32 {
    if base < 0 { NO_SEQUENCE } else { ((i64::from(base) + i64::from(delta)) & i64::from(i32::MAX)) as i32 }
}

pub(crate) fn read<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

/// Reads the head of the batch at the beginning of `bytes`. `None` when there are fewer bytes than the head
/// has; the rest of the batch need not be there.
pub fn peek_batch(bytes: &[u8]) -> Result<Option<BatchHeader>, RecordsError> {
    peek_batch_at(bytes, 0)
}

/// As [`peek_batch`]; `position` is only for the error.
pub(crate) fn peek_batch_at(bytes: &[u8], position: usize) -> Result<Option<BatchHeader>, RecordsError> {
    if bytes.len() < LOG_OVERHEAD {
        return Ok(None);
    }
    let size = i32::from_be_bytes(read(bytes, 8));
    if size < V0_SIZE_MIN {
        return Err(RecordsError::InvalidSize { position, size, minimum: V0_SIZE_MIN });
    }
    if bytes.len() <= MAGIC_POSITION {
        return Ok(None);
    }
    let magic = bytes[MAGIC_POSITION] as i8;
    let (minimum, head) = match magic {
        0 => (V0_SIZE_MIN, 18),
        1 => (V1_SIZE_MIN, 26),
        2 => ((HEAD_LEN - LOG_OVERHEAD) as i32, HEAD_LEN),
        _ => return Err(RecordsError::InvalidMagic { position, magic }),
    };
    if size < minimum {
        return Err(RecordsError::InvalidSize { position, size, minimum });
    }
    if bytes.len() < head {
        return Ok(None);
    }
    let size = size as usize + LOG_OVERHEAD;
    Ok(Some(if magic == 2 { v2_header(bytes, size) } else { legacy_header(bytes, magic, size) }))
}

fn v2_header(bytes: &[u8], size: usize) -> BatchHeader {
    BatchHeader {
        base_offset: i64::from_be_bytes(read(bytes, 0)),
        size,
        partition_leader_epoch: LeaderEpoch(i32::from_be_bytes(read(bytes, 12))),
        magic: 2,
        crc: u32::from_be_bytes(read(bytes, CRC_POSITION)),
        attributes: i16::from_be_bytes(read(bytes, ATTRIBUTES_POSITION)),
        last_offset_delta: i32::from_be_bytes(read(bytes, 23)),
        base_timestamp: i64::from_be_bytes(read(bytes, 27)),
        max_timestamp: i64::from_be_bytes(read(bytes, MAX_TIMESTAMP_POSITION)),
        producer_id: ProducerId(i64::from_be_bytes(read(bytes, 43))),
        producer_epoch: ProducerEpoch(i16::from_be_bytes(read(bytes, 51))),
        base_sequence: i32::from_be_bytes(read(bytes, 53)),
        record_count: i32::from_be_bytes(read(bytes, 57)),
    }
}

fn legacy_header(bytes: &[u8], magic: i8, size: usize) -> BatchHeader {
    let attributes = i16::from(bytes[17]);
    let timestamp = if magic == 1 { i64::from_be_bytes(read(bytes, 18)) } else { NO_TIMESTAMP };
    BatchHeader {
        base_offset: i64::from_be_bytes(read(bytes, 0)),
        size,
        partition_leader_epoch: LeaderEpoch::NONE,
        magic,
        crc: u32::from_be_bytes(read(bytes, 12)),
        attributes,
        last_offset_delta: 0,
        base_timestamp: timestamp,
        max_timestamp: timestamp,
        producer_id: ProducerId::NONE,
        producer_epoch: ProducerEpoch::NONE,
        base_sequence: NO_SEQUENCE,
        record_count: if attributes & COMPRESSION_MASK == 0 { 1 } else { -1 },
    }
}

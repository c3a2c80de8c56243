//! Building batches of every format.

use bytes::Bytes;
use klamm_model::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs, TimestampType};

use crate::compression::{Compression, Encoder, PIECE_BYTES, compress};
use crate::error::RecordsError;
use crate::header::{
    ATTRIBUTES_POSITION, BatchHeader, CONTROL_BIT, CRC_POSITION, DELETE_HORIZON_BIT, HEAD_LEN,
    LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT,
};
use crate::legacy::{self, Message, write_message};
use crate::record::{Header, Record, write_v2_record};
use crate::{NO_SEQUENCE, NO_TIMESTAMP};

/// What a batch says beside its records.
#[derive(Clone, Debug)]
pub struct BatchSettings {
    /// The codec of the records.
    pub compression: Compression,
    /// The codec's level; `None` is its default.
    pub level: Option<i32>,
    /// Whose time the records carry.
    pub timestamp_type: TimestampType,
    /// The time of the append, where `timestamp_type` says so.
    pub log_append_time: TimestampMs,
    /// The idempotent producer.
    pub producer_id: ProducerId,
    /// Its epoch.
    pub producer_epoch: ProducerEpoch,
    /// Sequence number of the record at `base_offset`.
    pub base_sequence: i32,
    /// Whether the batch belongs to a transaction.
    pub transactional: bool,
    /// Whether it holds control records.
    pub control: bool,
    /// The epoch of the leader that appends it.
    pub partition_leader_epoch: LeaderEpoch,
    /// The offset of the first record.
    pub base_offset: Offset,
    /// The last offset, where it is not that of the last record: compaction keeps the range of the original.
    pub last_offset: Option<Offset>,
    /// When tombstones and markers in it may go (KIP-534).
    pub delete_horizon: Option<TimestampMs>,
}

impl Default for BatchSettings {
    fn default() -> BatchSettings {
        BatchSettings {
            compression: Compression::None,
            level: None,
            timestamp_type: TimestampType::CreateTime,
            log_append_time: crate::NO_TIMESTAMP,
            producer_id: ProducerId::NONE,
            producer_epoch: ProducerEpoch::NONE,
            base_sequence: NO_SEQUENCE,
            transactional: false,
            control: false,
            partition_leader_epoch: LeaderEpoch::NONE,
            base_offset: 0,
            last_offset: None,
            delete_horizon: None,
        }
    }
}

/// A builder holds about this many bytes uncompressed, and its largest record, unless its batch is uncompressed.
const UNPACKED_BYTES_MAX: usize = 1024 * 1024;

/// The first part of a large batch, compressed already.
struct Packed {
    encoder: Encoder,
    /// How many bytes it was given.
    bytes: usize,
}

/// Collects records and makes one batch of them: with magic 0 or 1 a run of messages or, compressed, one
/// message around them.
pub struct BatchBuilder {
    magic: i8,
    settings: BatchSettings,
    /// What is not in `packed`; in V2 with room for the head before the records.
    body: Vec<u8>,
    /// Compresses what comes first where all is too large to be held uncompressed.
    packed: Option<Packed>,
    base_timestamp: Option<TimestampMs>,
    max_timestamp: TimestampMs,
    last_offset: Option<Offset>,
    record_count: usize,
}

/// Bytes before the records in what a builder gathers.
fn head_room(magic: i8) -> usize {
    if magic == 2 { HEAD_LEN } else { 0 }
}

impl BatchBuilder {
    /// A batch of today's format.
    pub fn v2(settings: BatchSettings) -> BatchBuilder {
        BatchBuilder::new(2, settings)
    }

    /// A batch of the format `magic` (0, 1 or 2). The old ones drop headers and what is about producers.
    pub fn new(magic: i8, settings: BatchSettings) -> BatchBuilder {
        assert!((0..=2).contains(&magic), "there is no message format {magic}");
        BatchBuilder {
            magic,
            base_timestamp: settings.delete_horizon,
            settings,
            body: vec![0; head_room(magic)],
            packed: None,
            max_timestamp: NO_TIMESTAMP,
            last_offset: None,
            record_count: 0,
        }
    }

    /// Adds a record at the next offset.
    pub fn append(
        &mut self,
        timestamp: TimestampMs,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header],
    ) -> &mut BatchBuilder {
        let offset = self.last_offset.map_or(self.settings.base_offset, |last| last + 1);
        self.append_at(offset, timestamp, key, value, headers)
    }

    /// Adds a record at `offset`, which must be above the last one and not below the base offset.
    pub fn append_at(
        &mut self,
        offset: Offset,
        timestamp: TimestampMs,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header],
    ) -> &mut BatchBuilder {
        assert!(self.takes_offset(offset), "offsets in a batch rise from its base offset");
        let delta = offset - self.settings.base_offset;
        if self.magic == 2 {
            let offset_delta = delta as i32;
            let base = *self.base_timestamp.get_or_insert(timestamp);
            let deltas = (timestamp.wrapping_sub(base), offset_delta);
            write_v2_record(&mut self.body, deltas, key, value, headers);
        } else {
            self.write_message(offset, timestamp, key, value);
        }
        self.last_offset = Some(offset);
        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.record_count += 1;
        if self.body.len() > UNPACKED_BYTES_MAX && self.settings.compression != Compression::None {
            self.pack();
        }
        self
    }

    /// Adds a record of a batch that came from a disk, where its offset may be anything.
    pub(crate) fn append_stored(&mut self, batch: &BatchHeader, record: &Record) -> Result<(), RecordsError> {
        if !self.takes_offset(record.offset) {
            let reason = "the offsets of its records do not rise";
            return Err(RecordsError::InvalidRecord { offset: batch.base_offset, reason });
        }
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        self.append_at(record.offset, record.timestamp, key, value, &record.headers);
        Ok(())
    }

    /// Compresses what has gathered.
    fn pack(&mut self) {
        let settings = &self.settings;
        let packed = self.packed.get_or_insert_with(|| Packed {
            encoder: Encoder::new(settings.compression, settings.level, self.magic),
            bytes: 0,
        });
        let start = head_room(self.magic);
        let end = self.body.len() - (self.body.len() - start) % PIECE_BYTES;
        packed.encoder.write(&self.body[start..end]);
        packed.bytes += end - start;
        self.body.drain(start..end);
        // One record may have been large.
        self.body.shrink_to(UNPACKED_BYTES_MAX);
    }

    /// All records, compressed.
    fn compressed(&mut self) -> Vec<u8> {
        let rest = &self.body[head_room(self.magic)..];
        match self.packed.take() {
            None => compress(self.settings.compression, self.settings.level, self.magic, rest),
            Some(Packed { mut encoder, .. }) => {
                encoder.write(rest);
                encoder.finish()
            }
        }
    }

    /// Whether a record may be appended at `offset`.
    pub(crate) fn takes_offset(&self, offset: Offset) -> bool {
        let base = self.settings.base_offset;
        let spans = offset.checked_sub(base).is_some_and(|delta| (0..=i64::from(i32::MAX)).contains(&delta));
        spans && self.last_offset.is_none_or(|last| offset > last)
    }

    fn write_message(
        &mut self,
        offset: Offset,
        timestamp: TimestampMs,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
    ) {
        let is_inner = self.settings.compression != Compression::None;
        let relative = self.magic == 1 && is_inner;
        let append_time = self.settings.timestamp_type == TimestampType::LogAppendTime;
        write_message(
            &mut self.body,
            &Message {
                offset: if relative { offset - self.settings.base_offset } else { offset },
                magic: self.magic,
                attributes: legacy::attributes(self.magic, Compression::None, self.settings.timestamp_type),
                timestamp: if append_time { self.settings.log_append_time } else { timestamp },
                key,
                value,
            },
        );
    }

    /// Lets the batch say a larger time than its records have, or a time although it has none.
    pub(crate) fn with_max_timestamp(mut self, max_timestamp: TimestampMs) -> BatchBuilder {
        self.max_timestamp = max_timestamp;
        self
    }

    /// How many records were added.
    pub fn record_count(&self) -> usize {
        self.record_count
    }

    /// Whether there are none yet.
    pub fn is_empty(&self) -> bool {
        self.record_count == 0
    }

    /// Bytes of the batch as it is now, before compression.
    pub fn uncompressed_len(&self) -> usize {
        self.body.len() + self.packed.as_ref().map_or(0, |packed| packed.bytes)
    }

    /// The batch. Without records, V2 gives a batch that only keeps its range and its producer's state, and the
    /// old formats give nothing.
    pub fn build(self) -> Bytes {
        match (self.magic, self.settings.compression) {
            (2, _) => self.build_v2(),
            (_, Compression::None) => self.body.into(),
            _ if self.is_empty() => Bytes::new(),
            _ => self.build_wrapper(),
        }
    }

    fn build_wrapper(mut self) -> Bytes {
        let value = self.compressed();
        let settings = &self.settings;
        let append_time = settings.timestamp_type == TimestampType::LogAppendTime;
        let mut out = Vec::with_capacity(value.len() + HEAD_LEN);
        write_message(
            &mut out,
            &Message {
                offset: self.last_offset.unwrap_or(settings.base_offset),
                magic: self.magic,
                attributes: legacy::attributes(self.magic, settings.compression, settings.timestamp_type),
                timestamp: if append_time { settings.log_append_time } else { self.max_timestamp },
                key: None,
                value: Some(&value),
            },
        );
        out.into()
    }

    fn build_v2(mut self) -> Bytes {
        let mut attributes = 0;
        if self.settings.compression != Compression::None && self.record_count > 0 {
            let packed = self.compressed();
            self.body.truncate(HEAD_LEN);
            self.body.extend_from_slice(&packed);
            attributes |= self.settings.compression.attribute_bits();
        }
        let mut bytes = self.body;
        let settings = self.settings;
        let append_time = settings.timestamp_type == TimestampType::LogAppendTime;
        for (is_set, bit) in [
            (append_time, LOG_APPEND_TIME_BIT),
            (settings.transactional, TRANSACTIONAL_BIT),
            (settings.control, CONTROL_BIT),
            (settings.delete_horizon.is_some(), DELETE_HORIZON_BIT),
        ] {
            attributes |= if is_set { bit } else { 0 };
        }
        let last_offset = settings.last_offset.or(self.last_offset).unwrap_or(settings.base_offset);
        let header = BatchHeader {
            base_offset: settings.base_offset,
            size: bytes.len(),
            partition_leader_epoch: settings.partition_leader_epoch,
            magic: 2,
            crc: 0,
            attributes,
            last_offset_delta: i32::try_from(last_offset - settings.base_offset)
                .expect("a batch spans less than two thousand million offsets"),
            base_timestamp: self.base_timestamp.unwrap_or(NO_TIMESTAMP),
            max_timestamp: if append_time { settings.log_append_time } else { self.max_timestamp },
            producer_id: settings.producer_id,
            producer_epoch: settings.producer_epoch,
            base_sequence: settings.base_sequence,
            record_count: self.record_count as i32,
        };
        bytes[..HEAD_LEN].copy_from_slice(&header.to_v2_head());
        let crc = crc32c::crc32c(&bytes[ATTRIBUTES_POSITION..]);
        bytes[CRC_POSITION..ATTRIBUTES_POSITION].copy_from_slice(&crc.to_be_bytes());
        bytes.into()
    }
}

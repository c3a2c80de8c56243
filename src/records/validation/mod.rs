//! What a leader accepts to append, and the batches that it then writes: the rules of Kafka's request check,
//! log append and `LogValidator`, in their order, since the first failure decides the error code.

mod record_check;
mod shallow;
mod write;

use std::ops::Deref;

use bytes::Bytes;
use klamm_model::{ErrorCode, LeaderEpoch, Offset, TimestampMs, TimestampType, TopicPartition};

use crate::batch::Batch;
use crate::compression::Compression;
use crate::error::RecordsError;
use crate::header::{BatchHeader, HEAD_LEN};

/// Who appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client's Produce.
    Client,
    /// This process itself: coordinators and transaction markers. They may write control batches.
    Coordinator,
}

/// What decides how batches are checked and changed.
#[derive(Clone, Debug)]
pub struct AppendRules {
    /// The version of the Produce; from 3 on exactly one batch of V2 is allowed. Only for clients.
    pub produce_version: i16,
    /// The format in which the topic is stored (`message.format.version`): 2, or 0 or 1.
    pub target_magic: i8,
    /// The topic's `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// The time of the append.
    pub now_ms: TimestampMs,
    /// How far back a record's time may lie; `i64::MAX` for any.
    pub timestamp_before_max_ms: i64,
    /// How far ahead a record's time may lie; `i64::MAX` for any.
    pub timestamp_after_max_ms: i64,
    /// The topic's `max.message.bytes`.
    pub max_batch_bytes: usize,
    /// Whether each record must have a key.
    pub is_compacted: bool,
    /// The topic's `compression.type`; `None` is "producer".
    pub compression_type: Option<Compression>,
    /// The level of `compression_type`; `None` is the codec's default.
    pub level: Option<i32>,
    /// What a compressed batch may expand to, in bytes;
    /// [`EXPANDED_BYTES_MAX`](crate::compression::EXPANDED_BYTES_MAX) where nobody says otherwise.
    pub expanded_bytes_max: usize,
    /// The offset that the first record gets.
    pub first_offset: Offset,
    /// The leader's epoch, which is written into each batch.
    pub leader_epoch: LeaderEpoch,
    /// Who appends.
    pub origin: Origin,
    /// Only for messages.
    pub topic_partition: TopicPartition,
}

/// The beginning of a batch as it is to be written, up to the 61 bytes of a V2 head.
#[derive(Clone, Copy, Debug)]
pub struct ValidHead {
    bytes: [u8; HEAD_LEN],
    len: u8,
}

impl ValidHead {
    fn new(head: &[u8]) -> ValidHead {
        let mut bytes = [0; HEAD_LEN];
        bytes[..head.len()].copy_from_slice(head);
        ValidHead { bytes, len: head.len() as u8 }
    }
}

impl Deref for ValidHead {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A batch that may be written: `head`, then `rest`.
#[derive(Clone, Debug)]
pub struct ValidBatch {
    /// The final head: offsets, leader epoch, append time.
    pub header: BatchHeader,
    /// The patched beginning of the batch.
    pub head: ValidHead,
    /// All that follows; the client's own bytes where nothing had to be converted.
    pub rest: Bytes,
    /// The offset of the first record, which the head of a compressed V0 or V1 message does not tell.
    pub first_offset: Offset,
    /// The offset of the first record with the largest timestamp; with an append time, that of the last one.
    pub offset_of_max_timestamp: Offset,
    /// How many records there are, those in a compressed message included.
    pub record_count: i32,
}

impl ValidBatch {
    /// The whole batch as one piece; it is copied.
    pub fn to_bytes(&self) -> Bytes {
        [&self.head, &self.rest[..]].concat().into()
    }
}

/// Why records are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct InvalidRecords {
    /// The code of the partition in the reply.
    pub code: ErrorCode,
    /// What is wrong, for the log and for the client (`error_message` of Produce v8 and up).
    pub message: String,
    /// The records at fault (KIP-467), by their index in the batch.
    pub record_errors: Vec<(i32, Option<String>)>,
}

impl InvalidRecords {
    fn new(code: ErrorCode, message: impl Into<String>) -> InvalidRecords {
        InvalidRecords { code, message: message.into(), record_errors: Vec::new() }
    }
}

impl From<RecordsError> for InvalidRecords {
    fn from(error: RecordsError) -> InvalidRecords {
        InvalidRecords::new(error.code(), error.to_string())
    }
}

/// Checks what a client or a coordinator wants to append, as Kafka's `LogValidator` does, and gives it offsets,
/// leader epoch and append time. Bytes after the last whole batch are ignored. No batch at all is fine below
/// Produce v3: then the result is empty.
///
/// Beyond Kafka, a batch whose records do not count their offsets 0, 1, 2 … is written anew even if it is not
/// compressed, so that two readers never see one offset twice.
pub fn validate_for_append(bytes: Bytes, rules: &AppendRules) -> Result<Vec<ValidBatch>, InvalidRecords> {
    let batches = shallow::whole_batches(bytes, rules)?;
    let Some(first) = batches.first().map(|batch| batch.header) else { return Ok(Vec::new()) };
    let mut source = Compression::None;
    for batch in &batches {
        shallow::check_for_log(batch, rules)?;
        if batch.header.is_compressed() {
            source = batch.header.compression()?;
        }
    }
    let target = rules.compression_type.unwrap_or(source);
    if batches.len() > 1 && (first.magic >= 2 || source != Compression::None) {
        let message = "Compressed outer record has more than one batch";
        return Err(InvalidRecords::new(ErrorCode::InvalidRecord, message));
    }
    let mut in_place = source == target && first.magic == rules.target_magic;
    if source != Compression::None && first.magic == 0 {
        // The offsets inside are absolute, so each append must write them anew.
        in_place = false;
    }
    if source == Compression::None && first.is_control() && first.magic == rules.target_magic {
        in_place = true;
    }
    let mut valid = Vec::with_capacity(if in_place { batches.len() } else { 0 });
    let mut next_offset = rules.first_offset;
    for batch in &batches {
        shallow::check_batch(&first, &batch.header, rules)?;
        let seen = record_check::check_records(batch, rules)?;
        in_place &= seen.counts_offsets;
        if in_place {
            valid.push(write::patch(batch, rules, &seen, next_offset));
            next_offset += i64::from(seen.record_count);
        }
    }
    if in_place { Ok(valid) } else { write::rebuild(&batches, target, rules) }
}

/// The records of a batch, as far as validation looks at them.
struct Seen {
    record_count: i32,
    max_timestamp: TimestampMs,
    /// The index of the first record with that timestamp.
    index_of_max_timestamp: i32,
    /// Whether the offsets in the batch are 0, 1, 2 … and its head agrees.
    counts_offsets: bool,
}

fn is_plain_message(batch: &Batch) -> bool {
    batch.header.magic < 2 && !batch.header.is_compressed()
}

//! From a checked batch to what is written: the same bytes with a patched head or, where format, codec or
//! offsets must change, a batch built anew.

use flate2::Crc;
use klamm_model::{ErrorCode, Offset, TimestampMs, TimestampType};

use super::{AppendRules, InvalidRecords, Seen, ValidBatch, ValidHead, shallow};
use crate::NO_TIMESTAMP;
use crate::batch::{Batch, batches};
use crate::builder::{BatchBuilder, BatchSettings};
use crate::compression::Compression;
use crate::header::{ATTRIBUTES_POSITION, BatchHeader, CRC_POSITION, HEAD_LEN, LOG_APPEND_TIME_BIT};
use crate::legacy::TIMESTAMP_POSITION;
use crate::record::Record;

/// Where the CRC of V0 and V1 stands, and where what it covers begins.
const LEGACY_CRC_POSITION: usize = 12;
const LEGACY_CRC_START: usize = 16;

/// Gives a batch its offsets, leader epoch and time without touching its records.
pub(super) fn patch(batch: &Batch, rules: &AppendRules, seen: &Seen, first_offset: Offset) -> ValidBatch {
    let last_offset = first_offset + i64::from(seen.record_count) - 1;
    let mut header = batch.header;
    let (before_type, before_time) = (header.timestamp_type(), header.max_timestamp);
    let append_time = rules.timestamp_type == TimestampType::LogAppendTime;
    if header.magic > 0 {
        header.max_timestamp = if append_time { rules.now_ms } else { seen.max_timestamp };
        header.attributes &= !LOG_APPEND_TIME_BIT;
        header.attributes |= if append_time { LOG_APPEND_TIME_BIT } else { 0 };
    }
    let retimed = (before_type, before_time) != (header.timestamp_type(), header.max_timestamp);
    let head = if header.magic == 2 {
        header.base_offset = first_offset;
        header.partition_leader_epoch = rules.leader_epoch;
        patch_v2_head(&mut header, &batch.bytes, retimed)
    } else {
        header.base_offset = last_offset;
        header.base_timestamp = header.max_timestamp;
        patch_legacy_head(&mut header, &batch.bytes, retimed)
    };
    ValidBatch {
        header,
        rest: batch.bytes.slice(head.len()..),
        head,
        first_offset,
        offset_of_max_timestamp: match append_time {
            true if header.magic > 0 => last_offset,
            _ => first_offset + i64::from(seen.index_of_max_timestamp),
        },
        record_count: seen.record_count,
    }
}

fn patch_v2_head(header: &mut BatchHeader, bytes: &[u8], retimed: bool) -> ValidHead {
    let mut head = header.to_v2_head();
    // Offsets and leader epoch stand before what the checksum covers, so most appends leave it as it is.
    if retimed {
        header.crc = crc32c::crc32c_append(crc32c::crc32c(&head[ATTRIBUTES_POSITION..]), &bytes[HEAD_LEN..]);
        head[CRC_POSITION..ATTRIBUTES_POSITION].copy_from_slice(&header.crc.to_be_bytes());
    }
    ValidHead::new(&head)
}

fn patch_legacy_head(header: &mut BatchHeader, bytes: &[u8], retimed: bool) -> ValidHead {
    let len = if header.magic == 0 { TIMESTAMP_POSITION } else { TIMESTAMP_POSITION + 8 };
    let mut head = ValidHead::new(&bytes[..len]);
    head.bytes[..8].copy_from_slice(&header.base_offset.to_be_bytes());
    if retimed {
        head.bytes[TIMESTAMP_POSITION - 1] = header.attributes as u8;
        head.bytes[TIMESTAMP_POSITION..len].copy_from_slice(&header.max_timestamp.to_be_bytes());
        let mut crc = Crc::new();
        crc.update(&head.bytes[LEGACY_CRC_START..len]);
        crc.update(&bytes[len..]);
        header.crc = crc.sum();
        head.bytes[LEGACY_CRC_POSITION..LEGACY_CRC_START].copy_from_slice(&header.crc.to_be_bytes());
    }
    head
}

/// Writes all records of `checked`, which have been checked, into one batch of the topic's format and codec;
/// uncompressed V0 and V1 messages stay apart.
pub(super) fn rebuild(
    checked: &[Batch],
    codec: Compression,
    rules: &AppendRules,
) -> Result<Vec<ValidBatch>, InvalidRecords> {
    let magic = rules.target_magic;
    if codec == Compression::Zstd && magic < 2 {
        // Kafka fails with an unknown server error here; this code tells the client what it is about.
        let message = format!("ZStandard compression is not supported for magic {magic}");
        return Err(InvalidRecords::new(ErrorCode::UnsupportedCompressionType, message));
    }
    let mut builder = BatchBuilder::new(magic, settings(checked, codec, rules));
    let mut max = (NO_TIMESTAMP, rules.first_offset);
    let mut offset = rules.first_offset;
    for batch in checked {
        for record in batch.record_iter_within(rules.expanded_bytes_max)? {
            let record = record?;
            check_convertible(&record, magic)?;
            let (key, value) = (record.key.as_deref(), record.value.as_deref());
            builder.append_at(offset, record.timestamp, key, value, &record.headers);
            if record.timestamp > max.0 {
                max = (record.timestamp, offset);
            }
            offset += 1;
        }
    }
    let built = batches(builder.build()).collect::<Result<Vec<Batch>, _>>()?;
    built.into_iter().map(|batch| valid(batch, rules, offset, max)).collect()
}

fn settings(checked: &[Batch], codec: Compression, rules: &AppendRules) -> BatchSettings {
    let first = &checked[0].header;
    BatchSettings {
        compression: codec,
        level: rules.level,
        timestamp_type: rules.timestamp_type,
        log_append_time: rules.now_ms,
        producer_id: first.producer_id,
        producer_epoch: first.producer_epoch,
        base_sequence: first.base_sequence,
        transactional: first.is_transactional(),
        control: first.is_control(),
        partition_leader_epoch: rules.leader_epoch,
        base_offset: rules.first_offset,
        ..BatchSettings::default()
    }
}

/// What a valid record can hold and another format or the builder cannot.
fn check_convertible(record: &Record, magic: i8) -> Result<(), InvalidRecords> {
    let message = if magic < 2 && !record.headers.is_empty() {
        format!("Magic v{magic} does not support record headers")
    } else if record.timestamp < 0 && record.timestamp != NO_TIMESTAMP {
        format!("Invalid negative timestamp {}", record.timestamp)
    } else {
        return Ok(());
    };
    Err(InvalidRecords::new(ErrorCode::UnknownServerError, message))
}

/// A built batch; `end` is the offset after the last record of all, `max` the largest timestamp and its offset.
fn valid(
    batch: Batch,
    rules: &AppendRules,
    end: Offset,
    max: (TimestampMs, Offset),
) -> Result<ValidBatch, InvalidRecords> {
    let header = batch.header;
    shallow::check_size(&header, rules)?;
    let holds_all = header.magic == 2 || header.is_compressed();
    let first_offset = if holds_all { rules.first_offset } else { header.base_offset };
    let last_offset = if holds_all { end - 1 } else { header.base_offset };
    let append_time = rules.timestamp_type == TimestampType::LogAppendTime && header.magic > 0;
    let head_len = match header.magic {
        0 => TIMESTAMP_POSITION,
        1 => TIMESTAMP_POSITION + 8,
        _ => HEAD_LEN,
    };
    Ok(ValidBatch {
        header,
        head: ValidHead::new(&batch.bytes[..head_len]),
        rest: batch.bytes.slice(head_len..),
        first_offset,
        offset_of_max_timestamp: if append_time || !holds_all { last_offset } else { max.1 },
        record_count: (last_offset - first_offset + 1) as i32,
    })
}

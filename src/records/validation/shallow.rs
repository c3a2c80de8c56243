//! Checks that need only the heads of batches and their checksums.

use bytes::Bytes;
use klamm_model::ErrorCode;

use super::{AppendRules, InvalidRecords, Origin};
use crate::batch::{Batch, batches};
use crate::compression::Compression;
use crate::header::BatchHeader;

fn invalid(message: impl Into<String>) -> InvalidRecords {
    InvalidRecords::new(ErrorCode::InvalidRecord, message)
}

/// The batches of a request, checked as a request is before any partition sees it.
pub(super) fn whole_batches(bytes: Bytes, rules: &AppendRules) -> Result<Vec<Batch>, InvalidRecords> {
    let batches = batches(bytes).lenient().collect::<Result<Vec<Batch>, _>>()?;
    let version = rules.produce_version;
    if rules.origin != Origin::Client || version < 3 {
        return Ok(batches);
    }
    let Some(first) = batches.first() else {
        return Err(invalid(format!(
            "Produce requests with version {version} must have at least one record batch per partition"
        )));
    };
    if first.header.magic != 2 {
        return Err(invalid(format!(
            "Produce requests with version {version} are only allowed to contain record batches with magic version 2"
        )));
    }
    if version < 7 && first.header.compression()? == Compression::Zstd {
        return Err(InvalidRecords::new(
            ErrorCode::UnsupportedCompressionType,
            format!("Produce requests with version {version} are not allowed to use ZStandard compression"),
        ));
    }
    if batches.len() > 1 {
        return Err(invalid(format!(
            "Produce requests with version {version} are only allowed to contain exactly one record batch per partition"
        )));
    }
    Ok(batches)
}

/// What the log checks of each batch before its records.
pub(super) fn check_for_log(batch: &Batch, rules: &AppendRules) -> Result<(), InvalidRecords> {
    let (header, partition) = (&batch.header, &rules.topic_partition);
    if header.magic >= 2 && rules.origin == Origin::Client && header.base_offset != 0 {
        return Err(invalid(format!(
            "The baseOffset of the record batch in the append to {partition} should be 0, but it is {}",
            header.base_offset
        )));
    }
    check_size(header, rules)?;
    batch.check_crc().map_err(|error| {
        InvalidRecords::new(ErrorCode::CorruptMessage, format!("{error} in topic partition {partition}"))
    })
}

pub(super) fn check_size(header: &BatchHeader, rules: &AppendRules) -> Result<(), InvalidRecords> {
    if header.size <= rules.max_batch_bytes {
        return Ok(());
    }
    Err(InvalidRecords::new(
        ErrorCode::MessageTooLarge,
        format!(
            "The record batch size in the append to {} is {} bytes which exceeds the maximum configured value of {}",
            rules.topic_partition, header.size, rules.max_batch_bytes
        ),
    ))
}

/// What the validator checks of each batch before its records. `first` is the first batch's head.
pub(super) fn check_batch(
    first: &BatchHeader,
    header: &BatchHeader,
    rules: &AppendRules,
) -> Result<(), InvalidRecords> {
    let partition = &rules.topic_partition;
    if header.magic != first.magic {
        return Err(invalid(format!(
            "Batch magic {} is not the same as the first batch's magic byte {} in topic partition {partition}",
            header.magic, first.magic
        )));
    }
    if rules.origin == Origin::Client {
        check_client_batch(header, rules)?;
    }
    if rules.target_magic < 2 {
        let kind = match header {
            _ if header.is_transactional() => "Transactional",
            _ if header.has_producer_id() => "Idempotent",
            _ => return Ok(()),
        };
        return Err(InvalidRecords::new(
            ErrorCode::UnsupportedForMessageFormat,
            format!("{kind} records cannot be used with magic version {}", rules.target_magic),
        ));
    }
    Ok(())
}

fn check_client_batch(header: &BatchHeader, rules: &AppendRules) -> Result<(), InvalidRecords> {
    let partition = &rules.topic_partition;
    if header.magic >= 2 {
        let (base, last, count) = (header.base_offset, header.last_offset(), header.record_count);
        if header.last_offset_delta < 0 {
            return Err(invalid(format!(
                "Batch has an invalid offset range: [{base}, {last}] in topic partition {partition}"
            )));
        }
        if count <= 0 {
            return Err(invalid(format!(
                "Invalid reported count for record batch: {count} in topic partition {partition}"
            )));
        }
        if i64::from(header.last_offset_delta) + 1 != i64::from(count) {
            return Err(invalid(format!(
                "Inconsistent batch offset range [{base}, {last}] and count of records {count} in topic partition {partition}"
            )));
        }
    }
    if header.is_control() {
        return Err(invalid(format!(
            "Clients are not allowed to write control records in topic partition {partition}"
        )));
    }
    if header.has_producer_id() && header.base_sequence < 0 {
        return Err(invalid(format!(
            "Invalid sequence number {} in record batch with producerId {} in topic partition {partition}",
            header.base_sequence, header.producer_id
        )));
    }
    Ok(())
}

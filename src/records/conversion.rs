//! Conversion between the formats, for clients and topics that need another one.

use bytes::Bytes;
use klamm_model::{Offset, TimestampMs, TimestampType};

use crate::NO_TIMESTAMP;
use crate::batch::{Batch, batches};
use crate::builder::{BatchBuilder, BatchSettings};
use crate::compression::Compression;
use crate::error::RecordsError;
use crate::record::Record;

/// Uncompressed messages are gathered into V2 batches of about this many bytes.
const GATHERED_BYTES: usize = 16 * 1024;

/// Converts batches of any format to `target_magic` (0 or 1), for a Fetch of an old version; one that is cut
/// off at the end is left out. Batches that are old enough stay as they are, control batches vanish, headers
/// are dropped. Records of uncompressed batches below `from_offset` are left out, as Kafka does. At a zstd
/// batch, which old clients cannot read, conversion ends; if nothing stands before it, the result is
/// [`RecordsError::UnsupportedCompression`].
pub fn down_convert(bytes: Bytes, target_magic: i8, from_offset: Offset) -> Result<Bytes, RecordsError> {
    assert!((0..=1).contains(&target_magic), "conversion down to V{target_magic}");
    if is_unchanged(&bytes, |batch| batch.header.magic <= target_magic) {
        return Ok(bytes);
    }
    let mut out = Vec::new();
    for batch in batches(bytes).lenient() {
        let batch = batch?;
        let header = &batch.header;
        if header.is_control() {
            continue;
        }
        if header.magic <= target_magic {
            out.extend_from_slice(&batch.bytes);
            continue;
        }
        if header.compression()? == Compression::Zstd {
            if out.is_empty() {
                let (offset, codec) = (header.base_offset, Compression::Zstd.name());
                return Err(RecordsError::UnsupportedCompression { offset, codec, magic: target_magic });
            }
            break;
        }
        if let Some(converted) = convert_down(&batch, target_magic, from_offset)? {
            out.extend_from_slice(&converted);
        }
    }
    Ok(out.into())
}

fn is_unchanged(bytes: &Bytes, stays: impl Fn(&Batch) -> bool) -> bool {
    batches(bytes.clone()).all(|batch| batch.is_ok_and(|batch| stays(&batch)))
}

fn convert_down(batch: &Batch, magic: i8, from_offset: Offset) -> Result<Option<Bytes>, RecordsError> {
    let mut builder = None;
    for record in batch.record_iter()? {
        let record = record?;
        // A compressed batch is fetched whole and its client skips what it did not ask for; the messages of an
        // uncompressed one stand alone.
        if !batch.header.is_compressed() && record.offset < from_offset {
            continue;
        }
        let builder = builder.get_or_insert_with(|| BatchBuilder::new(magic, settings(batch, record.offset)));
        append(builder, batch, &record)?;
    }
    Ok(builder.map(BatchBuilder::build))
}

fn settings(batch: &Batch, base_offset: Offset) -> BatchSettings {
    BatchSettings {
        compression: batch.header.compression().unwrap_or_default(),
        timestamp_type: batch.header.timestamp_type(),
        log_append_time: append_time(batch).unwrap_or(NO_TIMESTAMP),
        base_offset,
        ..BatchSettings::default()
    }
}

fn append_time(batch: &Batch) -> Option<TimestampMs> {
    (batch.header.timestamp_type() == TimestampType::LogAppendTime).then_some(batch.header.max_timestamp)
}

/// Appends a record that came from a disk, whose offset may be anything.
fn append(builder: &mut BatchBuilder, batch: &Batch, record: &Record) -> Result<(), RecordsError> {
    if !builder.takes_offset(record.offset) {
        let reason = "the offsets of its records do not rise";
        return Err(RecordsError::InvalidRecord { offset: batch.header.base_offset, reason });
    }
    let (key, value) = (record.key.as_deref(), record.value.as_deref());
    builder.append_at(record.offset, record.timestamp, key, value, &record.headers);
    Ok(())
}

/// Converts the batches of V0 and V1 in `bytes` to V2 and leaves those of V2 as they are; one that is cut off
/// at the end is left out. Uncompressed messages are gathered into batches.
pub fn up_convert_to_v2(bytes: Bytes) -> Result<Bytes, RecordsError> {
    if is_unchanged(&bytes, |batch| batch.header.magic == 2) {
        return Ok(bytes);
    }
    let mut out = Vec::new();
    let mut gathered: Option<(BatchBuilder, Option<TimestampMs>)> = None;
    for batch in batches(bytes).lenient() {
        let batch = batch?;
        let is_message = batch.header.magic < 2 && !batch.header.is_compressed();
        if let Some((builder, time)) = &mut gathered {
            let fits = is_message
                && *time == append_time(&batch)
                && builder.uncompressed_len() + batch.bytes.len() <= GATHERED_BYTES
                && builder.takes_offset(batch.header.base_offset);
            if !fits {
                out.extend_from_slice(&gathered.take().map_or(Bytes::new(), |(builder, _)| builder.build()));
            }
        }
        if batch.header.magic == 2 {
            out.extend_from_slice(&batch.bytes);
        } else if is_message {
            let (builder, _) = gathered.get_or_insert_with(|| {
                (BatchBuilder::v2(settings(&batch, batch.header.base_offset)), append_time(&batch))
            });
            for record in batch.record_iter()? {
                append(builder, &batch, &record?)?;
            }
        } else {
            out.extend_from_slice(&convert_wrapper_up(&batch)?);
        }
    }
    if let Some((builder, _)) = gathered {
        out.extend_from_slice(&builder.build());
    }
    Ok(out.into())
}

fn convert_wrapper_up(batch: &Batch) -> Result<Bytes, RecordsError> {
    let mut builder = BatchBuilder::v2(settings(batch, batch.first_offset()?));
    for record in batch.record_iter()? {
        append(&mut builder, batch, &record?)?;
    }
    Ok(builder.build())
}

//! Conversion between the formats, for clients and topics that need another one.

use bytes::Bytes;
use klamm_model::{Offset, TimestampMs};

use crate::NO_TIMESTAMP;
use crate::batch::{Batch, batches};
use crate::builder::{BatchBuilder, BatchSettings};
use crate::compression::Compression;
use crate::error::RecordsError;

/// Uncompressed messages are gathered into V2 batches of about this many bytes.
const GATHERED_BYTES: usize = 16 * 1024;

/// How much conversion may give.
///
/// A batch takes more bytes in another format, tiny records five times as many. So what comes out is bounded: it
/// ends behind the last whole batch that fits. The first one is converted whole, however large it is, or its reader
/// would never come past it (KIP-74); then only one of its records is in memory beside what comes out.
#[derive(Clone, Copy, Debug)]
pub struct ConversionLimit {
    /// The most bytes that come out, unless the first batch alone takes more.
    pub bytes_max: usize,
}

/// Collects what was converted.
struct Output {
    bytes: Vec<u8>,
    limit: ConversionLimit,
}

impl Output {
    fn new(limit: ConversionLimit) -> Output {
        Output { bytes: Vec::new(), limit }
    }

    /// Adds a batch, unless it is not the first and does not fit. Says whether it was added.
    fn add(&mut self, batch: &[u8]) -> bool {
        let fits = self.bytes.is_empty() || self.bytes.len() + batch.len() <= self.limit.bytes_max;
        if fits {
            self.bytes.extend_from_slice(batch);
        }
        fits
    }
}

/// Converts batches of any format to `target_magic` (0 or 1), for a Fetch of an old version; one that is cut
/// off at the end is left out. Batches that are old enough stay as they are, control batches vanish, headers
/// are dropped. Records of uncompressed batches below `from_offset` are left out, as Kafka does. At a zstd
/// batch, which old clients cannot read, conversion ends; if nothing stands before it, the result is
/// [`RecordsError::UnsupportedCompression`]. A batch that is broken ends it in the same way.
pub fn down_convert(
    bytes: Bytes,
    target_magic: i8,
    from_offset: Offset,
    limit: ConversionLimit,
) -> Result<Bytes, RecordsError> {
    assert!((0..=1).contains(&target_magic), "conversion down to V{target_magic}");
    if is_unchanged(&bytes, |batch| batch.header.magic <= target_magic) {
        return Ok(bytes);
    }
    let mut out = Output::new(limit);
    for batch in batches(bytes).lenient() {
        match batch.and_then(|batch| down_converted(&batch, target_magic, from_offset)) {
            Ok(None) => {}
            Ok(Some(converted)) if out.add(&converted) => {}
            Err(error) if out.bytes.is_empty() => return Err(error),
            Ok(Some(_)) | Err(_) => break,
        }
    }
    Ok(out.bytes.into())
}

fn is_unchanged(bytes: &Bytes, stays: impl Fn(&Batch) -> bool) -> bool {
    batches(bytes.clone()).all(|batch| batch.is_ok_and(|batch| stays(&batch)))
}

/// What a batch becomes; `None` if nothing is left of it.
fn down_converted(batch: &Batch, magic: i8, from_offset: Offset) -> Result<Option<Bytes>, RecordsError> {
    let header = &batch.header;
    if header.is_control() {
        return Ok(None);
    }
    if header.magic <= magic {
        return Ok(Some(batch.bytes.clone()));
    }
    if header.compression()? == Compression::Zstd {
        let (offset, codec) = (header.base_offset, Compression::Zstd.name());
        return Err(RecordsError::UnsupportedCompression { offset, codec, magic });
    }
    let mut builder = None;
    let mut last_offset = Offset::MIN;
    batch.visit_records(|record| {
        last_offset = record.offset;
        // A compressed batch is fetched whole and its client skips what it did not ask for; the messages of an
        // uncompressed one stand alone.
        if !header.is_compressed() && record.offset < from_offset {
            return Ok(());
        }
        let builder = builder.get_or_insert_with(|| BatchBuilder::new(magic, settings(batch, record.offset)));
        builder.append_stored(header, &record)
    })?;
    // Compaction may have taken the last records of the batch that the client asks for. In the old formats nothing
    // tells that it goes on behind those that are left, and a client that has them would ask for the same again, for
    // ever.
    let brings_progress = last_offset >= from_offset || header.last_offset() < from_offset;
    Ok(builder.filter(|_| brings_progress).map(BatchBuilder::build))
}

fn settings(batch: &Batch, base_offset: Offset) -> BatchSettings {
    BatchSettings {
        compression: batch.header.compression().unwrap_or_default(),
        timestamp_type: batch.header.timestamp_type(),
        log_append_time: batch.header.append_time().unwrap_or(NO_TIMESTAMP),
        base_offset,
        ..BatchSettings::default()
    }
}

/// Converts the batches of V0 and V1 in `bytes` to V2 and leaves those of V2 as they are; one that is cut off
/// at the end is left out, and so is all from a broken one on, unless it is the first. Uncompressed messages are
/// gathered into batches.
pub fn up_convert_to_v2(bytes: Bytes, limit: ConversionLimit) -> Result<Bytes, RecordsError> {
    if is_unchanged(&bytes, |batch| batch.header.magic == 2) {
        return Ok(bytes);
    }
    let mut out = Output::new(limit);
    let mut gathered: Option<Gathered> = None;
    for batch in batches(bytes).lenient() {
        let is_next = |batch: &Batch| gathered.as_ref().is_some_and(|gathered| gathered.takes(batch));
        if !batch.as_ref().is_ok_and(is_next)
            && let Some(Gathered { builder, .. }) = gathered.take()
            && !out.add(&builder.build())
        {
            return Ok(out.bytes.into());
        }
        match batch.and_then(|batch| up_converted(batch, &mut gathered)) {
            Ok(None) => {}
            Ok(Some(converted)) if out.add(&converted) => {}
            Err(error) if out.bytes.is_empty() => return Err(error),
            Ok(Some(_)) | Err(_) => return Ok(out.bytes.into()),
        }
    }
    if let Some(Gathered { builder, .. }) = gathered {
        out.add(&builder.build());
    }
    Ok(out.bytes.into())
}

/// Uncompressed messages that are to become one batch.
struct Gathered {
    builder: BatchBuilder,
    append_time: Option<TimestampMs>,
}

impl Gathered {
    fn takes(&self, batch: &Batch) -> bool {
        is_message(batch)
            && self.append_time == batch.header.append_time()
            && self.builder.uncompressed_len() + batch.bytes.len() <= GATHERED_BYTES
            && self.builder.takes_offset(batch.header.base_offset)
    }
}

fn is_message(batch: &Batch) -> bool {
    batch.header.magic < 2 && !batch.header.is_compressed()
}

/// What a batch becomes; `None` for a message, which is gathered.
fn up_converted(batch: Batch, gathered: &mut Option<Gathered>) -> Result<Option<Bytes>, RecordsError> {
    if batch.header.magic == 2 {
        return Ok(Some(batch.bytes));
    }
    if is_message(&batch) {
        let gathered = gathered.get_or_insert_with(|| Gathered {
            builder: BatchBuilder::v2(settings(&batch, batch.header.base_offset)),
            append_time: batch.header.append_time(),
        });
        batch.visit_records(|record| gathered.builder.append_stored(&batch.header, &record))?;
        return Ok(None);
    }
    let mut builder = BatchBuilder::v2(settings(&batch, batch.first_offset()?));
    batch.visit_records(|record| builder.append_stored(&batch.header, &record))?;
    Ok(Some(builder.build()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::EXPANDED_BYTES_MAX;

    const LIMIT: ConversionLimit = ConversionLimit { bytes_max: 1024 * 1024 };

    /// `max.decompressed.message.bytes` may have allowed more when the batch was stored than a list of its records
    /// may take. An old consumer that could not be shown such a batch would stand before it for ever.
    #[test]
    fn a_batch_that_expands_beyond_all_bounds_is_converted() {
        let value = vec![0; EXPANDED_BYTES_MAX / 2 + 1];
        let settings = BatchSettings { compression: Compression::Lz4, base_offset: 7, ..Default::default() };
        let mut builder = BatchBuilder::v2(settings);
        for time in 0..2 {
            builder.append(time, None, Some(&value), &[]);
        }
        let stored = builder.build();
        let converted = Batch::parse(down_convert(stored, 1, 7, LIMIT).unwrap()).unwrap();
        assert_eq!((converted.header.magic, converted.header.base_offset), (1, 8));
        assert!(converted.record_iter().is_err(), "it is beyond the bound of a list");
    }

    /// Compaction took offset 8 of the batch of 7 and 8. An old consumer that has 7 asks for 8, and must not get 7 again:
    /// it would ask for 8 for ever.
    #[test]
    fn what_a_client_has_is_not_all_that_it_gets() {
        for compression in [Compression::None, Compression::Lz4] {
            let settings =
                BatchSettings { compression, base_offset: 7, last_offset: Some(8), ..Default::default() };
            let mut builder = BatchBuilder::v2(settings);
            builder.append_at(7, 0, None, Some(b"x"), &[]);
            let stored = builder.build();
            let converted = |from| down_convert(stored.clone(), 1, from, LIMIT).unwrap();
            assert_eq!(batches(converted(7)).count(), 1, "{compression:?}");
            assert!(converted(8).is_empty(), "{compression:?}");
        }
    }

    /// Tiny records take five times as many bytes in V1 as in V2. A fetch of many megabytes must not become one of
    /// hundreds.
    #[test]
    fn what_comes_out_is_bounded() {
        let small = |base_offset, records| {
            let mut builder = BatchBuilder::v2(BatchSettings { base_offset, ..Default::default() });
            for _ in 0..records {
                builder.append(0, None, Some(b"x"), &[]);
            }
            builder.build()
        };
        let stored = [small(0, 1000), small(1000, 1000), small(2000, 1000)].concat();
        let convert = |bytes_max| {
            let converted = down_convert(stored.clone().into(), 1, 0, ConversionLimit { bytes_max }).unwrap();
            batches(converted).count()
        };
        assert_eq!(convert(1), 1000, "the first batch comes whole");
        assert_eq!(convert(stored.len()), 1000);
        assert_eq!(convert(stored.len() * 3), 2000);
        assert_eq!(convert(usize::MAX), 3000);
    }
}

//! Checks of the records in a batch, in one pass without building them.

use klamm_model::{ErrorCode, Offset, TimestampMs, TimestampType};

use super::{AppendRules, InvalidRecords, Seen, is_plain_message};
use crate::NO_TIMESTAMP;
use crate::batch::Batch;
use crate::compression::Decoder;
use crate::error::RecordsError;
use crate::header::{BatchHeader, HEAD_LEN};
use crate::legacy::{InnerMessages, key_and_value};
use crate::stream::{Broken, DecoderSource, SliceSource, Source, is_at_end, outline};

/// How many record errors a reply lists. Kafka lists all; but they are longer than the records, and a small
/// compressed batch can hold millions of those.
const RECORD_ERRORS_MAX: usize = 1000;

/// How many of them the message repeats.
const ERRORS_SHOWN: usize = 3;

/// Looks at every record of a batch.
pub(super) fn check_records(batch: &Batch, rules: &AppendRules) -> Result<Seen, InvalidRecords> {
    let mut check = RecordCheck::new(&batch.header, rules);
    let counts_offsets = match batch.header.magic {
        2 => check_v2(batch, &mut check).map_err(|broken| broken.at(batch.header.base_offset))?,
        _ if is_plain_message(batch) => check_message(batch, &mut check)?,
        _ => check_wrapper(batch, &mut check)?,
    };
    check.finish(counts_offsets)
}

fn check_v2(batch: &Batch, check: &mut RecordCheck<'_>) -> Result<bool, Broken> {
    let records = &batch.bytes[HEAD_LEN..];
    if !batch.header.is_compressed() {
        return check_v2_records(&mut SliceSource { bytes: records, position: 0 }, check);
    }
    let codec = batch.header.compression().map_err(Broken::Codec)?;
    let decoder = Decoder::new(codec, 2, records, check.rules.expanded_bytes_max).map_err(Broken::Codec)?;
    check_v2_records(&mut DecoderSource::new(decoder), check)
}

fn check_v2_records(source: &mut impl Source, check: &mut RecordCheck<'_>) -> Result<bool, Broken> {
    let header = check.header;
    if header.record_count < 0 {
        return Err(Broken::Record("a negative number of records"));
    }
    let append_time = header.append_time();
    let mut counts_offsets = header.last_offset_delta == header.record_count - 1;
    for index in 0..header.record_count {
        let record = outline(source)?;
        counts_offsets &= record.offset_delta == index;
        check.record(Facts {
            offset: header.base_offset.wrapping_add(i64::from(record.offset_delta)),
            timestamp: append_time
                .unwrap_or_else(|| header.base_timestamp.wrapping_add(record.timestamp_delta)),
            key_len: record.key_len,
            value_len: record.value_len,
        });
    }
    if is_at_end(source)? {
        Ok(counts_offsets)
    } else {
        Err(Broken::Record("there are more records than the batch says"))
    }
}

fn check_message(batch: &Batch, check: &mut RecordCheck<'_>) -> Result<bool, InvalidRecords> {
    let header = &batch.header;
    let (key, value) = key_and_value(&batch.bytes, header.magic)
        .map_err(|reason| RecordsError::InvalidRecord { offset: header.base_offset, reason })?;
    check.record(Facts {
        offset: header.base_offset,
        timestamp: header.max_timestamp,
        key_len: len(key.as_deref()),
        value_len: len(value.as_deref()),
    });
    Ok(true)
}

fn check_wrapper(batch: &Batch, check: &mut RecordCheck<'_>) -> Result<bool, InvalidRecords> {
    let header = &batch.header;
    let mut counts_offsets = true;
    for message in InnerMessages::open(header, &batch.bytes, check.rules.expanded_bytes_max)? {
        let message = message?;
        if message.magic != header.magic {
            let text = format!(
                "Record of magic {}'s magic does not match outer magic {} in topic partition {}",
                message.magic, header.magic, check.rules.topic_partition
            );
            check.refuse(ErrorCode::InvalidRecord, text);
            continue;
        }
        message.check_crc()?;
        counts_offsets &= message.offset == i64::from(check.index);
        let (key, value) = key_and_value(&message.bytes, message.magic)
            .map_err(|reason| RecordsError::InvalidRecord { offset: header.base_offset, reason })?;
        check.record(Facts {
            offset: message.offset,
            timestamp: message.timestamp,
            key_len: len(key.as_deref()),
            value_len: len(value.as_deref()),
        });
    }
    Ok(counts_offsets)
}

fn len(bytes: Option<&[u8]>) -> i32 {
    bytes.map_or(-1, |bytes| bytes.len() as i32)
}

/// What is checked of a record. A null key or value has length -1.
struct Facts {
    offset: Offset,
    timestamp: TimestampMs,
    key_len: i32,
    value_len: i32,
}

/// Collects what is wrong with records, and their largest timestamp.
struct RecordCheck<'a> {
    header: &'a BatchHeader,
    rules: &'a AppendRules,
    index: i32,
    max_timestamp: TimestampMs,
    index_of_max_timestamp: i32,
    errors: Vec<(i32, Option<String>)>,
    error_count: usize,
    any_invalid_timestamp: bool,
}

impl<'a> RecordCheck<'a> {
    fn new(header: &'a BatchHeader, rules: &'a AppendRules) -> RecordCheck<'a> {
        RecordCheck {
            header,
            rules,
            index: 0,
            max_timestamp: NO_TIMESTAMP,
            index_of_max_timestamp: 0,
            errors: Vec::new(),
            error_count: 0,
            any_invalid_timestamp: false,
        }
    }

    #[inline]
    fn record(&mut self, facts: Facts) {
        if self.rules.is_compacted && facts.key_len < 0 {
            let partition = &self.rules.topic_partition;
            let text =
                format!("Compacted topic cannot accept message without key in topic partition {partition}");
            return self.refuse(ErrorCode::InvalidRecord, text);
        }
        if self.rules.timestamp_type == TimestampType::CreateTime && facts.timestamp != NO_TIMESTAMP {
            if self.is_out_of_range(facts.timestamp) {
                return self.refuse_out_of_range(&facts);
            }
        } else if self.header.timestamp_type() == TimestampType::LogAppendTime {
            return self.refuse_append_time(&facts);
        }
        if facts.timestamp > self.max_timestamp {
            self.max_timestamp = facts.timestamp;
            self.index_of_max_timestamp = self.index;
        }
        self.index += 1;
    }

    fn is_out_of_range(&self, timestamp: TimestampMs) -> bool {
        let age = self.rules.now_ms.wrapping_sub(timestamp);
        age > self.rules.timestamp_before_max_ms || age.wrapping_neg() > self.rules.timestamp_after_max_ms
    }

    #[cold]
    fn refuse_out_of_range(&mut self, facts: &Facts) {
        let rules = self.rules;
        let text = format!(
            "Timestamp {} of message with offset {} is out of range. The timestamp should be within [{}, {}]",
            facts.timestamp,
            facts.offset,
            rules.now_ms.wrapping_sub(rules.timestamp_before_max_ms),
            rules.now_ms.wrapping_add(rules.timestamp_after_max_ms)
        );
        self.refuse(ErrorCode::InvalidTimestamp, text);
    }

    #[cold]
    fn refuse_append_time(&mut self, facts: &Facts) {
        let text = format!(
            "Invalid timestamp type in message DefaultRecord(offset={}, timestamp={}, key={} bytes, value={} bytes). \
             Producer should not set timestamp type to LogAppendTime.",
            facts.offset,
            facts.timestamp,
            facts.key_len.max(0),
            facts.value_len.max(0)
        );
        self.refuse(ErrorCode::InvalidTimestamp, text);
    }

    #[cold]
    fn refuse(&mut self, code: ErrorCode, text: String) {
        self.any_invalid_timestamp |= code == ErrorCode::InvalidTimestamp;
        self.error_count += 1;
        if self.errors.len() < RECORD_ERRORS_MAX {
            self.errors.push((self.index, Some(text)));
        }
        self.index += 1;
    }

    fn finish(self, counts_offsets: bool) -> Result<Seen, InvalidRecords> {
        if self.errors.is_empty() {
            return Ok(Seen {
                record_count: self.index,
                max_timestamp: self.max_timestamp,
                index_of_max_timestamp: self.index_of_max_timestamp,
                counts_offsets,
            });
        }
        let (code, message) = if self.any_invalid_timestamp {
            let message = "One or more records have been rejected due to invalid timestamp".to_owned();
            (ErrorCode::InvalidTimestamp, message)
        } else {
            let shown: Vec<String> = self.errors.iter().take(ERRORS_SHOWN).map(describe).collect();
            let message = format!(
                "One or more records have been rejected due to {} record errors in total, and only showing the \
                 first three errors at most: [{}]",
                self.error_count,
                shown.join(", ")
            );
            (ErrorCode::InvalidRecord, message)
        };
        Err(InvalidRecords { code, message, record_errors: self.errors })
    }
}

fn describe((index, text): &(i32, Option<String>)) -> String {
    format!("RecordError(batchIndex={index}, message='{}')", text.as_deref().unwrap_or_default())
}

//! Going through the keys and values of a batch without a copy, and without a count of who holds them: for tables that
//! are loaded from millions of records.

use klamm_model::{Offset, TimestampMs};

use crate::batch::Batch;
use crate::compression::EXPANDED_BYTES_MAX;
use crate::error::RecordsError;
use crate::record::walk_v2_record;

/// A record without its headers, as [`crate::Record`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its place in the partition.
    pub offset: Offset,
    /// The producer's time or, where the batch says so, the append time; -1 in V0.
    pub timestamp: TimestampMs,
    /// The key, or null.
    pub key: Option<&'a [u8]>,
    /// The value; null is a tombstone.
    pub value: Option<&'a [u8]>,
}

impl Batch {
    /// Hands the records out one by one, as [`Batch::record_iter`] yields them.
    ///
    /// # Errors
    /// The first error; what comes before it is handed out.
    pub fn visit_entries(&self, visit: impl FnMut(Entry<'_>)) -> Result<(), RecordsError> {
        self.visit_entries_within(EXPANDED_BYTES_MAX, visit)
    }

    /// As [`Batch::visit_entries`] with another bound on the decompressed bytes.
    ///
    /// # Errors
    /// As there.
    pub fn visit_entries_within(
        &self,
        limit: usize,
        mut visit: impl FnMut(Entry<'_>),
    ) -> Result<(), RecordsError> {
        if self.header.magic < 2 {
            for record in self.record_iter_within(limit)? {
                let record = record?;
                let (key, value) = (record.key.as_deref(), record.value.as_deref());
                visit(Entry { offset: record.offset, timestamp: record.timestamp, key, value });
            }
            return Ok(());
        }
        let header = &self.header;
        let invalid = |reason| RecordsError::InvalidRecord { offset: header.base_offset, reason };
        let (bytes, count) = self.expand_v2(limit)?;
        let mut position = 0;
        for _ in 0..count {
            let (record, end) = walk_v2_record(&bytes, position, |_, _| {}).map_err(invalid)?;
            position = end;
            let own_time = header.base_timestamp.wrapping_add(record.timestamp_delta);
            visit(Entry {
                offset: header.base_offset.wrapping_add(i64::from(record.offset_delta)),
                timestamp: header.append_time().unwrap_or(own_time),
                key: record.key.map(|key| &bytes[key]),
                value: record.value.map(|value| &bytes[value]),
            });
        }
        if position == bytes.len() {
            Ok(())
        } else {
            Err(invalid("there are more records than the batch says"))
        }
    }
}

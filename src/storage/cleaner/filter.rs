//! What becomes of a batch: which of its records stay, and whether an empty batch does.

use std::collections::BTreeMap;

use bytes::Bytes;
use klamm_model::{Offset, ProducerEpoch, ProducerId, TimestampMs};
use klamm_records::{Batch, Record, RecordsError};

use super::offset_map::OffsetMap;
use super::transactions::Transactions;

/// The last thing that the log holds of a producer that it remembers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastRecord {
    /// The last offset of its last batch with data, if the log knows one of its epoch.
    pub(crate) data_offset: Option<Offset>,
    pub(crate) epoch: ProducerEpoch,
}

/// The rules of one round, and what they need to know.
pub(super) struct Filter<'a> {
    pub(super) map: &'a OffsetMap,
    pub(super) now_ms: TimestampMs,
    pub(super) delete_retention_ms: i64,
    /// Whether tombstones of V0 and V1 stay, in this segment: those formats have no horizon, and the time of the
    /// segment's file decides.
    pub(super) keeps_old_tombstones: bool,
    pub(super) producers: &'a BTreeMap<ProducerId, LastRecord>,
    /// Behind which offset the round ends.
    pub(super) round_end: Offset,
}

/// What is left of a batch.
pub(super) enum Left {
    /// All of it, just as it is.
    Unchanged { records: u64 },
    /// Other bytes, perhaps of a batch without records.
    Changed { bytes: Bytes, records: u64, dropped: u64 },
    /// Nothing.
    Nothing { dropped: u64 },
}

/// What a look at all records says.
#[derive(Default)]
struct Seen {
    kept: u64,
    dropped: u64,
    has_tombstones: bool,
}

impl Filter<'_> {
    /// Decides over the next batch of the walk that `transactions` follows.
    pub(super) fn apply(&self, batch: &Batch, transactions: &mut Transactions) -> Result<Left, RecordsError> {
        let header = &batch.header;
        let horizon = header.delete_horizon();
        let can_discard = transactions.follow(batch)?;
        // A marker waits for its horizon, since a reader may be in the middle of what it ended (KIP-534).
        let is_over = !header.is_control() || horizon.is_some_and(|horizon| horizon <= self.now_ms);
        let discards = can_discard && is_over;
        let keeps_empty = self.keeps_empty(batch);
        let mut seen = Seen::default();
        if discards && !keeps_empty {
            return Ok(Left::Nothing { dropped: u64::try_from(header.record_count).unwrap_or(1) });
        }
        for record in batch.record_iter()? {
            let record = record?;
            if !discards && self.keeps(batch, &record) {
                seen.kept += 1;
                seen.has_tombstones |= record.value.is_none();
            } else {
                seen.dropped += 1;
            }
        }
        let Seen { kept, dropped, has_tombstones } = seen;
        if kept == 0 {
            // Only V2 knows batches without records.
            if !keeps_empty || header.magic < 2 {
                return Ok(Left::Nothing { dropped });
            }
            return Ok(Left::Changed { bytes: batch.emptied(), records: 0, dropped });
        }
        let is_empty_marker = can_discard && header.is_control();
        let begins_horizon = header.magic >= 2 && (has_tombstones || is_empty_marker) && horizon.is_none();
        if dropped == 0 && !begins_horizon {
            return Ok(Left::Unchanged { records: kept });
        }
        let new_horizon = self.now_ms.saturating_add(self.delete_retention_ms);
        let horizon = if begins_horizon { Some(new_horizon) } else { horizon };
        let bytes = batch.with_records(|record| self.keeps(batch, record), horizon)?;
        Ok(Left::Changed { bytes, records: kept, dropped })
    }

    /// Whether the batch stays even without records: because the log would forget the sequence or the epoch of a
    /// producer, or how far the round had come.
    fn keeps_empty(&self, batch: &Batch) -> bool {
        let header = &batch.header;
        let is_last_of_producer = header.has_producer_id()
            && self.producers.get(&header.producer_id).is_some_and(|last| match last.data_offset {
                Some(offset) => header.last_offset() == offset,
                None => header.is_control() && header.producer_epoch == last.epoch,
            });
        is_last_of_producer || header.next_offset() == self.round_end
    }

    fn keeps(&self, batch: &Batch, record: &Record) -> bool {
        if batch.header.is_control() || record.offset > self.map.latest_offset() {
            return true;
        }
        // Without a key nobody can say what supersedes it; Kafka takes it for invalid and lets it go.
        let Some(key) = &record.key else { return false };
        let is_latest = self.map.get(key).is_none_or(|latest| record.offset >= latest);
        is_latest && (record.value.is_some() || self.keeps_tombstone(batch))
    }

    fn keeps_tombstone(&self, batch: &Batch) -> bool {
        if batch.header.magic < 2 {
            return self.keeps_old_tombstones;
        }
        batch.header.delete_horizon().is_none_or(|horizon| self.now_ms < horizon)
    }
}

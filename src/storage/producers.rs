//! What a log knows of its idempotent and transactional producers, and which transactions are open.
//!
//! This follows each batch that is appended or recovered. Whether a batch may be appended is decided in
//! `partition`, before it comes here.

use std::collections::{BTreeMap, VecDeque};

use klamm_model::{Offset, ProducerEpoch, ProducerId, TimestampMs};
use klamm_records::BatchHeader;

/// How many batches of a producer are remembered, for telling duplicates: clients have five in flight.
pub const BATCHES_MAX: usize = 5;

/// A batch of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerBatch {
    /// Sequence number of the first record.
    pub base_sequence: i32,
    /// Sequence number of the last record.
    pub last_sequence: i32,
    /// Offset of the first record.
    pub base_offset: Offset,
    /// Offset of the last record.
    pub last_offset: Offset,
    /// The largest timestamp in the batch.
    pub timestamp: TimestampMs,
}

/// A producer of this log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerState {
    /// Its id.
    pub id: ProducerId,
    /// Its epoch: of its last batch or of the last marker.
    pub epoch: ProducerEpoch,
    /// Its last batches of that epoch, oldest first, at most five.
    pub batches: VecDeque<ProducerBatch>,
    /// The epoch of the coordinator that wrote the last marker, or -1.
    pub coordinator_epoch: i32,
    /// When it was last heard of.
    pub last_timestamp: TimestampMs,
    /// Where its open transaction began, if there is one.
    pub current_txn_first_offset: Option<Offset>,
}

/// An end of a transaction, as a control batch says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    pub(crate) coordinator_epoch: i32,
    pub(crate) is_abort: bool,
    pub(crate) timestamp: TimestampMs,
}

/// A transaction that had data in this log and has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompletedTransaction {
    pub(crate) producer_id: ProducerId,
    pub(crate) first_offset: Offset,
    /// The offset of the marker.
    pub(crate) last_offset: Offset,
    pub(crate) is_abort: bool,
    /// The last stable offset behind the marker.
    pub(crate) last_stable_offset: Offset,
}

/// All producers of a log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Producers {
    states: BTreeMap<ProducerId, ProducerState>,
    /// Open transactions by first offset.
    ongoing: BTreeMap<Offset, ProducerId>,
    /// Ended transactions whose marker the high watermark has not passed: first offset to last offset. They
    /// hold the last stable offset back.
    unreplicated: BTreeMap<Offset, Offset>,
    /// All batches below this offset are accounted for.
    end_offset: Offset,
}

impl ProducerState {
    fn new(id: ProducerId, epoch: ProducerEpoch) -> ProducerState {
        ProducerState {
            id,
            epoch,
            batches: VecDeque::new(),
            coordinator_epoch: -1,
            last_timestamp: -1,
            current_txn_first_offset: None,
        }
    }

    /// Batches of an older epoch say nothing about duplicates of the new one.
    fn set_epoch(&mut self, epoch: ProducerEpoch) {
        if self.epoch != epoch {
            self.batches.clear();
            self.epoch = epoch;
        }
    }

    /// The sequence of its last record, or -1.
    pub fn last_sequence(&self) -> i32 {
        self.batches.back().map_or(-1, |batch| batch.last_sequence)
    }

    fn is_expired(&self, now: TimestampMs, expiration_ms: i64) -> bool {
        self.current_txn_first_offset.is_none() && now.saturating_sub(self.last_timestamp) >= expiration_ms
    }
}

impl Producers {
    pub(crate) fn starting_at(end_offset: Offset) -> Producers {
        Producers { end_offset, ..Producers::default() }
    }

    pub(crate) fn end_offset(&self) -> Offset {
        self.end_offset
    }

    pub(crate) fn set_end_offset(&mut self, end_offset: Offset) {
        self.end_offset = end_offset;
    }

    pub(crate) fn get(&self, id: ProducerId) -> Option<&ProducerState> {
        self.states.get(&id)
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &ProducerState> {
        self.states.values()
    }

    /// Puts a state in, as a snapshot says it.
    pub(crate) fn insert(&mut self, state: ProducerState) {
        if let Some(first_offset) = state.current_txn_first_offset {
            self.ongoing.insert(first_offset, state.id);
        }
        self.states.insert(state.id, state);
    }

    /// Follows one batch. `marker` is what a control batch holds. Returns the transaction that it ends.
    pub(crate) fn apply(
        &mut self,
        header: &BatchHeader,
        marker: Option<Marker>,
    ) -> Option<CompletedTransaction> {
        self.end_offset = header.next_offset();
        if !header.has_producer_id() {
            return None;
        }
        match (header.is_control(), marker) {
            (false, _) => {
                self.apply_data(header);
                None
            }
            // A control batch that the cleaner emptied.
            (true, None) => None,
            (true, Some(marker)) => self.apply_marker(header, marker),
        }
    }

    fn apply_data(&mut self, header: &BatchHeader) {
        let new = || ProducerState::new(header.producer_id, header.producer_epoch);
        let state = self.states.entry(header.producer_id).or_insert_with(new);
        state.set_epoch(header.producer_epoch);
        if state.batches.len() == BATCHES_MAX {
            state.batches.pop_front();
        }
        state.batches.push_back(ProducerBatch {
            base_sequence: header.base_sequence,
            last_sequence: header.last_sequence(),
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            timestamp: header.max_timestamp,
        });
        state.last_timestamp = header.max_timestamp;
        if header.is_transactional() && state.current_txn_first_offset.is_none() {
            state.current_txn_first_offset = Some(header.base_offset);
            self.ongoing.insert(header.base_offset, header.producer_id);
        }
    }

    fn apply_marker(&mut self, header: &BatchHeader, marker: Marker) -> Option<CompletedTransaction> {
        let new = || ProducerState::new(header.producer_id, header.producer_epoch);
        let state = self.states.entry(header.producer_id).or_insert_with(new);
        let first_offset = state.current_txn_first_offset.take();
        state.set_epoch(header.producer_epoch);
        state.coordinator_epoch = marker.coordinator_epoch;
        state.last_timestamp = marker.timestamp;
        // A transaction without data here holds nothing back and needs no entry in the index.
        let first_offset = first_offset?;
        self.ongoing.remove(&first_offset);
        let last_offset = header.base_offset;
        self.unreplicated.insert(first_offset, last_offset);
        Some(CompletedTransaction {
            producer_id: header.producer_id,
            first_offset,
            last_offset,
            is_abort: marker.is_abort,
            last_stable_offset: self.ongoing.keys().next().copied().unwrap_or(last_offset + 1),
        })
    }

    /// The first offset of a transaction that is open or whose end is not replicated.
    pub(crate) fn first_unstable_offset(&self) -> Option<Offset> {
        let ongoing = self.ongoing.keys().next();
        let unreplicated = self.unreplicated.keys().next();
        ongoing.into_iter().chain(unreplicated).min().copied()
    }

    /// As [`Producers::first_unstable_offset`] for a high watermark that may have passed some markers.
    pub(crate) fn first_unstable_offset_at(&self, high_watermark: Offset) -> Option<Offset> {
        let ongoing = self.ongoing.keys().next();
        let unreplicated = self.unreplicated.iter().find(|(_, last_offset)| **last_offset >= high_watermark);
        ongoing.into_iter().chain(unreplicated.map(|(first_offset, _)| first_offset)).min().copied()
    }

    /// Whether any ended transaction still waits for the high watermark.
    pub(crate) fn has_unreplicated_below(&self, high_watermark: Offset) -> bool {
        self.unreplicated.values().any(|last_offset| *last_offset < high_watermark)
    }

    /// Forgets ended transactions below the high watermark.
    pub(crate) fn on_high_watermark(&mut self, high_watermark: Offset) {
        self.unreplicated.retain(|_, last_offset| *last_offset >= high_watermark);
    }

    /// Forgets producers without open transaction that were silent for so long. Returns how many.
    pub(crate) fn expire(&mut self, now: TimestampMs, expiration_ms: i64) -> usize {
        let before = self.states.len();
        self.states.retain(|_, state| !state.is_expired(now, expiration_ms));
        before - self.states.len()
    }

    /// Forgets transactions that ended before the new start of the log.
    pub(crate) fn on_log_start_offset(&mut self, log_start_offset: Offset) {
        self.unreplicated.retain(|_, last_offset| *last_offset >= log_start_offset);
    }

    /// The open transactions: producer, first offset, and when the producer was last heard of.
    pub(crate) fn ongoing(&self) -> impl Iterator<Item = (ProducerId, Offset, TimestampMs)> {
        self.ongoing.iter().map(|(first_offset, id)| {
            (*id, *first_offset, self.states.get(id).map_or(-1, |state| state.last_timestamp))
        })
    }
}

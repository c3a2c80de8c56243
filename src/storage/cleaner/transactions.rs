//! Which batches belong to aborted transactions, and which markers have nothing left to end, followed from batch
//! to batch.

use std::collections::{BTreeMap, BTreeSet};

use klamm_model::{Offset, ProducerId};
use klamm_records::control::{ControlRecord, EndTxnMarker};
use klamm_records::{Batch, RecordsError};

use crate::index_entry::AbortedEntry;

/// The transactions of a walk through a log.
#[derive(Default)]
pub(super) struct Transactions {
    /// Aborted ones that begin further on, by first offset and producer.
    coming: BTreeMap<(Offset, i64), AbortedEntry>,
    aborting: BTreeMap<ProducerId, Aborting>,
    committing: BTreeSet<ProducerId>,
    /// Aborted transactions whose marker has to stay: those of which batches are left.
    pub(super) kept: Vec<AbortedEntry>,
}

struct Aborting {
    entry: AbortedEntry,
    has_batches: bool,
}

impl Transactions {
    /// Adds aborted transactions from the index of a segment; one may come more than once.
    pub(super) fn add_aborted(&mut self, entries: impl IntoIterator<Item = AbortedEntry>) {
        self.coming.extend(entries.into_iter().map(|entry| ((entry.first_offset, entry.producer_id), entry)));
    }

    /// Follows a batch and says whether its records may go, as far as transactions are concerned: data of an
    /// aborted one, or a marker of one that has no data left.
    pub(super) fn follow(&mut self, batch: &Batch) -> Result<bool, RecordsError> {
        self.begin_up_to(batch.header.last_offset());
        if batch.header.is_control() { self.follow_marker(batch) } else { Ok(self.follow_data(batch)) }
    }

    fn begin_up_to(&mut self, offset: Offset) {
        while let Some(first) = self.coming.first_entry().filter(|first| first.key().0 <= offset) {
            let entry = first.remove();
            let aborting = Aborting { entry, has_batches: false };
            self.aborting.entry(ProducerId(entry.producer_id)).or_insert(aborting);
        }
    }

    fn follow_data(&mut self, batch: &Batch) -> bool {
        if !batch.header.is_transactional() {
            return false;
        }
        match self.aborting.get_mut(&batch.header.producer_id) {
            Some(aborting) => aborting.has_batches = true,
            None => {
                self.committing.insert(batch.header.producer_id);
                return false;
            }
        }
        true
    }

    fn follow_marker(&mut self, batch: &Batch) -> Result<bool, RecordsError> {
        // One that was emptied before keeps its producer's epoch, and says nothing else.
        if batch.header.record_count == 0 {
            return Ok(true);
        }
        let producer = batch.header.producer_id;
        match batch.control_record()? {
            ControlRecord::EndTxn(EndTxnMarker { commit: true, .. }) => {
                Ok(!self.committing.remove(&producer))
            }
            ControlRecord::EndTxn(_) => match self.aborting.remove(&producer) {
                Some(Aborting { entry, has_batches: true }) => {
                    self.kept.push(entry);
                    Ok(false)
                }
                _ => Ok(true),
            },
            ControlRecord::Other { .. } => Ok(false),
        }
    }
}

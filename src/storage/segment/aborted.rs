//! The aborted transactions of a segment.

use klamm_model::Offset;

use super::LogSegment;
use crate::error::StorageError;
use crate::index_entry::AbortedEntry;
use crate::producers::CompletedTransaction;

impl LogSegment {
    /// Notes an ended transaction; only aborted ones are of interest to readers.
    pub(crate) fn add_transaction(&self, completed: &CompletedTransaction) -> Result<(), StorageError> {
        if completed.is_abort {
            self.add_aborted(AbortedEntry {
                producer_id: completed.producer_id.0,
                first_offset: completed.first_offset,
                last_offset: completed.last_offset,
                last_stable_offset: completed.last_stable_offset,
            })?;
        }
        Ok(())
    }

    /// Notes an aborted transaction.
    pub(crate) fn add_aborted(&self, entry: AbortedEntry) -> Result<(), StorageError> {
        self.aborted.len()?;
        self.aborted.push(entry);
        Ok(())
    }

    /// The aborted transactions of this segment that end at or behind `from`, and begin before `to`; and
    /// whether no later segment can hold more of them.
    pub(crate) fn aborted_transactions(
        &self,
        from: Offset,
        to: Offset,
        found: &mut Vec<AbortedEntry>,
    ) -> Result<bool, StorageError> {
        const AT_ONCE: usize = 256;
        let mut index = self.aborted.partition_point(|entry| entry.last_offset < from)?;
        loop {
            let entries = self.aborted.from(index, AT_ONCE)?;
            for entry in &entries {
                if entry.last_offset >= from && entry.first_offset < to {
                    found.push(*entry);
                }
                if entry.last_stable_offset >= to {
                    return Ok(true);
                }
            }
            if entries.len() < AT_ONCE {
                return Ok(false);
            }
            index += AT_ONCE as u64;
        }
    }
}

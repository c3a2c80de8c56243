//! Loading: the partition is read from its first record to its last, and each is replayed.

use std::time::Duration;

use bytes::Bytes;
use klamm_model::{Offset, ProducerId};
use klamm_records::control::ControlRecord;
use klamm_records::{Batch, RecordsError, batches};

use super::log::{CoordinatorLog, LogFault};
use crate::machine::{Machine, Origin};

/// Why a partition could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Log(#[from] LogFault),
    #[error(
        "the log cannot be read behind offset {after}: {source}; nothing of this partition is served from damaged \
         records: let another replica lead it, or restore its directory"
    )]
    Records { after: Offset, source: RecordsError },
    #[error("the log ends at {end}, but nothing can be read at {at}")]
    Hole { at: Offset, end: Offset },
}

/// How much was loaded.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Loaded {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

impl Loaded {
    /// Whole MiB in a second, if it took that long.
    pub(crate) fn rate_mib(&self, took: Duration) -> u64 {
        (self.bytes as f64 / MIB / took.as_secs_f64().max(0.001)) as u64
    }
}

const MIB: f64 = 1024.0 * 1024.0;

/// Reads and replays one stretch of the log; returns the offset to go on from.
pub(crate) fn load_some<M: Machine>(
    log: &dyn CoordinatorLog,
    machine: &mut M,
    from: Offset,
    bytes_max: usize,
    loaded: &mut Loaded,
) -> Result<Offset, LoadError> {
    let bytes = log.read(from, bytes_max)?;
    let next = replay_all(bytes, machine, from, loaded)
        .map_err(|source| LoadError::Records { after: from, source })?;
    if next == from {
        return Err(LoadError::Hole { at: from, end: log.end_offset() });
    }
    Ok(next)
}

/// Replays the records at and behind `from`; returns the offset behind the last whole batch.
pub(crate) fn replay_all<M: Machine>(
    bytes: Bytes,
    machine: &mut M,
    from: Offset,
    loaded: &mut Loaded,
) -> Result<Offset, RecordsError> {
    let mut next = from;
    for batch in batches(bytes).lenient() {
        let batch = batch?;
        // Whoever is told a damaged offset would skip records, or read them again.
        batch.check_crc()?;
        if batch.header.is_control() {
            replay_marker(&batch, machine);
        } else {
            replay_batch(&batch, machine, from, &mut loaded.records)?;
        }
        loaded.bytes += batch.bytes.len() as u64;
        next = next.max(batch.header.next_offset());
    }
    Ok(next)
}

fn replay_marker<M: Machine>(batch: &Batch, machine: &mut M) {
    // A cleaner keeps the last batch of a producer without its records.
    if batch.header.record_count == 0 {
        return;
    }
    match batch.control_record() {
        Ok(ControlRecord::EndTxn(marker)) => {
            machine.replay_transaction_end(batch.header.producer_id, marker.commit);
        }
        Ok(ControlRecord::Other { .. }) => {}
        Err(error) => {
            let offset = batch.header.base_offset;
            tracing::warn!(topic = M::TOPIC, offset, %error, "a marker is ignored");
        }
    }
}

fn replay_batch<M: Machine>(
    batch: &Batch,
    machine: &mut M,
    from: Offset,
    count: &mut u64,
) -> Result<(), RecordsError> {
    let is_transactional = batch.header.is_transactional();
    let transaction_of = if is_transactional { batch.header.producer_id } else { ProducerId::NONE };
    batch.visit_entries(|record| {
        if record.offset < from {
            return;
        }
        *count += 1;
        let offset = record.offset;
        let Some(key) = record.key else {
            tracing::warn!(topic = M::TOPIC, offset, "a record without a key is ignored");
            return;
        };
        machine.load(Origin { offset, transaction_of, written_ms: record.timestamp }, key, record.value);
    })
}

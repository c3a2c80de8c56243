//! Which batch of an idempotent producer is the next one, an old one, or a mistake (KIP-98, KIP-360).

use klamm_model::ProducerEpoch;
use klamm_records::BatchHeader;
use klamm_storage::{ProducerBatch, ProducerState};

/// What to do with a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is the next one.
    Append,
    /// It stands in the log already: the answer names where.
    Duplicate(ProducerBatch),
}

/// Why a batch is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A producer with a later epoch has taken over.
    Fenced { current: ProducerEpoch },
    /// Something is missing before it.
    OutOfOrder { last_sequence: i32 },
}

/// Judges a batch that carries a producer id against what the partition knows of the producer, `None` when it
/// knows nothing: then any sequence is taken, because the state may have expired or been deleted with the
/// records that held it (KIP-360, KIP-854).
pub(crate) fn judge(batch: &BatchHeader, known: Option<&ProducerState>) -> Result<Verdict, Refusal> {
    let Some(known) = known else {
        return Ok(Verdict::Append);
    };
    if known.epoch == ProducerEpoch::NONE {
        return Ok(Verdict::Append);
    }
    if batch.producer_epoch < known.epoch {
        return Err(Refusal::Fenced { current: known.epoch });
    }
    if batch.producer_epoch > known.epoch {
        return match batch.base_sequence {
            0 => Ok(Verdict::Append),
            _ => Err(Refusal::OutOfOrder { last_sequence: -1 }),
        };
    }
    let same = |kept: &&ProducerBatch| {
        kept.base_sequence == batch.base_sequence && kept.last_sequence == batch.last_sequence()
    };
    if let Some(kept) = known.batches.iter().find(same) {
        return Ok(Verdict::Duplicate(*kept));
    }
    // A producer known only by a marker has an epoch but no sequence: its next one is the first.
    let last_sequence = known.batches.back().map_or(-1, |kept| kept.last_sequence);
    if follows(last_sequence, batch.base_sequence) {
        Ok(Verdict::Append)
    } else {
        Err(Refusal::OutOfOrder { last_sequence })
    }
}

/// As [`judge`] for what a coordinator writes into a client's transaction: it carries no sequences.
pub(crate) fn judge_epoch(batch: &BatchHeader, known: Option<&ProducerState>) -> Result<Verdict, Refusal> {
    match known {
        Some(known) if batch.producer_epoch < known.epoch => Err(Refusal::Fenced { current: known.epoch }),
        _ => Ok(Verdict::Append),
    }
}

/// Sequences run from 0 to `i32::MAX` and wrap.
fn follows(last: i32, next: i32) -> bool {
    i64::from(next) == i64::from(last) + 1 || (next == 0 && last == i32::MAX)
}

//! Transactions in one partition: who was found to have one open here (KIP-890), and their ends.
//!
//! The first transactional batch of a producer is appended only if the transaction coordinator was asked since,
//! and no end of a transaction of this producer came between the question and the append. A guard, unique to
//! the question, tells. From the first append to the marker, the open transaction itself tells.

use klamm_model::{LeaderEpoch, ProducerEpoch, ProducerId};
use klamm_records::control::EndTxnMarker;
use klamm_records::{AppendRules, BatchHeader, validate_for_append};
use klamm_storage::ProducerState;

use crate::append::{AppendError, AppendOptions, Appended};
use crate::planted::planted;
use crate::verifications::VerificationGuard;
use crate::{Partition, Role};

/// From this version of transactions on, the marker carries a higher epoch than the records (KIP-890).
const FIRST_VERSION_WITH_EPOCH_BUMP: i8 = 2;

/// The end of a transaction, as its coordinator wants it written into a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionMarker {
    /// Whose transaction.
    pub producer_id: ProducerId,
    /// The epoch of the producer from now on.
    pub producer_epoch: ProducerEpoch,
    /// The epoch of the coordinator: an older one is refused.
    pub coordinator_epoch: i32,
    /// Whether the transaction's records count.
    pub is_commit: bool,
    /// The version of transactions that the producer speaks; 2 if its epoch was raised for this end.
    pub transaction_version: i8,
}

/// What came of the end of a transaction.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Where the marker stands. It counts as written when this is committed, and on the disk where that is asked for.
    /// One that is repeated stands somewhere before the end of the log, and this is that end.
    pub appended: Appended,
    /// Whether the marker stood there already, so that nothing was appended.
    pub is_repeated: bool,
}

/// Whether a producer may append to a transaction.
#[derive(Clone, Debug)]
pub enum Verification {
    /// Its transaction is open here.
    Ongoing,
    /// The coordinator has to be asked; the guard goes into the append.
    Needed(VerificationGuard),
}

impl Partition {
    /// Whether a producer of that epoch has a transaction open here. If not, its coordinator has to be asked
    /// before the batch that begins with `base_sequence` is appended.
    pub fn verify_transaction(
        &self,
        producer: ProducerId,
        epoch: ProducerEpoch,
        base_sequence: i32,
        is_implicit: bool,
    ) -> Verification {
        if is_open(self.log().producer(producer).as_ref(), epoch) {
            return Verification::Ongoing;
        }
        let now = self.clock.monotonic();
        let guard = self.verifications.lock().begin(now, (producer, epoch), base_sequence, is_implicit);
        Verification::Needed(guard)
    }

    /// Whether a guard still lets an append in: whether no end of a transaction of its producer came since.
    pub fn is_valid(&self, guard: &VerificationGuard) -> bool {
        self.verifications.lock().is_valid(guard)
    }

    /// Whether a producer has any transaction open here.
    pub fn has_open_transaction(&self, producer: ProducerId) -> bool {
        has_open(self.log().producer(producer).as_ref())
    }

    /// The epoch of the coordinator that wrote the last marker of a producer, if the producer has a transaction open
    /// here; -1 if it has had no marker yet.
    pub fn coordinator_of_open_transaction(&self, producer: ProducerId) -> Option<i32> {
        let known = self.log().producer(producer)?;
        has_open(Some(&known)).then_some(known.coordinator_epoch)
    }

    /// Writes the end of a transaction, unless it stands here already. Nothing is waited for, as in
    /// [`Partition::append_as_leader`].
    ///
    /// # Errors
    /// Beside those of an append: [`AppendError::ProducerFenced`] for a marker of an earlier transaction, and
    /// [`AppendError::CoordinatorFenced`] for one of an earlier coordinator.
    pub fn end_transaction(
        &self,
        marker: &TransactionMarker,
        expected_leader_epoch: Option<LeaderEpoch>,
    ) -> Result<Ended, AppendError> {
        let _writer = self.writer.lock();
        let options = AppendOptions::of_coordinator(expected_leader_epoch, None);
        let leader_epoch = self.check_may_append(&options)?;
        let known = self.log().producer(marker.producer_id);
        if let Some(known) = &known
            && !check_marker(marker, known)?
        {
            return Ok(Ended { appended: self.whole_log(leader_epoch), is_repeated: true });
        }
        self.verifications.lock().end(marker.producer_id, marker.producer_epoch);
        // A transaction that was begun before its topic got an older format has to end all the same.
        let rules = AppendRules { target_magic: 2, ..self.append_rules(leader_epoch, &options) };
        let control = EndTxnMarker { commit: marker.is_commit, coordinator_epoch: marker.coordinator_epoch };
        let producer = (marker.producer_id, marker.producer_epoch);
        let batch = control.batch(rules.first_offset, rules.now_ms, producer, leader_epoch);
        let batches = validate_for_append(batch, &rules).map_err(AppendError::Invalid)?;
        let appended = self.append_batches(&batches, &rules)?;
        Ok(Ended { appended, is_repeated: false })
    }

    /// All that stands in the log by now, as if it had been appended at once: what is to be waited for before an answer
    /// may rest on it.
    ///
    /// # Errors
    /// [`AppendError::NotLeader`].
    pub fn appended_so_far(&self) -> Result<Appended, AppendError> {
        let _writer = self.writer.lock();
        let state = self.state.lock();
        let leader_epoch = state.leader_epoch;
        if !matches!(state.role, Role::Leader(_)) {
            return Err(AppendError::NotLeader);
        }
        drop(state);
        Ok(self.whole_log(leader_epoch))
    }

    /// The caller holds the writer's lock.
    fn whole_log(&self, leader_epoch: LeaderEpoch) -> Appended {
        let log = self.log();
        Appended {
            base_offset: log.log_start_offset(),
            last_offset: log.log_end_offset() - 1,
            log_append_time: -1,
            log_start_offset: log.log_start_offset(),
            leader_epoch,
            // A flush that has failed may be why the marker is sent again.
            flush_due: log.flush_due(),
        }
    }

    /// Checks that a transactional batch belongs to a transaction that is known to be open.
    pub(crate) fn check_in_transaction(
        &self,
        batch: &BatchHeader,
        known: Option<&ProducerState>,
        guard: Option<&VerificationGuard>,
    ) -> Result<(), AppendError> {
        let producer = batch.producer_id;
        if is_open(known, batch.producer_epoch) || planted!(SkipVerification) {
            return Ok(());
        }
        let verifications = self.verifications.lock();
        let verified = guard.and_then(|guard| verifications.check(producer, batch.producer_epoch, guard));
        let Some(verified) = verified else {
            return Err(AppendError::NoTransaction { producer });
        };
        // An earlier batch of the transaction was seen and is not here, so this one comes too early.
        let is_early = batch.base_sequence > verified.lowest_sequence
            || (verified.is_implicit && known.is_none() && batch.base_sequence > 0);
        if is_early {
            return Err(AppendError::OutOfOrderSequence { producer, found: batch.base_sequence, last: -1 });
        }
        Ok(())
    }

    /// The first batch of a transaction is appended: from now on the open transaction tells.
    pub(crate) fn transaction_began(&self, producer: ProducerId, epoch: ProducerEpoch) {
        self.verifications.lock().end(producer, epoch);
    }
}

/// Whether a producer has a transaction open, of any epoch.
pub(crate) fn has_open(known: Option<&ProducerState>) -> bool {
    known.is_some_and(|known| known.current_txn_first_offset.is_some())
}

/// Whether a producer of that epoch has a transaction open.
fn is_open(known: Option<&ProducerState>, epoch: ProducerEpoch) -> bool {
    has_open(known) && known.is_some_and(|known| known.epoch == epoch)
}

/// Whether a marker is to be written; false if it stands in the log already.
fn check_marker(marker: &TransactionMarker, known: &ProducerState) -> Result<bool, AppendError> {
    let fenced = AppendError::ProducerFenced {
        producer: marker.producer_id,
        found: marker.producer_epoch,
        current: known.epoch,
    };
    if planted!(AcceptEarlierMarker) {
        return Ok(true);
    }
    if marker.producer_epoch < known.epoch {
        return Err(fenced);
    }
    if marker.transaction_version >= FIRST_VERSION_WITH_EPOCH_BUMP && marker.producer_epoch == known.epoch {
        // Records of this epoch are those of the next transaction, which an earlier end must not touch.
        return if known.current_txn_first_offset.is_some() { Err(fenced) } else { Ok(false) };
    }
    if known.coordinator_epoch > marker.coordinator_epoch {
        return Err(AppendError::CoordinatorFenced {
            producer: marker.producer_id,
            found: marker.coordinator_epoch,
            current: known.coordinator_epoch,
        });
    }
    Ok(true)
}

//! A transactional id and the transaction that it is in.

use klamm_model::{ProducerEpoch, ProducerId, TimestampMs};

use super::message::Partitions;

/// The version of transactions that a producer speaks (KIP-890): from 2 on each end of a transaction raises the
/// producer's epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TransactionVersion(pub i16);

impl TransactionVersion {
    /// That of producers before Kafka 4.0.
    pub const OLD: TransactionVersion = TransactionVersion(0);
    /// That of producers since Kafka 4.0.
    pub const NEW: TransactionVersion = TransactionVersion(2);

    /// Whether each end of a transaction raises the producer's epoch.
    pub fn raises_epochs(self) -> bool {
        self >= TransactionVersion::NEW
    }
}

/// The state of a transactional id, with the numbers that the log has for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No transaction has begun.
    Empty,
    /// Partitions were added.
    Ongoing,
    /// To be committed: the markers are on their way.
    PrepareCommit,
    /// To be aborted: the markers are on their way.
    PrepareAbort,
    /// All markers are written.
    CompleteCommit,
    /// All markers are written.
    CompleteAbort,
}

impl State {
    /// All states, by number.
    pub const ALL: [State; 6] = [
        State::Empty,
        State::Ongoing,
        State::PrepareCommit,
        State::PrepareAbort,
        State::CompleteCommit,
        State::CompleteAbort,
    ];

    /// Names of states that Kafka knows and that no stored transaction is in.
    pub const PASSING: [&str; 2] = ["Dead", "PrepareEpochFence"];

    /// Kafka's name of it.
    pub fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::Ongoing => "Ongoing",
            State::PrepareCommit => "PrepareCommit",
            State::PrepareAbort => "PrepareAbort",
            State::CompleteCommit => "CompleteCommit",
            State::CompleteAbort => "CompleteAbort",
        }
    }

    /// Whether the end is decided and not yet everywhere.
    pub(super) fn is_ending(self) -> bool {
        matches!(self, State::PrepareCommit | State::PrepareAbort)
    }

    /// The state in which the end of a transaction is decided.
    pub(super) fn ending(is_commit: bool) -> State {
        if is_commit { State::PrepareCommit } else { State::PrepareAbort }
    }
}

/// A transactional id, as its newest record says it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// The id of its producer.
    pub producer_id: ProducerId,
    /// The id in the record before this: another one if the epochs of that ran out.
    pub previous_producer_id: ProducerId,
    /// The id from the end of this transaction on, if the epochs run out with it.
    pub next_producer_id: ProducerId,
    /// The producer's epoch.
    pub producer_epoch: ProducerEpoch,
    /// The epoch before the producer raised it, so that a repeated request is known. It is not written.
    pub last_producer_epoch: ProducerEpoch,
    /// How long a transaction may take.
    pub timeout_ms: i32,
    /// The state.
    pub state: State,
    /// What has records of the transaction.
    pub partitions: Partitions,
    /// When this record was written.
    pub last_update_ms: TimestampMs,
    /// When the transaction began, or -1.
    pub start_ms: TimestampMs,
    /// The version of transactions that the producer speaks.
    pub version: TransactionVersion,
}

impl Transaction {
    /// A transactional id whose producer comes for the first time.
    pub(super) fn new(producer_id: ProducerId, timeout_ms: i32, now_ms: TimestampMs) -> Transaction {
        Transaction {
            producer_id,
            previous_producer_id: producer_id,
            next_producer_id: ProducerId::NONE,
            producer_epoch: ProducerEpoch(0),
            last_producer_epoch: ProducerEpoch::NONE,
            timeout_ms,
            state: State::Empty,
            partitions: Partitions::new(),
            last_update_ms: now_ms,
            start_ms: -1,
            version: TransactionVersion::OLD,
        }
    }

    /// The same, as the record behind this one begins.
    pub(super) fn successor(&self) -> Transaction {
        Transaction { previous_producer_id: self.producer_id, ..self.clone() }
    }

    /// Whether the next epoch would be one that no producer may use.
    pub(super) fn is_exhausted(&self) -> bool {
        is_exhausted(self.producer_epoch)
    }

    /// Whether a producer may have the epoch: the last one is left for the coordinator.
    pub(super) fn has_usable_epoch(&self) -> bool {
        self.producer_epoch.0 < i16::MAX
    }

    /// The same with an id that no producer had. The epoch that the producer knows of the old id stays as the last.
    pub(super) fn with_new_id(&self, unused: ProducerId) -> Transaction {
        Transaction { producer_id: unused, producer_epoch: ProducerEpoch(0), ..self.successor() }
    }

    /// Id and epoch that the producer has when this transaction has ended.
    pub(super) fn producer_afterwards(&self) -> (ProducerId, ProducerEpoch) {
        if self.version.raises_epochs() && self.next_producer_id != ProducerId::NONE {
            (self.next_producer_id, ProducerEpoch(0))
        } else {
            (self.producer_id, self.producer_epoch)
        }
    }

    /// The next epoch; it never goes back.
    pub(super) fn next_epoch(&self) -> ProducerEpoch {
        ProducerEpoch(self.producer_epoch.0.saturating_add(1))
    }
}

/// The last epoch is left for the coordinator, which fences with it.
pub(super) fn is_exhausted(epoch: ProducerEpoch) -> bool {
    epoch.0 >= i16::MAX - 1
}

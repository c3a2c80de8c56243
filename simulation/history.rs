//! What clients asked for, and what they were told: all that the checker knows of a run.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use klamm_model::{Offset, TopicId};

/// A partition for clients that speak of topics by id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place {
    pub(crate) topic: TopicId,
    pub(crate) partition: i32,
}

/// What a record says. No two records of a run say the same.
pub(crate) type Value = u64;

/// What a producer asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acks {
    Leader,
    All,
}

/// How a producer sees the end of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It was acknowledged, at this offset where the broker has told it.
    Appended(Option<Offset>),
    /// It was refused, and nothing of it was kept.
    Failed,
    /// Nobody can tell.
    Unknown,
}

/// One record that a producer has sent, with all its retries.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Sent {
    pub(crate) place: Place,
    pub(crate) value: Value,
    /// Which producer, for idempotent ones; its records have rising values.
    pub(crate) idempotent: Option<u32>,
    pub(crate) acks: Acks,
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
    pub(crate) outcome: Outcome,
}

/// What one fetch of a consumer has shown.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Read {
    pub(crate) consumer: u32,
    pub(crate) place: Place,
    pub(crate) at: Duration,
    /// From which offset on was asked for.
    pub(crate) from: Offset,
    /// Whether it was read-committed; what is left out because it was aborted is not among the records.
    pub(crate) is_committed: bool,
    pub(crate) records: Vec<(Offset, Value)>,
}

/// A consumer was told where a partition ends (ListOffsets).
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct End {
    pub(crate) consumer: u32,
    pub(crate) place: Place,
    pub(crate) at: Duration,
    /// Whether it is the last stable offset, as read-committed consumers are told.
    pub(crate) is_stable: bool,
    pub(crate) offset: Offset,
}

/// A consumer was told that an offset is not there, behind which it had read already.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct OutOfRange {
    pub(crate) consumer: u32,
    pub(crate) place: Place,
    pub(crate) at: Duration,
    pub(crate) offset: Offset,
}

/// Who commits the offsets of a group: each group has one kind of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Committer {
    /// The members of the group of this number.
    Members(u32),
    /// The transactions of the transactional id of this number; each commits its own number.
    Transactions(u32),
}

/// A member of a group was told that a generation has begun, and what it owns in it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Generation {
    pub(crate) group: Committer,
    pub(crate) generation: i32,
    pub(crate) member: u32,
    pub(crate) at: Duration,
    pub(crate) owned: Vec<i32>,
}

/// How an offset commit or the commit of a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Done,
    Refused,
    Unknown,
}

/// A member of a group has committed an offset of one partition. Each is higher than what the member knew before.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Commit {
    pub(crate) group: Committer,
    pub(crate) partition: i32,
    pub(crate) generation: i32,
    pub(crate) member: u32,
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
    pub(crate) offset: Offset,
    pub(crate) fate: Fate,
}

/// Somebody was told which offset a group has committed; -1 is none.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Committed {
    pub(crate) group: Committer,
    pub(crate) partition: i32,
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
    pub(crate) offset: Offset,
}

/// A transaction that has ended for its producer.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Transaction {
    /// Which transactional id.
    pub(crate) id: u32,
    /// Rises from one transaction of the id to the next.
    pub(crate) number: Offset,
    /// The records that were tried, in whatever partitions. It is asked to commit only if all were acknowledged.
    pub(crate) values: Vec<Value>,
    /// Whether its number was committed as an offset of the id's own group.
    pub(crate) has_offset: bool,
    /// When it was first asked to commit; a transaction of which that was never asked must never be visible.
    pub(crate) commit_began: Option<Duration>,
    pub(crate) ended: Duration,
    pub(crate) fate: Fate,
}

impl Transaction {
    /// Whether its producer knows that it is committed.
    pub(crate) fn is_committed(&self) -> bool {
        self.fate == Fate::Done && self.commit_began.is_some()
    }
}

/// Everything, in the order in which it ended.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct History {
    pub(crate) sent: Vec<Sent>,
    pub(crate) reads: Vec<Read>,
    pub(crate) ends: Vec<End>,
    pub(crate) out_of_range: Vec<OutOfRange>,
    pub(crate) generations: Vec<Generation>,
    pub(crate) commits: Vec<Commit>,
    pub(crate) committed: Vec<Committed>,
    pub(crate) transactions: Vec<Transaction>,
    /// Topics that somebody asked to delete.
    pub(crate) deleted: Vec<TopicId>,
}

/// A history that clients write together.
#[derive(Clone, Default)]
pub(crate) struct Recorder {
    history: Arc<Mutex<History>>,
    value_next: Arc<Mutex<Value>>,
}

impl Recorder {
    /// A value that no record has had.
    pub(crate) fn value(&self) -> Value {
        let mut next = self.value_next.lock().unwrap_or_else(PoisonError::into_inner);
        *next += 1;
        *next
    }

    /// Adds to the history.
    pub(crate) fn note(&self, add: impl FnOnce(&mut History)) {
        add(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Looks at what was written so far.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&History) -> T) -> T {
        look(&self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What was written so far.
    pub(crate) fn take(&self) -> History {
        std::mem::take(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

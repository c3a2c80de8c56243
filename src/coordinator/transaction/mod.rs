//! The state machine of one partition of `__transaction_state`: its transactional ids and their transactions.
//!
//! [`TransactionShard::handle`] takes one request and the time and returns [`Effects`]: replies, records, and
//! the markers that are to be written elsewhere. Only [`TransactionShard::replay`] changes what is known of a
//! transaction, with the same code while loading and while serving. The caller lets each reply wait until all
//! that was appended is committed, so that none rests on what could still be lost.

mod add;
mod describe;
mod end;
mod expiry;
mod id_pattern;
mod init;
mod machine;
mod message;
pub mod record;
mod state;
mod unreadable;

use std::collections::BTreeMap;
use std::sync::Arc;

use klamm_model::ErrorCode;

use crate::deadlines::Deadlines;
use crate::settings::TransactionSettings;
use unreadable::UnreadableRecords;

pub use id_pattern::IdPattern;
pub use message::{
    Effects, End, Filter, Init, Now, Partitions, Producer, Reply, Request, Then, Ticket, Write, WriteMarkers,
};
pub use record::TransactionRecord;
pub use state::{State, Transaction, TransactionVersion};

/// What happens at a deadline.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// Transactions may have taken too long.
    AbortTimedOut,
    /// Transactional ids may have been unused for too long.
    RemoveExpired,
    /// The decision about an end was not known to be committed in time.
    Prepared(Arc<str>),
}

/// All transactional ids of one partition of `__transaction_state`.
pub struct TransactionShard {
    settings: Arc<TransactionSettings>,
    coordinator_epoch: i32,
    transactions: BTreeMap<Arc<str>, Transaction>,
    unreadable: UnreadableRecords,
    deadlines: Deadlines<Timer>,
}

impl TransactionShard {
    /// A shard without transactions, for a coordinator of that epoch; [`TransactionShard::replay`] fills it,
    /// [`TransactionShard::finish_loading`] starts it.
    pub fn new(settings: Arc<TransactionSettings>, coordinator_epoch: i32) -> TransactionShard {
        TransactionShard {
            settings,
            coordinator_epoch,
            transactions: BTreeMap::new(),
            unreadable: UnreadableRecords::default(),
            deadlines: Deadlines::default(),
        }
    }

    /// Applies one record. Any order that compaction can leave is fine.
    pub fn replay(&mut self, record: TransactionRecord) {
        self.unreadable.remove(&record.transactional_id);
        match record.value {
            Some(value) => self.transactions.insert(record.transactional_id, value),
            None => self.transactions.remove(&record.transactional_id),
        };
    }

    /// Starts serving what was replayed: deadlines run, and the markers of transactions whose end is decided
    /// are written again, since nobody knows which of them were.
    pub fn finish_loading(&mut self, now: Now) -> Effects {
        self.set_abort_timer(now);
        self.set_expiry_timer(now);
        self.unreadable.start(now);
        let ending = self.transactions.iter().filter(|(_, transaction)| transaction.state.is_ending());
        let mut effects = Effects::default();
        for (id, transaction) in ending {
            effects.extend(end::await_decision(id, transaction));
        }
        effects
    }

    /// Serves one request.
    pub fn handle(&mut self, now: Now, ticket: Ticket, request: Request) -> Effects {
        if request.transactional_id().is_some_and(|id| self.is_unreadable_for(now, &request, id)) {
            return Effects::reply(ticket, Reply::Refused(ErrorCode::CoordinatorNotAvailable));
        }
        match request {
            Request::Init(init) => self.init(now, ticket, init),
            Request::Add { producer, partitions, version } => {
                self.add(now, ticket, &producer, &partitions, version)
            }
            Request::Verify { producer, partitions } => {
                Effects::reply(ticket, self.verify(&producer, &partitions))
            }
            Request::End(end) => self.end(now, ticket, end),
            Request::MarkersWritten { producer, unused } => self.complete(now, ticket, &producer, unused),
            Request::Describe { transactional_id } => {
                Effects::reply(ticket, Reply::Described(self.describe(transactional_id)))
            }
            Request::List(filter) => Effects::reply(ticket, Reply::Listed(self.list(now, &filter))),
        }
    }

    /// The monotonic time of the next deadline.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.deadlines.next_ms()
    }

    /// Handles one deadline that has passed; to be called until it returns `None`.
    pub fn expire(&mut self, now: Now) -> Option<Effects> {
        match self.deadlines.pop_due(now.monotonic_ms)? {
            Timer::AbortTimedOut => Some(self.abort_timed_out(now)),
            Timer::RemoveExpired => Some(self.remove_expired(now)),
            Timer::Prepared(id) => Some(self.ask_for_prepared(&id)),
        }
    }

    /// To be called when the records of a write are committed, or could not be.
    pub fn completed(&mut self, now: Now, then: Then, outcome: Result<(), ErrorCode>) -> Effects {
        match then {
            Then::Nothing => {
                if let Err(error) = outcome {
                    tracing::warn!(%error, "records of a transaction could not be written");
                }
                Effects::default()
            }
            Then::Reply { ticket, reply } => {
                Effects::reply(ticket, outcome.map_or_else(Reply::Refused, |()| reply))
            }
            Then::Prepared { producer, reply } => self.prepared(now, &producer, reply, outcome),
        }
    }

    /// What is known of a transactional id.
    pub fn transaction(&self, transactional_id: &str) -> Option<&Transaction> {
        self.transactions.get(transactional_id)
    }

    /// All transactional ids, by name.
    pub fn transactions(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Transaction)> {
        self.transactions.iter()
    }

    /// The one copy of a transactional id.
    fn id(&self, transactional_id: &str) -> Arc<str> {
        let known = self.transactions.get_key_value(transactional_id);
        known.map_or_else(|| transactional_id.into(), |(id, _)| id.clone())
    }

    fn record(&self, transactional_id: &str, value: Transaction) -> TransactionRecord {
        TransactionRecord { transactional_id: self.id(transactional_id), value: Some(value) }
    }
}

//! The end of a transaction: the decision, its markers, and the record that says that all are written.

use std::sync::Arc;

use klamm_model::{ErrorCode, ProducerEpoch, ProducerId};

use super::message::{Effects, End, Now, Partitions, Producer, Reply, Then, Ticket, WriteMarkers};
use super::state::{State, Transaction, TransactionVersion};
use super::{Timer, TransactionShard};
use crate::planted::planted;

/// How long it is waited before a decision that was not committed in time is looked at again.
const PREPARED_PAUSE_MS: u64 = 1_000;

/// What an EndTxn means in the state that the transaction is in.
enum Meaning {
    /// The end of the transaction.
    Ends,
    /// The end of one that has no partitions, for a producer that cannot know (KIP-890).
    EndsNothing,
    /// The same as before, whose answer was lost.
    Repeats,
}

impl TransactionShard {
    pub(super) fn end(&mut self, now: Now, ticket: Ticket, end: End) -> Effects {
        let refusal = |error| Effects::reply(ticket, Reply::Refused(error));
        let Some(known) = self.transactions.get(&*end.producer.transactional_id) else {
            return refusal(ErrorCode::InvalidProducerIdMapping);
        };
        let meaning =
            if end.version.raises_epochs() { meaning(known, &end) } else { old_meaning(known, &end) };
        let begun_ms = match meaning {
            Ok(Meaning::Ends) => known.start_ms,
            Ok(Meaning::EndsNothing) => now.wall_ms,
            Ok(Meaning::Repeats) => return self.repeat(now, ticket, &end, known),
            Err(error) => return refusal(error),
        };
        let needs_id = end.version.raises_epochs() && known.is_exhausted();
        if needs_id && end.unused.is_none() {
            return Effects::reply(ticket, Reply::NeedsProducerId);
        }
        let (producer_epoch, last_producer_epoch) = if end.version.raises_epochs() {
            (known.next_epoch(), known.producer_epoch)
        } else {
            (known.producer_epoch, known.last_producer_epoch)
        };
        let next = Transaction {
            producer_epoch,
            last_producer_epoch,
            next_producer_id: end.unused.filter(|_| needs_id).unwrap_or(ProducerId::NONE),
            state: State::ending(end.is_commit),
            start_ms: begun_ms,
            last_update_ms: now.wall_ms,
            version: end.version,
            ..known.successor()
        };
        let (id, epoch) = next.producer_afterwards();
        let reply = Reply::Producer(id, epoch);
        self.prepare(&self.id(&end.producer.transactional_id), next, Some((ticket, reply)))
    }

    /// The same answer once more. A log may hold an epoch that no producer may have: then there is a new id.
    fn repeat(&self, now: Now, ticket: Ticket, end: &End, known: &Transaction) -> Effects {
        let reply = Reply::Producer(known.producer_id, known.producer_epoch);
        if !end.version.raises_epochs() || known.has_usable_epoch() {
            return Effects::reply(ticket, reply);
        }
        let Some(unused) = end.unused else {
            return Effects::reply(ticket, Reply::NeedsProducerId);
        };
        let next = Transaction { last_update_ms: now.wall_ms, ..known.with_new_id(unused) };
        let reply = Reply::Producer(next.producer_id, next.producer_epoch);
        let record = self.record(&end.producer.transactional_id, next);
        Effects::write(vec![record], Then::Reply { ticket, reply })
    }

    /// Aborts an open transaction, and fences its producer with the next epoch. Should that producer come with the
    /// epoch that it has before any other does, it may go on (KIP-360, observed on Kafka 4.4.0). If the last epoch is
    /// used up with it, there is a new id when the markers are written.
    pub(super) fn fence(
        &self,
        now: Now,
        id: &Arc<str>,
        known: &Transaction,
        reply: Option<(Ticket, Reply)>,
    ) -> Effects {
        let next = Transaction {
            producer_epoch: known.next_epoch(),
            last_producer_epoch: known.producer_epoch,
            next_producer_id: ProducerId::NONE,
            state: State::PrepareAbort,
            last_update_ms: now.wall_ms,
            version: TransactionVersion::NEW,
            ..known.successor()
        };
        self.prepare(id, next, reply)
    }

    fn prepare(&self, id: &Arc<str>, next: Transaction, reply: Option<(Ticket, Reply)>) -> Effects {
        let producer = producer_of(id, &next);
        let record = self.record(id, next);
        Effects::write(vec![record], Then::Prepared { producer, reply })
    }

    /// The decision is committed: the producer is answered, and the markers go out. If it is not known to be
    /// committed and yet stands in the log, it may become so, and is asked for again.
    pub(super) fn prepared(
        &mut self,
        now: Now,
        producer: &Producer,
        reply: Option<(Ticket, Reply)>,
        outcome: Result<(), ErrorCode>,
    ) -> Effects {
        let mut effects = Effects::default();
        let known = self.being_ended(producer);
        if let Err(error) = outcome {
            effects.replies.extend(reply.map(|(ticket, _)| (ticket, Reply::Refused(error))));
            if let Some((id, _)) = known {
                let timer = Timer::Prepared(id.clone());
                self.deadlines.set(timer, now.monotonic_ms + PREPARED_PAUSE_MS);
            }
            return effects;
        }
        effects.replies.extend(reply);
        effects.commands.extend(known.map(|(_, transaction)| WriteMarkers {
            producer: producer.clone(),
            coordinator_epoch: self.coordinator_epoch,
            is_commit: transaction.state == State::PrepareCommit,
            version: transaction.version,
            partitions: marked(&transaction.partitions),
        }));
        effects
    }

    /// Asks again whether the decision about a transaction is committed.
    pub(super) fn ask_for_prepared(&self, id: &Arc<str>) -> Effects {
        let known = self.transactions.get(id).filter(|transaction| transaction.state.is_ending());
        known.map(|known| await_decision(id, known)).unwrap_or_default()
    }

    /// All markers are written: the transaction is over. Nothing is done for one that was over before.
    pub(super) fn complete(
        &mut self,
        now: Now,
        ticket: Ticket,
        producer: &Producer,
        unused: Option<ProducerId>,
    ) -> Effects {
        let Some((id, known)) = self.being_ended(producer) else {
            return Effects::reply(ticket, Reply::Done);
        };
        let (producer_id, producer_epoch) = known.producer_afterwards();
        let next = Transaction {
            producer_id,
            producer_epoch,
            next_producer_id: ProducerId::NONE,
            state: match known.state {
                State::PrepareCommit => State::CompleteCommit,
                _ => State::CompleteAbort,
            },
            partitions: Partitions::new(),
            last_update_ms: now.wall_ms,
            ..known.successor()
        };
        let next = match unused {
            _ if !next.version.raises_epochs() || next.has_usable_epoch() => next,
            Some(unused) => next.with_new_id(unused),
            None => return Effects::reply(ticket, Reply::NeedsProducerId),
        };
        let record = self.record(id, next);
        Effects::write(vec![record], Then::Reply { ticket, reply: Reply::Done })
    }

    /// The transaction whose markers name this producer, while it is being ended.
    fn being_ended(&self, producer: &Producer) -> Option<(&Arc<str>, &Transaction)> {
        let known = self.transactions.get_key_value(&*producer.transactional_id);
        known.filter(|(id, known)| known.state.is_ending() && producer_of(id, known) == *producer)
    }
}

/// Sends the markers out as soon as the decision, which stands in the log, is committed.
pub(super) fn await_decision(id: &Arc<str>, transaction: &Transaction) -> Effects {
    Effects::write(Vec::new(), Then::Prepared { producer: producer_of(id, transaction), reply: None })
}

/// Where the markers of a transaction go.
fn marked(partitions: &Partitions) -> Partitions {
    let mut marked = partitions.clone();
    if planted!(ForgetMarker)
        && let Some(mut last) = marked.last_entry()
    {
        last.get_mut().pop_last();
    }
    marked
}

/// The producer as the markers of the transaction that is being ended name it.
fn producer_of(id: &Arc<str>, transaction: &Transaction) -> Producer {
    Producer {
        transactional_id: id.to_string(),
        id: transaction.producer_id,
        epoch: transaction.producer_epoch,
    }
}

/// Before KIP-890 the epoch stays, so that a repeated request looks as the first one does.
fn old_meaning(known: &Transaction, end: &End) -> Result<Meaning, ErrorCode> {
    if known.producer_id != end.producer.id {
        return Err(ErrorCode::InvalidProducerIdMapping);
    }
    if known.producer_epoch != end.producer.epoch {
        return Err(ErrorCode::ProducerFenced);
    }
    match (known.state, end.is_commit) {
        (State::Ongoing, _) => Ok(Meaning::Ends),
        (State::CompleteCommit, true) | (State::CompleteAbort, false) => Ok(Meaning::Repeats),
        (State::PrepareCommit, true) | (State::PrepareAbort, false) => Err(ErrorCode::ConcurrentTransactions),
        _ => Err(ErrorCode::InvalidTxnState),
    }
}

/// Since KIP-890 each end raises the epoch. A repeated request carries the one before; one with the epoch of now
/// is about the next transaction.
fn meaning(known: &Transaction, end: &End) -> Result<Meaning, ErrorCode> {
    let (id, epoch) = (end.producer.id, end.producer.epoch);
    // The producer got a new id, and the answer that told it so was lost.
    let had_the_last_id = known.previous_producer_id == id
        && epoch == ProducerEpoch(i16::MAX - 1)
        && known.producer_epoch == ProducerEpoch(0);
    if known.producer_id != id && !had_the_last_id {
        return Err(ErrorCode::InvalidProducerIdMapping);
    }
    let is_repeated = had_the_last_id || i32::from(known.producer_epoch.0) == i32::from(epoch.0) + 1;
    let is_current = known.producer_epoch == epoch;
    let is_valid = match known.state {
        State::Ongoing | State::Empty => is_current,
        State::PrepareCommit | State::PrepareAbort => is_repeated,
        State::CompleteCommit | State::CompleteAbort => is_repeated || is_current,
    };
    if !is_valid {
        return Err(ErrorCode::ProducerFenced);
    }
    match (known.state, end.is_commit, is_repeated) {
        (State::Ongoing, _, _) => Ok(Meaning::Ends),
        (State::CompleteCommit, true, true) | (State::CompleteAbort, false, true) => Ok(Meaning::Repeats),
        (State::CompleteCommit | State::CompleteAbort, false, false) | (State::Empty, false, _) => {
            Ok(Meaning::EndsNothing)
        }
        (State::PrepareCommit, true, _) | (State::PrepareAbort, false, _) => {
            Err(ErrorCode::ConcurrentTransactions)
        }
        _ => Err(ErrorCode::InvalidTxnState),
    }
}

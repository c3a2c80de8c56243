//! InitProducerId with a transactional id: whoever comes with it last is its producer, all before are fenced.

use klamm_model::{ErrorCode, ProducerEpoch, ProducerId};

use super::message::{Effects, Init, Now, Reply, Then, Ticket};
use super::state::{State, Transaction, is_exhausted};
use super::{Partitions, TransactionShard};
use crate::planted::planted;

impl TransactionShard {
    pub(super) fn init(&mut self, now: Now, ticket: Ticket, init: Init) -> Effects {
        let Some(known) = self.transactions.get(&*init.transactional_id) else {
            let made = init.unused.map(|id| Transaction::new(id, init.timeout_ms, now.wall_ms));
            return self.begin(ticket, &init, made.map(Some).unwrap_or_default());
        };
        if init.has.is_some_and(|has| !is_the_producer(known, has)) {
            return Effects::reply(ticket, Reply::Refused(ErrorCode::ProducerFenced));
        }
        match known.state {
            // The client asks again until the markers are written.
            State::PrepareCommit | State::PrepareAbort => {
                Effects::reply(ticket, Reply::Refused(ErrorCode::ConcurrentTransactions))
            }
            State::Ongoing => {
                let reply = Reply::Refused(ErrorCode::ConcurrentTransactions);
                self.fence(now, &self.id(&init.transactional_id), known, Some((ticket, reply)))
            }
            State::Empty | State::CompleteCommit | State::CompleteAbort => match next(known, &init) {
                Ok(next) => {
                    let next = next.map(|next| Transaction {
                        timeout_ms: init.timeout_ms,
                        state: State::Empty,
                        partitions: Partitions::new(),
                        last_update_ms: now.wall_ms,
                        start_ms: -1,
                        ..next
                    });
                    self.begin(ticket, &init, next)
                }
                Err(error) => Effects::reply(ticket, Reply::Refused(error)),
            },
        }
    }

    /// Writes the producer down, or asks for an id that it can have.
    fn begin(&self, ticket: Ticket, init: &Init, transaction: Option<Transaction>) -> Effects {
        let Some(transaction) = transaction else {
            return Effects::reply(ticket, Reply::NeedsProducerId);
        };
        let reply = Reply::Producer(transaction.producer_id, transaction.producer_epoch);
        let record = self.record(&init.transactional_id, transaction);
        Effects::write(vec![record], Then::Reply { ticket, reply })
    }
}

/// Whether who has this id and epoch may be the producer that is known. Its epoch is looked at later, but for
/// that of an id that ran out of epochs: then the answer with the new id may have been lost.
fn is_the_producer(known: &Transaction, (id, epoch): (ProducerId, ProducerEpoch)) -> bool {
    id == known.producer_id || (id == known.previous_producer_id && is_exhausted(epoch))
}

/// The producer with its next epoch; `None` if it has to get another id and no unused one is at hand.
fn next(known: &Transaction, init: &Init) -> Result<Option<Transaction>, ErrorCode> {
    let has_epoch = init.has.map(|(_, epoch)| epoch);
    if known.is_exhausted() && has_epoch.is_none_or(|epoch| epoch == known.producer_epoch) {
        return Ok(init.unused.map(|unused| Transaction {
            producer_id: unused,
            next_producer_id: ProducerId::NONE,
            producer_epoch: ProducerEpoch(0),
            last_producer_epoch: has_epoch.map_or(ProducerEpoch::NONE, |_| known.producer_epoch),
            ..known.successor()
        }));
    }
    let (producer_epoch, last_producer_epoch) = match has_epoch {
        None if planted!(KeepProducerEpoch) => (known.producer_epoch, ProducerEpoch::NONE),
        None => (known.next_epoch(), ProducerEpoch::NONE),
        Some(epoch) if epoch == known.producer_epoch => (known.next_epoch(), known.producer_epoch),
        // A log may hold an epoch that no producer may have.
        Some(epoch) if epoch == known.last_producer_epoch && !known.has_usable_epoch() => {
            return Ok(init.unused.map(|unused| known.with_new_id(unused)));
        }
        // The answer to the same request was lost. Nobody else has come since, or this would not be known.
        Some(epoch) if epoch == known.last_producer_epoch => (known.producer_epoch, epoch),
        Some(_) => return Err(ErrorCode::ProducerFenced),
    };
    Ok(Some(Transaction { producer_epoch, last_producer_epoch, ..known.successor() }))
}

//! AddPartitionsToTxn and AddOffsetsToTxn.

use klamm_model::ErrorCode;

use super::TransactionShard;
use super::message::{Effects, Now, Partitions, Producer, Reply, Then, Ticket};
use super::state::{State, Transaction, TransactionVersion};

impl TransactionShard {
    pub(super) fn add(
        &mut self,
        now: Now,
        ticket: Ticket,
        producer: &Producer,
        partitions: &Partitions,
        version: TransactionVersion,
    ) -> Effects {
        let known = match self.check(producer) {
            Ok(known) => known,
            Err(error) => return Effects::reply(ticket, Reply::Refused(error)),
        };
        let is_ongoing = known.state == State::Ongoing;
        if is_ongoing && holds(known, partitions) {
            return Effects::reply(ticket, Reply::Done);
        }
        let mut next = Transaction {
            state: State::Ongoing,
            start_ms: if is_ongoing { known.start_ms } else { now.wall_ms },
            last_update_ms: now.wall_ms,
            version,
            ..known.successor()
        };
        for (topic, indexes) in partitions {
            next.partitions.entry(topic.clone()).or_default().extend(indexes);
        }
        let record = self.record(&producer.transactional_id, next);
        Effects::write(vec![record], Then::Reply { ticket, reply: Reply::Done })
    }

    /// Whether each partition is part of the producer's open transaction.
    pub(super) fn verify(&self, producer: &Producer, partitions: &Partitions) -> Reply {
        let known = match self.check(producer) {
            Ok(known) => known,
            Err(error) => return Reply::Refused(error),
        };
        let all =
            partitions.iter().flat_map(|(topic, indexes)| indexes.iter().map(move |index| (topic, *index)));
        let verified = all.map(|(topic, index)| {
            let is_in = known.partitions.get(topic).is_some_and(|indexes| indexes.contains(&index));
            let error = if is_in { ErrorCode::None } else { ErrorCode::TransactionAbortable };
            (topic.clone(), index, error)
        });
        Reply::Verified(verified.collect())
    }

    /// The transaction of a producer, unless it is fenced or its last transaction is still being ended.
    fn check(&self, producer: &Producer) -> Result<&Transaction, ErrorCode> {
        let known = self.transactions.get(&*producer.transactional_id);
        let known = known.ok_or(ErrorCode::InvalidProducerIdMapping)?;
        if known.producer_id != producer.id {
            return Err(ErrorCode::InvalidProducerIdMapping);
        }
        if known.producer_epoch != producer.epoch {
            return Err(ErrorCode::ProducerFenced);
        }
        if known.state.is_ending() {
            return Err(ErrorCode::ConcurrentTransactions);
        }
        Ok(known)
    }
}

fn holds(known: &Transaction, partitions: &Partitions) -> bool {
    partitions
        .iter()
        .all(|(topic, indexes)| known.partitions.get(topic).is_some_and(|held| indexes.is_subset(held)))
}

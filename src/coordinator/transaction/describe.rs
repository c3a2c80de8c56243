//! DescribeTransactions and ListTransactions.

use klamm_model::{ErrorCode, ProducerEpoch, ProducerId};
use klamm_protocol::messages::describe_transactions::{TopicData, TransactionState};
use klamm_protocol::messages::list_transactions;

use super::TransactionShard;
use super::message::{Filter, Now};

/// The state of a transactional id whose newest record cannot be read, as Kafka's tools show one that they cannot
/// tell.
const UNKNOWN: &str = "Unknown";

impl TransactionShard {
    pub(super) fn describe(&self, transactional_id: String) -> TransactionState {
        if self.unreadable.contains(&transactional_id) {
            return TransactionState {
                transactional_id,
                transaction_state: UNKNOWN.to_owned(),
                transaction_start_time_ms: -1,
                producer_id: ProducerId::NONE.0,
                producer_epoch: ProducerEpoch::NONE.0,
                ..TransactionState::default()
            };
        }
        let Some(known) = self.transactions.get(&*transactional_id) else {
            let error_code = ErrorCode::TransactionalIdNotFound.code();
            return TransactionState { error_code, transactional_id, ..TransactionState::default() };
        };
        let topics = known.partitions.iter().map(|(topic, partitions)| TopicData {
            topic: topic.to_string(),
            partitions: partitions.iter().copied().collect(),
        });
        TransactionState {
            error_code: ErrorCode::None.code(),
            transactional_id,
            transaction_state: known.state.name().to_owned(),
            transaction_timeout_ms: known.timeout_ms,
            transaction_start_time_ms: known.start_ms,
            producer_id: known.producer_id.0,
            producer_epoch: known.producer_epoch.0,
            topics: topics.collect(),
        }
    }

    pub(super) fn list(&self, now: Now, filter: &Filter) -> Vec<list_transactions::TransactionState> {
        let is_named = |id: &str| filter.pattern.as_ref().is_none_or(|pattern| pattern.matches(id));
        let matching = self.transactions.iter().filter(|(id, transaction)| {
            let is_long = now.wall_ms.saturating_sub(transaction.start_ms) > filter.longer_than_ms;
            let has_state = || filter.states.contains(transaction.state.name());
            (filter.producer_ids.is_empty() || filter.producer_ids.contains(&transaction.producer_id.0))
                && (filter.states.is_empty() || has_state())
                && (filter.longer_than_ms < 0 || is_long)
                && is_named(id)
        });
        let listed = matching.map(|(id, transaction)| list_transactions::TransactionState {
            transactional_id: id.to_string(),
            producer_id: transaction.producer_id.0,
            transaction_state: transaction.state.name().to_owned(),
        });
        // Of these nothing but the name is known.
        let is_unreadable_asked =
            filter.states.is_empty() && filter.producer_ids.is_empty() && filter.longer_than_ms < 0;
        let unreadable = self.unreadable.ids().filter(|id| is_unreadable_asked && is_named(id));
        let unreadable = unreadable.map(|id| list_transactions::TransactionState {
            transactional_id: id.to_string(),
            producer_id: ProducerId::NONE.0,
            transaction_state: UNKNOWN.to_owned(),
        });
        listed.chain(unreadable).collect()
    }
}

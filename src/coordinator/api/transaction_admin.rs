//! DescribeTransactions and ListTransactions.

use std::collections::BTreeSet;
use std::sync::Arc;

use klamm_model::ErrorCode;
use klamm_protocol::messages::describe_transactions::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, TransactionState,
};
use klamm_protocol::messages::list_transactions::{ListTransactionsRequest, ListTransactionsResponse};

use super::incomplete;
use super::repeats::Repeats;
use super::transactions::refused;
use crate::transaction::{Filter, IdPattern, Reply, Request, State};
use crate::transaction_coordinator::TransactionCoordinator;

impl TransactionCoordinator {
    /// DescribeTransactions.
    pub async fn describe_transactions(
        &self,
        request: DescribeTransactionsRequest,
    ) -> DescribeTransactionsResponse {
        let mut response = DescribeTransactionsResponse::default();
        let mut repeats = Repeats::default();
        for id in request.transactional_ids {
            let described = self.describe(id.clone());
            response.transaction_states.extend(repeats.answer(id, described, bytes_of).await);
        }
        response
    }

    async fn describe(&self, transactional_id: String) -> TransactionState {
        let asked = Request::Describe { transactional_id: transactional_id.clone() };
        let error = match transactional_id.is_empty() {
            true => ErrorCode::InvalidRequest,
            false => match self.ask(&transactional_id, asked).await {
                Reply::Described(state) => return state,
                other => refused(&other),
            },
        };
        TransactionState { error_code: error.code(), transactional_id, ..TransactionState::default() }
    }

    /// ListTransactions: all of this node; nothing but an error while it does not know all of them.
    pub async fn list_transactions(&self, request: ListTransactionsRequest) -> ListTransactionsResponse {
        let is_known = |name: &String| {
            State::PASSING.contains(&&**name) || State::ALL.iter().any(|state| state.name() == name)
        };
        let pattern = request.transactional_id_pattern.filter(|pattern| !pattern.is_empty());
        let pattern = match pattern.map(|pattern| IdPattern::new(&pattern)) {
            Some(None) => return no_transactions(ErrorCode::InvalidRegularExpression),
            pattern => pattern.flatten(),
        };
        // A name that is given very often is kept, looked up and told once.
        let states: BTreeSet<String> = request.state_filters.into_iter().collect();
        let unknown_state_filters: Vec<String> =
            states.iter().filter(|name| !is_known(name)).cloned().collect();
        let filter = Filter {
            states: Arc::new(states),
            producer_ids: Arc::new(request.producer_id_filters.into_iter().collect()),
            longer_than_ms: request.duration_filter,
            pattern,
        };
        let replies = match self.mailboxes.ask_all(|| Request::List(filter.clone())).await {
            Ok(replies) => replies,
            Err(error) => return no_transactions(error),
        };
        let mut response = ListTransactionsResponse { unknown_state_filters, ..Default::default() };
        for reply in replies {
            match reply {
                Reply::Listed(listed) => response.transaction_states.extend(listed),
                other => return no_transactions(incomplete(refused(&other))),
            }
        }
        response
    }
}

fn no_transactions(error: ErrorCode) -> ListTransactionsResponse {
    ListTransactionsResponse { error_code: error.code(), ..ListTransactionsResponse::default() }
}

fn bytes_of(state: &TransactionState) -> usize {
    let partitions: usize = state
        .topics
        .iter()
        .map(|topic| size_of_val(topic) + topic.topic.len() + 4 * topic.partitions.len())
        .sum();
    size_of::<TransactionState>() + state.transactional_id.len() + partitions
}

//! ListTransactions (key 66), versions 0 to 2 (KIP-664).
//!
//! v1 those that have run for longer (KIP-994); v2 those whose ids match a regular expression (KIP-1152).

use klamm_protocol::messages::list_transactions::{ListTransactionsRequest, ListTransactionsResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    _call: &Call,
    request: ListTransactionsRequest,
) -> ListTransactionsResponse {
    context.transactions.list_transactions(request).await
}

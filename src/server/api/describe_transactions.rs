//! DescribeTransactions (key 65), version 0 (KIP-664).
//!
//! Deviation: ids that are named over and over are answered up to a megabyte.

use klamm_protocol::messages::describe_transactions::{
    DescribeTransactionsRequest, DescribeTransactionsResponse,
};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    _call: &Call,
    request: DescribeTransactionsRequest,
) -> DescribeTransactionsResponse {
    context.transactions.describe_transactions(request).await
}

//! AddPartitionsToTxn (key 24), versions 0 to 5.
//!
//! v2 PRODUCER_FENCED (KIP-588); v3 flexible; v4 several transactions, and questions of brokers (KIP-890); v5 the
//! error TRANSACTION_ABORTABLE (KIP-890), which Kafka 4.4 and Klamm answer in v4 too.

use klamm_protocol::messages::add_partitions_to_txn::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse,
};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: AddPartitionsToTxnRequest,
) -> AddPartitionsToTxnResponse {
    context.transactions.add_partitions(call.version, request).await
}

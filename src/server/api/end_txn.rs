//! EndTxn (key 26), versions 0 to 5.
//!
//! v2 PRODUCER_FENCED (KIP-588); v3 flexible; v4 the error TRANSACTION_ABORTABLE (KIP-890); v5 the id and epoch
//! that the producer has from then on (KIP-890).

use klamm_protocol::messages::end_txn::{EndTxnRequest, EndTxnResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(context: &Context, call: &Call, request: EndTxnRequest) -> EndTxnResponse {
    context.transactions.end(call.version, request).await
}

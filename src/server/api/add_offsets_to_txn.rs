//! AddOffsetsToTxn (key 25), versions 0 to 4.
//!
//! v2 PRODUCER_FENCED (KIP-588); v3 flexible; v4 the error TRANSACTION_ABORTABLE (KIP-890).

use std::sync::Arc;

use klamm_protocol::messages::add_offsets_to_txn::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};

use super::Call;
use crate::context::Context;
use crate::topic_creation;

pub(crate) async fn handle(
    context: &Arc<Context>,
    call: &Call,
    request: AddOffsetsToTxnRequest,
) -> AddOffsetsToTxnResponse {
    let error = match topic_creation::offsets_partition_of(context, &request.group_id).await {
        Ok(partition) => context.transactions.add_offsets(call.version, request, partition).await,
        Err(error) => error,
    };
    AddOffsetsToTxnResponse { error_code: error.code(), ..AddOffsetsToTxnResponse::default() }
}

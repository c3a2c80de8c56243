//! IncrementalAlterConfigs (key 44), versions 0 to 1: sets, deletes, appends to and subtracts from configs of topics
//! and brokers (KIP-339).
//!
//! v1 flexible.

use klamm_protocol::messages::incremental_alter_configs::{
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let response = context.decide(call, request, CONTROLLER_TIMEOUT).await;
    context.await_applied(0).await;
    response
}

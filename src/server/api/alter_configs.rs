//! AlterConfigs (key 33), versions 0 to 2: replaces all configs of a topic or broker (KIP-133).
//!
//! v1 throttle time; v2 flexible. IncrementalAlterConfigs is what clients should use.

use klamm_protocol::messages::alter_configs::{AlterConfigsRequest, AlterConfigsResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: AlterConfigsRequest,
) -> AlterConfigsResponse {
    let response = context.decide(call, request, CONTROLLER_TIMEOUT).await;
    context.await_applied(0).await;
    response
}

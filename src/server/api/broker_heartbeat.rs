//! BrokerHeartbeat (key 63), versions 0 to 1: a broker shows that it lives (KIP-631).
//!
//! v1 log directories that failed (KIP-858). Only the active controller takes it.

use klamm_protocol::messages::{BrokerHeartbeatRequest, BrokerHeartbeatResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: BrokerHeartbeatRequest,
) -> BrokerHeartbeatResponse {
    context.decide(call, request, CONTROLLER_TIMEOUT).await
}

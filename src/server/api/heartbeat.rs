//! Heartbeat (key 12), versions 0 to 4.
//!
//! v1 throttle time; v3 static members (KIP-345); v4 flexible.

use klamm_protocol::messages::heartbeat::{HeartbeatRequest, HeartbeatResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(context: &Context, call: &Call, request: HeartbeatRequest) -> HeartbeatResponse {
    context.groups.heartbeat(&call.client(), request).await
}

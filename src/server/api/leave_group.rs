//! LeaveGroup (key 13), versions 0 to 5.
//!
//! v1 throttle time; v3 several members at once (KIP-345); v4 flexible; v5 reasons (KIP-800).

use klamm_protocol::messages::leave_group::{LeaveGroupRequest, LeaveGroupResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(context: &Context, call: &Call, request: LeaveGroupRequest) -> LeaveGroupResponse {
    context.groups.leave_group(&call.client(), request).await
}

//! JoinGroup (key 11), versions 0 to 9.
//!
//! v1 rebalance time-outs; v4 MEMBER_ID_REQUIRED (KIP-394); v5 static members (KIP-345); v6 flexible; v7 protocol
//! types; v8 reasons (KIP-800); v9 leaders that need not assign (KIP-814).

use klamm_protocol::messages::join_group::{JoinGroupRequest, JoinGroupResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(context: &Context, call: &Call, request: JoinGroupRequest) -> JoinGroupResponse {
    context.groups.join_group(&call.client(), request).await
}

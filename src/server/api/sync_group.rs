//! SyncGroup (key 14), versions 0 to 5.
//!
//! v1 throttle time; v3 static members (KIP-345); v4 flexible; v5 protocol types and names.

use klamm_protocol::messages::sync_group::{SyncGroupRequest, SyncGroupResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(context: &Context, call: &Call, request: SyncGroupRequest) -> SyncGroupResponse {
    context.groups.sync_group(&call.client(), request).await
}

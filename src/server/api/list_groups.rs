//! ListGroups (key 16), versions 0 to 5.
//!
//! v1 throttle time; v3 flexible; v4 states (KIP-518); v5 types (KIP-848).

use klamm_protocol::messages::list_groups::{ListGroupsRequest, ListGroupsResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(context: &Context, call: &Call, request: ListGroupsRequest) -> ListGroupsResponse {
    context.groups.list_groups(&call.client(), request).await
}

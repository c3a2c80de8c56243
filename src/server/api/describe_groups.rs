//! DescribeGroups (key 15), versions 0 to 6.
//!
//! v1 throttle time; v3 authorized operations (KIP-430); v4 static members (KIP-345); v5 flexible; v6
//! GROUP_ID_NOT_FOUND (KIP-1043).

use klamm_protocol::messages::describe_groups::{DescribeGroupsRequest, DescribeGroupsResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: DescribeGroupsRequest,
) -> DescribeGroupsResponse {
    context.groups.describe_groups(&call.client(), request).await
}

//! DescribeGroups (key 15), versions 0 to 6.
//!
//! v1 throttle time; v3 authorized operations (KIP-430); v4 static members (KIP-345); v5 flexible; v6
//! GROUP_ID_NOT_FOUND (KIP-1043).

use klamm_model::ErrorCode;
use klamm_protocol::messages::describe_groups::{DescribeGroupsRequest, DescribeGroupsResponse};

use super::Call;
use crate::authorized_operations::GROUP_OPERATIONS;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: DescribeGroupsRequest,
) -> DescribeGroupsResponse {
    let tells_operations = request.include_authorized_operations;
    let mut response = context.groups.describe_groups(&call.client(), request).await;
    if tells_operations {
        // Before v6 a group that does not exist is no error, and has its operations too.
        for group in response.groups.iter_mut().filter(|group| group.error_code == ErrorCode::None.code()) {
            group.authorized_operations = GROUP_OPERATIONS;
        }
    }
    response
}

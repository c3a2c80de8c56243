//! DeleteGroups (key 42), versions 0 to 3.
//!
//! v1 throttle time; v2 flexible; v3 error messages.

use klamm_protocol::messages::delete_groups::{DeleteGroupsRequest, DeleteGroupsResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: DeleteGroupsRequest,
) -> DeleteGroupsResponse {
    context.groups.delete_groups(&call.client(), request).await
}

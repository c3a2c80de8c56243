//! OffsetDelete (key 47), version 0.
//!
//! Forgets committed offsets (KIP-496).

use klamm_protocol::messages::offset_delete::{OffsetDeleteRequest, OffsetDeleteResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    context.groups.offset_delete(&call.client(), request).await
}

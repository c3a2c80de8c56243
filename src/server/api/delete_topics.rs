//! DeleteTopics (key 20), versions 0 to 6.
//!
//! v1 throttle time; v4 flexible; v5 error messages; v6 topics by id (KIP-516).

use klamm_protocol::messages::delete_topics::{DeleteTopicsRequest, DeleteTopicsResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    _call: &Call,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse {
    let timeout_ms = request.timeout_ms;
    let response = context.metadata.delete_topics(request).await;
    context.await_applied(timeout_ms).await;
    response
}

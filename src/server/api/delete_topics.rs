//! DeleteTopics (key 20), versions 0 to 6.
//!
//! v1 throttle time; v4 flexible; v5 error messages; v6 topics by id (KIP-516).

use klamm_model::ErrorCode;
use klamm_protocol::messages::delete_topics::{
    DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse,
};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    _call: &Call,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse {
    let timeout_ms = request.timeout_ms;
    if timeout_ms <= 0 {
        // As in Kafka, nothing is done where no time is given.
        let named = request.topics.into_iter().map(|topic| (topic.name, topic.topic_id));
        let all = named.chain(request.topic_names.into_iter().map(|name| (Some(name), Default::default())));
        let responses = all.map(|(name, topic_id)| DeletableTopicResult {
            name,
            topic_id,
            error_code: ErrorCode::RequestTimedOut.code(),
            ..Default::default()
        });
        return DeleteTopicsResponse { responses: responses.collect(), ..Default::default() };
    }
    let response = context.metadata.delete_topics(request).await;
    context.await_applied(timeout_ms).await;
    response
}

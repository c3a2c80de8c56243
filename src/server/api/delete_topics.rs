//! DeleteTopics (key 20), versions 0 to 6.
//!
//! v1 throttle time; v4 flexible; v5 error messages; v6 topics by id (KIP-516).

use std::time::Duration;

use klamm_model::ErrorCode;
use klamm_protocol::messages::delete_topics::{
    DeletableTopicResult, DeleteTopicState, DeleteTopicsRequest, DeleteTopicsResponse,
};

use super::Call;
use crate::client_quotas::QUOTA_EXCEEDED;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    mut request: DeleteTopicsRequest,
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
    // What goes to the controller names topics in one way only.
    let named = request.topic_names.drain(..);
    let named = named.map(|name| DeleteTopicState { name: Some(name), ..Default::default() });
    request.topics.splice(0..0, named);
    if let Some(throttle_time_ms) = call.changes_refused(context, REFUSALS_SINCE) {
        let refused = request.topics.into_iter().map(|topic| DeletableTopicResult {
            name: topic.name,
            topic_id: topic.topic_id,
            error_code: ErrorCode::ThrottlingQuotaExceeded.code(),
            error_message: Some(QUOTA_EXCEEDED.to_owned()),
        });
        return DeleteTopicsResponse { throttle_time_ms, responses: refused.collect() };
    }
    let image = context.image();
    let mut response = context.decide(call, request, Duration::from_millis(timeout_ms as u64)).await;
    let deleted = response.responses.iter().filter(|topic| topic.error_code == ErrorCode::None.code());
    let partitions = deleted.map(|deleted| {
        let topic = deleted.name.as_deref().and_then(|name| image.topic_by_name(name));
        topic.map_or(0, |topic| topic.partitions.len())
    });
    response.throttle_time_ms = call.count_changes(context, partitions.sum());
    context.await_applied(timeout_ms).await;
    response
}

/// The version from which on clients know that they are refused by a quota (KIP-599).
const REFUSALS_SINCE: i16 = 5;

//! CreateTopics (key 19), versions 0 to 7.
//!
//! v1 validation without creation, messages; v4 -1 for the broker's defaults (KIP-464); v5 flexible, the configs of the
//! new topic (KIP-525); v7 topic ids. The controller decides; the answer leaves when this node serves its partitions.

use std::time::Duration;

use klamm_model::ErrorCode;
use klamm_protocol::messages::create_topics::{
    CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse,
};

use super::Call;
use crate::client_quotas::QUOTA_EXCEEDED;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: CreateTopicsRequest,
) -> CreateTopicsResponse {
    let timeout_ms = request.timeout_ms;
    if timeout_ms <= 0 {
        // As in Kafka, nothing is done where no time is given.
        let topics = request.topics.into_iter().map(|topic| CreatableTopicResult {
            name: topic.name,
            error_code: ErrorCode::RequestTimedOut.code(),
            error_message: None,
            ..Default::default()
        });
        return CreateTopicsResponse { topics: topics.collect(), ..Default::default() };
    }
    if let Some(throttle_time_ms) = call.changes_refused(context, REFUSALS_SINCE) {
        let refused = request.topics.into_iter().map(|topic| CreatableTopicResult {
            name: topic.name,
            error_code: ErrorCode::ThrottlingQuotaExceeded.code(),
            error_message: Some(QUOTA_EXCEEDED.to_owned()),
            ..Default::default()
        });
        return CreateTopicsResponse { throttle_time_ms, topics: refused.collect() };
    }
    let is_made = !request.validate_only;
    let mut response = context.decide(call, request, Duration::from_millis(timeout_ms as u64)).await;
    let made = response.topics.iter().filter(|topic| is_made && topic.error_code == ErrorCode::None.code());
    let partitions = made.map(|topic| usize::try_from(topic.num_partitions).unwrap_or(0));
    response.throttle_time_ms = call.count_changes(context, partitions.sum());
    context.await_applied(timeout_ms).await;
    response
}

/// The version from which on clients know that they are refused by a quota (KIP-599).
const REFUSALS_SINCE: i16 = 6;

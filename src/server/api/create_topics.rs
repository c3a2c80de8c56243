//! CreateTopics (key 19), versions 0 to 7.
//!
//! v1 validation without creation, messages; v4 -1 for the broker's defaults (KIP-464); v5 flexible, the configs of the
//! new topic (KIP-525); v7 topic ids. The controller decides; the answer leaves when this node serves its partitions.

use std::time::Duration;

use klamm_model::ErrorCode;
use klamm_protocol::messages::create_topics::{
    CreatableTopic, CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse,
};

use super::Call;
use crate::client_quotas::{Admitted, QUOTA_EXCEEDED, throttle_time_ms};
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    mut request: CreateTopicsRequest,
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
    let image = context.image();
    let defaults = context.static_config.num_partitions;
    let partitions = |topic: &CreatableTopic| match (topic.assignments.len(), topic.num_partitions) {
        (0, -1) => usize::try_from(defaults).unwrap_or(0),
        (0, count) => usize::try_from(count).unwrap_or(0),
        (count, _) => count,
    };
    let (client, wanted) = (call.client_id.as_deref(), std::mem::take(&mut request.topics));
    let quotas = &context.client_quotas;
    let Admitted { done, refused, throttle } =
        quotas.admit_changes(&image, client, call.version >= REFUSALS_SINCE, wanted, partitions);
    request.topics = done;
    let mut response = context.decide(call, request, Duration::from_millis(timeout_ms as u64)).await;
    response.topics.extend(refused.into_iter().map(|topic| CreatableTopicResult {
        name: topic.name,
        error_code: ErrorCode::ThrottlingQuotaExceeded.code(),
        error_message: Some(QUOTA_EXCEEDED.to_owned()),
        ..Default::default()
    }));
    response.throttle_time_ms = throttle_time_ms(throttle);
    context.await_applied(timeout_ms).await;
    response
}

/// The version from which on clients know that they are refused by a quota (KIP-599).
const REFUSALS_SINCE: i16 = 6;

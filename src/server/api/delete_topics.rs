//! DeleteTopics (key 20), versions 0 to 6.
//!
//! v1 throttle time; v4 flexible; v5 error messages; v6 topics by id (KIP-516).

use std::time::Duration;

use klamm_model::ErrorCode;
use klamm_protocol::messages::delete_topics::{
    DeletableTopicResult, DeleteTopicState, DeleteTopicsRequest, DeleteTopicsResponse,
};

use super::Call;
use crate::client_quotas::{Admitted, QUOTA_EXCEEDED, throttle_time_ms};
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
    let image = context.image();
    let partitions = |topic: &DeleteTopicState| {
        let found = match &topic.name {
            Some(name) => image.topic_by_name(name),
            None => image.topic(topic.topic_id),
        };
        found.map_or(0, |topic| topic.partitions.len())
    };
    let (client, wanted) = (call.client_id.as_deref(), std::mem::take(&mut request.topics));
    let quotas = &context.client_quotas;
    let Admitted { done, refused, throttle } =
        quotas.admit_changes(&image, client, call.version >= REFUSALS_SINCE, wanted, partitions);
    request.topics = done;
    let mut response = context.decide(call, request, Duration::from_millis(timeout_ms as u64)).await;
    response.responses.extend(refused.into_iter().map(|topic| DeletableTopicResult {
        name: topic.name,
        topic_id: topic.topic_id,
        error_code: ErrorCode::ThrottlingQuotaExceeded.code(),
        error_message: Some(QUOTA_EXCEEDED.to_owned()),
    }));
    response.throttle_time_ms = throttle_time_ms(throttle);
    context.await_applied(timeout_ms).await;
    response
}

/// The version from which on clients know that they are refused by a quota (KIP-599).
const REFUSALS_SINCE: i16 = 5;

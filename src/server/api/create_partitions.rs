//! CreatePartitions (key 37), versions 0 to 3: gives a topic more partitions (KIP-195).
//!
//! v2 flexible; v3 THROTTLING_QUOTA_EXCEEDED (KIP-599).

use std::time::Duration;

use klamm_model::ErrorCode;
use klamm_protocol::messages::create_partitions::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopic, CreatePartitionsTopicResult,
};

use super::Call;
use crate::client_quotas::{Admitted, QUOTA_EXCEEDED, throttle_time_ms};
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    mut request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let timeout_ms = request.timeout_ms;
    if timeout_ms <= 0 {
        // As in Kafka, nothing is done where no time is given.
        let results = request.topics.into_iter().map(|topic| CreatePartitionsTopicResult {
            name: topic.name,
            error_code: ErrorCode::RequestTimedOut.code(),
            ..Default::default()
        });
        return CreatePartitionsResponse { results: results.collect(), ..Default::default() };
    }
    let image = context.image();
    let added = |topic: &CreatePartitionsTopic| {
        let present = image.topic_by_name(&topic.name).map_or(0, |topic| topic.partitions.len());
        usize::try_from(topic.count).unwrap_or(0).saturating_sub(present)
    };
    let (client, wanted) = (call.client_id.as_deref(), std::mem::take(&mut request.topics));
    let quotas = &context.client_quotas;
    let Admitted { done, refused, throttle } =
        quotas.admit_changes(&image, client, call.version >= REFUSALS_SINCE, wanted, added);
    request.topics = done;
    let mut response = context.decide(call, request, Duration::from_millis(timeout_ms as u64)).await;
    response.results.extend(refused.into_iter().map(|topic| CreatePartitionsTopicResult {
        name: topic.name,
        error_code: ErrorCode::ThrottlingQuotaExceeded.code(),
        error_message: Some(QUOTA_EXCEEDED.to_owned()),
    }));
    response.throttle_time_ms = throttle_time_ms(throttle);
    context.await_applied(timeout_ms).await;
    response
}

/// The version from which on clients know that they are refused by a quota (KIP-599).
const REFUSALS_SINCE: i16 = 3;

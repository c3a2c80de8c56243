//! CreatePartitions (key 37), versions 0 to 3: gives a topic more partitions (KIP-195).
//!
//! v2 flexible; v3 THROTTLING_QUOTA_EXCEEDED (KIP-599).

use std::collections::BTreeMap;
use std::time::Duration;

use klamm_model::ErrorCode;
use klamm_protocol::messages::create_partitions::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopic, CreatePartitionsTopicResult,
};

use super::Call;
use crate::client_quotas::QUOTA_EXCEEDED;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: CreatePartitionsRequest,
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
    if let Some(throttle_time_ms) = call.changes_refused(context, REFUSALS_SINCE) {
        let refused = request.topics.into_iter().map(|topic| CreatePartitionsTopicResult {
            name: topic.name,
            error_code: ErrorCode::ThrottlingQuotaExceeded.code(),
            error_message: Some(QUOTA_EXCEEDED.to_owned()),
        });
        return CreatePartitionsResponse { throttle_time_ms, results: refused.collect() };
    }
    let is_made = !request.validate_only;
    let image = context.image();
    let added = |topic: &CreatePartitionsTopic| {
        let present = image.topic_by_name(&topic.name).map_or(0, |topic| topic.partitions.len());
        (topic.name.clone(), usize::try_from(topic.count).unwrap_or(0).saturating_sub(present))
    };
    let asked: BTreeMap<String, usize> = request.topics.iter().map(added).collect();
    let mut response = context.decide(call, request, Duration::from_millis(timeout_ms as u64)).await;
    let made = response.results.iter().filter(|topic| is_made && topic.error_code == ErrorCode::None.code());
    let partitions = made.map(|topic| asked.get(&topic.name).copied().unwrap_or(0)).sum();
    response.throttle_time_ms = call.count_changes(context, partitions);
    context.await_applied(timeout_ms).await;
    response
}

/// The version from which on clients know that they are refused by a quota (KIP-599).
const REFUSALS_SINCE: i16 = 3;

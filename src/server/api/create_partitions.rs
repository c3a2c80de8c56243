//! CreatePartitions (key 37), versions 0 to 3: gives a topic more partitions (KIP-195).
//!
//! v2 flexible; v3 THROTTLING_QUOTA_EXCEEDED (KIP-599).

use std::time::Duration;

use klamm_model::ErrorCode;
use klamm_protocol::messages::create_partitions::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopicResult,
};

use super::Call;
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
    let response = context.decide(call, request, Duration::from_millis(timeout_ms as u64)).await;
    context.await_applied(timeout_ms).await;
    response
}

//! ListPartitionReassignments (key 46), version 0: partitions that are on their way to other brokers (KIP-455). The
//! controller answers.

use std::time::Duration;

use klamm_protocol::messages::{ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse {
    // As in Kafka, no time is no limit.
    let timeout = match u64::try_from(request.timeout_ms) {
        Ok(0) | Err(_) => CONTROLLER_TIMEOUT,
        Ok(timeout_ms) => Duration::from_millis(timeout_ms),
    };
    context.decide(call, request, timeout).await
}

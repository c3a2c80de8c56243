//! AlterPartitionReassignments (key 45), versions 0 to 1: partitions move to other brokers (KIP-455).
//!
//! v1 whether the number of replicas may change (KIP-860). The controller decides.

use std::time::Duration;

use klamm_metadata::controller::refuse_reassignments;
use klamm_model::ErrorCode;
use klamm_protocol::messages::{AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse {
    if request.timeout_ms <= 0 {
        // As in Kafka, nothing is done where no time is given.
        return refuse_reassignments(&request, ErrorCode::RequestTimedOut, "The request leaves no time");
    }
    let timeout = Duration::from_millis(request.timeout_ms as u64);
    context.decide(call, request, timeout).await
}

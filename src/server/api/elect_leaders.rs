//! ElectLeaders (key 43), versions 0 to 2: preferred leaders take over (KIP-183).
//!
//! v1 unclean elections (KIP-460); v2 flexible. The controller decides.

use std::time::Duration;

use klamm_metadata::controller::refuse_elections;
use klamm_model::ErrorCode;
use klamm_protocol::messages::{ElectLeadersRequest, ElectLeadersResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: ElectLeadersRequest,
) -> ElectLeadersResponse {
    let timeout_ms = request.timeout_ms;
    let mut response = if timeout_ms > 0 {
        context.decide(call, request, Duration::from_millis(timeout_ms as u64)).await
    } else {
        // As in Kafka, nothing is done where no time is given.
        refuse_elections(&request, ErrorCode::RequestTimedOut, "The request leaves no time")
    };
    if call.version == 0 {
        // Its answer has codes of partitions only.
        response.error_code = ErrorCode::None.code();
    }
    response
}

//! AllocateProducerIds (key 67), version 0: a broker gets its next block of producer ids (KIP-730).
//!
//! Only the active controller gives any.

use klamm_protocol::messages::{AllocateProducerIdsRequest, AllocateProducerIdsResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: AllocateProducerIdsRequest,
) -> AllocateProducerIdsResponse {
    context.decide(call, request, CONTROLLER_TIMEOUT).await
}

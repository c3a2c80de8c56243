//! AllocateProducerIds (key 67), version 0: a broker gets its next block of producer ids (KIP-730).
//!
//! Only the active controller gives any.

use klamm_protocol::messages::{AllocateProducerIdsRequest, AllocateProducerIdsResponse};

use super::Call;
use crate::context::Context;
use crate::controller_channel::ForController;

pub(crate) async fn handle(
    context: &Context,
    _call: &Call,
    request: AllocateProducerIdsRequest,
) -> AllocateProducerIdsResponse {
    request.decide(&context.metadata).await
}

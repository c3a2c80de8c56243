//! RemoveRaftVoter (key 81), version 0: a voter is one no more (KIP-853). The active controller decides.

use klamm_protocol::messages::{RemoveRaftVoterRequest, RemoveRaftVoterResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: RemoveRaftVoterRequest,
) -> RemoveRaftVoterResponse {
    context.decide(call, request, CONTROLLER_TIMEOUT).await
}

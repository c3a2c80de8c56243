//! UpdateRaftVoter (key 82), version 0: a voter has moved to another address (KIP-853). The active controller decides. Nodes
//! of Klamm tell it in a message of their own.

use klamm_protocol::messages::{UpdateRaftVoterRequest, UpdateRaftVoterResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: UpdateRaftVoterRequest,
) -> UpdateRaftVoterResponse {
    context.decide(call, request, CONTROLLER_TIMEOUT).await
}

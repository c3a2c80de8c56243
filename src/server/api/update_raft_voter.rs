//! UpdateRaftVoter (key 82), version 0: a voter has moved to another address (KIP-853). The active controller decides. Nodes
//! of Klamm tell it in a message of their own.

use klamm_protocol::messages::{UpdateRaftVoterRequest, UpdateRaftVoterResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};
use crate::controller_channel::of_quorum;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: UpdateRaftVoterRequest,
) -> UpdateRaftVoterResponse {
    let mut response = context.decide(call, request, CONTROLLER_TIMEOUT).await;
    response.error_code = of_quorum(response.error_code);
    response
}

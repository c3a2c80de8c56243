//! AddRaftVoter (key 80), versions 0 to 1: a controller becomes a voter (KIP-853).
//!
//! v1 an answer before the change is committed; Klamm answers when it is. The active controller decides.

use klamm_protocol::messages::{AddRaftVoterRequest, AddRaftVoterResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: AddRaftVoterRequest,
) -> AddRaftVoterResponse {
    context.decide(call, request, CONTROLLER_TIMEOUT).await
}

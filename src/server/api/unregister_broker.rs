//! UnregisterBroker (key 64), version 0: takes a broker out of the cluster for good (KIP-631). The controller decides.

use klamm_protocol::messages::{UnregisterBrokerRequest, UnregisterBrokerResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: UnregisterBrokerRequest,
) -> UnregisterBrokerResponse {
    context.decide(call, request, CONTROLLER_TIMEOUT).await
}

//! BrokerRegistration (key 62), versions 0 to 4: a broker joins the cluster (KIP-631).
//!
//! v1 whether a broker migrates from ZooKeeper; v2 log directories (KIP-858); v3 the epoch of its last run (KIP-966);
//! v4 features with a lowest version of 0. Only the active controller answers with an epoch.

use klamm_protocol::messages::{BrokerRegistrationRequest, BrokerRegistrationResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: BrokerRegistrationRequest,
) -> BrokerRegistrationResponse {
    context.decide(call, request, CONTROLLER_TIMEOUT).await
}

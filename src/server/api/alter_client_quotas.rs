//! AlterClientQuotas (key 49), versions 0 to 1 (KIP-546): sets and removes the limits of users, clients and addresses.
//!
//! v1 flexible.

use klamm_protocol::messages::alter_client_quotas::{AlterClientQuotasRequest, AlterClientQuotasResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: AlterClientQuotasRequest,
) -> AlterClientQuotasResponse {
    context.decide(call, request, CONTROLLER_TIMEOUT).await
}

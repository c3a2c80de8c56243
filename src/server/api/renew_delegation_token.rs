//! RenewDelegationToken (key 39), versions 0 to 2 (KIP-48): refused like all of tokens over connections that are not
//! authenticated.

use klamm_model::ErrorCode;
use klamm_protocol::messages::renew_delegation_token::{
    RenewDelegationTokenRequest, RenewDelegationTokenResponse,
};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    _: &Context,
    _: &Call,
    _: RenewDelegationTokenRequest,
) -> RenewDelegationTokenResponse {
    RenewDelegationTokenResponse {
        error_code: ErrorCode::DelegationTokenRequestNotAllowed.code(),
        expiry_timestamp_ms: -1,
        ..Default::default()
    }
}

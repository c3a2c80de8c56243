//! DescribeDelegationToken (key 41), versions 0 to 3 (KIP-48): refused like all of tokens over connections that are not
//! authenticated.

use klamm_model::ErrorCode;
use klamm_protocol::messages::describe_delegation_token::{
    DescribeDelegationTokenRequest, DescribeDelegationTokenResponse,
};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    _: &Context,
    _: &Call,
    _: DescribeDelegationTokenRequest,
) -> DescribeDelegationTokenResponse {
    DescribeDelegationTokenResponse {
        error_code: ErrorCode::DelegationTokenRequestNotAllowed.code(),
        ..Default::default()
    }
}

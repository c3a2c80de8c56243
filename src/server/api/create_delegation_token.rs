//! CreateDelegationToken (key 38), versions 0 to 3 (KIP-48): connections are not authenticated, and Apache Kafka gives
//! tokens only over those that are.
//!
//! v2 flexible; v3 tokens for others (KIP-373).

use klamm_model::ErrorCode;
use klamm_protocol::messages::create_delegation_token::{
    CreateDelegationTokenRequest, CreateDelegationTokenResponse,
};

use super::{ANONYMOUS, Call};
use crate::context::Context;

/// Type and name of who asks.
const PRINCIPAL: (&str, &str) = ("User", ANONYMOUS);

pub(crate) async fn handle(
    _: &Context,
    call: &Call,
    request: CreateDelegationTokenRequest,
) -> CreateDelegationTokenResponse {
    let (kind, name) = PRINCIPAL;
    let (owner_kind, owner) = match request.owner_principal_name.as_deref() {
        None | Some("") => PRINCIPAL,
        Some(owner) => (request.owner_principal_type.as_deref().unwrap_or_default(), owner),
    };
    let requester = |word: &str| if call.version >= 3 { word.to_owned() } else { String::new() };
    CreateDelegationTokenResponse {
        error_code: ErrorCode::DelegationTokenRequestNotAllowed.code(),
        principal_type: owner_kind.to_owned(),
        principal_name: owner.to_owned(),
        token_requester_principal_type: requester(kind),
        token_requester_principal_name: requester(name),
        issue_timestamp_ms: -1,
        expiry_timestamp_ms: -1,
        max_timestamp_ms: -1,
        ..Default::default()
    }
}

//! AlterUserScramCredentials (key 51), version 0 (KIP-554): sets and removes what users prove with SASL/SCRAM that they
//! know. It is kept as Kafka keeps it, and shown; nothing signs in with it, since no listener asks for it yet.

use klamm_protocol::messages::alter_user_scram_credentials::{
    AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse,
};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: AlterUserScramCredentialsRequest,
) -> AlterUserScramCredentialsResponse {
    let response = context.decide(call, request, CONTROLLER_TIMEOUT).await;
    context.await_applied(0).await;
    let users: Vec<&str> =
        response.results.iter().filter(|it| it.error_code == 0).map(|it| it.user.as_str()).collect();
    if !users.is_empty() {
        // Who sets a password may believe that it protects something.
        tracing::warn!(
            ?users,
            "SCRAM credentials changed; no listener asks for any, since SASL is not served"
        );
    }
    response
}

//! DescribeUserScramCredentials (key 50), version 0 (KIP-554): which mechanisms a user has a password for. Nothing
//! signs in with them yet: no listener asks for any.

use std::collections::BTreeMap;

use klamm_model::ErrorCode;
use klamm_protocol::messages::describe_user_scram_credentials::{
    CredentialInfo, DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    _: &Call,
    request: DescribeUserScramCredentialsRequest,
) -> DescribeUserScramCredentialsResponse {
    let image = context.image();
    let mut known: BTreeMap<&str, Vec<CredentialInfo>> = BTreeMap::new();
    for ((user, mechanism), record) in &image.kept.scram_credentials {
        let info = CredentialInfo { mechanism: *mechanism, iterations: record.iterations };
        known.entry(user).or_default().push(info);
    }
    // How often each user is asked for; all once where none is named.
    let mut asked: BTreeMap<&str, usize> = BTreeMap::new();
    match request.users.as_deref() {
        None | Some([]) => asked.extend(known.keys().map(|user| (*user, 1))),
        Some(users) => users.iter().for_each(|user| *asked.entry(user.name.as_str()).or_default() += 1),
    }
    let results = asked.into_iter().map(|(user, times)| {
        let (code, message) = match known.get(user) {
            _ if times > 1 => (
                ErrorCode::DuplicateResource,
                format!(
                    "Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
                ),
            ),
            None => (
                ErrorCode::ResourceNotFound,
                format!("Attempt to describe a user credential that does not exist: {user}"),
            ),
            Some(infos) => return shown(user, infos.clone()),
        };
        DescribeUserScramCredentialsResult {
            user: user.to_owned(),
            error_code: code.code(),
            error_message: Some(message),
            ..Default::default()
        }
    });
    // Kafka writes an empty message beside no error.
    let error_message = Some(String::new());
    DescribeUserScramCredentialsResponse { error_message, results: results.collect(), ..Default::default() }
}

fn shown(user: &str, credential_infos: Vec<CredentialInfo>) -> DescribeUserScramCredentialsResult {
    DescribeUserScramCredentialsResult { user: user.to_owned(), credential_infos, ..Default::default() }
}

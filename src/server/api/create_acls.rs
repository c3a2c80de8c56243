//! CreateAcls (key 30), versions 0 to 3 (KIP-140): refused one by one, as by an Apache Kafka without an authorizer.

use klamm_model::ErrorCode;
use klamm_protocol::messages::create_acls::{AclCreationResult, CreateAclsRequest, CreateAclsResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(_: &Context, _: &Call, request: CreateAclsRequest) -> CreateAclsResponse {
    let refused = request.creations.iter().map(|_| AclCreationResult {
        error_code: ErrorCode::SecurityDisabled.code(),
        error_message: Some("No Authorizer is configured.".to_owned()),
    });
    CreateAclsResponse { results: refused.collect(), ..Default::default() }
}

//! DeleteAcls (key 31), versions 0 to 3 (KIP-140): refused one by one, as by an Apache Kafka without an authorizer.

use klamm_model::ErrorCode;
use klamm_protocol::messages::delete_acls::{DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(_: &Context, _: &Call, request: DeleteAclsRequest) -> DeleteAclsResponse {
    let refused = request.filters.iter().map(|_| DeleteAclsFilterResult {
        error_code: ErrorCode::SecurityDisabled.code(),
        error_message: Some("No Authorizer is configured.".to_owned()),
        ..Default::default()
    });
    DeleteAclsResponse { filter_results: refused.collect(), ..Default::default() }
}

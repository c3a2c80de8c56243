//! DescribeAcls (key 29), versions 0 to 3 (KIP-140): the answer of an Apache Kafka without an authorizer, which is what
//! Klamm is. Clients and tools tell "no access control" from "no such API" by it.
//!
//! v1 pattern types (KIP-290); v2 flexible; v3 user principals of their own type.

use klamm_model::ErrorCode;
use klamm_protocol::messages::describe_acls::{DescribeAclsRequest, DescribeAclsResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(_: &Context, _: &Call, _: DescribeAclsRequest) -> DescribeAclsResponse {
    DescribeAclsResponse {
        error_code: ErrorCode::SecurityDisabled.code(),
        error_message: Some("No Authorizer is configured on the broker".to_owned()),
        ..Default::default()
    }
}

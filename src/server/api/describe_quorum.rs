//! DescribeQuorum (key 55), versions 0 to 2: who votes on the metadata, who only reads it, and how far each is (KIP-595).
//!
//! v1 when each was last heard of and had all (KIP-836); v2 directories, addresses, messages (KIP-853). The directories are told
//! also where the voters are configured, for which Kafka tells none.

use klamm_protocol::messages::{DescribeQuorumRequest, DescribeQuorumResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};
use crate::controller_channel::of_quorum;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: DescribeQuorumRequest,
) -> DescribeQuorumResponse {
    let mut response = context.decide(call, request, CONTROLLER_TIMEOUT).await;
    response.error_code = of_quorum(response.error_code);
    response
}

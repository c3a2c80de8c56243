//! AlterPartition (key 56), versions 2 to 3: the leader of a partition proposes its in-sync replicas (KIP-497).
//!
//! v2 topics by id; v3 broker epochs (KIP-903). Only the active controller takes it.

use klamm_protocol::messages::{AlterPartitionRequest, AlterPartitionResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: AlterPartitionRequest,
) -> AlterPartitionResponse {
    context.decide(call, request, CONTROLLER_TIMEOUT).await
}

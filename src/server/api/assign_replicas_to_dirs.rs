//! AssignReplicasToDirs (key 73), version 0: a broker tells in which log directories its replicas are (KIP-858). Only the
//! active controller takes it.

use klamm_protocol::messages::{AssignReplicasToDirsRequest, AssignReplicasToDirsResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: AssignReplicasToDirsRequest,
) -> AssignReplicasToDirsResponse {
    context.decide(call, request, CONTROLLER_TIMEOUT).await
}

//! DescribeQuorum (key 55), versions 0 to 2: who votes on the metadata, who only reads it, and how far each is (KIP-595).
//!
//! v1 when each was last heard of and had all (KIP-836); v2 directories, addresses, messages (KIP-853). The directories are told
//! also where the voters are configured, for which Kafka tells none.

use klamm_model::Uuid;
use klamm_protocol::messages::describe_quorum::ReplicaState;
use klamm_protocol::messages::{DescribeQuorumRequest, DescribeQuorumResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context, found_at};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: DescribeQuorumRequest,
) -> DescribeQuorumResponse {
    let mut response = context.decide(call, request, CONTROLLER_TIMEOUT).await;
    // A node whose address nobody configured is where its client found it.
    for listener in response.nodes.iter_mut().flat_map(|node| &mut node.listeners) {
        if listener.host.is_empty() {
            (listener.host, listener.port) = found_at(&call.endpoint, call.local);
        }
    }
    if call.version < 2 {
        response.nodes.clear();
        let partitions = response.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
        partitions
            .for_each(|it| it.current_voters.iter_mut().chain(&mut it.observers).for_each(forget_directory));
    }
    response
}

/// Older versions have no directories.
fn forget_directory(replica: &mut ReplicaState) {
    replica.replica_directory_id = Uuid::ZERO;
}

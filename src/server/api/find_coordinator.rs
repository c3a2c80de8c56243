//! FindCoordinator (key 10), versions 0 to 6.
//!
//! v1 kinds of coordinators; v3 flexible; v4 several keys (KIP-699); v6 share groups (KIP-932).
//!
//! The topic of the coordinators is created when it is first asked for. Where that takes long, the answer is
//! COORDINATOR_NOT_AVAILABLE, and it goes on beside, as in Kafka, which never waits for it. Share coordinators are not served;
//! asking for one is an error that the client shows.

use std::net::SocketAddr;
use std::sync::Arc;

use klamm_model::{ErrorCode, topic_name};
use klamm_protocol::messages::find_coordinator::{
    Coordinator, FindCoordinatorRequest, FindCoordinatorResponse,
};

use super::Call;
use crate::context::{Context, reach};
use crate::listener::Endpoint;
use crate::topic_creation;

/// From this version on a request names several keys.
const BATCHED_SINCE: i16 = 4;

pub(crate) async fn handle(
    context: &Arc<Context>,
    call: &Call,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    if call.version >= BATCHED_SINCE {
        let mut coordinators = Vec::with_capacity(request.coordinator_keys.len());
        for key in &request.coordinator_keys {
            let found = find(context, request.key_type, key, &call.endpoint, call.local).await;
            coordinators.push(Coordinator { key: key.clone(), ..found });
        }
        return FindCoordinatorResponse { coordinators, ..Default::default() };
    }
    let found = find(context, request.key_type, &request.key, &call.endpoint, call.local).await;
    FindCoordinatorResponse {
        error_code: found.error_code,
        // Kafka's word for success.
        error_message: found.error_message.map(|text| if text.is_empty() { "NONE".to_owned() } else { text }),
        node_id: found.node_id,
        host: found.host,
        port: found.port,
        ..Default::default()
    }
}

async fn find(
    context: &Arc<Context>,
    kind: i8,
    key: &str,
    endpoint: &Endpoint,
    local: SocketAddr,
) -> Coordinator {
    let topic = match kind {
        0 => topic_name::GROUP_METADATA,
        1 => topic_name::TRANSACTION_STATE,
        2 => {
            return unavailable(ErrorCode::InvalidRequest, "Share groups are not served by this broker");
        }
        _ => {
            let kinds = "There are coordinators of groups (0), transactions (1) and share groups (2)";
            return unavailable(ErrorCode::InvalidRequest, kinds);
        }
    };
    if context.image().topic_by_name(topic).is_none() {
        topic_creation::create_for_coordinator(context, topic).await;
    }
    let Some(topic) = context.image().topic_by_name(topic).cloned() else {
        let message = "The topic of the coordinator is not created yet";
        return unavailable(ErrorCode::CoordinatorNotAvailable, message);
    };
    let image = context.image();
    let index = klamm_coordinator::partition_of(key, topic.partitions.len() as i32);
    let leader = topic.partition(index).and_then(|state| state.leader);
    let broker = leader.and_then(|node| image.brokers.get(&node)).filter(|broker| broker.is_active());
    match broker.and_then(|broker| Some((broker.id, reach(broker, context.node_id, endpoint, local)?))) {
        Some((node, (host, port))) => Coordinator {
            node_id: node.0,
            host,
            port: i32::from(port),
            error_message: Some(String::new()),
            ..Default::default()
        },
        None => {
            unavailable(ErrorCode::CoordinatorNotAvailable, "The partition of this name has no leader now")
        }
    }
}

fn unavailable(code: ErrorCode, message: &str) -> Coordinator {
    Coordinator {
        node_id: -1,
        port: -1,
        error_code: code.code(),
        error_message: Some(message.to_owned()),
        ..Default::default()
    }
}

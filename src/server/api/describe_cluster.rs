//! DescribeCluster (key 60), versions 0 to 2 (KIP-700).
//!
//! v1 whether brokers or controllers are wanted (KIP-919); v2 fenced brokers (KIP-1073).

use klamm_metadata::Image;
use klamm_model::ErrorCode;
use klamm_protocol::messages::describe_cluster::{
    DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse,
};

use super::Call;
use crate::authorized_operations::{CLUSTER_OPERATIONS, OPERATIONS_OMITTED};
use crate::context::{Context, found_at, reach};

/// The kind of endpoint that stands for brokers; 2 stands for controllers.
const BROKERS: i8 = 1;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: DescribeClusterRequest,
) -> DescribeClusterResponse {
    let image = context.image();
    // A listener for controllers tells of controllers, the others of brokers.
    let served = if call.endpoint.is_controller { 2 } else { BROKERS };
    if request.endpoint_type != served {
        let (code, message) = match request.endpoint_type {
            1 | 2 => {
                (ErrorCode::MismatchedEndpointType, "This listener does not serve that type of endpoint")
            }
            _ => (
                ErrorCode::UnsupportedEndpointType,
                "There are endpoints of brokers (1) and of controllers (2)",
            ),
        };
        return DescribeClusterResponse {
            error_code: code.code(),
            error_message: Some(message.to_owned()),
            endpoint_type: served,
            ..Default::default()
        };
    }
    let controller =
        if call.endpoint.is_controller { image.controller } else { image.controller_for_clients() };
    DescribeClusterResponse {
        endpoint_type: served,
        cluster_id: image.cluster_id.clone(),
        controller_id: controller.map_or(-1, |node| node.0),
        brokers: match call.endpoint.is_controller {
            true => controllers(context, call),
            false => brokers(context, call, &image, request.include_fenced_brokers),
        },
        cluster_authorized_operations: if request.include_cluster_authorized_operations {
            CLUSTER_OPERATIONS
        } else {
            OPERATIONS_OMITTED
        },
        ..Default::default()
    }
}

/// The voters of the metadata quorum. A node whose address nobody configured is where its client found it.
fn controllers(context: &Context, call: &Call) -> Vec<DescribeClusterBroker> {
    let mut voters = context.metadata.voter_addresses();
    if let Some(own) = voters.get_mut(&context.node_id).filter(|(host, _)| host.is_empty()) {
        *own = found_at(&call.endpoint, call.local);
    }
    let told = voters.into_iter().map(|(node, (host, port))| DescribeClusterBroker {
        broker_id: node.0,
        host,
        port: i32::from(port),
        ..Default::default()
    });
    told.collect()
}

fn brokers(context: &Context, call: &Call, image: &Image, with_fenced: bool) -> Vec<DescribeClusterBroker> {
    let told = image.brokers.values().filter(|broker| with_fenced || broker.is_active());
    let reachable = told.filter_map(|broker| {
        let (host, port) = reach(broker, context.node_id, &call.endpoint, call.local)?;
        Some(DescribeClusterBroker {
            broker_id: broker.id.0,
            host,
            port: i32::from(port),
            rack: broker.rack.clone(),
            is_fenced: broker.fenced,
        })
    });
    reachable.collect()
}

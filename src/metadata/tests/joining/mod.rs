//! How a broker comes into the cluster: it registers, and a heartbeat unfences it.

use std::time::Duration;

use klamm_metadata::MetadataNode;
use klamm_model::{NodeId, Uuid};
use klamm_protocol::messages::{BrokerHeartbeatRequest, BrokerRegistrationRequest};

/// How long one waits for a decision.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks the node, as the controller, to register a broker in this run of its process. Returns its epoch, or
/// Kafka's error code.
pub(crate) async fn register(
    node: &MetadataNode,
    broker: NodeId,
    run: u8,
    directory: Uuid,
) -> Result<i64, i16> {
    let request = BrokerRegistrationRequest {
        broker_id: broker.0,
        cluster_id: node.image().cluster_id.clone(),
        incarnation_id: Uuid([run; 16]),
        log_dirs: vec![directory],
        ..Default::default()
    };
    let answer = node.within(PATIENCE).register_broker(request).await;
    if answer.error_code == 0 { Ok(answer.broker_epoch) } else { Err(answer.error_code) }
}

/// Asks the node to unfence a broker that it has registered. An error is Kafka's code.
pub(crate) async fn unfence(node: &MetadataNode, broker: NodeId, broker_epoch: i64) -> Result<(), i16> {
    let request = BrokerHeartbeatRequest {
        broker_id: broker.0,
        broker_epoch,
        current_metadata_offset: node.image().offset,
        ..Default::default()
    };
    let answer = node.within(PATIENCE).heartbeat_broker(request).await;
    if answer.error_code != 0 {
        return Err(answer.error_code);
    }
    assert!(!answer.is_fenced, "a broker that has its registration is unfenced");
    Ok(())
}

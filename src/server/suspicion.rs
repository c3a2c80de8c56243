//! Nodes that may have died. A process that ends closes its connections, and the others hear of it within a moment;
//! the time-out of a session is for those that are silent. A connection that ended proves nothing, though: a node is
//! taken for dead only when its machine refuses connections to the port on which the node took them before. Then the
//! controller fences it, and a voter whose leader it was stands for election.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use klamm_io::Network;
use klamm_model::NodeId;
use tokio::task::JoinSet;

use crate::context::Context;
use crate::peers::{Address, LostConnections};
use crate::stop::Stop;

/// When a suspect is looked at, each time after the one before. A process that is killed closes its connections one
/// after the other, and the port on which it listens may be among the last.
const LOOKS: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_millis(2),
    Duration::from_millis(8),
    Duration::from_millis(30),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(600),
];

/// How often in a row its port must refuse before a node is taken for dead: a firewall or a proxy that is being changed
/// may refuse as well. A heartbeat that has come since shows that it lives.
const REFUSALS: u32 = 2;

/// How long a look may take. A machine that is gone answers nothing: that is left to the session's time-out.
const LOOK_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a node is let alone after a look. Those who try to reach it tell of it again and again.
const PAUSE: Duration = Duration::from_millis(300);

/// How long the controller may take to fence a node; who is told of it is told again by the session's time-out.
const FENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Looks at each node whose connection was lost, until the stop.
pub(crate) async fn watch(
    context: Arc<Context>,
    network: Arc<dyn Network>,
    lost: Arc<LostConnections>,
    mut stop: Stop,
) {
    let (mut looks, mut suspects) = (JoinSet::new(), BTreeSet::new());
    loop {
        let addresses = tokio::select! {
            biased;
            () = stop.requested() => return,
            Some(looked) = looks.join_next() => {
                if let Ok(node) = looked {
                    suspects.remove(&node);
                }
                continue;
            }
            addresses = lost.take() => addresses,
        };
        for address in addresses {
            let Some(node) = context.metadata.node_at(&address) else { continue };
            if node == context.node_id {
                continue;
            }
            context.metadata.connection_lost(node);
            if suspects.insert(node) {
                let (context, network) = (context.clone(), network.clone());
                looks.spawn(async move {
                    look(&context, &*network, node, &address).await;
                    tokio::time::sleep(PAUSE).await;
                    node
                });
            }
        }
    }
}

/// Looks whether a node is dead, and acts if it is.
async fn look(context: &Context, network: &dyn Network, node: NodeId, address: &Address) {
    // The registration that is ended is the one of before the look: the node may be back by then.
    let registration = context.image().brokers.get(&node).map(|broker| broker.epoch);
    let mut refusals = 0;
    for pause in LOOKS {
        tokio::time::sleep(pause).await;
        if context.metadata.has_session(node) {
            break;
        }
        refusals = if is_refused(network, address).await { refusals + 1 } else { 0 };
        if refusals == REFUSALS {
            return bury(context, node, registration).await;
        }
    }
    tracing::debug!("node {node} has ended a connection and lives");
}

async fn is_refused(network: &dyn Network, (host, port): &Address) -> bool {
    let refused = async {
        let addresses = network.resolve(host, *port).await.ok()?;
        for address in &addresses {
            match network.connect(*address).await {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                _ => return None,
            }
        }
        (!addresses.is_empty()).then_some(())
    };
    matches!(tokio::time::timeout(LOOK_TIMEOUT, refused).await, Ok(Some(())))
}

async fn bury(context: &Context, node: NodeId, registration: Option<i64>) {
    if context.image().controller == Some(node) {
        tracing::warn!("node {node}, the controller, has died: its port refuses connections");
        context.metadata.leader_died(node);
    }
    let image = context.image();
    let is_served = image.brokers.get(&node).is_some_and(|broker| !broker.fenced);
    if let (true, true, Some(epoch)) = (image.controller == Some(context.node_id), is_served, registration) {
        tracing::warn!("broker {node} has died: its port refuses connections; it is fenced");
        let fenced = context.metadata.within(FENCE_TIMEOUT).fence_dead(node, epoch).await;
        if let Err(error) = fenced {
            tracing::warn!("broker {node} could not be fenced yet: {error}");
        }
    }
}

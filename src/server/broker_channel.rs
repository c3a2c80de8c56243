//! The way to other brokers, for what coordinators and partitions ask of each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use klamm_io::Network;
use klamm_model::NodeId;
use klamm_protocol::Request;
use parking_lot::Mutex;

use crate::context::Context;
use crate::peers::{Address, PeerError, Peers};

/// One connection to each broker that was asked. Answers come in the order of the questions, so that those that may
/// take long have a channel of their own.
pub(crate) struct BrokerChannel {
    network: Arc<dyn Network>,
    client_id: String,
    /// By broker, since an address may become another's.
    peers: Mutex<BTreeMap<NodeId, (Address, Arc<Peers>)>>,
}

impl BrokerChannel {
    /// No connections yet. `client_id` is how this node introduces itself.
    pub(crate) fn new(network: Arc<dyn Network>, client_id: String) -> BrokerChannel {
        BrokerChannel { network, client_id, peers: Mutex::default() }
    }

    /// Asks a broker on the listener that brokers use.
    pub(crate) async fn ask<R: Request>(
        &self,
        context: &Context,
        node: NodeId,
        version: i16,
        request: &R,
    ) -> Result<R::Response, PeerError> {
        let address = context.address_of_broker(node)?;
        let peers = {
            let mut peers = self.peers.lock();
            let known = peers.get(&node).filter(|(known, _)| *known == address);
            let known = known.map(|(_, peers)| peers.clone());
            known.unwrap_or_else(|| {
                let opened = Arc::new(Peers::new(self.network.clone(), self.client_id.clone()));
                peers.insert(node, (address.clone(), opened.clone()));
                opened
            })
        };
        let timeout = u64::try_from(context.config().request_timeout_ms).unwrap_or(0);
        peers.ask(&address, version, request, Duration::from_millis(timeout.max(1))).await
    }
}

impl Context {
    /// Where a broker listens for other brokers.
    pub(crate) fn address_of_broker(&self, node: NodeId) -> Result<Address, PeerError> {
        let image = self.image();
        let listener = &self.static_config.inter_broker_listener_name;
        let endpoint = image.brokers.get(&node).and_then(|broker| broker.endpoint(listener));
        let unknown =
            || PeerError::Unreachable(format!("broker {node} is not registered with a listener {listener}"));
        endpoint.map(|endpoint| (endpoint.host.clone(), endpoint.port)).ok_or_else(unknown)
    }
}

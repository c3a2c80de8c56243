//! The messages of the metadata quorum, between the nodes' controllers: a key of the nodes' own, told to no
//! client. What is in them only `klamm-metadata` knows; it has a version of its own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use klamm_io::{BoxFuture, Network};
use klamm_metadata::{PeerError as QuorumError, QuorumMessage, QuorumNetwork};
use klamm_model::NodeId;

use super::{Address, LostConnections, PeerError, Peers};

/// The API key of the quorum's messages. Kafka counts its own from 0 up.
pub(crate) const QUORUM_KEY: i16 = 31_000;

/// The longest message of the quorum that is taken, whatever `socket.request.max.bytes` allows to clients: where a
/// change of the metadata cannot reach the others, nothing behind it can.
pub(crate) const QUORUM_BYTES_MAX: usize = 256 << 20;

/// How long a voter may take for an answer. A snapshot takes longest.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Carries the quorum's messages over connections of its own, so that nothing else delays them.
pub(crate) struct QuorumCarrier(Peers);

impl QuorumCarrier {
    /// Connections from this node; `lost` is told of those that end.
    pub(crate) fn new(network: Arc<dyn Network>, node: NodeId, lost: Arc<LostConnections>) -> QuorumCarrier {
        QuorumCarrier(Peers::new(network, format!("klamm-quorum-{node}")).telling(lost))
    }
}

impl QuorumNetwork for QuorumCarrier {
    fn call(
        &self,
        target: NodeId,
        address: Address,
        message: QuorumMessage,
    ) -> BoxFuture<'_, Result<Bytes, QuorumError>> {
        Box::pin(async move {
            let answer = self.0.ask_private(&address, QUORUM_KEY, &message.0, TIMEOUT).await;
            answer.map_err(|error| match error {
                PeerError::Unreachable(why) => QuorumError::Unreachable(target, why),
                broken => QuorumError::Broken(target, broken.to_string()),
            })
        })
    }
}

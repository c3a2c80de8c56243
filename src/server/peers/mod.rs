//! Connections to other nodes of the cluster.

mod connection;
mod lost;
mod quorum;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use klamm_io::Network;
use klamm_protocol::Request;
use parking_lot::Mutex;

use connection::Connection;
pub(crate) use lost::LostConnections;
pub(crate) use quorum::{QUORUM_BYTES_MAX, QUORUM_KEY, QuorumCarrier};

/// How long it may take to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A host and a port.
pub(crate) type Address = (String, u16);

/// Why another node gave no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum PeerError {
    /// No connection could be opened; nothing was sent.
    #[error("{0}")]
    Unreachable(String),
    /// The connection broke after the request may have been sent.
    #[error("{0}")]
    Broken(String),
    /// No answer came in time; one may still come, and nobody will hear it.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

/// One connection to each node that was asked for, opened when it is needed. It belongs to the runtime that
/// uses it first.
pub(crate) struct Peers {
    network: Arc<dyn Network>,
    client_id: String,
    slots: Mutex<BTreeMap<Address, Arc<Slot>>>,
    /// Who is told of connections that were ended by the other side or refused.
    lost: Option<Arc<LostConnections>>,
}

/// The connection to one address. Its lock is held while a connection is opened, so that those who wait for it
/// share it.
type Slot = tokio::sync::Mutex<Option<Arc<Connection>>>;

impl Peers {
    /// No connections yet. `client_id` is how this node introduces itself.
    pub(crate) fn new(network: Arc<dyn Network>, client_id: String) -> Peers {
        Peers { network, client_id, slots: Mutex::default(), lost: None }
    }

    /// The same without connections, for a runtime of its own.
    pub(crate) fn beside(&self) -> Peers {
        let Peers { network, client_id, lost, .. } = self;
        Peers {
            network: network.clone(),
            client_id: client_id.clone(),
            slots: Mutex::default(),
            lost: lost.clone(),
        }
    }

    /// Tells `lost` of connections that were ended by the other side or refused.
    pub(crate) fn telling(self, lost: Arc<LostConnections>) -> Peers {
        Peers { lost: Some(lost), ..self }
    }

    /// Sends a request of Kafka's protocol and returns its answer.
    pub(crate) async fn ask<R: Request>(
        &self,
        address: &Address,
        version: i16,
        request: &R,
        timeout: Duration,
    ) -> Result<R::Response, PeerError> {
        let asked = async { self.connection(address).await?.ask(version, request).await };
        tokio::time::timeout(timeout, asked).await.unwrap_or(Err(PeerError::TimedOut(timeout)))
    }

    /// Sends a message of the nodes' own protocol and returns its answer.
    pub(crate) async fn ask_private(
        &self,
        address: &Address,
        key: i16,
        body: &[u8],
        timeout: Duration,
    ) -> Result<Bytes, PeerError> {
        let asked = async { self.connection(address).await?.ask_private(key, body).await };
        tokio::time::timeout(timeout, asked).await.unwrap_or(Err(PeerError::TimedOut(timeout)))
    }

    async fn connection(&self, address: &Address) -> Result<Arc<Connection>, PeerError> {
        let slot = self.slots.lock().entry(address.clone()).or_default().clone();
        let mut slot = slot.lock().await;
        if let Some(connection) = slot.as_ref().filter(|connection| connection.is_open()) {
            return Ok(connection.clone());
        }
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, self.open(address)).await;
        let connection = opened.map_err(|_| {
            PeerError::Unreachable(format!(
                "no connection to {}:{} within {CONNECT_TIMEOUT:?}",
                address.0, address.1
            ))
        })??;
        Ok(slot.insert(connection).clone())
    }

    async fn open(&self, address: &Address) -> Result<Arc<Connection>, PeerError> {
        let (host, port) = address;
        let unreachable = |error: std::io::Error| PeerError::Unreachable(format!("{host}:{port}: {error}"));
        let mut failure = PeerError::Unreachable(format!("{host} has no address"));
        let mut is_refused = false;
        for resolved in self.network.resolve(host, *port).await.map_err(unreachable)? {
            match self.network.connect(resolved).await {
                Ok(stream) => {
                    let lost = self.lost.clone().map(|lost| (lost, address.clone()));
                    return Ok(Arc::new(Connection::new(stream, self.client_id.clone(), lost)));
                }
                Err(error) => {
                    is_refused = error.kind() == std::io::ErrorKind::ConnectionRefused;
                    failure = unreachable(error);
                }
            }
        }
        if let (true, Some(lost)) = (is_refused, &self.lost) {
            lost.tell(address);
        }
        Err(failure)
    }
}

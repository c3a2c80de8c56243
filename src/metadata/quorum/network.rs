//! The way to the other voters. What travels is opaque to the carrier: a version byte, then JSON.

use std::future::Future;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use klamm_io::BoxFuture;
use klamm_model::NodeId;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{RaftNetworkFactory, RaftNetworkV2};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Raft, Snapshot, SnapshotMeta, TypeConfig, Vote, VoterNode};

/// The version of what voters say to each other, the first byte of every message.
const MESSAGE_VERSION: u8 = 1;

/// A message between voters, as bytes for [`MetadataNode::answer_peer`](crate::MetadataNode::answer_peer).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuorumMessage(pub Bytes);

/// Carries messages to other voters. `server/peers` implements it over the controller listener; a test, in
/// memory.
pub trait QuorumNetwork: Send + Sync + 'static {
    /// Delivers a message to a voter at its host and port, and returns what it answered.
    fn call(
        &self,
        target: NodeId,
        address: (String, u16),
        message: QuorumMessage,
    ) -> BoxFuture<'_, Result<Bytes, PeerError>>;
}

/// Why a voter gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// Nobody can be reached there now; it is not worth trying again at once.
    #[error("voter {0} cannot be reached: {1}")]
    Unreachable(NodeId, String),
    /// The connection broke, or the answer did not come in time.
    #[error("the conversation with voter {0} broke off: {1}")]
    Broken(NodeId, String),
}

/// The network of a quorum of one.
pub struct NoPeers;

impl QuorumNetwork for NoPeers {
    fn call(
        &self,
        target: NodeId,
        _: (String, u16),
        _: QuorumMessage,
    ) -> BoxFuture<'_, Result<Bytes, PeerError>> {
        let why = "this node is its quorum's only voter".to_owned();
        Box::pin(async move { Err(PeerError::Unreachable(target, why)) })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
enum Question {
    Append(AppendEntriesRequest<TypeConfig>),
    Vote(VoteRequest<TypeConfig>),
    PreVote(VoteRequest<TypeConfig>),
    Snapshot { vote: Vote, meta: SnapshotMeta, content: Vec<u8> },
    TransferLeader(TransferLeaderRequest<TypeConfig>),
}

/// Answers what another voter sent.
pub(crate) async fn answer(raft: &Raft, message: QuorumMessage) -> io::Result<Bytes> {
    match decode(&message.0)? {
        Question::Append(request) => reply(raft.append_entries(request).await),
        Question::Vote(request) => reply(raft.vote(request).await),
        Question::PreVote(request) => reply(raft.pre_vote(request).await),
        Question::TransferLeader(request) => reply(raft.handle_transfer_leader(request).await),
        Question::Snapshot { vote, meta, content } => {
            let snapshot = Snapshot { meta, snapshot: content.into() };
            reply(raft.install_full_snapshot(vote, snapshot).await)
        }
    }
}

fn reply<T: Serialize, E: std::error::Error>(result: Result<T, E>) -> io::Result<Bytes> {
    match result {
        Ok(answer) => encode(&answer),
        Err(error) => Err(io::Error::other(error.to_string())),
    }
}

fn encode<T: Serialize>(message: &T) -> io::Result<Bytes> {
    let mut out = vec![MESSAGE_VERSION];
    serde_json::to_writer(&mut out, message).map_err(io::Error::other)?;
    Ok(out.into())
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    match bytes.split_first() {
        Some((&MESSAGE_VERSION, json)) => serde_json::from_slice(json).map_err(io::Error::other),
        Some((version, _)) => Err(io::Error::other(format!(
            "a voter speaks version {version} of the quorum's messages, and this Klamm knows {MESSAGE_VERSION}"
        ))),
        None => Err(io::Error::other("a voter sent an empty message")),
    }
}

/// Makes a client for each voter.
pub(crate) struct Network {
    pub(crate) carrier: Arc<dyn QuorumNetwork>,
}

/// Speaks to one voter.
pub(crate) struct PeerClient {
    carrier: Arc<dyn QuorumNetwork>,
    target: NodeId,
    address: (String, u16),
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerClient;

    async fn new_client(&mut self, target: u64, node: &VoterNode) -> PeerClient {
        let address = (node.host.clone(), node.port);
        PeerClient { carrier: Arc::clone(&self.carrier), target: NodeId(target as i32), address }
    }
}

impl PeerClient {
    async fn ask<T: DeserializeOwned>(&self, question: Question) -> Result<T, RPCError<TypeConfig>> {
        let broken = |error: io::Error| RPCError::Network(NetworkError::new(&error));
        let message = QuorumMessage(encode(&question).map_err(broken)?);
        match self.carrier.call(self.target, self.address.clone(), message).await {
            Ok(bytes) => decode(&bytes).map_err(broken),
            Err(error @ PeerError::Unreachable(..)) => Err(RPCError::Unreachable(Unreachable::new(&error))),
            Err(error @ PeerError::Broken(..)) => Err(RPCError::Network(NetworkError::new(&error))),
        }
    }
}

impl RaftNetworkV2<TypeConfig> for PeerClient {
    type SnapshotData = Bytes;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask(Question::Append(rpc)).await
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask(Question::Vote(rpc)).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask(Question::PreVote(rpc)).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let content = snapshot.snapshot.to_vec();
        let sent = self.ask(Question::Snapshot { vote, meta: snapshot.meta, content });
        tokio::select! {
            biased;
            closed = cancel => Err(StreamingError::Closed(closed)),
            answer = sent => Ok(answer?),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask(Question::TransferLeader(request)).await
    }
}

//! The way to the other members. What travels is opaque to the carrier; see `message`.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::{self, Envelope, NoAnswer, Question, Versions};
use super::replica_key::ReplicaKey;
use super::{LogId, Membership, Raft, Snapshot, TypeConfig, Vote, VoterNode};
use crate::node::Settings;

/// A message between members, as bytes for [`MetadataNode::answer_peer`](crate::MetadataNode::answer_peer).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuorumMessage(pub Bytes);

/// Carries messages to other members. `server/peers` implements it over their listeners; a test, in memory.
pub trait QuorumNetwork: Send + Sync + 'static {
    /// Delivers a message to a node at its host and port, and returns what it answered. The node is -1 where only
    /// its address is known.
    fn call(
        &self,
        target: NodeId,
        address: (String, u16),
        message: QuorumMessage,
    ) -> BoxFuture<'_, Result<Bytes, PeerError>>;
}

/// Why a member gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// Nobody can be reached there now; it is not worth trying again at once.
    #[error("node {0} cannot be reached: {1}")]
    Unreachable(NodeId, String),
    /// The connection broke, or the answer did not come in time.
    #[error("the conversation with node {0} broke off: {1}")]
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

/// Answers a message about the log and its votes that another member sent to this one.
pub(crate) async fn answer(raft: &Raft, question: Question) -> io::Result<Bytes> {
    match question {
        Question::Append { request, .. } => reply(raft.append_entries(request).await),
        Question::Vote(request) => reply(raft.vote(request).await),
        Question::PreVote(request) => reply(raft.pre_vote(request).await),
        Question::TransferLeader(request) => reply(raft.handle_transfer_leader(request).await),
        Question::Snapshot { vote, meta, content } => {
            let snapshot = Snapshot { meta, snapshot: content };
            reply(raft.install_full_snapshot(vote, snapshot).await)
        }
        Question::Lost { .. } | Question::Introduce(_) | Question::Join(_) | Question::IsMember(_) => {
            Err(io::Error::other("this is no message about the log"))
        }
    }
}

fn reply<T: Serialize, E: std::error::Error>(result: Result<T, E>) -> io::Result<Bytes> {
    match result {
        Ok(answer) => message::encode_answer(&answer),
        Err(error) => Err(io::Error::other(error.to_string())),
    }
}

/// How many addresses are remembered with the version that they are spoken to in.
const SPOKEN_MAX: usize = 1000;

/// The way from this node to others.
#[derive(Clone)]
pub(crate) struct Network {
    pub(crate) carrier: Arc<dyn QuorumNetwork>,
    /// This node.
    pub(crate) own: ReplicaKey,
    /// The number that its process has drawn.
    pub(crate) run: u64,
    /// Its cluster, if it belongs to one.
    pub(crate) cluster_id: Option<String>,
    /// Which versions of the messages this node knows.
    pub(crate) versions: Versions,
    /// The version that each address is spoken to in, where it is not the highest.
    spoken: Arc<Mutex<BTreeMap<(String, u16), u8>>>,
    /// What was told in the log of why members refuse, so that it is told once.
    told: Arc<Mutex<BTreeMap<ReplicaKey, String>>>,
    /// What each member has acknowledged to this node.
    acknowledged: Arc<Mutex<BTreeMap<ReplicaKey, Acknowledged>>>,
    /// Whether this node leads, and has lost its majority.
    pub(crate) is_cut_off: Arc<AtomicBool>,
    /// Where the members listen: one may move while it is being spoken to.
    addresses: Arc<Mutex<BTreeMap<ReplicaKey, (String, u16)>>>,
}

impl Network {
    /// The way to others from the process that has drawn the number `run`.
    pub(crate) fn new(settings: &Settings, run: u64, cluster_id: Option<String>) -> Network {
        Network {
            carrier: settings.network.clone(),
            own: settings.key(),
            run,
            cluster_id,
            versions: Versions::known(settings.quorum.versions_raised),
            spoken: Arc::default(),
            told: Arc::default(),
            acknowledged: Arc::default(),
            is_cut_off: Arc::default(),
            addresses: Arc::default(),
        }
    }

    /// Asks whoever listens at an address.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        node: NodeId,
        to: Option<ReplicaKey>,
        address: (String, u16),
        question: &Question,
    ) -> Result<T, AskError> {
        // Whoever knows the number could speak in the name of this process.
        let run = to.map_or(0, |_| self.run);
        let envelope = Envelope { cluster_id: self.cluster_id.clone(), from: self.own, run, to };
        let spoken = self.spoken.lock().get(&address).copied();
        let version = spoken.unwrap_or(self.versions.highest);
        match self.ask_in(version, &envelope, node, address.clone(), question).await {
            // One that was upgraded, or goes back, knows others than before.
            Err(AskError::NoAnswer(NoAnswer::Version { lowest, highest })) => {
                let common = self.versions.common_with(lowest, highest);
                let common = common.ok_or(NoAnswer::Version { lowest, highest })?;
                self.note_spoken(address.clone(), common);
                self.ask_in(common, &envelope, node, address, question).await
            }
            answer => answer,
        }
    }

    /// Remembers where the members listen from now on.
    pub(crate) fn note_addresses(&self, membership: &Membership) {
        let address = |(key, node): (&ReplicaKey, &VoterNode)| (*key, node.address());
        *self.addresses.lock() = membership.nodes().map(address).collect();
    }

    /// Remembers in which version an address is spoken to.
    fn note_spoken(&self, address: (String, u16), version: u8) {
        let mut spoken = self.spoken.lock();
        if spoken.len() >= SPOKEN_MAX {
            spoken.clear();
        }
        spoken.insert(address, version);
    }

    async fn ask_in<T: DeserializeOwned>(
        &self,
        version: u8,
        envelope: &Envelope,
        node: NodeId,
        address: (String, u16),
        question: &Question,
    ) -> Result<T, AskError> {
        let message = message::encode_question(version, envelope, question)
            .map_err(|error| PeerError::Broken(node, error.to_string()))?;
        let answer = self.carrier.call(node, address, QuorumMessage(message)).await?;
        Ok(message::decode_answer(&answer)?)
    }
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
}

/// Speaks to one member.
pub(crate) struct PeerClient {
    network: Network,
    target: ReplicaKey,
    /// Where it listened when it was first spoken to.
    first_address: (String, u16),
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerClient;

    async fn new_client(&mut self, target: ReplicaKey, node: &VoterNode) -> PeerClient {
        PeerClient { network: self.clone(), target, first_address: node.address() }
    }
}

impl PeerClient {
    /// Where the member listens now. openraft keeps this client when a member moves.
    fn address(&self) -> (String, u16) {
        let known = self.network.addresses.lock().get(&self.target).cloned();
        known.unwrap_or_else(|| self.first_address.clone())
    }

    async fn ask<T: DeserializeOwned>(&self, question: Question) -> Result<T, RPCError<TypeConfig>> {
        let asked = self.network.ask(self.target.id, Some(self.target), self.address(), &question);
        match asked.await {
            Ok(answer) => {
                self.network.told.lock().remove(&self.target);
                Ok(answer)
            }
            Err(AskError::Peer(error @ PeerError::Broken(..))) => {
                Err(RPCError::Network(NetworkError::new(&error)))
            }
            Err(error) => {
                if let AskError::NoAnswer(why) = &error {
                    self.tell(why);
                }
                Err(RPCError::Unreachable(Unreachable::new(&error)))
            }
        }
    }

    /// A member that answers and refuses needs a person, who must hear of it.
    fn tell(&self, why: &NoAnswer) {
        let why = why.to_string();
        let mut told = self.network.told.lock();
        if told.get(&self.target) != Some(&why) {
            let ((host, port), node) = (self.address(), self.target.id);
            tracing::warn!("node {node} at {host}:{port} takes no message of the metadata quorum: {why}");
            told.insert(self.target, why);
        }
    }
}

impl PeerClient {
    /// Notes that the member has the log up to `matched`.
    fn note(&self, vote: Vote, matched: Option<LogId>, committed: Option<LogId>) {
        let Some(matched) = matched else { return };
        let mut all = self.network.acknowledged.lock();
        let known = all.get(&self.target).copied();
        all.insert(self.target, Acknowledged::after(known, vote, matched, committed));
    }

    /// Tells a member that it has lost an entry, and openraft that the member cannot be reached: what was acknowledged
    /// counts for what is committed, and there is no way to take it back.
    async fn tell_of_loss(&self, vote: Vote, acknowledged: LogId) -> RPCError<TypeConfig> {
        let why = NoAnswer::Refused(format!(
            "its directory, {}, has lost entry {}, which it had acknowledged: an older copy of it was put back. The node \
             has to start with an empty directory, and joins as a new member",
            self.target.directory_id, acknowledged.index
        ));
        self.tell(&why);
        if let Err(error) = self.ask::<()>(Question::Lost { vote, acknowledged }).await {
            tracing::debug!("node {} was not told that it lost entries: {error}", self.target.id);
        }
        RPCError::Unreachable(Unreachable::new(&why))
    }
}

/// What a member has acknowledged to a leader.
#[derive(Clone, Copy)]
struct Acknowledged {
    /// The vote of the leader: another one may have had the member take back what is not committed.
    vote: Vote,
    /// Up to where its log is the leader's.
    matched: LogId,
    /// Up to where that is committed, so that nobody may ever take it back.
    kept: Option<LogId>,
}

impl Acknowledged {
    /// After an answer to the leader with this vote, which knew that so much was committed.
    fn after(
        known: Option<Acknowledged>,
        vote: Vote,
        matched: LogId,
        committed: Option<LogId>,
    ) -> Acknowledged {
        let of_this_vote = known.filter(|known| known.vote == vote).map(|known| known.matched);
        let matched = of_this_vote.map_or(matched, |known| known.max(matched));
        let kept = known.and_then(|known| known.kept).max(committed.map(|committed| committed.min(matched)));
        Acknowledged { vote, matched, kept }
    }

    /// What the member has lost, if it does not have `prev` any more.
    fn lost(&self, vote: Vote, prev: LogId) -> Option<LogId> {
        let matched = (self.vote == vote).then_some(self.matched);
        matched.max(self.kept).filter(|acknowledged| prev.index <= acknowledged.index)
    }
}

impl RaftNetworkV2<TypeConfig> for PeerClient {
    type SnapshotData = Bytes;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let (vote, prev, committed) = (rpc.vote, rpc.prev_log_id, rpc.leader_commit);
        let last = rpc.entries.last().map(|entry| entry.log_id).or(prev);
        let before = self.network.acknowledged.lock().get(&self.target).copied();
        let is_cut_off = self.network.is_cut_off.load(Ordering::Relaxed);
        let answer = self.ask(Question::Append { request: rpc, is_cut_off }).await?;
        match &answer {
            AppendEntriesResponse::Success => self.note(vote, last, committed),
            AppendEntriesResponse::PartialSuccess(matched) => self.note(vote, *matched, committed),
            AppendEntriesResponse::Conflict => {
                if let Some(lost) = before.zip(prev).and_then(|(before, prev)| before.lost(vote, prev)) {
                    return Err(self.tell_of_loss(vote, lost).await);
                }
            }
            AppendEntriesResponse::HigherVote(_) => {}
        }
        Ok(answer)
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
        let content = snapshot.snapshot;
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

//! Who belongs to the quorum, as the leader changes it: nodes ask to be taken in (`joining`), or somebody wants it.
//!
//! The leader replaces a voter only by another directory of the same node, and only
//! when nobody answers in the name of the old one. Changes are made in `changing`, one at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use klamm_io::Clock;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{AsyncRuntime, ChangeMembers};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::changing::{ChangeError, Turn};
use super::forming::introduce;
use super::orders::hand_over;
use super::progress::{CaughtUp, QuorumState, note_caught_up, quorum_state};
use super::scrutiny::Processes;
use super::settings::{Settings, Voter};
use crate::controller::KRAFT_VERSION;
use crate::image::Image;
use crate::quorum::introduction::{Introduction, JoinAnswer, JoinRequest, disagreement};
use crate::quorum::network::Network;
use crate::quorum::replica_key::ReplicaKey;
use crate::quorum::{Membership, Raft, Runtime, VoterNode};

/// How often it is looked whether a node that is to vote has the log.
const CATCH_UP_PAUSE: Duration = Duration::from_millis(50);

/// How many entries a learner may lack to be made a voter: it has them before it is missed.
const ENTRIES_LACKED_MAX: u64 = 100;

/// This node's view of the quorum's members.
pub(super) struct Members {
    pub(super) raft: Raft,
    pub(super) network: Network,
    pub(super) own: Introduction,
    /// Where others reach this node.
    pub(super) address: (String, u16),
    /// `controller.quorum.voters`.
    pub(super) voters: Vec<Voter>,
    /// `controller.quorum.bootstrap.servers`.
    pub(super) bootstrap_servers: Vec<(String, u16)>,
    /// Held while the members are changed: one change at a time.
    pub(super) changing: Arc<tokio::sync::Mutex<()>>,
    /// The processes that speak in the names of members.
    pub(super) processes: Mutex<Processes>,
    /// Why this process cannot go on.
    pub(super) failed: watch::Sender<Option<String>>,
    /// Who was told in the log to wait, and for what.
    pub(super) told: Mutex<BTreeMap<ReplicaKey, String>>,
    /// After how long without a word a leader is none any more.
    pub(super) silence: Duration,
    pub(super) images: watch::Receiver<Arc<Image>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) leader_heard: Mutex<LeaderHeard>,
    /// Since when this node leads, on the monotonic clock, if it does.
    pub(super) leads_since: Mutex<Option<Duration>>,
    /// When each member had all of the log, while this node leads.
    pub(super) caught_up: Mutex<CaughtUp>,
}

/// What was last heard of a leader.
pub(super) struct LeaderHeard {
    /// When, on the monotonic clock.
    pub(super) at: Duration,
    /// Whether it has lost its majority, and says so to whom it still reaches.
    pub(super) is_cut_off: bool,
}

/// A change of who votes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VoterChange {
    /// A node that is no voter becomes one, and is reached here.
    Add(ReplicaKey, (String, u16)),
    /// A voter is one no more.
    Remove(ReplicaKey),
    /// A voter is reached here from now on.
    Move(ReplicaKey, (String, u16)),
}

/// Why the voters were not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VoterChangeError {
    /// Another node leads, or none does.
    #[error("this node is not the active controller")]
    NotLeader,
    /// A node with this number votes already.
    #[error("node {} votes already, with directory {}", .0.id, .0.directory_id)]
    Duplicate(ReplicaKey),
    /// There is no such voter.
    #[error("no voter has node.id={} and directory {}", .0.id, .0.directory_id)]
    NotFound(ReplicaKey),
    /// The last voter cannot go.
    #[error("node {} is the only voter: add another one first", .0.id)]
    Last(ReplicaKey),
    /// Something else is found at its address.
    #[error("{0}")]
    Invalid(String),
    /// It was not done in time; it may still be.
    #[error("the voters were not changed in time: {0}")]
    TimedOut(String),
}

impl Members {
    /// This node's view of the quorum that it reaches over `network`. `failed` is told why it cannot go on.
    pub(super) fn new(
        raft: Raft,
        network: Network,
        settings: &Settings,
        failed: watch::Sender<Option<String>>,
        images: watch::Receiver<Arc<Image>>,
    ) -> Members {
        Members {
            own: settings.introduction(network.run, network.cluster_id.clone()),
            raft,
            network,
            address: settings.address.clone(),
            voters: settings.voters.clone(),
            bootstrap_servers: settings.bootstrap_servers.clone(),
            changing: Arc::default(),
            processes: Mutex::default(),
            failed,
            told: Mutex::default(),
            silence: 2 * settings.quorum.election_timeout_max,
            images,
            clock: settings.clock.clone(),
            leader_heard: Mutex::new(LeaderHeard { at: settings.clock.monotonic(), is_cut_off: false }),
            leads_since: Mutex::default(),
            caught_up: Mutex::default(),
        }
    }

    /// Whether commands alone say who votes, whatever the configuration names.
    pub(super) fn is_dynamic(&self) -> bool {
        self.images.borrow().feature(KRAFT_VERSION) > 0
    }

    pub(super) fn membership(&self) -> Membership {
        self.raft.metrics().borrow_watched().membership_config.membership().clone()
    }

    pub(super) fn leader(&self) -> Option<ReplicaKey> {
        self.raft.metrics().borrow_watched().current_leader
    }

    /// Whether this node leads. One that was removed does not, although openraft names it until another leads.
    pub(super) fn leads(&self) -> bool {
        let own = self.own.key;
        self.leader() == Some(own) && self.membership().voter_ids().any(|voter| voter == own)
    }

    /// Takes a node in, as the leader.
    ///
    /// # Errors
    /// Why it is not taken in until somebody changes something, for a person.
    pub(super) async fn admit(&self, request: JoinRequest) -> Result<JoinAnswer, String> {
        let leader = self.leader();
        let membership = self.membership();
        if !self.leads() {
            let leader = leader.filter(|leader| *leader != self.own.key);
            let address = leader.and_then(|leader| membership.get_node(&leader).map(VoterNode::address));
            return Ok(JoinAnswer::NotLeader(address));
        }
        let JoinRequest { key, run, configured, .. } = request.clone();
        let other = Introduction { key, run, cluster_id: None, configured };
        if let Some(why) = disagreement(&self.own, &other) {
            return Err(why);
        }
        let is_named = self.voters.iter().any(|voter| voter.id == request.key.id);
        let request = JoinRequest { wants_vote: request.wants_vote && !self.is_dynamic(), ..request };
        if request.wants_vote && !is_named {
            return Err(format!(
                "controller.quorum.voters at node {}, which leads, does not name node {}: give all nodes the same list \
                 and start those first that run already",
                self.own.key.id, request.key.id
            ));
        }
        let Some(turn) = self.try_turn() else {
            return Ok(JoinAnswer::Pending("another change of the members is under way".to_owned()));
        };
        let answer = self.take_in(&turn, &membership, &request).await.unwrap_or_else(JoinAnswer::Taken);
        if let JoinAnswer::Pending(why) = &answer {
            self.tell(request.key, why);
        }
        Ok(answer)
    }

    async fn take_in(
        &self,
        turn: &Turn,
        membership: &Membership,
        request: &JoinRequest,
    ) -> Result<JoinAnswer, String> {
        let node = VoterNode { host: request.host.clone(), port: request.port };
        let key = request.key;
        let known = membership.get_node(&key);
        if let Some(known) = known
            && let Some(why) = self.taken(key, request.run, known).await
        {
            return Ok(JoinAnswer::Taken(why));
        }
        match known {
            None => {
                if let Err(why) = self.check_is_there(membership, key, node.address()).await? {
                    return Ok(JoinAnswer::Pending(why));
                }
                tracing::info!("node {} with directory {} joins at {node}", key.id, key.directory_id);
                if let Err(why) =
                    self.change(turn, ChangeMembers::AddNodes(BTreeMap::from([(key, node)]))).await
                {
                    return Ok(JoinAnswer::Pending(why.to_string()));
                }
            }
            Some(known) if *known != node && !node.host.is_empty() => {
                if let Err(why) = self.check_is_there(membership, key, node.address()).await? {
                    return Ok(JoinAnswer::Pending(why));
                }
                tracing::info!("node {} has moved from {known} to {node}", key.id);
                if let Err(why) =
                    self.change(turn, ChangeMembers::SetNodes(BTreeMap::from([(key, node)]))).await
                {
                    return Ok(JoinAnswer::Pending(why.to_string()));
                }
            }
            Some(_) => {}
        }
        let is_voter = membership.voter_ids().any(|voter| voter == key);
        if !request.wants_vote || is_voter {
            return Ok(done(self.remove_predecessors(turn, key).await));
        }
        if !self.has_caught_up(key) {
            return Ok(JoinAnswer::Pending("it does not have the log yet".to_owned()));
        }
        let replaced: Vec<ReplicaKey> = membership.voter_ids().filter(|voter| voter.id == key.id).collect();
        let kept = membership.voter_ids().filter(|voter| voter.id != key.id);
        let voters: BTreeSet<ReplicaKey> = kept.chain([key]).collect();
        for old in &replaced {
            tracing::warn!(
                "node {} votes with directory {} from now on; the vote of directory {}, which is lost, ends",
                key.id,
                key.directory_id,
                old.directory_id
            );
        }
        Ok(done(self.change(turn, ChangeMembers::ReplaceAllVoters(voters)).await))
    }

    /// What a process is told that asks in the name of a member while another process is this member, at its address:
    /// two that vote as one could elect two leaders.
    async fn taken(&self, key: ReplicaKey, run: u64, known: &VoterNode) -> Option<String> {
        // A leader that has moved takes in itself; it would wait for its own answer behind its own question.
        if (key, run) == (self.own.key, self.own.run) {
            return None;
        }
        let own = self.own.asking_for(run);
        let found = introduce(&self.network, &own, key.id, known.address()).await.ok()?;
        (found.key == key && found.run != run).then(|| {
            format!(
                "node.id={} is taken: a process with directory {} runs at {known}, and another one with a copy of that \
                 directory asks for its place; end one of them, and give the other an id and an empty directory of its own",
                key.id, key.directory_id
            )
        })
    }

    /// Checks that a node is the one that others will reach at its address, and that no other process has its number.
    /// The inner error says why that is not known now.
    async fn check_is_there(
        &self,
        membership: &Membership,
        key: ReplicaKey,
        address: (String, u16),
    ) -> Result<Result<(), String>, String> {
        let own = self.own.asking_for(0);
        let ask = |address| introduce(&self.network, &own, key.id, address);
        let found = if key == self.own.key { Ok(self.own.clone()) } else { ask(address.clone()).await };
        match found {
            Ok(found) if found.key == key && found.cluster_id == self.own.cluster_id => {}
            Ok(Introduction { key: found, cluster_id: None, .. }) if found == key => {
                return Ok(Err(format!(
                    "node {} at {}:{} belongs to no cluster yet: it has to find this one first, by \
                     controller.quorum.bootstrap.servers",
                    key.id, address.0, address.1
                )));
            }
            Ok(Introduction { key: found, cluster_id: Some(theirs), .. }) if found == key => {
                return Err(format!(
                    "node {} at {}:{} belongs to cluster {theirs}, and this is cluster {}: format it for this one",
                    key.id,
                    address.0,
                    address.1,
                    self.own.cluster_id.as_deref().unwrap_or_default()
                ));
            }
            Ok(found) => {
                return Err(format!(
                    "node {} with directory {} says it listens at {}:{}, where node {} with directory {} answers: give \
                     each node an id and an address of its own",
                    key.id, key.directory_id, address.0, address.1, found.key.id, found.key.directory_id
                ));
            }
            Err(why) => {
                return Ok(Err(format!(
                    "node {} cannot be reached at {}:{}: {why}",
                    key.id, address.0, address.1
                )));
            }
        }
        for (other, node) in membership.nodes().filter(|(other, _)| other.id == key.id) {
            let at = node.address();
            if at.0.is_empty() || at == address {
                continue;
            }
            if let Ok(found) = ask(at).await
                && found.key == *other
            {
                return Err(format!(
                    "node.id={} is taken: a process with directory {} runs at {node}, and this one has directory {}; \
                     give each node an id of its own, or end the other process",
                    key.id, other.directory_id, key.directory_id
                ));
            }
        }
        Ok(Ok(()))
    }

    /// Forgets learners that are an earlier directory of a node.
    async fn remove_predecessors(&self, turn: &Turn, key: ReplicaKey) -> Result<(), ChangeError> {
        let membership = self.membership();
        let old: BTreeSet<ReplicaKey> =
            membership.learner_ids().filter(|learner| learner.id == key.id && *learner != key).collect();
        if old.is_empty() { Ok(()) } else { self.change(turn, ChangeMembers::RemoveNodes(old)).await }
    }

    /// Whether a learner has the log, but for what it gets before it is missed.
    fn has_caught_up(&self, key: ReplicaKey) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let last = metrics.last_log_index.unwrap_or(0);
        let matched = metrics.replication.as_ref().and_then(|progress| progress.get(&key).cloned()).flatten();
        matched.is_some_and(|matched| matched.index + ENTRIES_LACKED_MAX >= last)
    }

    /// Changes the voters, because somebody wants it.
    pub(super) async fn change_voters(
        self: &Arc<Self>,
        change: VoterChange,
        limit: Duration,
    ) -> Result<(), VoterChangeError> {
        if !self.leads() {
            return Err(VoterChangeError::NotLeader);
        }
        let added = match &change {
            VoterChange::Add(key, _) if self.membership().get_node(key).is_none() => Some(*key),
            _ => None,
        };
        let changed = async {
            let turn = self.turn().await;
            match change {
                VoterChange::Add(key, address) => self.add_voter(&turn, key, address).await,
                VoterChange::Remove(key) => self.remove_voter(&turn, key).await,
                VoterChange::Move(key, address) => self.move_voter(&turn, key, address).await,
            }
        };
        let late = |_| VoterChangeError::TimedOut(format!("{limit:?} are over"));
        let changed = tokio::time::timeout(limit, changed).await.map_err(late).flatten();
        if let Some(key) = added.filter(|_| changed.is_err()) {
            Runtime::spawn(self.clone().take_back(key));
        }
        changed
    }

    /// Takes out one that was to vote and does not, when nothing goes on with it any more.
    async fn take_back(self: Arc<Self>, key: ReplicaKey) {
        let turn = self.turn().await;
        if self.leads() && self.membership().learner_ids().any(|learner| learner == key) {
            let removed = self.change(&turn, ChangeMembers::RemoveNodes(BTreeSet::from([key]))).await;
            if let Err(why) = removed {
                tracing::warn!("node {}, which was to vote, stays an observer: {why}", key.id);
            }
        }
    }

    async fn add_voter(
        &self,
        turn: &Turn,
        key: ReplicaKey,
        address: (String, u16),
    ) -> Result<(), VoterChangeError> {
        let membership = self.membership();
        if let Some(known) = membership.voter_ids().find(|voter| voter.id == key.id) {
            return Err(VoterChangeError::Duplicate(known));
        }
        let there = self.check_is_there(&membership, key, address.clone()).await;
        there.map_err(VoterChangeError::Invalid)?.map_err(VoterChangeError::TimedOut)?;
        let nodes = BTreeMap::from([(key, VoterNode { host: address.0, port: address.1 })]);
        self.change(turn, ChangeMembers::SetNodes(nodes)).await?;
        while !self.has_caught_up(key) {
            tokio::time::sleep(CATCH_UP_PAUSE).await;
        }
        let added = self.change(turn, ChangeMembers::AddVoterIds(BTreeSet::from([key]))).await;
        Ok(added?)
    }

    async fn remove_voter(&self, turn: &Turn, key: ReplicaKey) -> Result<(), VoterChangeError> {
        let voters: Vec<ReplicaKey> = self.membership().voter_ids().collect();
        if !voters.contains(&key) {
            return Err(VoterChangeError::NotFound(key));
        }
        if voters.len() == 1 {
            return Err(VoterChangeError::Last(key));
        }
        self.change(turn, ChangeMembers::RemoveVoters(BTreeSet::from([key]))).await?;
        if key == self.own.key {
            // Nobody is to wait for an election time-out.
            Runtime::spawn(hand_over(self.raft.clone(), key));
        }
        Ok(())
    }

    async fn move_voter(
        &self,
        turn: &Turn,
        key: ReplicaKey,
        address: (String, u16),
    ) -> Result<(), VoterChangeError> {
        let membership = self.membership();
        if !membership.voter_ids().any(|voter| voter == key) {
            return Err(VoterChangeError::NotFound(key));
        }
        let there = self.check_is_there(&membership, key, address.clone()).await;
        there.map_err(VoterChangeError::Invalid)?.map_err(VoterChangeError::TimedOut)?;
        let nodes = BTreeMap::from([(key, VoterNode { host: address.0, port: address.1 })]);
        Ok(self.change(turn, ChangeMembers::SetNodes(nodes)).await?)
    }

    /// Who has how much of the log; `None` where this node does not lead.
    pub(super) fn describe(&self) -> Option<QuorumState> {
        quorum_state(&self.raft, &self.caught_up.lock(), self.clock.now_ms())
    }

    /// Notes who has all of the log now.
    pub(super) fn note_caught_up(&self) {
        note_caught_up(&self.raft, &mut self.caught_up.lock(), self.clock.now_ms());
    }

    /// Tells once why a node has to wait.
    fn tell(&self, key: ReplicaKey, why: &str) {
        let mut told = self.told.lock();
        if told.get(&key).is_none_or(|known| known != why) {
            tracing::info!("node {} with directory {} waits to be taken in: {why}", key.id, key.directory_id);
            // Whoever waits has been reached at its address, or is one of a few that cannot.
            if told.len() >= TOLD_MAX {
                told.clear();
            }
            told.insert(key, why.to_owned());
        }
    }
}

impl From<ChangeError> for VoterChangeError {
    fn from(error: ChangeError) -> VoterChangeError {
        match error {
            ChangeError::NotLeader => VoterChangeError::NotLeader,
            error => VoterChangeError::TimedOut(error.to_string()),
        }
    }
}

/// How many nodes are remembered that were told to wait.
const TOLD_MAX: usize = 100;

fn done(changed: Result<(), ChangeError>) -> JoinAnswer {
    changed.map_or_else(|why| JoinAnswer::Pending(why.to_string()), |()| JoinAnswer::Done)
}

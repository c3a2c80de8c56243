//! Who belongs to the quorum: a node asks to be taken in, the leader takes it in.
//!
//! A node that is not what it should be (a voter where the configuration says so, else a learner, at its address)
//! asks the leader until it is. The leader replaces a voter only by another directory of the same node, and only
//! when nobody answers in the name of the old one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use klamm_model::NodeId;
use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::forming::introduce;
use super::settings::Voter;
use crate::quorum::introduction::{Introduction, JoinAnswer, JoinRequest, disagreement};
use crate::quorum::message::{NoAnswer, Question};
use crate::quorum::network::{AskError, Network};
use crate::quorum::replica_key::ReplicaKey;
use crate::quorum::{Membership, Raft, VoterNode};

/// How long a node waits before it asks again to be taken in.
const PAUSE: Duration = Duration::from_millis(300);

/// How long the leader may take for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a change of the members may take. It needs a majority of the voters, before and after.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(4);

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
    pub(super) changing: tokio::sync::Mutex<()>,
    /// Who was told in the log to wait, and for what.
    pub(super) told: Mutex<BTreeMap<ReplicaKey, String>>,
}

impl Members {
    fn membership(&self) -> Membership {
        self.raft.metrics().borrow_watched().membership_config.membership().clone()
    }

    fn leader(&self) -> Option<ReplicaKey> {
        self.raft.metrics().borrow_watched().current_leader
    }

    /// Whether `controller.quorum.voters` names this node.
    fn is_configured(&self) -> bool {
        self.voters.iter().any(|voter| voter.id == self.own.key.id)
    }

    /// Asks to be taken in, again and again, whenever this node is not what it should be. Ends with the quorum.
    pub(super) async fn keep_own(self: Arc<Self>, failed: watch::Sender<Option<String>>) {
        let mut metrics = self.raft.metrics();
        let mut hint = None;
        let mut was_member = self.is_as_it_should_be();
        loop {
            if self.is_as_it_should_be() {
                was_member = true;
                if metrics.changed().await.is_err() {
                    return;
                }
                continue;
            }
            for address in self.whom_to_ask(hint.take()) {
                match self.ask_to_join(address).await {
                    Asked::Heard(leader) => {
                        hint = leader;
                        break;
                    }
                    Asked::Silent => {}
                    // One that works already goes on with what it is.
                    Asked::Refused(why) if was_member => tracing::warn!("{why}"),
                    Asked::Refused(why) => {
                        failed.send_replace(Some(why));
                        return;
                    }
                }
            }
            if metrics.borrow_watched().running_state.is_err() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn is_as_it_should_be(&self) -> bool {
        let membership = self.membership();
        let own = self.own.key;
        let has_address = membership
            .get_node(&own)
            .is_some_and(|node| self.address.0.is_empty() || is_at(node, &self.address));
        has_address && (!self.is_configured() || membership.voter_ids().any(|voter| voter == own))
    }

    /// The leader, where it is known; then all that are configured.
    fn whom_to_ask(&self, hint: Option<(String, u16)>) -> Vec<(String, u16)> {
        let membership = self.membership();
        let leader = self.leader().and_then(|leader| membership.get_node(&leader).map(address_of));
        let configured = self.voters.iter().map(|voter| (voter.host.clone(), voter.port));
        let mut all: Vec<(String, u16)> = hint.into_iter().chain(leader).collect();
        all.extend(configured.chain(self.bootstrap_servers.iter().cloned()));
        // The leader may have to take in itself, when it has moved.
        all.retain(|address| *address != self.address || self.leader() == Some(self.own.key));
        all
    }

    async fn ask_to_join(&self, address: (String, u16)) -> Asked {
        let request = JoinRequest {
            key: self.own.key,
            host: self.address.0.clone(),
            port: self.address.1,
            wants_vote: self.is_configured(),
            configured: self.own.configured.clone(),
        };
        let question = Question::Join(request);
        let asked = self.network.ask::<JoinAnswer>(NodeId(-1), None, address.clone(), &question);
        match tokio::time::timeout(ANSWER_TIMEOUT, asked).await {
            Ok(Ok(JoinAnswer::Done)) => Asked::Heard(None),
            Ok(Ok(JoinAnswer::Pending(why))) => {
                tracing::debug!("not a member yet: {why}");
                Asked::Heard(Some(address))
            }
            Ok(Ok(JoinAnswer::NotLeader(leader))) => {
                if leader.is_some() {
                    Asked::Heard(leader)
                } else {
                    Asked::Silent
                }
            }
            Ok(Err(AskError::NoAnswer(NoAnswer::Refused(why)))) => {
                Asked::Refused(format!("the node at {}:{} does not take it in: {why}", address.0, address.1))
            }
            Ok(Err(error)) => {
                tracing::debug!("{}:{} was asked to take this node in: {error}", address.0, address.1);
                Asked::Silent
            }
            Err(_) => Asked::Silent,
        }
    }

    /// Takes a node in, as the leader.
    ///
    /// # Errors
    /// Why it is not taken in until somebody changes something, for a person.
    pub(super) async fn admit(&self, request: JoinRequest) -> Result<JoinAnswer, String> {
        let leader = self.leader();
        let membership = self.membership();
        if leader != Some(self.own.key) {
            let address = leader.and_then(|leader| membership.get_node(&leader).map(address_of));
            return Ok(JoinAnswer::NotLeader(address));
        }
        let other =
            Introduction { key: request.key, cluster_id: None, configured: request.configured.clone() };
        if let Some(why) = disagreement(&self.own, &other) {
            return Err(why);
        }
        let is_named = self.voters.iter().any(|voter| voter.id == request.key.id);
        if request.wants_vote && !is_named {
            return Err(format!(
                "controller.quorum.voters at node {}, which leads, does not name node {}: give all nodes the same list \
                 and start those first that run already",
                self.own.key.id, request.key.id
            ));
        }
        let Ok(_changing) = self.changing.try_lock() else {
            return Ok(JoinAnswer::Pending("another change of the members is under way".to_owned()));
        };
        let answer = self.take_in(&membership, &request).await?;
        if let JoinAnswer::Pending(why) = &answer {
            self.tell(request.key, why);
        }
        Ok(answer)
    }

    async fn take_in(&self, membership: &Membership, request: &JoinRequest) -> Result<JoinAnswer, String> {
        let node = VoterNode { host: request.host.clone(), port: request.port };
        let key = request.key;
        match membership.get_node(&key) {
            None => {
                if let Some(pending) = self.check_is_there(membership, request).await? {
                    return Ok(pending);
                }
                tracing::info!("node {} with directory {} joins at {node}", key.id, key.directory_id);
                if let Some(pending) =
                    self.change(ChangeMembers::AddNodes(BTreeMap::from([(key, node)]))).await
                {
                    return Ok(pending);
                }
            }
            Some(known) if *known != node && !node.host.is_empty() => {
                tracing::info!("node {} has moved from {known} to {node}", key.id);
                if let Some(pending) =
                    self.change(ChangeMembers::SetNodes(BTreeMap::from([(key, node)]))).await
                {
                    return Ok(pending);
                }
            }
            Some(_) => {}
        }
        let is_voter = membership.voter_ids().any(|voter| voter == key);
        if !request.wants_vote || is_voter {
            return Ok(self.remove_predecessors(key).await.unwrap_or(JoinAnswer::Done));
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
        Ok(self.change(ChangeMembers::ReplaceAllVoters(voters)).await.unwrap_or(JoinAnswer::Done))
    }

    /// Checks that the node that asks is the one that others will reach at its address, and that no other process has
    /// its number.
    async fn check_is_there(
        &self,
        membership: &Membership,
        request: &JoinRequest,
    ) -> Result<Option<JoinAnswer>, String> {
        let key = request.key;
        let address = (request.host.clone(), request.port);
        let ask = |address| introduce(&self.network, &self.own, key.id, address);
        match ask(address.clone()).await {
            Ok(found) if found.key == key => {}
            Ok(found) => {
                return Err(format!(
                    "node {} with directory {} says it listens at {}:{}, where node {} with directory {} answers: give \
                     each node an id and an address of its own",
                    key.id, key.directory_id, address.0, address.1, found.key.id, found.key.directory_id
                ));
            }
            Err(why) => {
                let why = format!("node {} cannot be reached at {}:{}: {why}", key.id, address.0, address.1);
                return Ok(Some(JoinAnswer::Pending(why)));
            }
        }
        for (other, node) in membership.nodes().filter(|(other, _)| other.id == key.id) {
            let at = address_of(node);
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
        Ok(None)
    }

    /// Forgets learners that are an earlier directory of a node.
    async fn remove_predecessors(&self, key: ReplicaKey) -> Option<JoinAnswer> {
        let membership = self.membership();
        let old: BTreeSet<ReplicaKey> =
            membership.learner_ids().filter(|learner| learner.id == key.id && *learner != key).collect();
        if old.is_empty() { None } else { self.change(ChangeMembers::RemoveNodes(old)).await }
    }

    /// Whether a learner has the log, but for what it gets before it is missed.
    fn has_caught_up(&self, key: ReplicaKey) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let last = metrics.last_log_index.unwrap_or(0);
        let matched = metrics.replication.as_ref().and_then(|progress| progress.get(&key).cloned()).flatten();
        matched.is_some_and(|matched| matched.index + ENTRIES_LACKED_MAX >= last)
    }

    /// Changes the members. `Some` when it is not done, with the reason.
    async fn change(&self, change: ChangeMembers<ReplicaKey, VoterNode>) -> Option<JoinAnswer> {
        let changed = self.raft.change_membership(change, false);
        match tokio::time::timeout(CHANGE_TIMEOUT, changed).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(JoinAnswer::Pending(error.to_string())),
            Err(_) => Some(JoinAnswer::Pending("a majority of the voters does not answer".to_owned())),
        }
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

/// How many nodes are remembered that were told to wait.
const TOLD_MAX: usize = 100;

/// What came of asking a member.
enum Asked {
    /// It answered; perhaps it said whom to ask next.
    Heard(Option<(String, u16)>),
    /// It did not answer, or knows no leader.
    Silent,
    /// It refuses, for this reason.
    Refused(String),
}

fn address_of(node: &VoterNode) -> (String, u16) {
    (node.host.clone(), node.port)
}

fn is_at(node: &VoterNode, address: &(String, u16)) -> bool {
    node.host == address.0 && node.port == address.1
}

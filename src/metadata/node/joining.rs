//! How a node comes into the quorum: it asks the leader, until it is what it should be: a voter where the configuration
//! says so, else a learner, at its address.

use std::sync::Arc;
use std::time::Duration;

use klamm_model::NodeId;
use openraft::async_runtime::watch::WatchReceiver;

use super::forming::introduce;
use super::membership::Members;
use super::settings::Voter;
use crate::quorum::VoterNode;
use crate::quorum::introduction::{JoinAnswer, JoinRequest, conflict, disagreement};
use crate::quorum::message::{NoAnswer, Question};
use crate::quorum::network::AskError;

/// How long a node waits before it asks again to be taken in.
const PAUSE: Duration = Duration::from_millis(300);

/// How long the leader may take for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

impl Members {
    /// Whether this node is to vote because `controller.quorum.voters` names it.
    fn is_configured(&self) -> bool {
        !self.is_dynamic() && self.voters.iter().any(|voter| voter.id == self.own.key.id)
    }

    /// Asks to be taken in, again and again, whenever this node is not what it should be. Ends with the quorum.
    pub(super) async fn keep_own(self: Arc<Self>) {
        if let Some(why) = self.conflict().await {
            self.failed.send_replace(Some(why));
            return;
        }
        let mut metrics = self.raft.metrics();
        let mut hint = None;
        let mut was_member = self.is_as_it_should_be();
        loop {
            let is_well = self.is_as_it_should_be();
            was_member |= is_well;
            if is_well && !self.is_left_alone() {
                let silence = tokio::time::sleep(self.silence);
                let others = self.has_others();
                tokio::select! {
                    biased;
                    changed = metrics.changed() => if changed.is_err() {
                        return;
                    },
                    () = silence, if others => {}
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
                    Asked::Refused(why) | Asked::Taken(why) => {
                        self.failed.send_replace(Some(why));
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

    /// What others that are configured say that this node cannot go on with.
    async fn conflict(&self) -> Option<String> {
        for voter in self.voters.iter().filter(|_| self.has_others()) {
            // Who cannot be reached now says nothing against this node.
            let Ok(found) = introduce(&self.network, &self.own, voter.id, voter.address()).await else {
                continue;
            };
            if let Some(why) = conflict(&self.own, voter, &found) {
                return Some(why);
            }
            if let Some(why) = disagreement(&self.own, &found) {
                tracing::warn!("{why}");
            }
        }
        None
    }

    /// Whether there are, or are to be, other members.
    fn has_others(&self) -> bool {
        let configured = self.voters.iter().any(|voter| voter.id != self.own.key.id);
        configured || !self.bootstrap_servers.is_empty() || self.membership().nodes().count() > 1
    }

    /// A leader sent something, perhaps whether it has lost its majority.
    pub(super) fn heard_of_leader(&self, is_cut_off: Option<bool>) {
        let mut heard = self.leader_heard.lock();
        heard.at = self.clock.monotonic();
        heard.is_cut_off = is_cut_off.unwrap_or(heard.is_cut_off);
    }

    /// Whether no leader was heard of for some time. Nobody tells a member that it is one no more: then it asks.
    fn is_left_alone(&self) -> bool {
        let is_silent = self.clock.monotonic().saturating_sub(self.leader_heard.lock().at) > self.silence;
        is_silent && self.has_others() && !self.leads()
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
        let leader = self.leader().and_then(|leader| membership.get_node(&leader).map(VoterNode::address));
        let configured = self.voters.iter().map(Voter::address);
        let mut all: Vec<(String, u16)> = hint.into_iter().chain(leader).collect();
        all.extend(configured.chain(self.bootstrap_servers.iter().cloned()));
        // The leader may have to take in itself, when it has moved.
        all.retain(|address| *address != self.address || self.leads());
        all
    }

    async fn ask_to_join(&self, address: (String, u16)) -> Asked {
        let request = JoinRequest {
            key: self.own.key,
            run: self.own.run,
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
            Ok(Ok(JoinAnswer::Taken(why))) => {
                Asked::Taken(format!("the node at {}:{} does not take it in: {why}", address.0, address.1))
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
}

/// What came of asking a member.
enum Asked {
    /// It answered; perhaps it said whom to ask next.
    Heard(Option<(String, u16)>),
    /// It did not answer, or knows no leader.
    Silent,
    /// It refuses, for this reason.
    Refused(String),
    /// Another process is there in its place: also one that was a member is none any more.
    Taken(String),
}

fn is_at(node: &VoterNode, address: &(String, u16)) -> bool {
    node.host == address.0 && node.port == address.1
}

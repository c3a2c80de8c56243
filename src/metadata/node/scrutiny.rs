//! Who speaks here about the log: only members, each from one process, and nothing that cannot be.

use std::time::Duration;

use futures_util::future::join_all;
use klamm_model::NodeId;
use openraft::async_runtime::watch::WatchReceiver;

use super::forming::introduce;
use super::membership::{Members, address_of};
use crate::quorum::message::{Envelope, Question, Versions};
use crate::quorum::plausibility::{Known, implausible};
use crate::quorum::replica_key::ReplicaKey;
use crate::quorum::{LogId, Raft};

/// How long others may take to say whether somebody is a member, and who runs at an address.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Examines a message about the log before openraft takes it.
///
/// # Errors
/// Why it is not taken, for a person.
pub(super) async fn examine(
    raft: &Raft,
    members: &Members,
    envelope: &Envelope,
    question: &Question,
) -> Result<(), String> {
    let from = envelope.from;
    if envelope.to.is_none() {
        return Err("a message about the log must say whom it is meant for".to_owned());
    }
    let snapshot_version = Versions::snapshot(members.network.versions.highest);
    let last_index = raft.metrics().borrow_watched().last_log_index.unwrap_or(0);
    let known = raft.with_raft_state(move |state| {
        let membership = state.membership_state.effective().membership();
        let vote = state.vote_ref();
        let has_members = membership.nodes().next().is_some();
        let is_member = membership.get_node(&from).is_some();
        // One that is removed leads until the others know of it. An empty log has yet to learn who belongs to it.
        let is_known = !has_members || is_member || vote.committed && vote.leader_id.voted_for == from;
        (Known { term: vote.leader_id.term, last_index, snapshot_version }, is_known)
    });
    let (known, is_known) = known.await.map_err(|error| error.to_string())?;
    if let Some(why) = implausible(from, question, known) {
        tracing::warn!("a message of node {from} is refused: {why}");
        return Err(why);
    }
    if members.genuine.lock().get(&from) == Some(&envelope.run) {
        return Ok(());
    }
    if !is_known && !members.is_vouched_for(from).await {
        return Err(format!("node {} knows no member {from}, and nobody who votes does", members.own.key.id));
    }
    members.examine_process(from, envelope.run).await
}

impl Members {
    /// Whether another voter knows a member that this node, whose log may be old, does not know.
    async fn is_vouched_for(&self, key: ReplicaKey) -> bool {
        let membership = self.membership();
        let others = membership.voter_ids().filter(|voter| *voter != self.own.key && *voter != key);
        let asked = others.filter_map(|voter| Some((voter, membership.get_node(&voter)?.clone())));
        let answers = join_all(asked.map(|(voter, node)| async move {
            let question = Question::IsMember(key);
            let answer = self.network.ask::<bool>(voter.id, Some(voter), address_of(&node), &question);
            matches!(tokio::time::timeout(ANSWER_TIMEOUT, answer).await, Ok(Ok(true)))
        }));
        answers.await.contains(&true)
    }

    /// Whether the process that has drawn the number `run` is the member in whose name it speaks. Where a directory was
    /// copied, it is the one that listens at the member's address; two that vote as one could elect two leaders.
    async fn examine_process(&self, from: ReplicaKey, run: u64) -> Result<(), String> {
        if from == self.own.key {
            return Err(format!("this process has the directory of node {from}, and the sender has a copy"));
        }
        let known = self.membership().get_node(&from).map(address_of);
        if let Some((host, port)) = known.filter(|(host, _)| !host.is_empty()) {
            let found = introduce(&self.network, &self.own, NodeId(-1), (host.clone(), port));
            if let Ok(Ok(found)) = tokio::time::timeout(ANSWER_TIMEOUT, found).await
                && found.key == from
                && found.run != run
            {
                return Err(format!(
                    "another process with the directory of node {from} runs at {host}:{port}"
                ));
            }
        }
        let mut genuine = self.genuine.lock();
        // Members that are no more are forgotten.
        if genuine.len() >= GENUINE_MAX {
            genuine.clear();
        }
        genuine.insert(from, run);
        Ok(())
    }

    /// The leader says that this node has lost what it had acknowledged. It must not vote any more: what it lost may
    /// be missing in the log of whom it would elect.
    pub(super) fn has_lost(&self, leader: ReplicaKey, acknowledged: LogId) {
        let last = self.raft.metrics().borrow_watched().last_log_index;
        if last >= Some(acknowledged.index) {
            return;
        }
        let last = last.map_or_else(|| "none".to_owned(), |last| last.to_string());
        self.failed.send_replace(Some(format!(
            "the metadata log has lost entry {}, which this node had acknowledged to node {}; the last one here is \
             {last}. An older copy of the directory with klamm-metadata was put back: start this node with an empty \
             directory, and it joins as a new member and copies what it had",
            acknowledged.index, leader.id
        )));
    }
}

/// How many processes are remembered.
const GENUINE_MAX: usize = 100;

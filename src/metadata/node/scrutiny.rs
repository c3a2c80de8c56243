//! Who speaks here about the log: only members, each from one process, and nothing that cannot be.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use klamm_model::NodeId;
use openraft::async_runtime::watch::WatchReceiver;

use super::forming::introduce;
use super::membership::Members;
use super::settings::Voter;
use crate::quorum::message::{Envelope, Question, Versions};
use crate::quorum::plausibility::{Known, implausible};
use crate::quorum::replica_key::ReplicaKey;
use crate::quorum::{LogId, Raft, Vote, VoterNode};

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
    if members.processes.lock().may_go_on(from, envelope.run, members.clock.monotonic()) {
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
            let answer = self.network.ask::<bool>(voter.id, Some(voter), node.address(), &question);
            matches!(tokio::time::timeout(ANSWER_TIMEOUT, answer).await, Ok(Ok(true)))
        }));
        answers.await.contains(&true)
    }

    /// Where a member is said to listen. A node whose log is empty, as an old copy's may be, knows only what it is configured
    /// with.
    fn where_to_find(&self, key: ReplicaKey) -> Vec<(String, u16)> {
        let known = self.membership().get_node(&key).map(VoterNode::address);
        if let Some(known) = known.filter(|(host, _)| !host.is_empty()) {
            return vec![known];
        }
        let named = self.voters.iter().filter(|voter| voter.id == key.id);
        named.map(Voter::address).chain(self.bootstrap_servers.iter().cloned()).collect()
    }

    /// Whether the process that has drawn the number `run` is the member in whose name it speaks. Where a directory was
    /// copied, it is the one that listens at the member's address; two that vote as one could elect two leaders.
    async fn examine_process(&self, from: ReplicaKey, run: u64) -> Result<(), String> {
        if from == self.own.key {
            return Err(format!("this process has the directory of node {from}, and the sender has a copy"));
        }
        for (host, port) in self.where_to_find(from) {
            let own = self.own.asking_for(run);
            let found = introduce(&self.network, &own, NodeId(-1), (host.clone(), port));
            if let Ok(Ok(found)) = tokio::time::timeout(ANSWER_TIMEOUT, found).await
                && found.key == from
            {
                if found.run != run {
                    return Err(format!(
                        "another process with the directory of node {from} runs at {host}:{port}"
                    ));
                }
                self.processes.lock().note_genuine(from, run);
                return Ok(());
            }
        }
        // It may have moved, or the ways there are cut.
        self.processes.lock().note_unchecked(from, run, self.clock.monotonic());
        Ok(())
    }

    /// The leader says that this node has lost what it had acknowledged. It must not vote any more: what it lost may
    /// be missing in the log of whom it would elect. As this ends the process, it is believed only of the leader that
    /// this node follows in the present term, and of a process that was found at that one's address.
    ///
    /// # Errors
    /// Why it is not believed, for a person.
    pub(super) async fn has_lost(
        &self,
        envelope: &Envelope,
        vote: Vote,
        acknowledged: LogId,
    ) -> Result<(), String> {
        let leader = envelope.from;
        let followed = self.raft.with_raft_state(|state| *state.vote_ref()).await;
        if followed.map_err(|error| error.to_string())? != vote {
            return Err(format!("node {} does not follow node {leader} in this term", self.own.key.id));
        }
        if !self.processes.lock().is_genuine(leader, envelope.run) {
            return Err(format!("it is not known whether this process is node {leader}"));
        }
        let last = self.raft.metrics().borrow_watched().last_log_index;
        if last >= Some(acknowledged.index) {
            return Ok(());
        }
        let last = last.map_or_else(|| "none".to_owned(), |last| last.to_string());
        self.failed.send_replace(Some(format!(
            "the metadata log has lost entry {}, which this node had acknowledged to node {}; the last one here is \
             {last}. An older copy of the directory with klamm-metadata was put back: start this node with an empty \
             directory, and it joins as a new member and copies what it had",
            acknowledged.index, leader.id
        )));
        Ok(())
    }
}

/// The processes that speak in the names of members.
#[derive(Default)]
pub(super) struct Processes {
    /// Those that were found at the addresses of the members.
    genuine: BTreeMap<ReplicaKey, u64>,
    /// Those that could not be checked because nobody was found there, with when that was tried.
    unchecked: BTreeMap<ReplicaKey, (u64, Duration)>,
}

/// How many members are remembered with their processes.
const PROCESSES_MAX: usize = 100;

/// How long a process that could not be checked may go on before it is tried again.
const CHECK_AGAIN: Duration = Duration::from_secs(2);

impl Processes {
    fn is_genuine(&self, key: ReplicaKey, run: u64) -> bool {
        self.genuine.get(&key) == Some(&run)
    }

    /// Whether a process need not be checked now.
    fn may_go_on(&self, key: ReplicaKey, run: u64, now: Duration) -> bool {
        let is_recent =
            |(known, at): &(u64, Duration)| *known == run && now.saturating_sub(*at) < CHECK_AGAIN;
        self.is_genuine(key, run) || self.unchecked.get(&key).is_some_and(is_recent)
    }

    fn note_genuine(&mut self, key: ReplicaKey, run: u64) {
        self.unchecked.remove(&key);
        note(&mut self.genuine, key, run);
    }

    fn note_unchecked(&mut self, key: ReplicaKey, run: u64, now: Duration) {
        note(&mut self.unchecked, key, (run, now));
    }
}

/// Members that are no more are forgotten.
fn note<T>(known: &mut BTreeMap<ReplicaKey, T>, key: ReplicaKey, process: T) {
    if known.len() >= PROCESSES_MAX {
        known.clear();
    }
    known.insert(key, process);
}

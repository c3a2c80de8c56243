//! How nodes find out whether they are to form a new cluster, or to join one that is there.
//!
//! A cluster is formed only when all of `controller.quorum.voters` say that they belong to none, and only by the
//! one with the lowest number. A voter that finds others in a cluster joins it instead: if it lost its directory, it
//! comes as another member and must be voted in.

use std::collections::BTreeMap;

use klamm_model::NodeId;
use serde::{Deserialize, Serialize};

use super::replica_key::ReplicaKey;
use crate::node::Voter;

/// What a node says of itself to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Introduction {
    /// The node and its directory.
    pub(crate) key: ReplicaKey,
    /// The number that its process has drawn, or in a question the one that is asked about. It proves that messages come
    /// from this process, so it is told only to those who know it.
    pub(crate) run: u64,
    /// Its cluster; `None` for a node that belongs to none yet.
    pub(crate) cluster_id: Option<String>,
    /// The nodes in its `controller.quorum.voters`, in order; empty where that is not set.
    pub(crate) configured: Vec<i32>,
}

impl Introduction {
    /// The same, as a question for the process that has drawn the number `run`; 0 where any may answer.
    pub(crate) fn asking_for(&self, run: u64) -> Introduction {
        Introduction { run, ..self.clone() }
    }

    /// What one who asks is told: the number of this process only if it is the one that is asked about, else 0.
    pub(crate) fn told_to(&self, other: &Introduction) -> Introduction {
        self.asking_for(if other.run == self.run { self.run } else { 0 })
    }
}

/// A node that wants to be a member of the quorum, or that has moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JoinRequest {
    /// The node and its directory.
    pub(crate) key: ReplicaKey,
    /// The number that its process has drawn.
    pub(crate) run: u64,
    /// Where it listens for the other members.
    pub(crate) host: String,
    /// Where it listens for the other members.
    pub(crate) port: u16,
    /// Whether it wants to vote.
    pub(crate) wants_vote: bool,
    /// As in [`Introduction`].
    pub(crate) configured: Vec<i32>,
}

/// What a member that was asked to take a node in says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum JoinAnswer {
    /// The node is what it wanted to be.
    Done,
    /// It is under way and waits for this; ask again.
    Pending(String),
    /// Another process has its number, or its address, and belongs to the quorum in its place.
    Taken(String),
    /// Another member leads, here if it is known.
    NotLeader(Option<(String, u16)>),
}

/// What a node that belongs to no cluster does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Ask again. The text says what it waits for.
    Wait(String),
    /// It forms a cluster of these voters.
    Form(Vec<(ReplicaKey, Voter)>),
    /// It belongs to this cluster from now on.
    Join(String),
    /// It must not start. The text says why, and what to do.
    Refuse(String),
}

/// Decides from what the configured voters answered, by their number in the configuration. Who gave no answer is
/// there with the reason.
pub(crate) fn judge(
    own: &Introduction,
    voters: &[Voter],
    answers: &BTreeMap<NodeId, Result<Introduction, String>>,
    wanted_cluster: Option<&str>,
) -> Verdict {
    let answered = || voters.iter().filter_map(|voter| Some((voter, answers.get(&voter.id)?.as_ref().ok()?)));
    if let Some(why) = answered().find_map(|(voter, answer)| objection(own, voter, answer)) {
        return Verdict::Refuse(why);
    }
    match cluster_of(answered().map(|(voter, answer)| (voter.to_string(), answer)), wanted_cluster) {
        Err(why) => return Verdict::Refuse(why),
        Ok(Some(cluster_id)) => return Verdict::Join(cluster_id),
        Ok(None) => {}
    }
    let missing: Vec<String> = voters
        .iter()
        .filter_map(|voter| match answers.get(&voter.id) {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(format!("{voter} ({why})")),
            None => Some(voter.to_string()),
        })
        .collect();
    if !missing.is_empty() {
        return Verdict::Wait(format!(
            "a new cluster is formed when all of controller.quorum.voters answer; missing: {}",
            missing.join(", ")
        ));
    }
    match voters.iter().map(|voter| voter.id).min() {
        Some(lowest) if lowest == own.key.id => {
            Verdict::Form(answered().map(|(voter, answer)| (answer.key, voter.clone())).collect())
        }
        Some(lowest) => Verdict::Wait(format!("node {lowest} forms the cluster")),
        None => Verdict::Wait("no controller is configured".to_owned()),
    }
}

/// Decides from what those in `controller.quorum.bootstrap.servers` answered, by their addresses. A cluster is never
/// formed from that list, as in Kafka: it may name any of the controllers, and leave others out.
pub(crate) fn judge_servers(
    own: &Introduction,
    answers: &BTreeMap<String, Result<Introduction, String>>,
    wanted_cluster: Option<&str>,
) -> Verdict {
    let answered = || answers.iter().filter_map(|(name, answer)| Some((name, answer.as_ref().ok()?)));
    let is_twin = |answer: &Introduction| is_twin(own, answer);
    if let Some((name, twin)) = answered().find(|(_, answer)| is_twin(answer)) {
        return Verdict::Refuse(format!(
            "another process with node.id={} answers at {name}, with directory {}: give each node an id of its own",
            twin.key.id, twin.key.directory_id
        ));
    }
    match cluster_of(answered().map(|(name, answer)| (name.clone(), answer)), wanted_cluster) {
        Err(why) => Verdict::Refuse(why),
        Ok(Some(cluster_id)) => Verdict::Join(cluster_id),
        Ok(None) => Verdict::Wait(format!(
            "none of controller.quorum.bootstrap.servers ({}) belongs to a cluster yet; the first controller is made \
             with 'klamm format --standalone'",
            answers.keys().cloned().collect::<Vec<_>>().join(", ")
        )),
    }
}

/// Why a node that belongs to a cluster cannot go on beside who answered at the address of a voter.
pub(crate) fn conflict(own: &Introduction, voter: &Voter, answer: &Introduction) -> Option<String> {
    if is_twin(own, answer) {
        return objection(own, voter, answer);
    }
    let (ours, theirs) = (own.cluster_id.as_ref()?, answer.cluster_id.as_ref()?);
    (ours != theirs).then(|| {
        format!(
            "{voter} belongs to cluster {theirs}, and the directory of this node to cluster {ours}: correct \
             controller.quorum.voters, or start this node with an empty directory, and it joins that cluster"
        )
    })
}

/// Whether another process has this node's number, with another directory or a copy of its own.
fn is_twin(own: &Introduction, answer: &Introduction) -> bool {
    answer.key.id == own.key.id && (answer.key != own.key || answer.run != own.run)
}

/// What is wrong with who answered at the address of a voter.
fn objection(own: &Introduction, voter: &Voter, answer: &Introduction) -> Option<String> {
    let found = answer.key;
    if found.id != voter.id {
        return Some(format!(
            "controller.quorum.voters names {voter}, and node {} answers there: correct the list, or the node.id of \
             the process there",
            found.id
        ));
    }
    if is_twin(own, answer) {
        return Some(format!(
            "another process with node.id={} answers at {}:{}, with directory {}; this process has directory {}: \
             give each node an id of its own, or end the other process, or correct this node's address in \
             controller.quorum.voters",
            found.id, voter.host, voter.port, found.directory_id, own.key.directory_id
        ));
    }
    disagreement(own, answer)
}

/// What two nodes whose lists of voters differ are told.
pub(crate) fn disagreement(own: &Introduction, other: &Introduction) -> Option<String> {
    let both_listed = !own.configured.is_empty() && !other.configured.is_empty();
    (both_listed && own.configured != other.configured).then(|| {
        format!(
            "controller.quorum.voters names nodes {:?} at node {}, and nodes {:?} at node {}: give all nodes the same \
             list",
            own.configured, own.key.id, other.configured, other.key.id
        )
    })
}

/// The cluster that those who answered belong to, if any does.
fn cluster_of<'a>(
    answered: impl Iterator<Item = (String, &'a Introduction)>,
    wanted: Option<&str>,
) -> Result<Option<String>, String> {
    let mut found: Option<(String, &String)> = None;
    for (name, answer) in answered {
        let Some(cluster_id) = &answer.cluster_id else { continue };
        match found {
            Some((other, known)) if known != cluster_id => {
                return Err(format!(
                    "{other} belongs to cluster {known}, and {name} to cluster {cluster_id}: name the controllers of \
                     one cluster only in this node's settings"
                ));
            }
            _ => found = Some((name, cluster_id)),
        }
    }
    match (found, wanted) {
        (Some((name, known)), Some(wanted)) if known != wanted => Err(format!(
            "CLUSTER_ID is {wanted} here, and {name} belongs to cluster {known}: take CLUSTER_ID away, or name the \
             controllers of the other cluster"
        )),
        (found, _) => Ok(found.map(|(_, cluster_id)| cluster_id.clone())),
    }
}

#[cfg(test)]
mod tests {
    use klamm_model::Uuid;

    use super::*;

    fn key(id: i32) -> ReplicaKey {
        ReplicaKey::new(NodeId(id), Uuid([id as u8; 16]))
    }

    fn introduction(id: i32, cluster_id: Option<&str>) -> Introduction {
        let cluster_id = cluster_id.map(str::to_owned);
        Introduction { key: key(id), run: id as u64, cluster_id, configured: vec![1, 2, 3] }
    }

    fn voters() -> Vec<Voter> {
        let voter = |id| Voter { id: NodeId(id), host: format!("host{id}"), port: 9093 };
        vec![voter(1), voter(2), voter(3)]
    }

    /// Node `own` decides from these answers; those of nodes that are not there are missing.
    fn verdict(own: i32, answers: Vec<(i32, Introduction)>) -> Verdict {
        let down = (1..=3).map(|id| (NodeId(id), Err("down".to_owned())));
        let mut all: BTreeMap<_, _> = down.collect();
        all.extend(answers.into_iter().map(|(id, answer)| (NodeId(id), Ok(answer))));
        judge(&introduction(own, None), &voters(), &all, Some("wanted").filter(|_| own == 3))
    }

    fn refusal(own: i32, answers: Vec<(i32, Introduction)>) -> String {
        match verdict(own, answers) {
            Verdict::Refuse(why) => why,
            other => panic!("{other:?}"),
        }
    }

    fn all_new() -> Vec<(i32, Introduction)> {
        (1..=3).map(|id| (id, introduction(id, None))).collect()
    }

    /// Two clusters out of one configuration would split what was meant to be one.
    #[test]
    fn only_the_lowest_forms_and_only_when_all_are_new() {
        let formed = (1..=3).map(key).zip(voters()).collect();
        assert_eq!(verdict(1, all_new()), Verdict::Form(formed));
        assert_eq!(verdict(2, all_new()), Verdict::Wait("node 1 forms the cluster".to_owned()));
        for missing in 1..=3 {
            let mut answers = all_new();
            answers.retain(|(id, _)| *id != missing);
            let Verdict::Wait(why) = verdict(1, answers) else { panic!("formed without {missing}") };
            assert!(why.contains(&format!("missing: node {missing} at host{missing}:9093 (down)")), "{why}");
        }
    }

    /// A voter that lost its directory must find its cluster again, whoever is there.
    #[test]
    fn one_that_is_in_a_cluster_is_enough_to_join() {
        let answers = vec![(1, introduction(1, None)), (3, introduction(3, Some("C")))];
        assert_eq!(verdict(1, answers), Verdict::Join("C".to_owned()));
    }

    #[test]
    fn what_was_set_up_wrong_is_named_with_where_it_was_found() {
        let other_directory = ReplicaKey::new(NodeId(1), Uuid([9; 16]));
        let twin = Introduction { key: other_directory, ..introduction(1, None) };
        let why = refusal(1, vec![(1, twin)]);
        assert!(why.contains("another process with node.id=1 answers at host1:9093"), "{why}");

        let copy = Introduction { run: 9, ..introduction(1, None) };
        let why = refusal(1, vec![(1, copy)]);
        assert!(why.contains("another process with node.id=1 answers at host1:9093"), "{why}");

        let why = refusal(1, vec![(2, introduction(3, None))]);
        assert!(why.contains("names node 2 at host2:9093, and node 3 answers there"), "{why}");

        let other_list = Introduction { configured: vec![1, 2, 4], ..introduction(2, None) };
        let why = refusal(1, vec![(2, other_list)]);
        assert!(why.contains("names nodes [1, 2, 3] at node 1, and nodes [1, 2, 4] at node 2"), "{why}");

        let why = refusal(1, vec![(2, introduction(2, Some("A"))), (3, introduction(3, Some("B")))]);
        assert!(why.contains("node 2 at host2:9093 belongs to cluster A, and node 3 at"), "{why}");

        let why = refusal(3, vec![(2, introduction(2, Some("A")))]);
        assert!(why.contains("CLUSTER_ID is wanted here, and node 2 at host2:9093 belongs"), "{why}");
    }
}

//! Whether what another node sent about the log can be. openraft takes the word of its peers: a term at the end of all
//! numbers is kept for good and spreads, and entries that do not follow each other leave a log that cannot be opened.

use openraft::EntryPayload;
use openraft::raft::AppendEntriesRequest;

use super::message::Question;
use super::replica_key::ReplicaKey;
use super::{Entry, LogId, Membership, TypeConfig, Vote, entry, snapshot};

/// How far terms and indexes may be ahead of this node's own. A quorum does not get so far ahead while a node is away,
/// and numbers are left for the quorum to go on.
const AHEAD_MAX: u64 = 1 << 32;

/// What this node has.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    /// Its term.
    pub(crate) term: u64,
    /// The index of its last entry; 0 where there is none.
    pub(crate) last_index: u64,
    /// The highest version of a snapshot that it can read.
    pub(crate) snapshot_version: u32,
}

/// Why a message about the log that `from` sent cannot be true, if it cannot.
pub(crate) fn implausible(from: ReplicaKey, question: &Question, known: Known) -> Option<String> {
    let (vote, is_leader) = vote_of(question)?;
    if vote.leader_id.voted_for != from {
        return Some(format!("node {from} speaks for node {}", vote.leader_id.voted_for));
    }
    if vote.committed != is_leader {
        return Some("a leader must have been elected, and a candidate not yet".to_owned());
    }
    if vote.leader_id.term > known.term.saturating_add(AHEAD_MAX) {
        return Some(format!("term {} is far beyond this node's, {}", vote.leader_id.term, known.term));
    }
    let ids = match question {
        Question::Append { request, .. } => vec![request.prev_log_id, request.leader_commit],
        Question::Vote(request) | Question::PreVote(request) => vec![request.last_log_id],
        Question::Snapshot { meta, .. } => vec![meta.last_log_id, *meta.last_membership.log_id()],
        Question::TransferLeader(request) => vec![request.last_log_id().copied()],
        Question::Lost { acknowledged, .. } => vec![Some(*acknowledged)],
        Question::Introduce(_) | Question::Join(_) | Question::IsMember(_) => Vec::new(),
    };
    if let Some(why) = ids.into_iter().flatten().find_map(|id| impossible(id, vote, known)) {
        return Some(why);
    }
    match question {
        Question::Append { request, .. } => misordered(request),
        Question::Snapshot { meta, content, .. } => {
            match snapshot::decode(known.snapshot_version, content, "") {
                Ok((found, _)) if found == *meta => None,
                Ok(_) => Some("the snapshot is another one than was announced".to_owned()),
                Err(error) => Some(error.to_string()),
            }
        }
        _ => None,
    }
}

/// In whose name a message about the log is sent, and whether that one claims to lead.
fn vote_of(question: &Question) -> Option<(&Vote, bool)> {
    match question {
        Question::Append { request, .. } => Some((&request.vote, true)),
        Question::Vote(request) | Question::PreVote(request) => Some((&request.vote, false)),
        Question::Snapshot { vote, .. } | Question::Lost { vote, .. } => Some((vote, true)),
        Question::TransferLeader(request) => Some((request.from_leader(), true)),
        Question::Introduce(_) | Question::Join(_) | Question::IsMember(_) => None,
    }
}

fn impossible(id: LogId, vote: &Vote, known: Known) -> Option<String> {
    let (term, index) = (entry::term_of(&id), id.index);
    if term > vote.leader_id.term {
        return Some(format!("entry {index} is of term {term}, after term {}", vote.leader_id.term));
    }
    (index > known.last_index.saturating_add(AHEAD_MAX))
        .then(|| format!("entry {index} is far beyond this node's last one, {}", known.last_index))
}

/// What is wrong with entries that do not follow each other.
fn misordered(request: &AppendEntriesRequest<TypeConfig>) -> Option<String> {
    let mut next = request.prev_log_id.map_or(0, |id| id.index + 1);
    let mut term = request.prev_log_id.map_or(0, |id| entry::term_of(&id));
    for Entry { log_id, payload, .. } in &request.entries {
        let (index, its_term) = (log_id.index, entry::term_of(log_id));
        if index != next || !(term..=request.vote.leader_id.term).contains(&its_term) {
            return Some(format!(
                "entry {index} of term {its_term} stands where entry {next} of term {term} is due"
            ));
        }
        if let EntryPayload::Membership(members) = payload
            && !is_valid(members)
        {
            return Some(format!("entry {index} names members that cannot be"));
        }
        (next, term) = (index + 1, its_term);
    }
    None
}

/// Whether there are voters in each configuration, and an address for each.
fn is_valid(members: &Membership) -> bool {
    let configs = members.get_joint_config();
    !configs.is_empty()
        && configs.iter().all(|voters| !voters.is_empty())
        && members.voter_ids().all(|voter| members.get_node(&voter).is_some())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use klamm_model::{NodeId, Uuid};
    use openraft::entry::RaftEntry;
    use openraft::raft::VoteRequest;

    use super::*;
    use crate::quorum::SnapshotMeta;

    const KNOWN: Known = Known { term: 3, last_index: 10, snapshot_version: snapshot::VERSION };

    fn key(id: i32) -> ReplicaKey {
        ReplicaKey::new(NodeId(id), Uuid([id as u8; 16]))
    }

    fn append(term: u64, prev: Option<(u64, u64)>, entries: &[(u64, u64)]) -> Question {
        let blank =
            |(term, index): &(u64, u64)| Entry::new(entry::log_id(*term, *index), EntryPayload::Blank);
        let request = AppendEntriesRequest {
            vote: Vote::new_committed(term, key(1)),
            prev_log_id: prev.map(|(term, index)| entry::log_id(term, index)),
            entries: entries.iter().map(blank).collect(),
            leader_commit: None,
        };
        Question::Append { request, is_cut_off: false }
    }

    #[test]
    fn what_a_leader_sends_is_taken() {
        for question in [
            append(3, None, &[]),
            append(3, None, &[(0, 0), (1, 1), (3, 2)]),
            append(900, Some((2, 5000)), &[(2, 5001), (4, 5002)]),
        ] {
            assert_eq!(implausible(key(1), &question, KNOWN), None);
        }
        let vote = Vote::new(4, key(1));
        let request = VoteRequest::new(vote, Some(entry::log_id(3, 12)));
        assert_eq!(implausible(key(1), &Question::Vote(request), KNOWN), None);
    }

    #[test]
    fn what_would_be_kept_for_good_and_cannot_be_is_refused() {
        for (question, why) in [
            (append(u64::MAX, None, &[]), "far beyond this node's"),
            (append(3, Some((3, u64::MAX)), &[]), "far beyond this node's last one"),
            (append(3, Some((4, 9)), &[]), "is of term 4, after term 3"),
            (append(3, None, &[(0, 1)]), "entry 1 of term 0 stands where entry 0"),
            (append(3, Some((2, 5)), &[(2, 6), (2, 8)]), "where entry 7"),
            (append(3, Some((2, 5)), &[(1, 6)]), "of term 2 is due"),
            (append(3, Some((2, 5)), &[(4, 6)]), "entry 6 of term 4"),
        ] {
            let found = implausible(key(1), &question, KNOWN);
            assert!(found.as_ref().is_some_and(|found| found.contains(why)), "{found:?}");
        }
        let found = implausible(key(2), &append(3, None, &[]), KNOWN);
        assert!(found.is_some_and(|found| found.contains("speaks for node 1")));
        let elected = VoteRequest::new(Vote::new_committed(4, key(1)), None);
        assert!(implausible(key(1), &Question::Vote(elected), KNOWN).is_some());
        let vote = Vote::new_committed(3, key(1));
        let content = Bytes::from_static(b"no snapshot");
        let broken = Question::Snapshot { vote, meta: SnapshotMeta::default(), content };
        assert!(implausible(key(1), &broken, KNOWN).is_some_and(|why| why.contains("no snapshot of Klamm")));
    }
}

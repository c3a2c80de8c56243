//! Who has how much of the metadata log, as the leader knows it: what DescribeQuorum tells.

use std::collections::BTreeMap;

use klamm_model::{NodeId, Offset, TimestampMs};
use openraft::Instant;
use openraft::async_runtime::watch::WatchReceiver;

use crate::quorum::Raft;
use crate::quorum::replica_key::ReplicaKey;

/// The quorum, as its leader knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuorumState {
    /// The leader.
    pub leader: ReplicaKey,
    /// Its term.
    pub leader_epoch: i32,
    /// Up to where the log is committed.
    pub high_watermark: Offset,
    /// Who votes.
    pub voters: Vec<ReplicaProgress>,
    /// Who only reads.
    pub observers: Vec<ReplicaProgress>,
    /// Where the voters listen.
    pub addresses: BTreeMap<NodeId, (String, u16)>,
}

/// How much of the log a member has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaProgress {
    /// The member.
    pub key: ReplicaKey,
    /// The offset behind its last entry; -1 if that is not known.
    pub log_end_offset: Offset,
    /// When it was last heard of; -1 if never.
    pub last_fetch_timestamp_ms: TimestampMs,
    /// When it was last known to have all that the leader has; -1 if never.
    pub last_caught_up_timestamp_ms: TimestampMs,
}

/// When each member had all of the log, as the leader has seen it.
pub(super) type CaughtUp = BTreeMap<ReplicaKey, TimestampMs>;

/// Notes who has all of the log now, in milliseconds since 1970. Empty unless this node leads.
pub(super) fn note_caught_up(raft: &Raft, caught_up: &mut CaughtUp, now_ms: TimestampMs) {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let Some(replication) = &metrics.replication else { return caught_up.clear() };
    caught_up.retain(|key, _| replication.contains_key(key));
    for (key, matched) in replication {
        if matched.map(|matched| matched.index) >= metrics.last_log_index {
            caught_up.insert(*key, now_ms);
        }
    }
}

/// What the leader knows; `None` where this node does not lead.
pub(super) fn quorum_state(raft: &Raft, caught_up: &CaughtUp, now_ms: TimestampMs) -> Option<QuorumState> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let leader = metrics.current_leader.filter(|leader| *leader == metrics.id)?;
    let membership = metrics.committed_membership_config.membership();
    // One that was removed describes nothing: others lead, or are about to.
    membership.voter_ids().find(|voter| *voter == leader)?;
    // While the voters are being changed, which takes two steps, those before the change are told.
    let voters = membership.get_joint_config().first().cloned().unwrap_or_default();
    let end = |index: Option<u64>| index.map_or(0, |index| index as Offset + 1);
    let progress = |key: ReplicaKey| {
        if key == leader {
            let log_end_offset = end(metrics.last_log_index);
            let (last_fetch_timestamp_ms, last_caught_up_timestamp_ms) = (now_ms, now_ms);
            return ReplicaProgress {
                key,
                log_end_offset,
                last_fetch_timestamp_ms,
                last_caught_up_timestamp_ms,
            };
        }
        let matched = metrics.replication.as_ref().and_then(|all| all.get(&key).copied().flatten());
        let heard = metrics.heartbeat.as_ref().and_then(|all| all.get(&key).copied().flatten());
        let last_fetch_timestamp_ms = heard.map_or(-1, |at| now_ms - at.elapsed().as_millis() as TimestampMs);
        let has_all = matched.map(|matched| matched.index) >= metrics.last_log_index;
        ReplicaProgress {
            key,
            log_end_offset: matched.map_or(-1, |matched| matched.index as Offset + 1),
            last_fetch_timestamp_ms,
            last_caught_up_timestamp_ms: match has_all {
                true => last_fetch_timestamp_ms,
                false => caught_up.get(&key).copied().unwrap_or(-1),
            },
        }
    };
    let address = |key: ReplicaKey| {
        let node = membership.get_node(&key)?;
        Some((key.id, node.address()))
    };
    Some(QuorumState {
        leader,
        leader_epoch: i32::try_from(metrics.current_term).unwrap_or(i32::MAX),
        high_watermark: end(metrics.local_committed.map(|committed| committed.index)),
        observers: membership
            .nodes()
            .map(|(key, _)| *key)
            .filter(|key| !voters.contains(key))
            .map(progress)
            .collect(),
        addresses: voters.iter().copied().filter_map(address).collect(),
        voters: voters.into_iter().map(progress).collect(),
    })
}

//! What a leader knows of one follower, from its fetches.

use std::time::Duration;

use klamm_model::{LeaderEpoch, NodeId, Offset};

/// How far a follower is, as its Fetch says.
#[derive(Clone, Copy, Debug)]
pub struct FollowerProgress {
    /// The follower.
    pub node: NodeId,
    /// The epoch of its broker's registration (KIP-903); -1 from followers that do not tell.
    pub broker_epoch: i64,
    /// The leader's epoch that it believes in; nothing from followers that do not tell.
    pub leader_epoch: Option<LeaderEpoch>,
    /// The offset that it asks for next: it has everything below.
    pub log_end: Offset,
    /// Where its log begins; -1 from followers that do not tell.
    pub log_start: Offset,
}

impl FollowerProgress {
    /// Of a follower that tells no more than the offset that it asks for.
    pub fn at(node: NodeId, log_end: Offset) -> FollowerProgress {
        FollowerProgress { node, broker_epoch: -1, leader_epoch: None, log_end, log_start: -1 }
    }
}

/// A follower as its leader knows it.
pub(crate) struct Follower {
    pub(crate) node: NodeId,
    /// The registration that fetched last; nothing before its first fetch of this leader.
    pub(crate) broker_epoch: Option<i64>,
    /// -1 before its first fetch of this leader: what it has is not known.
    pub(crate) log_end: Offset,
    pub(crate) log_start: Offset,
    /// When it last had all that the leader had at the time of its fetch; nothing if it never had.
    caught_up_at: Option<Duration>,
    /// The leader's end at the fetch before: a follower that asks for what the leader had then was caught up at
    /// that time.
    leader_end_at_fetch: Offset,
    fetched_at: Option<Duration>,
    /// When the two fetches before that one came, the earlier one first.
    fetched_before: [Option<Duration>; 2],
}

impl Follower {
    /// One that has not fetched yet. What is in sync is taken to be caught up at first.
    pub(crate) fn new(node: NodeId, is_in_sync: bool, now: Duration) -> Follower {
        Follower {
            node,
            broker_epoch: None,
            log_end: -1,
            log_start: -1,
            caught_up_at: is_in_sync.then_some(now),
            leader_end_at_fetch: Offset::MAX,
            fetched_at: None,
            fetched_before: [None; 2],
        }
    }

    pub(crate) fn fetched(&mut self, progress: &FollowerProgress, leader_end: Offset, now: Duration) {
        if progress.log_end >= leader_end {
            self.caught_up_at = Some(now);
        } else if progress.log_end >= self.leader_end_at_fetch {
            self.caught_up_at = self.caught_up_at.max(self.fetched_at);
        }
        self.broker_epoch = Some(progress.broker_epoch);
        self.log_end = progress.log_end;
        self.log_start = progress.log_start;
        self.leader_end_at_fetch = leader_end;
        self.fetched_before = [self.fetched_before[1], self.fetched_at.replace(now)];
    }

    /// Whether it followed this leader at that time: it has fetched three times since then. One fetch may have been under
    /// way for long, and another that was sent when it gave the first up; it sends the third when it has an answer.
    pub(crate) fn followed_at(&self, time: Duration) -> bool {
        self.fetched_before[0].is_some_and(|at| at >= time)
    }

    /// Whether it has all, or had all not longer ago than `replica.lag.time.max.ms`.
    pub(crate) fn is_caught_up(&self, leader_end: Offset, lag_max: Duration, now: Duration) -> bool {
        self.log_end == leader_end || self.caught_up_at.is_some_and(|at| now.saturating_sub(at) <= lag_max)
    }
}

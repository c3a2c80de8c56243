//! Leading: what is known of the followers, the high watermark that follows from it, and the changes of the
//! in-sync replicas that the leader proposes (KIP-497).

use std::sync::Arc;
use std::time::Duration;

use klamm_model::{LeaderEpoch, NodeId, Offset};
use klamm_storage::{Log, StorageError};

use crate::{Partition, PartitionSettings, Role};

/// What the cluster metadata says about a partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leadership {
    /// The leader, if there is one.
    pub leader: Option<NodeId>,
    /// Its epoch.
    pub leader_epoch: LeaderEpoch,
    /// The version of the partition's state, for ISR changes.
    pub partition_epoch: i32,
    /// All replicas, the preferred leader first.
    pub replicas: Vec<NodeId>,
    /// Those in sync.
    pub isr: Vec<NodeId>,
}

/// How far a follower is, as its Fetch says.
#[derive(Clone, Copy, Debug)]
pub struct FollowerProgress {
    /// The follower.
    pub node: NodeId,
    /// The offset that it asks for next: it has everything below.
    pub log_end: Offset,
}

/// A change of the in-sync replicas that the leader wants the controller to make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IsrChange {
    /// Under which leader it was proposed.
    pub leader_epoch: LeaderEpoch,
    /// The version of the state that it changes.
    pub partition_epoch: i32,
    /// The new in-sync replicas.
    pub isr: Vec<NodeId>,
}

struct Follower {
    node: NodeId,
    log_end: Offset,
    /// When it last had all that the leader had at the time of its fetch.
    caught_up_at: Duration,
    /// Its log end, and the leader's, at the fetch before: a follower that asks for what the leader had then
    /// was caught up at that time.
    leader_end_at_fetch: Offset,
    fetched_at: Duration,
}

/// The leader's view.
pub(crate) struct LeaderState {
    local: NodeId,
    partition_epoch: i32,
    /// Where this leader's own epoch begins; a high watermark below it is not known to be the real one.
    epoch_start: Offset,
    replicas: Vec<NodeId>,
    isr: Vec<NodeId>,
    followers: Vec<Follower>,
}

impl LeaderState {
    pub(crate) fn isr(&self) -> &[NodeId] {
        &self.isr
    }

    pub(crate) fn epoch_start(&self) -> Offset {
        self.epoch_start
    }

    /// `min.insync.replicas`, but never more than there are replicas (KIP-966).
    pub(crate) fn min_in_sync(&self, settings: &PartitionSettings) -> usize {
        settings.in_sync_replicas_min.min(self.replicas.len())
    }

    /// The lowest end among the in-sync replicas, or nothing while they are fewer than the minimum.
    pub(crate) fn high_watermark(&self, log: &Log, settings: &PartitionSettings) -> Option<Offset> {
        if self.isr.len() < self.min_in_sync(settings) {
            return None;
        }
        let local_end = log.log_end_offset();
        let ends = self.followers.iter().filter(|follower| self.isr.contains(&follower.node));
        Some(ends.map(|follower| follower.log_end).fold(local_end, Offset::min))
    }

    fn follower_fetched(&mut self, progress: FollowerProgress, local_end: Offset, now: Duration) -> bool {
        let Some(follower) = self.followers.iter_mut().find(|known| known.node == progress.node) else {
            return false;
        };
        if progress.log_end >= local_end {
            follower.caught_up_at = now;
        } else if progress.log_end >= follower.leader_end_at_fetch {
            follower.caught_up_at = follower.caught_up_at.max(follower.fetched_at);
        }
        follower.log_end = progress.log_end;
        follower.leader_end_at_fetch = local_end;
        follower.fetched_at = now;
        true
    }

    fn isr_change(
        &self,
        leader_epoch: LeaderEpoch,
        high_watermark: Offset,
        local_end: Offset,
        lag_max: Duration,
        now: Duration,
    ) -> Option<IsrChange> {
        let in_sync = |node: &NodeId| match self.followers.iter().find(|known| known.node == *node) {
            None => *node == self.local,
            Some(follower) if self.isr.contains(node) => {
                follower.log_end >= local_end || now.saturating_sub(follower.caught_up_at) <= lag_max
            }
            Some(follower) => follower.log_end >= high_watermark && follower.log_end >= self.epoch_start,
        };
        let isr: Vec<NodeId> = self.replicas.iter().copied().filter(in_sync).collect();
        let same = isr.len() == self.isr.len() && isr.iter().all(|node| self.isr.contains(node));
        (!same).then_some(IsrChange { leader_epoch, partition_epoch: self.partition_epoch, isr })
    }
}

impl Partition {
    /// Leads from now on, or goes on leading with another ISR. Older news than what is known changes nothing.
    pub fn become_leader(&self, leadership: &Leadership) -> Result<(), StorageError> {
        let _writer = self.writer.lock();
        let now = self.clock.monotonic();
        let local_end = self.log().log_end_offset();
        let (epoch_start, known) = match self.leads_already(leadership) {
            Some(false) => return Ok(()),
            Some(true) => {
                let mut state = self.state.lock();
                let Role::Leader(leader) = &mut state.role else {
                    unreachable!("the role changes only under the writer's lock");
                };
                (leader.epoch_start, std::mem::take(&mut leader.followers))
            }
            None => {
                self.log().assign_epoch(leadership.leader_epoch, local_end)?;
                (local_end, Vec::new())
            }
        };
        let mut state = self.state.lock();
        let mut followers = known;
        followers.retain(|follower| leadership.replicas.contains(&follower.node));
        for node in leadership.replicas.iter().filter(|node| **node != self.local) {
            if !followers.iter().any(|follower| follower.node == *node) {
                followers.push(Follower {
                    node: *node,
                    log_end: -1,
                    caught_up_at: now,
                    leader_end_at_fetch: Offset::MAX,
                    fetched_at: now,
                });
            }
        }
        let leader = LeaderState {
            local: self.local,
            partition_epoch: leadership.partition_epoch,
            epoch_start,
            replicas: leadership.replicas.clone(),
            isr: leadership.isr.clone(),
            followers,
        };
        let high_watermark = leader.high_watermark(&self.log(), &self.settings.load());
        state.role = Role::Leader(leader);
        state.leader_epoch = leadership.leader_epoch;
        if let Some(high_watermark) = high_watermark {
            state.watermarks.raise(high_watermark, &self.log());
        }
        drop(state);
        self.waiters.wake_all();
        Ok(())
    }

    /// Whether this replica leads in that epoch already: `Some(true)` if the news is only of another ISR,
    /// `Some(false)` if it is old, `None` if a new epoch begins.
    fn leads_already(&self, leadership: &Leadership) -> Option<bool> {
        let state = self.state.lock();
        if leadership.leader_epoch < state.leader_epoch {
            return Some(false);
        }
        match &state.role {
            Role::Leader(leader) if leadership.leader_epoch == state.leader_epoch => {
                Some(leadership.partition_epoch >= leader.partition_epoch)
            }
            _ => None,
        }
    }

    /// A follower has fetched: what it asks for next says what it has. Returns false for a node that is no
    /// replica.
    pub fn follower_fetched(&self, progress: FollowerProgress) -> bool {
        let now = self.clock.monotonic();
        let moved = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let Role::Leader(leader) = &mut state.role else {
                return false;
            };
            if !leader.follower_fetched(progress, self.log().log_end_offset(), now) {
                return false;
            }
            let high_watermark = leader.high_watermark(&self.log(), &self.settings.load());
            high_watermark.is_some_and(|offset| state.watermarks.raise(offset, &self.log()))
        };
        if moved {
            self.waiters.wake_all();
        }
        true
    }

    /// The change of the in-sync replicas that is due, if any: a follower has lagged for longer than
    /// `replica.lag.time.max.ms`, or one that was out has caught up.
    pub fn isr_change(&self) -> Option<IsrChange> {
        let lag_max = Duration::from_millis(self.settings.load().replica_lag_max_ms);
        let state = self.state.lock();
        let Role::Leader(leader) = &state.role else {
            return None;
        };
        let (high_watermark, local_end) = (state.watermarks.high_watermark(), self.log().log_end_offset());
        leader.isr_change(state.leader_epoch, high_watermark, local_end, lag_max, self.clock.monotonic())
    }
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name: &Arc<str> = &self.topic_partition().topic;
        write!(f, "Partition({name}-{}, {:?})", self.topic_partition().partition, self.offsets())
    }
}

//! Leading: what is known of the followers, and the high watermark that follows from it.

use std::sync::Arc;
use std::time::Duration;

use klamm_model::{LeaderEpoch, NodeId, Offset};
use klamm_storage::StorageError;

use crate::planted::planted;
use crate::progress::{Follower, FollowerProgress};
use crate::{Partition, PartitionRead, PartitionSettings, ReadError, ReadOptions, Role, State};

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
    /// Those that are in no log directory, as their brokers have told: they cannot come to be in sync.
    pub lost: Vec<NodeId>,
}

/// The leader's view.
pub(crate) struct LeaderState {
    pub(crate) local: NodeId,
    pub(crate) partition_epoch: i32,
    /// When this replica heard that it leads.
    leads_since: Duration,
    /// Where this leader's own epoch begins; a high watermark below it is not known to be the real one.
    epoch_start: Offset,
    pub(crate) replicas: Vec<NodeId>,
    pub(crate) isr: Vec<NodeId>,
    pub(crate) lost: Vec<NodeId>,
    /// The in-sync replicas that the controller was asked for, while its answer is not known. Each of them may be
    /// one already, so that the high watermark waits for all of both (KIP-497).
    pub(crate) proposed: Option<Vec<NodeId>>,
    followers: Vec<Follower>,
}

impl LeaderState {
    /// Of a leader whose epoch begins at `epoch_start`, before it knows who else is there.
    fn new(local: NodeId, epoch_start: Offset, partition_epoch: i32, now: Duration) -> LeaderState {
        LeaderState {
            local,
            leads_since: now,
            partition_epoch,
            epoch_start,
            replicas: Vec::new(),
            isr: Vec::new(),
            lost: Vec::new(),
            proposed: None,
            followers: Vec::new(),
        }
    }

    /// Takes over what the metadata says, unless it is older than what is known; returns whether it did. What is known
    /// of followers that stay is kept, and nobody may see this leader without them: its high watermark would wait
    /// for none.
    fn take_over(&mut self, leadership: &Leadership, now: Duration) -> bool {
        if leadership.partition_epoch < self.partition_epoch {
            return false;
        }
        if leadership.partition_epoch > self.partition_epoch {
            self.proposed = None;
        }
        self.partition_epoch = leadership.partition_epoch;
        self.replicas.clone_from(&leadership.replicas);
        self.isr.clone_from(&leadership.isr);
        self.lost.clone_from(&leadership.lost);
        self.followers.retain(|follower| leadership.replicas.contains(&follower.node));
        for node in leadership.replicas.iter().filter(|node| **node != self.local) {
            if self.follower(*node).is_none() {
                self.followers.push(Follower::new(*node, leadership.isr.contains(node), now));
            }
        }
        true
    }

    pub(crate) fn isr(&self) -> &[NodeId] {
        &self.isr
    }

    pub(crate) fn epoch_start(&self) -> Offset {
        self.epoch_start
    }

    pub(crate) fn follower(&self, node: NodeId) -> Option<&Follower> {
        self.followers.iter().find(|follower| follower.node == node)
    }

    /// What each follower has; -1 of those that have not fetched.
    pub(crate) fn log_ends(&self) -> impl Iterator<Item = Offset> {
        self.followers.iter().map(|follower| follower.log_end)
    }

    /// Where each follower's log begins, as it said last.
    pub(crate) fn log_starts(&self) -> impl Iterator<Item = (NodeId, Offset)> {
        self.followers.iter().map(|follower| (follower.node, follower.log_start))
    }

    /// `min.insync.replicas`, but never more than there are replicas (KIP-966).
    pub(crate) fn min_in_sync(&self, settings: &PartitionSettings) -> usize {
        settings.in_sync_replicas_min.min(self.replicas.len())
    }

    /// How many replicas are in sync, those that may have been added counted too.
    pub(crate) fn in_sync_at_most(&self) -> usize {
        let added = self.proposed.iter().flatten().filter(|node| !self.isr.contains(node));
        self.isr.len() + added.count()
    }

    /// The lowest end among the in-sync replicas, or nothing while they are fewer than the minimum. One that is
    /// about to join is waited for too: under a steady load it would never catch up with a leader that is alone.
    fn high_watermark(&self, partition: &Partition) -> Option<Offset> {
        let settings = partition.settings.load();
        if self.isr.len() < self.min_in_sync(&settings) && !planted!(AcknowledgeBelowMinIsr) {
            return None;
        }
        let (lag_max, now) = (partition.lag_max(), partition.clock.monotonic());
        let local_end = partition.log().log_end_offset();
        if planted!(IgnoreFollowers) {
            return Some(local_end);
        }
        let holds_back = |follower: &&Follower| {
            let node = follower.node;
            self.isr.contains(&node)
                || self.proposed.as_ref().is_some_and(|proposed| proposed.contains(&node))
                || (follower.is_caught_up(local_end, lag_max, now) && self.may_join(node, &partition.brokers))
        };
        let ends = self.followers.iter().filter(holds_back);
        let ends = ends.filter(|follower| follower.log_end >= 0 || !planted!(CountUnknownFollower));
        Some(ends.map(|follower| follower.log_end).fold(local_end, Offset::min))
    }
}

impl State {
    /// Raises a leader's high watermark to where its replicas are. Returns whether it moved.
    pub(crate) fn raise_high_watermark(&mut self, partition: &Partition) -> bool {
        let Role::Leader(leader) = &self.role else { return false };
        let high_watermark = leader.high_watermark(partition);
        high_watermark.is_some_and(|offset| self.watermarks.raise(offset, &partition.log()))
    }
}

impl Partition {
    /// Leads from now on, or goes on leading with another ISR. Older news than what is known changes nothing.
    pub fn become_leader(&self, leadership: &Leadership) -> Result<(), StorageError> {
        let _writer = self.writer.lock();
        self.check_may_lead(leadership)?;
        let now = self.clock.monotonic();
        let local_end = self.log().log_end_offset();
        if self.would_begin_epoch(leadership) {
            self.log().assign_epoch(leadership.leader_epoch, local_end)?;
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if leadership.leader_epoch < state.leader_epoch {
            return Ok(());
        }
        match &mut state.role {
            Role::Leader(leader) if leadership.leader_epoch == state.leader_epoch => {
                if !leader.take_over(leadership, now) {
                    return Ok(());
                }
            }
            _ => {
                let mut leader = LeaderState::new(self.local, local_end, leadership.partition_epoch, now);
                leader.take_over(leadership, now);
                state.role = Role::Leader(leader);
                state.leader_epoch = leadership.leader_epoch;
            }
        }
        state.raise_high_watermark(self);
        drop(guard);
        self.waiters.wake_all();
        Ok(())
    }

    /// A replica that lacks what it had told that it has leads only if there is nobody else in sync.
    fn check_may_lead(&self, leadership: &Leadership) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        state.has_lost_records &= leadership.isr.iter().any(|node| *node != self.local);
        if state.has_lost_records { Err(self.log().lost_records()) } else { Ok(()) }
    }

    /// Whether this replica does not lead yet in an epoch that is not over. The caller holds the writer's lock, under
    /// which alone roles and epochs change.
    fn would_begin_epoch(&self, leadership: &Leadership) -> bool {
        let state = self.state.lock();
        let leads = matches!(state.role, Role::Leader(_));
        leadership.leader_epoch > state.leader_epoch
            || (leadership.leader_epoch == state.leader_epoch && !leads)
    }

    /// A follower has fetched: what it asks for next says what it has. Returns false, and counts nothing, for a node
    /// that is no replica or believes in another leader's epoch.
    pub fn follower_fetched(&self, progress: FollowerProgress) -> bool {
        let now = self.clock.monotonic();
        let moved = {
            let mut state = self.state.lock();
            let leader_epoch = state.leader_epoch;
            let Role::Leader(leader) = &mut state.role else {
                return false;
            };
            if progress.leader_epoch.is_some_and(|believed| believed != leader_epoch)
                && !planted!(SkipEpochCheck)
            {
                return false;
            }
            let Some(follower) = leader.followers.iter_mut().find(|known| known.node == progress.node) else {
                return false;
            };
            let has_other_start = follower.log_start != progress.log_start;
            follower.fetched(&progress, self.log().log_end_offset(), now);
            state.raise_high_watermark(self) || has_other_start
        };
        if moved {
            self.waiters.wake_all();
        }
        true
    }

    /// Looks again whether the high watermark may rise: a replica that it waited for is gone, or time has passed.
    pub fn reconsider_high_watermark(&self) {
        let moved = self.state.lock().raise_high_watermark(self);
        if moved {
            self.waiters.wake_all();
        }
    }

    /// Whether this replica has led without a break since that time, as far as it knows.
    pub fn has_led_since(&self, time: Duration) -> bool {
        matches!(&self.state.lock().role, Role::Leader(leader) if leader.leads_since <= time)
    }

    /// As [`Partition::has_led_since`], and its followers have shown by fetching since that none of them led: a successor
    /// would be one of those in sync, of which there are as many as acknowledgements need.
    pub fn was_leader_at(&self, time: Duration) -> bool {
        let settings = self.settings.load();
        let state = self.state.lock();
        let Role::Leader(leader) = &state.role else { return false };
        let may_lead = leader.isr.iter().chain(leader.proposed.iter().flatten());
        leader.leads_since <= time
            && leader.isr.len() >= leader.min_in_sync(&settings)
            && may_lead
                .filter(|node| **node != self.local)
                .all(|node| leader.follower(*node).is_some_and(|follower| follower.followed_at(time)))
    }

    /// As [`Partition::read`], for a replica, whose progress it notes if its epoch is the leader's and its log is the
    /// same as this one up to there.
    pub fn read_for_follower(
        &self,
        options: &ReadOptions,
        progress: FollowerProgress,
    ) -> Result<PartitionRead, ReadError> {
        self.check_is_replica(progress.node)?;
        let mut read = self.read(progress.log_end, options)?;
        if read.diverging.is_none() {
            if !self.follower_fetched(progress) {
                return Err(ReadError::NotLeader);
            }
            // The follower is told at once what its own fetch has committed.
            read.offsets = self.offsets();
        }
        Ok(read)
    }

    /// As [`Partition::read`], for one that says that it is a replica and does not prove it: nothing is noted.
    pub fn read_for_unknown_follower(
        &self,
        options: &ReadOptions,
        node: NodeId,
        from: Offset,
    ) -> Result<PartitionRead, ReadError> {
        self.check_is_replica(node)?;
        self.read(from, options)
    }

    /// The follower that has most, of those that are in sync, have an offset and are wanted; nothing if this replica does
    /// not lead.
    pub fn furthest_in_sync_follower(
        &self,
        offset: Offset,
        is_wanted: impl Fn(NodeId) -> bool,
    ) -> Option<NodeId> {
        let state = self.state.lock();
        let Role::Leader(leader) = &state.role else { return None };
        let serves = |follower: &&Follower| {
            leader.isr.contains(&follower.node)
                && (follower.log_start..=follower.log_end).contains(&offset)
                && is_wanted(follower.node)
        };
        let furthest = leader.followers.iter().filter(serves).max_by_key(|follower| follower.log_end);
        furthest.map(|follower| follower.node)
    }

    fn check_is_replica(&self, node: NodeId) -> Result<(), ReadError> {
        match &self.state.lock().role {
            Role::Leader(leader) if leader.follower(node).is_some() => Ok(()),
            _ => Err(ReadError::NotLeader),
        }
    }
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name: &Arc<str> = &self.topic_partition().topic;
        write!(f, "Partition({name}-{}, {:?})", self.topic_partition().partition, self.offsets())
    }
}

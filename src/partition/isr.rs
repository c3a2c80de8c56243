//! The in-sync replicas: which changes the leader proposes (KIP-497), who may be proposed (KIP-841, KIP-903), and
//! what an answer of the controller means.

use std::collections::BTreeMap;
use std::time::Duration;

use arc_swap::ArcSwap;
use klamm_model::{LeaderEpoch, NodeId, Offset};

use crate::leader::LeaderState;
use crate::planted::planted;
use crate::{LookUpError, Partition, Role};

/// A change of the in-sync replicas that the leader wants the controller to make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IsrChange {
    /// Under which leader it was proposed.
    pub leader_epoch: LeaderEpoch,
    /// The version of the state that it changes.
    pub partition_epoch: i32,
    /// The in-sync replicas that it changes.
    pub before: Vec<NodeId>,
    /// The new in-sync replicas, each with the epoch of its broker's registration as it fetched (KIP-903); -1 of those
    /// that have not, and of the leader itself.
    pub isr: Vec<(NodeId, i64)>,
}

/// What the controller answered to an [`IsrChange`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IsrAnswer {
    /// The state is this now.
    Changed {
        /// The leader's epoch.
        leader_epoch: LeaderEpoch,
        /// The version of the state.
        partition_epoch: i32,
        /// The in-sync replicas.
        isr: Vec<NodeId>,
    },
    /// Nothing was changed, for certain.
    Refused,
    /// The controller knows a later state, or what it did is not known. The metadata will tell; until then a member
    /// that may have been added counts as one.
    Unknown,
}

/// The brokers that may be in an ISR: neither fenced nor stopping (KIP-841), with the epochs of their registrations.
/// One for all partitions of a node.
#[derive(Default)]
pub struct ActiveBrokers {
    /// Nothing while nobody has told: then all count.
    epochs: ArcSwap<Option<BTreeMap<NodeId, i64>>>,
}

impl ActiveBrokers {
    /// Takes over what the metadata says. Partitions whose high watermark waited for a broker that is gone look
    /// again with [`Partition::reconsider_high_watermark`].
    pub fn replace(&self, epochs: BTreeMap<NodeId, i64>) {
        self.epochs.store(std::sync::Arc::new(Some(epochs)));
    }

    /// Whether a broker is there.
    fn is_active(&self, node: NodeId) -> bool {
        (**self.epochs.load()).as_ref().is_none_or(|epochs| epochs.contains_key(&node))
    }

    /// Whether a broker that fetched in this registration may be in sync. A follower that does not tell its own (-1)
    /// is taken at its word.
    fn holds(&self, node: NodeId, broker_epoch: i64) -> bool {
        (**self.epochs.load()).as_ref().is_none_or(|epochs| {
            epochs.get(&node).is_some_and(|known| broker_epoch == -1 || broker_epoch == *known)
        })
    }
}

impl LeaderState {
    /// Whether a follower that is not in sync may become so, as far as its broker and its directory go. It must have
    /// fetched.
    pub(crate) fn may_join(&self, node: NodeId, brokers: &ActiveBrokers) -> bool {
        if self.lost.contains(&node) {
            return false;
        }
        let broker_epoch = self.follower(node).and_then(|follower| follower.broker_epoch);
        broker_epoch.is_some_and(|epoch| brokers.holds(node, epoch))
    }

    fn isr_due(&self, high_watermark: Offset, ends: &Ends, brokers: &ActiveBrokers) -> Option<Vec<NodeId>> {
        let in_sync = |node: &NodeId| match self.follower(*node) {
            None => *node == self.local,
            Some(follower) if self.isr().contains(node) => {
                follower.is_caught_up(ends.local_end, ends.lag_max, ends.now)
            }
            Some(_) if planted!(JoinBeforeCaughtUp) => self.may_join(*node, brokers),
            Some(follower) => {
                follower.log_end >= high_watermark
                    && follower.log_end >= self.epoch_start()
                    && self.may_join(*node, brokers)
            }
        };
        let isr: Vec<NodeId> = self.replicas.iter().copied().filter(in_sync).collect();
        let same = isr.len() == self.isr().len() && isr.iter().all(|node| self.isr().contains(node));
        (!same).then_some(isr)
    }
}

/// What is compared with the followers' progress.
struct Ends {
    local_end: Offset,
    lag_max: Duration,
    now: Duration,
}

impl Partition {
    /// The change of the in-sync replicas that is due, if any: a follower has lagged for longer than
    /// `replica.lag.time.max.ms`, or one that was out has caught up. It is under way from now on, and no other is
    /// proposed before [`Partition::isr_answered`] or newer metadata.
    pub fn propose_isr_change(&self) -> Option<IsrChange> {
        let ends = Ends {
            lag_max: self.lag_max(),
            local_end: self.log().log_end_offset(),
            now: self.clock.monotonic(),
        };
        let mut state = self.state.lock();
        let (leader_epoch, high_watermark) = (state.leader_epoch, state.watermarks.high_watermark());
        let Role::Leader(leader) = &mut state.role else { return None };
        if leader.proposed.is_some() {
            return None;
        }
        let isr = leader.isr_due(high_watermark, &ends, &self.brokers)?;
        let broker_epoch =
            |node: &NodeId| leader.follower(*node).and_then(|follower| follower.broker_epoch).unwrap_or(-1);
        let change = IsrChange {
            leader_epoch,
            partition_epoch: leader.partition_epoch,
            before: leader.isr.clone(),
            isr: isr.iter().map(|node| (*node, broker_epoch(node))).collect(),
        };
        leader.proposed = Some(isr);
        Some(change)
    }

    /// Whether a follower's fetch made a change of the in-sync replicas due that should not wait for the next round:
    /// one that is out of sync has caught up.
    pub fn has_caught_up(&self, node: NodeId) -> bool {
        let state = self.state.lock();
        let Role::Leader(leader) = &state.role else { return false };
        leader.proposed.is_none()
            && !leader.isr().contains(&node)
            && leader.follower(node).is_some_and(|follower| {
                follower.log_end >= state.watermarks.high_watermark()
                    && follower.log_end >= leader.epoch_start()
            })
            && leader.may_join(node, &self.brokers)
    }

    /// Whether a replica is in sync, as far as its leader knows.
    pub fn is_in_sync(&self, node: NodeId) -> bool {
        matches!(&self.state.lock().role, Role::Leader(leader) if leader.isr().contains(&node))
    }

    /// How many offsets the follower that is furthest behind lacks, as far as its leader knows.
    pub fn follower_lag_max(&self) -> Offset {
        let log = self.log();
        let (start, end) = (log.log_start_offset(), log.log_end_offset());
        match &self.state.lock().role {
            Role::Leader(leader) => leader.log_ends().map(|at| end - at.clamp(start, end)).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// The lowest log start of this leader and of its followers whose brokers are active: records before it are deleted
    /// on all of them. -1 while a follower has not told.
    pub fn low_watermark(&self) -> Result<Offset, LookUpError> {
        let log_start = self.log().log_start_offset();
        let state = self.state.lock();
        let Role::Leader(leader) = &state.role else { return Err(LookUpError::NotLeader) };
        let starts = leader.log_starts().filter(|(node, _)| self.brokers.is_active(*node));
        Ok(starts.map(|(_, start)| start).fold(log_start, Offset::min))
    }

    /// Whether a change still waits for its answer: newer metadata may have overtaken it.
    pub fn awaits_answer(&self, change: &IsrChange) -> bool {
        let state = self.state.lock();
        match &state.role {
            Role::Leader(leader) => {
                state.leader_epoch == change.leader_epoch
                    && leader.partition_epoch == change.partition_epoch
                    && leader.proposed.is_some()
            }
            _ => false,
        }
    }

    /// Hands back what the controller said to a change. Answers to proposals that newer metadata has overtaken
    /// change nothing.
    pub fn isr_answered(&self, change: &IsrChange, answer: IsrAnswer) {
        {
            let mut state = self.state.lock();
            let leader_epoch = state.leader_epoch;
            let Role::Leader(leader) = &mut state.role else { return };
            if leader_epoch != change.leader_epoch
                || leader.partition_epoch != change.partition_epoch
                || leader.proposed.is_none()
            {
                return;
            }
            match answer {
                IsrAnswer::Changed { leader_epoch: epoch, partition_epoch, isr }
                    if epoch == leader_epoch && partition_epoch >= leader.partition_epoch =>
                {
                    leader.partition_epoch = partition_epoch;
                    leader.isr = isr;
                    leader.proposed = None;
                }
                IsrAnswer::Refused => leader.proposed = None,
                IsrAnswer::Changed { .. } | IsrAnswer::Unknown => return,
            }
        }
        self.reconsider_high_watermark();
        // Whoever waits for acknowledgements may have enough replicas now, or too few.
        self.waiters.wake_all();
    }

    pub(crate) fn lag_max(&self) -> Duration {
        Duration::from_millis(self.settings.load().replica_lag_max_ms)
    }
}

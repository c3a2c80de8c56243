//! Which brokers hold a partition, while that changes: the replicas that are added come first into the ISR, then
//! the ones that are taken away leave (KIP-455).

use klamm_model::NodeId;

use crate::image::PartitionState;

/// The replicas of a partition, and what of them is on its way in or out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Assignment {
    /// All of them, the preferred leader first.
    pub(super) replicas: Vec<NodeId>,
    /// Those that leave at the end.
    pub(super) removing: Vec<NodeId>,
    /// Those that must be in sync before the end.
    pub(super) adding: Vec<NodeId>,
}

impl Assignment {
    /// As it is.
    pub(super) fn of(state: &PartitionState) -> Assignment {
        Assignment {
            replicas: state.replicas.clone(),
            removing: state.removing.clone(),
            adding: state.adding.clone(),
        }
    }

    /// On its way to `target`: the new replicas, and behind them those that were there before and leave at the end.
    ///
    /// What an earlier reassignment has added goes at once if it is not wanted any more, unless all that is left is
    /// there. Kafka keeps it among the replicas that leave, forgets which ones were there at first,
    /// and waits for ever where one of them is wanted again (observed on Kafka 4.4.0).
    pub(super) fn moving_to(state: &PartitionState, target: &[NodeId]) -> Assignment {
        let is_wanted = |id: &NodeId| target.contains(id);
        let mut before = Assignment::before(state);
        let trusted = Assignment::trusted(state);
        if !trusted.iter().any(|id| is_wanted(id) || before.contains(id)) {
            before.extend(trusted);
        }
        let removing: Vec<NodeId> = before.iter().copied().filter(|id| !is_wanted(id)).collect();
        let adding = target.iter().copied().filter(|id| !before.contains(id)).collect();
        Assignment { replicas: [target, &removing].concat(), removing, adding }
    }

    /// The replicas without those that a reassignment adds.
    pub(super) fn before(state: &PartitionState) -> Vec<NodeId> {
        state.replicas.iter().copied().filter(|id| !state.adding.contains(id)).collect()
    }

    /// The replicas that have all there is: those in sync, or else those that may be elected when they are back.
    pub(super) fn trusted(state: &PartitionState) -> &[NodeId] {
        let by_rank = [&state.isr, &state.eligible_leaders, &state.last_known_eligible_leaders];
        by_rank.into_iter().find(|list| !list.is_empty()).map_or(&[], |list| list)
    }

    /// Ends a reassignment whose new replicas are all in sync; of the old ones one must be left if there are no new
    /// ones.
    pub(super) fn complete(&mut self, isr: &mut Vec<NodeId>) {
        if self.adding.is_empty() && self.removing.is_empty() {
            return;
        }
        let stays = |id: &NodeId| !self.removing.contains(id);
        let left: Vec<NodeId> = isr.iter().copied().filter(stays).collect();
        if left.is_empty() || !self.adding.iter().all(|id| isr.contains(id)) {
            return;
        }
        self.replicas.retain(|id| !self.removing.contains(id));
        self.removing.clear();
        self.adding.clear();
        *isr = left;
    }
}

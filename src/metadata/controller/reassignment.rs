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

//! Counts the elections of partitions' leaders that this node hears of by the metadata.

use std::sync::atomic::{AtomicU64, Ordering};

use klamm_metadata::{PartitionState, RecoveryState};

/// How many there were since this process was started. What happened between two images of which one never came here is
/// not seen.
#[derive(Default)]
pub(crate) struct Elections {
    all: AtomicU64,
    unclean: AtomicU64,
}

impl Elections {
    /// Counts what has led from one state of a topic's partitions to another.
    pub(crate) fn count(&self, before: &[PartitionState], now: &[PartitionState]) {
        for (before, now) in before.iter().zip(now) {
            if now.leader.is_none() || now.leader == before.leader {
                continue;
            }
            self.all.fetch_add(1, Ordering::Relaxed);
            let is_unclean = now.recovery == RecoveryState::Recovering;
            self.unclean.fetch_add(u64::from(is_unclean), Ordering::Relaxed);
        }
    }

    /// All, and those of a replica that may not have had all that was acknowledged.
    pub(crate) fn seen(&self) -> (u64, u64) {
        (self.all.load(Ordering::Relaxed), self.unclean.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use klamm_model::{LeaderEpoch, NodeId};

    use super::*;

    /// A partition that nobody leads any more was told as an election, and one that changed its ISR too.
    #[test]
    fn a_new_leader_is_an_election() {
        let state = |leader: Option<i32>, recovery| PartitionState {
            replicas: vec![NodeId(1), NodeId(2)],
            directories: Vec::new(),
            isr: Vec::new(),
            removing: Vec::new(),
            adding: Vec::new(),
            leader: leader.map(NodeId),
            leader_epoch: LeaderEpoch(0),
            partition_epoch: 0,
            recovery,
            eligible_leaders: Vec::new(),
            last_known_eligible_leaders: Vec::new(),
        };
        let clean = |leaders: [Option<i32>; 4]| leaders.map(|leader| state(leader, RecoveryState::Recovered));
        let elections = Elections::default();
        let before = clean([Some(1), Some(1), Some(1), None]);
        elections.count(&before, &clean([Some(1), None, Some(2), Some(1)]));
        assert_eq!(elections.seen(), (2, 0));
        elections.count(&before[..1], &[state(Some(2), RecoveryState::Recovering)]);
        assert_eq!(elections.seen(), (3, 1));
    }
}

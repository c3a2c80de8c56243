//! Counts the elections of partitions' leaders that this node hears of by the metadata, and tells the log of them.

use std::sync::atomic::{AtomicU64, Ordering};

use klamm_metadata::{PartitionState, RecoveryState, Topic};
use klamm_model::{Named, TopicPartition};

/// How many there were since this process was started. What happened between two images of which one never came here is
/// not seen.
#[derive(Default)]
pub(crate) struct Elections {
    all: AtomicU64,
    unclean: AtomicU64,
}

/// What happened between two images, for whoever reads the log.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    elected: Vec<TopicPartition>,
    unclean: Vec<TopicPartition>,
    leaderless: Vec<TopicPartition>,
}

impl Changes {
    /// One line for each kind of change.
    pub(crate) fn tell(&self) {
        if !self.elected.is_empty() {
            tracing::info!("new leaders of {}", Named(&self.elected));
        }
        if !self.unclean.is_empty() {
            tracing::warn!(
                "replicas that were not in sync were elected, so that records which were acknowledged may be lost, of {}",
                Named(&self.unclean)
            );
        }
        if !self.leaderless.is_empty() {
            tracing::warn!(
                "nobody leads any more, since no replica that has all records is there, of {}",
                Named(&self.leaderless)
            );
        }
    }
}

impl Elections {
    /// Counts what has led from one state of a topic to another, and notes it in `changes`.
    pub(crate) fn count(&self, before: &Topic, now: &Topic, changes: &mut Changes) {
        for (index, (before, state)) in (0..).zip(before.partitions.iter().zip(&now.partitions)) {
            if state.leader == before.leader {
                continue;
            }
            let name = TopicPartition::new(now.name.clone(), index);
            if state.leader.is_none() {
                changes.leaderless.push(name);
                continue;
            }
            self.all.fetch_add(1, Ordering::Relaxed);
            if is_unclean(before, state) {
                self.unclean.fetch_add(1, Ordering::Relaxed);
                changes.unclean.push(name);
            } else {
                changes.elected.push(name);
            }
        }
    }

    /// All, and those of a replica that may not have had all that was acknowledged.
    pub(crate) fn seen(&self) -> (u64, u64) {
        (self.all.load(Ordering::Relaxed), self.unclean.load(Ordering::Relaxed))
    }
}

/// Whether the leader was elected though it may lack records. The mark of an earlier such election stays until the leader
/// asks for a change of the replicas in sync.
fn is_unclean(before: &PartitionState, now: &PartitionState) -> bool {
    let had_all = |leader| before.isr.contains(&leader) || before.eligible_leaders.contains(&leader);
    let was_marked = before.recovery == RecoveryState::Recovering;
    now.recovery == RecoveryState::Recovering && !(was_marked && now.leader.is_some_and(had_all))
}

#[cfg(test)]
mod tests {
    use klamm_model::{LeaderEpoch, NodeId, Uuid};

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
        let topic = |partitions| Topic { name: "a".into(), id: Uuid([1; 16]), partitions };
        let clean = |leaders: [Option<i32>; 4]| {
            topic(leaders.map(|leader| state(leader, RecoveryState::Recovered)).into())
        };
        let named = |indexes: &[i32]| indexes.iter().map(|index| TopicPartition::new("a", *index)).collect();
        let (elections, mut changes) = (Elections::default(), Changes::default());
        let before = clean([Some(1), Some(1), Some(1), None]);
        elections.count(&before, &clean([Some(1), None, Some(2), Some(1)]), &mut changes);
        assert_eq!(elections.seen(), (2, 0));
        elections.count(&before, &topic(vec![state(Some(2), RecoveryState::Recovering)]), &mut changes);
        assert_eq!(elections.seen(), (3, 1));
        let mut marked = state(None, RecoveryState::Recovering);
        let mut led = PartitionState { leader: Some(NodeId(2)), ..marked.clone() };
        for (isr, eligible) in [(vec![NodeId(2)], vec![]), (vec![], vec![NodeId(2)])] {
            (marked.isr, marked.eligible_leaders) = (isr, eligible);
            led.isr = vec![NodeId(2)];
            elections.count(&topic(vec![marked.clone()]), &topic(vec![led.clone()]), &mut Changes::default());
        }
        assert_eq!(elections.seen(), (5, 1), "it has all records, whatever was once");
        let told = Changes { elected: named(&[2, 3]), unclean: named(&[0]), leaderless: named(&[1]) };
        assert_eq!(changes, told);
    }
}

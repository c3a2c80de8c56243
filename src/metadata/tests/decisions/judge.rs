//! What must hold of every step, whatever was decided.

use std::collections::BTreeMap;

use klamm_metadata::{Image, PartitionState};
use klamm_model::{LeaderEpoch, NodeId, TopicId};

/// What is remembered of the steps so far.
#[derive(Default)]
pub(crate) struct Judge {
    /// Who led in each epoch of each partition.
    leaders: BTreeMap<(TopicId, i32, LeaderEpoch), NodeId>,
    /// Brokers that came back from an unclean stop, by the epoch of their registration.
    unclean: BTreeMap<NodeId, i64>,
}

/// What the step before allows.
#[derive(Clone, Copy, Default)]
pub(crate) struct Allowed {
    /// Whether a replica that lacks records may be elected.
    pub(crate) unclean: bool,
}

impl Judge {
    /// A broker has registered that did not know its last epoch.
    pub(crate) fn note_unclean(&mut self, id: NodeId, epoch: i64) {
        self.unclean.insert(id, epoch);
    }

    /// Says what is wrong with a step from one image to the next.
    pub(crate) fn look(&mut self, before: &Image, after: &Image, allowed: Allowed) -> Result<(), String> {
        for topic in after.topics.values() {
            for (index, state) in (0..).zip(&topic.partitions) {
                let was = before.topic(topic.id).and_then(|topic| topic.partition(index));
                let place = format!("{}-{index}: {was:?} became {state:?}", topic.name);
                shape(after, state).map_err(|wrong| format!("{wrong}: {place}"))?;
                if let Some(leader) = state.leader {
                    let key = (topic.id, index, state.leader_epoch);
                    let known = *self.leaders.entry(key).or_insert(leader);
                    if known != leader {
                        return Err(format!("{known} and {leader} led in one epoch: {place}"));
                    }
                }
                if let Some(was) = was {
                    change(was, state, allowed).map_err(|wrong| format!("{wrong}: {place}"))?;
                }
                self.restarted(before, after, was, state).map_err(|wrong| format!("{wrong}: {place}"))?;
            }
        }
        Ok(())
    }

    /// Who has registered after an unclean stop with this step is neither in sync nor eligible.
    fn restarted(
        &self,
        before: &Image,
        after: &Image,
        was: Option<&PartitionState>,
        state: &PartitionState,
    ) -> Result<(), String> {
        for (id, epoch) in &self.unclean {
            let registered_now = after.brokers.get(id).is_some_and(|broker| broker.epoch == *epoch)
                && before.brokers.get(id).is_none_or(|broker| broker.epoch != *epoch);
            let counts = state.isr.contains(id) || state.eligible_leaders.contains(id);
            if registered_now && was.is_some() && counts {
                return Err(format!("{id} stopped uncleanly and still counts as one that has everything"));
            }
        }
        Ok(())
    }
}

fn shape(image: &Image, state: &PartitionState) -> Result<(), String> {
    let wrong = |what: &str| Err(what.to_owned());
    if let Some(leader) = state.leader {
        if !state.isr.contains(&leader) {
            return wrong("the leader is not in the ISR");
        }
        if image.brokers.get(&leader).is_none_or(|broker| !broker.is_active()) {
            return wrong("the leader is fenced or stopping");
        }
        let is_gone = |id: &&NodeId| image.brokers.get(*id).is_none_or(|broker| !broker.is_active());
        if state.isr.iter().any(|id| is_gone(&id)) {
            return wrong("a member of the ISR is fenced or stopping");
        }
    }
    let distinct = |list: &[NodeId]| (1..list.len()).all(|at| !list[..at].contains(&list[at]));
    if !distinct(&state.replicas) || !distinct(&state.isr) || !distinct(&state.eligible_leaders) {
        return wrong("a list names somebody twice");
    }
    if state.replicas.is_empty() || state.directories.len() != state.replicas.len() {
        return wrong("not every replica has a directory");
    }
    let parts = [&state.isr, &state.eligible_leaders, &state.adding, &state.removing];
    if parts.iter().any(|list| list.iter().any(|id| !state.replicas.contains(id))) {
        return wrong("a list names somebody who is no replica");
    }
    if state.eligible_leaders.iter().any(|id| state.isr.contains(id)) {
        return wrong("one of the ISR is eligible beside it");
    }
    Ok(())
}

fn change(was: &PartitionState, state: &PartitionState, allowed: Allowed) -> Result<(), String> {
    let wrong = |what: &str| Err(what.to_owned());
    if state != was && state.partition_epoch <= was.partition_epoch {
        return wrong("the state changed under one partition epoch");
    }
    if state.leader_epoch < was.leader_epoch {
        return wrong("the leader epoch went back");
    }
    if state.leader != was.leader && state.leader_epoch == was.leader_epoch {
        return wrong("the leader changed within one epoch");
    }
    let (Some(leader), true) = (state.leader, state.leader != was.leader) else { return Ok(()) };
    let had_all = was.isr.contains(&leader) || was.eligible_leaders.contains(&leader);
    // A reassignment that ends may elect one that joins the ISR with the same change.
    let joins = was.leader.is_some_and(|old| was.isr.contains(&old)) && state.replicas != was.replicas;
    let is_last = was.last_known_eligible_leaders == [leader];
    if !had_all && !joins && !is_last && !allowed.unclean {
        return wrong("one was elected that may lack acknowledged records");
    }
    Ok(())
}

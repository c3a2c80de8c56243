//! What the nodes say of themselves while a run goes on: who leads, who is in sync. It counts what happens, and holds
//! that a partition has one leader in an epoch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use klamm_metadata::Image;
use klamm_model::{LeaderEpoch, NodeId, Offset, TopicId};
use klamm_server::NodeView;

use crate::checker::{Check, Violation};
use crate::history::Place;
use crate::world::World;

/// What happened in a run. None of it may stay zero in a run that is to show anything.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    /// Changes of a partition's leader.
    pub(crate) elections: u64,
    /// Changes of the active controller.
    pub(crate) controllers: u64,
    /// Changes of the set of replicas in sync.
    pub(crate) isr_changes: u64,
    /// Logs that became shorter.
    pub(crate) truncations: u64,
}

/// A partition as committed metadata has it: its epoch decides who leads and who is in sync.
type Decided = (Option<NodeId>, LeaderEpoch, Vec<NodeId>);

/// A high watermark that rose while too few were in sync, as the leader's image had it. The answer that has added a
/// member may reach the leader before its image has it.
struct Rise {
    at: Duration,
    node: i32,
    place: Place,
    partition_epoch: i32,
    from: Offset,
    to: Offset,
}

/// How long a change may take into an image.
const INTO_IMAGES_MAX: Duration = Duration::from_secs(2);

/// Sees every image of every node, or nearly so.
pub(crate) struct Observer {
    /// `min.insync.replicas` of all topics.
    min_in_sync: usize,
    pub(crate) counts: Counts,
    pub(crate) violations: Vec<Violation>,
    leaders: BTreeMap<(Place, LeaderEpoch), NodeId>,
    decided: BTreeMap<(Place, i32), Decided>,
    newest: BTreeMap<Place, (i32, Decided)>,
    controller: Option<NodeId>,
    /// The last image of each node.
    images: BTreeMap<i32, Arc<Image>>,
    ends: BTreeMap<(i32, Place), Offset>,
    /// What a leader had when it was looked at last: the partition's epoch, and the high watermark.
    led: BTreeMap<(i32, Place), (i32, Offset)>,
    rises: Vec<Rise>,
}

impl Observer {
    pub(crate) fn new(min_in_sync: usize) -> Observer {
        Observer {
            min_in_sync,
            counts: Counts::default(),
            violations: Vec::new(),
            leaders: BTreeMap::new(),
            decided: BTreeMap::new(),
            newest: BTreeMap::new(),
            controller: None,
            images: BTreeMap::new(),
            ends: BTreeMap::new(),
            led: BTreeMap::new(),
            rises: Vec::new(),
        }
    }

    /// Looks at all nodes.
    pub(crate) fn look(&mut self, world: &World) {
        for node in &world.nodes {
            let Some(view) = node.view() else {
                self.images.remove(&node.id);
                self.ends.retain(|(id, _), _| *id != node.id);
                self.led.retain(|(id, _), _| *id != node.id);
                continue;
            };
            let image = view.image();
            if self.images.get(&node.id).is_none_or(|known| !Arc::ptr_eq(known, &image)) {
                self.see_image(node.id, &image);
                self.images.insert(node.id, image);
            }
            self.see_replicas(node.id, &view);
            self.see_rises(node.id, &view, world.now());
        }
        self.judge_rises(world.now());
    }

    /// Notes high watermarks that rise where too few are in sync.
    fn see_rises(&mut self, node: i32, view: &NodeView, at: Duration) {
        let image = view.image();
        for replica in view.replicas().into_iter().filter(|replica| replica.is_leader()) {
            let (topic, partition) = (replica.topic_id(), replica.topic_partition().partition);
            let Some(state) = image.topic(topic).and_then(|topic| topic.partition(partition)) else {
                continue;
            };
            let place = Place { topic, partition };
            let (to, partition_epoch) = (replica.offsets().high_watermark, state.partition_epoch);
            let before = self.led.insert((node, place), (partition_epoch, to));
            let min = self.min_in_sync.min(state.replicas.len());
            match before {
                Some((epoch, from)) if epoch == partition_epoch && from < to && state.isr.len() < min => {
                    self.rises.push(Rise { at, node, place, partition_epoch, from, to });
                }
                _ => {}
            }
        }
    }

    /// Those whose partition has not changed since are broken promises.
    fn judge_rises(&mut self, now: Duration) {
        let (due, later): (Vec<Rise>, Vec<Rise>) =
            self.rises.drain(..).partition(|rise| now - rise.at >= INTO_IMAGES_MAX);
        self.rises = later;
        for Rise { at, node, place, partition_epoch, from, to } in due {
            let newest = self.newest.get(&place);
            if let Some((_, decided)) = newest.filter(|(newest, _)| *newest == partition_epoch) {
                let isr = &decided.2;
                let text = format!(
                    "node {node} at {at:?}: the high watermark of {place:?} went from {from} to {to} while {isr:?} \
                     were in sync"
                );
                self.violations.push(Violation { check: Check::BelowMinIsr, text });
            }
        }
    }

    fn see_image(&mut self, node: i32, image: &Image) {
        if let Some(controller) = image.controller.filter(|controller| controller.0 == node) {
            let before = self.controller.replace(controller);
            self.counts.controllers += u64::from(before.is_some_and(|before| before != controller));
        }
        for topic in image.topics.values() {
            for (index, partition) in topic.partitions.iter().enumerate() {
                let place = Place { topic: topic.id, partition: index as i32 };
                let mut isr = partition.isr.clone();
                isr.sort();
                let decided: Decided = (partition.leader, partition.leader_epoch, isr);
                if let Some(leader) = partition.leader {
                    if image.brokers.get(&leader).is_none_or(|broker| broker.fenced) {
                        let text =
                            format!("{place:?} is led by {leader}, which is fenced, as node {node} has it");
                        self.violations.push(Violation { check: Check::FencedLeader, text });
                    }
                    self.see_leader(place, partition.leader_epoch, leader, node);
                }
                self.see_decision(place, partition.partition_epoch, decided, node);
            }
        }
    }

    fn see_leader(&mut self, place: Place, epoch: LeaderEpoch, leader: NodeId, witness: i32) {
        let first = *self.leaders.entry((place, epoch)).or_insert(leader);
        if first != leader {
            let text = format!("{place:?} in epoch {epoch}: {first}, and {leader} as node {witness} says");
            self.violations.push(Violation { check: Check::TwoLeaders, text });
        }
    }

    fn see_decision(&mut self, place: Place, epoch: i32, decided: Decided, witness: i32) {
        let first = self.decided.entry((place, epoch)).or_insert_with(|| decided.clone());
        if *first != decided {
            let text =
                format!("{place:?} in partition epoch {epoch}: {first:?}, on node {witness} {decided:?}");
            self.violations.push(Violation { check: Check::ImagesDiffer, text });
        }
        match self.newest.get(&place) {
            Some((newest, _)) if *newest >= epoch => return,
            Some((_, before)) => {
                self.counts.elections += u64::from(before.0 != decided.0 && decided.0.is_some());
                self.counts.isr_changes += u64::from(before.2 != decided.2);
            }
            None => {}
        }
        self.newest.insert(place, (epoch, decided));
    }

    fn see_replicas(&mut self, node: i32, view: &NodeView) {
        for replica in view.replicas() {
            let place = Place { topic: replica.topic_id(), partition: replica.topic_partition().partition };
            if replica.is_leader() {
                self.see_leader(place, replica.leader_epoch(), NodeId(node), node);
            }
            let end = replica.offsets().log_end;
            let before = self.ends.insert((node, place), end);
            self.counts.truncations += u64::from(before.is_some_and(|before| before > end));
        }
    }

    /// The topics of the newest image that a node has.
    pub(crate) fn topics(&self) -> BTreeMap<TopicId, (Arc<str>, i32)> {
        let newest = self.images.values().max_by_key(|image| image.offset);
        let topics = newest.into_iter().flat_map(|image| image.topics.values());
        topics.map(|topic| (topic.id, (topic.name.clone(), topic.partitions.len() as i32))).collect()
    }

    /// Why the cluster is not whole: what is fenced, not in sync, or not led. `None` if all is well.
    pub(crate) fn what_is_amiss(&self, world: &World) -> Option<String> {
        for node in &world.nodes {
            let Some(image) = self.images.get(&node.id).filter(|_| node.view().is_some()) else {
                return Some(format!("node {} does not serve", node.id));
            };
            if let Some(broker) = image.brokers.values().find(|broker| broker.fenced) {
                return Some(format!("broker {} is fenced, as node {} knows", broker.id, node.id));
            }
            for topic in image.topics.values() {
                for (index, partition) in topic.partitions.iter().enumerate() {
                    if partition.leader.is_none() || partition.isr.len() < partition.replicas.len() {
                        let (leader, isr) = (partition.leader, &partition.isr);
                        let name = &topic.name;
                        return Some(format!("{name}-{index} is led by {leader:?}, and {isr:?} are in sync"));
                    }
                }
            }
        }
        None
    }
}

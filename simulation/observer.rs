//! What the nodes say of themselves while a run goes on: who leads, who is in sync. It counts what happens, and holds
//! that a partition has one leader in an epoch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use klamm_metadata::{Image, PartitionState};
use klamm_model::{LeaderEpoch, NodeId, Offset, TopicId};
use klamm_partition::Partition;
use klamm_server::NodeView;

use crate::checker::{Check, Violation};
use crate::history::Place;
use crate::run::CROWD;
use crate::trace::Trace;
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
    /// Partitions whose replicas became others.
    pub(crate) moves: u64,
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

/// The process of a node as the cluster has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Registration {
    node: NodeId,
    pub(crate) epoch: i64,
}

fn is_being_moved(partition: &PartitionState) -> bool {
    !(partition.adding.is_empty() && partition.removing.is_empty())
}

fn place_of(replica: &Partition) -> Place {
    Place { topic: replica.topic_id(), partition: replica.topic_partition().partition }
}

/// Sees every image of every node, or nearly so.
pub(crate) struct Observer {
    /// `min.insync.replicas` of all topics.
    min_in_sync: usize,
    pub(crate) counts: Counts,
    pub(crate) violations: Vec<Violation>,
    leaders: BTreeMap<(Place, LeaderEpoch), NodeId>,
    decided: BTreeMap<(Place, i32), Decided>,
    newest: BTreeMap<Place, (i32, Decided)>,
    /// The replicas of each partition when it was last not being moved.
    replicas: BTreeMap<Place, BTreeSet<NodeId>>,
    controller: Option<NodeId>,
    /// The last image of each node.
    images: BTreeMap<i32, Arc<Image>>,
    ends: BTreeMap<(i32, Place), Offset>,
    /// What a leader had when it was looked at last: the partition's epoch, and the high watermark.
    led: BTreeMap<(i32, Place), (i32, Offset)>,
    rises: Vec<Rise>,
    /// The highest high watermark that a leader has had.
    committed: BTreeMap<Place, Offset>,
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
            replicas: BTreeMap::new(),
            controller: None,
            images: BTreeMap::new(),
            ends: BTreeMap::new(),
            led: BTreeMap::new(),
            rises: Vec::new(),
            committed: BTreeMap::new(),
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
                self.see_image(node.id, &image, &world.trace);
                self.images.insert(node.id, image);
            }
        }
        for node in &world.nodes {
            let Some(view) = node.view() else { continue };
            self.see_replicas(node.id, &view);
            self.see_rises(node.id, &view, world.now());
            self.see_what_is_missing(node.id, &view, world.now());
        }
        for replica in world.nodes.iter().filter_map(|node| node.view()).flat_map(|view| view.replicas()) {
            if replica.is_leader() {
                let committed = self.committed.entry(place_of(&replica)).or_default();
                *committed = replica.offsets().high_watermark.max(*committed);
            }
        }
        self.judge_rises(world.now());
    }

    /// Whether metadata has the process that runs on a node, and not the one before.
    fn is_registered(&self, node: i32, view: &NodeView) -> bool {
        let broker = self.newest_image().and_then(|image| image.brokers.get(&NodeId(node)));
        broker.is_some_and(|broker| broker.epoch == view.broker_epoch())
    }

    /// Replicas in sync have all that was committed. One that has lost some of it and is not registered yet since then
    /// may still be counted in.
    fn see_what_is_missing(&mut self, node: i32, view: &NodeView, at: Duration) {
        if !self.is_registered(node, view) {
            return;
        }
        for replica in view.replicas() {
            let place = place_of(&replica);
            let is_in_sync =
                self.newest.get(&place).is_some_and(|(_, decided)| decided.2.contains(&NodeId(node)));
            let (end, committed) = (replica.offsets().log_end, self.committed.get(&place).copied());
            if let Some(committed) = committed.filter(|committed| is_in_sync && end < *committed) {
                let text = format!(
                    "node {node} at {at:?}: its replica of {place:?} is in sync and ends at {end}, but {committed} was \
                     committed"
                );
                self.violations.push(Violation { check: Check::MissingInSync, text });
            }
        }
    }

    /// Notes high watermarks that rise where too few are in sync.
    fn see_rises(&mut self, node: i32, view: &NodeView, at: Duration) {
        let image = view.image();
        for replica in view.replicas().into_iter().filter(|replica| replica.is_leader()) {
            let place = place_of(&replica);
            let topic = image.topic(place.topic);
            let Some(state) = topic.and_then(|topic| topic.partition(place.partition)) else { continue };
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

    fn see_image(&mut self, node: i32, image: &Image, trace: &Trace) {
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
                if self.see_decision(place, partition.partition_epoch, decided, node) {
                    self.see_move(place, partition);
                    let PartitionState { leader, leader_epoch, isr, eligible_leaders, .. } = partition;
                    let (name, leader) = (&topic.name, leader.map_or(-1, |leader| leader.0));
                    trace.line(&format!(
                        "{name}-{index} is led by {leader} in epoch {leader_epoch}, in sync {isr:?}, eligible \
                         {eligible_leaders:?}"
                    ));
                }
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

    fn see_move(&mut self, place: Place, partition: &PartitionState) {
        if !is_being_moved(partition) {
            let replicas: BTreeSet<NodeId> = partition.replicas.iter().copied().collect();
            let before = self.replicas.insert(place, replicas.clone());
            self.counts.moves += u64::from(before.is_some_and(|before| before != replicas));
        }
    }

    /// Whether it is news.
    fn see_decision(&mut self, place: Place, epoch: i32, decided: Decided, witness: i32) -> bool {
        let first = self.decided.entry((place, epoch)).or_insert_with(|| decided.clone());
        if *first != decided {
            let text =
                format!("{place:?} in partition epoch {epoch}: {first:?}, on node {witness} {decided:?}");
            self.violations.push(Violation { check: Check::ImagesDiffer, text });
        }
        match self.newest.get(&place) {
            Some((newest, _)) if *newest >= epoch => return false,
            Some((_, before)) => {
                self.counts.elections += u64::from(before.0 != decided.0 && decided.0.is_some());
                self.counts.isr_changes += u64::from(before.2 != decided.2);
            }
            None => {}
        }
        self.newest.insert(place, (epoch, decided));
        true
    }

    fn see_replicas(&mut self, node: i32, view: &NodeView) {
        for replica in view.replicas() {
            let place = place_of(&replica);
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
        let topics = self.newest_image().into_iter().flat_map(|image| image.topics.values());
        topics.map(|topic| (topic.id, (topic.name.clone(), topic.partitions.len() as i32))).collect()
    }

    /// Whether a node leads nothing, as the newest image has it, no partition has it alone, and none is being moved.
    pub(crate) fn is_spare(&self, index: usize, world: &World) -> bool {
        let node = NodeId(world.nodes[index].id);
        let mut topics = self.topics();
        // There is nothing in them that could be lost.
        topics.retain(|_, (name, _)| !name.starts_with(CROWD));
        let is_moving = |image: &Arc<Image>| {
            image.topics.values().flat_map(|topic| topic.partitions.iter()).any(is_being_moved)
        };
        if self.newest_image().is_none_or(is_moving) {
            return false;
        }
        let present = self.newest.iter().filter(|(place, _)| topics.contains_key(&place.topic));
        present
            .map(|(_, (_, decided))| decided)
            .all(|(leader, _, isr)| leader.is_some_and(|leader| leader != node) && isr.len() > 1)
    }

    /// Whether each partition has a replica in sync on another node that serves and is not among the troubled.
    pub(crate) fn has_sound_others(&self, index: usize, world: &World, troubled: &BTreeSet<usize>) -> bool {
        let sound = world.nodes.iter().enumerate().filter(|(other, node)| {
            let serves = |view: NodeView| self.is_registered(node.id, &view);
            *other != index && !troubled.contains(other) && node.view().is_some_and(serves)
        });
        let sound: BTreeSet<NodeId> = sound.map(|(_, node)| NodeId(node.id)).collect();
        let topics = self.topics();
        let present = self.newest.iter().filter(|(place, _)| topics.contains_key(&place.topic));
        present.map(|(_, (_, (_, _, isr)))| isr).all(|isr| isr.iter().any(|node| sound.contains(node)))
    }

    pub(crate) fn newest_image(&self) -> Option<&Arc<Image>> {
        self.images.values().max_by_key(|image| image.offset)
    }

    /// The registration of a node that runs, or ran until now.
    pub(crate) fn registration(&self, world: &World, index: usize) -> Option<Registration> {
        let node = NodeId(world.nodes[index].id);
        let broker = self.newest_image()?.brokers.get(&node)?;
        Some(Registration { node, epoch: broker.epoch })
    }

    /// Whether partitions may still be led by a node or have it in sync under this registration, as far as any node knows.
    pub(crate) fn counts_on(&self, Registration { node, epoch }: Registration) -> bool {
        let Some(image) = self.newest_image() else { return true };
        image.brokers.get(&node).is_some_and(|broker| !broker.fenced && broker.epoch == epoch)
    }

    /// Why the cluster is not whole: what is fenced, not in sync, or not led. `None` if all is well.
    pub(crate) fn what_is_amiss(&self, world: &World) -> Option<String> {
        for node in &world.nodes {
            let serving = node.view().and_then(|view| Some((self.images.get(&node.id)?, view)));
            let Some((image, view)) = serving else {
                return Some(format!("node {} does not serve", node.id));
            };
            if !self.is_registered(node.id, &view) {
                return Some(format!("node {} is not registered since it has started", node.id));
            }
            if let Some(otherwise) = why_otherwise(NodeId(node.id), image, &view) {
                return Some(format!("node {} {otherwise}, other than its image says", node.id));
            }
            if let Some(broker) = image.brokers.values().find(|broker| broker.fenced) {
                return Some(format!("broker {} is fenced, as node {} knows", broker.id, node.id));
            }
            for topic in image.topics.values() {
                for (index, partition) in topic.partitions.iter().enumerate() {
                    if is_being_moved(partition) {
                        return Some(format!("{}-{index} is still being moved", topic.name));
                    }
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

/// What a node does otherwise than its image says, if anything.
fn why_otherwise(node: NodeId, image: &Image, view: &NodeView) -> Option<String> {
    let mut served: BTreeMap<Place, Arc<Partition>> =
        view.replicas().into_iter().map(|replica| (place_of(&replica), replica)).collect();
    for topic in image.topics.values() {
        for (index, partition) in (0..).zip(&topic.partitions) {
            let name = &topic.name;
            let replica = served.remove(&Place { topic: topic.id, partition: index });
            match replica {
                None if partition.replicas.contains(&node) => {
                    return Some(format!("has not opened {name}-{index}"));
                }
                None => {}
                Some(replica) => {
                    let (leads, epoch) = (replica.is_leader(), replica.leader_epoch());
                    if leads != (partition.leader == Some(node)) || epoch != partition.leader_epoch {
                        let role = if leads { "leads" } else { "follows" };
                        return Some(format!("{role} {name}-{index} in epoch {epoch}"));
                    }
                }
            }
        }
    }
    served.values().next().map(|replica| format!("serves {}", replica.topic_partition()))
}

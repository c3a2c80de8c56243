//! Thousands of partitions on three nodes, of which one is killed: how long their clients have to wait. The time is the
//! simulation's, in which computing costs nothing: what is measured is what nodes wait for.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use klamm_model::{NodeId, TopicId};
use klamm_testing::{HostClock, SeededRandom};

use crate::client::admin::{self, NewTopic};
use crate::client::{Client, Surroundings};
use crate::history::Recorder;
use crate::settings::{BROKER_PORT, min_in_sync};
use crate::trace::Trace;
use crate::world::{CLIENT_HOSTS, World, client_address};

const NODES: i32 = 3;

/// How many partitions one topic has at most.
const PARTITIONS_OF_TOPIC: i32 = 1000;

/// How long each step may take.
const STEP_MAX: Duration = Duration::from_secs(120);

/// How often it is looked whether a step has come to its end.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Within this time partitions have to be led again when the process of their leader dies, however many there are.
pub(crate) const LED_AGAIN_MAX: Duration = Duration::from_secs(1);

/// What the death of one node has cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    /// Whether the node was the active controller too.
    pub(crate) was_controller: bool,
    /// How many partitions it had led.
    pub(crate) led: usize,
    /// Until other nodes led all of them, from the kill on.
    pub(crate) led_again: Duration,
    /// Until it had come back and was in sync with all, from its start on.
    pub(crate) in_sync_again: Duration,
}

/// Makes so many partitions with three replicas each, and kills a node that only leads some of them, and then the one that
/// is the active controller too. An error tells what has not come.
pub(crate) fn kill_two(seed: u64, partitions: i32, trace: &Trace) -> Result<[Moved; 2], String> {
    let trace = trace.clone();
    trace.clone().follow(move || {
        let random = SeededRandom::new(seed);
        let mut cluster = Cluster { world: World::new(NODES, &random, trace), partitions: 0 };
        (0..CLIENT_HOSTS).for_each(|index| drop(cluster.world.network.host(client_address(index))));
        (0..cluster.world.nodes.len()).for_each(|index| cluster.world.start(index));
        cluster.wait("the cluster has not formed", Cluster::is_formed)?;
        cluster.make_topics(&random, partitions)?;
        Ok([cluster.kill(false)?, cluster.kill(true)?])
    })
}

struct Cluster {
    world: World,
    partitions: usize,
}

impl Cluster {
    /// Lets time pass until something has come about; returns how long that took.
    fn wait(&mut self, failure: &str, is_done: impl Fn(&Cluster) -> bool) -> Result<Duration, String> {
        let from = self.world.now();
        while !is_done(self) {
            let until = self.world.now() + LOOK_EVERY;
            while self.world.now() < until {
                if let Some(index) = self.world.step().first() {
                    return Err(format!("{failure}: node {} has ended by itself", index + 1));
                }
            }
            if let Some(panic) = self.world.trace.panics().first() {
                return Err(format!("{failure}: {panic}"));
            }
            if self.world.now() - from > STEP_MAX {
                return Err(format!("{failure} after {STEP_MAX:?}: {} partitions are led", self.led(None)));
            }
        }
        Ok(self.world.now() - from)
    }

    /// All nodes serve, and know of each other that they do.
    fn is_formed(&self) -> bool {
        self.world.nodes.iter().all(|node| {
            node.view().is_some_and(|view| {
                let image = view.image();
                image.brokers.len() == NODES as usize && image.brokers.values().all(|broker| !broker.fenced)
            })
        })
    }

    /// How many partitions are led, by a node or by any.
    fn led(&self, by: Option<usize>) -> usize {
        let nodes = self.world.nodes.iter().enumerate().filter(|(index, _)| by.is_none_or(|by| by == *index));
        let replicas = nodes.filter_map(|(_, node)| node.view()).flat_map(|view| view.replicas());
        let led: BTreeSet<(TopicId, i32)> = replicas
            .filter(|replica| replica.is_leader())
            .map(|replica| (replica.topic_id(), replica.topic_partition().partition))
            .collect();
        led.len()
    }

    /// Whether all nodes know that all replicas are in sync.
    fn is_in_sync(&self) -> bool {
        self.is_formed()
            && self.world.nodes.iter().filter_map(|node| node.view()).all(|view| {
                let image = view.image();
                let partitions = image.topics.values().flat_map(|topic| &topic.partitions);
                let whole = partitions.filter(|partition| {
                    partition.leader.is_some() && partition.isr.len() == partition.replicas.len()
                });
                whole.count() == self.partitions
            })
            && self.led(None) == self.partitions
    }

    fn make_topics(&mut self, random: &SeededRandom, partitions: i32) -> Result<(), String> {
        let clock = self.world.clients.runtime.block_on(async { HostClock::starting_now(0) });
        let brokers =
            self.world.nodes.iter().map(|node| SocketAddr::new(node.address, BROKER_PORT)).collect();
        let surroundings = Surroundings::new(Recorder::default(), Arc::new(clock), brokers);
        let host = self.world.network.process_on(client_address(0));
        let mut client = Client::new(surroundings, host, random.fork());
        let topics = (0..partitions).step_by(PARTITIONS_OF_TOPIC as usize).map(|first| NewTopic {
            name: format!("from-{first}"),
            partitions: PARTITIONS_OF_TOPIC.min(partitions - first),
            replicas: NODES as i16,
            min_in_sync: min_in_sync(NODES),
        });
        let topics: Vec<NewTopic> = topics.collect();
        let made = self.world.clients.runtime.spawn(async move {
            for topic in &topics {
                admin::create(&mut client, topic).await;
            }
        });
        self.wait("the topics cannot be made", |_| made.is_finished())?;
        self.partitions = partitions as usize;
        self.wait("the new partitions are not in sync", Cluster::is_in_sync).map(|_| ())
    }

    /// Kills the active controller, or another node, and starts it again when all that it led is led by others.
    fn kill(&mut self, is_controller: bool) -> Result<Moved, String> {
        let controller = self.world.nodes.iter().find_map(|node| node.view()?.image().controller);
        let is_wanted = |id| (Some(NodeId(id)) == controller) == is_controller;
        let victim = self.world.nodes.iter().position(|node| is_wanted(node.id));
        let victim = victim.ok_or("no such node")?;
        let led = self.led(Some(victim));
        let World { nodes, network, .. } = &mut self.world;
        nodes[victim].kill(network);
        let led_again =
            self.wait("not all partitions are led again", |cluster| cluster.led(None) == cluster.partitions)?;
        self.world.start(victim);
        let in_sync_again = self.wait("not all replicas are in sync again", Cluster::is_in_sync)?;
        Ok(Moved { was_controller: is_controller, led, led_again, in_sync_again })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tenth of what `scripts/test --all` has `cargo simulate --partitions` kill, so that it takes seconds.
    #[test]
    fn partitions_move_within_a_second_when_their_node_dies() {
        let moved = kill_two(1, 1000, &Trace::new(false)).expect("they move");
        for moved in moved {
            assert!(moved.led > 200 && moved.led_again <= LED_AGAIN_MAX, "{moved:?}");
        }
    }
}

//! All hosts, the network between them, and the time that they share.
//!
//! Time goes in steps as long as the fastest message takes: within a step hosts cannot hear of each other, so they
//! run one after another, each as far as its own clock goes.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use klamm_testing::{Delays, SeededRandom, SimulatedNetwork};

use crate::host::{NodeHost, ProcessTime};
use crate::trace::Trace;

/// The least delay of a message, and so the longest that hosts can run without the others.
const STEP: Duration = Duration::from_millis(1);

/// How many addresses clients have between them. They can be cut off one by one.
pub(crate) const CLIENT_HOSTS: u8 = 3;

/// The address of one of the clients' hosts.
pub(crate) fn client_address(index: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 1, index % CLIENT_HOSTS + 1))
}

/// The simulated world.
pub(crate) struct World {
    pub(crate) network: SimulatedNetwork,
    pub(crate) nodes: Vec<NodeHost>,
    /// All clients live in one process: they know nothing of each other.
    pub(crate) clients: ProcessTime,
    pub(crate) trace: Trace,
    now: Duration,
}

impl World {
    /// A world with `nodes` hosts on which nothing runs.
    pub(crate) fn new(nodes: i32, random: &SeededRandom, trace: Trace) -> World {
        let delays = Delays { least: STEP, ..Delays::default() };
        World {
            network: SimulatedNetwork::new(random.below(u64::MAX), delays),
            nodes: (1..=nodes).map(|id| NodeHost::new(id, random.fork())).collect(),
            clients: ProcessTime::new(Duration::ZERO, 0, random.below(u64::MAX)),
            trace,
            now: Duration::ZERO,
        }
    }

    /// How long it has gone on.
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    /// Starts a node's process.
    pub(crate) fn start(&mut self, index: usize) {
        let nodes = self.nodes.len() as i32;
        self.nodes[index].start(&self.network, nodes, self.now);
    }

    /// Lets one step pass. A process that ends by itself is gone; the nodes of which are returned.
    pub(crate) fn step(&mut self) -> Vec<usize> {
        self.now += STEP;
        self.trace.at(self.now, "network");
        self.network.advance(self.now);
        let mut ended = Vec::new();
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            self.trace.at(self.now, &format!("node {}", node.id));
            if let Some(reason) = node.run_until(self.now) {
                self.trace.line(&format!("the process has ended: {reason}"));
                node.kill(&self.network);
                ended.push(index);
            }
        }
        self.trace.at(self.now, "clients");
        self.clients.run_until(self.now);
        self.trace.at(self.now, "world");
        ended
    }
}

//! Three nodes in one process, on real sockets and simulated disks.

use std::collections::BTreeSet;
use std::net::TcpListener;

use klamm_io::{SystemClock, SystemNetwork};
use klamm_metadata::Image;
use klamm_model::NodeId;
use klamm_testing::{SeededRandom, SimulatedDisk};

use super::*;

/// Ports that nobody listens on now.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    held.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

fn config(id: usize, ports: &[u16], session_timeout_ms: u32) -> BrokerConfig {
    let port = ports[id - 1];
    let voters: Vec<String> =
        ports.iter().zip(1..).map(|(port, id)| format!("{id}@127.0.0.1:{port}")).collect();
    let settings = [
        ("controller.quorum.voters", voters.join(",")),
        ("node.id", id.to_string()),
        ("listeners", format!("PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}")),
        ("controller.listener.names", "CONTROLLER".to_owned()),
        ("log.dirs", "/data".to_owned()),
        ("broker.rack", format!("rack-{id}")),
        ("replica.fetch.max.bytes", "65536".to_owned()),
        ("replica.selector.class", "org.apache.kafka.common.replica.RackAwareReplicaSelector".to_owned()),
        ("broker.heartbeat.interval.ms", "100".to_owned()),
        ("broker.session.timeout.ms", session_timeout_ms.to_string()),
    ];
    let overrides = settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let sources = klamm_config::Sources { overrides, ..Default::default() };
    klamm_config::load(&sources).unwrap().0
}

fn machine(id: usize, disk: &SimulatedDisk) -> Machine {
    Machine {
        disk: Arc::new(disk.clone()),
        network: Arc::new(SystemNetwork),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SeededRandom::new(id as u64)),
        threads: Threads::default(),
        loggers: Arc::default(),
    }
}

async fn node(id: usize, ports: &[u16], disk: &SimulatedDisk, session_timeout_ms: u32) -> Server {
    start(config(id, ports, session_timeout_ms), machine(id, disk)).await.unwrap()
}

/// Three nodes that know each other, on a disk each. Those that were killed are gone from the list.
pub(super) struct Cluster {
    pub(super) servers: Vec<Server>,
    ports: Vec<u16>,
    disks: Vec<SimulatedDisk>,
    session_timeout_ms: u32,
}

impl Cluster {
    pub(super) async fn start() -> Cluster {
        Cluster::start_with(1500).await
    }

    pub(super) async fn start_with(session_timeout_ms: u32) -> Cluster {
        let ports = free_ports(3);
        let disks: Vec<SimulatedDisk> = (1..=3).map(SimulatedDisk::new).collect();
        let mut cluster = Cluster { servers: Vec::new(), ports, disks, session_timeout_ms };
        cluster.start_all().await;
        cluster
    }

    /// Starts all three nodes, none of which runs.
    pub(super) async fn start_all(&mut self) {
        assert!(self.servers.is_empty(), "a node runs");
        let node = |id: usize| node(id, &self.ports, &self.disks[id - 1], self.session_timeout_ms);
        let (one, two, three) = tokio::join!(node(1), node(2), node(3));
        self.servers = vec![one, two, three];
        for server in &self.servers {
            until(server, "three brokers", |image| unfenced(image) == BTreeSet::from([1, 2, 3])).await;
        }
    }

    /// Stops a node as an operator does.
    pub(super) async fn stop(&mut self, id: NodeId) {
        let place = self.servers.iter().position(|server| server.context.node_id == id).unwrap();
        self.servers.remove(place).stop().await;
        let disk = &mut self.disks[id.0 as usize - 1];
        *disk = disk.kill();
    }

    /// Ends a node without a word.
    pub(super) fn kill(&mut self, id: NodeId) {
        let place = self.servers.iter().position(|server| server.context.node_id == id).unwrap();
        let dead = self.servers.remove(place);
        dead.context.metadata.shutdown();
    }

    /// Starts a node again that was killed.
    pub(super) async fn restart(&mut self, id: NodeId) {
        let disk = &mut self.disks[id.0 as usize - 1];
        *disk = disk.kill();
        let server = node(id.0 as usize, &self.ports, disk, self.session_timeout_ms).await;
        self.servers.push(server);
    }

    pub(super) fn disk(&self, id: NodeId) -> &SimulatedDisk {
        &self.disks[id.0 as usize - 1]
    }

    pub(super) fn node(&self, id: NodeId) -> &Server {
        self.servers.iter().find(|server| server.context.node_id == id).expect("it runs")
    }
}

/// Waits until a node's image is as wanted.
pub(super) async fn until(server: &Server, what: &str, wanted: impl Fn(&Image) -> bool) {
    let mut images = server.context.metadata.watch();
    let found = tokio::time::timeout(Duration::from_secs(20), images.wait_for(|image| wanted(image))).await;
    let waits = |_| {
        let now = server.context.image();
        panic!("node {} waits for {what}: {:?}, {:?}", server.context.node_id, now.brokers, now.topics)
    };
    found.unwrap_or_else(waits).unwrap();
}

fn unfenced(image: &Image) -> BTreeSet<i32> {
    image.brokers.values().filter(|broker| !broker.fenced).map(|broker| broker.id.0).collect()
}

/// All nodes take the others in, decide through whichever is the controller, and lead on without one that died.
#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_form_a_cluster_and_fence_one_that_dies() {
    let mut cluster = Cluster::start().await;
    let servers = &cluster.servers;
    for (server, name) in servers.iter().zip(["of-1", "of-2", "of-3"]) {
        let failed = crate::topic_creation::create(&server.context, &[name]).await;
        assert!(failed.is_empty(), "{failed:?}");
    }
    for server in servers {
        until(server, "the topics", |image| image.topics.len() == 3).await;
    }

    // The one that is not the controller dies without a word.
    let controller = servers[0].context.image().controller.unwrap();
    let dead_id = servers.iter().map(|server| server.context.node_id).find(|id| *id != controller).unwrap();
    cluster.kill(dead_id);
    for server in &cluster.servers {
        until(server, "its fencing", |image| !unfenced(image).contains(&dead_id.0)).await;
        let image = server.context.image();
        let leads =
            |node: NodeId| image.topics.values().any(|topic| topic.partitions[0].leader == Some(node));
        assert!(!leads(dead_id));
    }
}

/// A process that dies closes its connections, and its port refuses new ones: that is enough to fence it, and to elect
/// another controller in its place, long before its session would end.
#[tokio::test(flavor = "multi_thread")]
async fn a_death_is_noticed_before_the_session_ends() {
    const LONGER_THAN_THE_TEST_WAITS: u32 = 300_000;
    for is_controller in [false, true] {
        let mut cluster = Cluster::start_with(LONGER_THAN_THE_TEST_WAITS).await;
        let controller = cluster.servers[0].context.image().controller.unwrap();
        let ids = (1..=3).map(NodeId);
        let dead = ids.into_iter().find(|id| (*id == controller) == is_controller).unwrap();
        cluster.kill(dead);
        for server in &cluster.servers {
            until(server, "its fencing", |image| !unfenced(image).contains(&dead.0)).await;
            assert_eq!(unfenced(&server.context.image()).len(), 2, "those that live are let be");
        }
    }
}

/// One node of a cluster was given back like one that is alone, and then neither Klamm nor Apache Kafka took it.
#[tokio::test(flavor = "multi_thread")]
async fn one_node_of_a_cluster_is_given_back_only_when_the_others_are_lost() {
    use crate::Others;

    let mut cluster = Cluster::start().await;
    (1..=3).for_each(|id| cluster.kill(NodeId(id)));
    let disk = cluster.disk(NodeId(1)).kill();
    let release = |others| crate::release(vec!["/data".into()], others, &machine(1, &disk));
    let why = release(Others::Stay).unwrap_err().to_string();
    assert!(
        why.starts_with("node 1 belongs to a cluster of nodes 1, 2, 3, and only a node that is alone"),
        "{why}"
    );
    assert!(why.contains("'klamm release --alone'"), "{why}");
    let lines = release(Others::Lost).unwrap();
    assert!(lines[0].starts_with("node 1 is alone in cluster "), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("given back")), "{lines:?}");
}

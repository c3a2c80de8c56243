//! Three voters over a network in memory: they agree on one leader, all get what it decides, and the two that
//! are left go on without it. The seam for a real network is the trait that this network implements.

mod joining;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use klamm_config::BrokerConfig;
use klamm_io::{BoxFuture, SystemClock};
use klamm_metadata::{
    Identity, Image, KafkaRules, MetadataNode, PeerError, QuorumMessage, QuorumNetwork, QuorumSettings,
    Settings, TopicDefaults, Voter,
};
use klamm_model::{NodeId, Uuid};
use klamm_testing::{SeededRandom, SimulatedDisk};

/// How long a test waits for a decision.
const PATIENCE: Duration = Duration::from_secs(60);

/// Nodes by number; one that is not in here cannot be reached.
#[derive(Clone, Default)]
struct Wires(Arc<Mutex<BTreeMap<NodeId, Arc<MetadataNode>>>>);

impl QuorumNetwork for Wires {
    fn call(
        &self,
        target: NodeId,
        _: (String, u16),
        message: QuorumMessage,
    ) -> BoxFuture<'_, Result<Bytes, PeerError>> {
        let node = self.0.lock().unwrap().get(&target).cloned();
        Box::pin(async move {
            let node = node.ok_or_else(|| PeerError::Unreachable(target, "it is down".to_owned()))?;
            node.answer_peer(message).await.map_err(|error| PeerError::Broken(target, error.to_string()))
        })
    }
}

fn settings(id: i32, wires: &Wires) -> Settings {
    let voter = |id| Voter { id: NodeId(id), host: format!("host{id}"), port: 9093 };
    Settings {
        node_id: NodeId(id),
        directory_id: Uuid([id as u8; 16]),
        identity: Identity::New { wanted: Some("three".to_owned()), keep: Arc::new(|_| Ok(())) },
        address: (format!("host{id}"), 9093),
        bootstrap_servers: Vec::new(),
        voters: vec![voter(1), voter(2), voter(3)],
        dir: "/klamm-metadata".into(),
        disk: Arc::new(SimulatedDisk::new(id as u64)),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SeededRandom::new(id as u64)),
        network: Arc::new(wires.clone()),
        defaults: TopicDefaults::default(),
        rules: Arc::new(KafkaRules::new(Arc::new(BrokerConfig::defaults()))),
        quorum: QuorumSettings {
            heartbeat: Duration::from_millis(50),
            election_timeout_min: Duration::from_millis(200),
            election_timeout_max: Duration::from_millis(400),
            ..QuorumSettings::default()
        },
    }
}

async fn wait_for(node: &MetadataNode, what: &str, wanted: impl Fn(&Image) -> bool) {
    let mut images = node.watch();
    let found = tokio::time::timeout(Duration::from_secs(30), images.wait_for(|image| wanted(image))).await;
    found.unwrap_or_else(|_| panic!("node {} waits for {what}", node.id())).unwrap();
}

/// Who leads now, or the first node where nobody says that it does: leadership may move at any time, on a busy
/// machine more than once.
fn leader_of(nodes: &[Arc<MetadataNode>]) -> Arc<MetadataNode> {
    nodes.iter().find(|node| node.is_controller()).unwrap_or(&nodes[0]).clone()
}

/// Asks a node to take another one into the cluster.
async fn join(leader: &MetadataNode, id: NodeId) -> Result<(), i16> {
    let epoch = joining::register(leader, id, id.0 as u8, Uuid([id.0 as u8; 16])).await?;
    joining::unfence(leader, id, epoch).await
}

/// Asks every node until the one that leads has created a topic. The others refuse with NOT_CONTROLLER.
async fn create_by_whoever_leads(nodes: &[&Arc<MetadataNode>], topic: &str) {
    let created = async {
        loop {
            for node in nodes {
                match node.within(PATIENCE).auto_create_topics(vec![topic.to_owned()]).await.topics[0]
                    .error_code
                {
                    // 36: the answer to an earlier try was lost with its leader.
                    0 | 36 => return,
                    code => assert_eq!(code, 41, "node {} neither creates it nor sends us away", node.id()),
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), created).await.expect("somebody leads and creates it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_voters_agree_and_two_go_on() {
    let wires = Wires::default();
    for id in 1..=3 {
        let node = Arc::new(MetadataNode::start(settings(id, &wires)).unwrap());
        wires.0.lock().unwrap().insert(NodeId(id), node);
    }
    let nodes: Vec<_> = wires.0.lock().unwrap().values().cloned().collect();
    for node in &nodes {
        wait_for(node, "a controller", |image| image.controller.is_some()).await;
    }
    for node in &nodes {
        let joined = async {
            while join(&leader_of(&nodes), node.id()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), joined).await.expect("somebody leads and takes it in");
    }
    create_by_whoever_leads(&nodes.iter().collect::<Vec<_>>(), "first").await;
    for node in &nodes {
        wait_for(node, "the topic", |image| image.topic_by_name("first").is_some()).await;
        assert_eq!(node.image().brokers.len(), 3);
    }

    let leader = leader_of(&nodes);
    let dead = leader.id();
    wires.0.lock().unwrap().remove(&dead);
    leader.shutdown();
    let rest: Vec<_> = nodes.iter().filter(|node| node.id() != dead).collect();
    for node in &rest {
        wait_for(node, "another controller", |image| {
            image.controller.is_some_and(|controller| controller != dead)
        })
        .await;
    }
    create_by_whoever_leads(&rest, "second").await;
    for node in &rest {
        wait_for(node, "the second topic", |image| image.topic_by_name("second").is_some()).await;
        assert!(node.image().topic_by_name("first").is_some());
    }
}

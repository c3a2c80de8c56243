//! Nodes of a quorum that are wired in memory, each with a disk that outlives it.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{BufMut, Bytes};
use klamm_config::BrokerConfig;
use klamm_io::{BoxFuture, SystemClock};
use klamm_metadata::{
    Identity, Image, KafkaRules, MetadataNode, PeerError, QuorumMessage, QuorumNetwork, QuorumSettings,
    QuorumState, ReplicaKey, Settings, StartError, TopicDefaults, Voter,
};
use klamm_model::{NodeId, Uuid};
use klamm_testing::{SeededRandom, SimulatedDisk};

use crate::joining;

/// How long a test waits for a decision.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long a test waits for the quorum.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Nodes by host; one that is not in here cannot be reached.
#[derive(Clone, Default)]
pub(crate) struct Wires(Arc<Mutex<BTreeMap<String, Arc<MetadataNode>>>>);

impl QuorumNetwork for Wires {
    fn call(
        &self,
        target: NodeId,
        (host, _): (String, u16),
        message: QuorumMessage,
    ) -> BoxFuture<'_, Result<Bytes, PeerError>> {
        let node = self.0.lock().unwrap().get(&host).cloned();
        Box::pin(async move {
            let node = node.ok_or_else(|| PeerError::Unreachable(target, "it is down".to_owned()))?;
            node.answer_peer(message).await.map_err(|error| PeerError::Broken(target, error.to_string()))
        })
    }
}

/// A machine that a node runs on. Its disk and what it knows of its cluster stay when the node ends.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) id: i32,
    /// The number of its directory; a lost disk is replaced by one with another number.
    pub(crate) directory: u8,
    pub(crate) host: String,
    pub(crate) disk: SimulatedDisk,
    pub(crate) cluster_id: Arc<Mutex<Option<String>>>,
    /// `controller.quorum.voters`.
    pub(crate) voters: Vec<i32>,
    /// `controller.quorum.bootstrap.servers`, by their hosts.
    pub(crate) servers: Vec<String>,
    pub(crate) wires: Wires,
}

pub(crate) fn host(id: i32) -> String {
    format!("host{id}")
}

impl Machine {
    /// A new machine with an empty disk.
    pub(crate) fn new(id: i32, voters: &[i32], wires: &Wires) -> Machine {
        Machine {
            id,
            directory: id as u8,
            host: host(id),
            disk: SimulatedDisk::new(id as u64),
            cluster_id: Arc::default(),
            voters: voters.to_vec(),
            servers: Vec::new(),
            wires: wires.clone(),
        }
    }

    /// The same machine with an empty disk.
    pub(crate) fn with_new_disk(&self) -> Machine {
        let directory = self.directory + 100;
        let (disk, cluster_id) = (SimulatedDisk::new(u64::from(directory)), Arc::default());
        Machine { directory, disk, cluster_id, ..self.clone() }
    }

    /// Another disk with what is on this one.
    pub(crate) fn copy_of_disk(&self) -> SimulatedDisk {
        let copy = SimulatedDisk::new(u64::from(self.directory));
        copy.copy_from(&self.disk, "/klamm-metadata".as_ref(), "/klamm-metadata".as_ref()).unwrap();
        copy
    }

    pub(crate) fn settings(&self) -> Settings {
        let known = self.cluster_id.lock().unwrap().clone();
        let kept = self.cluster_id.clone();
        let keep = move |id: &str| {
            *kept.lock().unwrap() = Some(id.to_owned());
            Ok(())
        };
        let voter = |id: &i32| Voter { id: NodeId(*id), host: host(*id), port: 9093 };
        Settings {
            node_id: NodeId(self.id),
            directory_id: Uuid([self.directory; 16]),
            identity: match known {
                Some(id) => Identity::Of(id),
                None => Identity::New { wanted: None, keep: Arc::new(keep) },
            },
            address: (self.host.clone(), 9093),
            listener: "CONTROLLER".to_owned(),
            voters: self.voters.iter().map(voter).collect(),
            bootstrap_servers: self.servers.iter().map(|host| (host.clone(), 9093)).collect(),
            dir: "/klamm-metadata".into(),
            disk: Arc::new(self.disk.clone()),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SeededRandom::new(u64::from(self.directory))),
            network: Arc::new(self.wires.clone()),
            defaults: TopicDefaults::default(),
            rules: Arc::new(KafkaRules::new(Arc::new(BrokerConfig::defaults()))),
            quorum: QuorumSettings {
                heartbeat: Duration::from_millis(100),
                election_timeout_min: Duration::from_millis(500),
                election_timeout_max: Duration::from_millis(1000),
                ..QuorumSettings::default()
            },
        }
    }

    /// Starts a node and wires it.
    pub(crate) fn start(&self) -> Arc<MetadataNode> {
        self.start_with(self.settings()).unwrap()
    }

    /// As [`Machine::start`], as a later Klamm would: its files and messages have versions higher by so much. It makes
    /// snapshots often.
    pub(crate) fn start_raised(&self, raised: u8) -> Arc<MetadataNode> {
        let mut settings = self.settings();
        settings.quorum.versions_raised = raised;
        settings.quorum.snapshot_entries = 5;
        settings.quorum.entries_kept = 1;
        self.start_with(settings).unwrap()
    }

    /// As [`Machine::start`], with other settings.
    pub(crate) fn start_with(&self, settings: Settings) -> Result<Arc<MetadataNode>, StartError> {
        let node = Arc::new(MetadataNode::start(settings)?);
        self.mend(&node);
        Ok(node)
    }

    /// Cuts the wire on which others reach the node.
    pub(crate) fn cut(&self) {
        self.wires.0.lock().unwrap().remove(&self.host);
    }

    /// Lets others reach the node again.
    pub(crate) fn mend(&self, node: &Arc<MetadataNode>) {
        self.wires.0.lock().unwrap().insert(self.host.clone(), node.clone());
    }

    /// Cuts the wire and ends the node, as a kill does.
    pub(crate) fn end(&self, node: &MetadataNode) {
        self.cut();
        node.shutdown();
    }
}

/// A node with a directory whose bytes are all the same.
pub(crate) fn key(id: i32, directory: u8) -> ReplicaKey {
    ReplicaKey::new(NodeId(id), Uuid([directory; 16]))
}

/// Three machines with a cluster on them that has a leader.
pub(crate) async fn three() -> (Vec<Machine>, Vec<Arc<MetadataNode>>) {
    let wires = Wires::default();
    let machines: Vec<Machine> = (1..=3).map(|id| Machine::new(id, &[1, 2, 3], &wires)).collect();
    let nodes: Vec<_> = machines.iter().map(Machine::start).collect();
    for node in &nodes {
        wait_for(node, "a controller", |image| image.controller.is_some()).await;
    }
    (machines, nodes)
}

/// Waits until whoever leads describes the quorum as wanted, and returns it.
pub(crate) async fn described(
    nodes: &[Arc<MetadataNode>],
    what: &str,
    wanted: impl Fn(&QuorumState) -> bool,
) -> QuorumState {
    let found = async {
        loop {
            for node in nodes {
                if let Some(state) = node.describe_quorum().await.filter(|state| wanted(state)) {
                    return state;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, found).await.unwrap_or_else(|_| panic!("waiting for {what}"))
}

/// Settings with which nobody stands for election by itself for a minute.
pub(crate) fn patient(machine: &Machine) -> Settings {
    let mut settings = machine.settings();
    settings.quorum.election_timeout_min = Duration::from_secs(60);
    settings.quorum.election_timeout_max = Duration::from_secs(120);
    settings
}

/// A message of the quorum as it travels, from a member's process to everybody at an address where `to` is `None`.
pub(crate) fn message(
    cluster_id: &str,
    (from, run): (ReplicaKey, u64),
    to: Option<ReplicaKey>,
    json: &str,
) -> QuorumMessage {
    let mut out = vec![3, cluster_id.len() as u8];
    out.put_slice(cluster_id.as_bytes());
    out.put_i32(from.id.0);
    out.put_slice(&from.directory_id.0);
    out.put_u64(run);
    let to = to.unwrap_or_default();
    out.put_i32(to.id.0);
    out.put_slice(&to.directory_id.0);
    out.put_u32(json.len() as u32);
    out.put_slice(json.as_bytes());
    QuorumMessage(Bytes::from(out))
}

pub(crate) async fn wait_for(node: &MetadataNode, what: &str, wanted: impl Fn(&Image) -> bool) {
    let mut images = node.watch();
    let found = tokio::time::timeout(Duration::from_secs(30), images.wait_for(|image| wanted(image))).await;
    found.unwrap_or_else(|_| panic!("node {} waits for {what}", node.id())).unwrap();
}

/// Who leads now, or the first node where nobody says that it does: leadership may move at any time, on a busy
/// machine more than once.
pub(crate) fn leader_of(nodes: &[Arc<MetadataNode>]) -> Arc<MetadataNode> {
    nodes.iter().find(|node| node.is_controller()).unwrap_or(&nodes[0]).clone()
}

/// Asks every node until the one that leads has registered a broker.
pub(crate) async fn register_by_whoever_leads(nodes: &[&Arc<MetadataNode>], broker: i32) {
    let registered = async {
        loop {
            for node in nodes {
                match joining::register(node, NodeId(broker), 1, Uuid([broker as u8; 16])).await {
                    Ok(_) => return,
                    Err(code) => {
                        assert_eq!(code, 41, "node {} neither registers it nor sends us away", node.id())
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), registered).await.expect("somebody leads and registers it");
}

/// Asks every node until the one that leads has created a topic. The others refuse with NOT_CONTROLLER.
pub(crate) async fn create_by_whoever_leads(nodes: &[&Arc<MetadataNode>], topic: &str) {
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

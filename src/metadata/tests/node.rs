//! A node of the metadata quorum on real files: it leads at once, and what it answered is there after any end.
#![allow(clippy::disallowed_methods, reason = "the test looks at files as an outsider does")]

mod joining;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use klamm_config::BrokerConfig;
use klamm_io::{Clock, SystemClock, SystemDisk, SystemRandom};
use klamm_metadata::{
    Identity, Image, KafkaRules, MetadataNode, NoPeers, QuorumSettings, Settings, TopicDefaults, Voter,
};
use klamm_model::{LeaderEpoch, NodeId, TopicPartition, Uuid};
use klamm_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig, CreateTopicsRequest};
use klamm_protocol::messages::delete_topics::DeleteTopicsRequest;

/// How long a test waits for a decision.
const PATIENCE: Duration = Duration::from_secs(60);

fn settings(dir: &Path) -> Settings {
    let id = NodeId(1);
    Settings {
        node_id: id,
        directory_id: Uuid([3; 16]),
        identity: Identity::Of("test-cluster".to_owned()),
        address: ("localhost".to_owned(), 9093),
        listener: "CONTROLLER".to_owned(),
        voters: vec![Voter { id, host: "localhost".to_owned(), port: 9093 }],
        bootstrap_servers: Vec::new(),
        dir: dir.join("klamm-metadata"),
        disk: Arc::new(SystemDisk),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom),
        network: Arc::new(NoPeers),
        defaults: TopicDefaults::default(),
        rules: Arc::new(KafkaRules::new(Arc::new(BrokerConfig::defaults()))),
        quorum: QuorumSettings::default(),
    }
}

/// The node becomes a broker of its own cluster too. Returns its broker epoch.
async fn join(node: &MetadataNode, run: u8) -> i64 {
    let epoch = joining::register(node, NodeId(1), run, Uuid([3; 16])).await.unwrap();
    joining::unfence(node, NodeId(1), epoch).await.unwrap();
    epoch
}

fn creation(names: &[&str]) -> CreateTopicsRequest {
    let config = CreatableTopicConfig { name: "retention.ms".to_owned(), value: Some("1234".to_owned()) };
    let topic = |name: &&str| CreatableTopic {
        name: (*name).to_owned(),
        num_partitions: 3,
        replication_factor: 1,
        configs: vec![config.clone()],
        ..Default::default()
    };
    CreateTopicsRequest { topics: names.iter().map(topic).collect(), ..Default::default() }
}

/// The image without what each node knows for itself.
fn replicated(image: &Image) -> Image {
    Image { controller: None, ..image.clone() }
}

#[tokio::test]
async fn a_new_node_leads_at_once_and_a_restarted_one_has_everything() {
    let dir = tempfile::tempdir().unwrap();
    let clock = SystemClock::new();
    let node = MetadataNode::start(settings(dir.path())).unwrap();
    let started = clock.monotonic();
    let first_epoch = join(&node, 1).await;
    let joined = clock.monotonic();
    eprintln!("leads after {started:?}, registered after {joined:?}");
    assert!(node.is_controller());
    assert_eq!(node.image().feature("metadata.version"), 33);

    let reply = node.within(PATIENCE).create_topics(creation(&["a", "b"])).await;
    assert!(reply.topics.iter().all(|topic| topic.error_code == 0), "{reply:?}");
    // The image has the topics when the reply is there.
    let id = node.image().topic_by_name("a").unwrap().id;
    assert_eq!(reply.topics[0].topic_id, id);
    let delete = DeleteTopicsRequest { topic_names: vec!["b".to_owned()], ..Default::default() };
    assert_eq!(node.within(PATIENCE).delete_topics(delete).await.responses[0].error_code, 0);
    assert_eq!(node.within(PATIENCE).allocate_producer_ids(NodeId(1), first_epoch).await, Ok(0..1000));
    assert_eq!(node.within(PATIENCE).allocate_producer_ids(NodeId(1), first_epoch).await, Ok(1000..2000));
    let before = replicated(&node.image());
    node.shutdown();
    drop(node);

    let clock = SystemClock::new();
    let node = MetadataNode::start(settings(dir.path())).unwrap();
    eprintln!("leads again after {:?}", clock.monotonic());
    assert_eq!(replicated(&node.image()), before);
    assert_eq!(node.image().topic_config("a")["retention.ms"], "1234");
    assert!(node.image().topic_by_name("b").is_none());
    let second_epoch = join(&node, 2).await;
    assert!(second_epoch > first_epoch);
    // A restart is an election, as in Kafka: who holds the old epoch must notice. The registration takes the
    // leadership away from the run before, and the heartbeat gives it to this one: two epochs.
    let partition = node.image().partition(&TopicPartition::new("a", 0)).unwrap().clone();
    assert_eq!((partition.leader, partition.leader_epoch), (Some(NodeId(1)), LeaderEpoch(2)));
    assert_eq!(node.within(PATIENCE).allocate_producer_ids(NodeId(1), second_epoch).await, Ok(2000..3000));
    assert!(node.within(PATIENCE).allocate_producer_ids(NodeId(1), first_epoch).await.is_err());
}

/// The log must not grow for ever: after enough entries a snapshot takes the place of the old ones, and a
/// restart from it is the same as a restart from the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_log_becomes_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let small = || {
        let mut settings = settings(dir.path());
        settings.quorum =
            QuorumSettings { snapshot_entries: 20, entries_kept: 5, ..QuorumSettings::default() };
        settings
    };
    let node = MetadataNode::start(small()).unwrap();
    let epoch = join(&node, 1).await;
    node.within(PATIENCE).create_topics(creation(&["kept"])).await;
    for _ in 0..200 {
        node.within(PATIENCE).allocate_producer_ids(NodeId(1), epoch).await.unwrap();
    }
    let snapshot = dir.path().join("klamm-metadata/snapshot");
    for _ in 0..100 {
        if snapshot.exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(snapshot.exists(), "no snapshot after 200 entries");
    let log_len = || std::fs::metadata(dir.path().join("klamm-metadata/log")).unwrap().len();
    for _ in 0..100 {
        if log_len() < 5000 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(log_len() < 5000, "the log still has {} bytes", log_len());
    let before = replicated(&node.image());
    drop(node);
    let node = MetadataNode::start(small()).unwrap();
    assert_eq!(replicated(&node.image()), before);
    assert_eq!(node.image().next_producer_id, 200_000);
    assert_eq!(node.image().topic_by_name("kept").unwrap().partitions.len(), 3);
}

/// Many requests at once are decided one after another: of two that create the same topic, one must lose.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_see_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let node = Arc::new(MetadataNode::start(settings(dir.path())).unwrap());
    join(&node, 1).await;
    let clock = SystemClock::new();
    let tasks: Vec<_> = (0..200)
        .map(|number| {
            let node = Arc::clone(&node);
            tokio::spawn(async move {
                let name = format!("topic-{}", number / 2);
                node.within(PATIENCE).create_topics(creation(&[&name])).await.topics[0].error_code
            })
        })
        .collect();
    let mut codes = Vec::new();
    for task in tasks {
        codes.push(task.await.unwrap());
    }
    eprintln!("200 creations took {:?}", clock.monotonic());
    assert_eq!(codes.iter().filter(|code| **code == 0).count(), 100);
    assert_eq!(codes.iter().filter(|code| **code == 36).count(), 100);
    assert_eq!(node.image().topics.len(), 100);
}

#[test]
fn files_that_are_no_metadata_log_are_refused_with_their_name() {
    let dir = tempfile::tempdir().unwrap();
    drop(MetadataNode::start(settings(dir.path())).unwrap());
    for (file, content) in
        [("log", "something else entirely, long enough to be a header"), ("vote", "KLAMMVOT\0\0\0\x09")]
    {
        let path = dir.path().join("klamm-metadata").join(file);
        let good = std::fs::read(&path).unwrap();
        std::fs::write(&path, content).unwrap();
        let error = MetadataNode::start(settings(dir.path())).err().unwrap().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), content.as_bytes(), "it must not be touched");
        std::fs::write(&path, good).unwrap();
    }
    drop(MetadataNode::start(settings(dir.path())).unwrap());
}

//! A node whose only disk is full: what needs no space goes on, and it does not claim what it cannot know.

use klamm_io::{Disk, SystemClock, SystemNetwork};
use klamm_model::{ErrorCode, NodeId, topic_name};
use klamm_testing::{Failure, Fault, OperationKind, SeededRandom, SimulatedDisk};

use super::cluster_tests::{Cluster, until};
use super::replication_tests::{create, leader_of, move_to, produce};
use super::*;
use crate::lease::led_alone;
use crate::topic_creation::create_for_coordinator;

async fn node(disk: &SimulatedDisk) -> Server {
    let settings = [("listeners", "PLAINTEXT://127.0.0.1:0"), ("log.dirs", "/data")];
    let overrides = settings.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let sources = klamm_config::Sources { overrides, ..Default::default() };
    let (config, _) = klamm_config::load(&sources).unwrap();
    let machine = Machine {
        disk: Arc::new(disk.clone()),
        network: Arc::new(SystemNetwork),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SeededRandom::new(1)),
        threads: Threads::default(),
        loggers: Arc::default(),
    };
    start(config, machine).await.unwrap()
}

/// A client asks for the coordinator of its group, and then for records, on one connection. The creation of the
/// coordinator's topic waits for space; nothing else may wait for long.
#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_a_coordinator_does_not_wait_for_space() {
    let disk = SimulatedDisk::new(1);
    let server = node(&disk).await;
    let (total, free) = disk.space(std::path::Path::new("/")).unwrap();
    disk.set_capacity(Some(total - free));
    let clock = server.context.clock.clone();
    let began = clock.monotonic();
    for _ in 0..20 {
        create_for_coordinator(&server.context, topic_name::GROUP_METADATA).await;
    }
    let took = clock.monotonic() - began;
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(server.context.image().topic_by_name(topic_name::GROUP_METADATA).is_none());

    disk.set_capacity(None);
    let mut images = server.context.metadata.watch();
    let created = images.wait_for(|image| image.topic_by_name(topic_name::GROUP_METADATA).is_some());
    tokio::time::timeout(Duration::from_secs(20), created).await.expect("the topic is created").unwrap();
    create_for_coordinator(&server.context, topic_name::GROUP_METADATA).await;
    assert!(server.context.offsets_partition_of("a group").is_some());
}

/// The leader of a topic's only partition, as a node has it.
fn led_by(image: &klamm_metadata::Image, topic: &str) -> Option<NodeId> {
    image.topic_by_name(topic).unwrap().partitions[0].leader
}

/// A leader gives a partition away when its disk is full. Until it hears who has it, it must not tell what only a leader
/// knows, though the controller takes its heartbeats.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_gives_a_partition_away_does_not_believe_to_lead_it() {
    let cluster = Cluster::start().await;
    create(&cluster.servers, "three", &[]).await;
    let old = leader_of(&cluster.servers, "three");
    let (id, context) = (old.context.node_id, &old.context);
    let partition = context.partitions.by_name("three", 0).unwrap();
    assert!(led_alone(context, &partition, context.clock.monotonic()).await);

    let disk = cluster.disk(id);
    let is_full = disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::Write));
    assert_eq!(produce(old, "three", -1).await.0, ErrorCode::KafkaStorageError);
    let other = cluster.node(NodeId(id.0 % 3 + 1));
    until(other, "another leader", |image| led_by(image, "three").is_some_and(|node| node != id)).await;
    assert_eq!(led_by(&context.image(), "three"), Some(id), "the old one has heard of it");
    assert!(partition.is_leader());
    assert!(!led_alone(context, &partition, context.clock.monotonic()).await);

    disk.clear(is_full);
    until(old, "another leader", |image| led_by(image, "three").is_some_and(|node| node != id)).await;
}

/// The same where an admin moves the partition, and only the leader's metadata log has no room.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_cannot_hear_of_its_successor_does_not_believe_to_lead() {
    let cluster = Cluster::start().await;
    let servers = &cluster.servers;
    // One that a node leads which is not the controller, whose own log has to be written.
    let mut topic = String::new();
    for number in 0..20 {
        topic = format!("topic-{number}");
        create(servers, &topic, &[]).await;
        if !leader_of(servers, &topic).context.metadata.is_controller() {
            break;
        }
    }
    let topic = &*topic;
    let old = leader_of(servers, topic);
    let (id, context) = (old.context.node_id, &old.context);
    let partition = context.partitions.by_name(topic, 0).unwrap();
    let deadline = context.clock.monotonic() + Duration::from_secs(10);
    while !context.lease.holds(context) {
        assert!(context.clock.monotonic() < deadline, "no heartbeat was taken");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let metadata = context.store.metadata_dir();
    let is_full = Fault::new(Failure::NoSpace).of(OperationKind::Write).on(metadata.to_str().unwrap());
    let is_full = cluster.disk(id).inject(is_full);
    let others: Vec<i32> = (1..=3).filter(|node| *node != id.0).collect();
    move_to(servers, topic, &others).await;
    until(cluster.node(NodeId(others[0])), "another leader", |image| led_by(image, topic) != Some(id)).await;
    let deadline = context.clock.monotonic() + Duration::from_secs(10);
    while context.metadata.hears().is_some() {
        assert!(context.clock.monotonic() < deadline, "its metadata log could be written");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(led_by(&context.image(), topic), Some(id), "the old one has heard of it");
    assert!(partition.is_leader() && !context.lease.holds(context));
    assert!(!led_alone(context, &partition, context.clock.monotonic()).await);

    cluster.disk(id).clear(is_full);
    until(old, "another leader", |image| led_by(image, topic) != Some(id)).await;
}

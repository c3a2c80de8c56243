//! A node whose only disk is full: what needs no space goes on, and it does not claim what it cannot know.

use klamm_io::{Disk, SystemClock, SystemNetwork};
use klamm_model::{ErrorCode, NodeId, topic_name};
use klamm_testing::{Failure, Fault, OperationKind, SeededRandom, SimulatedDisk};

use super::cluster_tests::{Cluster, until};
use super::replication_tests::{create, leader_of, produce};
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

/// Where a full disk keeps a leader from hearing that others were elected, it must not tell what only a leader knows,
/// though the controller takes its heartbeats.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_does_not_hear_of_its_successor_does_not_believe_to_lead() {
    let cluster = Cluster::start().await;
    create(&cluster.servers, "three", &[]).await;
    let old = leader_of(&cluster.servers, "three");
    let (id, context) = (old.context.node_id, &old.context);
    let partition = context.partitions.by_name("three", 0).unwrap();
    assert!(led_alone(context, &partition, context.clock.monotonic()).await);

    let disk = cluster.disk(id);
    let is_full = disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::Write));
    assert_eq!(produce(old, "three", -1).await.0, ErrorCode::KafkaStorageError);
    let leader = |image: &klamm_metadata::Image| image.topic_by_name("three").unwrap().partitions[0].leader;
    let other = cluster.node(NodeId(id.0 % 3 + 1));
    until(other, "another leader", |image| leader(image).is_some_and(|node| node != id)).await;
    assert!(!other.context.image().brokers[&id].fenced);
    assert_eq!(leader(&context.image()), Some(id), "the old one has heard of it");
    assert!(partition.is_leader());
    assert!(!led_alone(context, &partition, context.clock.monotonic()).await);

    disk.clear(is_full);
    until(old, "another leader", |image| leader(image).is_some_and(|node| node != id)).await;
}

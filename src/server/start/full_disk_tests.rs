//! A node whose only disk is full: what needs no space goes on.

use klamm_io::{Disk, SystemClock, SystemNetwork};
use klamm_model::topic_name;
use klamm_testing::{SeededRandom, SimulatedDisk};

use super::*;
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

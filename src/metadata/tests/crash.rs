//! The process or its machine may die at any moment. Whatever was answered before must be there afterwards,
//! the node must start again by itself, and nothing may be there that nobody asked for.
//!
//! The same work is done on a simulated disk that dies at its first change, then at its second, and so on
//! through all of them; each time, what was not synced is lost, kept, torn or scattered.

mod joining;

use std::sync::Arc;
use std::time::Duration;

use klamm_config::BrokerConfig;
use klamm_io::Disk;
use klamm_metadata::{
    Identity, Image, KafkaRules, MetadataNode, NoPeers, QuorumSettings, Settings, TopicDefaults, Voter,
};
use klamm_model::{NodeId, Uuid};
use klamm_protocol::messages::create_topics::{CreatableTopic, CreateTopicsRequest};
use klamm_protocol::messages::delete_topics::DeleteTopicsRequest;
use klamm_testing::{OperationKind, SeededRandom, SimulatedClock, SimulatedDisk, Unsynced};

const ID: NodeId = NodeId(1);
/// How long a test waits for a decision.
const PATIENCE: Duration = Duration::from_secs(60);

fn settings(disk: &SimulatedDisk) -> Settings {
    Settings {
        node_id: ID,
        directory_id: Uuid([3; 16]),
        identity: Identity::Of("crash".to_owned()),
        address: (String::new(), 0),
        listener: "CONTROLLER".to_owned(),
        voters: vec![Voter { id: ID, host: String::new(), port: 0 }],
        bootstrap_servers: Vec::new(),
        dir: "/data/klamm-metadata".into(),
        disk: Arc::new(disk.clone()),
        clock: Arc::new(SimulatedClock::new(1_700_000_000_000)),
        random: Arc::new(SeededRandom::new(5)),
        network: Arc::new(NoPeers),
        defaults: TopicDefaults::default(),
        rules: Arc::new(KafkaRules::new(Arc::new(BrokerConfig::defaults()))),
        quorum: QuorumSettings { snapshot_entries: 8, entries_kept: 3, ..QuorumSettings::default() },
    }
}

/// What was answered, and so must be there.
#[derive(Clone, Debug)]
struct Promised {
    topics: Vec<String>,
    deleted: Vec<String>,
    next_producer_id: i64,
    broker_epoch: i64,
}

impl Promised {
    fn nothing() -> Promised {
        Promised { topics: Vec::new(), deleted: Vec::new(), next_producer_id: 0, broker_epoch: -1 }
    }
}

/// Creates `topics` topics, deletes each third, and takes as many blocks of producer ids, until it is done or
/// the disk dies; notes what was answered.
async fn work(node: &MetadataNode, run: u8, topics: usize, promised: &mut Promised) {
    let Ok(epoch) = joining::register(node, ID, run, Uuid([3; 16])).await else { return };
    assert!(epoch > promised.broker_epoch, "a broker epoch was given twice");
    promised.broker_epoch = epoch;
    let Ok(()) = joining::unfence(node, ID, epoch).await else { return };
    for number in 0..topics {
        let name = format!("run-{run}-topic-{number}");
        let topic = CreatableTopic {
            name: name.clone(),
            num_partitions: 2,
            replication_factor: 1,
            ..Default::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..Default::default() };
        if node.within(PATIENCE).create_topics(request).await.topics[0].error_code != 0 {
            return;
        }
        promised.topics.push(name.clone());
        let Ok(block) = node.within(PATIENCE).allocate_producer_ids(ID, epoch).await else { return };
        assert!(block.start >= promised.next_producer_id, "producer ids were given twice");
        promised.next_producer_id = block.end;
        if number % 3 == 2 {
            let request = DeleteTopicsRequest { topic_names: vec![name.clone()], ..Default::default() };
            if node.within(PATIENCE).delete_topics(request).await.responses[0].error_code != 0 {
                // It may be gone or not.
                promised.topics.pop();
                return;
            }
            promised.topics.pop();
            promised.deleted.push(name);
        }
    }
}

fn check(image: &Image, promised: &Promised, point: &str) {
    for name in &promised.topics {
        let topic = image.topic_by_name(name).unwrap_or_else(|| panic!("{point}: {name} is lost"));
        assert_eq!(topic.partitions.len(), 2, "{point}: {name} is not whole");
    }
    for name in &promised.deleted {
        assert!(image.topic_by_name(name).is_none(), "{point}: {name} is back");
    }
    assert!(image.next_producer_id >= promised.next_producer_id, "{point}: producer ids are lost");
    assert!(image.brokers.get(&ID).map_or(-1, |broker| broker.epoch) >= promised.broker_epoch, "{point}");
    // One request was under way at most.
    assert!(image.topics.len() <= promised.topics.len() + 1, "{point}: topics that nobody asked for");
}

/// Starts a node, works, and stops it; `None` when the disk died before it had started.
async fn live(
    disk: &SimulatedDisk,
    run: u8,
    topics: usize,
    promised: &mut Promised,
    point: &str,
) -> Option<()> {
    let (node, running) = MetadataNode::start_here(settings(disk)).await.ok()?;
    check(&node.image(), promised, point);
    let script = async {
        work(&node, run, topics, promised).await;
        node.shutdown();
    };
    tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(running, script) })
        .await
        .unwrap_or_else(|_| panic!("{point}: the node hangs"));
    Some(())
}

fn on_paused_runtime<T>(future: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

fn new_disk(seed: u64) -> SimulatedDisk {
    let disk = SimulatedDisk::new(seed);
    disk.create_dir_all("/data".as_ref()).unwrap();
    disk.sync_dir("/".as_ref()).unwrap();
    disk
}

#[test]
fn nothing_that_was_answered_is_lost_wherever_the_disk_dies() {
    let disk = new_disk(1);
    let before = disk.counters().changes();
    let mut promised = Promised::nothing();
    on_paused_runtime(live(&disk, 1, 9, &mut promised, "no crash")).unwrap();
    let changes = disk.counters().changes() - before;
    assert_eq!(
        (promised.topics.len(), promised.deleted.len()),
        (6, 3),
        "the work must be done without a crash"
    );
    assert!(disk.counters().calls(OperationKind::Rename) > 3, "the work must make snapshots too");
    for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Torn, Unsynced::Scattered] {
        for point in 0..changes {
            let name = format!("{unsynced:?} after {point} changes");
            let disk = new_disk(point);
            disk.crash_after(point);
            let mut promised = Promised::nothing();
            on_paused_runtime(live(&disk, 1, 9, &mut promised, &name));
            assert!(disk.is_down(), "{name}: the work ended before the crash");
            let disk = disk.crash_leaving(unsynced);
            on_paused_runtime(live(&disk, 2, 1, &mut promised, &name))
                .unwrap_or_else(|| panic!("{name}: no restart"));
            assert!(promised.topics.contains(&"run-2-topic-0".to_owned()), "{name}: it does not work again");
        }
    }
}

/// A disk error that goes away must not be taken for success, nor be forgotten: the node says that it failed.
#[test]
fn a_failing_disk_ends_the_node_with_a_reason() {
    on_paused_runtime(async {
        let disk = new_disk(1);
        let (node, running) = MetadataNode::start_here(settings(&disk)).await.unwrap();
        let script = async {
            let mut promised = Promised::nothing();
            work(&node, 1, 1, &mut promised).await;
            disk.crash_after(0);
            let topic = CreatableTopic {
                name: "lost".to_owned(),
                num_partitions: 1,
                replication_factor: 1,
                ..Default::default()
            };
            let request = CreateTopicsRequest { topics: vec![topic], ..Default::default() };
            let reply = node.within(PATIENCE).create_topics(request).await;
            assert_eq!(reply.topics[0].error_code, 56, "{reply:?}");
            assert!(node.image().topic_by_name("lost").is_none());
            let reason = node.failure().await;
            assert!(!reason.is_empty());
        };
        tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(running, script) }).await.unwrap();
    });
}

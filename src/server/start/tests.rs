//! A node whose disk fails, from its start to its stop, on real sockets and a simulated disk.
#![allow(clippy::disallowed_methods)]

use std::io;
use std::path::Path;

use klamm_io::{Entry, File, OpenMode, SystemClock, SystemNetwork};
use klamm_model::ErrorCode;
use klamm_model::topic_name::GROUP_METADATA;
use klamm_partition::{AppendOptions, Partition};
use klamm_protocol::messages::create_partitions::{CreatePartitionsRequest, CreatePartitionsTopic};
use klamm_protocol::messages::create_topics::{CreatableTopic, CreateTopicsRequest};
use klamm_protocol::messages::delete_records::{
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsResponse, DeleteRecordsTopic,
};
use klamm_protocol::messages::list_groups::ListGroupsRequest;
use klamm_protocol::{Message, Reader, RequestHeader, encode_request};
use klamm_records::{BatchBuilder, BatchSettings, Origin};
use klamm_testing::{Failure, Fault, GatedDisk, OperationKind, SeededRandom, SimulatedDisk};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

fn config() -> BrokerConfig {
    let settings = [
        ("listeners", "PLAINTEXT://127.0.0.1:0"),
        ("log.dirs", "/data"),
        ("klamm.http.listener", "127.0.0.1:0"),
    ];
    let overrides = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let (config, _) = klamm_config::load(&klamm_config::Sources { overrides, ..Default::default() }).unwrap();
    config
}

pub(super) async fn node(disk: Arc<dyn Disk>) -> Server {
    let machine = Machine {
        disk,
        network: Arc::new(SystemNetwork),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SeededRandom::new(1)),
        threads: Threads::default(),
        loggers: Arc::default(),
    };
    start(config(), machine).await.unwrap()
}

pub(super) async fn create(server: &Server, topic: &str) {
    server.context.metadata.within(Duration::from_secs(30)).auto_create_topics(vec![topic.to_owned()]).await;
}

pub(super) async fn is_served(server: &Server, topic: &str) -> bool {
    for _ in 0..200 {
        if server.context.partitions.by_name(topic, 0).is_some_and(|partition| partition.is_leader()) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    false
}

/// A full disk kept a new partition from being opened, and it was not tried again when there was room: clients
/// were told UNKNOWN_TOPIC_OR_PARTITION until somebody restarted the broker.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_could_not_be_opened_is_opened_when_the_disk_has_room() {
    let disk = SimulatedDisk::new(1);
    let server = node(Arc::new(disk.clone())).await;
    let full = disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::Create).on("/data/late-0"));
    create(&server, "late").await;
    server.context.await_applied(10_000).await;
    assert!(server.context.partitions.by_name("late", 0).is_none(), "the disk is full");
    create(&server, "other").await;
    assert!(is_served(&server, "other").await, "the others are not kept from it");
    disk.clear(full);
    assert!(is_served(&server, "late").await);
    server.stop().await;
}

/// What changed between two images was told by a library that passed over the first entry after what both share: now
/// and then a topic that was made or got another leader was not looked at, and nobody served it until the broker was
/// started anew.
#[tokio::test(flavor = "multi_thread")]
async fn every_change_of_one_topic_among_many_is_followed() {
    let server = node(Arc::new(SimulatedDisk::new(1))).await;
    let names: Vec<String> = (0..100).map(|number| format!("topic-{number}")).collect();
    for name in &names {
        create(&server, name).await;
    }
    let metadata = server.context.metadata.within(Duration::from_secs(30));
    for name in &names {
        let topic = CreatePartitionsTopic { name: name.clone(), count: 2, assignments: None };
        let request = CreatePartitionsRequest { topics: vec![topic], ..Default::default() };
        let made = metadata.create_partitions(request).await;
        assert_eq!(made.results[0].error_code, ErrorCode::None.code(), "{:?}", made.results[0]);
        server.context.await_applied(10_000).await;
    }
    let is_served = |name: &&String| server.context.partitions.by_name(name, 1).is_some();
    let unserved: Vec<&String> = names.iter().filter(|name| !is_served(name)).collect();
    assert!(unserved.is_empty(), "nobody serves the second partitions of {unserved:?}");
    server.stop().await;
}

/// A disk on which nothing may be made in one folder: whoever tries meets a mistake of ours.
struct Trap(SimulatedDisk);

impl Disk for Trap {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        assert!(!path.ends_with("trap-0"), "this panic is part of the test");
        self.0.create_dir_all(path)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.0.open(path, mode)
    }
    fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.0.read_dir(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.0.remove_file(path)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.0.remove_dir_all(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.0.sync_dir(path)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.0.exists(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.0.lock(path)
    }
    fn space(&self, path: &Path) -> io::Result<(u64, u64)> {
        self.0.space(path)
    }
}

/// After a panic the partitions followed the metadata no more, and the broker lived on: new topics were never
/// served, deleted ones for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_partitions_no_longer_follow_has_failed() {
    let server = node(Arc::new(Trap(SimulatedDisk::new(1)))).await;
    create(&server, "fine").await;
    assert!(is_served(&server, "fine").await);
    let well = tokio::time::timeout(Duration::from_millis(50), server.failed()).await;
    assert!(well.is_err(), "all is well: {well:?}");
    create(&server, "trap").await;
    let reason = tokio::time::timeout(Duration::from_secs(20), server.failed()).await.unwrap();
    assert!(reason.contains("do not follow"), "{reason}");
}

/// While the thousands of logs of a new topic were made, no other partition had a new leader.
#[tokio::test(flavor = "multi_thread")]
async fn the_logs_of_a_large_topic_are_made_in_parts() {
    let gated = GatedDisk::of_syncs(SimulatedDisk::new(1), "large-300", "tmp");
    let server = node(Arc::new(gated.clone())).await;
    let topic = CreatableTopic {
        name: "large".to_owned(),
        num_partitions: 600,
        replication_factor: 1,
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
    let answer = server.context.controller.ask(request, Duration::from_secs(10)).await;
    assert_eq!(answer.topics[0].error_code, 0, "{:?}", answer.topics[0].error_message);
    assert!(is_served(&server, "large").await, "the first ones are served while others are made");
    assert!(server.context.partitions.by_name("large", 300).is_none());
    let all = tokio::time::timeout(Duration::from_millis(100), server.context.await_applied(10_000)).await;
    assert!(all.is_err(), "who waits for the topic waits for all of it");
    gated.open_up();
    server.context.await_applied(20_000).await;
    let table = server.context.partitions.load();
    assert!(table.partitions().filter(|partition| partition.is_leader()).count() >= 600);
    drop(table);
    server.stop().await;
}

/// A kill after a topic's deletion was decided and before its folders were renamed.
#[tokio::test(flavor = "multi_thread")]
async fn folders_of_a_deleted_topic_go_at_the_next_start() {
    let disk = SimulatedDisk::new(1);
    let server = node(Arc::new(disk.clone())).await;
    create(&server, "kept").await;
    assert!(is_served(&server, "kept").await);
    let store = &server.context.store;
    let left = klamm_model::TopicPartition::new("left", 0);
    let id = klamm_model::Uuid([9; 16]);
    store.create(&left, id, klamm_storage::LogConfig::default()).unwrap();
    let disk = disk.kill();
    let server = node(Arc::new(disk.clone())).await;
    assert!(server.context.store.get(&left).is_none());
    assert!(!disk.exists(Path::new("/data/left-0")).unwrap());
    assert!(is_served(&server, "kept").await);
    server.stop().await;
}

/// After a clean stop a broker registered as if it might have lost what it had acknowledged. On its own it led again
/// all the same, marked as one that has to recover; in a cluster it was no eligible leader any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_has_stopped_cleanly_registers_as_such() {
    let disk = SimulatedDisk::new(1);
    let server = node(Arc::new(disk.clone())).await;
    create(&server, "topic").await;
    assert!(is_served(&server, "topic").await);
    let epoch = server.context.broker_epoch();
    server.stop().await;
    let server = node(Arc::new(disk.clone())).await;
    assert!(server.context.broker_epoch() > epoch);
    assert_eq!(server.context.store.previous_broker_epoch(), Some(epoch));
    let image = server.context.image();
    let state = image.topic_by_name("topic").unwrap().partition(0).unwrap();
    assert_eq!(state.recovery, klamm_metadata::RecoveryState::Recovered);
    server.stop().await;
}

/// After a kill nobody was served before gigabytes of other partitions had been checked.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_serves_what_needs_no_recovery_while_it_recovers_the_rest() {
    let disk = SimulatedDisk::new(1);
    let server = node(Arc::new(disk.clone())).await;
    create(&server, "idle").await;
    assert!(is_served(&server, "idle").await);
    append(&server.context.partitions.by_name("idle", 0).unwrap());
    server.stop().await;
    let server = node(Arc::new(disk.clone())).await;
    create(&server, "topic").await;
    assert!(is_served(&server, "topic").await);
    append(&server.context.partitions.by_name("topic", 0).unwrap());
    let disk = disk.kill();

    let gated = GatedDisk::new(disk.clone(), "topic-0", "log");
    let server = node(Arc::new(gated.clone())).await;
    assert!(is_served(&server, "idle").await);
    gated.await_arrival();
    let port = server.listeners[0].1;
    let unknown = (ErrorCode::UnknownTopicOrPartition.code(), -1);
    assert_eq!(delete_records(port).await, [(ErrorCode::NotLeaderOrFollower.code(), -1), unknown]);
    let id = server.context.image().topic_by_name("topic").unwrap().id;
    let missing = |id, index| server.context.missing_partition(id, "topic", index);
    assert_eq!(missing(Some(id), 0), ErrorCode::NotLeaderOrFollower);
    assert_eq!(missing(Some(id), 9), ErrorCode::UnknownTopicOrPartition);
    assert_eq!(missing(Some(klamm_model::Uuid([9; 16])), 0), ErrorCode::UnknownTopicId);
    gated.open_up();
    assert!(is_served(&server, "topic").await);
    assert_eq!(delete_records(port).await, [(0, 1), unknown]);
    server.stop().await;
    assert!(disk.exists(Path::new("/data/.kafka_cleanshutdown")).unwrap());
}

/// A log of the groups' topic that could not be recovered had all groups of the node listed as loading, until a restart.
#[tokio::test(flavor = "multi_thread")]
async fn groups_are_listed_when_the_recovery_of_a_part_of_them_has_failed() {
    let disk = SimulatedDisk::new(1);
    let server = node(Arc::new(disk.clone())).await;
    crate::topic_creation::create_for_coordinator(&server.context, GROUP_METADATA).await;
    assert!(is_served(&server, GROUP_METADATA).await);
    let mut batch = BatchBuilder::v2(BatchSettings::default());
    batch.append(1, Some(b"key"), Some(b"value"), &[]);
    let partition = server.context.partitions.by_name(GROUP_METADATA, 0).unwrap();
    partition.append_as_leader(batch.build(), &AppendOptions::of_coordinator(None, None)).unwrap();
    let disk = disk.kill();

    for kind in [OperationKind::Create, OperationKind::Write, OperationKind::SetLen] {
        disk.inject(Fault::new(Failure::NoSpace).of(kind).on("__consumer_offsets-0"));
    }
    let gated = GatedDisk::new(disk.clone(), "__consumer_offsets-0", "log");
    let server = node(Arc::new(gated.clone())).await;
    gated.await_arrival();
    let list = async || {
        let client = klamm_coordinator::Client {
            client_id: "lists".to_owned(),
            client_host: "/127.0.0.1".to_owned(),
            api_version: 4,
        };
        let answer = server.context.groups.list_groups(&client, ListGroupsRequest::default()).await;
        ErrorCode::from_code(answer.error_code).unwrap()
    };
    assert_eq!(list().await, ErrorCode::CoordinatorLoadInProgress);
    gated.open_up();
    let listed = async {
        while list().await != ErrorCode::None {
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), listed).await.expect("groups are listed");
    assert!(server.context.partitions.by_name(GROUP_METADATA, 0).is_none(), "its log could not be recovered");
    server.stop().await;
}

/// DeleteRecords was answered with success though its checkpoint could not be written: after a crash the records
/// were back.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_would_not_outlive_a_crash_does_not_succeed() {
    let disk = SimulatedDisk::new(1);
    let server = node(Arc::new(disk.clone())).await;
    create(&server, "topic").await;
    assert!(is_served(&server, "topic").await);
    let partition = server.context.partitions.by_name("topic", 0).unwrap();
    append(&partition);
    let port = server.listeners[0].1;
    let unknown = (ErrorCode::UnknownTopicOrPartition.code(), -1);
    let fault = disk.inject(Fault::new(Failure::NoSpace).on("log-start-offset-checkpoint"));
    assert_eq!(delete_records(port).await, [(ErrorCode::KafkaStorageError.code(), -1), unknown]);
    disk.clear(fault);
    assert_eq!(delete_records(port).await, [(0, 1), unknown]);
    server.stop().await;
}

/// A GET over HTTP: the status line and the body.
async fn get(server: &Server, path: &str) -> (String, String) {
    let mut stream = tokio::net::TcpStream::connect(server.http.unwrap()).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

/// While the disk of the metadata was full, a client waited for as long as it was, whatever it had said.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_waits_for_a_full_disk_is_answered_in_time() {
    let disk = SimulatedDisk::new(1);
    let server = node(Arc::new(disk.clone())).await;
    let full = disk.inject(Fault::new(Failure::NoSpace).on("/data/klamm-metadata"));
    let defaults = topic_defaults(&server.context.config());
    let request = klamm_metadata::controller::request_for_auto_creation(["late"], &defaults);
    let asked = server.context.controller.ask(request, Duration::from_millis(300));
    let answer = tokio::time::timeout(Duration::from_secs(20), asked).await.expect("it is answered");
    assert_eq!(answer.topics[0].error_code, ErrorCode::RequestTimedOut.code());
    disk.clear(full);
    assert!(is_served(&server, "late").await, "it is decided when there is space");
    server.stop().await;
}

/// A probe that asks a node with a failed log was told that all is well.
#[tokio::test(flavor = "multi_thread")]
async fn health_tells_which_log_failed() {
    let disk = SimulatedDisk::new(1);
    let server = node(Arc::new(disk.clone())).await;
    create(&server, "topic").await;
    assert!(is_served(&server, "topic").await);
    assert_eq!(get(&server, "/health").await, ("HTTP/1.1 200 OK".to_owned(), "ok\n".to_owned()));
    assert_eq!(get(&server, "/").await.0, "HTTP/1.1 404 Not Found");
    let partition = server.context.partitions.by_name("topic", 0).unwrap();
    append(&partition);
    disk.inject(Fault::new(Failure::Device).of(OperationKind::SyncData).on("topic-0"));
    partition.flush().await.unwrap_err();
    let (status, body) = get(&server, "/health").await;
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
    assert!(
        body.starts_with("log directory /data is offline: ")
            && body.contains("topic-0 is offline: ")
            && body.contains("/data/topic-0/"),
        "{body}"
    );
}

/// A partition that does not open has no log, and nobody asked about it.
#[tokio::test(flavor = "multi_thread")]
async fn health_tells_of_partitions_that_do_not_open() {
    let disk = SimulatedDisk::new(1);
    let server = node(Arc::new(disk.clone())).await;
    let full = disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::Create).on("/data/late-0"));
    create(&server, "late").await;
    server.context.await_applied(10_000).await;
    let (status, body) = get(&server, "/health").await;
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
    assert!(body.starts_with("late-0 cannot be served"), "{body}");
    assert!(get(&server, "/metrics").await.1.contains("\nklamm_unserved_partitions 1\n"));
    disk.clear(full);
    assert!(is_served(&server, "late").await);
    assert_eq!(get(&server, "/health").await.1, "ok\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_what_the_node_does() {
    let server = node(Arc::new(SimulatedDisk::new(1))).await;
    create(&server, "topic").await;
    assert!(is_served(&server, "topic").await);
    append(&server.context.partitions.by_name("topic", 0).unwrap());
    delete_records(server.listeners[0].1).await;
    let (status, page) = get(&server, "/metrics").await;
    assert_eq!(status, "HTTP/1.1 200 OK");
    for line in [
        "klamm_active_controller 1",
        "klamm_leader_partitions 1",
        "klamm_under_replicated_partitions 0",
        "klamm_at_min_isr_partitions 1",
        "klamm_offline_partitions 0",
        "klamm_log_segments 1",
        "klamm_request_seconds_count{api=\"DeleteRecords\"} 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in:\n{page}");
    }
    assert!(page.ends_with("# EOF\n"));
    server.stop().await;
}

fn append(partition: &Partition) {
    let mut batch = BatchBuilder::v2(BatchSettings::default());
    batch.append(1, None, Some(b"value"), &[]);
    let (origin, expected_leader_epoch) = (Origin::Coordinator, None);
    let options = AppendOptions { origin, produce_version: 9, acks: -1, expected_leader_epoch, guard: None };
    partition.append_as_leader(batch.build(), &options).unwrap();
}

/// Deletes all records of `topic`'s partition 0, and of a partition that is not there.
async fn delete_records(address: SocketAddr) -> Vec<(i16, i64)> {
    let partition = |partition_index| DeleteRecordsPartition { partition_index, offset: -1 };
    let topic = DeleteRecordsTopic { name: "topic".to_owned(), partitions: vec![partition(0), partition(7)] };
    let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 1000 };
    let body = ask(address, 21, 1, &request).await;
    let answer = DeleteRecordsResponse::decode(&mut Reader::new(body), 1).unwrap();
    let results = answer.topics[0].partitions.iter();
    results.map(|result| (result.error_code, result.low_watermark)).collect()
}

/// Asks on a connection of its own; returns the answer behind its header, which must be one of the first version.
pub(super) async fn ask(
    address: SocketAddr,
    api_key: i16,
    version: i16,
    request: &impl klamm_protocol::Request,
) -> bytes::Bytes {
    let header = RequestHeader { api_key, api_version: version, correlation_id: 5, client_id: None };
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(&encode_request(&header, request).unwrap()).await.unwrap();
    let len = stream.read_u32().await.unwrap();
    let mut answer = vec![0; len as usize];
    stream.read_exact(&mut answer).await.unwrap();
    bytes::Bytes::from(answer).slice(4..)
}

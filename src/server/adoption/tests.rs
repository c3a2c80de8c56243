//! A node starts on directories that real Apache Kafka wrote: all of their records are served, groups go on where
//! they were, producers go on with their sequence numbers, and the way back works.
#![allow(clippy::disallowed_methods)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use klamm_coordinator::Client;
use klamm_io::{Disk, SystemDisk, SystemNetwork, Threads};
use klamm_model::{IsolationLevel, Offset, TopicPartition};
use klamm_partition::{AppendOptions, Partition, ReadOptions, Reader};
use klamm_protocol::messages::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestTopic};
use klamm_records::{Batch, Origin, batches};
use klamm_testing::{HostClock, SeededRandom, SimulatedDisk};
use serde_json::Value;

use crate::start::{Machine, Server, StartError, start};

const LOGS: &str = "/data";
const VERSIONS: [&str; 4] = ["4.4", "3.9", "2.8", "4.4-killed"];
/// An hour after the fixtures were made, in milliseconds since 1970: a producer that was silent for a day is forgotten.
const SOON_AFTER_MS: i64 = 1_795_988_700_000;

fn fixture_dir(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/dir").join(version)
}

fn fixture(version: &str) -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    disk.copy_from(&SystemDisk, &fixture_dir(version).join("data"), Path::new(LOGS)).unwrap();
    disk
}

/// Each start is another process, which draws other numbers: by its incarnation the controller tells it from the one before.
fn machine(disk: &SimulatedDisk) -> Machine {
    static STARTS: AtomicU64 = AtomicU64::new(1);
    Machine {
        disk: Arc::new(disk.clone()),
        network: Arc::new(SystemNetwork),
        clock: Arc::new(HostClock::starting_now(SOON_AFTER_MS)),
        random: Arc::new(SeededRandom::new(STARTS.fetch_add(1, Ordering::Relaxed))),
        threads: Threads::default(),
        loggers: Arc::default(),
    }
}

/// Starts with the directory's own properties file, but on another port.
async fn node(disk: &SimulatedDisk, version: &str) -> Result<Server, StartError> {
    let path = fixture_dir(version).join("server.properties");
    let text = std::fs::read_to_string(&path).unwrap();
    let overrides = [
        ("listeners", "PLAINTEXT://127.0.0.1:0"),
        ("advertised.listeners", "PLAINTEXT://127.0.0.1:9092"),
        ("controller.listener.names", ""),
        ("log.dirs", LOGS),
    ];
    let overrides = overrides.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let sources = klamm_config::Sources { file: Some((path, text)), overrides, ..Default::default() };
    let (config, _) = klamm_config::load(&sources).unwrap();
    start(config, machine(disk)).await
}

/// What stands in the file of expectations beside the partition's folder, and whether that lists control records.
fn expected(version: &str, name: &str) -> Option<(Vec<Value>, bool)> {
    let read =
        |kind: &str| std::fs::read_to_string(fixture_dir(version).join(format!("{name}.{kind}.jsonl"))).ok();
    let (text, is_all) = match read("expected") {
        Some(text) => (text, true),
        None => (read("after-recovery")?, false),
    };
    Some((text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), is_all))
}

fn read_all(partition: &Partition) -> Vec<Batch> {
    let options = ReadOptions {
        reader: Reader::Consumer(IsolationLevel::ReadUncommitted),
        bytes_max: 1 << 20,
        at_least_one: true,
        current_leader_epoch: None,
        last_fetched_epoch: None,
    };
    let mut found = Vec::new();
    let mut from: Offset = partition.offsets().log_start;
    loop {
        let read = partition.read(from, &options).unwrap();
        let Some(slice) = read.slice else { return found };
        for batch in batches(slice.to_bytes().unwrap()) {
            let batch = batch.unwrap();
            from = batch.header.next_offset();
            found.push(batch);
        }
    }
}

/// Offset, timestamp, key and value, as the files of expectations write them.
fn lines(partition: &Partition, with_control: bool) -> Vec<(i64, i64, Option<String>, Option<String>)> {
    let text = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map(|bytes| base64(bytes));
    let all = read_all(partition);
    let listed = all.iter().filter(|batch| with_control || !batch.header.is_control());
    let records = listed.flat_map(|batch| batch.records().unwrap());
    records.map(|it| (it.offset, it.timestamp, text(&it.key), text(&it.value))).collect()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        let digits = (0..4).map(|index| DIGITS[(bits >> (18 - 6 * index)) as usize & 63] as char);
        text.extend(digits.enumerate().map(|(index, digit)| if index <= group.len() { digit } else { '=' }));
    }
    text
}

/// A partition that leads; one whose log has to be checked first comes while the others are served.
async fn serving(server: &Server, topic: &str, index: i32) -> Arc<Partition> {
    for _ in 0..400 {
        if let Some(partition) = server.context().partitions.by_name(topic, index)
            && partition.is_leader()
        {
            return partition;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{topic}-{index} is not served")
}

async fn partitions(server: &Server) -> Vec<(TopicPartition, Arc<Partition>)> {
    let image = server.context().image();
    let mut found = Vec::new();
    for topic in image.topics.values() {
        for index in 0..topic.partitions.len() as i32 {
            let partition = serving(server, &topic.name, index).await;
            found.push((TopicPartition::new(Arc::clone(&topic.name), index), partition));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn all_records_of_all_versions_are_served_and_stay_through_a_restart() {
    for version in VERSIONS {
        let disk = fixture(version);
        for run in ["the takeover", "a restart"] {
            let server = node(&disk, version).await.unwrap();
            let mut compared = 0;
            for (name, partition) in partitions(&server).await {
                let Some((expected, is_all)) = expected(version, &name.to_string()) else { continue };
                let field = |line: &Value, name: &str| line[name].as_str().map(str::to_owned);
                let expected = expected.iter().map(|line| {
                    let number = |name: &str| line[name].as_i64().unwrap();
                    (number("offset"), number("timestamp"), field(line, "key"), field(line, "value"))
                });
                let expected: Vec<_> = expected.collect();
                let found = lines(&partition, is_all);
                assert_eq!(found.len(), expected.len(), "{version}, {run}: {name}");
                for (found, expected) in found.iter().zip(&expected) {
                    assert_eq!(found, expected, "{version}, {run}: {name}");
                }
                compared += expected.len();
            }
            assert!(compared > 60, "{version}, {run}: {compared} records");
            server.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_go_on_at_their_committed_offsets() {
    for version in ["4.4", "3.9", "2.8"] {
        let server = node(&fixture(version), version).await.unwrap();
        let client = Client { api_version: 5, ..Client::default() };
        let topics = vec![OffsetFetchRequestTopic { name: "alpha".to_owned(), partition_indexes: vec![0] }];
        let mut found = (-1, String::new());
        for _ in 0..200 {
            let request = OffsetFetchRequest {
                group_id: "directory-group".to_owned(),
                topics: Some(topics.clone()),
                ..Default::default()
            };
            let response = server.context().groups.offset_fetch(&client, request).await;
            if response.error_code == 0 && !response.topics.is_empty() {
                let partition = &response.topics[0].partitions[0];
                found = (partition.committed_offset, partition.metadata.clone().unwrap_or_default());
                break;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        assert_eq!(found, (17, "seventeen".to_owned()), "{version}");
        server.stop().await;
    }
}

/// A producer that did not hear of its last batch sends it again, to whoever serves the partition then.
#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_producer_of_before_is_recognized() {
    for version in ["4.4", "3.9", "2.8"] {
        let server = node(&fixture(version), version).await.unwrap();
        let partition = serving(&server, "beta.with_dots", 0).await;
        let last = read_all(&partition).pop().unwrap();
        assert!(last.header.producer_id.0 >= 0 && last.header.base_sequence >= 0, "{version}");
        let options = AppendOptions {
            origin: Origin::Client,
            produce_version: 9,
            acks: 1,
            expected_leader_epoch: None,
            guard: None,
        };
        let end = partition.offsets().log_end;
        let again = partition.append_as_leader(last.bytes.clone(), &options);
        let appended = again.unwrap_or_else(|error| panic!("{version}: {error}"));
        assert_eq!(appended.base_offset, last.header.base_offset, "{version}");
        assert_eq!(partition.offsets().log_end, end, "{version}: a record was stored twice");
        server.stop().await;
    }
}

/// Released and taken over again, a directory has all topics and records, with those that came in between.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_can_be_given_back_and_taken_over_again() {
    for version in ["4.4", "3.9", "2.8"] {
        let disk = fixture(version);
        let server = node(&disk, version).await.unwrap();
        server
            .context()
            .metadata
            .within(Duration::from_secs(30))
            .auto_create_topics(vec!["new".to_owned()])
            .await;
        server.context().await_applied(10_000).await;
        let before = server.context().image();
        let error =
            crate::release(vec![LOGS.into()], crate::Others::Stay, &machine(&disk)).unwrap_err().to_string();
        assert!(error.contains("another process uses this log directory"), "{error}");
        server.stop().await;
        let lines = crate::release(vec![LOGS.into()], crate::Others::Stay, &machine(&disk)).unwrap();
        assert!(lines[0].starts_with("5 topics with 11 partitions were given back"), "{lines:?}");
        let identity = String::from_utf8(disk.read(Path::new("/data/meta.properties")).unwrap()).unwrap();
        assert!(identity.contains("version=1\n") && identity.contains("node.id=1\n"), "{identity}");
        assert!(!disk.exists(Path::new("/data/klamm-metadata")).unwrap());
        let error =
            crate::release(vec![LOGS.into()], crate::Others::Stay, &machine(&disk)).unwrap_err().to_string();
        assert!(error.contains("the directory is Apache Kafka's already"), "{error}");
        let server = node(&disk, version).await.unwrap();
        let after = server.context().image();
        assert_eq!(after.topic_ids, before.topic_ids, "{version}");
        assert_eq!(after.features, before.features, "{version}");
        assert_eq!(after.next_producer_id, before.next_producer_id, "{version}");
        assert_eq!(
            after.topic_config("beta.with_dots").get("cleanup.policy"),
            before.topic_config("beta.with_dots").get("cleanup.policy")
        );
        for (topic, earlier) in after.topics.values().zip(before.topics.values()) {
            let epochs = topic.partitions.iter().zip(&earlier.partitions);
            assert!(epochs.into_iter().all(|(now, then)| now.leader_epoch > then.leader_epoch), "{version}");
        }
        assert!(after.brokers[&klamm_model::NodeId(1)].epoch > before.brokers[&klamm_model::NodeId(1)].epoch);
        server.stop().await;
    }
}

/// Directories in another order than that of log.dirs gave an empty cluster back, and said that all was well.
#[tokio::test(flavor = "multi_thread")]
async fn directories_in_another_order_are_not_given_back() {
    let disk = SimulatedDisk::new(1);
    let two = |first: &str, second: &str| vec![first.into(), second.into()];
    let settings = [("listeners", "PLAINTEXT://127.0.0.1:0"), ("log.dirs", "/one,/two")];
    let overrides = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let sources = klamm_config::Sources { overrides, ..Default::default() };
    let (config, _) = klamm_config::load(&sources).unwrap();
    crate::start(config, machine(&disk)).await.unwrap().stop().await;
    let refused =
        crate::release(two("/two", "/one"), crate::Others::Stay, &machine(&disk)).unwrap_err().to_string();
    assert!(refused.contains("in the same order"), "{refused}");
    let refused =
        crate::release(vec!["/one".into()], crate::Others::Stay, &machine(&disk)).unwrap_err().to_string();
    assert!(refused.contains("director"), "{refused}");
    let lines = crate::release(two("/one", "/two"), crate::Others::Stay, &machine(&disk)).unwrap();
    assert!(lines[0].starts_with("0 topics"), "{lines:?}");
}

/// Wherever the machine dies while a directory is given back, it is Klamm's with all of its metadata, or Apache
/// Kafka's, or a second release completes the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_is_cut_short_can_be_done_again() {
    let original = fixture("4.4");
    let server = node(&original, "4.4").await.unwrap();
    let topics = server.context().image().topic_ids.clone();
    server.stop().await;
    let whole = original.kill();
    let before = whole.counters().changes();
    crate::release(vec![LOGS.into()], crate::Others::Stay, &machine(&whole)).unwrap();
    let changes = whole.counters().changes() - before;
    for point in 0..changes {
        let disk = fixture("4.4");
        node(&disk, "4.4").await.unwrap().stop().await;
        disk.crash_after(point);
        assert!(
            crate::release(vec![LOGS.into()], crate::Others::Stay, &machine(&disk)).is_err(),
            "{point} of {changes}"
        );
        let disk = disk.crash();
        let again = crate::release(vec![LOGS.into()], crate::Others::Stay, &machine(&disk));
        if let Err(error) = again {
            assert!(error.to_string().contains("is Apache Kafka's already"), "{point}: {error}");
        }
        assert!(!disk.exists(Path::new("/data/klamm-metadata")).unwrap(), "{point}");
        let server = node(&disk, "4.4").await.unwrap_or_else(|error| panic!("{point}: {error}"));
        assert_eq!(server.context().image().topic_ids, topics, "{point}");
        server.stop().await;
    }
}

//! Groups that Apache Kafka 0.10.2, 2.8 and 4.4 stored: after loading them, each group is what Kafka's own
//! admin client saw before the broker stopped. A coordinator that loads less has lost committed offsets.
#![allow(clippy::disallowed_methods, reason = "fixtures are read with std")]

mod memory;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use klamm_coordinator::group::GroupRecord;
use klamm_coordinator::{Client, GroupCoordinator, GroupSettings};
use klamm_io::SystemClock;
use klamm_model::{ErrorCode, LeaderEpoch, Uuid};
use klamm_protocol::decode_versioned;
use klamm_protocol::messages::describe_groups::{DescribeGroupsRequest, DescribedGroup};
use klamm_protocol::messages::list_groups::ListGroupsRequest;
use klamm_protocol::messages::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use klamm_protocol::records::control::ConsumerProtocolAssignment;
use klamm_records::batches;
use klamm_testing::SeededRandom;
use memory::{MemoryLog, Surroundings};
use serde_json::Value;

fn folder(version: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = here.ancestors().map(|up| up.join("fixtures/offsets")).find(|folder| folder.is_dir());
    found.expect("fixtures/offsets stands in the root of the project").join(version)
}

/// The content of each partition of `__consumer_offsets` in a fixture.
fn partitions(version: &str) -> BTreeMap<i32, Bytes> {
    let mut partitions = BTreeMap::new();
    for entry in std::fs::read_dir(folder(version)).expect("the fixture") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix("__consumer_offsets-").and_then(|number| number.parse().ok());
        let Some(number) = number else { continue };
        let files = std::fs::read_dir(&path).expect("a partition").map(|file| file.expect("an entry").path());
        let mut files: Vec<_> =
            files.filter(|file| file.extension().is_some_and(|end| end == "log")).collect();
        files.sort();
        let content = files.iter().flat_map(|file| std::fs::read(file).expect("a segment"));
        partitions.insert(number, content.collect::<Vec<u8>>().into());
    }
    partitions
}

async fn loaded(version: &str) -> GroupCoordinator {
    let surroundings = Surroundings::with_all_partitions(&[("work", Uuid::ZERO, 4)]);
    // A small buffer, so that batches are cut.
    let settings = GroupSettings { offsets_load_buffer_size: 700, ..GroupSettings::default() };
    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SeededRandom::new(1)));
    let coordinator = GroupCoordinator::new(settings, clock, random, surroundings);
    for (number, content) in partitions(version) {
        coordinator.open(number, LeaderEpoch(0), MemoryLog::holding(content));
    }
    let loading = ErrorCode::CoordinatorLoadInProgress.code();
    while coordinator.list_groups(&Client::default(), ListGroupsRequest::default()).await.error_code
        == loading
    {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    coordinator
}

async fn describe(coordinator: &GroupCoordinator, group: &str) -> DescribedGroup {
    let client = Client { api_version: 6, ..Client::default() };
    let request = DescribeGroupsRequest { groups: vec![group.to_owned()], ..Default::default() };
    coordinator.describe_groups(&client, request).await.groups.remove(0)
}

/// Committed offsets as `groups.jsonl` shows them.
async fn offsets(coordinator: &GroupCoordinator, group: &str) -> Value {
    let client = Client { api_version: 9, ..Client::default() };
    let group = OffsetFetchRequestGroup { group_id: group.to_owned(), topics: None, ..Default::default() };
    let request = OffsetFetchRequest { groups: vec![group], ..Default::default() };
    let group = coordinator.offset_fetch(&client, request).await.groups.remove(0);
    assert_eq!(group.error_code, 0);
    let mut offsets = serde_json::Map::new();
    for topic in group.topics {
        for partition in topic.partitions {
            let epoch = Some(partition.committed_leader_epoch).filter(|epoch| *epoch >= 0);
            let committed = serde_json::json!({
                "offset": partition.committed_offset,
                "leader_epoch": epoch,
                "metadata": partition.metadata,
            });
            offsets.insert(format!("{}-{}", topic.name, partition.partition_index), committed);
        }
    }
    Value::Object(offsets)
}

/// A consumer's assignment as Java shows it: `[work-0, work-1]`.
fn shown_assignment(assignment: &Bytes) -> String {
    let (assignment, _) = decode_versioned::<ConsumerProtocolAssignment>(assignment.clone()).expect("one");
    let mut partitions = Vec::new();
    for topic in assignment.assigned_partitions {
        partitions.extend(topic.partitions.iter().map(|partition| format!("{}-{partition}", topic.topic)));
    }
    partitions.sort();
    format!("[{}]", partitions.join(", "))
}

fn members(group: &DescribedGroup) -> Value {
    let member = |member: &klamm_protocol::messages::describe_groups::DescribedGroupMember| {
        serde_json::json!({
            "client_id": member.client_id,
            "member_id": member.member_id,
            "instance_id": member.group_instance_id,
            "assignment": shown_assignment(&member.member_assignment),
        })
    };
    group.members.iter().map(member).collect()
}

/// Groups of the consumer protocol of KIP-848, which are not served.
const FOREIGN: [&str; 4] = ["modern", "modern-left", "modern-static", "upgraded"];

async fn check(version: &str) {
    let coordinator = loaded(version).await;
    let expected = std::fs::read_to_string(folder(version).join("groups.jsonl")).expect("groups.jsonl");
    for line in expected.lines() {
        let expected: Value = serde_json::from_str(line).expect("JSON");
        let name = expected["group"].as_str().expect("a name");
        let group = describe(&coordinator, name).await;
        if FOREIGN.contains(&name) {
            assert_eq!(group.error_code, ErrorCode::CoordinatorNotAvailable.code(), "{version} {name}");
            continue;
        }
        assert_eq!(group.group_state, expected["state"], "{version} {name}");
        assert_eq!(group.protocol_data, expected["assignor"], "{version} {name}");
        assert_eq!(members(&group), expected["members"], "{version} {name}");
        assert_eq!(offsets(&coordinator, name).await, expected["offsets"], "{version} {name}");
    }
}

/// A group that was deleted left tombstones. One that comes back has been undeleted by the restart.
#[tokio::test]
async fn a_deleted_group_stays_deleted() {
    for version in ["2.8", "4.4"] {
        let coordinator = loaded(version).await;
        assert_eq!(describe(&coordinator, "deleted").await.group_state, "Dead");
        assert_eq!(offsets(&coordinator, "deleted").await, serde_json::json!({}));
    }
}

#[tokio::test]
async fn groups_of_kafka_4_4_are_loaded() {
    check("4.4").await;
}

#[tokio::test]
async fn groups_of_kafka_2_8_are_loaded() {
    check("2.8").await;
}

#[tokio::test]
async fn groups_of_kafka_0_10_are_loaded() {
    check("0.10.2").await;
}

/// Share and streams groups are no classic groups either; a JoinGroup that took one for a new group would
/// write over it.
#[tokio::test]
async fn groups_of_other_protocols_are_not_touched() {
    let coordinator = loaded("4.4").await;
    for name in ["shared", "streaming", "modern"] {
        let group = describe(&coordinator, name).await;
        assert_eq!(group.error_code, ErrorCode::CoordinatorNotAvailable.code(), "{name}");
    }
}

/// Work-2 has an offset of a transaction that is still open. Who asks for stable offsets must not get the one
/// before it, or it reads twice what the transaction has handled.
#[tokio::test]
async fn a_pending_offset_hides_the_committed_one_from_who_asks_for_stable_ones() {
    for version in ["2.8", "4.4"] {
        let coordinator = loaded(version).await;
        let client = Client { api_version: 9, ..Client::default() };
        let topic = OffsetFetchRequestTopics {
            name: "work".into(),
            partition_indexes: vec![0, 2],
            ..Default::default()
        };
        let group = OffsetFetchRequestGroup {
            group_id: "transactional".to_owned(),
            topics: Some(vec![topic]),
            ..Default::default()
        };
        let request = OffsetFetchRequest { groups: vec![group], require_stable: true, ..Default::default() };
        let group = coordinator.offset_fetch(&client, request).await.groups.remove(0);
        let partitions = &group.topics[0].partitions;
        assert_eq!((partitions[0].committed_offset, partitions[0].error_code), (12, 0));
        let unstable = ErrorCode::UnstableOffsetCommit.code();
        assert_eq!((partitions[1].committed_offset, partitions[1].error_code), (-1, unstable));
    }
}

/// What Kafka's tools and brokers are to read must be written as Kafka writes it: each record of a classic
/// group in the folder of 4.4 is read and written back to the same bytes.
#[test]
fn records_are_written_as_kafka_4_4_writes_them() {
    let mut count = 0;
    for content in partitions("4.4").into_values() {
        for batch in batches(content) {
            let batch = batch.expect("a batch");
            if batch.header.is_control() {
                continue;
            }
            for record in batch.records().expect("records") {
                let key = record.key.expect("a key");
                let decoded =
                    GroupRecord::decode(&key, record.value.as_deref(), record.offset).expect("a record");
                match decoded {
                    None | Some(GroupRecord::Foreign { .. }) => {}
                    Some(decoded) => {
                        let (written_key, written_value) = decoded.clone().owned().encode().expect("encodes");
                        assert_eq!(written_key, key);
                        assert_eq!(written_value, record.value, "{decoded:?}");
                        count += 1;
                    }
                }
            }
        }
    }
    assert!(count > 50, "only {count} records were looked at");
}

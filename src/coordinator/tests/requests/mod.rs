//! A coordinator over a log in memory, and what it is asked.
#![allow(dead_code, reason = "each test file uses its part of this")]

use std::sync::Arc;
use std::time::Duration;

use crate::memory::{MemoryLog, Surroundings};
use bytes::Bytes;
use klamm_coordinator::{Client, GroupCoordinator, GroupSettings};
use klamm_io::SystemClock;
use klamm_model::{ErrorCode, LeaderEpoch, Uuid};
use klamm_protocol::messages::delete_groups::DeleteGroupsRequest;
use klamm_protocol::messages::describe_groups::DescribeGroupsRequest;
use klamm_protocol::messages::heartbeat::HeartbeatRequest;
use klamm_protocol::messages::join_group::{JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse};
use klamm_protocol::messages::list_groups::ListGroupsRequest;
use klamm_protocol::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetCommitResponse,
};
use klamm_protocol::messages::offset_delete::{
    OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use klamm_protocol::messages::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponsePartition,
};
use klamm_protocol::messages::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};
use klamm_testing::SeededRandom;
use tokio::task::JoinHandle;
use tokio::time::sleep;

pub(crate) const TOPIC: Uuid = Uuid([1; 16]);
pub(crate) const OTHER: Uuid = Uuid([2; 16]);
pub(crate) const NEW: Uuid = Uuid([3; 16]);

pub(crate) fn client(api_version: i16) -> Client {
    Client { client_id: "c".to_owned(), client_host: "/127.0.0.1".to_owned(), api_version }
}

pub(crate) fn settings() -> GroupSettings {
    GroupSettings {
        group_initial_rebalance_delay_ms: 1,
        group_min_session_timeout_ms: 10,
        ..GroupSettings::default()
    }
}

pub(crate) fn surroundings() -> Arc<Surroundings> {
    Surroundings::with_topics(&[("t", TOPIC, 10_000), ("u", OTHER, 1)])
}

pub(crate) fn coordinator(settings: GroupSettings) -> Arc<GroupCoordinator> {
    coordinator_in(settings, surroundings())
}

pub(crate) fn coordinator_in(
    settings: GroupSettings,
    surroundings: Arc<Surroundings>,
) -> Arc<GroupCoordinator> {
    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SeededRandom::new(7)));
    Arc::new(GroupCoordinator::new(settings, clock, random, surroundings))
}

pub(crate) async fn serving(settings: GroupSettings, log: &Arc<MemoryLog>) -> Arc<GroupCoordinator> {
    serving_in(settings, log, surroundings()).await
}

pub(crate) async fn serving_in(
    settings: GroupSettings,
    log: &Arc<MemoryLog>,
    surroundings: Arc<Surroundings>,
) -> Arc<GroupCoordinator> {
    let coordinator = coordinator_in(settings, surroundings);
    coordinator.open(0, LeaderEpoch(0), log.clone());
    let loading = ErrorCode::CoordinatorLoadInProgress.code();
    while coordinator.list_groups(&client(4), ListGroupsRequest::default()).await.error_code == loading {
        sleep(Duration::from_millis(1)).await;
    }
    coordinator
}

/// Returns when the log was read so often, and what was read is dealt with.
pub(crate) async fn await_reads(log: &MemoryLog, count: usize) {
    while log.reads() < count {
        sleep(Duration::from_millis(1)).await;
    }
    sleep(Duration::from_millis(20)).await;
}

pub(crate) fn commit_of(
    group: &str,
    topic: &str,
    partitions: std::ops::Range<i32>,
    offset: i64,
) -> OffsetCommitRequest {
    let partition = |partition_index| OffsetCommitRequestPartition {
        partition_index,
        committed_offset: offset,
        ..Default::default()
    };
    OffsetCommitRequest {
        group_id: group.to_owned(),
        generation_id_or_member_epoch: -1,
        topics: vec![OffsetCommitRequestTopic {
            name: topic.to_owned(),
            partitions: partitions.map(partition).collect(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

pub(crate) fn spawn_commit(
    coordinator: &Arc<GroupCoordinator>,
    request: OffsetCommitRequest,
) -> JoinHandle<OffsetCommitResponse> {
    let coordinator = coordinator.clone();
    tokio::spawn(async move { coordinator.offset_commit(&client(9), request).await })
}

pub(crate) fn codes(response: &OffsetCommitResponse) -> Vec<i16> {
    response.topics.iter().flat_map(|topic| &topic.partitions).map(|partition| partition.error_code).collect()
}

pub(crate) async fn committed(coordinator: &GroupCoordinator, group: &str, topic: &str) -> Result<i64, i16> {
    let topic = OffsetFetchRequestTopic { name: topic.to_owned(), partition_indexes: vec![0] };
    let request =
        OffsetFetchRequest { group_id: group.to_owned(), topics: Some(vec![topic]), ..Default::default() };
    let response = coordinator.offset_fetch(&client(5), request).await;
    match response.error_code {
        0 => Ok(response.topics[0].partitions[0].committed_offset),
        code => Err(code),
    }
}

pub(crate) async fn all_committed(coordinator: &GroupCoordinator, group: &str) -> Vec<String> {
    let request = OffsetFetchRequest { group_id: group.to_owned(), topics: None, ..Default::default() };
    let mut all = Vec::new();
    for topic in coordinator.offset_fetch(&client(5), request).await.topics {
        let shown = |partition: &OffsetFetchResponsePartition| {
            format!("{}-{}={}", topic.name, partition.partition_index, partition.committed_offset)
        };
        all.extend(topic.partitions.iter().map(shown));
    }
    all
}

pub(crate) fn join_of(group: &str, member_id: &str) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: group.to_owned(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        member_id: member_id.to_owned(),
        protocol_type: "consumer".to_owned(),
        protocols: vec![JoinGroupRequestProtocol {
            name: "range".to_owned(),
            metadata: Bytes::from_static(b"m"),
        }],
        ..Default::default()
    }
}

pub(crate) fn spawn_join(
    coordinator: &Arc<GroupCoordinator>,
    request: JoinGroupRequest,
) -> JoinHandle<JoinGroupResponse> {
    let coordinator = coordinator.clone();
    tokio::spawn(async move { coordinator.join_group(&client(3), request).await })
}

pub(crate) async fn stable_member(coordinator: &Arc<GroupCoordinator>, group: &str) -> String {
    let joined = spawn_join(coordinator, join_of(group, "")).await.expect("no panic");
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    let assignment = SyncGroupRequestAssignment {
        member_id: joined.member_id.clone(),
        assignment: Bytes::from_static(b"x"),
    };
    let request = SyncGroupRequest {
        group_id: group.to_owned(),
        generation_id: 1,
        member_id: joined.member_id.clone(),
        assignments: vec![assignment],
        ..Default::default()
    };
    let synced = coordinator.sync_group(&client(3), request).await;
    assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"x"[..]));
    joined.member_id
}

pub(crate) async fn heartbeat(coordinator: &GroupCoordinator, group: &str, member: &str) -> i16 {
    let request = HeartbeatRequest {
        group_id: group.to_owned(),
        generation_id: 1,
        member_id: member.to_owned(),
        ..Default::default()
    };
    coordinator.heartbeat(&client(3), request).await.error_code
}

pub(crate) async fn described_state(coordinator: &GroupCoordinator, group: &str) -> String {
    let request = DescribeGroupsRequest { groups: vec![group.to_owned()], ..Default::default() };
    coordinator.describe_groups(&client(5), request).await.groups.remove(0).group_state
}

/// DeleteGroups; returns the code.
pub(crate) fn spawn_delete(coordinator: &Arc<GroupCoordinator>, group: &str) -> JoinHandle<i16> {
    let (coordinator, groups_names) = (coordinator.clone(), vec![group.to_owned()]);
    let request = DeleteGroupsRequest { groups_names };
    tokio::spawn(async move { coordinator.delete_groups(&client(2), request).await.results[0].error_code })
}

/// OffsetDelete of partition 0 of `t`; returns the code.
pub(crate) fn spawn_offset_delete(coordinator: &Arc<GroupCoordinator>, group: &str) -> JoinHandle<i16> {
    let coordinator = coordinator.clone();
    let partitions = vec![OffsetDeleteRequestPartition { partition_index: 0 }];
    let topics = vec![OffsetDeleteRequestTopic { name: "t".to_owned(), partitions }];
    let request = OffsetDeleteRequest { group_id: group.to_owned(), topics };
    tokio::spawn(async move { coordinator.offset_delete(&client(0), request).await.error_code })
}

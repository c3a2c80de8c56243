//! The mailbox around the state machine: what is told when, and what a fault of the log does to it.

mod memory;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use klamm_coordinator::runtime::LogFault;
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
use klamm_protocol::messages::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchResponsePartition,
};
use klamm_protocol::messages::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};
use klamm_testing::SeededRandom;
use memory::{MemoryLog, Surroundings};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const TOPIC: Uuid = Uuid([1; 16]);
const OTHER: Uuid = Uuid([2; 16]);
const NEW: Uuid = Uuid([3; 16]);

fn client(api_version: i16) -> Client {
    Client { client_id: "c".to_owned(), client_host: "/127.0.0.1".to_owned(), api_version }
}

fn settings() -> GroupSettings {
    GroupSettings {
        group_initial_rebalance_delay_ms: 1,
        group_min_session_timeout_ms: 10,
        ..GroupSettings::default()
    }
}

fn surroundings() -> Arc<Surroundings> {
    Surroundings::with_topics(&[("t", TOPIC, 10_000), ("u", OTHER, 1)])
}

fn coordinator(settings: GroupSettings) -> Arc<GroupCoordinator> {
    coordinator_in(settings, surroundings())
}

fn coordinator_in(settings: GroupSettings, surroundings: Arc<Surroundings>) -> Arc<GroupCoordinator> {
    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SeededRandom::new(7)));
    Arc::new(GroupCoordinator::new(settings, clock, random, surroundings))
}

async fn serving(settings: GroupSettings, log: &Arc<MemoryLog>) -> Arc<GroupCoordinator> {
    serving_in(settings, log, surroundings()).await
}

async fn serving_in(
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

fn commit_of(group: &str, topic: &str, partitions: std::ops::Range<i32>, offset: i64) -> OffsetCommitRequest {
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

fn spawn_commit(
    coordinator: &Arc<GroupCoordinator>,
    request: OffsetCommitRequest,
) -> JoinHandle<OffsetCommitResponse> {
    let coordinator = coordinator.clone();
    tokio::spawn(async move { coordinator.offset_commit(&client(9), request).await })
}

fn codes(response: &OffsetCommitResponse) -> Vec<i16> {
    response.topics.iter().flat_map(|topic| &topic.partitions).map(|partition| partition.error_code).collect()
}

async fn committed(coordinator: &GroupCoordinator, group: &str, topic: &str) -> Result<i64, i16> {
    let topic = OffsetFetchRequestTopic { name: topic.to_owned(), partition_indexes: vec![0] };
    let request =
        OffsetFetchRequest { group_id: group.to_owned(), topics: Some(vec![topic]), ..Default::default() };
    let response = coordinator.offset_fetch(&client(5), request).await;
    match response.error_code {
        0 => Ok(response.topics[0].partitions[0].committed_offset),
        code => Err(code),
    }
}

async fn all_committed(coordinator: &GroupCoordinator, group: &str) -> Vec<String> {
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

fn join_of(group: &str, member_id: &str) -> JoinGroupRequest {
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

fn spawn_join(
    coordinator: &Arc<GroupCoordinator>,
    request: JoinGroupRequest,
) -> JoinHandle<JoinGroupResponse> {
    let coordinator = coordinator.clone();
    tokio::spawn(async move { coordinator.join_group(&client(3), request).await })
}

async fn stable_member(coordinator: &Arc<GroupCoordinator>, group: &str) -> String {
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

async fn heartbeat(coordinator: &GroupCoordinator, group: &str, member: &str) -> i16 {
    let request = HeartbeatRequest {
        group_id: group.to_owned(),
        generation_id: 1,
        member_id: member.to_owned(),
        ..Default::default()
    };
    coordinator.heartbeat(&client(3), request).await.error_code
}

/// A commit that is acknowledged before it is replicated is lost with the leader. Nor may anyone read it
/// before: he would see the offset go back.
#[tokio::test]
async fn neither_a_commit_nor_a_read_of_it_is_answered_before_the_high_watermark() {
    let log = MemoryLog::new();
    let coordinator = serving(settings(), &log).await;
    log.hold_high_watermark();
    let commit = spawn_commit(&coordinator, commit_of("g", "t", 0..1, 5));
    sleep(Duration::from_millis(10)).await;
    let reader = coordinator.clone();
    let read = tokio::spawn(async move { committed(&reader, "g", "t").await });
    sleep(Duration::from_millis(20)).await;
    assert!(!commit.is_finished() && !read.is_finished());
    log.commit_all();
    assert_eq!(codes(&commit.await.expect("no panic")), [0]);
    assert_eq!(read.await.expect("no panic"), Ok(5));
}

/// A follower that is slow for ever must not keep a client waiting for ever.
#[tokio::test]
async fn a_commit_that_is_not_replicated_in_time_is_answered_with_an_error() {
    let log = MemoryLog::new();
    let settings = GroupSettings { offsets_commit_timeout_ms: 30, ..settings() };
    let coordinator = serving(settings, &log).await;
    log.hold_high_watermark();
    let commit = spawn_commit(&coordinator, commit_of("g", "t", 0..1, 5));
    let response = timeout(Duration::from_secs(5), commit).await.expect("an answer").expect("no panic");
    assert_eq!(codes(&response), [ErrorCode::CoordinatorNotAvailable.code()]);
}

/// Each fault of the log has the code that clients act on rightly: look again, look elsewhere, give up.
#[tokio::test]
async fn faults_of_the_log_become_kafkas_codes_and_leave_nothing_behind() {
    let log = MemoryLog::new();
    let coordinator = serving(settings(), &log).await;
    let faults: [(fn() -> LogFault, ErrorCode); 4] = [
        (|| LogFault::NotLeader, ErrorCode::NotCoordinator),
        (|| LogFault::NotEnoughReplicas, ErrorCode::CoordinatorNotAvailable),
        (|| LogFault::TooLarge, ErrorCode::InvalidCommitOffsetSize),
        (|| LogFault::Other("the disk is on fire".to_owned()), ErrorCode::NotCoordinator),
    ];
    for (fault, code) in faults {
        log.refuse(Some(fault));
        let response = coordinator.offset_commit(&client(9), commit_of("g", "t", 0..2, 5)).await;
        assert_eq!(codes(&response), [code.code(); 2]);
    }
    log.refuse(None);
    assert_eq!(committed(&coordinator, "g", "t").await, Ok(-1));
    assert_eq!(codes(&coordinator.offset_commit(&client(9), commit_of("g", "t", 0..1, 6)).await), [0]);
}

/// A thousand consumers that commit at once are a thousand appends, or a few.
#[tokio::test]
async fn commits_that_wait_together_are_appended_together() {
    let log = MemoryLog::new();
    let coordinator = serving(settings(), &log).await;
    let commits: Vec<_> =
        (0..200).map(|n| spawn_commit(&coordinator, commit_of(&format!("g{n}"), "t", 0..1, n))).collect();
    for commit in commits {
        assert_eq!(codes(&commit.await.expect("no panic")), [0]);
    }
    assert!(log.appends() < 20, "{} appends", log.appends());
    assert_eq!(committed(&coordinator, "g77", "t").await, Ok(77));
}

/// After a restart of the broker a member goes on with its id, its generation and its offsets.
#[tokio::test]
async fn a_group_goes_on_after_a_restart() {
    let log = MemoryLog::new();
    let before = serving(settings(), &log).await;
    let member = stable_member(&before, "g").await;
    let request = OffsetCommitRequest {
        generation_id_or_member_epoch: 1,
        member_id: member.clone(),
        ..commit_of("g", "t", 0..1, 5)
    };
    assert_eq!(codes(&before.offset_commit(&client(9), request).await), [0]);
    drop(before);
    let after = serving(settings(), &MemoryLog::holding(log.content())).await;
    assert_eq!(heartbeat(&after, "g", &member).await, 0);
    assert_eq!(committed(&after, "g", "t").await, Ok(5));
}

/// Kafka's cleaner keeps the last batch of a producer without its records, markers included.
#[tokio::test]
async fn a_marker_without_records_does_not_keep_a_partition_from_loading() {
    let log = MemoryLog::new();
    let before = serving(settings(), &log).await;
    assert_eq!(codes(&before.offset_commit(&client(9), commit_of("g", "t", 0..1, 5)).await), [0]);
    drop(before);
    let content = log.content();
    let last =
        klamm_records::batches(content.clone()).map(|batch| batch.unwrap().header.next_offset()).last();
    let emptied = klamm_records::BatchBuilder::v2(klamm_records::BatchSettings {
        base_offset: last.unwrap(),
        last_offset: last,
        control: true,
        transactional: true,
        producer_id: klamm_model::ProducerId(7),
        producer_epoch: klamm_model::ProducerEpoch(0),
        ..Default::default()
    })
    .build();
    let content = [&content[..], &emptied[..]].concat();
    let after = serving(settings(), &MemoryLog::holding(content.into())).await;
    assert_eq!(committed(&after, "g", "t").await, Ok(5));
}

/// An offset of -1 while the groups are still being loaded sends a consumer back to its topic's beginning.
#[tokio::test]
async fn while_loading_nothing_is_known_and_members_are_alive() {
    let log = MemoryLog::new();
    let before = serving(settings(), &log).await;
    let member = stable_member(&before, "g").await;
    let coordinator = coordinator(settings());
    coordinator.open(0, LeaderEpoch(0), MemoryLog::holding(log.content()));
    let loading = ErrorCode::CoordinatorLoadInProgress.code();
    assert_eq!(committed(&coordinator, "g", "t").await, Err(loading));
    assert_eq!(codes(&coordinator.offset_commit(&client(9), commit_of("g", "t", 0..1, 5)).await), [loading]);
    assert_eq!(coordinator.list_groups(&client(4), ListGroupsRequest::default()).await.error_code, loading);
    assert_eq!(heartbeat(&coordinator, "g", "anybody").await, 0);
    sleep(Duration::from_millis(20)).await;
    assert_eq!(heartbeat(&coordinator, "g", &member).await, 0);
    assert_eq!(heartbeat(&coordinator, "g", "anybody").await, ErrorCode::UnknownMemberId.code());
}

/// Who waits for a rebalance when the coordinator moves would wait for ever.
#[tokio::test]
async fn whoever_waits_when_leadership_is_lost_is_told_to_look_elsewhere() {
    let log = MemoryLog::new();
    let coordinator = serving(settings(), &log).await;
    let member = stable_member(&coordinator, "g").await;
    let newcomer = spawn_join(&coordinator, join_of("g", ""));
    log.hold_high_watermark();
    let commit = spawn_commit(&coordinator, commit_of("simple", "t", 0..1, 5));
    sleep(Duration::from_millis(20)).await;
    assert!(!newcomer.is_finished() && !commit.is_finished());
    coordinator.on_resigned(0);
    let gone = ErrorCode::NotCoordinator.code();
    assert_eq!(newcomer.await.expect("no panic").error_code, gone);
    assert_eq!(codes(&commit.await.expect("no panic")), [gone]);
    assert_eq!(heartbeat(&coordinator, "g", &member).await, gone);
}

/// A coordinator that serves a log it cannot read tells every consumer to begin anew.
#[tokio::test]
async fn a_log_that_cannot_be_read_is_not_served() {
    let log = MemoryLog::new();
    let before = serving(settings(), &log).await;
    assert_eq!(codes(&before.offset_commit(&client(9), commit_of("g", "t", 0..1, 5)).await), [0]);
    let mut content = log.content().to_vec();
    // The record's length, behind the head of the batch.
    content[61] = 0xff;
    let after = serving(settings(), &MemoryLog::holding(content.into())).await;
    let loading = ErrorCode::CoordinatorLoadInProgress.code();
    assert_eq!(committed(&after, "g", "t").await, Err(loading));
    // The groups of other partitions can still be listed.
    assert_eq!(after.list_groups(&client(4), ListGroupsRequest::default()).await.error_code, 0);
}

/// A disk that fails for a moment while the groups are loaded must not cost them until the leader moves.
#[tokio::test]
async fn a_log_that_cannot_be_read_is_tried_again() {
    let log = MemoryLog::new();
    let before = serving(settings(), &log).await;
    assert_eq!(codes(&before.offset_commit(&client(9), commit_of("g", "t", 0..1, 5)).await), [0]);
    let log = MemoryLog::holding(log.content());
    log.set_unreadable(true);
    let after = serving(settings(), &log).await;
    assert_eq!(committed(&after, "g", "t").await, Err(ErrorCode::CoordinatorLoadInProgress.code()));
    log.set_unreadable(false);
    let loaded = async {
        while committed(&after, "g", "t").await != Ok(5) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(20), loaded).await.expect("the groups are loaded");
    assert_eq!(log.reads(), 2, "there is a pause before the next attempt");
}

/// Offsets of a topic that is deleted and made again would make its consumers skip the new records.
#[tokio::test]
async fn offsets_of_deleted_topics_are_dropped() {
    let log = MemoryLog::new();
    let surroundings = surroundings();
    let coordinator = serving_in(settings(), &log, surroundings.clone()).await;
    coordinator.offset_commit(&client(9), commit_of("g", "t", 0..1, 5)).await;
    coordinator.offset_commit(&client(9), commit_of("g", "u", 0..1, 6)).await;
    surroundings.replace_topic("t", None);
    coordinator.on_topics_deleted(&["t".to_owned()]);
    sleep(Duration::from_millis(20)).await;
    assert_eq!(committed(&coordinator, "g", "t").await, Ok(-1));
    assert_eq!(committed(&coordinator, "g", "u").await, Ok(6));
    let after = serving(settings(), &MemoryLog::holding(log.content())).await;
    assert_eq!(committed(&after, "g", "t").await, Ok(-1));
}

/// The topic is made again before the coordinator hears that it was deleted. What was committed for the new one
/// must not go with the offsets of the old.
#[tokio::test]
async fn offsets_of_a_topic_that_was_made_again_stay() {
    let surroundings = surroundings();
    let coordinator = serving_in(settings(), &MemoryLog::new(), surroundings.clone()).await;
    coordinator.offset_commit(&client(9), commit_of("old", "t", 0..1, 5)).await;
    surroundings.replace_topic("t", Some(NEW));
    coordinator.offset_commit(&client(9), commit_of("new", "t", 0..1, 6)).await;
    coordinator.on_topics_deleted(&["t".to_owned()]);
    sleep(Duration::from_millis(20)).await;
    assert_eq!(committed(&coordinator, "old", "t").await, Ok(-1));
    assert_eq!(committed(&coordinator, "new", "t").await, Ok(6));
}

/// The broker is killed after a topic was deleted and before its offsets were. Who asks for all offsets of a
/// group must not get them for the new topic of that name, now or after a restart.
#[tokio::test]
async fn offsets_that_outlived_their_topic_are_not_told_and_are_dropped_on_loading() {
    let log = MemoryLog::new();
    let surroundings = surroundings();
    let before = serving_in(settings(), &log, surroundings.clone()).await;
    before.offset_commit(&client(9), commit_of("g", "t", 0..2, 5)).await;
    before.offset_commit(&client(9), commit_of("g", "u", 0..1, 6)).await;
    assert_eq!(all_committed(&before, "g").await, ["t-0=5", "t-1=5", "u-0=6"]);
    surroundings.replace_topic("t", Some(NEW));
    assert_eq!(all_committed(&before, "g").await, ["u-0=6"]);
    before.offset_commit(&client(9), commit_of("g", "t", 1..2, 1)).await;
    assert_eq!(all_committed(&before, "g").await, ["t-1=1", "u-0=6"]);
    surroundings.replace_topic("u", None);
    assert_eq!(all_committed(&before, "g").await, ["t-1=1"]);

    let log = MemoryLog::holding(log.content());
    let after = serving_in(settings(), &log, surroundings).await;
    assert_eq!(all_committed(&after, "g").await, ["t-1=1"]);
    // Even in a cluster that knows nothing of the deletions: they are gone from the log.
    let unaware = serving(settings(), &MemoryLog::holding(log.content())).await;
    assert_eq!(committed(&unaware, "g", "u").await, Ok(-1));
    assert_eq!(committed(&unaware, "g", "t").await, Ok(-1));
}

/// A group with more offsets than fit into one batch must be deletable, or it stays for ever.
#[tokio::test]
async fn a_group_with_very_many_offsets_can_be_deleted() {
    let log = MemoryLog::new();
    let settings = GroupSettings { group_coordinator_cached_buffer_max_bytes: 4_096, ..settings() };
    let coordinator = serving(settings.clone(), &log).await;
    assert_eq!(
        codes(&coordinator.offset_commit(&client(9), commit_of("g", "t", 0..10_000, 5)).await),
        [0; 10_000]
    );
    let request = DeleteGroupsRequest { groups_names: vec!["g".to_owned()] };
    assert_eq!(coordinator.delete_groups(&client(2), request).await.results[0].error_code, 0);
    assert!(log.appends() > 100, "{} appends", log.appends());
    let after = serving(settings, &MemoryLog::holding(log.content())).await;
    let request = DescribeGroupsRequest { groups: vec!["g".to_owned()], ..Default::default() };
    assert_eq!(after.describe_groups(&client(5), request).await.groups[0].group_state, "Dead");
    assert_eq!(committed(&after, "g", "t").await, Ok(-1));
}

/// Where `max.message.bytes` is small, commits that wait together must not make a batch that the topic refuses; nor
/// where it is lowered in this moment. Only a commit that is too large alone is refused, as a whole.
#[tokio::test]
async fn a_commit_that_fits_alone_does_not_fail_because_of_others() {
    for (told, taken) in [(2_000, 2_000), (1_048_588, 2_000), (0, 2_000)] {
        let log = MemoryLog::new();
        let coordinator = serving(settings(), &log).await;
        log.limit_batches(told, taken);
        let request = |n: i64| match n {
            50 => commit_of("large", "t", 0..100, n),
            n => commit_of(&format!("g{n}"), "t", 0..(1 + n as i32 % 20), n),
        };
        let commits: Vec<_> = (0..100).map(|n| spawn_commit(&coordinator, request(n))).collect();
        for (n, commit) in commits.into_iter().enumerate() {
            let expected = if n == 50 { ErrorCode::InvalidCommitOffsetSize } else { ErrorCode::None };
            let codes = codes(&commit.await.expect("no panic"));
            assert!(codes.iter().all(|code| *code == expected.code()), "{n}: {codes:?} below {told}");
        }
        assert_eq!(committed(&coordinator, "g77", "t").await, Ok(77));
        assert_eq!(committed(&coordinator, "large", "t").await, Ok(-1));
        let after = serving(settings(), &MemoryLog::holding(log.content())).await;
        assert_eq!(committed(&after, "g77", "t").await, Ok(77));
    }
}

/// Offsets of many groups, and of one with many, expire and are deleted where batches must be small.
#[tokio::test]
async fn offsets_expire_where_batches_are_small() {
    let log = MemoryLog::new();
    let coordinator = serving(settings(), &log).await;
    for n in 0..60 {
        coordinator.offset_commit(&client(9), commit_of(&format!("g{n}"), "t", 0..1, n)).await;
    }
    coordinator.offset_commit(&client(9), commit_of("large", "t", 0..1_000, 5)).await;
    let settings =
        GroupSettings { offsets_retention_minutes: 0, offsets_retention_check_interval_ms: 10, ..settings() };
    let log = MemoryLog::holding(log.content());
    log.limit_batches(2_000, 2_000);
    let after = serving(settings, &log).await;
    let expired = async {
        while !after.list_groups(&client(4), ListGroupsRequest::default()).await.groups.is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(5), expired).await.expect("all expire");
}

/// A name that the wire can carry and the record cannot is the client's problem, not the broker's.
#[tokio::test]
async fn a_name_that_does_not_fit_into_a_record_is_refused() {
    let log = MemoryLog::new();
    let coordinator = serving(settings(), &log).await;
    let name = "g".repeat(40_000);
    let response = coordinator.offset_commit(&client(9), commit_of(&name, "t", 0..1, 5)).await;
    assert_eq!(codes(&response), [ErrorCode::InvalidCommitOffsetSize.code()]);
    assert_eq!(spawn_join(&coordinator, join_of(&name, "")).await.expect("no panic").error_code, -1);
    assert_eq!(codes(&coordinator.offset_commit(&client(9), commit_of("g", "t", 0..1, 5)).await), [0]);
}

/// Before the topic exists there is nobody to ask; a client must ask again, not look elsewhere for ever.
#[tokio::test]
async fn a_partition_that_is_not_led_here_is_not_served() {
    let coordinator = coordinator(settings());
    assert_eq!(heartbeat(&coordinator, "g", "m").await, ErrorCode::NotCoordinator.code());
    assert_eq!(coordinator.list_groups(&client(4), ListGroupsRequest::default()).await.groups, []);
}

/// A request that names one large group a million times would make the broker hold a million answers. Kafka
/// answers repeats, so a few are answered; but not more than fit into a bound.
#[tokio::test]
async fn a_group_that_is_named_over_and_over_is_not_answered_so_often() {
    let coordinator = serving(settings(), &MemoryLog::new()).await;
    let codes = codes(&coordinator.offset_commit(&client(9), commit_of("g", "t", 0..1_000, 5)).await);
    assert_eq!(codes, [0; 1_000]);
    let mut names = vec!["g".to_owned(); 20_000];
    names.push("h".to_owned());
    let request = DescribeGroupsRequest { groups: names[19_997..].to_vec(), ..Default::default() };
    assert_eq!(coordinator.describe_groups(&client(5), request).await.groups.len(), 4);
    let request = DescribeGroupsRequest { groups: names.clone(), ..Default::default() };
    let described = coordinator.describe_groups(&client(5), request).await.groups;
    assert!((10..15_000).contains(&described.len()), "{} answers", described.len());
    assert_eq!(described.last().expect("answers").group_id, "h", "what is named once is answered");

    let group = |group_id| OffsetFetchRequestGroup { group_id, topics: None, ..Default::default() };
    let groups = names[19_000..].iter().cloned().map(group).collect();
    let request = OffsetFetchRequest { groups, ..Default::default() };
    let fetched = coordinator.offset_fetch(&client(8), request).await.groups;
    assert!((3..100).contains(&fetched.len()), "{} answers", fetched.len());
    assert_eq!(fetched.last().expect("answers").group_id, "h");
}

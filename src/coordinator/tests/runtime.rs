//! The mailbox around the state machine: what is told when, and what a fault of the log does to it.

mod memory;
mod requests;

use std::time::Duration;

use klamm_coordinator::GroupSettings;
use klamm_coordinator::runtime::{Loading, LogFault};
use klamm_model::{ErrorCode, LeaderEpoch};
use klamm_protocol::messages::delete_groups::DeleteGroupsRequest;
use klamm_protocol::messages::describe_groups::DescribeGroupsRequest;
use klamm_protocol::messages::list_groups::ListGroupsRequest;
use klamm_protocol::messages::offset_commit::OffsetCommitRequest;
use klamm_protocol::messages::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestGroup};
use memory::MemoryLog;
use requests::*;
use tokio::time::{sleep, timeout};

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

/// Who hears twice that a group is deleted, or does not find it any more, makes one of the same name. If the tombstone
/// is lost with the leader, the old offsets are there again.
#[tokio::test]
async fn what_is_gone_is_not_told_before_that_is_committed() {
    let log = MemoryLog::new();
    let coordinator = serving(settings(), &log).await;
    for group in ["g", "h"] {
        assert_eq!(codes(&coordinator.offset_commit(&client(9), commit_of(group, "t", 0..1, 5)).await), [0]);
    }
    log.hold_high_watermark();
    let deletes = [spawn_delete(&coordinator, "g"), spawn_delete(&coordinator, "g")];
    let offset_deletes = [spawn_offset_delete(&coordinator, "h"), spawn_offset_delete(&coordinator, "h")];
    sleep(Duration::from_millis(10)).await;
    let reader = coordinator.clone();
    let describe = tokio::spawn(async move { described_state(&reader, "g").await });
    let reader = coordinator.clone();
    let list =
        tokio::spawn(async move { reader.list_groups(&client(4), ListGroupsRequest::default()).await });
    sleep(Duration::from_millis(30)).await;
    assert!(deletes.iter().chain(&offset_deletes).all(|delete| !delete.is_finished()));
    assert!(!describe.is_finished() && !list.is_finished());
    log.commit_all();
    let mut codes = Vec::new();
    for delete in deletes.into_iter().chain(offset_deletes) {
        codes.push(delete.await.expect("no panic"));
    }
    assert_eq!(codes, [0, ErrorCode::GroupIdNotFound.code(), 0, 0]);
    assert_eq!(describe.await.expect("no panic"), "Dead");
    assert_eq!(list.await.expect("no panic").groups.len(), 1);
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
    let bytes_left = log.content().len() as u64;
    assert_eq!(coordinator.loading(), Loading { loading: 1, bytes_left, ..Loading::default() });
    let loading = ErrorCode::CoordinatorLoadInProgress.code();
    assert_eq!(committed(&coordinator, "g", "t").await, Err(loading));
    assert_eq!(codes(&coordinator.offset_commit(&client(9), commit_of("g", "t", 0..1, 5)).await), [loading]);
    assert_eq!(coordinator.list_groups(&client(4), ListGroupsRequest::default()).await.error_code, loading);
    assert_eq!(heartbeat(&coordinator, "g", "anybody").await, 0);
    sleep(Duration::from_millis(20)).await;
    assert_eq!(coordinator.loading(), Loading { active: 1, ..Loading::default() });
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

/// A coordinator that serves a log it cannot read tells every consumer to begin anew, and one that serves a record
/// with a bit that flipped sends it to where it never was. All others are served and listed, as by Kafka 4.4.0: the log may
/// be damaged for good.
#[tokio::test]
async fn a_log_that_is_damaged_is_not_served() {
    let log = MemoryLog::new();
    let before = serving(settings(), &log).await;
    assert_eq!(codes(&before.offset_commit(&client(9), commit_of("g", "t", 0..1, 5)).await), [0]);
    let other = MemoryLog::new();
    let before = serving(settings(), &other).await;
    assert_eq!(codes(&before.offset_commit(&client(9), commit_of("h", "t", 0..1, 5)).await), [0]);
    let length = log.content().len();
    // The record's length, behind the head of the batch; and the last byte of the offset, which then is 4.
    for (position, flipped) in [(61, 0xff), (length - 32, 1)] {
        let mut content = log.content().to_vec();
        content[position] ^= flipped;
        let damaged = MemoryLog::holding(content.into());
        let after = coordinator(settings());
        after.open(0, LeaderEpoch(0), damaged.clone());
        after.open(1, LeaderEpoch(0), MemoryLog::holding(other.content()));
        let loading = ErrorCode::CoordinatorLoadInProgress.code();
        assert_eq!(after.list_groups(&client(4), ListGroupsRequest::default()).await.error_code, loading);
        await_reads(&damaged, 1).await;
        assert_eq!(committed(&after, "g", "t").await, Err(loading));
        let listed = after.list_groups(&client(4), ListGroupsRequest::default()).await;
        let groups: Vec<_> = listed.groups.iter().map(|group| &*group.group_id).collect();
        assert_eq!((listed.error_code, groups), (0, vec!["h"]));
        let Loading { active, loading, failed, .. } = after.loading();
        assert_eq!((active, loading, failed), (1, 0, 1));
    }
}

/// A disk that fails for a moment while the groups are loaded must not cost them until the leader moves.
#[tokio::test]
async fn a_log_that_cannot_be_read_is_tried_again() {
    let log = MemoryLog::new();
    let before = serving(settings(), &log).await;
    assert_eq!(codes(&before.offset_commit(&client(9), commit_of("g", "t", 0..1, 5)).await), [0]);
    let log = MemoryLog::holding(log.content());
    log.set_unreadable(true);
    let after = coordinator(settings());
    after.open(0, LeaderEpoch(0), log.clone());
    await_reads(&log, 1).await;
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
    assert_eq!(described_state(&after, "g").await, "Dead");
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

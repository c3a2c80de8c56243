//! The coordinator over a real partition with two replicas, which are connected by hand.

mod memory;

use std::future::ready;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use klamm_coordinator::runtime::{CoordinatorLog, PartitionLog};
use klamm_coordinator::{Client, GroupCoordinator, GroupEnvironment, GroupSettings};
use klamm_io::{BoxFuture, Disk, SystemClock};
use klamm_metadata::Image;
use klamm_model::{ErrorCode, LeaderEpoch, NodeId, Offset, TopicPartition, Uuid};
use klamm_partition::{FollowerProgress, Leadership, Partition, PartitionSettings};
use klamm_protocol::messages::heartbeat::HeartbeatRequest;
use klamm_protocol::messages::list_groups::ListGroupsRequest;
use klamm_protocol::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use klamm_protocol::messages::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestTopic};
use klamm_storage::{LogConfig, LogStore, StoreSettings};
use klamm_testing::{Failure, Fault, GatedDisk, OperationKind, SeededRandom, SimulatedDisk};
use memory::Surroundings;
use tokio::time::sleep;

const LEADER: NodeId = NodeId(1);
const FOLLOWER: NodeId = NodeId(2);

/// A node that holds the one partition of `__consumer_offsets`.
struct Node {
    partition: Arc<Partition>,
    rest: Arc<Surroundings>,
    store: LogStore,
}

impl Node {
    fn new() -> Arc<Node> {
        Node::with(Arc::new(SimulatedDisk::new(1)))
    }

    fn with(disk: Arc<dyn Disk>) -> Arc<Node> {
        let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SeededRandom::new(1)));
        let log_dirs = vec![Path::new("/data").to_owned()];
        let store = LogStore::open(StoreSettings::new(log_dirs, LEADER, disk, clock.clone(), random));
        let store = store.expect("an empty directory");
        store.load(&|_| LogConfig::default()).expect("nothing to load");
        let id = Uuid([9; 16]);
        let log = store.create(&TopicPartition::new("__consumer_offsets", 0), id, LogConfig::default());
        let settings = PartitionSettings { is_compacted: true, ..PartitionSettings::default() };
        let partition = Partition::new(id, LEADER, log.expect("a log"), 0, settings, clock);
        let rest = Surroundings::with_topics(&[("t", Uuid([1; 16]), 1)]);
        Arc::new(Node { partition: Arc::new(partition), rest, store })
    }

    fn lead(&self, epoch: i32) {
        let leadership = Leadership {
            leader: Some(LEADER),
            leader_epoch: LeaderEpoch(epoch),
            partition_epoch: epoch,
            replicas: vec![LEADER, FOLLOWER],
            isr: vec![LEADER, FOLLOWER],
            lost: Vec::new(),
        };
        self.partition.become_leader(&leadership).expect("it leads");
    }

    /// The follower has everything below an offset.
    fn replicated_to(&self, log_end: Offset) {
        self.partition.follower_fetched(FollowerProgress::at(FOLLOWER, log_end));
    }
}

impl GroupEnvironment for Node {
    fn offsets_partition(&self, index: i32) -> Option<Arc<Partition>> {
        (index == 0).then(|| self.partition.clone())
    }

    fn offsets_partition_count(&self) -> i32 {
        1
    }

    fn image(&self) -> Arc<Image> {
        self.rest.image()
    }

    fn led_alone(&self, _index: i32, _time: Duration) -> BoxFuture<'_, bool> {
        Box::pin(ready(true))
    }
}

fn client(api_version: i16) -> Client {
    Client { api_version, ..Client::default() }
}

fn coordinator(node: &Arc<Node>) -> Arc<GroupCoordinator> {
    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SeededRandom::new(2)));
    Arc::new(GroupCoordinator::new(GroupSettings::default(), clock, random, node.clone()))
}

/// A heartbeat is answered whatever is committed; while the groups are loaded, everybody is alive.
async fn loaded(coordinator: &GroupCoordinator) {
    let request = HeartbeatRequest { group_id: "g".to_owned(), ..Default::default() };
    while coordinator.heartbeat(&client(3), request.clone()).await.error_code == ErrorCode::None.code() {
        sleep(Duration::from_millis(1)).await;
    }
}

async fn commit(coordinator: Arc<GroupCoordinator>, offset: i64) -> i16 {
    let partition = OffsetCommitRequestPartition { committed_offset: offset, ..Default::default() };
    let topic =
        OffsetCommitRequestTopic { name: "t".to_owned(), partitions: vec![partition], ..Default::default() };
    let request = OffsetCommitRequest {
        group_id: "g".to_owned(),
        generation_id_or_member_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    };
    coordinator.offset_commit(&client(9), request).await.topics[0].partitions[0].error_code
}

async fn committed(coordinator: &GroupCoordinator) -> (i64, i16) {
    let topic = OffsetFetchRequestTopic { name: "t".to_owned(), partition_indexes: vec![0] };
    let request =
        OffsetFetchRequest { group_id: "g".to_owned(), topics: Some(vec![topic]), ..Default::default() };
    let response = coordinator.offset_fetch(&client(5), request).await;
    let offset = response.topics.first().map_or(-2, |topic| topic.partitions[0].committed_offset);
    (offset, response.error_code)
}

/// A commit is acknowledged when the follower has it, not before; and the next leader's coordinator knows it.
#[tokio::test]
async fn commits_are_replicated_before_they_are_answered_and_survive_the_next_election() {
    let node = Node::new();
    node.lead(0);
    let before = coordinator(&node);
    before.on_elected(0, LeaderEpoch(0));
    loaded(&before).await;
    let first = tokio::spawn(commit(before.clone(), 5));
    sleep(Duration::from_millis(20)).await;
    assert!(!first.is_finished());
    node.replicated_to(1);
    assert_eq!(first.await.expect("no panic"), 0);

    // The node resigns and is elected again: what one before it appended is found, not yet committed, and a
    // reader waits for it.
    let second = tokio::spawn(commit(before.clone(), 6));
    sleep(Duration::from_millis(20)).await;
    node.lead(1);
    assert_eq!(second.await.expect("no panic"), ErrorCode::NotCoordinator.code());
    let after = coordinator(&node);
    after.on_elected(0, LeaderEpoch(1));
    loaded(&after).await;
    let reader = tokio::spawn(async move { committed(&after).await });
    sleep(Duration::from_millis(20)).await;
    assert!(!reader.is_finished());
    node.replicated_to(2);
    assert_eq!(reader.await.expect("no panic"), (6, 0));

    // The coordinator of the old epoch, which has not heard of the election, can write nothing and tell nothing.
    assert_eq!(commit(before.clone(), 4).await, ErrorCode::NotCoordinator.code());
    assert_eq!(committed(&before).await.1, ErrorCode::NotCoordinator.code());
}

/// A batch has to fit into what the topic takes now: a message, and a segment.
#[test]
fn the_largest_batch_is_what_the_topic_takes_now() {
    let node = Node::new();
    node.lead(0);
    let log = PartitionLog::new(node.partition.clone(), LeaderEpoch(0));
    assert_eq!(log.batch_bytes_max(), 1_048_588);
    node.partition.update_settings(PartitionSettings { batch_bytes_max: 2_000, ..Default::default() });
    assert_eq!(log.batch_bytes_max(), 2_000);
    node.partition.log().update_config(LogConfig { segment_bytes: 1_000, ..LogConfig::default() });
    assert_eq!(log.batch_bytes_max(), 1_000);
}

/// Where `flush.messages` asks for it, a commit that is acknowledged must survive a power cut.
#[tokio::test]
async fn a_commit_is_on_the_disk_before_it_is_answered_if_the_topic_asks_for_it() {
    let node = Node::new();
    node.partition.log().update_config(LogConfig { flush_messages: 1, ..LogConfig::default() });
    node.lead(0);
    let coordinator = coordinator(&node);
    coordinator.on_elected(0, LeaderEpoch(0));
    loaded(&coordinator).await;
    let answer = tokio::spawn(commit(coordinator.clone(), 5));
    sleep(Duration::from_millis(20)).await;
    node.replicated_to(1);
    assert_eq!(answer.await.expect("no panic"), 0);
    assert_eq!(node.partition.log().recovery_point(), 1);
}

/// Under group commit neither a commit nor what somebody reads of it is answered before the sync.
#[tokio::test]
async fn under_group_commit_a_commit_is_on_the_disk_before_it_is_answered() {
    let disk = SimulatedDisk::new(1);
    let gate = GatedDisk::of_syncs(disk.clone(), "__consumer_offsets-0", "log");
    let node = Node::with(Arc::new(gate.clone()));
    node.store.set_group_commit(true);
    node.lead(0);
    let coordinator = coordinator(&node);
    coordinator.on_elected(0, LeaderEpoch(0));
    loaded(&coordinator).await;
    let answers: Vec<_> = (1..9).map(|offset| tokio::spawn(commit(coordinator.clone(), offset))).collect();
    sleep(Duration::from_millis(20)).await;
    node.replicated_to(8);
    let reading = coordinator.clone();
    let reader = tokio::spawn(async move { committed(&reading).await });
    tokio::task::spawn_blocking({
        let gate = gate.clone();
        move || gate.await_arrival()
    })
    .await
    .expect("no panic");
    sleep(Duration::from_millis(20)).await;
    assert!(answers.iter().all(|answer| !answer.is_finished()) && !reader.is_finished());
    assert_eq!(node.partition.offsets().high_watermark, 8, "it is not what they wait for");
    gate.open_up();
    for answer in answers {
        assert_eq!(answer.await.expect("no panic"), 0);
    }
    assert_eq!(reader.await.expect("no panic"), (8, 0));
    let syncs = disk.operations().into_iter().filter(|call| {
        call.kind == OperationKind::SyncData
            && call.path.extension().is_some_and(|extension| extension == "log")
    });
    assert!((1..=2).contains(&syncs.count()), "they share it");
}

/// A commit whose sync has failed must not be acknowledged, and not only when its time is over.
#[tokio::test]
async fn under_group_commit_a_sync_that_fails_fails_the_commit() {
    let disk = SimulatedDisk::new(1);
    let node = Node::with(Arc::new(disk.clone()));
    node.store.set_group_commit(true);
    node.lead(0);
    let coordinator = coordinator(&node);
    coordinator.on_elected(0, LeaderEpoch(0));
    loaded(&coordinator).await;
    node.replicated_to(8);
    disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::SyncDir).on("/data").times(1));
    let soon = Duration::from_secs(2);
    let answer = tokio::time::timeout(soon, commit(coordinator.clone(), 5)).await.expect("it does not wait");
    assert_eq!(answer, ErrorCode::NotCoordinator.code());
    // The log is in service still: only the names in its folder were not synced.
    let answer = tokio::time::timeout(soon, commit(coordinator.clone(), 6)).await.expect("it does not wait");
    assert_eq!(answer, 0);
    disk.inject(Fault::new(Failure::Device).of(OperationKind::SyncData).on("__consumer_offsets-0"));
    let answer = tokio::time::timeout(soon, commit(coordinator.clone(), 7)).await.expect("it does not wait");
    assert_eq!(answer, ErrorCode::NotCoordinator.code());
    assert!(node.partition.log().failure().is_some());
}

/// While the log of a coordinator was recovered after a kill, clients were sent to look for another one, which does
/// not exist.
#[tokio::test]
async fn a_coordinator_whose_log_is_recovered_is_loading() {
    let node = Node::new();
    let coordinator = coordinator(&node);
    let group = || commit(coordinator.clone(), 5);
    assert_eq!(group().await, ErrorCode::NotCoordinator.code());
    coordinator.on_recovering(0);
    assert_eq!(group().await, ErrorCode::CoordinatorLoadInProgress.code());
    let listed = coordinator.list_groups(&client(4), ListGroupsRequest::default()).await;
    assert_eq!(listed.error_code, ErrorCode::CoordinatorLoadInProgress.code());
    coordinator.on_resigned(0);
    assert_eq!(group().await, ErrorCode::NotCoordinator.code());
    coordinator.on_recovering(0);
    node.lead(1);
    coordinator.on_elected(0, LeaderEpoch(1));
    loaded(&coordinator).await;
    let listed = coordinator.list_groups(&client(4), ListGroupsRequest::default()).await;
    assert_eq!(listed.error_code, 0);
}

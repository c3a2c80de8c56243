//! Records on three nodes in one process, on real sockets and simulated disks.

use klamm_io::{Disk, OpenMode};
use klamm_model::{ErrorCode, NodeId};
use klamm_partition::PartitionOffsets;
use klamm_protocol::messages::alter_partition_reassignments::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use klamm_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig, CreateTopicsRequest};
use klamm_protocol::messages::delete_records::{
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsResponse, DeleteRecordsTopic,
};
use klamm_protocol::messages::fetch::{
    FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData, ReplicaState,
};
use klamm_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use klamm_protocol::messages::produce::{
    PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData,
};
use klamm_protocol::{Message, Reader, RecordsField};
use klamm_records::{BatchBuilder, BatchSettings};
use klamm_testing::{Failure, Fault, OperationKind, SimulatedDisk};

use super::cluster_tests::{Cluster, until};
use super::tests::ask;
use super::*;

/// Where clients reach a node.
fn clients_address(server: &Server) -> SocketAddr {
    server.listeners.iter().find(|(_, _, is_controller)| !is_controller).unwrap().1
}

/// Makes a topic of one partition that all three nodes have.
pub(super) async fn create(servers: &[Server], name: &str, configs: &[(&str, &str)]) {
    let configs = configs.iter().map(|(name, value)| CreatableTopicConfig {
        name: (*name).to_owned(),
        value: Some((*value).to_owned()),
    });
    let topic = CreatableTopic {
        name: name.to_owned(),
        num_partitions: 1,
        replication_factor: 3,
        configs: configs.collect(),
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
    let answer = servers[0].context.controller.ask(request, Duration::from_secs(10)).await;
    assert_eq!(answer.topics[0].error_code, 0, "{:?}", answer.topics[0].error_message);
    for server in servers {
        until(server, "the topic", |image| image.topic_by_name(name).is_some()).await;
        server.context.await_applied(10_000).await;
    }
}

/// The node that leads the topic's partition.
pub(super) fn leader_of<'a>(servers: &'a [Server], topic: &str) -> &'a Server {
    let leads = |server: &&Server| {
        server.context.partitions.by_name(topic, 0).is_some_and(|partition| partition.is_leader())
    };
    servers.iter().find(leads).expect("a leader")
}

/// As [`ask`], for a version whose header ends with tags.
pub(super) async fn ask_flexible(
    server: &Server,
    api_key: i16,
    version: i16,
    request: &impl klamm_protocol::Request,
) -> bytes::Bytes {
    ask(clients_address(server), api_key, version, request).await.slice(1..)
}

fn one_record() -> RecordsField {
    let mut batch = BatchBuilder::v2(BatchSettings::default());
    batch.append(1, None, Some(b"value"), &[]);
    RecordsField::from(batch.build())
}

pub(super) fn produce_request(topic: &str, acks: i16, records: Option<RecordsField>) -> ProduceRequest {
    let partition = PartitionProduceData { index: 0, records };
    let topic =
        TopicProduceData { name: topic.to_owned(), partition_data: vec![partition], ..Default::default() };
    ProduceRequest { acks, timeout_ms: 10_000, topic_data: vec![topic], ..Default::default() }
}

/// Produces one record; returns the error code and its offset.
pub(super) async fn produce(server: &Server, topic: &str, acks: i16) -> (ErrorCode, i64) {
    let request = produce_request(topic, acks, Some(one_record()));
    let body = ask(clients_address(server), 0, 8, &request).await;
    let answer = ProduceResponse::decode(&mut Reader::new(body), 8).unwrap();
    let partition = &answer.responses[0].partition_responses[0];
    (ErrorCode::from_code(partition.error_code).unwrap(), partition.base_offset)
}

/// Waits until a partition is as wanted on a node.
pub(super) async fn until_offsets(server: &Server, topic: &str, wanted: impl Fn(PartitionOffsets) -> bool) {
    let partition = server.context.partitions.by_name(topic, 0).unwrap();
    let wake = Arc::new(Notify::new());
    let reached = async {
        loop {
            partition.wake_on_progress(&wake);
            if wanted(partition.offsets()) {
                return;
            }
            wake.notified().await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(20), reached).await;
    assert!(in_time.is_ok(), "node {} stays at {:?}", server.context.node_id, partition.offsets());
}

/// Waits until a node knows that so many replicas are in sync.
async fn until_in_sync(server: &Server, topic: &str, count: usize) {
    let in_sync = |image: &klamm_metadata::Image| {
        image.topic_by_name(topic).is_some_and(|topic| topic.partitions[0].isr.len() == count)
    };
    until(server, "replicas in sync", in_sync).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acks_all_waits_for_all_three_and_each_learns_that_it_is_committed() {
    let Cluster { servers, .. } = &Cluster::start().await;
    create(servers, "three", &[]).await;
    let leader = leader_of(servers, "three");
    for offset in 0..5 {
        assert_eq!(produce(leader, "three", -1).await, (ErrorCode::None, offset));
        for server in servers {
            let end = server.context.partitions.by_name("three", 0).unwrap().offsets().log_end;
            assert_eq!(end, offset + 1, "what is acknowledged is on node {}", server.context.node_id);
        }
    }
    for server in servers {
        until_offsets(server, "three", |offsets| offsets.high_watermark == 5).await;
    }
    let others = servers.iter().filter(|server| server.context.node_id != leader.context.node_id);
    for follower in others {
        assert_eq!(produce(follower, "three", -1).await.0, ErrorCode::NotLeaderOrFollower);
    }
}

/// A node that was away must not count before it has all that was acknowledged meanwhile, and must count then.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_away_catches_up_and_is_in_sync_again() {
    let mut cluster = Cluster::start().await;
    create(&cluster.servers, "three", &[("min.insync.replicas", "2")]).await;
    let leader = leader_of(&cluster.servers, "three").context.node_id;
    let away = NodeId(leader.0 % 3 + 1);
    assert_eq!(produce(cluster.node(leader), "three", -1).await, (ErrorCode::None, 0));

    cluster.kill(away);
    until_in_sync(cluster.node(leader), "three", 2).await;
    for offset in 1..10 {
        assert_eq!(produce(cluster.node(leader), "three", -1).await, (ErrorCode::None, offset));
    }
    cluster.restart(away).await;
    until_in_sync(cluster.node(leader), "three", 3).await;
    let back = cluster.node(away).context.partitions.by_name("three", 0).unwrap();
    assert_eq!(back.offsets().log_end, 10, "it was proposed when it had all");
    let expands = &cluster.node(leader).context.metrics.isr_expands;
    let counted = async {
        while expands.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), counted).await.expect("the leader counts it");
}

/// The next leader has all that was acknowledged, and the one that comes back follows it.
#[tokio::test(flavor = "multi_thread")]
async fn another_replica_leads_when_the_leader_is_gone_and_the_old_one_follows() {
    let mut cluster = Cluster::start().await;
    create(&cluster.servers, "three", &[("min.insync.replicas", "2")]).await;
    let old = leader_of(&cluster.servers, "three").context.node_id;
    for offset in 0..3 {
        assert_eq!(produce(cluster.node(old), "three", -1).await, (ErrorCode::None, offset));
    }
    cluster.kill(old);
    for server in &cluster.servers {
        let is_led = |image: &klamm_metadata::Image| {
            image.topic_by_name("three").unwrap().partitions[0].leader.is_some_and(|leader| leader != old)
        };
        until(server, "another leader", is_led).await;
        server.context.await_applied(10_000).await;
    }
    let new = leader_of(&cluster.servers, "three").context.node_id;
    assert_eq!(produce(cluster.node(new), "three", -1).await, (ErrorCode::None, 3));
    cluster.restart(old).await;
    until_in_sync(cluster.node(new), "three", 3).await;
    let back = cluster.node(old).context.partitions.by_name("three", 0).unwrap();
    assert_eq!((back.is_leader(), back.offsets().log_end), (false, 4));
}

/// The last node that stops is the only one in sync. Where its log lost records while it was down, and was cut or is gone, it was
/// elected all the same, and the others cut theirs to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_changed_while_its_node_was_stopped_does_not_lead() {
    const FOLDER: &str = "/data/three-0";
    let cut = |disk: &SimulatedDisk| {
        let file = disk
            .open(&std::path::Path::new(FOLDER).join("00000000000000000000.log"), OpenMode::ReadWrite)
            .unwrap();
        file.set_len(file.len().unwrap() - 1).unwrap();
    };
    let remove = |disk: &SimulatedDisk| disk.remove_dir_all(std::path::Path::new(FOLDER)).unwrap();
    let changes: [&dyn Fn(&SimulatedDisk); 2] = [&cut, &remove];
    let mut cluster = Cluster::start().await;
    create(&cluster.servers, "three", &[("min.insync.replicas", "2")]).await;
    for (end, change) in (1..).zip(changes) {
        let last = leader_of(&cluster.servers, "three").context.node_id;
        assert_eq!(produce(cluster.node(last), "three", -1).await, (ErrorCode::None, end - 1));
        let others: Vec<NodeId> = (1..=3).map(NodeId).filter(|id| *id != last).collect();
        for id in others.into_iter().chain([last]) {
            cluster.stop(id).await;
        }
        change(cluster.disk(last));
        cluster.start_all().await;
        until_in_sync(&cluster.servers[0], "three", 3).await;
        for server in &cluster.servers {
            server.context.await_applied(10_000).await;
            let partition = server.context.partitions.by_name("three", 0).unwrap();
            assert_eq!(partition.offsets().log_end, end, "node {}", server.context.node_id);
        }
    }
}

/// A partition moves to a node that had nothing of it, and leaves nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_reassigned_partition_is_copied_and_its_old_log_is_deleted() {
    let Cluster { servers, .. } = &Cluster::start().await;
    create(servers, "three", &[]).await;
    move_to(servers, "three", &[1]).await;
    let [old, new] = [1, 2].map(|id| servers.iter().find(|server| server.context.node_id.0 == id).unwrap());
    until_led(servers, "three", 1).await;
    for offset in 0..3 {
        assert_eq!(produce(old, "three", -1).await, (ErrorCode::None, offset));
    }
    move_to(servers, "three", &[2]).await;
    until_led(servers, "three", 2).await;
    assert_eq!(produce(new, "three", -1).await, (ErrorCode::None, 3));
    old.context.await_applied(10_000).await;
    assert!(old.context.partitions.by_name("three", 0).is_none());
    let name = klamm_model::TopicPartition::new("three", 0);
    assert!(old.context.store.get(&name).is_none(), "its log is deleted");
}

pub(super) async fn move_to(servers: &[Server], topic: &str, replicas: &[i32]) {
    let partition = ReassignablePartition { partition_index: 0, replicas: Some(replicas.to_vec()) };
    let topic = ReassignableTopic { name: topic.to_owned(), partitions: vec![partition] };
    let request =
        AlterPartitionReassignmentsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
    let answer = servers[0].context.controller.ask(request, Duration::from_secs(10)).await;
    assert_eq!((answer.error_code, answer.responses[0].partitions[0].error_code), (0, 0));
}

/// Waits until a node alone has a topic, and serves it.
async fn until_led(servers: &[Server], topic: &str, node: i32) {
    let alone = |image: &klamm_metadata::Image| {
        let state = &image.topic_by_name(topic).unwrap().partitions[0];
        state.leader == Some(NodeId(node)) && state.replicas == [NodeId(node)]
    };
    for server in servers {
        until(server, "the partition's move", alone).await;
        server.context.await_applied(10_000).await;
    }
}

/// A consumer's fetch from the start of the topic, which is answered at once.
async fn consume(server: &Server, topic: &str, rack: &str) -> (PartitionData, Vec<i32>) {
    let id = server.context.image().topic_by_name(topic).unwrap().id;
    let partition = FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() };
    let topic = FetchTopic { topic_id: id, partitions: vec![partition], ..Default::default() };
    let request = FetchRequest { topics: vec![topic], rack_id: rack.to_owned(), ..Default::default() };
    let body = ask_flexible(server, 1, 16, &request).await;
    let answer = FetchResponse::decode(&mut Reader::new(body), 16).unwrap();
    let endpoints = answer.node_endpoints.iter().map(|endpoint| endpoint.node_id).collect();
    (answer.responses[0].partitions[0].clone(), endpoints)
}

/// A consumer is sent to the replica in its rack, which shows it what is committed (KIP-392).
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_reads_from_the_replica_in_its_rack() {
    let Cluster { servers, .. } = &Cluster::start().await;
    create(servers, "three", &[]).await;
    let leader = leader_of(servers, "three");
    assert_eq!(produce(leader, "three", -1).await, (ErrorCode::None, 0));
    for server in servers {
        until_offsets(server, "three", |offsets| offsets.high_watermark == 1).await;
        let rack = format!("rack-{}", server.context.node_id);
        let (sent, _) = consume(leader, "three", &rack).await;
        let is_leader = server.context.node_id == leader.context.node_id;
        let replica = if is_leader { -1 } else { server.context.node_id.0 };
        assert_eq!((sent.error_code, sent.preferred_read_replica), (0, replica));
        let (read, _) = consume(server, "three", &rack).await;
        assert_eq!((read.error_code, read.high_watermark, read.preferred_read_replica), (0, 1, -1));
        assert!(read.records.is_some_and(|records| records.bytes().is_some_and(|bytes| !bytes.is_empty())));
    }
    let (nowhere, _) = consume(leader, "three", "rack-9").await;
    assert_eq!(nowhere.preferred_read_replica, -1, "nobody is there: the leader serves");
}

/// Who asks the wrong node is told the right one, and where it is (KIP-951).
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_lead_tells_who_does() {
    let Cluster { servers, .. } = &Cluster::start().await;
    create(servers, "three", &[]).await;
    let leader = leader_of(servers, "three").context.node_id;
    let other = servers.iter().find(|server| server.context.node_id != leader).unwrap();
    let body = ask_flexible(other, 0, 10, &produce_request("three", 1, Some(one_record()))).await;
    let answer = ProduceResponse::decode(&mut Reader::new(body), 10).unwrap();
    let partition = &answer.responses[0].partition_responses[0];
    assert_eq!(partition.error_code, ErrorCode::NotLeaderOrFollower.code());
    assert_eq!((partition.current_leader.leader_id, partition.current_leader.leader_epoch), (leader.0, 0));
    let told: Vec<i32> = answer.node_endpoints.iter().map(|endpoint| endpoint.node_id).collect();
    assert_eq!(told, [leader.0]);

    let body = ask_flexible(
        other,
        1,
        16,
        &FetchRequest {
            topics: vec![FetchTopic {
                topic_id: other.context.image().topic_by_name("three").unwrap().id,
                partitions: vec![FetchPartition { current_leader_epoch: 0, ..Default::default() }],
                ..Default::default()
            }],
            replica_state: ReplicaState { replica_id: 9, replica_epoch: -1 },
            ..Default::default()
        },
    )
    .await;
    let answer = FetchResponse::decode(&mut Reader::new(body), 16).unwrap();
    let partition = &answer.responses[0].partitions[0];
    assert_eq!(
        partition.error_code,
        ErrorCode::NotLeaderOrFollower.code(),
        "no replica reads from a follower"
    );
    assert_eq!((partition.current_leader.leader_id, answer.node_endpoints[0].node_id), (leader.0, leader.0));
}

/// A new replica takes its records no faster than the throttle allows, so that clients keep the rest of the network.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_replica_is_filled_no_faster_than_the_throttle_allows() {
    let Cluster { servers, .. } = &Cluster::start().await;
    let all =
        [("leader.replication.throttled.replicas", "*"), ("follower.replication.throttled.replicas", "*")];
    create(servers, "three", &all).await;
    move_to(servers, "three", &[1]).await;
    until_led(servers, "three", 1).await;
    let old = servers.iter().find(|server| server.context.node_id.0 == 1).unwrap();
    for _ in 0..20 {
        let mut batch = BatchBuilder::v2(BatchSettings::default());
        batch.append(1, None, Some(&[7; 20_000]), &[]);
        let request = produce_request("three", -1, Some(RecordsField::from(batch.build())));
        let body = ask(clients_address(old), 0, 8, &request).await;
        let answer = ProduceResponse::decode(&mut Reader::new(body), 8).unwrap();
        assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
    }
    for side in ["leader", "follower"] {
        let config = AlterableConfig {
            name: format!("{side}.replication.throttled.rate"),
            config_operation: 0,
            value: Some("100000".to_owned()),
        };
        let resource =
            AlterConfigsResource { resource_type: 4, resource_name: String::new(), configs: vec![config] };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
        let answer = old.context.controller.ask(request, Duration::from_secs(10)).await;
        assert_eq!(answer.responses[0].error_code, 0);
    }
    for server in servers {
        server.context.await_applied(10_000).await;
    }
    let begun = tokio::time::Instant::now();
    move_to(servers, "three", &[2]).await;
    until_led(servers, "three", 2).await;
    // 400 KB: a second's worth and a fetch's at once, the rest at the rate.
    assert!(begun.elapsed() > Duration::from_secs(2), "it took {:?}", begun.elapsed());
}

/// Acknowledgements wait for a replica as long as it counts as in sync, and are refused when too few do.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_gone_costs_a_time_out_and_then_a_refusal() {
    let mut cluster = Cluster::start().await;
    create(&cluster.servers, "three", &[("min.insync.replicas", "3")]).await;
    let leader = leader_of(&cluster.servers, "three").context.node_id;
    cluster.kill(NodeId(leader.0 % 3 + 1));
    let mut request = produce_request("three", -1, Some(one_record()));
    request.timeout_ms = 0;
    let body = ask(clients_address(cluster.node(leader)), 0, 8, &request).await;
    let answer = ProduceResponse::decode(&mut Reader::new(body), 8).unwrap();
    let code = answer.responses[0].partition_responses[0].error_code;
    assert_eq!(ErrorCode::from_code(code), Some(ErrorCode::RequestTimedOut));
    until_in_sync(cluster.node(leader), "three", 2).await;
    cluster.node(leader).context.await_applied(10_000).await;
    assert_eq!(produce(cluster.node(leader), "three", -1).await.0, ErrorCode::NotEnoughReplicas);
    let offsets = cluster.node(leader).context.partitions.by_name("three", 0).unwrap().offsets();
    assert_eq!((offsets.high_watermark, offsets.log_end), (0, 1), "what timed out is not shown");
}

/// Records that were deleted at the leader are deleted at its followers, or the next leader would show them again.
#[tokio::test(flavor = "multi_thread")]
async fn followers_begin_where_their_leader_begins() {
    let Cluster { servers, .. } = &Cluster::start().await;
    create(servers, "three", &[]).await;
    let leader = leader_of(servers, "three");
    for offset in 0..3 {
        assert_eq!(produce(leader, "three", -1).await, (ErrorCode::None, offset));
    }
    let partition = DeleteRecordsPartition { partition_index: 0, offset: 2 };
    let topic = DeleteRecordsTopic { name: "three".to_owned(), partitions: vec![partition] };
    let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 10_000 };
    let body = ask(clients_address(leader), 21, 1, &request).await;
    let answer = DeleteRecordsResponse::decode(&mut Reader::new(body), 1).unwrap();
    let partition = &answer.topics[0].partitions[0];
    assert_eq!((partition.error_code, partition.low_watermark), (0, 2));
    for server in servers {
        let offsets = server.context.partitions.by_name("three", 0).unwrap().offsets();
        assert_eq!(offsets.log_start, 2, "node {} has deleted it too", server.context.node_id);
    }
}

/// A cluster in which nothing happens asks twice a second for all partitions of a leader together, and not for each.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_cluster_does_not_spin() {
    let Cluster { servers, .. } = &Cluster::start().await;
    let topic = CreatableTopic {
        name: "many".to_owned(),
        num_partitions: 30,
        replication_factor: 3,
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
    let answer = servers[0].context.controller.ask(request, Duration::from_secs(10)).await;
    assert_eq!(answer.topics[0].error_code, 0);
    for server in servers {
        until(server, "the topic", |image| image.topic_by_name("many").is_some()).await;
        server.context.await_applied(10_000).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let fetches = || -> Vec<u64> {
        let of = |server: &Server| {
            server.context.metrics.requests(klamm_protocol::ApiKey::Fetch).by_duration().iter().sum()
        };
        servers.iter().map(of).collect()
    };
    let before = fetches();
    tokio::time::sleep(Duration::from_secs(2)).await;
    for (before, after) in before.into_iter().zip(fetches()) {
        // Two followers, each every 500 ms.
        assert!(after - before <= 2 * 5, "{} fetches in two seconds", after - before);
    }
}

/// A node that was away while a partition moved off it finds the log when it starts, and must not keep it for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_moved_away_while_its_node_was_down_is_deleted_at_the_start() {
    let mut cluster = Cluster::start().await;
    create(&cluster.servers, "three", &[]).await;
    let leader = leader_of(&cluster.servers, "three").context.node_id;
    let away = NodeId(leader.0 % 3 + 1);
    let name = klamm_model::TopicPartition::new("three", 0);
    assert!(cluster.node(away).context.store.get(&name).is_some());
    cluster.kill(away);
    until_in_sync(cluster.node(leader), "three", 2).await;
    move_to(&cluster.servers, "three", &[leader.0]).await;
    until_led(&cluster.servers, "three", leader.0).await;
    cluster.restart(away).await;
    assert!(cluster.node(away).context.store.get(&name).is_none());
}

/// The one that is elected cannot note that it leads. Another one in sync can.
#[tokio::test(flavor = "multi_thread")]
async fn another_replica_leads_where_the_one_that_was_elected_has_a_full_disk() {
    let mut cluster = Cluster::start().await;
    create(&cluster.servers, "three", &[]).await;
    let old = leader_of(&cluster.servers, "three").context.node_id;
    assert_eq!(produce(cluster.node(old), "three", -1).await, (ErrorCode::None, 0));
    let state = |image: &klamm_metadata::Image| image.topic_by_name("three").unwrap().partitions[0].clone();
    let before = state(&cluster.node(old).context.image());
    let others: Vec<NodeId> = before.replicas.into_iter().filter(|node| *node != old).collect();
    let (full, last) = (others[0], others[1]);
    let is_full = Fault::new(Failure::NoSpace).of(OperationKind::Write).on("three-0");
    let is_full = cluster.disk(full).inject(is_full);
    cluster.kill(old);
    until(cluster.node(last), "another leader", |image| state(image).leader == Some(last)).await;
    let elections = state(&cluster.node(last).context.image()).leader_epoch.0 - before.leader_epoch.0;
    assert!(elections >= 2, "the one with the full disk was elected first");
    cluster.node(last).context.await_applied(10_000).await;
    // With acks=all it may wait: while there is nothing to write, the full one counts as in sync, until it has lagged too long.
    assert_eq!(produce(cluster.node(last), "three", 1).await, (ErrorCode::None, 1));

    cluster.disk(full).clear(is_full);
    until_in_sync(cluster.node(last), "three", 2).await;
    let back = cluster.node(full).context.partitions.by_name("three", 0).unwrap();
    assert_eq!((back.is_leader(), back.offsets().log_end), (false, 2));
}

/// A leader that cannot append serves nobody who writes, though others could. It follows again when it has room.
#[tokio::test(flavor = "multi_thread")]
async fn another_replica_leads_where_the_disk_of_the_leader_becomes_full() {
    let cluster = Cluster::start().await;
    let servers = &cluster.servers;
    create(servers, "three", &[]).await;
    let full = leader_of(servers, "three");
    let disk = cluster.disk(full.context.node_id);
    let is_full = disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::Write).on("three-0"));
    assert_eq!(produce(full, "three", -1).await.0, ErrorCode::KafkaStorageError);
    let old = full.context.node_id;
    let leader = |image: &klamm_metadata::Image| image.topic_by_name("three").unwrap().partitions[0].leader;
    for server in servers {
        until(server, "another leader", |image| leader(image).is_some_and(|node| node != old)).await;
        server.context.await_applied(10_000).await;
    }
    let leader = leader_of(servers, "three");
    until_in_sync(leader, "three", 2).await;
    assert_eq!(produce(leader, "three", -1).await, (ErrorCode::None, 0), "the full one is not waited for");

    disk.clear(is_full);
    until_in_sync(leader, "three", 3).await;
    assert_eq!(full.context.partitions.by_name("three", 0).unwrap().offsets().log_end, 1);
}

/// Whoever can reach the port can send a Fetch that names a replica. Only a broker that tells its registration and the
/// leader's epoch says what that replica has.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_fetch_acknowledges_nothing() {
    let cluster = Cluster::start().await;
    create(&cluster.servers, "three", &[("min.insync.replicas", "2")]).await;
    let leader = leader_of(&cluster.servers, "three").context.node_id;
    let (away, other) = (NodeId(leader.0 % 3 + 1), NodeId((leader.0 + 1) % 3 + 1));
    let epoch_of = |node: NodeId| cluster.node(leader).context.image().brokers[&node].epoch;
    let epochs = [epoch_of(away), epoch_of(other)];
    // Nothing is fetched any more, and both are in sync still.
    for node in [away, other] {
        let partition = cluster.node(node).context.partitions.by_name("three", 0).unwrap();
        partition.become_follower(&klamm_partition::Leadership {
            leader: None,
            leader_epoch: klamm_model::LeaderEpoch(1),
            partition_epoch: 1,
            replicas: Vec::new(),
            isr: Vec::new(),
            lost: Vec::new(),
        });
        cluster.node(node).context.replica_fetchers.leadership_changed([partition]);
    }
    let leader = cluster.node(leader);
    assert_eq!(produce(leader, "three", 1).await, (ErrorCode::None, 0));
    let id = leader.context.image().topic_by_name("three").unwrap().id;
    let fetch = async |node: NodeId, replica_epoch: i64, leader_epoch: i32, version: i16| {
        let partition = FetchPartition {
            current_leader_epoch: leader_epoch,
            fetch_offset: 1,
            partition_max_bytes: 1 << 20,
            ..Default::default()
        };
        let request = FetchRequest {
            replica_id: if version < 15 { node.0 } else { -1 },
            replica_state: match version {
                ..15 => ReplicaState::default(),
                _ => ReplicaState { replica_id: node.0, replica_epoch },
            },
            topics: vec![FetchTopic { topic_id: id, partitions: vec![partition], ..Default::default() }],
            ..Default::default()
        };
        let body = ask_flexible(leader, 1, version, &request).await;
        let answer = FetchResponse::decode(&mut Reader::new(body), version).unwrap();
        ErrorCode::from_code(answer.responses[0].partitions[0].error_code).unwrap()
    };
    let high_watermark = || leader.context.partitions.by_name("three", 0).unwrap().offsets().high_watermark;
    for (node, epoch) in [away, other].into_iter().zip(epochs) {
        for (replica_epoch, leader_epoch, version) in
            [(-1, 0, 14), (-1, 0, 17), (epoch, -1, 17), (epoch + 9, 0, 17)]
        {
            assert_eq!(fetch(node, replica_epoch, leader_epoch, version).await, ErrorCode::None);
        }
    }
    assert_eq!(high_watermark(), 0, "no replica has the record");
    for (node, epoch) in [away, other].into_iter().zip(epochs) {
        assert_eq!(fetch(node, epoch, 0, 17).await, ErrorCode::None);
    }
    assert_eq!(high_watermark(), 1);
}

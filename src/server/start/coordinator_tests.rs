//! Coordinators on three nodes in one process, on real sockets and simulated disks.

use klamm_model::topic_name::{GROUP_METADATA, TRANSACTION_STATE};
use klamm_model::{ErrorCode, NodeId, ProducerEpoch, ProducerId};
use klamm_partition::TransactionMarker;
use klamm_protocol::messages::describe_transactions::{
    DescribeTransactionsRequest, DescribeTransactionsResponse,
};
use klamm_protocol::messages::end_txn::{EndTxnRequest, EndTxnResponse};
use klamm_protocol::messages::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use klamm_protocol::messages::offset_fetch::{OffsetFetchRequest, OffsetFetchResponse};
use klamm_protocol::messages::produce::ProduceResponse;
use klamm_protocol::messages::write_txn_markers::{
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest, WriteTxnMarkersResponse,
};
use klamm_protocol::{Message, Reader, RecordsField};
use klamm_records::{BatchBuilder, BatchSettings};

use super::cluster_tests::{Cluster, until};
use super::replication_tests::{ask_flexible, create, leader_of, produce_request, until_offsets};
use super::*;

/// Makes the topic of the coordinators of one kind.
async fn create_coordinators(servers: &[Server], topic: &'static str) {
    crate::topic_creation::create_for_coordinator(&servers[0].context, topic).await;
    for server in servers {
        until(server, "the coordinators", |image| image.topic_by_name(topic).is_some()).await;
        server.context.await_applied(10_000).await;
    }
}

/// A transaction in a partition whose leader is not the coordinator: the coordinator is asked before the first append,
/// and writes its marker at the other node.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_ends_on_another_node_than_its_coordinator_s() {
    let Cluster { servers, .. } = &Cluster::start().await;
    create(servers, "three", &[]).await;
    let leader = leader_of(servers, "three");
    create_coordinators(servers, TRANSACTION_STATE).await;
    let (id, coordinator) = id_and_coordinator(servers, |node| node != leader.context.node_id);
    let (producer_id, producer_epoch) = init_producer(coordinator, &id).await;

    let producer = (producer_id, producer_epoch);
    produce_in_transaction(leader, "three", &id, producer).await;
    let partition = leader.context.partitions.by_name("three", 0).unwrap();
    assert_eq!(partition.offsets().last_stable, 0, "it is open");
    commit(coordinator, &id, producer).await;
    until_offsets(leader, "three", |offsets| offsets.last_stable == 2).await;
}

/// Whoever may write markers may claim to be the coordinator of any epoch. Behind such a marker none of the coordinator was
/// taken any more: the producer's next transaction stayed open for good, and with it all that reads only committed records
/// stood still.
#[tokio::test(flavor = "multi_thread")]
async fn a_marker_of_a_coordinator_that_nobody_was_keeps_no_transaction_open() {
    let Cluster { servers, .. } = &Cluster::start().await;
    create(servers, "three", &[]).await;
    let leader = leader_of(servers, "three");
    create_coordinators(servers, TRANSACTION_STATE).await;
    let mut committed = 0;
    for is_leader_s in [false, true] {
        let is_meant = |node| (node == leader.context.node_id) == is_leader_s;
        let (id, coordinator) = id_and_coordinator(servers, is_meant);
        let producer = init_producer(coordinator, &id).await;
        let marker = WritableTxnMarker {
            producer_id: producer.0,
            producer_epoch: producer.1,
            coordinator_epoch: i32::MAX,
            topics: vec![WritableTxnMarkerTopic { name: "three".to_owned(), partition_indexes: vec![0] }],
            ..Default::default()
        };
        let body = ask_flexible(leader, 27, 1, &WriteTxnMarkersRequest { markers: vec![marker] }).await;
        let answer = WriteTxnMarkersResponse::decode(&mut Reader::new(body), 1).unwrap();
        assert_eq!(answer.markers[0].topics[0].partitions[0].error_code, 0, "as in Kafka 4.4.0");

        produce_in_transaction(leader, "three", &id, producer).await;
        commit(coordinator, &id, producer).await;
        committed += 3;
        until_offsets(leader, "three", |offsets| offsets.last_stable == committed).await;
    }
}

async fn produce_in_transaction(
    leader: &Server,
    topic: &str,
    id: &str,
    (producer_id, producer_epoch): (i64, i16),
) {
    let mut batch = BatchBuilder::v2(BatchSettings {
        producer_id: ProducerId(producer_id),
        producer_epoch: ProducerEpoch(producer_epoch),
        base_sequence: 0,
        transactional: true,
        ..Default::default()
    });
    batch.append(1, None, Some(b"value"), &[]);
    let records = Some(RecordsField::from(batch.build()));
    let mut request = produce_request(topic, -1, records);
    request.transactional_id = Some(id.to_owned());
    let body = ask_flexible(leader, 0, 12, &request).await;
    let answer = ProduceResponse::decode(&mut Reader::new(body), 12).unwrap();
    assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
}

async fn commit(coordinator: &Server, id: &str, (producer_id, producer_epoch): (i64, i16)) {
    let transactional_id = id.to_owned();
    let end = EndTxnRequest { transactional_id, producer_id, producer_epoch, committed: true };
    let body = ask_flexible(coordinator, 26, 5, &end).await;
    assert_eq!(EndTxnResponse::decode(&mut Reader::new(body), 5).unwrap().error_code, 0);
}

/// A marker that stood in the leader's own log alone counted as written when it was sent again. It was lost with the leader,
/// and its transaction stayed open for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_marker_that_is_sent_again_waits_for_the_replicas_too() {
    let mut cluster = Cluster::start_with(60_000).await;
    create(&cluster.servers, "three", &[]).await;
    let leader = leader_of(&cluster.servers, "three").context.node_id;
    for other in (1..=3).map(NodeId).filter(|node| *node != leader) {
        cluster.kill(other);
    }
    let context = &cluster.node(leader).context;
    let marker = TransactionMarker {
        producer_id: ProducerId(5),
        producer_epoch: ProducerEpoch(1),
        coordinator_epoch: 0,
        is_commit: true,
        transaction_version: 2,
    };
    let partition = context.partitions.by_name("three", 0).unwrap();
    assert!(!partition.end_transaction(&marker, None).unwrap().is_repeated);
    let named: (Arc<str>, i32) = ("three".into(), 0);
    let zombie = TransactionMarker { producer_epoch: ProducerEpoch(0), ..marker };
    for marker in [marker, zombie] {
        let written = crate::transaction_markers::write_here(context, vec![named.clone()], marker);
        let waits = tokio::time::timeout(Duration::from_millis(500), written).await;
        assert!(waits.is_err(), "no other replica has it: {waits:?}");
    }
}

/// A transactional id whose coordinator is a node of some kind, and that node.
fn id_and_coordinator(servers: &[Server], is_meant: impl Fn(NodeId) -> bool) -> (String, &Server) {
    let image = servers[0].context.image();
    let topic = image.topic_by_name(TRANSACTION_STATE).unwrap();
    let found = (0..).find_map(|number| {
        let id = format!("id-{number}");
        let index = klamm_coordinator::partition_of(&id, topic.partitions.len() as i32);
        let node = topic.partition(index).unwrap().leader.filter(|leader| is_meant(*leader))?;
        servers.iter().find(|server| server.context.node_id == node).map(|server| (id, server))
    });
    found.expect("partitions are spread")
}

/// The id and epoch of a producer, once its coordinator has loaded what it knows.
async fn init_producer(coordinator: &Server, id: &str) -> (i64, i16) {
    let request = InitProducerIdRequest {
        transactional_id: Some(id.to_owned()),
        transaction_timeout_ms: 60_000,
        ..Default::default()
    };
    loop {
        let body = ask_flexible(coordinator, 22, 4, &request).await;
        let answer = InitProducerIdResponse::decode(&mut Reader::new(body), 4).unwrap();
        match ErrorCode::from_code(answer.error_code).unwrap() {
            ErrorCode::None => return (answer.producer_id, answer.producer_epoch),
            ErrorCode::CoordinatorLoadInProgress | ErrorCode::NotCoordinator => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            code => panic!("{code}"),
        }
    }
}

/// Asks for all offsets of a group, once its coordinator has loaded what it knows.
async fn group_error(coordinator: &Server) -> ErrorCode {
    let request = OffsetFetchRequest { group_id: "group".to_owned(), topics: None, ..Default::default() };
    loop {
        let body = ask_flexible(coordinator, 9, 7, &request).await;
        let answer = OffsetFetchResponse::decode(&mut Reader::new(body), 7).unwrap();
        match ErrorCode::from_code(answer.error_code).unwrap() {
            ErrorCode::CoordinatorLoadInProgress => tokio::time::sleep(Duration::from_millis(20)).await,
            code => return code,
        }
    }
}

/// A coordinator that hears neither controllers nor followers may have a successor by now, which knows later commits.
#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_is_cut_off_tells_no_offsets() {
    let mut cluster = Cluster::start().await;
    create_coordinators(&cluster.servers, GROUP_METADATA).await;
    let image = cluster.servers[0].context.image();
    let topic = image.topic_by_name(GROUP_METADATA).unwrap();
    let index = klamm_coordinator::partition_of("group", topic.partitions.len() as i32);
    let coordinator = topic.partition(index).unwrap().leader.unwrap();
    assert_eq!(group_error(cluster.node(coordinator)).await, ErrorCode::None);

    // While the controllers are silent, the followers are enough.
    let node = cluster.node(coordinator);
    without_lease(node, async || group_error(node).await == ErrorCode::None).await;

    for other in (1..=3).map(NodeId).filter(|node| *node != coordinator) {
        cluster.kill(other);
    }
    let context = &cluster.node(coordinator).context;
    while context.lease.holds(context) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(group_error(cluster.node(coordinator)).await, ErrorCode::CoordinatorNotAvailable);
}

/// Takes the lease from a node and looks, until that shows what it should: on a machine with much to do followers may fetch
/// too late for one answer.
async fn without_lease(node: &Server, mut look: impl AsyncFnMut() -> bool) {
    let limit = Duration::from_secs(20);
    let looking = async {
        loop {
            node.context.lease.end();
            if look().await {
                return;
            }
        }
    };
    tokio::time::timeout(limit, looking).await.expect("the followers are enough");
}

/// The same of transactions: what a successor may have decided otherwise is not told.
#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_is_cut_off_tells_of_no_transaction() {
    let mut cluster = Cluster::start().await;
    create_coordinators(&cluster.servers, TRANSACTION_STATE).await;
    let (id, coordinator) = id_and_coordinator(&cluster.servers, |_| true);
    let producer = init_producer(coordinator, &id).await;
    let coordinator = coordinator.context.node_id;
    assert_eq!(described(cluster.node(coordinator), &id).await, (ErrorCode::None, producer.0));

    // While the controllers are silent, the followers are enough.
    let node = cluster.node(coordinator);
    without_lease(node, async || described(node, &id).await == (ErrorCode::None, producer.0)).await;

    for other in (1..=3).map(NodeId).filter(|node| *node != coordinator) {
        cluster.kill(other);
    }
    let context = &cluster.node(coordinator).context;
    while context.lease.holds(context) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (code, told) = described(cluster.node(coordinator), &id).await;
    assert_eq!((code, told), (ErrorCode::CoordinatorNotAvailable, 0));
}

/// The code of DescribeTransactions for one id, and the producer id that it tells.
async fn described(coordinator: &Server, id: &str) -> (ErrorCode, i64) {
    let request = DescribeTransactionsRequest { transactional_ids: vec![id.to_owned()] };
    let body = ask_flexible(coordinator, 65, 0, &request).await;
    let mut answer = DescribeTransactionsResponse::decode(&mut Reader::new(body), 0).unwrap();
    let state = answer.transaction_states.remove(0);
    (ErrorCode::from_code(state.error_code).unwrap(), state.producer_id)
}

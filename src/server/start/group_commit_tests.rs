//! `klamm.flush.policy` as clients see it: what they are told, and when.
#![allow(clippy::disallowed_methods)]

use std::path::Path;

use klamm_model::ErrorCode;
use klamm_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};
use klamm_protocol::messages::produce::{
    PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData,
};
use klamm_protocol::{Message, Reader, RecordsField, RequestHeader, encode_request};
use klamm_records::{BatchBuilder, BatchSettings};
use klamm_testing::{Failure, Fault, GatedDisk, OperationKind, SimulatedDisk};
use tokio::io::AsyncWriteExt;

use super::tests::{ask, create, is_served, node};
use super::*;

/// Sets the policy of all brokers; returns the error code.
async fn set_policy(address: SocketAddr, policy: &str) -> i16 {
    let config = AlterableConfig {
        name: "klamm.flush.policy".to_owned(),
        config_operation: 0,
        value: Some(policy.to_owned()),
    };
    let resource =
        AlterConfigsResource { resource_type: 4, resource_name: String::new(), configs: vec![config] };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    let body = ask(address, 44, 0, &request).await;
    IncrementalAlterConfigsResponse::decode(&mut Reader::new(body), 0).unwrap().responses[0].error_code
}

fn produce_request(acks: i16) -> ProduceRequest {
    let mut batch = BatchBuilder::v2(BatchSettings::default());
    batch.append(1, None, Some(b"value"), &[]);
    let records = Some(RecordsField::from(batch.build()));
    let partition = PartitionProduceData { index: 0, records };
    let topic =
        TopicProduceData { name: "topic".to_owned(), partition_data: vec![partition], ..Default::default() };
    ProduceRequest { acks, timeout_ms: 10_000, topic_data: vec![topic], ..Default::default() }
}

/// Produces one record; returns the error code and its offset.
async fn produce(address: SocketAddr, acks: i16) -> (i16, i64) {
    let body = ask(address, 0, 8, &produce_request(acks)).await;
    let answer = ProduceResponse::decode(&mut Reader::new(body), 8).unwrap();
    let partition = &answer.responses[0].partition_responses[0];
    (partition.error_code, partition.base_offset)
}

fn segment_syncs(disk: &SimulatedDisk) -> usize {
    let segment = Path::new("/data/topic-0/00000000000000000000.log");
    let is_one =
        |call: &klamm_testing::Operation| call.kind == OperationKind::SyncData && call.path == segment;
    disk.operations().iter().filter(|call| is_one(call)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_decides_from_one_request_to_the_next_what_an_answer_waits_for() {
    let disk = SimulatedDisk::new(1);
    let gate = GatedDisk::of_syncs(disk.clone(), "topic-0", "log");
    let server = node(Arc::new(gate.clone())).await;
    let address = server.listeners[0].1;
    create(&server, "topic").await;
    assert!(is_served(&server, "topic").await);
    assert_eq!(produce(address, -1).await, (0, 0), "as in Kafka, no sync is waited for");
    assert_eq!(set_policy(address, "fsync").await, ErrorCode::InvalidRequest.code());
    assert_eq!(set_policy(address, "group-commit").await, 0);

    // Without acks there is nothing to wait for.
    let header = RequestHeader { api_key: 0, api_version: 8, correlation_id: 6, client_id: None };
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(&encode_request(&header, &produce_request(0)).unwrap()).await.unwrap();
    let log = server.context.partitions.by_name("topic", 0).unwrap().log().clone();
    while log.log_end_offset() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(segment_syncs(&disk), 0);

    let waiting: Vec<_> = [1, -1, -1, 1].map(|acks| tokio::spawn(produce(address, acks))).into();
    let arrived = gate.clone();
    tokio::task::spawn_blocking(move || arrived.await_arrival()).await.unwrap();
    while log.log_end_offset() < 6 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(waiting.iter().all(|answer| !answer.is_finished()), "the disk does not have it");
    assert_eq!(log.recovery_point(), 0);
    assert_eq!(set_policy(address, "kafka").await, 0);
    assert_eq!(produce(address, -1).await, (0, 6), "from now on, not for those that wait");
    assert!(waiting.iter().all(|answer| !answer.is_finished()));
    gate.open_up();
    let mut offsets = Vec::new();
    for answer in waiting {
        let (code, offset) = answer.await.unwrap();
        assert_eq!(code, 0);
        offsets.push(offset);
    }
    offsets.sort_unstable();
    assert_eq!(offsets, [2, 3, 4, 5]);
    assert!((1..=2).contains(&segment_syncs(&disk)), "they share it");
    server.stop().await;
}

/// What was not brought to the disk was not promised.
#[tokio::test(flavor = "multi_thread")]
async fn a_sync_that_fails_is_an_error_for_all_who_wait() {
    let disk = SimulatedDisk::new(1);
    let server = node(Arc::new(disk.clone())).await;
    let address = server.listeners[0].1;
    create(&server, "topic").await;
    assert!(is_served(&server, "topic").await);
    assert_eq!(set_policy(address, "group-commit").await, 0);
    assert_eq!(produce(address, 1).await, (0, 0));
    assert_eq!(segment_syncs(&disk), 1);
    disk.inject(Fault::new(Failure::Device).of(OperationKind::SyncData).on("topic-0").times(1));
    assert_eq!(produce(address, 1).await, (ErrorCode::KafkaStorageError.code(), -1));
    assert_eq!(produce(address, -1).await, (ErrorCode::KafkaStorageError.code(), -1), "it is offline");
}

/// A topic, some records, and then nothing to do: the disk may sleep.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_node_syncs_nothing() {
    let disk = SimulatedDisk::new(1);
    let server = node(Arc::new(disk.clone())).await;
    let address = server.listeners[0].1;
    create(&server, "topic").await;
    assert!(is_served(&server, "topic").await);
    for policy in ["kafka", "group-commit"] {
        assert_eq!(set_policy(address, policy).await, 0);
        assert_eq!(produce(address, -1).await.0, 0);
        let checkpoint = || background::checkpoint(&server.context.partitions, &server.context.store);
        checkpoint();
        let before = disk.counters();
        for _ in 0..20 {
            checkpoint();
            server.context.store.flush_due();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let syncs = |of: &klamm_testing::Counters| {
            of.calls(OperationKind::SyncData) + of.calls(OperationKind::SyncDir)
        };
        assert_eq!(syncs(&disk.counters()), syncs(&before), "{policy}");
    }
    server.stop().await;
}

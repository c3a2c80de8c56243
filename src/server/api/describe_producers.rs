//! DescribeProducers (key 61), version 0 (KIP-664).

use klamm_model::ErrorCode;
use klamm_protocol::messages::describe_producers::{
    DescribeProducersRequest, DescribeProducersResponse, PartitionResponse, ProducerState, TopicResponse,
};
use klamm_storage::ProducerState as StoredProducer;

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    _call: &Call,
    request: DescribeProducersRequest,
) -> DescribeProducersResponse {
    let topic = |topic: klamm_protocol::messages::describe_producers::TopicRequest| {
        // A partition that is named twice is described once: it may have very many producers.
        let mut indexes = topic.partition_indexes;
        indexes.sort_unstable();
        indexes.dedup();
        TopicResponse {
            partitions: indexes.into_iter().map(|index| describe(context, &topic.name, index)).collect(),
            name: topic.name,
        }
    };
    DescribeProducersResponse {
        topics: request.topics.into_iter().map(topic).collect(),
        ..DescribeProducersResponse::default()
    }
}

fn describe(context: &Context, topic: &str, index: i32) -> PartitionResponse {
    let error = match context.partitions.by_name(topic, index) {
        Some(partition) if partition.is_leader() => {
            let active_producers = partition.log().producers().iter().map(producer).collect();
            return PartitionResponse { partition_index: index, active_producers, ..Default::default() };
        }
        Some(_) => ErrorCode::NotLeaderOrFollower,
        None => context.missing_partition(None, topic, index),
    };
    PartitionResponse {
        partition_index: index,
        error_code: error.code(),
        error_message: Some(format!("{topic}-{index} is not led by this broker")),
        ..Default::default()
    }
}

fn producer(known: &StoredProducer) -> ProducerState {
    ProducerState {
        producer_id: known.id.0,
        producer_epoch: i32::from(known.epoch.0),
        last_sequence: known.last_sequence(),
        last_timestamp: known.last_timestamp,
        coordinator_epoch: known.coordinator_epoch,
        current_txn_start_offset: known.current_txn_first_offset.unwrap_or(-1),
    }
}

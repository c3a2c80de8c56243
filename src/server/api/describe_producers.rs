//! DescribeProducers (key 61), version 0 (KIP-664).

use std::sync::Arc;

use klamm_coordinator::Repeats;
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
    describe_all(request, |topic, index| describe(context, topic, index)).await
}

/// A partition may have very many producers, and its name takes a few bytes: in one topic or in several entries of
/// the same name it is described again only up to a bound.
async fn describe_all(
    request: DescribeProducersRequest,
    describe: impl Fn(&str, i32) -> PartitionResponse,
) -> DescribeProducersResponse {
    let mut repeats = Repeats::default();
    let mut response = DescribeProducersResponse::default();
    for topic in request.topics {
        let name: Arc<str> = topic.name.as_str().into();
        let mut partitions = Vec::new();
        for index in topic.partition_indexes {
            let described = async { describe(&name, index) };
            partitions.extend(repeats.answer((name.clone(), index), described, bytes_of).await);
        }
        response.topics.push(TopicResponse { name: topic.name, partitions });
    }
    response
}

fn bytes_of(partition: &PartitionResponse) -> usize {
    let message = partition.error_message.as_ref().map_or(0, String::len);
    size_of::<PartitionResponse>() + message + size_of_val(&partition.active_producers[..])
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

#[cfg(test)]
mod tests {
    use klamm_protocol::messages::describe_producers::TopicRequest;

    use super::*;

    /// A few bytes name a partition, and its 2000 producers take a hundred kilobytes.
    #[tokio::test]
    async fn a_partition_that_is_named_very_often_does_not_fill_the_memory() {
        let named = |name: &str, partition_indexes: Vec<i32>| TopicRequest {
            name: name.to_owned(),
            partition_indexes,
        };
        let mut topics = vec![named("t", vec![0, 0, 1])];
        topics.extend((0..4000).map(|_| named("t", vec![0; 5])));
        topics.push(named("u", vec![0]));
        let request = DescribeProducersRequest { topics };
        let describe = |_: &str, partition_index| PartitionResponse {
            partition_index,
            active_producers: vec![ProducerState::default(); 2000],
            ..PartitionResponse::default()
        };
        let response = describe_all(request, describe).await;
        let bytes: usize = response.topics.iter().flat_map(|topic| &topic.partitions).map(bytes_of).sum();
        assert!(bytes < 2 * 1024 * 1024, "{bytes} bytes");
        let indexes = |topic: &TopicResponse| -> Vec<i32> {
            topic.partitions.iter().map(|partition| partition.partition_index).collect()
        };
        // As in Kafka while it is little, and each partition once whatever else is asked.
        assert_eq!(indexes(&response.topics[0]), [0, 0, 1]);
        assert_eq!(response.topics.last().map(indexes), Some(vec![0]));
        assert_eq!(response.topics.len(), 4002);
    }
}

//! DescribeTopicPartitions (key 75), version 0: topics with their partitions in pages (KIP-966).

use std::collections::BTreeSet;

use klamm_metadata::{Image, PartitionState, Topic};
use klamm_model::{ErrorCode, NodeId, topic_name};
use klamm_protocol::messages::describe_topic_partitions::{
    Cursor, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};

use super::Call;
use crate::authorized_operations::TOPIC_OPERATIONS;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    _call: &Call,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let image = context.image();
    let most = context.config().max_request_partition_size_limit.min(request.response_partition_limit);
    let mut left = usize::try_from(most).unwrap_or(0).max(1);
    // All topics where none is named; in the order of their names either way, so that a cursor has a place.
    let names: BTreeSet<&str> = match request.topics.as_slice() {
        [] => image.topic_ids.keys().map(|name| &**name).collect(),
        named => named.iter().map(|topic| topic.name.as_str()).collect(),
    };
    let cursor = request.cursor.as_ref();
    let misplaced = |cursor: &Cursor| {
        let is_named = request.topics.is_empty() || names.contains(cursor.topic_name.as_str());
        cursor.partition_index < 0 || !is_named
    };
    if cursor.is_some_and(misplaced) {
        let topics = names.iter().map(|name| refused(name, ErrorCode::InvalidRequest)).collect();
        return DescribeTopicPartitionsResponse { topics, ..Default::default() };
    }
    let mut response = DescribeTopicPartitionsResponse::default();
    for name in names {
        let first = match cursor {
            Some(cursor) if name < cursor.topic_name.as_str() => continue,
            Some(cursor) if name == cursor.topic_name => usize::try_from(cursor.partition_index).unwrap_or(0),
            _ => 0,
        };
        if left == 0 {
            response.next_cursor = Some(next(name, first));
            break;
        }
        let Some(topic) = image.topic_by_name(name) else {
            response.topics.push(DescribeTopicPartitionsResponseTopic {
                topic_authorized_operations: TOPIC_OPERATIONS,
                ..refused(name, unknown(name))
            });
            continue;
        };
        let (described, end) = describe(context, &image, topic, first, left);
        left -= described.partitions.len();
        response.topics.push(described);
        if end < topic.partitions.len() {
            response.next_cursor = Some(next(name, end));
            break;
        }
    }
    response
}

fn next(topic: &str, partition: usize) -> Cursor {
    Cursor { topic_name: topic.to_owned(), partition_index: partition as i32 }
}

fn unknown(name: &str) -> ErrorCode {
    match topic_name::validate(name) {
        Ok(()) => ErrorCode::UnknownTopicOrPartition,
        Err(_) => ErrorCode::InvalidTopicException,
    }
}

fn refused(name: &str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic {
    DescribeTopicPartitionsResponseTopic {
        error_code: code.code(),
        name: Some(name.to_owned()),
        is_internal: topic_name::is_internal(name),
        ..Default::default()
    }
}

/// A topic with its partitions from `first` on, at most `most`, and the index behind the last.
fn describe(
    context: &Context,
    image: &Image,
    topic: &Topic,
    first: usize,
    most: usize,
) -> (DescribeTopicPartitionsResponseTopic, usize) {
    let end = topic.partitions.len().min(first.saturating_add(most));
    let indexed = topic.partitions.iter().zip(0..).take(end).skip(first);
    let table = context.partitions.load();
    let partitions = indexed.map(|(state, index)| {
        let (told, offline) = table.as_told(context.node_id, image, topic, index, state);
        partition(image, index, &told, &offline)
    });
    let partitions = partitions.collect();
    let described = DescribeTopicPartitionsResponseTopic {
        name: Some(topic.name.to_string()),
        topic_id: topic.id,
        is_internal: topic_name::is_internal(&topic.name),
        partitions,
        topic_authorized_operations: TOPIC_OPERATIONS,
        ..Default::default()
    };
    (described, end)
}

fn partition(
    image: &Image,
    index: i32,
    state: &PartitionState,
    offline: &[NodeId],
) -> DescribeTopicPartitionsResponsePartition {
    let numbers = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect::<Vec<i32>>();
    let leader = state.leader.filter(|node| image.brokers.contains_key(node));
    DescribeTopicPartitionsResponsePartition {
        error_code: if leader.is_some() { ErrorCode::None } else { ErrorCode::LeaderNotAvailable }.code(),
        partition_index: index,
        leader_id: leader.map_or(-1, |node| node.0),
        leader_epoch: state.leader_epoch.0,
        replica_nodes: numbers(&state.replicas),
        isr_nodes: numbers(&state.isr),
        eligible_leader_replicas: Some(numbers(&state.eligible_leaders)),
        last_known_elr: Some(numbers(&state.last_known_eligible_leaders)),
        offline_replicas: numbers(offline),
    }
}

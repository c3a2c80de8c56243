//! Metadata (key 3), versions 0 to 13.
//!
//! v1 racks, the controller, internal topics, null for all topics; v2 cluster id; v4 whether to create topics
//! (KIP-204); v5 offline replicas; v7 leader epochs; v8 authorized operations (KIP-430); v10 topic ids; v12 topics by id
//! alone (KIP-516); v13 a top-level error (KIP-1102).
//!
//! Deviation: a topic that is created by the request is answered with its partitions at once, where Kafka says
//! LEADER_NOT_AVAILABLE or UNKNOWN_TOPIC_OR_PARTITION first and lets the client ask again.

use std::collections::{BTreeMap, BTreeSet};

use klamm_metadata::{Image, PartitionState, Topic};
use klamm_model::{ErrorCode, NodeId, topic_name};
use klamm_protocol::messages::metadata::{
    MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseBroker,
    MetadataResponsePartition, MetadataResponseTopic,
};

use super::Call;
use crate::authorized_operations::{CLUSTER_OPERATIONS, OPERATIONS_OMITTED, TOPIC_OPERATIONS};
use crate::context::{Context, reach};
use crate::topic_creation;

/// From this version on topics may be named by their ids.
const TOPIC_IDS_SINCE: i16 = 12;

pub(crate) async fn handle(context: &Context, call: &Call, request: MetadataRequest) -> MetadataResponse {
    if names_by_id(&request) && call.version < TOPIC_IDS_SINCE {
        return refuse_all(&request);
    }
    let failed = create_missing(context, call, &request).await;
    let image = context.image();
    let operations =
        if request.include_topic_authorized_operations { TOPIC_OPERATIONS } else { OPERATIONS_OMITTED };
    let topics = match &request.topics {
        Some(topics) if !(topics.is_empty() && call.version == 0) => {
            chosen(topics).map(|wanted| named_topic(context, &image, wanted, &failed, operations)).collect()
        }
        _ => image.topics.values().map(|topic| response_topic(context, &image, topic, operations)).collect(),
    };
    MetadataResponse {
        brokers: brokers(context, call, &image),
        cluster_id: Some(image.cluster_id.clone()),
        controller_id: image.controller_for_clients().map_or(-1, |node| node.0),
        topics,
        cluster_authorized_operations: if request.include_cluster_authorized_operations {
            CLUSTER_OPERATIONS
        } else {
            OPERATIONS_OMITTED
        },
        ..Default::default()
    }
}

/// Whether a topic is named by its id, or by nothing.
fn names_by_id(request: &MetadataRequest) -> bool {
    request.topics.iter().flatten().any(|topic| !topic.topic_id.is_zero() || topic.name.is_none())
}

/// What Kafka answers where ids stand in a version that has the field but does not serve it.
fn refuse_all(request: &MetadataRequest) -> MetadataResponse {
    let topics = request.topics.iter().flatten().map(|topic| MetadataResponseTopic {
        error_code: ErrorCode::InvalidRequest.code(),
        name: Some(topic.name.clone().unwrap_or_default()),
        topic_id: topic.topic_id,
        topic_authorized_operations: OPERATIONS_OMITTED,
        ..Default::default()
    });
    MetadataResponse {
        topics: topics.collect(),
        controller_id: -1,
        cluster_authorized_operations: OPERATIONS_OMITTED,
        ..Default::default()
    }
}

/// The topics to answer, each once. Where one is named by its id, those that are not are left out, as in Kafka.
fn chosen(topics: &[MetadataRequestTopic]) -> impl Iterator<Item = &MetadataRequestTopic> {
    let by_id = topics.iter().any(|topic| !topic.topic_id.is_zero());
    let mut seen = BTreeSet::new();
    topics
        .iter()
        .filter(move |topic| by_id != topic.topic_id.is_zero())
        .filter(move |topic| seen.insert((topic.topic_id, if by_id { None } else { topic.name.as_deref() })))
}

/// Creates the topics that are named and do not exist, if the client and the broker want that. Tells what went
/// wrong with those that could not be created.
async fn create_missing(
    context: &Context,
    call: &Call,
    request: &MetadataRequest,
) -> BTreeMap<String, ErrorCode> {
    let allowed = call.version < 4 || request.allow_auto_topic_creation;
    if !allowed || !context.config().auto_create_topics_enable {
        return BTreeMap::new();
    }
    let image = context.image();
    let named = request.topics.iter().flatten().filter(|topic| topic.topic_id.is_zero());
    let mut missing: Vec<&str> = named
        .filter_map(|topic| topic.name.as_deref())
        .filter(|name| topic_name::validate(name).is_ok() && image.topic_by_name(name).is_none())
        .collect();
    missing.sort_unstable();
    missing.dedup();
    if missing.is_empty() { BTreeMap::new() } else { topic_creation::create(context, &missing).await }
}

fn brokers(context: &Context, call: &Call, image: &Image) -> Vec<MetadataResponseBroker> {
    let reachable = image.live_brokers().filter_map(|broker| {
        let (host, port) = reach(broker, context.node_id, &call.endpoint, call.local)?;
        Some(MetadataResponseBroker {
            node_id: broker.id.0,
            host,
            port: i32::from(port),
            rack: broker.rack.clone(),
        })
    });
    reachable.collect()
}

fn named_topic(
    context: &Context,
    image: &Image,
    wanted: &MetadataRequestTopic,
    failed: &BTreeMap<String, ErrorCode>,
    operations: i32,
) -> MetadataResponseTopic {
    let error = |code: ErrorCode| MetadataResponseTopic {
        error_code: code.code(),
        name: wanted.name.clone(),
        topic_id: wanted.topic_id,
        topic_authorized_operations: OPERATIONS_OMITTED,
        ..Default::default()
    };
    if !wanted.topic_id.is_zero() {
        let found = image.topic(wanted.topic_id);
        return found.map_or_else(
            || MetadataResponseTopic { name: None, ..error(ErrorCode::UnknownTopicId) },
            |topic| response_topic(context, image, topic, operations),
        );
    }
    let name = wanted.name.as_deref().unwrap_or_default();
    match (image.topic_by_name(name), failed.get(name)) {
        (Some(topic), _) => response_topic(context, image, topic, operations),
        (None, Some(code)) => error(*code),
        (None, None) if topic_name::validate(name).is_err() => error(ErrorCode::InvalidTopicException),
        (None, None) => MetadataResponseTopic {
            is_internal: topic_name::is_internal(name),
            topic_authorized_operations: operations,
            ..error(ErrorCode::UnknownTopicOrPartition)
        },
    }
}

fn response_topic(context: &Context, image: &Image, topic: &Topic, operations: i32) -> MetadataResponseTopic {
    let table = context.partitions.load();
    let partitions = topic.partitions.iter().zip(0..).map(|(state, index)| {
        let (told, offline) = table.as_told(context.node_id, image, topic, index, state);
        response_partition(image, index, &told, &offline)
    });
    MetadataResponseTopic {
        name: Some(topic.name.to_string()),
        topic_id: topic.id,
        is_internal: topic_name::is_internal(&topic.name),
        partitions: partitions.collect(),
        topic_authorized_operations: operations,
        ..Default::default()
    }
}

fn response_partition(
    image: &Image,
    index: i32,
    state: &PartitionState,
    offline: &[NodeId],
) -> MetadataResponsePartition {
    let numbers = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect::<Vec<i32>>();
    let leader = state.leader.filter(|node| image.brokers.contains_key(node));
    MetadataResponsePartition {
        error_code: if leader.is_some() { ErrorCode::None } else { ErrorCode::LeaderNotAvailable }.code(),
        partition_index: index,
        leader_id: leader.map_or(-1, |node| node.0),
        leader_epoch: state.leader_epoch.0,
        replica_nodes: numbers(&state.replicas),
        isr_nodes: numbers(&state.isr),
        offline_replicas: numbers(offline),
    }
}

//! AlterPartition (KIP-497, KIP-841, KIP-903): the leader of a partition proposes a new ISR.

use klamm_model::{ErrorCode, NodeId, TopicId};
use klamm_protocol::messages::alter_partition as api;
use klamm_protocol::records::cluster_metadata::{MetadataRecord, PartitionChangeRecord};

use crate::apply::apply_to;
use crate::image::{Image, PartitionState, RecoveryState};

/// Changes the ISR of partitions that the asking broker leads. A reply of 0 carries the new state, and any
/// other code means that nothing changed.
pub fn alter_partition(
    image: &Image,
    request: &api::AlterPartitionRequest,
) -> (Vec<MetadataRecord>, api::AlterPartitionResponse) {
    let mut response = api::AlterPartitionResponse::default();
    let broker = NodeId(request.broker_id);
    let code = match image.brokers.get(&broker) {
        None => ErrorCode::BrokerIdNotRegistered,
        Some(registered) if registered.epoch != request.broker_epoch => ErrorCode::StaleBrokerEpoch,
        Some(_) => ErrorCode::None,
    };
    if code != ErrorCode::None {
        response.error_code = code.code();
        return (Vec::new(), response);
    }
    let mut records = Vec::new();
    for topic in &request.topics {
        let id = match topic.topic_id {
            id if id.is_zero() => image.topic_ids.get(topic.topic_name.as_str()).copied().unwrap_or(id),
            id => id,
        };
        let partitions =
            topic.partitions.iter().map(|partition| match change(image, broker, id, partition) {
                Ok((record, state)) => {
                    records.push(record);
                    accepted(partition.partition_index, &state)
                }
                Err(code) => api::PartitionDataResponse {
                    partition_index: partition.partition_index,
                    error_code: code.code(),
                    ..Default::default()
                },
            });
        let partitions = partitions.collect();
        response.topics.push(api::TopicDataResponse {
            topic_name: topic.topic_name.clone(),
            topic_id: topic.topic_id,
            partitions,
        });
    }
    (records, response)
}

fn change(
    image: &Image,
    broker: NodeId,
    topic: TopicId,
    asked: &api::PartitionDataRequest,
) -> Result<(MetadataRecord, PartitionState), ErrorCode> {
    let found = image.topic(topic).ok_or(ErrorCode::UnknownTopicId)?;
    let state = found.partition(asked.partition_index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let isr = proposed(asked);
    check(image, broker, state, asked, &isr)?;
    let record = MetadataRecord::PartitionChange(PartitionChangeRecord {
        partition_id: asked.partition_index,
        topic_id: topic,
        isr: Some(isr.iter().map(|(id, _)| id.0).collect()),
        leader_recovery_state: asked.leader_recovery_state,
        ..Default::default()
    });
    let mut planned = image.clone();
    apply_to(&mut planned, &record);
    let after = planned.topic(topic).and_then(|topic| topic.partition(asked.partition_index));
    Ok((record, after.cloned().ok_or(ErrorCode::UnknownTopicOrPartition)?))
}

/// The proposed members, with their broker epochs where the version carries them.
fn proposed(asked: &api::PartitionDataRequest) -> Vec<(NodeId, Option<i64>)> {
    if asked.new_isr_with_epochs.is_empty() {
        return asked.new_isr.iter().map(|id| (NodeId(*id), None)).collect();
    }
    let with_epochs = asked.new_isr_with_epochs.iter();
    with_epochs
        .map(|member| (NodeId(member.broker_id), (member.broker_epoch >= 0).then_some(member.broker_epoch)))
        .collect()
}

fn check(
    image: &Image,
    broker: NodeId,
    state: &PartitionState,
    asked: &api::PartitionDataRequest,
    isr: &[(NodeId, Option<i64>)],
) -> Result<(), ErrorCode> {
    // What the asking broker knows must be what the controller knows, or a proposal of an older state would
    // overwrite a newer one.
    if asked.leader_epoch > state.leader_epoch.0 || asked.partition_epoch > state.partition_epoch {
        return Err(ErrorCode::NotController);
    }
    if state.leader != Some(broker) || asked.leader_epoch < state.leader_epoch.0 {
        return Err(ErrorCode::FencedLeaderEpoch);
    }
    if asked.partition_epoch < state.partition_epoch {
        return Err(ErrorCode::InvalidUpdateVersion);
    }
    let all_replicas = isr.iter().all(|(id, _)| state.replicas.contains(id));
    if !all_replicas || !isr.iter().any(|(id, _)| *id == broker) {
        return Err(ErrorCode::InvalidRequest);
    }
    let recovering = asked.leader_recovery_state == 1;
    if recovering && (isr.len() > 1 || state.recovery == RecoveryState::Recovered) {
        return Err(ErrorCode::InvalidRequest);
    }
    let eligible = |(id, epoch): &(NodeId, Option<i64>)| {
        image
            .brokers
            .get(id)
            .is_some_and(|member| member.is_active() && epoch.is_none_or(|epoch| epoch == member.epoch))
    };
    if isr.iter().all(eligible) { Ok(()) } else { Err(ErrorCode::IneligibleReplica) }
}

fn accepted(index: i32, state: &PartitionState) -> api::PartitionDataResponse {
    api::PartitionDataResponse {
        partition_index: index,
        leader_id: state.leader.map_or(-1, |leader| leader.0),
        leader_epoch: state.leader_epoch.0,
        isr: state.isr.iter().map(|id| id.0).collect(),
        leader_recovery_state: i8::from(state.recovery == RecoveryState::Recovering),
        partition_epoch: state.partition_epoch,
        ..Default::default()
    }
}

//! AlterPartition (KIP-497, KIP-841, KIP-903): the leader of a partition proposes a new ISR.

use klamm_model::{ErrorCode, NodeId, TopicId};
use klamm_protocol::messages::alter_partition as api;
use klamm_protocol::records::cluster_metadata::MetadataRecord;

use super::ControllerContext;
use super::brokers::change_record;
use super::election::{ElectionRules, PartitionTarget};
use crate::apply::changed;
use crate::image::{DIRECTORY_LOST, Image, PartitionState, RecoveryState};
use crate::planted::planted;

/// Changes the ISR of partitions that the asking broker leads. A reply of 0 carries the new state. Any other code
/// means that nothing changed, but for NEW_LEADER_ELECTED: the change ended a reassignment, and with it the asking
/// broker's leadership.
pub fn alter_partition(
    image: &Image,
    context: &ControllerContext<'_>,
    request: &api::AlterPartitionRequest,
) -> (Vec<MetadataRecord>, api::AlterPartitionResponse) {
    let mut response = api::AlterPartitionResponse::default();
    let broker = NodeId(request.broker_id);
    // As in Kafka, a broker that is not registered has no epoch that could be right.
    let is_current = image.brokers.get(&broker).is_some_and(|known| known.epoch == request.broker_epoch);
    if !is_current && !planted!(context.planted, AcceptStaleBrokerEpoch) {
        response.error_code = ErrorCode::StaleBrokerEpoch.code();
        return (Vec::new(), response);
    }
    let mut records = Vec::new();
    for topic in &request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            let (record, answer) = decide(image, context, broker, topic.topic_id, asked);
            records.extend(record);
            partitions.push(answer);
        }
        response.topics.push(api::TopicDataResponse {
            topic_id: topic.topic_id,
            partitions,
            ..Default::default()
        });
    }
    (records, response)
}

/// The change of one partition and the answer to it.
fn decide(
    image: &Image,
    context: &ControllerContext<'_>,
    broker: NodeId,
    topic: TopicId,
    asked: &api::PartitionDataRequest,
) -> (Option<MetadataRecord>, api::PartitionDataResponse) {
    let refused = |code: ErrorCode| api::PartitionDataResponse {
        partition_index: asked.partition_index,
        error_code: code.code(),
        ..Default::default()
    };
    let Some(found) = image.topic(topic) else { return (None, refused(ErrorCode::UnknownTopicId)) };
    let Some(state) = found.partition(asked.partition_index) else {
        return (None, refused(ErrorCode::UnknownTopicOrPartition));
    };
    let isr = proposed(asked);
    if let Err(code) = check(image, context, broker, state, asked, &isr) {
        return (None, refused(code));
    }
    let mut target =
        PartitionTarget::new(image, context, state, ElectionRules::of(image, context, &found.name));
    target.isr = isr.iter().map(|(id, _)| *id).collect();
    target.recovery = match asked.leader_recovery_state {
        1 => RecoveryState::Recovering,
        _ => RecoveryState::Recovered,
    };
    let Some(change) = target.plan() else { return (None, accepted(asked.partition_index, state)) };
    let after = changed(state, &change);
    let answer = match after.leader == Some(broker) {
        true => accepted(asked.partition_index, &after),
        false => refused(ErrorCode::NewLeaderElected),
    };
    (Some(change_record(topic, asked.partition_index, change)), answer)
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
    context: &ControllerContext<'_>,
    broker: NodeId,
    state: &PartitionState,
    asked: &api::PartitionDataRequest,
    isr: &[(NodeId, Option<i64>)],
) -> Result<(), ErrorCode> {
    // What the asking broker knows must be what the controller knows, or a proposal of an older state would
    // overwrite a newer one.
    let is_old = asked.leader_epoch < state.leader_epoch.0 || asked.partition_epoch < state.partition_epoch;
    if is_old && planted!(context.planted, AcceptOldPartitionEpoch) {
        return Ok(());
    }
    if asked.leader_epoch > state.leader_epoch.0 || asked.partition_epoch > state.partition_epoch {
        return Err(ErrorCode::NotController);
    }
    if asked.leader_epoch < state.leader_epoch.0 {
        return Err(ErrorCode::FencedLeaderEpoch);
    }
    if state.leader != Some(broker) {
        return Err(ErrorCode::InvalidRequest);
    }
    if asked.partition_epoch < state.partition_epoch {
        return Err(ErrorCode::InvalidUpdateVersion);
    }
    let mut members: Vec<NodeId> = isr.iter().map(|(id, _)| *id).collect();
    members.sort();
    let is_twice = members.windows(2).any(|pair| pair[0] == pair[1]);
    let all_replicas = members.iter().all(|id| state.replicas.contains(id));
    if is_twice || !all_replicas || !members.contains(&broker) {
        return Err(ErrorCode::InvalidRequest);
    }
    // A number that stands for no state makes Kafka's controller resign.
    if !matches!(asked.leader_recovery_state, 0 | 1) {
        return Err(ErrorCode::InvalidRequest);
    }
    let recovering = asked.leader_recovery_state == 1;
    if recovering && (isr.len() > 1 || state.recovery == RecoveryState::Recovered) {
        return Err(ErrorCode::InvalidRequest);
    }
    let eligible = |(id, epoch): &(NodeId, Option<i64>)| {
        let is_current = |known: i64| {
            epoch.is_none_or(|epoch| epoch == known) || planted!(context.planted, AcceptStaleBrokerEpoch)
        };
        let is_lost = state.directory_of(*id) == DIRECTORY_LOST && !state.isr.contains(id);
        let member = image.brokers.get(id);
        !is_lost && member.is_some_and(|member| member.is_active() && is_current(member.epoch))
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

//! In which log directory each replica is (KIP-858), and what becomes of the partitions in one that fails.

use klamm_model::{ErrorCode, NodeId, TopicId, Uuid};
use klamm_protocol::messages::assign_replicas_to_dirs::{
    AssignReplicasToDirsRequest, AssignReplicasToDirsResponse, DirectoryDataResponse, PartitionDataResponse,
    TopicDataResponse,
};
use klamm_protocol::records::cluster_metadata::{BrokerRegistrationChangeRecord, MetadataRecord};

use super::ControllerContext;
use super::brokers::{change_record, elect_where};
use super::election::{Candidates, ElectionRules, PartitionTarget};
use crate::apply::apply_to;
use crate::image::{Broker, DIRECTORY_LOST, Image, PartitionState};

/// A broker tells in which of its directories it has put replicas. What is in one that is not online, it neither
/// leads nor has in sync.
pub fn assign_replicas_to_dirs(
    image: &Image,
    context: &ControllerContext<'_>,
    request: &AssignReplicasToDirsRequest,
) -> (Vec<MetadataRecord>, AssignReplicasToDirsResponse) {
    let mut response = AssignReplicasToDirsResponse::default();
    let known = image.brokers.get(&NodeId(request.broker_id));
    let Some(broker) = known.filter(|broker| broker.epoch == request.broker_epoch) else {
        response.error_code = ErrorCode::StaleBrokerEpoch.code();
        return (Vec::new(), response);
    };
    let mut planned = image.clone();
    let mut records = Vec::new();
    for directory in &request.directories {
        let mut answer = DirectoryDataResponse { id: directory.id, ..Default::default() };
        for topic in &directory.topics {
            let mut partitions = Vec::with_capacity(topic.partitions.len());
            for partition in &topic.partitions {
                let place = (topic.topic_id, partition.partition_index);
                let outcome = assign(&planned, context, broker, directory.id, place).map(|record| {
                    record.iter().for_each(|record| apply_to(&mut planned, record));
                    records.extend(record);
                });
                partitions.push(PartitionDataResponse {
                    partition_index: partition.partition_index,
                    error_code: outcome.err().unwrap_or(ErrorCode::None).code(),
                });
            }
            answer.topics.push(TopicDataResponse { topic_id: topic.topic_id, partitions });
        }
        response.directories.push(answer);
    }
    (records, response)
}

fn assign(
    image: &Image,
    context: &ControllerContext<'_>,
    broker: &Broker,
    directory: Uuid,
    (topic, index): (TopicId, i32),
) -> Result<Option<MetadataRecord>, ErrorCode> {
    let topic = image.topic(topic).ok_or(ErrorCode::UnknownTopicId)?;
    let state = topic.partition(index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    if !state.replicas.contains(&broker.id) {
        return Err(ErrorCode::NotLeaderOrFollower);
    }
    if directory == DIRECTORY_LOST && *state.isr == [broker.id] {
        // Told before it heard that it is the last one in sync. Nobody can take its place.
        return Ok(None);
    }
    let mut target =
        PartitionTarget::new(image, context, state, ElectionRules::of(image, context, &topic.name));
    target.directories.push((broker.id, directory));
    if !broker.has_directory(directory) {
        target.candidates.leaving = Some(broker.id);
        target.isr.retain(|id| *id != broker.id);
    } else if !broker.has_directory(state.directory_of(broker.id)) {
        // The directory that it was in is gone, so this one began empty.
        target.candidates.unclean = Some(broker.id);
        target.isr.retain(|id| *id != broker.id);
    }
    Ok(target.plan().map(|change| change_record(topic.id, index, change)))
}

/// Takes directories of a broker out of use that it says are offline: it leaves what is in them. Nothing where all of
/// them are, or none is known: a broker that has none left ends.
pub(super) fn take_offline(
    image: &Image,
    context: &ControllerContext<'_>,
    broker: &Broker,
    offline: &[Uuid],
) -> Vec<MetadataRecord> {
    let (failed, left): (Vec<Uuid>, Vec<Uuid>) =
        broker.directories.iter().partition(|directory| offline.contains(directory));
    if failed.is_empty() || left.is_empty() {
        return Vec::new();
    }
    let mut records = vec![MetadataRecord::from(BrokerRegistrationChangeRecord {
        broker_id: broker.id.0,
        broker_epoch: broker.epoch,
        log_dirs: left,
        ..Default::default()
    })];
    let is_in_them = |state: &PartitionState| {
        state.isr.contains(&broker.id) && failed.contains(&state.directory_of(broker.id))
    };
    records.extend(elect_where(image, context, is_in_them, |target| {
        target.candidates = Candidates { leaving: Some(broker.id), ..Candidates::default() };
        target.isr.retain(|id| *id != broker.id);
    }));
    records
}

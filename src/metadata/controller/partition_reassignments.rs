//! AlterPartitionReassignments and ListPartitionReassignments (KIP-455, KIP-860): partitions move to other brokers.

use klamm_model::{ErrorCode, NodeId};
use klamm_protocol::messages::alter_partition_reassignments::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, ReassignablePartition,
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use klamm_protocol::messages::list_partition_reassignments::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, OngoingPartitionReassignment,
    OngoingTopicReassignment,
};
use klamm_protocol::records::cluster_metadata::MetadataRecord;

use super::brokers::change_record;
use super::create_topics::check_replicas;
use super::election::{ElectionRules, PartitionTarget};
use super::reassignment::Assignment;
use super::{ControllerContext, Refusal};
use crate::apply::apply_to;
use crate::image::{Image, PartitionState, Topic};

/// Begins reassignments, changes those that are under way, or with no replicas cancels them. Each partition succeeds
/// or fails by itself; one that is named twice ends as it is named last.
pub fn alter_partition_reassignments(
    image: &Image,
    context: &ControllerContext<'_>,
    request: &AlterPartitionReassignmentsRequest,
) -> (Vec<MetadataRecord>, AlterPartitionReassignmentsResponse) {
    let mut planned = image.clone();
    let mut records = Vec::new();
    let mut response = AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: request.allow_replication_factor_change,
        // Kafka's answer to nothing.
        error_message: request.topics.is_empty().then(String::new),
        ..Default::default()
    };
    for asked in &request.topics {
        let mut partitions = Vec::with_capacity(asked.partitions.len());
        for partition in &asked.partitions {
            let keeps_factor = !request.allow_replication_factor_change;
            let outcome = plan(&planned, context, &asked.name, partition, keeps_factor).map(|record| {
                record.iter().for_each(|record| apply_to(&mut planned, record));
                records.extend(record);
            });
            partitions.push(result(partition.partition_index, outcome.err()));
        }
        response.responses.push(ReassignableTopicResponse { name: asked.name.clone(), partitions });
    }
    (records, response)
}

fn plan(
    image: &Image,
    context: &ControllerContext<'_>,
    name: &str,
    asked: &ReassignablePartition,
    keeps_factor: bool,
) -> Result<Option<MetadataRecord>, Refusal> {
    let index = asked.partition_index;
    let unknown = |message: String| Refusal::new(ErrorCode::UnknownTopicOrPartition, message);
    let topic = image.topic_by_name(name).ok_or_else(|| unknown(format!("There is no topic '{name}'")))?;
    let state =
        topic.partition(index).ok_or_else(|| unknown(format!("There is no partition {name}-{index}")))?;
    let mut target = PartitionTarget::new(image, context, state, ElectionRules::of(image, context, name));
    match &asked.replicas {
        Some(replicas) => {
            let replicas: Vec<NodeId> = replicas.iter().copied().map(NodeId).collect();
            check_replicas(image, &replicas, None)?;
            let factor = Assignment::before(state).len();
            if keeps_factor && replicas.len() != factor {
                let message = format!(
                    "{name}-{index} has {factor} replica(s), {} are assigned, and the request does not allow that \
                     to change",
                    replicas.len()
                );
                return Err(Refusal::new(ErrorCode::InvalidReplicationFactor, message));
            }
            target.assignment = Assignment::moving_to(state, &replicas);
        }
        None => cancel(&mut target, topic, index, state)?,
    }
    target.isr.retain(|id| target.assignment.replicas.contains(id));
    Ok(target.plan().map(|change| change_record(topic.id, index, change)))
}

/// Back to the replicas from before. Where only new ones are in sync, that loses records, and is done only where a
/// topic allows it.
fn cancel(
    target: &mut PartitionTarget<'_>,
    topic: &Topic,
    index: i32,
    state: &PartitionState,
) -> Result<(), Refusal> {
    let name = &topic.name;
    if !is_moving(state) {
        let message = "No partition reassignment is in progress.";
        return Err(Refusal::new(ErrorCode::NoReassignmentInProgress, message));
    }
    let replicas = Assignment::before(state);
    let trusted = Assignment::trusted(state);
    if !trusted.is_empty() && !trusted.iter().any(|id| replicas.contains(id)) {
        let Some(first) = replicas.first().filter(|_| target.allows_unclean()) else {
            let message = format!(
                "The reassignment of {name}-{index} cannot be cancelled: none of the replicas from before is in \
                 sync, and unclean.leader.election.enable is false"
            );
            return Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, message));
        };
        target.isr = vec![*first];
    }
    target.assignment = Assignment { replicas, removing: Vec::new(), adding: Vec::new() };
    Ok(())
}

fn is_moving(state: &PartitionState) -> bool {
    !state.adding.is_empty() || !state.removing.is_empty()
}

/// The reassignments that are under way, of all partitions or of those that are named.
pub fn list_partition_reassignments(
    image: &Image,
    request: &ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse {
    let ongoing = |topic: &Topic, index: i32| {
        let state = topic.partition(index).filter(|state| is_moving(state))?;
        let numbers = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect::<Vec<i32>>();
        Some(OngoingPartitionReassignment {
            partition_index: index,
            replicas: numbers(&state.replicas),
            adding_replicas: numbers(&state.adding),
            removing_replicas: numbers(&state.removing),
        })
    };
    let of_topic = |topic: &Topic, indexes: &mut dyn Iterator<Item = i32>| {
        let partitions: Vec<_> = indexes.filter_map(|index| ongoing(topic, index)).collect();
        let name = topic.name.to_string();
        (!partitions.is_empty()).then_some(OngoingTopicReassignment { name, partitions })
    };
    let topics = match &request.topics {
        None => {
            let all = image.topics.values();
            all.filter_map(|topic| of_topic(topic, &mut (0..topic.partitions.len() as i32))).collect()
        }
        Some(named) => {
            let found = named.iter().filter_map(|asked| {
                let topic = image.topic_by_name(&asked.name)?;
                of_topic(topic, &mut asked.partition_indexes.iter().copied())
            });
            found.collect()
        }
    };
    ListPartitionReassignmentsResponse { error_message: None, topics, ..Default::default() }
}

/// The answer where nothing could be decided: as in Kafka, the code stands at each partition too.
pub fn refuse_reassignments(
    request: &AlterPartitionReassignmentsRequest,
    code: ErrorCode,
    message: &str,
) -> AlterPartitionReassignmentsResponse {
    let topics = request.topics.iter().map(|asked| ReassignableTopicResponse {
        name: asked.name.clone(),
        partitions: asked
            .partitions
            .iter()
            .map(|partition| result(partition.partition_index, Some(Refusal::new(code, message))))
            .collect(),
    });
    AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: request.allow_replication_factor_change,
        error_code: code.code(),
        error_message: Some(message.to_owned()),
        responses: topics.collect(),
        ..Default::default()
    }
}

fn result(index: i32, refusal: Option<Refusal>) -> ReassignablePartitionResponse {
    ReassignablePartitionResponse {
        partition_index: index,
        error_code: refusal.as_ref().map_or(0, |refusal| refusal.code.code()),
        error_message: refusal.map(|refusal| refusal.message),
    }
}

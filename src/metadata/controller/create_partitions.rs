//! CreatePartitions (KIP-195).

use std::collections::BTreeMap;

use klamm_model::{ErrorCode, NodeId};
use klamm_protocol::messages::create_partitions::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopic, CreatePartitionsTopicResult,
};
use klamm_protocol::records::cluster_metadata::MetadataRecord;

use super::create_topics::{PARTITIONS_MAX, check_replicas, new_partition, no_placement};
use super::placement::Placer;
use super::{ControllerContext, Refusal};
use crate::image::{Image, Topic};

/// Adds partitions to topics. Names that stand twice in the request are refused once, before all others.
pub fn create_partitions(
    image: &Image,
    context: &ControllerContext<'_>,
    request: &CreatePartitionsRequest,
) -> (Vec<MetadataRecord>, CreatePartitionsResponse) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for topic in &request.topics {
        *counts.entry(&topic.name).or_default() += 1;
    }
    let mut response = CreatePartitionsResponse::default();
    for (name, _) in counts.iter().filter(|(_, count)| **count > 1) {
        let message = "Duplicate topic name.";
        response.results.push(result(name, Some(Refusal::new(ErrorCode::InvalidRequest, message))));
    }
    let mut records = Vec::new();
    let mut added = 0;
    for topic in request.topics.iter().filter(|topic| counts[topic.name.as_str()] == 1) {
        match plan(image, context, topic, &mut added) {
            Ok(planned) => {
                records.extend(planned);
                response.results.push(result(&topic.name, None));
            }
            Err(refusal) => response.results.push(result(&topic.name, Some(refusal))),
        }
    }
    if request.validate_only {
        records.clear();
    }
    (records, response)
}

fn plan(
    image: &Image,
    context: &ControllerContext<'_>,
    asked: &CreatePartitionsTopic,
    added: &mut usize,
) -> Result<Vec<MetadataRecord>, Refusal> {
    let Some(topic) = image.topic_by_name(&asked.name) else {
        let message = "This server does not host this topic-partition.";
        return Err(Refusal::new(ErrorCode::UnknownTopicOrPartition, message));
    };
    let present = topic.partitions.len();
    if asked.count <= present as i32 {
        let message = if asked.count == present as i32 {
            format!("Topic already has {present} partition(s).")
        } else {
            let (name, count) = (&asked.name, asked.count);
            format!(
                "The topic {name} currently has {present} partition(s); {count} would not be an increase."
            )
        };
        return Err(Refusal::new(ErrorCode::InvalidPartitions, message));
    }
    let wanted = asked.count as usize - present;
    *added += wanted;
    if *added > PARTITIONS_MAX {
        let message = "Excessively large number of additional partitions per request.";
        return Err(Refusal::new(ErrorCode::PolicyViolation, message));
    }
    let factor = topic.replication_factor();
    let replicas = match &asked.assignments {
        Some(assignments) => {
            let chosen = assignments.iter().map(|a| a.broker_ids.iter().copied().map(NodeId).collect());
            check_assignments(image, topic, wanted, chosen.collect())?
        }
        None => Placer::new(image, context.random).place(wanted, factor).map_err(no_placement)?,
    };
    let numbered = (present as i32..).zip(&replicas);
    numbered.map(|(index, replicas)| new_partition(image, topic.id, index, replicas)).collect()
}

fn check_assignments(
    image: &Image,
    topic: &Topic,
    wanted: usize,
    chosen: Vec<Vec<NodeId>>,
) -> Result<Vec<Vec<NodeId>>, Refusal> {
    if chosen.len() != wanted {
        let message = format!(
            "Attempted to add {wanted} additional partition(s), but only {} assignment(s) were specified.",
            chosen.len()
        );
        return Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, message));
    }
    for replicas in &chosen {
        check_replicas(image, replicas, Some(topic.replication_factor() as usize))?;
    }
    Ok(chosen)
}

fn result(name: &str, refusal: Option<Refusal>) -> CreatePartitionsTopicResult {
    CreatePartitionsTopicResult {
        name: name.to_owned(),
        error_code: refusal.as_ref().map_or(0, |refusal| refusal.code.code()),
        error_message: refusal.map(|refusal| refusal.message),
    }
}

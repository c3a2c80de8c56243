//! ElectLeaders (KIP-183, KIP-460), and the preferred leaders that take over by themselves
//! (`auto.leader.rebalance.enable`).

use std::collections::BTreeSet;

use klamm_model::{ErrorCode, TopicId};
use klamm_protocol::messages::elect_leaders::{
    ElectLeadersRequest, ElectLeadersResponse, PartitionResult, ReplicaElectionResult,
};
use klamm_protocol::records::cluster_metadata::MetadataRecord;

use super::brokers::change_record;
use super::election::{Election, ElectionRules, PartitionTarget};
use super::{ControllerContext, Refusal};
use crate::image::{Image, PartitionState, Topic};

/// How many preferred leaders take over at once by themselves, as in Kafka: each move costs clients a retry.
pub const REBALANCED_MAX: usize = 1000;

/// Makes preferred leaders take over (type 0), or elects for partitions without a leader any replica that is alive
/// where none that has everything is (type 1). Where no partitions are named, all are tried, and those that need
/// nothing are left out of the answer.
pub fn elect_leaders(
    image: &Image,
    context: &ControllerContext<'_>,
    request: &ElectLeadersRequest,
) -> (Vec<MetadataRecord>, ElectLeadersResponse) {
    let election = match request.election_type {
        0 => Election::Preferred,
        1 => Election::Unclean,
        other => {
            let message = format!("There is no election type {other}: preferred (0), unclean (1)");
            return (Vec::new(), refuse_elections(request, ErrorCode::InvalidRequest, &message));
        }
    };
    let mut records = Vec::new();
    let mut decided = BTreeSet::new();
    let mut attempt = |topic: Option<&Topic>, name: &str, index: i32| {
        let outcome = plan(image, context, topic, name, index, election).map(|(id, record)| {
            // A partition that is named twice is elected for once.
            if decided.insert((id, index)) {
                records.push(record);
            }
        });
        result(index, outcome.err())
    };
    let mut response = ElectLeadersResponse::default();
    match &request.topic_partitions {
        Some(named) => {
            for asked in named {
                let topic = image.topic_by_name(&asked.topic).map(|topic| &**topic);
                let results = asked.partitions.iter().map(|index| attempt(topic, &asked.topic, *index));
                response.replica_election_results.push(ReplicaElectionResult {
                    topic: asked.topic.clone(),
                    partition_result: results.collect(),
                });
            }
        }
        None => {
            for topic in image.topics.values() {
                let all =
                    (0..).zip(&topic.partitions).map(|(index, _)| attempt(Some(topic), &topic.name, index));
                let not_needed = ErrorCode::ElectionNotNeeded.code();
                let results = all.filter(|result| result.error_code != not_needed);
                response.replica_election_results.push(ReplicaElectionResult {
                    topic: topic.name.to_string(),
                    partition_result: results.collect(),
                });
            }
        }
    }
    (records, response)
}

fn plan(
    image: &Image,
    context: &ControllerContext<'_>,
    topic: Option<&Topic>,
    name: &str,
    index: i32,
    election: Election,
) -> Result<(TopicId, MetadataRecord), Refusal> {
    let unknown = |message: String| Refusal::new(ErrorCode::UnknownTopicOrPartition, message);
    let topic = topic.ok_or_else(|| unknown(format!("No such topic as {name}")))?;
    let state =
        topic.partition(index).ok_or_else(|| unknown(format!("No such partition as {name}-{index}")))?;
    let is_needed = match election {
        Election::Preferred => !has_preferred_leader(state),
        Election::Online | Election::Unclean => state.leader.is_none(),
    };
    if !is_needed {
        let message = "Leader election not needed for topic partition.";
        return Err(Refusal::new(ErrorCode::ElectionNotNeeded, message));
    }
    let mut target = PartitionTarget::new(image, context, state, ElectionRules::of(image, context, name));
    target.election = election;
    match target.plan() {
        Some(change) => Ok((topic.id, change_record(topic.id, index, change))),
        None if election == Election::Preferred => {
            let message =
                format!("The preferred leader of {name}-{index} is not in sync, or its broker is not alive");
            Err(Refusal::new(ErrorCode::PreferredLeaderNotAvailable, message))
        }
        None => {
            let message = format!("No broker is alive that holds {name}-{index}");
            Err(Refusal::new(ErrorCode::EligibleLeadersNotAvailable, message))
        }
    }
}

fn has_preferred_leader(state: &PartitionState) -> bool {
    state.leader.is_some() && state.leader == state.replicas.first().copied()
}

/// Gives leadership back to preferred leaders that may lead, a limited number at once. Unlike Kafka with ZooKeeper,
/// and like KRaft, it does so however few they are.
pub fn rebalance_leaders(image: &Image, context: &ControllerContext<'_>) -> Vec<MetadataRecord> {
    let mut records = Vec::new();
    for topic in image.topics.values() {
        let mut rules = None;
        for (index, state) in (0..).zip(&topic.partitions).filter(|(_, state)| !has_preferred_leader(state)) {
            let rules = *rules.get_or_insert_with(|| ElectionRules::of(image, context, &topic.name));
            let mut target = PartitionTarget::new(image, context, state, rules);
            target.election = Election::Preferred;
            records.extend(target.plan().map(|change| change_record(topic.id, index, change)));
            if records.len() >= REBALANCED_MAX {
                return records;
            }
        }
    }
    records
}

/// The answer where nothing could be decided: as in Kafka, the code stands at each partition too.
pub fn refuse_elections(
    request: &ElectLeadersRequest,
    code: ErrorCode,
    message: &str,
) -> ElectLeadersResponse {
    let results = request.topic_partitions.iter().flatten().map(|asked| ReplicaElectionResult {
        topic: asked.topic.clone(),
        partition_result: asked
            .partitions
            .iter()
            .map(|index| result(*index, Some(Refusal::new(code, message))))
            .collect(),
    });
    ElectLeadersResponse {
        error_code: code.code(),
        replica_election_results: results.collect(),
        ..Default::default()
    }
}

fn result(index: i32, refusal: Option<Refusal>) -> PartitionResult {
    PartitionResult {
        partition_id: index,
        error_code: refusal.as_ref().map_or(0, |refusal| refusal.code.code()),
        error_message: refusal.map(|refusal| refusal.message),
    }
}

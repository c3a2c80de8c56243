//! CreateTopics (KIP-4, KIP-464, KIP-525), and the topics that come into being by themselves.

use std::collections::BTreeMap;

use klamm_model::{ErrorCode, LeaderEpoch, NodeId, Uuid, topic_name};
use klamm_protocol::messages::create_topics::{
    CreatableTopic, CreatableTopicConfig, CreatableTopicConfigs, CreatableTopicResult, CreateTopicsRequest,
    CreateTopicsResponse,
};
use klamm_protocol::records::cluster_metadata::{ConfigRecord, MetadataRecord, PartitionRecord, TopicRecord};

use super::election::default_directory;
use super::placement::{PlacementError, Placer};
use super::{ControllerContext, Refusal, TopicDefaults};
use crate::image::{ConfigResource, Image};

/// The most partitions that one request may ask for, as in Kafka.
pub(super) const PARTITIONS_MAX: usize = 10_000;

const TOO_MANY_PARTITIONS: &str = "Excessively large number of partitions per request.";

/// The log of KRaft's own metadata, which never is a topic.
const CLUSTER_METADATA: &str = "__cluster_metadata";

/// A topic that the brokers make for themselves when it is first needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InternalTopic {
    /// `__consumer_offsets`.
    GroupMetadata,
    /// `__transaction_state`.
    TransactionState,
}

/// Creates topics. Names that stand twice in the request are refused once, after all others.
pub fn create_topics(
    image: &Image,
    context: &ControllerContext<'_>,
    request: &CreateTopicsRequest,
) -> (Vec<MetadataRecord>, CreateTopicsResponse) {
    let mut response = CreateTopicsResponse::default();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for topic in &request.topics {
        *counts.entry(&topic.name).or_default() += 1;
    }
    let wanted = request.topics.iter().filter(|topic| counts[topic.name.as_str()] == 1);
    let partitions: usize = wanted.clone().map(|topic| partitions_asked(topic, context.defaults)).sum();
    let mut records = Vec::new();
    for topic in wanted {
        let outcome = if partitions > PARTITIONS_MAX {
            Err(Refusal::new(ErrorCode::PolicyViolation, TOO_MANY_PARTITIONS))
        } else {
            plan_topic(image, context, topic)
        };
        match outcome {
            Ok(plan) => {
                records.extend(plan.records);
                response.topics.push(plan.result);
            }
            Err(refusal) => response.topics.push(refused(&topic.name, refusal)),
        }
    }
    for (name, _) in counts.into_iter().filter(|(_, count)| *count > 1) {
        let refusal = Refusal::new(ErrorCode::InvalidRequest, "Duplicate topic name.");
        response.topics.push(refused(name, refusal));
    }
    if request.validate_only {
        records.clear();
    }
    (records, response)
}

/// What one request is charged for, so that it cannot ask for an arbitrary amount of work.
fn partitions_asked(topic: &CreatableTopic, defaults: &TopicDefaults) -> usize {
    match (topic.assignments.len(), topic.num_partitions) {
        (0, -1) => usize::try_from(defaults.num_partitions).unwrap_or(0),
        (0, count) => usize::try_from(count).unwrap_or(0),
        (count, _) => count,
    }
}

struct Plan {
    records: Vec<MetadataRecord>,
    result: CreatableTopicResult,
}

fn plan_topic(
    image: &Image,
    context: &ControllerContext<'_>,
    topic: &CreatableTopic,
) -> Result<Plan, Refusal> {
    check_name(image, &topic.name)?;
    let configs = check_configs(context, &topic.configs)?;
    let assignments = if topic.assignments.is_empty() {
        assign(image, context, topic)?
    } else {
        check_assignments(image, topic)?
    };
    let id = Uuid::from_random(context.random.next_16());
    let factor = assignments.first().map_or(0, Vec::len) as i16;
    let mut records = vec![MetadataRecord::Topic(TopicRecord { name: topic.name.clone(), topic_id: id })];
    for (name, value) in &configs {
        records.push(MetadataRecord::Config(ConfigRecord {
            resource_type: ConfigResource::Topic(String::new()).type_code(),
            resource_name: topic.name.clone(),
            name: name.clone(),
            value: Some(value.clone()),
        }));
    }
    for (index, replicas) in assignments.iter().enumerate() {
        records.push(new_partition(image, id, index as i32, replicas)?);
    }
    let cluster = image.config_of(&ConfigResource::Broker(None));
    let described = context.rules.describe_topic(&configs, &cluster);
    let result = CreatableTopicResult {
        name: topic.name.clone(),
        topic_id: id,
        error_message: None,
        num_partitions: assignments.len() as i32,
        replication_factor: factor,
        configs: Some(described.into_iter().map(echo).collect()),
        ..Default::default()
    };
    Ok(Plan { records, result })
}

fn echo(config: super::DescribedConfig) -> CreatableTopicConfigs {
    CreatableTopicConfigs {
        name: config.name,
        value: config.value,
        read_only: config.read_only,
        config_source: config.source,
        is_sensitive: config.sensitive,
    }
}

fn check_name(image: &Image, name: &str) -> Result<(), Refusal> {
    topic_name::validate(name).map_err(|message| Refusal::new(ErrorCode::InvalidTopicException, message))?;
    if name == CLUSTER_METADATA {
        let message = format!("Creation of internal topic {name} is prohibited.");
        return Err(Refusal::new(ErrorCode::InvalidRequest, message));
    }
    if image.topic_ids.contains_key(name) {
        let message = format!("Topic '{name}' already exists.");
        return Err(Refusal::new(ErrorCode::TopicAlreadyExists, message));
    }
    if let Some(other) = colliding(image, name) {
        let message = format!("Topic '{name}' collides with existing topic: {other}");
        return Err(Refusal::new(ErrorCode::InvalidTopicException, message));
    }
    Ok(())
}

/// A topic whose name would give the same metric name. Only names with a `.` or `_` can collide, and only
/// those with the same letters before the first of them.
fn colliding<'a>(image: &'a Image, name: &str) -> Option<&'a str> {
    let first = name.find(['.', '_'])?;
    let prefix = &name[..first];
    let from: std::sync::Arc<str> = prefix.into();
    let others = image.topic_ids.range(from..).map(|(other, _)| &**other);
    others.take_while(|other| other.starts_with(prefix)).find(|other| topic_name::collides(name, other))
}

fn check_configs(
    context: &ControllerContext<'_>,
    configs: &[CreatableTopicConfig],
) -> Result<BTreeMap<String, String>, Refusal> {
    let mut checked = BTreeMap::new();
    for config in configs {
        let Some(value) = &config.value else {
            let message = format!("Null value not supported for topic configs: {}", config.name);
            return Err(Refusal::new(ErrorCode::InvalidConfig, message));
        };
        // Of a key that stands twice, the last value counts, as in Kafka.
        checked.insert(config.name.clone(), value.clone());
    }
    super::configs::check_lengths(&checked)?;
    context
        .rules
        .validate_topic(&checked)
        .map_err(|message| Refusal::new(ErrorCode::InvalidConfig, message))?;
    Ok(checked)
}

fn assign(
    image: &Image,
    context: &ControllerContext<'_>,
    topic: &CreatableTopic,
) -> Result<Vec<Vec<NodeId>>, Refusal> {
    let factor = match topic.replication_factor {
        -1 => context.defaults.replication_factor,
        factor => factor,
    };
    if factor < 1 {
        let message = "Replication factor must be larger than 0, or -1 to use the default value.";
        return Err(Refusal::new(ErrorCode::InvalidReplicationFactor, message));
    }
    let count = match topic.num_partitions {
        -1 => context.defaults.num_partitions,
        count => count,
    };
    if count < 1 {
        let message = "Number of partitions was set to an invalid non-positive value.";
        return Err(Refusal::new(ErrorCode::InvalidPartitions, message));
    }
    Placer::new(image, context.random).place(count as usize, factor).map_err(no_placement)
}

pub(super) fn no_placement(error: PlacementError) -> Refusal {
    let message = match error {
        PlacementError::TooFewBrokers { wanted, registered } => {
            format!(
                "Unable to replicate the partition {wanted} time(s): The target replication factor of {wanted} \
                 cannot be reached because only {registered} broker(s) are registered or some brokers have all \
                 their log directories cordoned."
            )
        }
        PlacementError::AllFenced => "No broker is alive that could lead the partitions".to_owned(),
    };
    Refusal::new(ErrorCode::InvalidReplicationFactor, message)
}

fn check_assignments(image: &Image, topic: &CreatableTopic) -> Result<Vec<Vec<NodeId>>, Refusal> {
    for (found, what) in
        [(i32::from(topic.replication_factor), "replication factor"), (topic.num_partitions, "numPartitions")]
    {
        if found != -1 {
            let message =
                format!("A manual partition assignment was specified, but {what} was not set to -1.");
            return Err(Refusal::new(ErrorCode::InvalidRequest, message));
        }
    }
    let mut by_index: BTreeMap<i32, Vec<NodeId>> = BTreeMap::new();
    let mut factor = None;
    for assignment in &topic.assignments {
        let index = assignment.partition_index;
        let replicas: Vec<NodeId> = assignment.broker_ids.iter().copied().map(NodeId).collect();
        if by_index.contains_key(&index) {
            let message = format!("Found multiple manual partition assignments for partition {index}");
            return Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, message));
        }
        check_replicas(image, &replicas, factor)?;
        factor = factor.or(Some(replicas.len()));
        by_index.insert(index, replicas);
    }
    if by_index.keys().zip(0..).any(|(index, expected)| *index != expected) {
        let message = "partitions should be a consecutive 0-based integer sequence";
        return Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, message));
    }
    Ok(by_index.into_values().collect())
}

/// Checks the replicas that a client chose for one partition, given how many the other partitions have.
pub(super) fn check_replicas(
    image: &Image,
    replicas: &[NodeId],
    factor: Option<usize>,
) -> Result<(), Refusal> {
    let refuse = |message: String| Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, message));
    if replicas.is_empty() {
        return refuse("The manual partition assignment includes an empty replica list.".to_owned());
    }
    let mut sorted = replicas.to_vec();
    sorted.sort();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        let twice = twice[0];
        return refuse(format!(
            "The manual partition assignment includes the broker {twice} more than once."
        ));
    }
    if let Some(unknown) = sorted.iter().find(|id| !image.brokers.contains_key(*id)) {
        return refuse(format!(
            "The manual partition assignment includes broker {unknown}, but no such broker is registered."
        ));
    }
    match factor {
        Some(factor) if factor != replicas.len() => refuse(format!(
            "The assignment gives a partition {} replica(s) where the others have {factor}",
            replicas.len()
        )),
        _ => Ok(()),
    }
}

/// The record of a new partition: the replicas that are alive are in sync, and the first of them leads.
pub(super) fn new_partition(
    image: &Image,
    topic: Uuid,
    index: i32,
    replicas: &[NodeId],
) -> Result<MetadataRecord, Refusal> {
    let active = |id: &&NodeId| image.brokers.get(*id).is_some_and(|broker| broker.is_active());
    let isr: Vec<i32> = replicas.iter().filter(active).map(|id| id.0).collect();
    let Some(leader) = isr.first().copied() else {
        let message = format!("None of the brokers chosen for partition {index} is alive");
        return Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, message));
    };
    Ok(MetadataRecord::Partition(PartitionRecord {
        partition_id: index,
        topic_id: topic,
        replicas: replicas.iter().map(|id| id.0).collect(),
        isr,
        leader,
        leader_epoch: LeaderEpoch(0).0,
        partition_epoch: 0,
        directories: replicas.iter().map(|id| default_directory(image, *id)).collect(),
        ..Default::default()
    }))
}

fn refused(name: &str, refusal: Refusal) -> CreatableTopicResult {
    CreatableTopicResult {
        name: name.to_owned(),
        error_code: refusal.code.code(),
        error_message: Some(refusal.message),
        num_partitions: -1,
        replication_factor: -1,
        configs: Some(Vec::new()),
        ..Default::default()
    }
}

impl InternalTopic {
    /// The internal topic of this name, if it is one that is made by itself.
    pub fn by_name(name: &str) -> Option<InternalTopic> {
        match name {
            topic_name::GROUP_METADATA => Some(InternalTopic::GroupMetadata),
            topic_name::TRANSACTION_STATE => Some(InternalTopic::TransactionState),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            InternalTopic::GroupMetadata => topic_name::GROUP_METADATA,
            InternalTopic::TransactionState => topic_name::TRANSACTION_STATE,
        }
    }

    /// The settings that it is made with.
    pub(crate) fn configs(self, defaults: &TopicDefaults) -> BTreeMap<String, String> {
        let configs = self.creation(defaults).configs.into_iter();
        configs.map(|config| (config.name, config.value.unwrap_or_default())).collect()
    }

    /// How it is made, as Kafka makes it.
    fn creation(self, defaults: &TopicDefaults) -> CreatableTopic {
        let (partitions, factor, configs) = match self {
            InternalTopic::GroupMetadata => (
                defaults.offsets_partitions,
                defaults.offsets_replication_factor,
                vec![
                    ("cleanup.policy", "compact".to_owned()),
                    ("compression.type", "producer".to_owned()),
                    ("segment.bytes", defaults.offsets_segment_bytes.to_string()),
                ],
            ),
            InternalTopic::TransactionState => (
                defaults.transactions_partitions,
                defaults.transactions_replication_factor,
                vec![
                    ("cleanup.policy", "compact".to_owned()),
                    ("compression.type", "uncompressed".to_owned()),
                    ("min.insync.replicas", defaults.transactions_min_isr.to_string()),
                    ("segment.bytes", defaults.transactions_segment_bytes.to_string()),
                    ("unclean.leader.election.enable", "false".to_owned()),
                ],
            ),
        };
        let config = |(name, value): (&str, String)| CreatableTopicConfig {
            name: name.to_owned(),
            value: Some(value),
        };
        CreatableTopic {
            name: self.name().to_owned(),
            num_partitions: partitions,
            replication_factor: factor,
            configs: configs.into_iter().map(config).collect(),
            ..Default::default()
        }
    }
}

/// The request that makes topics which a client asked for and which do not exist
/// (`auto.create.topics.enable`), or internal ones, each with what the defaults say.
pub fn request_for_auto_creation<'a>(
    names: impl IntoIterator<Item = &'a str>,
    defaults: &TopicDefaults,
) -> CreateTopicsRequest {
    let topic = |name: &str| match InternalTopic::by_name(name) {
        Some(internal) => internal.creation(defaults),
        None => CreatableTopic {
            name: name.to_owned(),
            num_partitions: -1,
            replication_factor: -1,
            ..Default::default()
        },
    };
    CreateTopicsRequest { topics: names.into_iter().map(topic).collect(), ..Default::default() }
}

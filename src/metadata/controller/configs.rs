//! IncrementalAlterConfigs (KIP-339) and AlterConfigs (KIP-133), for topics, brokers, subscriptions to client metrics and
//! groups. The levels of loggers are a matter of each node.
//!
//! Each resource of a request succeeds or fails as a whole and by itself.

use std::collections::{BTreeMap, BTreeSet};

use klamm_config::InvalidClientMetrics;
use klamm_model::{ErrorCode, NodeId, topic_name};
use klamm_protocol::messages::{alter_configs as legacy, incremental_alter_configs as incremental};
use klamm_protocol::records::cluster_metadata::{ConfigRecord, MetadataRecord, PartitionChangeRecord};

use super::brokers::{change_record, elect_where};
use super::election::{MIN_IN_SYNC_REPLICAS, UNCLEAN_ELECTION};
use super::features::ELIGIBLE_LEADERS_VERSION;
use super::{ControllerContext, Refusal};
use crate::apply::apply_to;
use crate::image::{ConfigResource, Image, PartitionState, Topic};

type Configs = BTreeMap<String, String>;

/// Sets, removes, appends and subtracts single settings.
pub fn incremental_alter_configs(
    image: &Image,
    context: &ControllerContext<'_>,
    request: &incremental::IncrementalAlterConfigsRequest,
) -> (Vec<MetadataRecord>, incremental::IncrementalAlterConfigsResponse) {
    let counts = counted(request.resources.iter().map(|r| (r.resource_type, r.resource_name.as_str())));
    let mut records = Vec::new();
    let mut response = incremental::IncrementalAlterConfigsResponse::default();
    for asked in &request.resources {
        let key = (asked.resource_type, asked.resource_name.as_str());
        let outcome = check_once(&counts, key).and_then(|()| {
            let names: Vec<&str> = asked.configs.iter().map(|config| config.name.as_str()).collect();
            check_keys(&names)?;
            let nulls = asked.configs.iter().filter(|config| config.config_operation != DELETE);
            check_values(nulls.map(|config| (config.name.as_str(), config.value.as_deref())))?;
            let resource = check_resource(image, key.0, key.1)?;
            let before = image.config_of(&resource);
            let mut after = Configs::clone(&before);
            for config in &asked.configs {
                operate(context, &resource, &mut after, config)?;
            }
            check_count(&before, &after)?;
            check_configs(context, &resource, &after, &names)?;
            check_in_sync_replicas_min(image, &resource, &before, &after)?;
            Ok(differences(&resource, &before, &after))
        });
        let (code, message) = settle(outcome, request.validate_only, &mut records);
        response.responses.push(incremental::AlterConfigsResourceResponse {
            error_code: code,
            error_message: message,
            resource_type: asked.resource_type,
            resource_name: asked.resource_name.clone(),
        });
    }
    let following = consequences(image, context, &records);
    records.extend(following);
    (records, response)
}

/// Replaces all settings of a resource: what the request does not name goes back to its default.
pub fn alter_configs(
    image: &Image,
    context: &ControllerContext<'_>,
    request: &legacy::AlterConfigsRequest,
) -> (Vec<MetadataRecord>, legacy::AlterConfigsResponse) {
    let counts = counted(request.resources.iter().map(|r| (r.resource_type, r.resource_name.as_str())));
    let mut records = Vec::new();
    let mut response = legacy::AlterConfigsResponse::default();
    for asked in &request.resources {
        let key = (asked.resource_type, asked.resource_name.as_str());
        let outcome = check_once(&counts, key).and_then(|()| {
            let names: Vec<&str> = asked.configs.iter().map(|config| config.name.as_str()).collect();
            check_keys(&names)?;
            check_values(asked.configs.iter().map(|config| (config.name.as_str(), config.value.as_deref())))?;
            let resource = check_resource(image, key.0, key.1)?;
            let after: Configs = asked
                .configs
                .iter()
                .filter_map(|config| Some((config.name.clone(), config.value.clone()?)))
                .collect();
            let before = image.config_of(&resource);
            check_count(&before, &after)?;
            check_configs(context, &resource, &after, &names)?;
            check_in_sync_replicas_min(image, &resource, &before, &after)?;
            Ok(differences(&resource, &before, &after))
        });
        let (code, message) = settle(outcome, request.validate_only, &mut records);
        response.responses.push(legacy::AlterConfigsResourceResponse {
            error_code: code,
            error_message: message,
            resource_type: asked.resource_type,
            resource_name: asked.resource_name.clone(),
        });
    }
    let following = consequences(image, context, &records);
    records.extend(following);
    (records, response)
}

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

fn counted<'a>(keys: impl Iterator<Item = (i8, &'a str)>) -> BTreeMap<(i8, &'a str), usize> {
    let mut counts = BTreeMap::new();
    for key in keys {
        *counts.entry(key).or_default() += 1;
    }
    counts
}

fn check_once(counts: &BTreeMap<(i8, &str), usize>, key: (i8, &str)) -> Result<(), Refusal> {
    if counts[&key] > 1 {
        return Err(Refusal::new(ErrorCode::InvalidRequest, "Each resource must appear at most once."));
    }
    Ok(())
}

fn check_keys(names: &[&str]) -> Result<(), Refusal> {
    let mut seen = BTreeSet::new();
    if names.iter().all(|name| seen.insert(*name)) {
        Ok(())
    } else {
        Err(Refusal::new(ErrorCode::InvalidRequest, "Error due to duplicate config keys"))
    }
}

fn check_values<'a>(mut configs: impl Iterator<Item = (&'a str, Option<&'a str>)>) -> Result<(), Refusal> {
    match configs.find(|(_, value)| value.is_none()) {
        Some((name, _)) => {
            let message = format!("Null value not supported for : {name}");
            Err(Refusal::new(ErrorCode::InvalidRequest, message))
        }
        None => Ok(()),
    }
}

/// The resource that is meant, if it exists and can have settings.
fn check_resource(image: &Image, type_code: i8, name: &str) -> Result<ConfigResource, Refusal> {
    let invalid = |message: String| Err(Refusal::new(ErrorCode::InvalidRequest, message));
    match type_code {
        2 if name.is_empty() => invalid("Default topic resources are not allowed.".to_owned()),
        2 => {
            topic_name::validate(name)
                .map_err(|message| Refusal::new(ErrorCode::InvalidTopicException, message))?;
            if !image.topic_ids.contains_key(name) {
                let message = format!("The topic '{name}' does not exist.");
                return Err(Refusal::new(ErrorCode::UnknownTopicOrPartition, message));
            }
            Ok(ConfigResource::Topic(name.to_owned()))
        }
        4 if name.is_empty() => Ok(ConfigResource::Broker(None)),
        4 => match name.parse().map(NodeId) {
            Err(_) => invalid(format!("Node id must be an integer, but it is: {name}")),
            Ok(id) if !image.brokers.contains_key(&id) => invalid(format!("There is no broker {id}")),
            Ok(id) => Ok(ConfigResource::Broker(Some(id))),
        },
        16 if name.is_empty() => invalid("Subscription name can't be empty".to_owned()),
        16 => Ok(ConfigResource::ClientMetrics(name.to_owned())),
        32 if name.is_empty() => invalid("Default group resources are not allowed.".to_owned()),
        32 => Ok(ConfigResource::Group(name.to_owned())),
        _ => invalid(format!("Unknown resource type {type_code}")),
    }
}

fn operate(
    context: &ControllerContext<'_>,
    resource: &ConfigResource,
    configs: &mut Configs,
    config: &incremental::AlterableConfig,
) -> Result<(), Refusal> {
    let value = config.value.as_deref().unwrap_or_default();
    match config.config_operation {
        SET => {
            configs.insert(config.name.clone(), value.to_owned());
        }
        DELETE => {
            configs.remove(&config.name);
        }
        APPEND | SUBTRACT => {
            let default = match resource {
                ConfigResource::Topic(_) => context.rules.topic_list_default(&config.name),
                // As in Kafka, none of their keys counts as a list.
                ConfigResource::ClientMetrics(_) | ConfigResource::Group(_) => None,
                ConfigResource::Broker(_) => context.rules.broker_list_default(&config.name),
            };
            let Some(default) = default else {
                let message = no_list(resource, config);
                return Err(Refusal::new(ErrorCode::InvalidConfig, message));
            };
            let current = configs.get(&config.name).cloned().unwrap_or(default);
            let changed = change_list(&current, value, config.config_operation == APPEND);
            configs.insert(config.name.clone(), changed);
        }
        other => {
            let message =
                format!("There is no operation {other}: set (0), delete (1), append (2), subtract (3)");
            return Err(Refusal::new(ErrorCode::UnknownServerError, message));
        }
    }
    Ok(())
}

/// Why a key that holds no list cannot be appended to, in Kafka's two ways to say so.
fn no_list(resource: &ConfigResource, config: &incremental::AlterableConfig) -> String {
    let (name, appends) = (&config.name, config.config_operation == APPEND);
    match resource {
        ConfigResource::Broker(_) => {
            let operation = if appends { "append" } else { "subtract" };
            format!("Config value {operation} is not allowed for config key: {name}")
        }
        _ => {
            let operation = if appends { "APPEND" } else { "SUBTRACT" };
            format!("Can't {operation} to key {name} because its type is not LIST.")
        }
    }
}

fn change_list(current: &str, change: &str, append: bool) -> String {
    let items = |list: &'_ str| -> Vec<String> {
        list.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
    };
    let mut list = items(current);
    let changed = items(change);
    if append {
        let mut present: BTreeSet<String> = list.iter().cloned().collect();
        list.extend(changed.into_iter().filter(|item| present.insert(item.clone())));
    } else {
        let gone: BTreeSet<String> = changed.into_iter().collect();
        list.retain(|item| !gone.contains(item));
    }
    list.join(",")
}

/// The longest value: what a record can hold. A request holds no longer one, but appending makes one.
const VALUE_LEN_MAX: usize = i16::MAX as usize;

/// How many settings one resource may have. Brokers keep keys that nobody knows, so the table of known ones is
/// no limit.
const OVERRIDES_MAX: usize = 1000;

/// Refuses to add settings to a resource that has too many. One that has them from before may still lose some.
fn check_count(before: &Configs, after: &Configs) -> Result<(), Refusal> {
    if after.len() > OVERRIDES_MAX && after.len() > before.len() {
        let message =
            format!("The resource would have {} settings; {OVERRIDES_MAX} are the most", after.len());
        return Err(Refusal::new(ErrorCode::PolicyViolation, message));
    }
    Ok(())
}

/// Refuses values that no record can hold.
pub(super) fn check_lengths(configs: &Configs) -> Result<(), Refusal> {
    match configs.iter().find(|(_, value)| value.len() > VALUE_LEN_MAX) {
        Some((name, value)) => {
            let message = format!(
                "The value of the setting '{name}' would have {} bytes; {VALUE_LEN_MAX} are the most",
                value.len()
            );
            Err(Refusal::new(ErrorCode::InvalidConfig, message))
        }
        None => Ok(()),
    }
}

fn check_configs(
    context: &ControllerContext<'_>,
    resource: &ConfigResource,
    configs: &Configs,
    changed: &[&str],
) -> Result<(), Refusal> {
    check_lengths(configs)?;
    match resource {
        ConfigResource::Broker(broker) => context
            .rules
            .validate_broker(*broker, configs, changed)
            .map_err(|error| Refusal::new(error.code, error.message)),
        ConfigResource::ClientMetrics(_) => {
            klamm_config::validate_client_metrics(configs).map_err(|error| match error {
                InvalidClientMetrics::Request(message) => Refusal::new(ErrorCode::InvalidRequest, message),
                InvalidClientMetrics::Config(message) => Refusal::new(ErrorCode::InvalidConfig, message),
            })
        }
        ConfigResource::Group(_) => invalid_config(context.rules.validate_group(configs)),
        ConfigResource::Topic(_) => invalid_config(context.rules.validate_topic(configs)),
    }
}

fn invalid_config(checked: Result<(), String>) -> Result<(), Refusal> {
    checked.map_err(|message| Refusal::new(ErrorCode::InvalidConfig, message))
}

/// While eligible leaders are in use, all brokers must have the same `min.insync.replicas` for topics that do not say,
/// as in Kafka: who is eligible depends on it.
fn check_in_sync_replicas_min(
    image: &Image,
    resource: &ConfigResource,
    before: &Configs,
    after: &Configs,
) -> Result<(), Refusal> {
    let (was, is) = (before.get(MIN_IN_SYNC_REPLICAS), after.get(MIN_IN_SYNC_REPLICAS));
    if image.feature(ELIGIBLE_LEADERS_VERSION) == 0 || was == is {
        return Ok(());
    }
    let message = match resource {
        ConfigResource::Broker(Some(_)) => {
            format!("Broker-level {MIN_IN_SYNC_REPLICAS} cannot be altered while ELR is enabled.")
        }
        ConfigResource::Broker(None) if is.is_none() => {
            format!("Cluster-level {MIN_IN_SYNC_REPLICAS} cannot be removed while ELR is enabled.")
        }
        _ => return Ok(()),
    };
    Err(Refusal::new(ErrorCode::InvalidConfig, message))
}

/// What changed settings lead to: replicas are no longer known to be eligible when the number changes that they were
/// judged by, and partitions without a leader get one where that may now be unclean. Kafka looks for the latter only
/// every five minutes.
fn consequences(
    image: &Image,
    context: &ControllerContext<'_>,
    records: &[MetadataRecord],
) -> Vec<MetadataRecord> {
    let mut planned = image.clone();
    records.iter().for_each(|record| apply_to(&mut planned, record));
    let changes = |record: &MetadataRecord, key: &str, topic: Option<&str>| match record {
        MetadataRecord::Config(config) if config.name == key => match config.resource_type {
            2 => topic.is_none_or(|topic| config.resource_name == topic),
            _ => config.resource_name.is_empty(),
        },
        _ => false,
    };
    let may_change = |key| records.iter().any(|record| changes(record, key, None));
    let mut following = Vec::new();
    if may_change(MIN_IN_SYNC_REPLICAS) {
        let concerns = |topic: &Topic| {
            records.iter().any(|record| changes(record, MIN_IN_SYNC_REPLICAS, Some(&topic.name)))
        };
        following.extend(clear_eligible(&planned, concerns));
        following.iter().for_each(|record| apply_to(&mut planned, record));
    }
    if may_change(UNCLEAN_ELECTION) {
        following.extend(elect_where(&planned, context, |state| state.leader.is_none(), |_| {}));
    }
    following
}

/// Forgets who is eligible in partitions that have a leader, which may acknowledge now what they lack. Where nobody
/// leads, nothing was acknowledged since. Kafka clears both, and leaves the latter without anyone to elect.
fn clear_eligible(image: &Image, concerns: impl Fn(&Topic) -> bool) -> Vec<MetadataRecord> {
    let mut records = Vec::new();
    for topic in image.topics.values().filter(|topic| concerns(topic)) {
        let has_any = |state: &PartitionState| state.leader.is_some() && !state.eligible_leaders.is_empty();
        for (index, _) in (0..).zip(&topic.partitions).filter(|(_, state)| has_any(state)) {
            let change =
                PartitionChangeRecord { eligible_leader_replicas: Some(Vec::new()), ..Default::default() };
            records.push(change_record(topic.id, index, change));
        }
    }
    records
}

fn differences(resource: &ConfigResource, before: &Configs, after: &Configs) -> Vec<MetadataRecord> {
    let record = |name: &String, value: Option<&String>| {
        MetadataRecord::Config(ConfigRecord {
            resource_type: resource.type_code(),
            resource_name: resource.name(),
            name: name.clone(),
            value: value.cloned(),
        })
    };
    let gone = before.keys().filter(|name| !after.contains_key(*name)).map(|name| record(name, None));
    let set = after.iter().filter(|(name, value)| before.get(*name) != Some(value));
    gone.chain(set.map(|(name, value)| record(name, Some(value)))).collect()
}

fn settle(
    outcome: Result<Vec<MetadataRecord>, Refusal>,
    validate_only: bool,
    records: &mut Vec<MetadataRecord>,
) -> (i16, Option<String>) {
    match outcome {
        Ok(planned) => {
            if !validate_only {
                records.extend(planned);
            }
            (0, None)
        }
        Err(refusal) => (refusal.code.code(), Some(refusal.message)),
    }
}

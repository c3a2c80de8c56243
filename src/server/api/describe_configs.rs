//! DescribeConfigs (key 32), versions 0 to 4 (KIP-133).
//!
//! v1 sources and synonyms (KIP-226); v3 types and documentation (KIP-569); v4 flexible. Any version may name loggers
//! (KIP-412), subscriptions to client metrics (KIP-714) and groups (KIP-848).
//!
//! As in Kafka, a resource that is named again is answered again, with the keys that were asked for there. Kafka
//! does so without end, so that a request of some kilobytes makes an answer of a hundred megabytes; here the ninth
//! time is refused.

use std::collections::{BTreeMap, BTreeSet};

use klamm_config::{
    ConfigEntry, DynamicConfigs, describe_broker, describe_client_metrics, describe_cluster_default,
    describe_group, describe_topic,
};
use klamm_metadata::ConfigResource;
use klamm_model::{ErrorCode, topic_name};
use klamm_protocol::messages::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResponse,
    DescribeConfigsResult, DescribeConfigsSynonym,
};

use super::Call;
use crate::context::{Context, dynamic_broker_configs};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const BROKER_LOGGER: i8 = 8;
const CLIENT_METRICS: i8 = 16;
const GROUP: i8 = 32;

/// How often one request may name the same resource.
const SAME_RESOURCE_MAX: usize = 8;

/// Why a resource has no configs to show.
type Refusal = (ErrorCode, String);

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let described = within_bounds(&request.resources).into_iter().map(|(resource, bounds)| {
        let (code, message, entries) = match bounds.and_then(|()| entries(context, resource)) {
            // Kafka writes an empty message beside no error.
            Ok(entries) => (ErrorCode::None, Some(String::new()), entries),
            Err((code, message)) => (code, Some(message), Vec::new()),
        };
        let keys = resource.configuration_keys.as_ref().filter(|keys| !keys.is_empty());
        let keys: Option<BTreeSet<&String>> = keys.map(|keys| keys.iter().collect());
        let is_shown = |entry: &ConfigEntry| keys.as_ref().is_none_or(|keys| keys.contains(&entry.name));
        let shown = entries.into_iter().filter(is_shown);
        DescribeConfigsResult {
            error_code: code.code(),
            error_message: message,
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
            configs: shown.map(|entry| show(call.version, entry, resource.resource_type, &request)).collect(),
        }
    });
    DescribeConfigsResponse { results: described.collect(), ..Default::default() }
}

/// The resources, and which of them are named once too often.
fn within_bounds(
    resources: &[DescribeConfigsResource],
) -> Vec<(&DescribeConfigsResource, Result<(), Refusal>)> {
    let mut named: BTreeMap<(i8, &str), usize> = BTreeMap::new();
    let checked = resources.iter().map(|resource| {
        let times = named.entry((resource.resource_type, resource.resource_name.as_str())).or_default();
        *times += 1;
        let bounds = if *times > SAME_RESOURCE_MAX {
            let message = format!("One request may name a resource {SAME_RESOURCE_MAX} times at the most");
            Err((ErrorCode::InvalidRequest, message))
        } else {
            Ok(())
        };
        (resource, bounds)
    });
    checked.collect()
}

fn entries(context: &Context, resource: &DescribeConfigsResource) -> Result<Vec<ConfigEntry>, Refusal> {
    let image = context.image();
    let (broker, cluster) = dynamic_broker_configs(&image, context.node_id);
    let dynamic = DynamicConfigs { broker: Some(&broker), cluster: Some(&cluster) };
    let name = resource.resource_name.as_str();
    match resource.resource_type {
        TOPIC => {
            topic_name::validate(name).map_err(|message| (ErrorCode::InvalidTopicException, message))?;
            if image.topic_by_name(name).is_none() {
                let message = format!("The topic '{name}' does not exist.");
                return Err((ErrorCode::UnknownTopicOrPartition, message));
            }
            Ok(describe_topic(&image.topic_config(name), &dynamic, &context.static_config))
        }
        BROKER if name.is_empty() => Ok(describe_cluster_default(&cluster)),
        BROKER if name == context.node_id.to_string() => {
            Ok(describe_broker(&dynamic, &context.static_config))
        }
        BROKER => Err((
            ErrorCode::InvalidRequest,
            format!(
                "This is broker {}; the configs of broker '{name}' are asked of that one",
                context.node_id
            ),
        )),
        BROKER_LOGGER => describe_loggers(context, name),
        GROUP if name.is_empty() => {
            Err((ErrorCode::InvalidRequest, "Group name must not be empty".to_owned()))
        }
        GROUP => {
            let settings = image.config_of(&ConfigResource::Group(name.to_owned()));
            Ok(describe_group(&settings, &dynamic, &context.static_config))
        }
        CLIENT_METRICS if name.is_empty() => {
            let message = "Client metrics subscription name must not be empty";
            Err((ErrorCode::InvalidRequest, message.to_owned()))
        }
        CLIENT_METRICS => {
            let resource = ConfigResource::ClientMetrics(name.to_owned());
            Ok(describe_client_metrics(&image.config_of(&resource)))
        }
        kind => Err((
            ErrorCode::InvalidRequest,
            format!(
                "Configs of topics (2), brokers (4), loggers (8), client metrics (16) and groups (32) can be \
                 described; the request names type {kind}"
            ),
        )),
    }
}

/// The loggers of this node with their levels (KIP-412).
fn describe_loggers(context: &Context, name: &str) -> Result<Vec<ConfigEntry>, Refusal> {
    let invalid = |message: String| Err((ErrorCode::InvalidRequest, message));
    match name.parse::<i32>() {
        _ if name.is_empty() => invalid("Broker id must not be empty".to_owned()),
        Err(_) => invalid(format!("Broker id must be an integer, but it is: {name}")),
        Ok(id) if id != context.node_id.0 => {
            invalid(format!("Unexpected broker id, expected {} but received {name}", context.node_id))
        }
        Ok(_) => {
            let loggers = context.loggers.in_force().into_iter();
            Ok(loggers.map(|(logger, level)| ConfigEntry::of_logger(logger, level.name())).collect())
        }
    }
}

fn show(
    version: i16,
    entry: ConfigEntry,
    resource_type: i8,
    request: &DescribeConfigsRequest,
) -> DescribeConfigsResourceResult {
    // Kafka writes an empty text beside loggers, also to who wants none.
    let is_documented = request.include_documentation || resource_type == BROKER_LOGGER;
    let synonym = |synonym: &klamm_config::ConfigSynonym| DescribeConfigsSynonym {
        name: synonym.name.clone(),
        value: synonym.value.clone(),
        source: synonym.source as i8,
    };
    let synonyms: &[_] = if request.include_synonyms { &entry.synonyms } else { &[] };
    DescribeConfigsResourceResult {
        value: entry.value.clone(),
        read_only: entry.read_only,
        // Later versions tell the source instead.
        is_default: version == 0 && entry.is_default(),
        config_source: entry.source as i8,
        is_sensitive: entry.sensitive,
        synonyms: synonyms.iter().map(synonym).collect(),
        config_type: entry.kind_code(),
        documentation: is_documented.then(|| entry.documentation.clone()),
        name: entry.name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that named the broker 2000 times was answered with 126 MB. What Kafka's tools send, a resource
    /// once or a few times with different keys, is answered in full.
    #[test]
    fn a_resource_is_described_a_few_times_and_then_no_more() {
        let named = |kind: i8, name: &str| DescribeConfigsResource {
            resource_type: kind,
            resource_name: name.to_owned(),
            ..Default::default()
        };
        let mut resources = vec![named(BROKER, "1"); 2000];
        resources.push(named(TOPIC, "1"));
        let checked = within_bounds(&resources);
        assert_eq!(checked.len(), 2001, "each is answered");
        let allowed: Vec<usize> = (0..2001).filter(|at| checked[*at].1.is_ok()).collect();
        assert_eq!(allowed, [0, 1, 2, 3, 4, 5, 6, 7, 2000]);
        let refusal = checked[8].1.clone().unwrap_err();
        assert_eq!(refusal.0, ErrorCode::InvalidRequest);
    }
}

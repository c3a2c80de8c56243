//! ListConfigResources (key 74), versions 0 to 1 (KIP-714, KIP-1142).
//!
//! v0 lists client metrics; v1 lists any kind of resource.

use klamm_model::ErrorCode;
use klamm_protocol::messages::list_config_resources::{
    ConfigResource, ListConfigResourcesRequest, ListConfigResourcesResponse,
};

use super::Call;
use crate::context::Context;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const BROKER_LOGGER: i8 = 8;
const CLIENT_METRICS: i8 = 16;
const GROUP: i8 = 32;
/// The kinds that a request may name.
const KINDS: [i8; 5] = [TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP];

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    let kinds: &[i8] = match (call.version, request.resource_types.as_slice()) {
        (0, _) => &[CLIENT_METRICS],
        (_, []) => &KINDS,
        (_, named) => named,
    };
    if kinds.iter().any(|kind| !KINDS.contains(kind)) {
        return ListConfigResourcesResponse {
            error_code: ErrorCode::UnsupportedVersion.code(),
            ..Default::default()
        };
    }
    let image = context.image();
    let brokers = || image.brokers.keys().map(|node| node.to_string());
    let subscriptions = || {
        image.configs.keys().filter_map(|resource| match resource {
            klamm_metadata::ConfigResource::ClientMetrics(name) => Some(name.clone()),
            _ => None,
        })
    };
    // As in Kafka, those that have settings, whether or not there are such groups.
    let groups = || {
        image.configs.keys().filter_map(|resource| match resource {
            klamm_metadata::ConfigResource::Group(name) => Some(name.clone()),
            _ => None,
        })
    };
    let mut config_resources = Vec::new();
    for kind in KINDS.into_iter().filter(|kind| kinds.contains(kind)) {
        let names: Vec<String> = match kind {
            TOPIC => image.topics.values().map(|topic| topic.name.to_string()).collect(),
            BROKER | BROKER_LOGGER => brokers().collect(),
            CLIENT_METRICS => subscriptions().collect(),
            GROUP => groups().collect(),
            _ => Vec::new(),
        };
        config_resources.extend(
            names.into_iter().map(|resource_name| ConfigResource { resource_name, resource_type: kind }),
        );
    }
    ListConfigResourcesResponse { config_resources, ..Default::default() }
}

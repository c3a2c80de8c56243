//! IncrementalAlterConfigs (key 44), versions 0 to 1: sets, deletes, appends to and subtracts from configs of topics,
//! brokers, groups and subscriptions to client metrics (KIP-339), and sets levels of this node's loggers (KIP-412).
//!
//! v1 flexible.

use std::collections::BTreeSet;

use klamm_model::ErrorCode;
use klamm_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterConfigsResourceResponse, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

/// The kind of resource that is a matter of this node and not of the cluster.
const BROKER_LOGGER: i8 = 8;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    mut request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let is_logger = |resource: &AlterConfigsResource| resource.resource_type == BROKER_LOGGER;
    let order: Vec<bool> = request.resources.iter().map(is_logger).collect();
    let (loggers, others) = std::mem::take(&mut request.resources).into_iter().partition(is_logger);
    let mut of_loggers = alter_loggers(context, loggers, request.validate_only).into_iter();
    request.resources = others;
    if !order.is_empty() && request.resources.is_empty() {
        return IncrementalAlterConfigsResponse { responses: of_loggers.collect(), ..Default::default() };
    }
    let mut response = context.decide(call, request, CONTROLLER_TIMEOUT).await;
    context.await_applied(0).await;
    let mut of_others = std::mem::take(&mut response.responses).into_iter();
    let answers = order.iter().filter_map(|is_logger| match is_logger {
        true => of_loggers.next(),
        false => of_others.next(),
    });
    response.responses = answers.collect();
    response
}

fn alter_loggers(
    context: &Context,
    resources: Vec<AlterConfigsResource>,
    validate_only: bool,
) -> Vec<AlterConfigsResourceResponse> {
    let names: Vec<String> = resources.iter().map(|resource| resource.resource_name.clone()).collect();
    let answers = resources.into_iter().map(|resource| {
        let is_once = names.iter().filter(|name| **name == resource.resource_name).count() == 1;
        let (code, message) = match alter(context, &resource, is_once, validate_only) {
            Ok(()) => (ErrorCode::None, None),
            Err((code, message)) => (code, Some(message)),
        };
        AlterConfigsResourceResponse {
            error_code: code.code(),
            error_message: message,
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
        }
    });
    answers.collect()
}

/// The checks in Kafka's order and words.
fn alter(
    context: &Context,
    resource: &AlterConfigsResource,
    is_once: bool,
    validate_only: bool,
) -> Result<(), (ErrorCode, String)> {
    let invalid = |message: String| Err((ErrorCode::InvalidRequest, message));
    let (name, changes) = (&resource.resource_name, &resource.configs);
    if !is_once {
        return invalid("Each resource must appear at most once.".to_owned());
    }
    let mut keys = BTreeSet::new();
    if !changes.iter().all(|change| keys.insert(&change.name)) {
        return invalid("Error due to duplicate config keys".to_owned());
    }
    const DELETE: i8 = 1;
    let mut nulls =
        changes.iter().filter(|change| change.value.is_none() && change.config_operation != DELETE);
    if let Some(null) = nulls.next() {
        return invalid(format!("Null value not supported for : {}", null.name));
    }
    match name.parse::<i32>() {
        Err(_) => invalid(format!("Node id must be an integer, but it is: {name}")),
        Ok(id) if id != context.node_id.0 => {
            invalid(format!("Unexpected node id. Expected {}, but received {id}", context.node_id))
        }
        Ok(_) => context.loggers.alter(changes, validate_only),
    }
}

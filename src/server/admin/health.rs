//! Whether this node can do its work: the answer for a probe.

use std::collections::BTreeMap;

use klamm_model::TopicPartition;

use crate::context::Context;

/// How many partitions are named.
const PARTITIONS_MAX: usize = 20;

/// What an operator should know of a node that serves all the same, a line each.
pub(super) fn notes(context: &Context) -> Option<String> {
    context.metadata.unlisted_voters().map(|note| format!("{note}\n"))
}

/// What keeps this node from serving, one line each; nothing if it serves.
pub(super) fn problems(context: &Context, is_ready: bool) -> Vec<String> {
    let image = context.image();
    let mut problems = Vec::new();
    match image.brokers.get(&context.node_id) {
        // It is only a controller.
        _ if !context.static_config.roles.broker => {}
        None => problems.push(format!("broker {} is not registered in the cluster", context.node_id)),
        Some(broker) if broker.fenced => {
            problems
                .push(format!("broker {} is fenced: the controller does not hear of it", context.node_id));
        }
        Some(_) => {}
    }
    if image.controller.is_none() {
        let why = context.metadata.lost_majority();
        problems.push(why.unwrap_or_else(|| "no controller is active".to_owned()));
    }
    let directories = context.store.directory_statuses().into_iter();
    problems.extend(directories.filter_map(|directory| {
        Some(format!("log directory {} is offline: {}", directory.path.display(), directory.failure?))
    }));
    let logs = context.store.logs();
    let failed = logs.iter().filter_map(|log| {
        Some((
            log.topic_partition().clone(),
            format!("{} is offline: {}", log.topic_partition(), log.failure()?),
        ))
    });
    // What does not open has no log that could tell why; its line in the log did.
    let mut partitions: BTreeMap<TopicPartition, String> = context
        .partitions
        .load()
        .offline()
        .map(|name| (name.clone(), format!("{name} cannot be served; the broker's log says why")))
        .collect();
    partitions.extend(failed);
    let more = partitions.len().saturating_sub(PARTITIONS_MAX);
    problems.extend(partitions.into_values().take(PARTITIONS_MAX));
    if more > 0 {
        problems.push(format!("and {more} more partitions"));
    }
    if problems.is_empty() && !is_ready {
        problems.push("this node is starting, and does not serve clients yet".to_owned());
    }
    problems
}

//! Whether this node can do its work: the answer for a probe.

use crate::context::Context;

/// What keeps this node from serving, one line each; nothing if it serves.
pub(super) fn problems(context: &Context) -> Vec<String> {
    let image = context.image();
    let mut problems = Vec::new();
    match image.brokers.get(&context.node_id) {
        None => problems.push(format!("broker {} is not registered in the cluster", context.node_id)),
        Some(broker) if broker.fenced => {
            problems
                .push(format!("broker {} is fenced: the controller does not hear of it", context.node_id));
        }
        Some(_) => {}
    }
    if image.controller.is_none() {
        problems.push("no controller is active".to_owned());
    }
    let failed: Vec<String> = context
        .store
        .logs()
        .iter()
        .filter_map(|log| Some(format!("{} is offline: {}", log.topic_partition(), log.failure()?)))
        .collect();
    problems.extend(failed);
    problems
}

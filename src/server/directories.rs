//! Log directories that fail or are missing, and what the node does about it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use klamm_metadata::Image;
use klamm_model::{NodeId, TopicPartition, Uuid};
use klamm_storage::LogStore;
use tokio::sync::watch;

use crate::context::Context;
use crate::image_follower::Follower;

/// The log directories that could be opened.
pub(crate) fn usable(store: &LogStore) -> Vec<PathBuf> {
    store.directory_ids().into_iter().map(|(path, _)| path).collect()
}

/// Notes the log directories that this node had before and has no more, unless each of its partitions is in the
/// others. If they come back, so do their partitions, and until then nothing is made in their place.
pub(crate) fn note_lost(store: &LogStore, image: &Image, node: NodeId) {
    let mut known = image.brokers.get(&node).map(|broker| broker.directories.clone()).unwrap_or_default();
    let mut here = Vec::new();
    for topic in image.topics.values() {
        let replicas = topic.partitions.iter().zip(0..).filter(|(state, _)| state.replicas.contains(&node));
        for (state, index) in replicas {
            here.push(TopicPartition::new(topic.name.clone(), index));
            known.extend(Some(state.directory_of(node)).filter(|id| !is_reserved(*id)));
        }
    }
    known.sort();
    known.dedup();
    let lost = store.note_known_directories(&known);
    if lost.is_empty() || here.iter().all(|name| store.has_folder(name)) {
        store.note_known_directories(&[]);
        return;
    }
    tracing::warn!(
        "log directories with the ids {} are not there any more; partitions that were in them are not served",
        lost.iter().map(Uuid::to_string).collect::<Vec<_>>().join(", ")
    );
}

/// Whether an id stands for no directory. Kafka keeps the first hundred.
fn is_reserved(id: Uuid) -> bool {
    id.0[..15] == [0; 15] && id.0[15] < 100
}

/// Has the node's partitions follow when a log directory goes offline, the controller hear of it, and the node end with the last one, or with
/// the first one, which holds the metadata.
pub(crate) fn watch(context: &Arc<Context>, follower: &Follower, failure: watch::Sender<Option<String>>) {
    let log_dirs = context.static_config.log_dirs.clone();
    let failed: parking_lot::Mutex<BTreeSet<PathBuf>> = parking_lot::Mutex::default();
    let follow = follower.directory_failed.clone();
    let told = Arc::downgrade(context);
    context.store.on_directory_failure(move |path, reason| {
        let mut failed = failed.lock();
        failed.insert(path.to_owned());
        if path == log_dirs[0] {
            let path = path.display();
            failure
                .send_replace(Some(format!("{path}, which holds the cluster's metadata, failed: {reason}")));
        } else if failed.len() == log_dirs.len() {
            failure.send_replace(Some(format!("all log directories failed, the last one with: {reason}")));
        }
        follow.notify_one();
        if let Some(context) = told.upgrade() {
            context.heartbeat_now.notify_one();
        }
    });
}

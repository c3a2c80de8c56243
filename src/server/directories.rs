//! Log directories that fail or are missing, and what the node does about it.

use std::collections::BTreeSet;
use std::path::PathBuf;

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

/// Log directories that this node had before and has no more, unless each of its partitions is in the others. They
/// stay registered: if they come back, so do their partitions, and until then nothing is made in their place.
pub(crate) fn lost(store: &LogStore, image: &Image, node: NodeId) -> Vec<Uuid> {
    let known = image.brokers.get(&node).map(|broker| broker.directories.clone()).unwrap_or_default();
    let lost = store.note_known_directories(&known);
    let mut partitions = image.topics.values().flat_map(|topic| {
        let here = topic.partitions.iter().zip(0..).filter(|(state, _)| state.replicas.contains(&node));
        here.map(|(_, index)| TopicPartition::new(topic.name.clone(), index))
    });
    if lost.is_empty() || partitions.all(|name| store.has_folder(&name)) {
        return store.note_known_directories(&[]);
    }
    tracing::warn!(
        "log directories with the ids {} are not there any more; partitions that were in them are not served",
        lost.iter().map(Uuid::to_string).collect::<Vec<_>>().join(", ")
    );
    lost
}

/// Has the node's partitions follow when a log directory goes offline, and the node end with the last one, or with
/// the first one, which holds the metadata.
pub(crate) fn watch(context: &Context, follower: &Follower, failure: watch::Sender<Option<String>>) {
    let log_dirs = context.static_config.log_dirs.clone();
    let failed: parking_lot::Mutex<BTreeSet<PathBuf>> = parking_lot::Mutex::default();
    let follow = follower.directory_failed.clone();
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
    });
}

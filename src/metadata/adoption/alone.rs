//! What is left of a cluster whose other nodes are lost for good: the metadata as that of a cluster of one node. Nobody
//! can tell what the lost ones had decided or acknowledged last, so a person has to say that they are lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use klamm_model::{Named, NodeId, TopicId, TopicPartition, Uuid};
use klamm_storage::{LogStore, StorageError};

use crate::controller::KRAFT_VERSION;
use crate::image::{ConfigResource, DIRECTORY_UNASSIGNED, Image, PartitionState, RecoveryState};

/// The image of a cluster with this id in which `node` is alone: all partitions are on it, in sync with themselves. The
/// lines are for a person, and say of what records may be missing.
///
/// # Errors
/// When the folders of the store cannot be read.
pub fn left_alone(
    image: &Image,
    store: &LogStore,
    node: NodeId,
    cluster_id: &str,
) -> Result<(Image, Vec<String>), StorageError> {
    let folders = store.partition_folders()?.into_iter();
    let directories: BTreeMap<TopicPartition, Uuid> =
        folders.map(|folder| (folder.topic_partition, folder.directory_id)).collect();
    let mut image = image.clone();
    image.cluster_id = cluster_id.to_owned();
    let is_others =
        |resource: &ConfigResource| matches!(resource, ConfigResource::Broker(Some(id)) if *id != node);
    image.brokers = image.brokers.into_iter().filter(|(id, _)| *id == node).collect();
    image.configs = image.configs.into_iter().filter(|(resource, _)| !is_others(resource)).collect();
    // The voters that commands had chosen are gone; a node that is alone begins with itself.
    image.features.remove(KRAFT_VERSION);
    let (mut behind, mut empty) = (Vec::new(), Vec::new());
    let ids: Vec<TopicId> = image.topics.keys().copied().collect();
    for id in ids {
        let Some(topic) = image.topics.get_mut(&id) else { continue };
        let topic = Arc::make_mut(topic);
        for (index, state) in (0..).zip(&mut topic.partitions) {
            let partition = TopicPartition::new(Arc::clone(&topic.name), index);
            let directory = directories.get(&partition).copied();
            if directory.is_none() {
                empty.push(partition);
            } else if !state.isr.contains(&node) && !state.eligible_leaders.contains(&node) {
                behind.push(partition);
            }
            *state = PartitionState {
                replicas: vec![node],
                directories: vec![directory.unwrap_or(DIRECTORY_UNASSIGNED)],
                isr: vec![node],
                removing: Vec::new(),
                adding: Vec::new(),
                leader: None,
                leader_epoch: state.leader_epoch,
                partition_epoch: state.partition_epoch + 1,
                recovery: RecoveryState::Recovered,
                eligible_leaders: Vec::new(),
                last_known_eligible_leaders: Vec::new(),
            };
        }
    }
    let partitions: usize = image.topics.values().map(|topic| topic.partitions.len()).sum();
    let mut lines = vec![format!(
        "node {node} is alone in cluster {cluster_id} from now on, with {} topics of {partitions} partitions: start Klamm on \
         the same log.dirs as a single node (Apache Kafka 4.4 would start on them, too), and never start the other nodes \
         of cluster {} again with their directories",
        image.topics.len(),
        store.cluster_id()
    )];
    lines.extend(told(&behind, "were not in sync here, and may lack records that were acknowledged"));
    lines.extend(told(&empty, "had no replica here, and begin empty"));
    Ok((image, lines))
}

fn told(partitions: &[TopicPartition], what: &str) -> Option<String> {
    let count = partitions.len();
    (count > 0).then(|| format!("{count} of the partitions {what}: {}", Named(partitions)))
}

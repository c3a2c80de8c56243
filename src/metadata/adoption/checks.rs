//! What is refused. A cluster of which only a part is here would be served with records missing.

use klamm_model::{NodeId, TopicPartition, Uuid};
use klamm_storage::LogStore;

use super::folders::Folders;
use super::quorum_log::QuorumLog;
use super::{AdoptionError, AdoptionSettings};
use crate::image::{Image, PartitionState};

/// The features whose records are understood, with the highest level that is. They are those of Kafka 4.4.
const KNOWN_FEATURES: &[(&str, i16)] = &[
    ("eligible.leader.replicas.version", 1),
    ("group.version", 1),
    ("kraft.version", 1),
    ("metadata.version", 33),
    ("share.version", 2),
    ("streams.version", 1),
    ("transaction.version", 2),
];

/// How many of Kafka's directory ids stand for no directory (KIP-858).
const RESERVED_DIRECTORY_IDS: u8 = 100;

fn refused(why: String) -> AdoptionError {
    AdoptionError::Refused(why)
}

/// The node has to be the only voter, or what the log says may not be what the cluster agreed on.
pub(super) fn check_voters(log: &QuorumLog, node: NodeId) -> Result<(), AdoptionError> {
    let others: Vec<String> =
        log.voters.iter().filter(|voter| **voter != node.0).map(ToString::to_string).collect();
    if others.is_empty() {
        return Ok(());
    }
    Err(refused(format!(
        "the controllers of its cluster are others too (node {}); only a single node can be taken over",
        others.join(", ")
    )))
}

pub(super) fn check(
    image: &Image,
    store: &LogStore,
    settings: &AdoptionSettings<'_>,
    folders: &Folders,
) -> Result<(), AdoptionError> {
    check_features(image)?;
    let others: Vec<String> =
        image.brokers.keys().filter(|id| **id != settings.node_id).map(ToString::to_string).collect();
    if !others.is_empty() {
        return Err(refused(format!(
            "other brokers belong to its cluster (node {}); only a single node can be taken over. If they are gone \
             for good, unregister them with kafka-cluster while Apache Kafka runs",
            others.join(", ")
        )));
    }
    let directories: Vec<Uuid> = store.directory_ids().into_iter().map(|(_, id)| id).collect();
    for topic in image.topics.values() {
        for (index, state) in (0..).zip(&topic.partitions) {
            let name = TopicPartition::new(topic.name.clone(), index);
            check_partition(&name, state, settings.node_id, &directories)?;
            if let Some(folder) = folders.by_partition.get(&name)
                && let Some(found) = folder.topic_id.filter(|found| *found != topic.id)
            {
                return Err(refused(format!(
                    "{} holds an earlier topic of the same name (id {found}, not {}); move it away",
                    folder.path.display(),
                    topic.id
                )));
            }
        }
    }
    check_access_control(image, settings)
}

fn check_features(image: &Image) -> Result<(), AdoptionError> {
    for (name, level) in &image.features {
        match KNOWN_FEATURES.iter().find(|(known, _)| known == name) {
            Some((_, highest)) if level <= highest => {}
            Some((_, highest)) => {
                return Err(refused(format!(
                    "its {name} is {level}, and this Klamm knows up to {highest}; a newer Apache Kafka wrote it"
                )));
            }
            None => {
                return Err(refused(format!(
                    "it uses the feature {name} (level {level}), which this Klamm does not know"
                )));
            }
        }
    }
    Ok(())
}

fn check_partition(
    name: &TopicPartition,
    state: &PartitionState,
    node: NodeId,
    directories: &[Uuid],
) -> Result<(), AdoptionError> {
    if state.replicas != [node] {
        let replicas: Vec<String> = state.replicas.iter().map(ToString::to_string).collect();
        return Err(refused(format!(
            "the replicas of {name} are on the nodes {}, not on node {node} alone",
            replicas.join(", ")
        )));
    }
    let elsewhere = |id: &&Uuid| !is_reserved(id) && !directories.contains(id);
    match state.directories.iter().find(elsewhere) {
        None => Ok(()),
        Some(id) => Err(refused(format!(
            "{name} is in the log directory with directory.id={id}, which is in none of log.dirs; name all \
             directories that Apache Kafka used"
        ))),
    }
}

fn is_reserved(id: &Uuid) -> bool {
    id.0[..15].iter().all(|byte| *byte == 0) && id.0[15] < RESERVED_DIRECTORY_IDS
}

/// Klamm has no authorizer yet. A cluster whose rules are silently not enforced is worse than one that does not
/// start.
fn check_access_control(image: &Image, settings: &AdoptionSettings<'_>) -> Result<(), AdoptionError> {
    let count = image.kept.access_control_entries.len();
    if count == 0 || settings.ignores_access_control {
        return Ok(());
    }
    Err(refused(format!(
        "it has {count} access control entries, and this version of Klamm enforces none: whoever reaches a listener \
         could read and write everything. Start with --without-access-control to go on nevertheless; the entries \
         are kept"
    )))
}

//! Giving log directories back to Apache Kafka.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use klamm_config::BrokerConfig;
use klamm_metadata::MetadataNode;
use klamm_metadata::adoption::{self, Adoption};
use klamm_model::{NodeId, Uuid};
use klamm_storage::{Keeper, LogStore, StorageError, StoreSettings, identity};

use crate::start::{Machine, metadata_settings};

/// Why directories were not given back.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// They cannot be opened.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The metadata cannot be read.
    #[error(transparent)]
    Metadata(#[from] klamm_metadata::StartError),
    /// The node is one of several. Nothing was changed.
    #[error(
        "node {node} belongs to a cluster of nodes {nodes}, and only a node that is alone can be given back: neither Apache \
         Kafka nor Klamm would start on the directories of one of several. If the other nodes are lost for good, \
         'klamm release --alone' makes a cluster of one node of what this one has; if they are not, see docs/adoption.md"
    )]
    OfCluster {
        /// This node.
        node: NodeId,
        /// All of them.
        nodes: String,
    },
    /// They were not given back.
    #[error(transparent)]
    Release(Box<adoption::ReleaseError>),
    /// There is nothing of Klamm.
    #[error("{}: {why}", .path.display())]
    NotKlamms {
        /// The directory.
        path: PathBuf,
        /// Why not.
        why: &'static str,
    },
    /// An earlier takeover or release cannot be ended.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The folder of the metadata.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
}

impl From<adoption::ReleaseError> for ReleaseError {
    fn from(error: adoption::ReleaseError) -> ReleaseError {
        ReleaseError::Release(Box::new(error))
    }
}

/// What is to become of the other nodes of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// What the metadata says of them stays; mostly there are none.
    Stay,
    /// They are lost for good: the node becomes a cluster of its own, with a new id, so that none of them is taken for a
    /// member of it.
    Lost,
}

/// Gives the directories, which are all of a broker that is stopped and in the order of its `log.dirs`, back to
/// Apache Kafka 4.4. The lines that it returns are for a person.
///
/// # Errors
/// When a broker runs on them, they are not Klamm's, or the disk fails. Then Klamm can still start on them, or the
/// message says what to do.
pub fn release(
    log_dirs: Vec<PathBuf>,
    others: Others,
    machine: &Machine,
) -> Result<Vec<String>, ReleaseError> {
    let disk = &*machine.disk;
    let first = log_dirs[0].clone();
    let not_klamms = |why| ReleaseError::NotKlamms { path: first.clone(), why };
    let (_, node_id) = identity(disk, &first)?.ok_or_else(|| not_klamms("there is no meta.properties"))?;
    let (random, clock) = (machine.random.clone(), machine.clock.clone());
    let settings = StoreSettings::new(log_dirs.clone(), node_id, machine.disk.clone(), clock, random);
    let store = Arc::new(LogStore::open(settings)?);
    let dir = store.metadata_dir();
    if store.keeper() != Keeper::Klamm {
        return if adoption::resume_release(disk, &dir)? {
            Ok(vec!["the release that was interrupted is complete now".to_owned()])
        } else {
            Err(not_klamms("the directory is Apache Kafka's already"))
        };
    }
    Adoption::finish(disk, &dir).map_err(|error| ReleaseError::Io { path: dir.clone(), error })?;
    // Without it a new quorum would be formed, and an empty cluster given back.
    if !disk.exists(&dir).map_err(|error| ReleaseError::Io { path: dir.clone(), error })? {
        return Err(not_klamms(
            "the folder klamm-metadata is not in it: name all directories of log.dirs, in the same order; the \
             metadata is in the first",
        ));
    }
    let mut config = BrokerConfig::defaults();
    (config.node_id, config.log_dirs) = (node_id, log_dirs);
    let config = Arc::new(config);
    let (image, nodes) = image_of(&config, machine, &store)?;
    let now_ms = machine.clock.now_ms();
    let (image, mut lines) = match others {
        Others::Stay if nodes.iter().any(|node| *node != node_id) => {
            let nodes: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
            return Err(ReleaseError::OfCluster { node: node_id, nodes: nodes.join(", ") });
        }
        Others::Stay => {
            let partitions: usize = image.topics.values().map(|topic| topic.partitions.len()).sum();
            let line = format!(
                "{} topics with {partitions} partitions were given back to Apache Kafka: start Kafka 4.4 with \
                 node.id={node_id} on the same log.dirs",
                image.topics.len()
            );
            (image, vec![line])
        }
        Others::Lost => {
            let cluster_id = Uuid::from_random(machine.random.next_16()).to_string();
            let (image, told) = adoption::left_alone(&image, &store, node_id, &cluster_id)?;
            (Arc::new(image), told)
        }
    };
    lines.extend(adoption::release(&store, &image, disk, node_id, now_ms)?);
    Ok(lines)
}

/// The metadata as the last run of the node left it, and the nodes of the cluster: its brokers, and the members of its
/// quorum.
fn image_of(
    config: &Arc<BrokerConfig>,
    machine: &Machine,
    store: &Arc<LogStore>,
) -> Result<(Arc<klamm_metadata::Image>, BTreeSet<NodeId>), ReleaseError> {
    let node =
        MetadataNode::start(metadata_settings(config, machine, store, (String::new(), 0), Arc::default()))?;
    let (image, mut nodes) = (node.image(), node.members());
    node.shutdown();
    nodes.extend(image.brokers.keys());
    Ok((image, nodes))
}

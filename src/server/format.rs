//! Preparing the directories of a node whose voters are not configured, as kafka-storage does (KIP-853).

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use klamm_config::BrokerConfig;
use klamm_metadata::{InitialVoters, ReplicaKey};
use klamm_model::{NodeId, Uuid};
use klamm_storage::{Keeper, LogStore, StorageError, StoreSettings};

use crate::start::Machine;

/// Who votes in the cluster that a node is formatted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// The node alone, for now.
    Standalone,
    /// These controllers.
    InitialControllers(BTreeMap<ReplicaKey, (String, u16)>),
    /// The node joins others, who know.
    NoInitialControllers,
}

/// Why directories were not formatted.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// They cannot be opened.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The metadata cannot be written.
    #[error("the metadata in {} cannot be written: {error}", .path.display())]
    Write {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// What was asked for does not go together.
    #[error("{0}")]
    Refused(String),
}

/// Formats the directories of the node. The line that it returns is for a person.
///
/// # Errors
/// When they are formatted already, the settings say otherwise, or the disk fails.
pub fn format(
    config: &BrokerConfig,
    format: Format,
    cluster_id: Option<String>,
    machine: &Machine,
) -> Result<String, FormatError> {
    let cluster_id = cluster_id.or_else(|| config.cluster_id.clone());
    check(config, &format, cluster_id.is_some())?;
    let Machine { disk, clock, random, threads, .. } = machine.clone();
    let first_directory_id = match &format {
        Format::InitialControllers(voters) => own_directory(config.node_id, voters)?,
        Format::Standalone | Format::NoInitialControllers => None,
    };
    let settings = StoreSettings {
        cluster_id,
        joins_later: true,
        first_directory_id,
        threads,
        ..StoreSettings::new(config.log_dirs.clone(), config.node_id, disk.clone(), clock, random.clone())
    };
    let store = LogStore::open(settings)?;
    let first = config.log_dirs[0].display();
    if store.keeper() != Keeper::Klamm {
        return Err(FormatError::Refused(format!("{first} is a directory of Apache Kafka")));
    }
    if !store.cluster_id().is_empty() {
        return Err(FormatError::Refused(format!(
            "{first} is formatted already, for cluster {}: use an empty directory",
            store.cluster_id()
        )));
    }
    let key = ReplicaKey::new(config.node_id, store.directory_ids()[0].1);
    let voters = match format {
        Format::Standalone => InitialVoters::Standalone(key, config.quorum_address()),
        Format::InitialControllers(voters) => InitialVoters::All(voters),
        Format::NoInitialControllers => InitialVoters::Unknown,
    };
    let dir = store.metadata_dir();
    klamm_metadata::format(&*disk, &dir, voters).map_err(|error| FormatError::Write { path: dir, error })?;
    let wanted = store.wanted_cluster_id().map(str::to_owned);
    let cluster_id = wanted.unwrap_or_else(|| Uuid::from_random(random.next_16()).to_string());
    store.join_cluster(&cluster_id)?;
    Ok(format!(
        "formatted {first} for node {} with directory.id {} of cluster {cluster_id}",
        key.id, key.directory_id
    ))
}

fn check(config: &BrokerConfig, format: &Format, has_cluster_id: bool) -> Result<(), FormatError> {
    if !config.quorum_voters.is_empty() {
        return Err(FormatError::Refused(
            "controller.quorum.voters is set: such a cluster forms by itself, and needs no format (the variable \
             CLUSTER_ID gives it an id). To have the quorum itself know its voters, set \
             controller.quorum.bootstrap.servers instead"
                .to_owned(),
        ));
    }
    if *format != Format::Standalone && !has_cluster_id {
        return Err(FormatError::Refused(
            "argument --cluster-id/-t is required: a node that does not begin its cluster alone has to be formatted with \
             the id that the others have (made with kafka-storage random-uuid, or by klamm format --standalone)"
                .to_owned(),
        ));
    }
    let has_listener = config.listeners.iter().any(|listener| listener.is_controller);
    if *format != Format::NoInitialControllers && !(config.roles.controller && has_listener) {
        return Err(FormatError::Refused(
            "only a controller can begin a cluster: process.roles has to have controller, and \
             controller.listener.names has to name one of `listeners`"
                .to_owned(),
        ));
    }
    Ok(())
}

/// The directory that the list of voters has for this node; `None` if the node is not in it.
fn own_directory(
    node: NodeId,
    voters: &BTreeMap<ReplicaKey, (String, u16)>,
) -> Result<Option<Uuid>, FormatError> {
    let own = voters.keys().find(|key| key.id == node).map(|key| key.directory_id);
    let missing =
        || FormatError::Refused(format!("the initial controllers have to name this node, {node} (node.id)"));
    own.map(Some).ok_or_else(missing)
}

#[cfg(test)]
mod tests;

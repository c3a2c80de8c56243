//! The first start on a directory that Apache Kafka wrote.

use std::io;
use std::path::PathBuf;

use klamm_config::BrokerConfig;
use klamm_metadata::TopicDefaults;
use klamm_metadata::adoption::{Adoption, AdoptionError, AdoptionSettings};
use klamm_storage::{Keeper, LogStore, StorageError};

use crate::start::Machine;
use crate::strays;

/// Why a directory was not taken over.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// It was not understood, or is refused. Nothing was changed.
    #[error(transparent)]
    Refused(#[from] AdoptionError),
    /// The disk failed. The next start goes on.
    #[error("the metadata in {} cannot be written: {error}", .path.display())]
    Write {
        /// The folder of the metadata.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The disk failed. The next start goes on.
    #[error(transparent)]
    Identity(#[from] StorageError),
}

/// Takes the directories over, if they are Apache Kafka's. To be called before the metadata is opened.
pub(crate) fn take_over(
    store: &LogStore,
    config: &BrokerConfig,
    defaults: &TopicDefaults,
    machine: &Machine,
) -> Result<(), TakeoverError> {
    let disk = &*machine.disk;
    let dir = store.metadata_dir();
    let failed = |error| TakeoverError::Write { path: dir.clone(), error };
    if store.keeper() != Keeper::Klamm {
        if config.quorum_voters.len() > 1 {
            let why =
                "controller.quorum.voters names other controllers; only a single node can be taken over";
            return Err(AdoptionError::Refused(why.to_owned()).into());
        }
        let settings = AdoptionSettings {
            node_id: config.node_id,
            defaults,
            ignores_access_control: config.ignores_access_control,
            disk,
            random: &*machine.random,
        };
        let adoption = Adoption::plan(store, &settings)?;
        adoption.report().iter().for_each(|line| tracing::info!("{line}"));
        let directory_id = store.directory_ids()[0].1;
        adoption.write(disk, &dir, config.node_id, directory_id).map_err(failed)?;
        if adoption.has_unknown_folders() {
            strays::keep(disk, &dir).map_err(failed)?;
        }
        store.take_over()?;
        adoption.warnings().iter().for_each(|line| tracing::warn!("{line}"));
        let what = match adoption.is_after_release() {
            true => "Klamm goes on with what 'klamm release' had made of this directory. Apache Kafka",
            false => "Klamm has taken over from Apache Kafka, which",
        };
        tracing::info!("{what} does not start on this directory any more; 'klamm release' gives it back");
    }
    Adoption::finish(disk, &dir).map_err(failed)
}

#[cfg(test)]
mod tests;

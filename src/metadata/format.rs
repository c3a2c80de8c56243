//! Making the metadata of a node whose voters are not configured, but known to the quorum itself (KIP-853).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use klamm_io::Disk;
use klamm_protocol::records::cluster_metadata::FeatureLevelRecord;

use crate::controller::KRAFT_VERSION;
use crate::quorum::log::{begin_empty, form, form_alone};
use crate::quorum::replica_key::ReplicaKey;
use crate::quorum::{Batch, VoterNode};

/// Who votes when a cluster begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitialVoters {
    /// This node alone, reached at this host and port.
    Standalone(ReplicaKey, (String, u16)),
    /// These, each reached at a host and port. Each of them is formatted with the same.
    All(BTreeMap<ReplicaKey, (String, u16)>),
    /// The node does not know: it gets everything from others.
    Unknown,
}

/// Writes the metadata into `dir`, which is made if need be. What an earlier attempt left there is replaced.
///
/// # Errors
/// When the disk fails.
pub fn format(disk: &dyn Disk, dir: &Path, voters: InitialVoters) -> io::Result<()> {
    disk.create_dir_all(dir)?;
    if let Some(parent) = dir.parent() {
        disk.sync_dir(parent)?;
    }
    let level = FeatureLevelRecord { name: KRAFT_VERSION.to_owned(), feature_level: 1 };
    let first = Batch { based_on: -1, records: vec![level.into()] };
    let node = |(host, port)| VoterNode { host, port };
    match voters {
        InitialVoters::Standalone(key, address) => {
            form_alone(disk, dir, key, BTreeMap::from([(key, node(address))]), Some(first))
        }
        InitialVoters::All(voters) => {
            let voters = voters.into_iter().map(|(key, address)| (key, node(address))).collect();
            form(disk, dir, voters, Some(first))
        }
        InitialVoters::Unknown => begin_empty(disk, dir),
    }
}

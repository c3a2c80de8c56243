//! Who a member of the quorum is: a node with the directory that holds its votes (KIP-853).

use std::fmt;
use std::str::FromStr;

use klamm_model::{NodeId, Uuid};
use serde::{Deserialize, Serialize};

/// A member of the quorum. A node that lost its directory is another member: what the lost one voted for, nobody
/// knows any more, so the node must not vote in its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ReplicaKey {
    /// `node.id`.
    pub id: NodeId,
    /// `directory.id` of the log directory with the metadata.
    pub directory_id: Uuid,
}

impl ReplicaKey {
    /// The member with this node and directory.
    pub fn new(id: NodeId, directory_id: Uuid) -> ReplicaKey {
        ReplicaKey { id, directory_id }
    }
}

impl fmt::Display for ReplicaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.id, self.directory_id)
    }
}

impl FromStr for ReplicaKey {
    type Err = String;

    fn from_str(text: &str) -> Result<ReplicaKey, String> {
        let invalid = || format!("{text:?} is not the number of a node, a dash, and the id of a directory");
        let (id, directory_id) = text.split_once('-').ok_or_else(invalid)?;
        let id = id.parse().map_err(|_| invalid())?;
        Ok(ReplicaKey { id: NodeId(id), directory_id: directory_id.parse().map_err(|_| invalid())? })
    }
}

/// As text, so that it can name the entries of a map in JSON.
impl Serialize for ReplicaKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ReplicaKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<ReplicaKey, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_from_its_text() {
        let key = ReplicaKey::new(NodeId(3), Uuid([0xfb; 16]));
        assert_eq!(key.to_string().parse(), Ok(key), "{key}");
        for wrong in ["3", "-3", "3-short", "x-AAAAAAAAAAAAAAAAAAAAAQ"] {
            assert!(wrong.parse::<ReplicaKey>().is_err(), "{wrong}");
        }
    }
}

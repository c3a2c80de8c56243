//! openraft at work: its types, our log, votes and snapshots on disk, and the seam to the other voters.

pub(crate) mod disk_thread;
pub(crate) mod entry;
pub(crate) mod import;
pub(crate) mod introduction;
pub(crate) mod log;
pub(crate) mod log_file;
pub(crate) mod message;
pub(crate) mod network;
pub(crate) mod plausibility;
pub(crate) mod replica_key;
pub(crate) mod snapshot;
pub(crate) mod state_machine;
#[cfg(test)]
mod tests;

use klamm_protocol::records::cluster_metadata::MetadataRecord;
use openraft::rt::deterministic_rng::DeterministicRng;
use serde::{Deserialize, Serialize};

use replica_key::ReplicaKey;

/// tokio, with the randomness of each task derived from the seed that the node was started with.
pub(crate) type Runtime = DeterministicRng<openraft::impls::TokioRuntime>;

openraft::declare_raft_types!(
    /// The concrete types that the quorum runs on. Elections draw from a seeded source (`DeterministicRng`),
    /// so that a run can be replayed, and a term has at most one leader (`leader_id_std`).
    pub(crate) TypeConfig:
        D = Batch,
        R = Applied,
        NodeId = ReplicaKey,
        Node = VoterNode,
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, ReplicaKey>,
        AsyncRuntime = Runtime,
);

pub(crate) type LogId = openraft::type_config::alias::LogIdOf<TypeConfig>;
pub(crate) type Vote = openraft::type_config::alias::VoteOf<TypeConfig>;
pub(crate) type Entry = openraft::type_config::alias::EntryOf<TypeConfig>;
pub(crate) type Membership = openraft::Membership<ReplicaKey, VoterNode>;
pub(crate) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<TypeConfig>;
pub(crate) type Snapshot = openraft::type_config::alias::SnapshotOf<TypeConfig, bytes::Bytes>;
pub(crate) type Raft = openraft::Raft<TypeConfig, state_machine::StateMachine>;

/// One atomic batch of metadata records, the data of one entry of the quorum's log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Batch {
    /// The offset of the image that the records were decided upon. A batch whose image is no longer the latest
    /// when its turn comes changes nothing and is decided again.
    pub based_on: i64,
    /// The records.
    pub records: Vec<MetadataRecord>,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Applied {
    /// Its records are in the image.
    Yes,
    /// Other records came in between, and it changed nothing.
    Stale,
}

/// What the quorum knows about a member beside who it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VoterNode {
    /// Where it listens.
    pub host: String,
    /// Where it listens.
    pub port: u16,
}

impl VoterNode {
    /// The host and port on which it listens.
    pub(crate) fn address(&self) -> (String, u16) {
        (self.host.clone(), self.port)
    }
}

impl std::fmt::Display for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} records upon offset {}", self.records.len(), self.based_on)
    }
}

impl std::fmt::Display for VoterNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// openraft asks for it. What is kept and what travels are the bytes of `entry`.
impl Serialize for Batch {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = entry::encode_batch(self).map_err(serde::ser::Error::custom)?;
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        serializer.serialize_str(&digits)
    }
}

impl<'de> Deserialize<'de> for Batch {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Batch, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let digits = digits.as_bytes();
        let pair = |pair: &[u8]| {
            let text = std::str::from_utf8(pair).ok()?;
            if pair.len() == 2 { u8::from_str_radix(text, 16).ok() } else { None }
        };
        let bytes: Option<Vec<u8>> = digits.chunks(2).map(pair).collect();
        let bytes = bytes.ok_or_else(|| serde::de::Error::custom("a batch is not in hexadecimal digits"))?;
        entry::decode_batch(bytes.into()).map_err(serde::de::Error::custom)
    }
}

//! What members of the quorum say to each other:
//!
//! ```text
//! question: version u8 | cluster.id length u8, bytes; empty where the sender has none | sender | addressee | JSON
//!   sender, addressee: node i32 | directory 16 bytes; the addressee is all zeros where it is not known yet
//! answer:   0 u8 | JSON            what was asked for
//!           1 u8 | lowest u8 | highest u8   the version is not known; these are
//!           2 u8 | text            refused, and why
//! ```
//!
//! Who is meant stands in each question: one that was sent to a directory that is lost, or into another cluster,
//! must not be taken by whoever listens at that address now.

use std::io;

use bytes::{Buf, BufMut, Bytes};
use klamm_model::{NodeId, Uuid};
use openraft::raft::{AppendEntriesRequest, TransferLeaderRequest, VoteRequest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::introduction::{Introduction, JoinRequest};
use super::replica_key::ReplicaKey;
use super::{SnapshotMeta, TypeConfig, Vote};

/// The version of these messages.
pub(crate) const VERSION: u8 = 2;

const ANSWERED: u8 = 0;
const UNKNOWN_VERSION: u8 = 1;
const REFUSED: u8 = 2;

/// Who asks whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// The cluster of the one who asks, if it belongs to one.
    pub(crate) cluster_id: Option<String>,
    /// The one who asks.
    pub(crate) from: ReplicaKey,
    /// The one who is asked; `None` for whoever listens there.
    pub(crate) to: Option<ReplicaKey>,
}

/// What is asked.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) enum Question {
    Append(AppendEntriesRequest<TypeConfig>),
    Vote(VoteRequest<TypeConfig>),
    PreVote(VoteRequest<TypeConfig>),
    Snapshot {
        vote: Vote,
        meta: SnapshotMeta,
        content: Vec<u8>,
    },
    TransferLeader(TransferLeaderRequest<TypeConfig>),
    /// Who are you? The sender says who it is itself.
    Introduce(Introduction),
    /// The sender wants to be a member.
    Join(JoinRequest),
}

/// Why there is no answer to what was asked.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// It speaks other versions.
    #[error(
        "it speaks versions {lowest} to {highest} of the quorum's messages, and this Klamm speaks {VERSION}; run \
         versions of Klamm that follow each other in one cluster"
    )]
    Version {
        /// The lowest that it knows.
        lowest: u8,
        /// The highest that it knows.
        highest: u8,
    },
    /// It will not, and says why.
    #[error("{0}")]
    Refused(String),
    /// Bytes that make no sense.
    #[error("its answer cannot be read: {0}")]
    Unreadable(String),
}

pub(crate) fn encode_question(envelope: &Envelope, question: &Question) -> io::Result<Bytes> {
    let mut out = Vec::with_capacity(256);
    out.put_u8(VERSION);
    let cluster_id = envelope.cluster_id.as_deref().unwrap_or_default();
    let len =
        u8::try_from(cluster_id.len()).map_err(|_| io::Error::other("a cluster.id that is too long"))?;
    out.put_u8(len);
    out.put_slice(cluster_id.as_bytes());
    put_key(&mut out, envelope.from);
    put_key(&mut out, envelope.to.unwrap_or_default());
    serde_json::to_writer(&mut out, question).map_err(io::Error::other)?;
    Ok(out.into())
}

/// Reads a question.
///
/// # Errors
/// The answer that tells the sender why it cannot be read.
pub(crate) fn decode_question(mut bytes: Bytes) -> Result<(Envelope, Question), Bytes> {
    if bytes.len() < 2 {
        return Err(refuse("a message that is cut off"));
    }
    if bytes.get_u8() != VERSION {
        return Err(Bytes::from_static(&[UNKNOWN_VERSION, VERSION, VERSION]));
    }
    let len = usize::from(bytes.get_u8());
    if bytes.len() < len + 2 * KEY_LEN {
        return Err(refuse("a message that is cut off"));
    }
    let cluster_id = String::from_utf8_lossy(&bytes.split_to(len)).into_owned();
    let (from, to) = (get_key(&mut bytes), get_key(&mut bytes));
    let question = serde_json::from_slice(&bytes).map_err(|error| refuse(&error.to_string()))?;
    let cluster_id = (!cluster_id.is_empty()).then_some(cluster_id);
    Ok((Envelope { cluster_id, from, to: (to != ReplicaKey::default()).then_some(to) }, question))
}

/// The answer to a question that is not answered, for `why`.
pub(crate) fn refuse(why: &str) -> Bytes {
    let mut out = vec![REFUSED];
    out.extend_from_slice(why.as_bytes());
    out.into()
}

pub(crate) fn encode_answer<T: Serialize>(answer: &T) -> io::Result<Bytes> {
    let mut out = vec![ANSWERED];
    serde_json::to_writer(&mut out, answer).map_err(io::Error::other)?;
    Ok(out.into())
}

pub(crate) fn decode_answer<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, NoAnswer> {
    match bytes {
        [ANSWERED, json @ ..] => {
            serde_json::from_slice(json).map_err(|error| NoAnswer::Unreadable(error.to_string()))
        }
        [UNKNOWN_VERSION, lowest, highest] => Err(NoAnswer::Version { lowest: *lowest, highest: *highest }),
        [REFUSED, why @ ..] => Err(NoAnswer::Refused(String::from_utf8_lossy(why).into_owned())),
        _ => Err(NoAnswer::Unreadable("it begins with no kind of answer".to_owned())),
    }
}

const KEY_LEN: usize = 20;

fn put_key(out: &mut Vec<u8>, key: ReplicaKey) {
    out.put_i32(key.id.0);
    out.put_slice(&key.directory_id.0);
}

/// There must be [`KEY_LEN`] bytes.
fn get_key(bytes: &mut Bytes) -> ReplicaKey {
    let id = NodeId(bytes.get_i32());
    let mut directory_id = Uuid::ZERO;
    bytes.copy_to_slice(&mut directory_id.0);
    ReplicaKey::new(id, directory_id)
}

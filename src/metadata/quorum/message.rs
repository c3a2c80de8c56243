//! What members of the quorum say to each other:
//!
//! ```text
//! question: version u8 | cluster.id length u8, bytes; empty where the sender has none | sender | its run u64
//!           | addressee | length u32 and JSON | the rest
//!   sender, addressee: node i32 | directory 16 bytes; the addressee is all zeros where it is not known yet
//!   the rest: of Append, count × (length u32 | entry, see `entry`); of Snapshot, its file; of others, nothing
//! answer:   0 u8 | JSON            what was asked for
//!           1 u8 | lowest u8 | highest u8   the version is not known; these are
//!           2 u8 | text            refused, and why
//! ```
//!
//! A node speaks the highest version that both know: it begins with its own highest, and one that does not know that
//! says what it knows. So the nodes of a cluster can be upgraded one after another.
//!
//! Who is meant stands in each question: one that was sent to a directory that is lost, or into another cluster,
//! must not be taken by whoever listens at that address now. The run tells processes apart that have copies of one
//! directory.

use std::io;

use bytes::{Buf, BufMut, Bytes};
use klamm_model::{NodeId, Uuid};
use openraft::raft::{AppendEntriesRequest, TransferLeaderRequest, VoteRequest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::introduction::{Introduction, JoinRequest};
use super::replica_key::ReplicaKey;
use super::{LogId, SnapshotMeta, TypeConfig, Vote, entry, snapshot};

/// The versions of these messages that a node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) lowest: u8,
    pub(crate) highest: u8,
}

/// The version of these messages that this Klamm knows.
pub(crate) const VERSION: u8 = 3;

impl Versions {
    /// What this Klamm knows; `raised` is what a test has it know beyond that.
    pub(crate) fn known(raised: u8) -> Versions {
        Versions { lowest: VERSION, highest: VERSION + raised }
    }

    /// The version of a snapshot that travels in a message of this version.
    pub(crate) fn snapshot(version: u8) -> u32 {
        snapshot::VERSION + u32::from(version.saturating_sub(VERSION))
    }

    /// The highest that both know.
    pub(crate) fn common_with(self, lowest: u8, highest: u8) -> Option<u8> {
        let version = self.highest.min(highest);
        (version >= self.lowest.max(lowest)).then_some(version)
    }
}

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
    /// The number that its process has drawn.
    pub(crate) run: u64,
    /// The one who is asked; `None` for whoever listens there.
    pub(crate) to: Option<ReplicaKey>,
}

/// What is asked.
pub(crate) enum Question {
    Append {
        request: AppendEntriesRequest<TypeConfig>,
        /// Whether the sender, which leads, has lost its majority: it sends all the same, and can decide nothing.
        is_cut_off: bool,
    },
    Vote(VoteRequest<TypeConfig>),
    PreVote(VoteRequest<TypeConfig>),
    Snapshot {
        vote: Vote,
        meta: SnapshotMeta,
        content: Bytes,
    },
    TransferLeader(TransferLeaderRequest<TypeConfig>),
    /// The leader with this vote says that the addressee has lost the entry, which it had acknowledged.
    Lost {
        vote: Vote,
        acknowledged: LogId,
    },
    /// Who are you? The sender says who it is itself.
    Introduce(Introduction),
    /// The sender wants to be a member.
    Join(JoinRequest),
    /// Is this one a member?
    IsMember(ReplicaKey),
}

/// The part of a question that is JSON.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
enum Head {
    Append {
        vote: Vote,
        prev_log_id: Option<LogId>,
        leader_commit: Option<LogId>,
        /// Whoever does not know this field passes over it, and does not send it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_cut_off: bool,
    },
    Vote(VoteRequest<TypeConfig>),
    PreVote(VoteRequest<TypeConfig>),
    Snapshot {
        vote: Vote,
        meta: SnapshotMeta,
    },
    TransferLeader(TransferLeaderRequest<TypeConfig>),
    Lost {
        vote: Vote,
        acknowledged: LogId,
    },
    Introduce(Introduction),
    Join(JoinRequest),
    IsMember(ReplicaKey),
}

/// Why there is no answer to what was asked.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// It speaks other versions.
    #[error(
        "it speaks versions {lowest} to {highest} of the quorum's messages, and this Klamm speaks {VERSION}: run \
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

/// Writes a question in a version of at least [`VERSION`].
///
/// # Errors
/// When it has no encoding.
pub(crate) fn encode_question(version: u8, envelope: &Envelope, question: &Question) -> io::Result<Bytes> {
    let mut out = Vec::with_capacity(256);
    out.put_u8(version);
    // What a later version may add: a test has it add a byte.
    out.extend(std::iter::repeat_n(0xff, usize::from(version - VERSION)));
    let cluster_id = envelope.cluster_id.as_deref().unwrap_or_default();
    let len =
        u8::try_from(cluster_id.len()).map_err(|_| io::Error::other("a cluster.id that is too long"))?;
    out.put_u8(len);
    out.put_slice(cluster_id.as_bytes());
    put_key(&mut out, envelope.from);
    out.put_u64(envelope.run);
    put_key(&mut out, envelope.to.unwrap_or_default());
    let head = serde_json::to_vec(&head_of(question)).map_err(io::Error::other)?;
    put_counted(&mut out, &head)?;
    match question {
        Question::Append { request, .. } => {
            for entry in &request.entries {
                put_counted(&mut out, &entry::encode(entry)?)?;
            }
        }
        Question::Snapshot { content, .. } => {
            out.put_slice(&snapshot::in_version(Versions::snapshot(version), content));
        }
        _ => {}
    }
    Ok(out.into())
}

fn head_of(question: &Question) -> Head {
    match question {
        Question::Append { request, is_cut_off } => {
            let AppendEntriesRequest { vote, prev_log_id, leader_commit, .. } = *request;
            Head::Append { vote, prev_log_id, leader_commit, is_cut_off: *is_cut_off }
        }
        Question::Vote(request) => Head::Vote(request.clone()),
        Question::PreVote(request) => Head::PreVote(request.clone()),
        Question::Snapshot { vote, meta, .. } => Head::Snapshot { vote: *vote, meta: meta.clone() },
        Question::TransferLeader(request) => Head::TransferLeader(request.clone()),
        Question::Lost { vote, acknowledged } => Head::Lost { vote: *vote, acknowledged: *acknowledged },
        Question::Introduce(introduction) => Head::Introduce(introduction.clone()),
        Question::Join(request) => Head::Join(request.clone()),
        Question::IsMember(key) => Head::IsMember(*key),
    }
}

/// Reads a question.
///
/// # Errors
/// The answer that tells the sender why it cannot be read.
pub(crate) fn decode_question(known: Versions, mut bytes: Bytes) -> Result<(Envelope, Question), Bytes> {
    let cut_off = || refuse("a message that is cut off");
    let version = if bytes.is_empty() { return Err(cut_off()) } else { bytes.get_u8() };
    if !(known.lowest..=known.highest).contains(&version) {
        return Err(vec![UNKNOWN_VERSION, known.lowest, known.highest].into());
    }
    let added = usize::from(version - VERSION);
    if bytes.len() < added + 1 {
        return Err(cut_off());
    }
    bytes.advance(added);
    let len = usize::from(bytes.get_u8());
    if bytes.len() < len + 2 * KEY_LEN + 8 {
        return Err(cut_off());
    }
    let cluster_id = String::from_utf8_lossy(&bytes.split_to(len)).into_owned();
    let (from, run, to) = (get_key(&mut bytes), bytes.get_u64(), get_key(&mut bytes));
    let question = get_question(bytes).map_err(|error| refuse(&error.to_string()))?;
    let cluster_id = (!cluster_id.is_empty()).then_some(cluster_id);
    Ok((Envelope { cluster_id, from, run, to: (to != ReplicaKey::default()).then_some(to) }, question))
}

fn get_question(mut bytes: Bytes) -> io::Result<Question> {
    let head = serde_json::from_slice(&get_counted(&mut bytes)?).map_err(io::Error::other)?;
    let question = match head {
        Head::Append { vote, prev_log_id, leader_commit, is_cut_off } => {
            let mut entries = Vec::new();
            while !bytes.is_empty() {
                entries.push(entry::decode(get_counted(&mut bytes)?)?);
            }
            let request = AppendEntriesRequest { vote, prev_log_id, entries, leader_commit };
            Question::Append { request, is_cut_off }
        }
        Head::Snapshot { vote, meta } => {
            Question::Snapshot { vote, meta, content: std::mem::take(&mut bytes) }
        }
        Head::Vote(request) => Question::Vote(request),
        Head::PreVote(request) => Question::PreVote(request),
        Head::TransferLeader(request) => Question::TransferLeader(request),
        Head::Lost { vote, acknowledged } => Question::Lost { vote, acknowledged },
        Head::Introduce(introduction) => Question::Introduce(introduction),
        Head::Join(request) => Question::Join(request),
        Head::IsMember(key) => Question::IsMember(key),
    };
    match bytes.len() {
        0 => Ok(question),
        more => Err(io::Error::other(format!("{more} bytes follow the message"))),
    }
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

fn put_counted(out: &mut Vec<u8>, bytes: &[u8]) -> io::Result<()> {
    out.put_u32(u32::try_from(bytes.len()).map_err(io::Error::other)?);
    out.put_slice(bytes);
    Ok(())
}

fn get_counted(bytes: &mut Bytes) -> io::Result<Bytes> {
    let len = if bytes.len() < 4 { usize::MAX } else { bytes.get_u32() as usize };
    if len > bytes.len() {
        Err(io::Error::other("a message that is cut off"))
    } else {
        Ok(bytes.split_to(len))
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

#[cfg(test)]
mod tests {
    use klamm_protocol::records::cluster_metadata::ConfigRecord;
    use openraft::EntryPayload;
    use openraft::entry::RaftEntry;

    use super::*;
    use crate::quorum::{Batch, Entry};

    fn envelope() -> Envelope {
        let key = |id| ReplicaKey::new(NodeId(id), Uuid([id as u8; 16]));
        Envelope { cluster_id: Some("c".to_owned()), from: key(1), run: 7, to: Some(key(2)) }
    }

    fn entry(index: u64, value_len: usize) -> Entry {
        let value = Some("v".repeat(value_len));
        let record = ConfigRecord { value, ..Default::default() };
        let batch = Batch { based_on: index as i64 - 1, records: vec![record.into()] };
        Entry::new(entry::log_id(1, index), EntryPayload::Normal(batch))
    }

    fn append(entries: Vec<Entry>) -> Question {
        let vote = Vote::new_committed(1, envelope().from);
        let request = AppendEntriesRequest { vote, prev_log_id: None, entries, leader_commit: None };
        Question::Append { request, is_cut_off: false }
    }

    /// What the log holds must be able to travel: hardly longer than it stands there.
    #[test]
    fn entries_travel_as_the_bytes_of_the_log() {
        let entries = vec![entry(0, 30_000), entry(1, 3)];
        let bytes = encode_question(VERSION, &envelope(), &append(entries.clone())).unwrap();
        assert!(bytes.len() < 30_700, "{} bytes", bytes.len());
        let (read, question) = decode_question(Versions::known(0), bytes.clone()).unwrap();
        assert_eq!(read, envelope());
        assert!(matches!(question, Question::Append { request, .. } if request.entries == entries));
        let whole_heads =
            (0..bytes.len()).filter(|len| decode_question(Versions::known(0), bytes.slice(..*len)).is_ok());
        assert_eq!(whole_heads.count(), 2, "cut before the first entry and before the second");
    }

    /// A node of an earlier version neither sends nor knows whether a leader is cut off.
    #[test]
    fn a_leader_that_is_cut_off_says_so_and_others_send_what_they_always_sent() {
        let Question::Append { request, .. } = append(Vec::new()) else { unreachable!() };
        for is_cut_off in [false, true] {
            let question = Question::Append { request: request.clone(), is_cut_off };
            let bytes = encode_question(VERSION, &envelope(), &question).unwrap();
            assert_eq!(bytes.windows(10).any(|part| part == b"is_cut_off"), is_cut_off);
            let (_, question) = decode_question(Versions::known(0), bytes).unwrap();
            assert!(matches!(question, Question::Append { is_cut_off: read, .. } if read == is_cut_off));
        }
    }

    #[test]
    fn a_snapshot_travels_as_its_file() {
        let content = Bytes::from(vec![9; 30_000]);
        let vote = Vote::new_committed(1, envelope().from);
        let question = Question::Snapshot { vote, meta: SnapshotMeta::default(), content: content.clone() };
        let bytes = encode_question(VERSION, &envelope(), &question).unwrap();
        assert!(bytes.len() < 30_500, "{} bytes", bytes.len());
        let (_, question) = decode_question(Versions::known(0), bytes).unwrap();
        assert!(matches!(question, Question::Snapshot { content: read, .. } if read == content));
    }
}

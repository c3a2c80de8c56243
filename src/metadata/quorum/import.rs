//! The files of a quorum of one whose state comes from elsewhere: a snapshot, and a log that goes on behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use klamm_io::Disk;
use klamm_model::{NodeId, Uuid};
use openraft::EntryPayload;
use openraft::entry::RaftEntry;

use super::log::{LOG_FILE, VOTE_FILE, clear, encode_first_vote};
use super::log_file::LogFile;
use super::replica_key::ReplicaKey;
use super::state_machine::SNAPSHOT_FILE;
use super::{Entry, Membership, SnapshotMeta, StoredMembership, VoterNode, entry, snapshot};

/// The term in which the node leads alone.
const TERM: u64 = 1;

/// Writes the files into `dir`, which exists. What an earlier attempt left there is replaced.
pub(crate) fn import(
    disk: &dyn Disk,
    dir: &Path,
    node: NodeId,
    directory_id: Uuid,
    image: &crate::image::Image,
) -> io::Result<()> {
    assert!(image.offset >= 0, "an image that is imported has an offset to go on from");
    clear(disk, dir)?;
    let id = ReplicaKey::new(node, directory_id);
    let voter = VoterNode { host: String::new(), port: 0 };
    let members = Membership::new(vec![BTreeSet::from([id])], BTreeMap::from([(id, voter)]));
    let members = members.map_err(io::Error::other)?;
    let last = entry::log_id(TERM, image.offset as u64);
    let meta =
        SnapshotMeta { last_log_id: Some(last), last_membership: StoredMembership::new(Some(last), members) };
    disk.replace(&dir.join(SNAPSHOT_FILE), &snapshot::encode(snapshot::VERSION, &meta, image)?)?;
    let first = Entry::new(entry::log_id(TERM, last.index + 1), EntryPayload::Blank);
    LogFile::form_behind(disk, &dir.join(LOG_FILE), last, &[first])?;
    disk.replace(&dir.join(VOTE_FILE), &encode_first_vote(TERM, id))
}

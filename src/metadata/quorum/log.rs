//! openraft's log storage over our files: `log`, `vote` and `committed`.
//!
//! ```text
//! vote:      magic "KLAMMVOT" | version u32 | term u64 | node i32 | its directory 16 bytes | committed u8 | CRC32C u32
//! committed: term u64 | index u64 | CRC32C u32
//! ```
//!
//! `vote` is replaced as a whole and synced. `committed` is only a hint that lets a restart apply at once what
//! it applied before; it is written in place and never synced.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, BufMut};
use klamm_io::{Disk, File, OpenMode};
use klamm_model::{NodeId, Uuid};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{EntryPayload, OptionalSend, RaftLogReader};
use parking_lot::Mutex;

use super::disk_thread::{DiskThread, is_full};
use super::log_file::{LogFile, Opened};
use super::replica_key::ReplicaKey;
use super::state_machine::SNAPSHOT_FILE;
use super::{Batch, Entry, LogId, Membership, TypeConfig, Vote, VoterNode, entry};
use crate::planted::planted;

pub(crate) const LOG_FILE: &str = "log";
pub(crate) const VOTE_FILE: &str = "vote";
pub(crate) const COMMITTED_FILE: &str = "committed";

/// How many bytes of entries go to another member at once; a longer entry goes alone.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 4 << 20;

const VOTE_MAGIC: &[u8; 8] = b"KLAMMVOT";
const VOTE_VERSION: u32 = 2;
const VOTE_LEN: usize = 45;
const COMMITTED_LEN: usize = 20;

/// The log of this voter. Clones read and write the same one.
#[derive(Clone)]
pub(crate) struct LogStore {
    shared: Arc<Shared>,
}

struct Shared {
    disk: Arc<dyn Disk>,
    thread: DiskThread,
    log_path: PathBuf,
    vote_path: PathBuf,
    /// What a test adds to the versions of the files.
    raised: u8,
    committed_file: Arc<dyn File>,
    state: Mutex<State>,
}

impl Shared {
    /// Appends to the file, which is returned to be synced.
    fn append(&self, entries: &[Entry]) -> io::Result<Arc<dyn File>> {
        let mut state = self.state.lock();
        let bytes = state.log.append(entries)?;
        state.bytes_appended += bytes;
        Ok(state.log.file())
    }
}

struct State {
    log: LogFile,
    vote: Option<Vote>,
    committed: Option<LogId>,
    bytes_appended: u64,
}

/// Makes the files of a new quorum of one: exactly what openraft leaves on disk when a single voter forms a
/// cluster and elects itself, but with four syncs in place of eight. A voter that is its own majority has
/// granted its vote by giving it.
pub(crate) fn form_alone(
    disk: &dyn Disk,
    dir: &Path,
    id: ReplicaKey,
    nodes: BTreeMap<ReplicaKey, VoterNode>,
    first: Option<Batch>,
) -> io::Result<()> {
    let members = Membership::new(vec![BTreeSet::from([id])], nodes).map_err(io::Error::other)?;
    let mut entries = vec![
        Entry::new(entry::log_id(0, 0), EntryPayload::Membership(members)),
        Entry::new(entry::log_id(1, 1), EntryPayload::Blank),
    ];
    entries.extend(first.map(|batch| Entry::new(entry::log_id(1, 2), EntryPayload::Normal(batch))));
    LogFile::form(disk, &dir.join(LOG_FILE), &entries)?;
    disk.replace(&dir.join(VOTE_FILE), &encode_first_vote(1, id))
}

/// Makes the files of a new quorum of these voters. Each of them may have the same; they elect a leader then. The batch
/// is the first that is applied.
pub(crate) fn form(
    disk: &dyn Disk,
    dir: &Path,
    voters: BTreeMap<ReplicaKey, VoterNode>,
    first: Option<Batch>,
) -> io::Result<()> {
    clear(disk, dir)?;
    let ids: BTreeSet<ReplicaKey> = voters.keys().copied().collect();
    let members = Membership::new(vec![ids], voters).map_err(io::Error::other)?;
    let mut entries = vec![Entry::new(entry::log_id(0, 0), EntryPayload::Membership(members))];
    entries.extend(first.map(|batch| Entry::new(entry::log_id(0, 1), EntryPayload::Normal(batch))));
    LogFile::form(disk, &dir.join(LOG_FILE), &entries).map(drop)
}

/// Makes the files of a node that will get everything from others.
pub(crate) fn begin_empty(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    clear(disk, dir)?;
    LogFile::form(disk, &dir.join(LOG_FILE), &[]).map(drop)
}

/// Takes away what an earlier attempt to make the files has left.
pub(crate) fn clear(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    for name in [VOTE_FILE, LOG_FILE, COMMITTED_FILE, SNAPSHOT_FILE] {
        let path = dir.join(name);
        if disk.exists(&path)? {
            disk.remove_file(&path)?;
        }
    }
    disk.sync_dir(dir)
}

/// The vote of a node that leads alone.
pub(crate) fn encode_first_vote(term: u64, id: ReplicaKey) -> Vec<u8> {
    encode_vote(VOTE_VERSION, &Vote::new_committed(term, id))
}

impl LogStore {
    /// Opens the files in `dir`, which exists, or makes them. `raised` is what a test adds to their versions.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        thread: &DiskThread,
        dir: &Path,
        raised: u8,
    ) -> io::Result<LogStore> {
        let opened = LogFile::open(&**disk, &dir.join(LOG_FILE), raised)?;
        let vote_path = dir.join(VOTE_FILE);
        let vote = if disk.exists(&vote_path)? {
            Some(decode_vote(raised, &vote_path, &disk.read(&vote_path)?)?)
        } else {
            None
        };
        let committed_file = disk.open(&dir.join(COMMITTED_FILE), OpenMode::CreateOrOpen)?;
        let committed = read_committed(&*committed_file)?;
        check_nothing_is_lost(dir, &opened, committed)?;
        if opened.tail > 0 {
            opened.log.cut_tail()?;
            tracing::warn!(
                "{} bytes of a torn entry were cut off the metadata log in {}",
                opened.tail,
                dir.display()
            );
        }
        let state = State { log: opened.log, vote, committed, bytes_appended: 0 };
        let shared = Shared {
            disk: Arc::clone(disk),
            thread: thread.clone(),
            log_path: dir.join("log"),
            vote_path,
            raised,
            committed_file,
            state: Mutex::new(state),
        };
        Ok(LogStore { shared: Arc::new(shared) })
    }

    /// How many bytes were appended since the last call.
    pub(crate) fn take_bytes_appended(&self) -> u64 {
        std::mem::take(&mut self.shared.state.lock().bytes_appended)
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<Entry>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + std::fmt::Debug + OptionalSend,
    {
        let from = match range.start_bound() {
            Bound::Included(from) => *from,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let until = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(until) => *until,
            Bound::Unbounded => u64::MAX,
        };
        self.shared.state.lock().log.read(from, until)
    }

    /// What goes to another member at once, which must fit into one message and be taken in time.
    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        self.shared.state.lock().log.read_some(start, end, MESSAGE_BYTES_MAX)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.shared.state.lock().vote)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let state = self.shared.state.lock();
        Ok(LogState { last_purged_log_id: state.log.purged(), last_log_id: state.log.last() })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let (shared, vote) = (Arc::clone(&self.shared), *vote);
        let write = move || {
            let encoded = encode_vote(VOTE_VERSION + u32::from(shared.raised), &vote);
            if planted!(ForgetVoteSync) {
                let file = shared.disk.open(&shared.vote_path, OpenMode::CreateOrOpen)?;
                file.write_all_at(&[&encoded], 0)?;
            } else {
                shared.disk.replace(&shared.vote_path, &encoded)?;
            }
            shared.state.lock().vote = Some(vote);
            Ok(())
        };
        self.shared.thread.run_with_space(&self.shared.vote_path, write).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        let Some(committed) = committed else { return Ok(()) };
        match self.shared.committed_file.write_all_at(&[&encode_committed(committed)], 0) {
            // An old hint, or none, is as good while the disk is full.
            Err(error) if is_full(&error) => return Ok(()),
            result => result?,
        }
        self.shared.state.lock().committed = Some(committed);
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.shared.state.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let mut space = self.shared.thread.space_for(&self.shared.log_path);
        let file = loop {
            match self.shared.append(&entries) {
                Ok(file) => break file,
                Err(error) if space.is_awaited(&error).await => {}
                Err(error) => return Err(error),
            }
        };
        if planted!(ForgetLogSync) {
            callback.io_completed(Ok(()));
            return Ok(());
        }
        self.shared.thread.sync(file, Box::new(move |result| callback.io_completed(result)));
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let shared = Arc::clone(&self.shared);
        self.shared.thread.run(move || shared.state.lock().log.truncate_after(last_log_id)).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        let shared = Arc::clone(&self.shared);
        let rewrite = move || {
            let mut state = shared.state.lock();
            if state.log.purged().is_none_or(|purged| purged.index < log_id.index) {
                state.log = state.log.without(&*shared.disk, log_id)?;
            }
            Ok(())
        };
        self.shared.thread.run_with_space(&self.shared.log_path, rewrite).await
    }
}

/// Damage to what was acknowledged is no torn end. It is refused before anything is cut off, so that whatever
/// is left can still be rescued.
fn check_nothing_is_lost(dir: &Path, opened: &Opened, committed: Option<LogId>) -> io::Result<()> {
    let last = opened.log.last().map(|id| id.index);
    let lost =
        committed.map(|committed| committed.index).filter(|index| last.is_none_or(|last| last < *index));
    let found = last.map_or_else(|| "none".to_owned(), |last| last.to_string());
    let why = match (lost, opened.witness) {
        (Some(lost), _) => format!("entry {lost} was acknowledged, and the last whole one is {found}"),
        (None, Some(later)) => {
            format!(
                "entry {later} builds on entries that are damaged; the last whole one before it is {found}"
            )
        }
        (None, None) => return Ok(()),
    };
    let why = format!("the metadata log in {} is damaged: {why}", dir.display());
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

fn encode_vote(version: u32, vote: &Vote) -> Vec<u8> {
    let mut out = Vec::with_capacity(VOTE_LEN);
    out.put_slice(VOTE_MAGIC);
    out.put_u32(version);
    out.put_u64(vote.leader_id.term);
    out.put_i32(vote.leader_id.voted_for.id.0);
    out.put_slice(&vote.leader_id.voted_for.directory_id.0);
    out.put_u8(u8::from(vote.committed));
    let checksum = crc32c::crc32c(&out);
    out.put_u32(checksum);
    out
}

fn decode_vote(raised: u8, path: &Path, content: &[u8]) -> io::Result<Vote> {
    let invalid = |why: &str| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the vote in {} cannot be used: {why}", path.display()),
        )
    };
    if content.len() < 12 || &content[..8] != VOTE_MAGIC {
        return Err(invalid("it is no vote of Klamm"));
    }
    let mut fields = &content[8..];
    let version = fields.get_u32();
    let highest = VOTE_VERSION + u32::from(raised);
    if !(VOTE_VERSION..=highest).contains(&version) {
        return Err(invalid(&format!(
            "its format is version {version}, and this Klamm knows versions {VOTE_VERSION} to {highest}"
        )));
    }
    if content.len() != VOTE_LEN {
        return Err(invalid("it has the wrong length"));
    }
    let (term, id) = (fields.get_u64(), NodeId(fields.get_i32()));
    let mut directory_id = Uuid::ZERO;
    fields.copy_to_slice(&mut directory_id.0);
    let (node, committed) = (ReplicaKey::new(id, directory_id), fields.get_u8());
    if crc32c::crc32c(&content[..VOTE_LEN - 4]) != fields.get_u32() {
        return Err(invalid("its checksum is wrong"));
    }
    Ok(if committed == 1 { Vote::new_committed(term, node) } else { Vote::new(term, node) })
}

fn encode_committed(committed: LogId) -> Vec<u8> {
    let mut out = Vec::with_capacity(COMMITTED_LEN);
    out.put_u64(entry::term_of(&committed));
    out.put_u64(committed.index);
    let checksum = crc32c::crc32c(&out);
    out.put_u32(checksum);
    out
}

/// The hint, if a crash left it whole.
fn read_committed(file: &dyn File) -> io::Result<Option<LogId>> {
    let mut content = [0; COMMITTED_LEN];
    if file.len()? < COMMITTED_LEN as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut content, 0)?;
    let mut fields = &content[..];
    let (term, index) = (fields.get_u64(), fields.get_u64());
    let whole = crc32c::crc32c(&content[..COMMITTED_LEN - 4]) == fields.get_u32();
    Ok(whole.then(|| entry::log_id(term, index)))
}

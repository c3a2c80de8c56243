//! Apache Kafka's quorum log, `__cluster_metadata-0`: the latest snapshot, the batches behind it, and what both say
//! about the quorum itself.
//!
//! With a single voter whatever is whole in the log is committed. A torn end is what a kill leaves; damage with
//! something behind it is not, and is refused.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use klamm_io::Disk;
use klamm_model::Offset;
use klamm_protocol::records::cluster_metadata::MetadataRecord;
use klamm_protocol::records::control::{KRaftVersionRecord, LeaderChangeMessage, VotersRecord};
use klamm_protocol::{Message, Reader, decode_metadata_record};
use klamm_records::{Batch, batches};

use super::AdoptionError;

/// The folder of the log, in one of the log directories.
pub(crate) const FOLDER: &str = "__cluster_metadata-0";
/// What Apache Kafka 3.3 to 3.9 formats a directory with. Its records come into the log at the first start.
pub(crate) const BOOTSTRAP_FILE: &str = "bootstrap.checkpoint";
/// The end of a snapshot's name; before it stand offset and epoch.
pub(crate) const SNAPSHOT_SUFFIX: &str = ".checkpoint";
const SEGMENT_SUFFIX: &str = ".log";

/// Kinds of control records (KIP-595, KIP-630, KIP-853).
pub(crate) const LEADER_CHANGE: i16 = 2;
pub(crate) const SNAPSHOT_HEADER: i16 = 3;
pub(crate) const SNAPSHOT_FOOTER: i16 = 4;
pub(crate) const KRAFT_VERSION: i16 = 5;
pub(crate) const VOTERS: i16 = 6;

/// What the log holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QuorumLog {
    /// The metadata records that count, in order.
    pub records: Vec<MetadataRecord>,
    /// The offset behind the last record.
    pub end_offset: Offset,
    /// Whether there is more than a snapshot.
    pub has_segments: bool,
    /// The term of the last leader that wrote.
    pub leader_epoch: i32,
    /// The voters that the last leader named, by their ids.
    pub voters: Vec<i32>,
    /// `kraft.version`, where it was raised (KIP-853).
    pub kraft_version: Option<KRaftVersionRecord>,
    /// The voters as records of the log, with `kraft.version` 1.
    pub voters_record: Option<VotersRecord>,
}

/// Reads the quorum log among these directories; `None` if none of them has one.
pub(crate) fn read(disk: &dyn Disk, log_dirs: &[PathBuf]) -> Result<Option<QuorumLog>, AdoptionError> {
    let mut holders = Vec::new();
    for dir in log_dirs {
        let folder = dir.join(FOLDER);
        if disk.exists(&folder).map_err(|error| AdoptionError::io(&folder, error))? {
            holders.push(folder);
        }
    }
    let folder = match &holders[..] {
        [] => return read_bootstrap(disk, log_dirs),
        [folder] => folder,
        [one, other, ..] => {
            let why = format!(
                "there is another one in {}; which of the two counts cannot be told",
                other.display()
            );
            return Err(AdoptionError::unreadable(one, why));
        }
    };
    let log = read_folder(disk, folder)?;
    if log.end_offset > 0 || !log.records.is_empty() {
        return Ok(Some(log));
    }
    Ok(Some(read_bootstrap(disk, log_dirs)?.unwrap_or(log)))
}

/// A directory that was formatted and never started.
fn read_bootstrap(disk: &dyn Disk, log_dirs: &[PathBuf]) -> Result<Option<QuorumLog>, AdoptionError> {
    for dir in log_dirs {
        let path = dir.join(BOOTSTRAP_FILE);
        if disk.exists(&path).map_err(|error| AdoptionError::io(&path, error))? {
            let mut reading = Reading::default();
            reading.snapshot(&path, read_file(disk, &path)?)?;
            return Ok(Some(QuorumLog { end_offset: 0, ..reading.log }));
        }
    }
    Ok(None)
}

fn read_folder(disk: &dyn Disk, folder: &Path) -> Result<QuorumLog, AdoptionError> {
    let entries = disk.read_dir(folder).map_err(|error| AdoptionError::io(folder, error))?;
    let named = |suffix: &str| -> Vec<(String, PathBuf)> {
        let found = entries.iter().filter_map(|entry| {
            let stem = entry.name.strip_suffix(suffix)?;
            (!entry.is_dir).then(|| (stem.to_owned(), folder.join(&entry.name)))
        });
        found.collect()
    };
    let mut reading = Reading::default();
    let snapshots = named(SNAPSHOT_SUFFIX);
    let latest = snapshots.iter().filter_map(|(stem, path)| Some((snapshot_id(stem)?, path))).max();
    if let Some(((offset, epoch), path)) = latest {
        reading.snapshot(path, read_file(disk, path)?)?;
        reading.log.end_offset = offset;
        reading.log.leader_epoch = epoch;
    }
    let mut segments = Vec::new();
    for (stem, path) in named(SEGMENT_SUFFIX) {
        let base: Offset =
            stem.parse().map_err(|_| AdoptionError::unreadable(&path, "its name is no offset"))?;
        segments.push((base, path));
    }
    segments.sort();
    reading.log.has_segments = !segments.is_empty();
    for (index, (_, path)) in segments.iter().enumerate() {
        let is_last = index + 1 == segments.len();
        reading.segment(path, read_file(disk, path)?, is_last)?;
    }
    if reading.open_transaction.is_some() {
        tracing::warn!(
            "the metadata log in {} ends within a change that was never finished; it does not count",
            folder.display()
        );
    }
    Ok(reading.log)
}

/// Offset and epoch from the name of a snapshot.
pub(crate) fn snapshot_id(stem: &str) -> Option<(Offset, i32)> {
    let (offset, epoch) = stem.split_once('-')?;
    Some((offset.parse().ok()?, epoch.parse().ok()?))
}

fn read_file(disk: &dyn Disk, path: &Path) -> Result<Bytes, AdoptionError> {
    disk.read(path).map(Bytes::from).map_err(|error| AdoptionError::io(path, error))
}

/// The state while files are read one after another.
#[derive(Default)]
struct Reading {
    log: QuorumLog,
    /// Records of a change that spans several batches (KIP-868); they count when it ends.
    open_transaction: Option<Vec<MetadataRecord>>,
    /// Whether the snapshot that is being read has ended.
    is_snapshot_whole: bool,
}

impl Reading {
    fn snapshot(&mut self, path: &Path, content: Bytes) -> Result<(), AdoptionError> {
        for batch in batches(content) {
            let batch = batch.map_err(|error| AdoptionError::unreadable(path, error))?;
            batch.check_crc().map_err(|error| AdoptionError::unreadable(path, error))?;
            self.batch(path, &batch)?;
        }
        if self.is_snapshot_whole {
            Ok(())
        } else {
            Err(AdoptionError::unreadable(path, "the snapshot is cut off"))
        }
    }

    fn segment(&mut self, path: &Path, content: Bytes, is_last: bool) -> Result<(), AdoptionError> {
        let mut iterator = batches(content.clone());
        loop {
            let position = iterator.position();
            let Some(next) = iterator.next() else { return Ok(()) };
            let batch = match next.and_then(|batch| batch.check_crc().map(|()| batch)) {
                Ok(batch) => batch,
                Err(error) => {
                    if is_last && is_torn_end(&content.slice(position..)) {
                        let (cut, file) = (content.len() - position, path.display());
                        tracing::warn!(
                            "{cut} bytes at the end of {file} are no whole batch and do not count"
                        );
                        return Ok(());
                    }
                    return Err(AdoptionError::unreadable(path, format!("at position {position}: {error}")));
                }
            };
            let header = &batch.header;
            if header.base_offset > self.log.end_offset {
                let why = format!(
                    "it goes on at offset {}, and what is before it ends at {}",
                    header.base_offset, self.log.end_offset
                );
                return Err(AdoptionError::unreadable(path, why));
            }
            if header.next_offset() <= self.log.end_offset {
                continue;
            }
            self.batch(path, &batch)?;
            self.log.end_offset = header.next_offset();
            self.log.leader_epoch = self.log.leader_epoch.max(header.partition_leader_epoch.0);
        }
    }

    fn batch(&mut self, path: &Path, batch: &Batch) -> Result<(), AdoptionError> {
        let unreadable = |error: &dyn std::fmt::Display| AdoptionError::unreadable(path, error.to_string());
        for record in batch.records().map_err(|error| unreadable(&error))? {
            let at = |why: &dyn std::fmt::Display| {
                unreadable(&format!("the record at offset {}: {why}", record.offset))
            };
            let value = record.value.clone().ok_or_else(|| at(&"it has no value"))?;
            if batch.header.is_control() {
                let kind = record
                    .key
                    .as_deref()
                    .and_then(|key| Some(i16::from_be_bytes(*key.get(2..)?.first_chunk()?)));
                self.control(kind, value).map_err(|why| at(&why))?;
            } else {
                let (record, _) = decode_metadata_record(value).map_err(|error| at(&error))?;
                self.record(record).map_err(|why| at(&why))?;
            }
        }
        Ok(())
    }

    fn control(&mut self, kind: Option<i16>, value: Bytes) -> Result<(), String> {
        match kind {
            Some(LEADER_CHANGE) => {
                let message: LeaderChangeMessage = decode(value)?;
                self.log.voters = message.voters.iter().map(|voter| voter.voter_id).collect();
            }
            Some(KRAFT_VERSION) => self.log.kraft_version = Some(decode(value)?),
            Some(VOTERS) => {
                let message: VotersRecord = decode(value)?;
                self.log.voters = message.voters.iter().map(|voter| voter.voter_id).collect();
                self.log.voters_record = Some(message);
            }
            Some(SNAPSHOT_HEADER) => self.is_snapshot_whole = false,
            Some(SNAPSHOT_FOOTER) => self.is_snapshot_whole = true,
            Some(kind) => return Err(format!("control records of kind {kind} are not known")),
            None => return Err("the key of a control record is too short".to_owned()),
        }
        Ok(())
    }

    fn record(&mut self, record: MetadataRecord) -> Result<(), String> {
        match record {
            MetadataRecord::BeginTransaction(_) if self.open_transaction.is_some() => {
                return Err("a change begins within another".to_owned());
            }
            MetadataRecord::BeginTransaction(_) => self.open_transaction = Some(Vec::new()),
            MetadataRecord::EndTransaction(_) => {
                let records = self.open_transaction.take().ok_or("a change ends that was not begun")?;
                self.log.records.extend(records);
            }
            MetadataRecord::AbortTransaction(_) => {
                self.open_transaction.take().ok_or("a change is given up that was not begun")?;
            }
            record => self.open_transaction.as_mut().unwrap_or(&mut self.log.records).push(record),
        }
        Ok(())
    }
}

/// KRaft's control records have their version as their own first field.
fn decode<M: Message>(value: Bytes) -> Result<M, String> {
    let version = value.first_chunk().map(|bytes| i16::from_be_bytes(*bytes)).ok_or("it is too short")?;
    M::decode(&mut Reader::new(value), version).map_err(|error| error.to_string())
}

/// Whether no whole batch stands behind what cannot be read, so that it is what a kill or a power cut left.
fn is_torn_end(rest: &Bytes) -> bool {
    let declared = rest.get(8..12).and_then(|size| Some(i32::from_be_bytes(*size.first_chunk()?)));
    let end = declared.and_then(|size| usize::try_from(size).ok()?.checked_add(12));
    // A length that makes no sense is the end too, if nothing but zeros follows.
    let next = end.filter(|end| *end > 12).unwrap_or(rest.len());
    let behind = rest.get(next..).unwrap_or_default();
    if end.is_some_and(|end| end > 12) {
        behind.is_empty()
    } else {
        rest.iter().all(|byte| *byte == 0) || rest.len() < 12
    }
}

impl AdoptionError {
    pub(crate) fn io(path: &Path, error: io::Error) -> AdoptionError {
        AdoptionError::Io { path: path.to_owned(), error }
    }

    pub(crate) fn unreadable(path: &Path, why: impl std::fmt::Display) -> AdoptionError {
        AdoptionError::Unreadable { path: path.to_owned(), why: why.to_string() }
    }
}

//! The way back: Apache Kafka's quorum log is made again from the image, so that Kafka 4.4 starts on the directory
//! and serves what Klamm wrote too.
//!
//! The log becomes one snapshot behind everything that was in it, without segments: Kafka begins an empty log at
//! the snapshot's end, as a replica that was sent a snapshot does (KIP-630). The order makes a release that was cut
//! short safe: until the identity files are Apache Kafka's, Klamm's metadata counts and the release can be done
//! again; when they are, the journal beside it says that it is only to be removed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use klamm_io::Disk;
use klamm_model::{LeaderEpoch, NodeId, Offset, TimestampMs, TopicPartition, Uuid};
use klamm_protocol::records::cluster_metadata::MetadataRecord;
use klamm_protocol::records::control::{SnapshotFooterRecord, SnapshotHeaderRecord};
use klamm_protocol::{Message, Writer, encode_metadata_record};
use klamm_records::{BatchBuilder, BatchSettings};
use klamm_storage::{LogStore, StorageError};

use super::AdoptionError;
use super::quorum_log::{self, QuorumLog};
use crate::image::{ConfigResource, Image};
use crate::image_records::records_of;

/// The journal: Klamm's metadata beside it was given back and counts no more, once no directory is Klamm's.
pub(super) const JOURNAL: &str = "releasing";
const JOURNAL_SAYS: &str = "\
This directory is being given back to Apache Kafka. If that was interrupted, run 'klamm release' again.
";

/// The topic id of the quorum log in every cluster of Kafka.
const QUORUM_TOPIC_ID: &str = "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ";

/// Kafka 4.4 does not start when a topic asks for smaller segments.
const SEGMENT_BYTES_MIN: i64 = 1 << 20;

/// How many records a batch of the snapshot takes; far from the 8 MiB that Kafka reads.
const RECORDS_PER_BATCH: usize = 500;

/// Why a directory is not given back.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The disk failed. Klamm's metadata still counts, or the release goes on when it is called again.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// An identity cannot be written, or a folder not be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// What Apache Kafka once left cannot be read.
    #[error(transparent)]
    Quorum(#[from] AdoptionError),
    /// A log directory is missing.
    #[error("{0}")]
    Refused(String),
}

/// Gives the store's directories back to Apache Kafka 4.4, with the metadata of `image`, to whose cluster they belong then.
/// The lines that it returns are for a person, and say what had to be changed.
///
/// # Errors
/// When a directory is missing or the disk fails.
pub fn release(
    store: &LogStore,
    image: &Image,
    disk: &dyn Disk,
    node: NodeId,
    now_ms: TimestampMs,
) -> Result<Vec<String>, ReleaseError> {
    check_directories(store, image, node)?;
    let log_dirs: Vec<PathBuf> = store.directory_ids().into_iter().map(|(path, _)| path).collect();
    let before = quorum_log::read(disk, &log_dirs)?.unwrap_or_default();
    let mut lines = Vec::new();
    let at_rest = at_rest(image, store, node, &mut lines)?;
    let end = before.end_offset.max(image.offset + 1);
    let epoch = before.leader_epoch + 1;
    let folder = quorum_folder(disk, &log_dirs)?;
    write_quorum_log(disk, &folder, &snapshot(&at_rest, &before, epoch, now_ms)?, end, epoch)
        .map_err(|error| ReleaseError::Io { path: folder.clone(), error })?;
    let dir = store.metadata_dir();
    let failed = |error| ReleaseError::Io { path: dir.clone(), error };
    disk.replace(&dir.join(JOURNAL), JOURNAL_SAYS.as_bytes()).map_err(failed)?;
    store.give_back(&image.cluster_id)?;
    remove_metadata(disk, &dir).map_err(failed)?;
    Ok(lines)
}

/// Ends a release that was cut short after the directories had become Apache Kafka's; false if there is none.
///
/// # Errors
/// When the disk fails.
pub fn resume_release(disk: &dyn Disk, metadata_dir: &Path) -> Result<bool, ReleaseError> {
    let failed = |error| ReleaseError::Io { path: metadata_dir.to_owned(), error };
    let exists = |path: &Path| disk.exists(path).map_err(failed);
    if !exists(metadata_dir)? {
        return Ok(false);
    }
    // The removal of the journal may have become durable before that of the folder.
    let is_empty = disk.read_dir(metadata_dir).map_err(failed)?.is_empty();
    if !is_empty && !exists(&metadata_dir.join(JOURNAL))? {
        return Ok(false);
    }
    remove_metadata(disk, metadata_dir).map_err(failed)?;
    Ok(true)
}

/// Apache Kafka takes any folder in a log directory for a partition's, and does not start if it is none. The
/// journal is the last that goes.
fn remove_metadata(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    for entry in disk.read_dir(dir)? {
        if entry.name != JOURNAL {
            disk.remove_file(&dir.join(&entry.name))?;
        }
    }
    disk.sync_dir(dir)?;
    disk.remove_dir_all(dir)?;
    dir.parent().map_or(Ok(()), |parent| disk.sync_dir(parent))
}

/// A directory that is left out would stay Klamm's, and its partitions would be empty in Apache Kafka.
fn check_directories(store: &LogStore, image: &Image, node: NodeId) -> Result<(), ReleaseError> {
    let given: Vec<Uuid> = store.directory_ids().into_iter().map(|(_, id)| id).collect();
    let registered = image.brokers.get(&node).map(|broker| broker.directories.clone()).unwrap_or_default();
    match registered.iter().find(|id| !given.contains(id)) {
        None => Ok(()),
        Some(missing) => Err(ReleaseError::Refused(format!(
            "the broker had {} log directories, and the one with directory.id={missing} was not named; name all of \
             them, in the order of log.dirs",
            registered.len()
        ))),
    }
}

/// The image as a broker leaves it that has stopped: fenced, leading nothing, in sync with itself.
fn at_rest(
    image: &Image,
    store: &LogStore,
    node: NodeId,
    lines: &mut Vec<String>,
) -> Result<Image, ReleaseError> {
    let mut image = image.clone();
    if let Some(broker) = image.brokers.get_mut(&node) {
        let broker = Arc::make_mut(broker);
        broker.fenced = true;
        broker.in_controlled_shutdown = false;
    }
    let folders = store.partition_folders()?;
    let directories: BTreeMap<TopicPartition, Uuid> =
        folders.into_iter().map(|folder| (folder.topic_partition, folder.directory_id)).collect();
    let ids: Vec<Uuid> = image.topics.keys().copied().collect();
    for id in ids {
        let Some(topic) = image.topics.get_mut(&id) else { continue };
        let topic = Arc::make_mut(topic);
        for (index, state) in (0..).zip(&mut topic.partitions) {
            state.leader = None;
            if let Some(directory) = directories.get(&TopicPartition::new(Arc::clone(&topic.name), index)) {
                state.directories = vec![*directory; state.replicas.len()];
            }
        }
    }
    let small: Vec<ConfigResource> = image
        .configs
        .iter()
        .filter(|(resource, configs)| {
            let bytes = configs.get("segment.bytes").and_then(|value| value.trim().parse::<i64>().ok());
            matches!(resource, ConfigResource::Topic(_))
                && bytes.is_some_and(|bytes| bytes < SEGMENT_BYTES_MIN)
        })
        .map(|(resource, _)| resource.clone())
        .collect();
    for resource in small {
        lines.push(format!(
            "segment.bytes of topic {} became {SEGMENT_BYTES_MIN}, the least that Kafka 4.4 starts with",
            resource.name()
        ));
        let configs = Arc::make_mut(image.configs.entry(resource).or_default());
        configs.insert("segment.bytes".to_owned(), SEGMENT_BYTES_MIN.to_string());
    }
    Ok(image)
}

/// The folder of the quorum log; in the first log directory where there was none.
fn quorum_folder(disk: &dyn Disk, log_dirs: &[PathBuf]) -> Result<PathBuf, ReleaseError> {
    for dir in log_dirs {
        let folder = dir.join(quorum_log::FOLDER);
        if disk.exists(&folder).map_err(|error| ReleaseError::Io { path: folder.clone(), error })? {
            return Ok(folder);
        }
    }
    Ok(log_dirs[0].join(quorum_log::FOLDER))
}

/// The bytes of a snapshot (KIP-630): a header, what the quorum says of itself, the records, a footer.
fn snapshot(
    image: &Image,
    before: &QuorumLog,
    epoch: i32,
    now_ms: TimestampMs,
) -> Result<Vec<u8>, ReleaseError> {
    let mut batches = Batches { epoch, now_ms, next_offset: 0, bytes: Vec::new() };
    let header = SnapshotHeaderRecord { version: 0, last_contained_log_timestamp: now_ms };
    batches.control(quorum_log::SNAPSHOT_HEADER, &header)?;
    if let Some(kraft_version) = &before.kraft_version {
        batches.control(quorum_log::KRAFT_VERSION, kraft_version)?;
    }
    if let Some(voters) = &before.voters_record {
        batches.control(quorum_log::VOTERS, voters)?;
    }
    let mut records = records_of(image);
    // Kafka reads the others by what this one says.
    let is_version = |record: &MetadataRecord| matches!(record, MetadataRecord::FeatureLevel(feature) if feature.name == "metadata.version");
    records.sort_by_key(|record| !is_version(record));
    records.chunks(RECORDS_PER_BATCH).try_for_each(|chunk| batches.data(chunk))?;
    batches.control(quorum_log::SNAPSHOT_FOOTER, &SnapshotFooterRecord { version: 0 })?;
    Ok(batches.bytes)
}

struct Batches {
    epoch: i32,
    now_ms: TimestampMs,
    next_offset: Offset,
    bytes: Vec<u8>,
}

impl Batches {
    fn control<M: Message>(&mut self, kind: i16, message: &M) -> Result<(), ReleaseError> {
        let mut writer = Writer::with_capacity(64);
        message.encode(&mut writer, 0).map_err(|error| unwritable(&error))?;
        let value = writer.finish().into_bytes();
        let key = [0i16.to_be_bytes(), kind.to_be_bytes()].concat();
        self.append(true, &[(Some(key.into()), value)]);
        Ok(())
    }

    fn data(&mut self, records: &[MetadataRecord]) -> Result<(), ReleaseError> {
        let encode = |record: &MetadataRecord| {
            let bytes = encode_metadata_record(record, *record.versions().end());
            bytes.map(|bytes| (None, bytes)).map_err(|error| unwritable(&error))
        };
        let records: Vec<(Option<Bytes>, Bytes)> = records.iter().map(encode).collect::<Result<_, _>>()?;
        self.append(false, &records);
        Ok(())
    }

    fn append(&mut self, control: bool, records: &[(Option<Bytes>, Bytes)]) {
        let mut builder = BatchBuilder::v2(BatchSettings {
            base_offset: self.next_offset,
            partition_leader_epoch: LeaderEpoch(self.epoch),
            control,
            ..BatchSettings::default()
        });
        for (key, value) in records {
            builder.append(self.now_ms, key.as_deref(), Some(value), &[]);
        }
        self.next_offset += records.len() as Offset;
        self.bytes.extend_from_slice(&builder.build());
    }
}

fn unwritable(error: &dyn std::fmt::Display) -> ReleaseError {
    ReleaseError::Refused(format!("a record cannot be written in Apache Kafka's form: {error}"))
}

/// Makes the folder hold the snapshot alone. The old log goes when the new snapshot is durable.
fn write_quorum_log(
    disk: &dyn Disk,
    folder: &Path,
    snapshot: &[u8],
    end: Offset,
    epoch: i32,
) -> io::Result<()> {
    if !disk.exists(folder)? {
        disk.create_dir_all(folder)?;
        folder.parent().map_or(Ok(()), |parent| disk.sync_dir(parent))?;
    }
    let name = format!("{end:020}-{epoch:010}{}", quorum_log::SNAPSHOT_SUFFIX);
    disk.replace(&folder.join(&name), snapshot)?;
    let id = folder.join("partition.metadata");
    if !disk.exists(&id)? {
        disk.replace(&id, QUORUM_TOPIC_ID.as_bytes())?;
    }
    for entry in disk.read_dir(folder)? {
        if !entry.is_dir && entry.name != name && entry.name != "partition.metadata" {
            disk.remove_file(&folder.join(&entry.name))?;
        }
    }
    disk.sync_dir(folder)
}

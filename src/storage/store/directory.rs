//! One log directory: its lock, its identity, its checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use klamm_io::{Disk, File};
use klamm_model::{TopicPartition, Uuid};
use parking_lot::{Mutex, MutexGuard};

use super::StoreSettings;
use super::meta_properties::{self, Keeper, MetaProperties};
use crate::checkpoint::{self, Offsets};
use crate::deletion::{DELETED_FOLDER_SUFFIX, FUTURE_FOLDER_SUFFIX};
use crate::error::{StorageError, StorageErrorKind};
use crate::health::DirectoryHealth;
use crate::small_files::read_if_there;

const LOCK_FILE: &str = ".lock";
const CLEAN_SHUTDOWN_FILE: &str = ".kafka_cleanshutdown";
const READ_MARK: &str = "read the mark of a clean stop";
/// The quorum log of Apache Kafka.
const KAFKAS_METADATA_FOLDER: &str = "__cluster_metadata-0";
/// What Apache Kafka 3.3 to 3.9 formats a directory with.
const KAFKAS_BOOTSTRAP_FILE: &str = "bootstrap.checkpoint";

/// A log directory that this process holds.
pub(super) struct LogDirectory {
    pub(super) path: PathBuf,
    pub(super) id: Uuid,
    pub(super) health: Arc<DirectoryHealth>,
    /// Held as long as the store lives. The file stays: to remove it would let two others lock at once, one
    /// the old file and one a new one.
    _lock: Arc<dyn File>,
    /// What `meta.properties` is to say, until it does.
    unwritten: Mutex<Option<MetaProperties>>,
    /// Which partitions the checkpoint files name.
    written: Mutex<Written>,
}

/// The right to write the checkpoint files of a directory.
pub(super) struct Checkpoints<'a> {
    path: &'a Path,
    written: MutexGuard<'a, Written>,
}

/// What a stop has left for the next start.
pub(super) struct Remembered {
    pub(super) was_clean: bool,
    pub(super) recovery_points: Offsets,
    pub(super) log_start_offsets: Offsets,
    pub(super) high_watermarks: Offsets,
    pub(super) cleaned_offsets: Offsets,
}

/// A folder in a log directory.
pub(super) enum Folder {
    /// Of a partition.
    Partition(TopicPartition, PathBuf),
    /// Of a partition that was deleted.
    Deleted(PathBuf),
    /// Of a partition that moves here from another log directory.
    Future(TopicPartition, PathBuf),
    /// Of something else that looks like a log: of another program's metadata, or stray.
    Ignored(PathBuf),
}

/// A directory that is locked, before its identity is settled.
pub(super) struct Locked {
    path: PathBuf,
    lock: Arc<dyn File>,
    pub(super) meta: Option<MetaProperties>,
}

impl Locked {
    /// Makes the directory if need be, locks it and reads who it belongs to.
    pub(super) fn new(disk: &dyn Disk, path: &Path) -> Result<Locked, StorageError> {
        let not_writable = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                let kind = StorageErrorKind::NotWritable(error.to_string());
                StorageError::new(path, "open the log directory", kind)
            }
            _ => StorageError::io(path, "open the log directory", &error),
        };
        disk.create_dir_all(path).map_err(not_writable)?;
        let lock = disk.lock(&path.join(LOCK_FILE)).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                StorageError::new(path, "lock the log directory", StorageErrorKind::Locked)
            }
            _ => not_writable(error),
        })?;
        let meta = MetaProperties::read(disk, path)?;
        if meta.is_none() {
            sync_ancestors(disk, path).map_err(not_writable)?;
        }
        Ok(Locked { path: path.to_owned(), lock, meta })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Of the states of all directories, that of this one.
    pub(super) fn health_among(&self, all: &[Arc<DirectoryHealth>]) -> Arc<DirectoryHealth> {
        let own = all.iter().find(|health| health.path() == self.path);
        own.expect("the state of each directory is kept").clone()
    }

    /// Whether Apache Kafka has left here what says which topics there are.
    pub(super) fn holds_kafkas_metadata(&self, disk: &dyn Disk) -> Result<bool, StorageError> {
        let keeper = self.meta.as_ref().map(|meta| meta.keeper);
        if keeper == Some(Keeper::KafkaWithZookeeper) {
            return Ok(true);
        }
        for name in [KAFKAS_METADATA_FOLDER, KAFKAS_BOOTSTRAP_FILE] {
            let path = self.path.join(name);
            if disk.exists(&path).map_err(|error| StorageError::io(&path, "look for", &error))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether there is what says which topics there are, and it is Klamm's.
    pub(super) fn holds_klamms_metadata(&self, disk: &dyn Disk) -> Result<bool, StorageError> {
        let path = self.path.join(super::METADATA_FOLDER);
        disk.exists(&path).map_err(|error| StorageError::io(&path, "look for", &error))
    }

    /// Refuses partitions of Apache Kafka whose metadata is not among the log directories.
    pub(super) fn check_unused(&self, disk: &dyn Disk) -> Result<(), StorageError> {
        let missing =
            "no __cluster_metadata-0; add the directory that holds it (metadata.log.dir) to log.dirs";
        check_no_partitions(disk, &self.path, missing)
    }

    /// Compares the identity with what is expected, or gives the directory one, with `new_id` if there is one. It is not
    /// written yet.
    pub(super) fn settle(
        self,
        settings: &StoreSettings,
        cluster_id: Option<&str>,
        new_id: Option<Uuid>,
        health: Arc<DirectoryHealth>,
    ) -> Result<LogDirectory, StorageError> {
        let Locked { path, lock, meta } = self;
        let file = path.join(meta_properties::FILE_NAME);
        let foreign = |what, found: String, expected: String| {
            let kind = StorageErrorKind::Foreign { what, found, expected };
            Err(StorageError::new(&file, "open the log directory", kind))
        };
        let has_cluster = |meta: &MetaProperties| meta.cluster_id.as_deref() == cluster_id;
        let is_settled = meta.as_ref().is_some_and(|meta| {
            meta.keeper == Keeper::Klamm && meta.directory_id.is_some() && has_cluster(meta)
        });
        let mut meta = match meta {
            Some(MetaProperties { cluster_id: Some(found), .. }) if Some(&*found) != cluster_id => {
                return foreign("cluster.id", found, cluster_id.unwrap_or("none").to_owned());
            }
            Some(meta) if meta.node_id != settings.node_id => {
                return foreign("node.id", meta.node_id.to_string(), settings.node_id.to_string());
            }
            Some(meta) => meta,
            None => {
                check_no_partitions(&*settings.disk, &path, "no meta.properties")?;
                MetaProperties {
                    keeper: Keeper::Klamm,
                    cluster_id: None,
                    node_id: settings.node_id,
                    directory_id: None,
                    others: Vec::new(),
                }
            }
        };
        meta.keeper = Keeper::Klamm;
        meta.cluster_id = cluster_id.map(str::to_owned);
        let id = *meta
            .directory_id
            .get_or_insert_with(|| new_id.unwrap_or_else(|| super::random_id(&*settings.random)));
        let unwritten = Mutex::new((!is_settled).then_some(meta));
        Ok(LogDirectory { path, id, health, _lock: lock, unwritten, written: Mutex::default() })
    }
}

/// Brings the names of a new log directory and of those above it to the disk. Whether this process made them, or
/// one before it that got no further, nobody can tell.
fn sync_ancestors(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    path.ancestors().filter_map(Path::parent).try_for_each(|parent| match disk.sync_dir(parent) {
        // It was there before: who may not read it cannot have made it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        result => result,
    })
}

/// Partitions without `meta.properties` were once part of a cluster; which one, nobody can tell.
fn check_no_partitions(disk: &dyn Disk, path: &Path, missing: &str) -> Result<(), StorageError> {
    let entries = disk.read_dir(path).map_err(|error| StorageError::io(path, "list", &error))?;
    match entries.iter().find(|e| e.is_dir && TopicPartition::from_folder_name(&e.name).is_some()) {
        None => Ok(()),
        Some(entry) => {
            let reason = format!("there is a partition ({}) but {missing}", entry.name);
            Err(StorageError::corrupt(path, "open the log directory", reason))
        }
    }
}

impl LogDirectory {
    /// Makes the directory Klamm's, if it is not yet.
    pub(super) fn write_identity(&self, disk: &dyn Disk) -> Result<(), StorageError> {
        let mut unwritten = self.unwritten.lock();
        if let Some(meta) = &*unwritten {
            meta.write(disk, &self.path)?;
            *unwritten = None;
        }
        Ok(())
    }

    /// Notes to which cluster the directory belongs, and writes it.
    pub(super) fn join_cluster(&self, disk: &dyn Disk, cluster_id: &str) -> Result<(), StorageError> {
        const JOIN: &str = "read the identity of the log directory to note its cluster";
        let mut unwritten = self.unwritten.lock();
        let known = match unwritten.clone() {
            Some(meta) => Some(meta),
            None => MetaProperties::read(disk, &self.path)?,
        };
        let meta = known.ok_or_else(|| StorageError::corrupt(&self.path, JOIN, "meta.properties is gone"))?;
        MetaProperties { cluster_id: Some(cluster_id.to_owned()), ..meta }.write(disk, &self.path)?;
        *unwritten = None;
        Ok(())
    }

    /// Makes the directory Apache Kafka's.
    pub(super) fn give_back(&self, disk: &dyn Disk, cluster_id: &str) -> Result<(), StorageError> {
        match MetaProperties::read(disk, &self.path)? {
            Some(meta) => {
                let (keeper, cluster_id) = (Keeper::KafkaWithKraft, Some(cluster_id.to_owned()));
                MetaProperties { keeper, cluster_id, ..meta }.write(disk, &self.path)
            }
            None => Ok(()),
        }
    }

    /// Reads what the last stop has left. The marker of a clean stop goes at once, and for good: if this
    /// start is interrupted, the next one must not trust it.
    pub(super) fn remembered(&self, disk: &dyn Disk) -> Result<Remembered, StorageError> {
        let marker = self.path.join(CLEAN_SHUTDOWN_FILE);
        let content = read_if_there(disk, &marker, READ_MARK)?;
        if content.is_some() {
            let removed = disk.remove_file(&marker).and_then(|()| disk.sync_dir(&self.path));
            removed.map_err(|error| StorageError::io(&marker, READ_MARK, &error))?;
        }
        let read = |name, loss| self.read_or_set_aside(disk, name, loss);
        let remembered = Remembered {
            was_clean: content.is_some(),
            recovery_points: read(
                checkpoint::RECOVERY_POINTS,
                "after an unclean stop all logs are checked from their start",
            )?,
            log_start_offsets: read(
                checkpoint::LOG_START_OFFSETS,
                "records that were deleted with DeleteRecords may be back",
            )?,
            high_watermarks: read(checkpoint::HIGH_WATERMARKS, "high watermarks are learned again")?,
            cleaned_offsets: self.cleaned_offsets(disk)?,
        };
        let all = [
            &remembered.recovery_points,
            &remembered.log_start_offsets,
            &remembered.high_watermarks,
            &remembered.cleaned_offsets,
        ];
        let named = all.into_iter().flatten().map(|(tp, _)| tp.clone());
        let mut written = self.written.lock();
        written.named = named.collect();
        if remembered.cleaned_offsets.is_empty() {
            // Where nothing was ever compacted there need not be a file that says so.
            written.files.insert(checkpoint::CLEANED_OFFSETS.to_owned(), Offsets::new());
        }
        drop(written);
        Ok(remembered)
    }

    /// Reads a checkpoint. Of one that makes no sense, or is of a later version, nothing is believed, as in Kafka; it
    /// is kept under another name, since it will be replaced.
    fn read_or_set_aside(&self, disk: &dyn Disk, name: &str, loss: &str) -> Result<Offsets, StorageError> {
        let path = self.path.join(name);
        let error = match checkpoint::read_offsets(disk, &path) {
            Err(error) if error.is_of_content() => error,
            result => return result,
        };
        let kept = self.path.join(format!("{name}.damaged"));
        disk.rename(&path, &kept)
            .and_then(|()| disk.sync_dir(&self.path))
            .map_err(|error| StorageError::io(&path, "set aside", &error))?;
        tracing::warn!(%error, kept = %kept.display(), "the checkpoint is set aside and begun anew: {loss}");
        Ok(Offsets::new())
    }

    /// Without this file all logs are compacted from their start again, which costs time and nothing else.
    fn cleaned_offsets(&self, disk: &dyn Disk) -> Result<Offsets, StorageError> {
        match checkpoint::read_offsets(disk, &self.path.join(checkpoint::CLEANED_OFFSETS)) {
            Err(error) if matches!(error.kind, StorageErrorKind::Corrupt(_)) => {
                tracing::warn!(%error, "compaction begins at the start of each log of this directory again");
                Ok(Offsets::new())
            }
            result => result,
        }
    }

    /// The folders, by name.
    pub(super) fn folders(&self, disk: &dyn Disk) -> Result<Vec<Folder>, StorageError> {
        let entries = disk.read_dir(&self.path);
        let entries = entries.map_err(|error| StorageError::io(&self.path, "list", &error))?;
        let folder = |name: &str| {
            let path = self.path.join(name);
            if name.ends_with(DELETED_FOLDER_SUFFIX) {
                return Some(Folder::Deleted(path));
            }
            match TopicPartition::from_folder_name(name) {
                // Apache Kafka's own quorum log is not ours to append to.
                Some(tp) if &*tp.topic == "__cluster_metadata" => Some(Folder::Ignored(path)),
                Some(tp) if klamm_model::topic_name::validate(&tp.topic).is_ok() => {
                    Some(Folder::Partition(tp, path))
                }
                Some(_) => Some(Folder::Ignored(path)),
                None if name.ends_with(FUTURE_FOLDER_SUFFIX) => match future_partition(name) {
                    Some(tp) => Some(Folder::Future(tp, path)),
                    None => Some(Folder::Ignored(path)),
                },
                None if name.ends_with("-stray") => Some(Folder::Ignored(path)),
                None => None,
            }
        };
        Ok(entries.iter().filter(|entry| entry.is_dir).filter_map(|entry| folder(&entry.name)).collect())
    }

    /// Takes the directory offline if its own identity is gone: then its file system was taken away, or it was
    /// removed, and what is made there would be lost when the real one comes back. A new directory has none until the node
    /// belongs to a cluster.
    pub(super) fn check_identity(&self, disk: &dyn Disk) {
        const CHECK: &str = "look for the identity of the log directory";
        let unwritten = self.unwritten.lock();
        if unwritten.is_some() {
            return;
        }
        let file = self.path.join(meta_properties::FILE_NAME);
        match disk.exists(&file) {
            Ok(true) => {}
            Ok(false) => self.health.fail(StorageError::corrupt(
                &file,
                CHECK,
                "the file is gone; was the directory removed, or its file system unmounted?",
            )),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotADirectory) => {
                self.health.fail(StorageError::io(&file, CHECK, &error));
            }
            // What breaks the device was seen on the way; the rest may pass.
            Err(_) => {}
        }
    }

    /// The checkpoint files, for one writer at a time. What is written must be gathered while it is held, or an
    /// older state could replace a newer one.
    pub(super) fn checkpoints(&self) -> Checkpoints<'_> {
        Checkpoints { path: &self.path, written: self.written.lock() }
    }

    /// Says that everything is on the disk.
    pub(super) fn mark_clean(&self, disk: &dyn Disk, broker_epoch: i64) -> Result<(), StorageError> {
        let marker = self.path.join(CLEAN_SHUTDOWN_FILE);
        let content = format!("{{\"version\":0,\"brokerEpoch\":{broker_epoch}}}");
        disk.replace(&marker, content.as_bytes())
            .map_err(|error| StorageError::io(&marker, "leave the mark of a clean stop", &error))
    }
}

/// The partition in `<topic>-<partition>.<32 hex digits>-future`. A name that had to be cut tells no partition.
fn future_partition(name: &str) -> Option<TopicPartition> {
    let (partition, hex) = name.strip_suffix(FUTURE_FOLDER_SUFFIX)?.rsplit_once('.')?;
    let is_hex = hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex || name.len() >= super::FOLDER_NAME_MAX {
        return None;
    }
    let partition = TopicPartition::from_folder_name(partition)?;
    klamm_model::topic_name::validate(&partition.topic).is_ok().then_some(partition)
}

/// What the checkpoint files of a directory say.
#[derive(Default)]
struct Written {
    /// Partitions of which a file says something, perhaps in an older state.
    named: BTreeSet<TopicPartition>,
    /// What this process has written, by the file's name.
    files: BTreeMap<String, Offsets>,
}

impl Checkpoints<'_> {
    /// Whether a file still says something about a partition.
    pub(super) fn name(&self, tp: &TopicPartition) -> bool {
        self.written.named.contains(tp)
    }

    /// Replaces one file, unless it says the same already: an idle broker leaves the disk alone.
    pub(super) fn write(
        &mut self,
        disk: &dyn Disk,
        name: &str,
        offsets: &Offsets,
    ) -> Result<(), StorageError> {
        if self.written.files.get(name) == Some(offsets) {
            return Ok(());
        }
        self.written.files.remove(name);
        self.written.named.extend(offsets.iter().map(|(tp, _)| tp.clone()));
        checkpoint::write_offsets(disk, &self.path.join(name), offsets)?;
        self.written.files.insert(name.to_owned(), offsets.clone());
        Ok(())
    }

    /// Replaces all files.
    pub(super) fn write_all(
        &mut self,
        disk: &dyn Disk,
        files: [(&str, &Offsets); 4],
    ) -> Result<(), StorageError> {
        files.iter().try_for_each(|(name, offsets)| self.write(disk, name, offsets))?;
        let named = files.iter().flat_map(|(_, offsets)| offsets.iter()).map(|(tp, _)| tp.clone());
        self.written.named = named.collect();
        Ok(())
    }
}

/// The epoch with which all directories were closed, if the last stop was clean. With several of them it counts only if
/// all were closed with it. What cannot be read is not known; whoever opens the logs finds out why.
pub(super) fn previous_broker_epoch(disk: &dyn Disk, directories: &[LogDirectory]) -> Option<i64> {
    let epoch_of = |directory: &LogDirectory| {
        let content = read_if_there(disk, &directory.path.join(CLEAN_SHUTDOWN_FILE), READ_MARK);
        content.ok().flatten().as_deref().and_then(broker_epoch)
    };
    let mut epochs = directories.iter().map(epoch_of);
    let first = epochs.next()?.filter(|epoch| *epoch >= 0)?;
    epochs.all(|epoch| epoch == Some(first)).then_some(first)
}

/// From `{"version":0,"brokerEpoch":22}`; older Kafka left the file empty or with a single 0.
fn broker_epoch(content: &[u8]) -> Option<i64> {
    let content = std::str::from_utf8(content).ok()?;
    let behind = content.split_once("\"brokerEpoch\"")?.1.trim_start().strip_prefix(':')?.trim_start();
    let end = behind.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(behind.len());
    behind[..end].parse().ok()
}

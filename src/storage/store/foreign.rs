//! Directories that Apache Kafka wrote, as whoever takes them over needs to see them.
//!
//! The switch is journalled by the identity files. Nothing of a directory is changed before its metadata was
//! understood and imported into the first directory; then the identities are written, that of the first
//! directory last. As long as none is Klamm's, the import is done again; as soon as one is, it was complete.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use klamm_io::{Disk, File, OpenMode};
use klamm_model::{LeaderEpoch, NodeId, ProducerId, TopicId, TopicPartition, Uuid};
use klamm_records::{BatchHeader, HEAD_LEN, peek_batch};

use super::LogStore;
use super::directory::{Folder, Locked};
use super::meta_properties::{Keeper, MetaProperties};
use crate::checkpoint::read_epochs;
use crate::error::StorageError;
use crate::{leader_epochs, partition_metadata, producer_snapshot};

/// A folder of a partition that was not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionFolder {
    /// What it holds, by its name.
    pub topic_partition: TopicPartition,
    /// Where it is.
    pub path: PathBuf,
    /// The log directory that holds it.
    pub directory_id: Uuid,
    /// The topic's id; missing in folders of Kafka before 2.8.
    pub topic_id: Option<TopicId>,
    /// The term of the last leader that appended, as far as the folder tells.
    pub leader_epoch: Option<LeaderEpoch>,
}

/// What is in a partition's folder, as its segments and producer snapshots tell without being recovered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FolderContents {
    /// The size of all segments in bytes.
    pub bytes: u64,
    /// The message formats (0, 1, 2) that segments begin with.
    pub formats: BTreeSet<i8>,
    /// The highest id of a producer that may still be writing.
    pub highest_producer_id: Option<ProducerId>,
}

/// Which node keeps a log directory, and with which program; `None` for a directory that is new.
///
/// # Errors
/// When the file cannot be read.
pub fn identity(disk: &dyn Disk, directory: &Path) -> Result<Option<(Keeper, NodeId)>, StorageError> {
    Ok(MetaProperties::read(disk, directory)?.map(|meta| (meta.keeper, meta.node_id)))
}

/// Who keeps the directories as a whole. Apache Kafka does if there is its metadata and no directory is Klamm's.
///
/// # Errors
/// When there are partitions that Apache Kafka's metadata would have to explain, and it is not there; or when it
/// may lie in a directory that cannot be used, for this reason.
pub(super) fn keeper(
    disk: &dyn Disk,
    directories: &[Locked],
    unusable: Option<&StorageError>,
) -> Result<Keeper, StorageError> {
    let keepers = || directories.iter().filter_map(|directory| Some(directory.meta.as_ref()?.keeper));
    if keepers().next().is_none() || keepers().any(|keeper| keeper == Keeper::Klamm) {
        return Ok(Keeper::Klamm);
    }
    if let Some(unusable) = unusable {
        return Err(unusable.clone());
    }
    for directory in directories {
        if directory.holds_kafkas_metadata(disk)? {
            let has_kraft = keepers().any(|keeper| keeper == Keeper::KafkaWithKraft);
            return Ok(if has_kraft { Keeper::KafkaWithKraft } else { Keeper::KafkaWithZookeeper });
        }
    }
    // Klamm did not always mark its directories; its metadata tells them apart.
    if !directories[0].holds_klamms_metadata(disk)? {
        directories.iter().try_for_each(|directory| directory.check_unused(disk))?;
    }
    Ok(Keeper::Klamm)
}

impl LogStore {
    /// Who kept the directories when they were opened.
    pub fn keeper(&self) -> Keeper {
        self.keeper
    }

    /// Makes all directories Klamm's, so that Apache Kafka does not start on them any more. The one that holds
    /// the metadata is the last.
    pub fn take_over(&self) -> Result<(), StorageError> {
        let disk = &*self.shared.environment.disk;
        self.shared.directories.iter().rev().try_for_each(|directory| directory.write_identity(disk))
    }

    /// Makes all directories Apache Kafka's, of KRaft, so that it starts on them.
    pub fn give_back(&self, cluster_id: &str) -> Result<(), StorageError> {
        let disk = &*self.shared.environment.disk;
        self.shared.directories.iter().try_for_each(|directory| directory.give_back(disk, cluster_id))
    }

    /// All folders of partitions, opened or not, in the order of `log.dirs` and by name.
    ///
    /// # Errors
    /// When a directory or an id cannot be read.
    pub fn partition_folders(&self) -> Result<Vec<PartitionFolder>, StorageError> {
        let disk = &*self.shared.environment.disk;
        let mut found = Vec::new();
        for directory in &self.shared.directories {
            for folder in directory.folders(disk)? {
                if let Folder::Partition(topic_partition, path) = folder {
                    let epochs = read_epochs(disk, &path.join(leader_epochs::FILE_NAME))?;
                    found.push(PartitionFolder {
                        topic_id: partition_metadata::read(disk, &path)?,
                        leader_epoch: epochs.and_then(|epochs| Some(epochs.latest()?.epoch)),
                        directory_id: directory.id,
                        topic_partition,
                        path,
                    });
                }
            }
        }
        Ok(found)
    }

    /// Looks into a folder that was not opened.
    ///
    /// # Errors
    /// When the folder or a file in it cannot be read.
    pub fn inspect(&self, folder: &PartitionFolder) -> Result<FolderContents, StorageError> {
        let disk = &*self.shared.environment.disk;
        let entries = disk.read_dir(&folder.path);
        let entries = entries.map_err(|error| StorageError::io(&folder.path, "list", &error))?;
        let named = |suffix: &'static str| {
            entries.iter().filter(move |entry| !entry.is_dir && entry.name.ends_with(suffix))
        };
        let mut contents = FolderContents::default();
        for entry in named(producer_snapshot::SUFFIX) {
            let path = folder.path.join(&entry.name);
            let bytes = disk.read(&path).map_err(|error| StorageError::io(&path, "read", &error))?;
            // One that is damaged is made anew by recovery.
            let states = producer_snapshot::decode(&bytes).unwrap_or_default();
            let highest = states.iter().map(|state| state.id).max();
            contents.highest_producer_id = contents.highest_producer_id.max(highest);
        }
        let segments: Vec<PathBuf> = named(".log").map(|entry| folder.path.join(&entry.name)).collect();
        for path in &segments {
            let is_last = segments.last() == Some(path);
            inspect_segment(disk, path, is_last, &mut contents)
                .map_err(|error| StorageError::io(path, "look through the segment", &error))?;
        }
        Ok(contents)
    }
}

/// Only the last segment may hold producers that no snapshot has; of the others the first batch is enough.
fn inspect_segment(
    disk: &dyn Disk,
    path: &Path,
    is_last: bool,
    contents: &mut FolderContents,
) -> std::io::Result<()> {
    let file = disk.open(path, OpenMode::Read)?;
    let len = file.len()?;
    contents.bytes += len;
    let mut position = 0;
    while let Some(header) = batch_at(&*file, position)? {
        if position == 0 {
            contents.formats.insert(header.magic);
        }
        if !is_last {
            break;
        }
        let producer = Some(header.producer_id).filter(|id| *id != ProducerId::NONE);
        contents.highest_producer_id = contents.highest_producer_id.max(producer);
        position += header.size as u64;
    }
    Ok(())
}

/// The head of the batch at a position; `None` at the end and where there is no batch any more.
fn batch_at(file: &dyn File, position: u64) -> std::io::Result<Option<BatchHeader>> {
    let mut head = [0; HEAD_LEN];
    let mut filled = 0;
    while filled < HEAD_LEN {
        match file.read_at(&mut head[filled..], position + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(peek_batch(&head[..filled]).ok().flatten().filter(|header| header.size > 0))
}

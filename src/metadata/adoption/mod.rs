//! Taking over a directory that a single Apache Kafka node wrote.
//!
//! [`Adoption::plan`] reads everything and writes nothing; what it cannot take over it refuses with a word that
//! says why. [`Adoption::write`] imports the metadata. The store's identity files make the switch
//! (`LogStore::take_over`); until then the import is done again from the start, and a journal in the metadata's
//! folder tells what an import left from what a cluster lives on.

mod alone;
mod checks;
mod folders;
mod quorum_log;
mod release;

mod report;
mod zookeeper;

use std::io;
use std::path::{Path, PathBuf};

use klamm_io::{Disk, Random};
use klamm_model::{NodeId, Uuid};
use klamm_protocol::records::cluster_metadata::MetadataRecord;
use klamm_storage::{Keeper, LogStore, StorageError};

use crate::apply::apply_to;
use crate::controller::TopicDefaults;
use crate::image::Image;
use crate::quorum::import::import;

pub use alone::left_alone;
use quorum_log::QuorumLog;
pub use release::{ReleaseError, release, resume_release};

/// The journal: while it is there, the metadata beside it is an import that may be done again.
const JOURNAL: &str = "adopting";
const JOURNAL_SAYS: &str = "\
The metadata in this directory is being imported from Apache Kafka's. If that was interrupted, the next start of
Klamm does it again.
";

/// Why a directory of Apache Kafka is not taken over. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum AdoptionError {
    /// A file cannot be read.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A partition's folder cannot be looked into.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A file of the metadata is not what it should be.
    #[error("Apache Kafka's metadata cannot be read from {}: {why}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// What is there cannot be taken over.
    #[error("this directory of Apache Kafka cannot be taken over: {0}")]
    Refused(String),
}

/// What the one who starts a node decided about the directory.
pub struct AdoptionSettings<'a> {
    /// `node.id`.
    pub node_id: NodeId,
    /// What topics get whose settings stood in ZooKeeper.
    pub defaults: &'a TopicDefaults,
    /// Whether to go on although access control entries would not be enforced.
    pub ignores_access_control: bool,
    /// Files.
    pub disk: &'a dyn Disk,
    /// Topic ids come from here, where there are none yet.
    pub random: &'a dyn Random,
}

/// A takeover that was understood, and not begun.
#[derive(Debug)]
pub struct Adoption {
    image: Image,
    report: Vec<String>,
    warnings: Vec<String>,
    has_unknown_folders: bool,
    is_after_release: bool,
}

impl Adoption {
    /// Reads what Apache Kafka left in the store's directories.
    ///
    /// # Errors
    /// When it cannot be read or cannot be taken over. Nothing was written.
    pub fn plan(store: &LogStore, settings: &AdoptionSettings<'_>) -> Result<Adoption, AdoptionError> {
        check_no_metadata_of_klamm(settings.disk, &store.metadata_dir())?;
        let found = folders::Folders::of(store)?;
        match store.keeper() {
            Keeper::KafkaWithZookeeper => zookeeper::plan(store, settings, &found),
            Keeper::KafkaWithKraft | Keeper::Klamm => plan_kraft(store, settings, &found),
        }
    }

    /// What was found, in lines for a person.
    pub fn report(&self) -> &[String] {
        &self.report
    }

    /// What whoever runs the node has to know or do.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether the directories are as a release left them: Apache Kafka did not run on them since.
    pub fn is_after_release(&self) -> bool {
        self.is_after_release
    }

    /// Whether there are folders of partitions that no topic needs. They are kept.
    pub fn has_unknown_folders(&self) -> bool {
        self.has_unknown_folders
    }

    /// The metadata as it was found.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Writes the metadata to `dir`, in place of an earlier attempt.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn write(&self, disk: &dyn Disk, dir: &Path, node: NodeId, directory_id: Uuid) -> io::Result<()> {
        if !disk.exists(dir)? {
            disk.create_dir_all(dir)?;
            dir.parent().map_or(Ok(()), |parent| disk.sync_dir(parent))?;
        }
        disk.replace(&dir.join(JOURNAL), JOURNAL_SAYS.as_bytes())?;
        import(disk, dir, node, directory_id, &self.image)
    }

    /// Ends the journals, once the directories are Klamm's. To be called at each start, as a takeover or a release
    /// may have been cut short.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn finish(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        for journal in [dir.join(JOURNAL), dir.join(release::JOURNAL)] {
            if disk.exists(&journal)? {
                disk.remove_file(&journal)?;
                disk.sync_dir(dir)?;
            }
        }
        Ok(())
    }
}

/// If somebody put Apache Kafka's `meta.properties` back by hand, what Klamm's metadata says would be lost with a
/// second import.
fn check_no_metadata_of_klamm(disk: &dyn Disk, dir: &Path) -> Result<(), AdoptionError> {
    let exists = |path: &Path| disk.exists(path).map_err(|error| AdoptionError::io(path, error));
    if !exists(dir)? || exists(&dir.join(JOURNAL))? {
        return Ok(());
    }
    if exists(&dir.join(release::JOURNAL))? {
        let why = "it was being given back to Apache Kafka, and that was cut short; run 'klamm release' again first";
        return Err(AdoptionError::Refused(why.to_owned()));
    }
    let entries = disk.read_dir(dir).map_err(|error| AdoptionError::io(dir, error))?;
    if entries.iter().all(|entry| entry.name.ends_with(".tmp")) {
        return Ok(());
    }
    Err(AdoptionError::Refused(format!(
        "Klamm's own metadata is there too, in {}. Move that folder away to take over what Apache Kafka left, or put \
         Klamm's meta.properties back",
        dir.display()
    )))
}

fn plan_kraft(
    store: &LogStore,
    settings: &AdoptionSettings<'_>,
    found: &folders::Folders,
) -> Result<Adoption, AdoptionError> {
    let log_dirs: Vec<PathBuf> = store.directory_ids().into_iter().map(|(path, _)| path).collect();
    let Some(log) = quorum_log::read(settings.disk, &log_dirs)? else {
        let why = "its metadata (__cluster_metadata-0) is in none of log.dirs; add the directory of metadata.log.dir";
        return Err(AdoptionError::Refused(why.to_owned()));
    };
    checks::check_voters(&log, settings.node_id)?;
    let mut image = image_of(store.cluster_id(), &log)?;
    checks::check(&image, store, settings, found)?;
    settle_partitions(&mut image, settings.node_id);
    let (report, warnings) = report::kraft(&image, &log, found);
    let has_unknown_folders = !found.unknown_to(&image).is_empty();
    // Apache Kafka always has a segment, and a release leaves none.
    let is_after_release = !log.has_segments && log.end_offset > 0;
    Ok(Adoption { image, report, warnings, has_unknown_folders, is_after_release })
}

/// The image that the records make. Its offset is that of the last record, so that Klamm's log goes on there.
fn image_of(cluster_id: &str, log: &QuorumLog) -> Result<Image, AdoptionError> {
    let mut image = Image::empty(cluster_id);
    let is_partition = |record: &MetadataRecord| matches!(record, MetadataRecord::Partition(_));
    for run in log.records.chunk_by(|one, other| is_partition(one) && is_partition(other)) {
        let mut run: Vec<&MetadataRecord> = run.iter().collect();
        // A snapshot names the partitions of a topic in any order.
        run.sort_by_key(|record| match record {
            MetadataRecord::Partition(partition) => (partition.topic_id, partition.partition_id),
            _ => (Uuid::ZERO, -1),
        });
        for record in run {
            apply_to(&mut image, record);
            check_is_applied(&image, record)?;
        }
    }
    image.offset = (log.end_offset - 1).max(1);
    Ok(image)
}

/// A partition that the image has no place for would be lost.
fn check_is_applied(image: &Image, record: &MetadataRecord) -> Result<(), AdoptionError> {
    let MetadataRecord::Partition(partition) = record else { return Ok(()) };
    let (topic, index) = (image.topic(partition.topic_id), partition.partition_id);
    match topic {
        Some(topic) if topic.partition(index).is_some() => Ok(()),
        Some(topic) => Err(AdoptionError::Refused(format!(
            "there is partition {index} of topic {}, but not the one before it",
            topic.name
        ))),
        None => Err(AdoptionError::Refused(format!(
            "there is partition {index} of a topic that is not there, {}",
            partition.topic_id
        ))),
    }
}

/// The only replica has all that there is. Apache Kafka 4 takes it out of the ISR when it stops, and remembers it
/// as eligible (KIP-966).
fn settle_partitions(image: &mut Image, node: NodeId) {
    let ids: Vec<Uuid> = image.topics.keys().copied().collect();
    for id in ids {
        let Some(topic) = image.topics.get_mut(&id) else { continue };
        for state in &mut std::sync::Arc::make_mut(topic).partitions {
            state.isr = vec![node];
            state.eligible_leaders.clear();
            state.last_known_eligible_leaders.clear();
        }
    }
}

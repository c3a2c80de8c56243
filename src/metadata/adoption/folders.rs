//! The folders of partitions that lie in the log directories.

use std::collections::{BTreeMap, BTreeSet};

use klamm_model::{ProducerId, TopicPartition};
use klamm_storage::{LogStore, PartitionFolder};

use super::AdoptionError;
use crate::image::Image;

/// All folders, and what is in them as a whole.
pub(super) struct Folders {
    pub(super) by_partition: BTreeMap<TopicPartition, PartitionFolder>,
    pub(super) bytes: u64,
    pub(super) formats: BTreeSet<i8>,
    pub(super) highest_producer_id: Option<ProducerId>,
}

impl Folders {
    pub(super) fn of(store: &LogStore) -> Result<Folders, AdoptionError> {
        let mut folders = Folders {
            by_partition: BTreeMap::new(),
            bytes: 0,
            formats: BTreeSet::new(),
            highest_producer_id: None,
        };
        for folder in store.partition_folders()? {
            let contents = store.inspect(&folder)?;
            folders.bytes += contents.bytes;
            folders.formats.extend(contents.formats);
            folders.highest_producer_id = folders.highest_producer_id.max(contents.highest_producer_id);
            let name = folder.topic_partition.clone();
            let path = folder.path.clone();
            if let Some(twin) = folders.by_partition.insert(name, folder) {
                return Err(AdoptionError::Refused(format!(
                    "{} is there twice, in {} and in {}; move the one that does not count away",
                    twin.topic_partition,
                    twin.path.display(),
                    path.display()
                )));
            }
        }
        Ok(folders)
    }

    /// Folders that no topic of the image needs.
    pub(super) fn unknown_to(&self, image: &Image) -> Vec<&PartitionFolder> {
        self.by_partition
            .values()
            .filter(|folder| image.partition(&folder.topic_partition).is_none())
            .collect()
    }
}

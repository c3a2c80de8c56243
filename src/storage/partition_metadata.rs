//! `partition.metadata`: which topic a folder belongs to, beyond its name (KIP-516).

use std::path::Path;

use klamm_io::Disk;
use klamm_model::TopicId;

use crate::error::StorageError;
use crate::small_files::Fields;

pub(crate) const FILE_NAME: &str = "partition.metadata";

const READ: &str = "read the topic id";
const VERSION: i32 = 0;

/// The bytes of the file. Kafka ends it without a newline.
pub(crate) fn content(topic_id: TopicId) -> String {
    format!("version: {VERSION}\ntopic_id: {topic_id}")
}

/// Reads the id; `None` if there is no file, as in folders of Kafka 2.8 and older.
pub(crate) fn read(disk: &dyn Disk, directory: &Path) -> Result<Option<TopicId>, StorageError> {
    let path = directory.join(FILE_NAME);
    let Some(fields) = Fields::read(disk, &path, READ)? else { return Ok(None) };
    let corrupt = |reason| {
        let advice = "the lines \"version: 0\" and \"topic_id: <id>\" were expected; restore it, or remove it to take \
                      the folder for that of the topic of its name";
        StorageError::corrupt(&path, READ, format!("{reason}; {advice}"))
    };
    match fields.version() {
        Some(VERSION) => {}
        Some(found) => return Err(StorageError::unknown_version(&path, READ, found, VERSION)),
        None => return Err(corrupt("the file holds no version")),
    }
    let id = fields.get("topic_id").and_then(|id| id.parse::<TopicId>().ok()).filter(|id| !id.is_zero());
    id.map(Some).ok_or_else(|| corrupt("the file holds no topic id"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use klamm_testing::SimulatedDisk;

    fn read_content(content: &str) -> Result<Option<TopicId>, StorageError> {
        let disk = SimulatedDisk::new(1);
        disk.replace(&Path::new("/").join(FILE_NAME), content.as_bytes()).unwrap();
        read(&disk, Path::new("/"))
    }

    #[test]
    fn the_id_reads_back_in_kafkas_own_bytes() {
        let id: TopicId = "kTZQNnSOR7Snv9JKUBFnzA".parse().unwrap();
        assert_eq!(content(id), "version: 0\ntopic_id: kTZQNnSOR7Snv9JKUBFnzA");
        assert_eq!(read_content(&content(id)).unwrap(), Some(id));
        assert_eq!(read(&SimulatedDisk::new(1), Path::new("/")).unwrap(), None);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(read_content("version: 1\ntopic_id: kTZQNnSOR7Snv9JKUBFnzA").is_err());
        assert!(read_content("version: 0\ntopic_id: kTZ").is_err());
        assert!(read_content("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA").is_err());
        assert!(read_content("topic_id").is_err());
        assert!(read_content("\0\0\0").is_err());
    }
}

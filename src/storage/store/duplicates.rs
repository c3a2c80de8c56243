//! A partition whose folder stands in several log directories.
//!
//! The last steps of a move are two renames in two directories, and a crash, or a device that fails, can come
//! between them. So before the first one the copy gets a mark that says which directory's folder it replaces, and
//! it has everything by then. Each mark has a number, and the highest one tells the truth. Folders without such a
//! mark were put there by somebody else: nobody can tell which is the right one, and none is touched.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use klamm_io::Disk;
use klamm_model::{TopicPartition, Uuid};

use crate::error::StorageError;
use crate::small_files::Fields;

/// The mark's file, in the partition's folder. Apache Kafka does not look at it.
const FILE_NAME: &str = "partition.moved";
const VERSION: i32 = 0;
const READ: &str = "read which folder a move replaces";

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    /// Of several marks the highest counts.
    pub(super) number: u64,
    /// The log directory whose folder of this partition is replaced by this one.
    pub(super) replaces: Uuid,
}

impl Mark {
    /// Reads the mark of a folder, if there is one.
    pub(super) fn read(disk: &dyn Disk, folder: &Path) -> Result<Option<Mark>, StorageError> {
        let path = folder.join(FILE_NAME);
        let Some(fields) = Fields::read(disk, &path, READ)? else { return Ok(None) };
        match fields.version() {
            Some(VERSION) => {}
            Some(found) => return Err(StorageError::unknown_version(&path, READ, found, VERSION)),
            None => return Err(StorageError::corrupt(&path, READ, "the file holds no version")),
        }
        let number = fields.get("number").and_then(|number| number.parse().ok());
        let replaces = fields.get("replaces").and_then(|id| id.parse().ok());
        let mark = number.zip(replaces).map(|(number, replaces)| Mark { number, replaces });
        mark.map(Some).ok_or_else(|| StorageError::corrupt(&path, READ, "the file names no directory"))
    }

    /// Puts the mark into a folder; it is on the disk when this returns.
    pub(super) fn write(&self, disk: &dyn Disk, folder: &Path) -> Result<(), StorageError> {
        let path = folder.join(FILE_NAME);
        let content = format!("version: {VERSION}\nnumber: {}\nreplaces: {}", self.number, self.replaces);
        disk.replace(&path, content.as_bytes())
            .map_err(|error| StorageError::io(&path, "write which folder a move replaces", &error))
    }

    /// Takes the mark away when it says nothing any more. Should that fail, it does no harm.
    pub(super) fn remove(disk: &dyn Disk, folder: &Path) {
        let path = folder.join(FILE_NAME);
        if let Err(error) = crate::deletion::remove_if_there(disk, &path) {
            tracing::debug!(%error, "the mark of a move stays");
        }
    }
}

/// Of the folders of one partition, the one that replaces all others; `None` if the marks do not say so.
pub(super) fn winner(folders: &[(Uuid, Option<Mark>)]) -> Option<usize> {
    let marked = folders.iter().enumerate().filter_map(|(index, (_, mark))| Some(((*mark)?, index)));
    let (mark, index) = marked.max()?;
    let is_replaced = |(other, (directory, _)): (usize, &(Uuid, Option<Mark>))| {
        other == index || *directory == mark.replaces
    };
    folders.iter().enumerate().all(is_replaced).then_some(index)
}

/// Groups folders by their partition, in order.
pub(super) fn by_partition<T>(
    folders: Vec<T>,
    name: impl Fn(&T) -> &TopicPartition,
) -> impl Iterator<Item = (TopicPartition, Vec<T>)> {
    let mut groups: BTreeMap<TopicPartition, Vec<T>> = BTreeMap::new();
    for folder in folders {
        let name = name(&folder).clone();
        groups.entry(name).or_default().push(folder);
    }
    groups.into_iter()
}

/// What is said of a partition of which nobody can tell where it stands.
pub(super) fn undecided(folders: &[PathBuf]) -> StorageError {
    let others: Vec<String> = folders[1..].iter().map(|folder| folder.display().to_string()).collect();
    let reason = format!(
        "the partition also stands in {}, and nothing says which is the right one; move the wrong one out of its log \
         directory and start again",
        others.join(" and ")
    );
    StorageError::corrupt(&folders[0], "open", reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use klamm_testing::SimulatedDisk;

    const ONE: Uuid = Uuid([1; 16]);
    const OTHER: Uuid = Uuid([2; 16]);

    fn mark(number: u64, replaces: Uuid) -> Option<Mark> {
        Some(Mark { number, replaces })
    }

    #[test]
    fn a_mark_reads_back_and_nonsense_is_refused() {
        let disk = SimulatedDisk::new(1);
        let folder = Path::new("/logs/t-0");
        disk.create_dir_all(folder).unwrap();
        assert_eq!(Mark::read(&disk, folder).unwrap(), None);
        let written = Mark { number: 7, replaces: OTHER };
        written.write(&disk, folder).unwrap();
        assert_eq!(Mark::read(&disk, folder).unwrap(), Some(written));
        for content in
            ["", "version: 1\nnumber: 1\nreplaces: AgICAgICAgICAgICAgICAg", "version: 0\nnumber: 1"]
        {
            disk.replace(&folder.join(FILE_NAME), content.as_bytes()).unwrap();
            assert!(Mark::read(&disk, folder).is_err(), "{content:?}");
        }
        Mark::remove(&disk, folder);
        assert_eq!(Mark::read(&disk, folder).unwrap(), None);
    }

    /// The wrong choice loses what was acknowledged since the move, so a choice needs a mark that is beyond doubt.
    #[test]
    fn the_highest_mark_decides_and_without_one_nobody_does() {
        for (folders, expected) in [
            (vec![(ONE, None), (OTHER, None)], None),
            (vec![(ONE, None), (OTHER, mark(1, ONE))], Some(1)),
            (vec![(ONE, mark(1, OTHER)), (OTHER, None)], Some(0)),
            // A move that was taken back.
            (vec![(ONE, mark(2, OTHER)), (OTHER, mark(1, ONE))], Some(0)),
            // A mark about a third directory says nothing of these two.
            (vec![(ONE, None), (OTHER, mark(1, Uuid([3; 16])))], None),
        ] {
            assert_eq!(winner(&folders), expected, "{folders:?}");
        }
    }
}

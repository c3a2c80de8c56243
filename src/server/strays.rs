//! Logs that belong to no topic of the cluster: what a deletion left that was cut short, or what was there
//! before the cluster was.
//!
//! The first are deleted at the next start, or they would fill the disk for ever. The second are somebody's
//! data: the metadata was lost with its directory, or the directories are those of an Apache Kafka broker. A
//! topic's id cannot tell the two apart, but their age can: if there are folders when the metadata begins, a
//! mark is left beside the metadata, and while it is there nothing is deleted.

use std::io;
use std::path::{Path, PathBuf};

use klamm_io::{Disk, Entry};
use klamm_metadata::Image;
use klamm_model::NodeId;
use klamm_storage::LogStore;

/// The mark, in the metadata's directory.
const LOGS_ARE_OLDER: &str = "logs-are-older";

const WHAT_THE_MARK_SAYS: &str = "\
There were folders in the log directories when the metadata in this directory began, so logs of topics that it
does not know are kept. Once they have been moved away by hand, this file can be removed.
";

/// A directory that could not be looked through.
#[derive(Debug, thiserror::Error)]
#[error("cannot look for logs that no topic needs: {}: {error}", .path.display())]
pub struct LookError {
    path: PathBuf,
    error: io::Error,
}

/// Whether every log in these directories was made under this metadata, so that one whose topic is unknown is
/// known to be deleted. To be asked before the metadata is opened, which may be its beginning.
pub(crate) fn may_be_deleted(
    disk: &dyn Disk,
    log_dirs: &[PathBuf],
    metadata_dir: &Path,
) -> Result<bool, LookError> {
    let failed = |path: &Path, error| LookError { path: path.to_owned(), error };
    let list = |path: &Path| disk.read_dir(path).map_err(|error| failed(path, error));
    let exists = |path: &Path| disk.exists(path).map_err(|error| failed(path, error));
    let mark = metadata_dir.join(LOGS_ARE_OLDER);
    if exists(&mark)? {
        return Ok(false);
    }
    if exists(metadata_dir)? && !list(metadata_dir)?.is_empty() {
        return Ok(true);
    }
    let is_other = |dir: &Path, entry: &Entry| entry.is_dir && dir.join(&entry.name) != metadata_dir;
    for dir in log_dirs {
        if list(dir)?.iter().any(|entry| is_other(dir, entry)) {
            let parent = metadata_dir.parent().unwrap_or(metadata_dir);
            disk.create_dir_all(metadata_dir)
                .and_then(|()| disk.sync_dir(parent))
                .and_then(|()| keep(disk, metadata_dir))
                .map_err(|error| failed(&mark, error))?;
            return Ok(false);
        }
    }
    Ok(true)
}

/// Leaves the mark: of the logs that the metadata in this directory does not know, none is deleted.
pub(crate) fn keep(disk: &dyn Disk, metadata_dir: &Path) -> io::Result<()> {
    disk.replace(&metadata_dir.join(LOGS_ARE_OLDER), WHAT_THE_MARK_SAYS.as_bytes())
}

/// Deletes the logs of topics that were deleted, and of partitions that were moved to other nodes, if they may be
/// deleted, and tells of those that stay.
pub(crate) fn clear(store: &LogStore, node: NodeId, image: &Image, may_be_deleted: bool) {
    let opened = store.logs().into_iter();
    let opened = opened.map(|log| (log.topic_partition().clone(), log.dir(), log.topic_id()));
    let unchecked = store.unchecked().into_iter();
    let unchecked = unchecked.map(|log| (log.topic_partition, log.dir, log.topic_id));
    for (name, dir, id) in opened.chain(unchecked) {
        let id = id.filter(|id| !id.is_zero());
        let topic = id.map_or_else(|| image.topic_by_name(&name.topic), |id| image.topic(id));
        let state = topic.and_then(|topic| topic.partition(name.partition));
        let whose = match (topic, state) {
            (None, _) => "a topic that the cluster does not know",
            (Some(_), Some(state)) if !state.replicas.contains(&node) => "a partition that is on other nodes",
            _ => continue,
        };
        let dir = dir.display();
        if id.is_none() || !may_be_deleted {
            tracing::warn!("{dir} belongs to {whose}; it is kept, but not served");
            continue;
        }
        match store.delete(&name) {
            Ok(_) => tracing::info!("deleted {dir}, which belonged to {whose}"),
            Err(error) => tracing::error!("{dir}, which belongs to {whose}, was not deleted: {error}"),
        }
    }
}

#[cfg(test)]
mod tests;

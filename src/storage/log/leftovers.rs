//! What a crash can leave in a partition's folder, put in order before the log is opened.

use std::collections::BTreeSet;
use std::path::Path;

use klamm_io::Disk;
use klamm_model::Offset;

use crate::deletion::{DELETED_SUFFIX, remove_if_there};
use crate::error::StorageError;
use crate::producer_snapshot;
use crate::segment::{
    CLEANED_SUFFIX, LOG_SUFFIX, OFFSET_INDEX_SUFFIX, SWAP_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX,
};
use crate::walk::Walk;

/// The files of a folder that belong to segments.
#[derive(Debug, Default)]
pub(super) struct Folder {
    /// Base offsets of the segments.
    pub(super) segments: BTreeSet<Offset>,
    /// Base offsets with an offset index.
    pub(super) offset_indexes: BTreeSet<Offset>,
    /// Base offsets with a time index.
    pub(super) time_indexes: BTreeSet<Offset>,
    /// Offsets of producer snapshots.
    pub(super) snapshots: BTreeSet<Offset>,
}

/// Removes what is half deleted or half made, completes the replacement of segments that a cleaner had
/// decided, and lists what is there then.
pub(super) fn put_in_order(disk: &dyn Disk, directory: &Path) -> Result<Folder, StorageError> {
    let mut names = list(disk, directory)?;
    if names.iter().any(|name| has_suffix(name, DELETED_SUFFIX)) {
        remove(disk, directory, &names, |name| has_suffix(name, DELETED_SUFFIX))?;
    }
    if names.iter().any(|name| has_suffix(name, CLEANED_SUFFIX) || has_suffix(name, SWAP_SUFFIX)) {
        finish_swaps(disk, directory, &names)?;
        names = list(disk, directory)?;
    }
    let mut folder = Folder::default();
    for name in &names {
        let Some((offset, suffix)) = split(name) else { continue };
        let offsets = match suffix {
            LOG_SUFFIX => &mut folder.segments,
            OFFSET_INDEX_SUFFIX => &mut folder.offset_indexes,
            TIME_INDEX_SUFFIX => &mut folder.time_indexes,
            producer_snapshot::SUFFIX => &mut folder.snapshots,
            _ => continue,
        };
        offsets.insert(offset);
    }
    // An index without its segment is what a crash in the middle of a deletion leaves.
    remove(disk, directory, &names, |name| {
        let is_index =
            |suffix| [OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX].contains(&suffix);
        split(name).is_some_and(|(offset, suffix)| is_index(suffix) && !folder.segments.contains(&offset))
    })?;
    Ok(folder)
}

/// Kafka's own rules but for one: a `.cleaned` file is not finished and goes, and with it each `.swap` file at or above it,
/// which belongs to a split that did not finish either. The other `.swap` files replace all segments in their
/// range of offsets; here also the one at which an empty one begins, since its transaction index would outlive
/// the markers that end what it lists. The producer snapshot with which the range begins stays good.
fn finish_swaps(disk: &dyn Disk, directory: &Path, names: &[String]) -> Result<(), StorageError> {
    let offset_of = |name: &str| name.get(..20)?.parse::<Offset>().ok();
    let cleaned = names.iter().filter(|name| has_suffix(name, CLEANED_SUFFIX));
    let cleaned_min = cleaned.filter_map(|name| offset_of(name)).min().unwrap_or(Offset::MAX);
    remove(disk, directory, names, |name| {
        has_suffix(name, CLEANED_SUFFIX)
            || (has_suffix(name, SWAP_SUFFIX) && offset_of(name).is_none_or(|offset| offset >= cleaned_min))
    })?;
    let is_valid =
        |name: &str| has_suffix(name, SWAP_SUFFIX) && offset_of(name).is_some_and(|o| o < cleaned_min);
    let swaps: Vec<&String> = names.iter().filter(|name| is_valid(name)).collect();
    let (mut from, mut to) = (Offset::MAX, Offset::MIN);
    for name in swaps.iter().filter(|name| name.ends_with(".log.swap")) {
        let Some(base_offset) = offset_of(name) else { continue };
        from = from.min(base_offset);
        to = to.max(next_offset(disk, &directory.join(name), base_offset)?).max(base_offset + 1);
    }
    remove(disk, directory, names, |name| {
        split(name).is_some_and(|(offset, suffix)| {
            let is_replaced = !suffix.ends_with(SWAP_SUFFIX) && offset >= from && offset < to;
            is_replaced && !(offset == from && suffix == producer_snapshot::SUFFIX)
        })
    })?;
    for name in swaps {
        let old = directory.join(name);
        let new = directory.join(name.strip_suffix(SWAP_SUFFIX).unwrap_or(name));
        disk.rename(&old, &new)
            .map_err(|error| StorageError::io(&old, "complete the replacement", &error))?;
    }
    disk.sync_dir(directory).map_err(|error| StorageError::io(directory, "sync the names in", &error))
}

fn next_offset(disk: &dyn Disk, path: &Path, base_offset: Offset) -> Result<Offset, StorageError> {
    let failed = |error| StorageError::io(path, "read", &error);
    let file = disk.open(path, klamm_io::OpenMode::Read).map_err(failed)?;
    let mut walk = Walk::new(&*file, path, 0, file.len().map_err(failed)?);
    let mut next = base_offset;
    while let Some(found) = walk.next_whole_head()? {
        next = found.header.next_offset();
    }
    Ok(next)
}

fn list(disk: &dyn Disk, directory: &Path) -> Result<Vec<String>, StorageError> {
    let entries = disk.read_dir(directory).map_err(|error| StorageError::io(directory, "list", &error))?;
    Ok(entries.into_iter().filter(|entry| !entry.is_dir).map(|entry| entry.name).collect())
}

fn remove(
    disk: &dyn Disk,
    directory: &Path,
    names: &[String],
    is_doomed: impl Fn(&str) -> bool,
) -> Result<(), StorageError> {
    for name in names.iter().filter(|name| is_doomed(name)) {
        tracing::info!(folder = %directory.display(), name, "removing what a stop has left");
        remove_if_there(disk, &directory.join(name))?;
    }
    Ok(())
}

fn has_suffix(name: &str, suffix: &str) -> bool {
    name.ends_with(suffix) && name.get(..20).is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
}

/// The offset and the rest of a name such as `00000000000000000033.index`.
fn split(name: &str) -> Option<(Offset, &str)> {
    let (digits, suffix) = name.split_at_checked(20)?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some((digits.parse().ok()?, suffix))
}

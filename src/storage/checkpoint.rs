//! Kafka's checkpoint files: a line with the version, a line with the count, a line an entry.

use std::path::Path;

use klamm_io::Disk;
use klamm_model::{LeaderEpoch, Offset, TopicPartition};

use crate::error::StorageError;
use crate::leader_epochs::{EpochEntry, LeaderEpochs};
use crate::small_files::read_if_there;

/// `recovery-point-offset-checkpoint`: up to where each log was synced.
pub(crate) const RECOVERY_POINTS: &str = "recovery-point-offset-checkpoint";
/// `log-start-offset-checkpoint`: where each log begins, where that is not the start of a segment.
pub(crate) const LOG_START_OFFSETS: &str = "log-start-offset-checkpoint";
/// `replication-offset-checkpoint`: the high watermarks.
pub(crate) const HIGH_WATERMARKS: &str = "replication-offset-checkpoint";

/// `cleaner-offset-checkpoint`: up to where each log was compacted.
pub(crate) const CLEANED_OFFSETS: &str = "cleaner-offset-checkpoint";

const VERSION: i32 = 0;
const READ: &str = "read the checkpoint";

/// Offsets by partition, sorted.
pub(crate) type Offsets = Vec<(TopicPartition, Offset)>;

/// Reads a file of `topic partition offset` lines; without the file there are none.
pub(crate) fn read_offsets(disk: &dyn Disk, path: &Path) -> Result<Offsets, StorageError> {
    let Some(lines) = read_lines(disk, path)? else { return Ok(Vec::new()) };
    let mut offsets = Vec::with_capacity(lines.len());
    for line in &lines {
        let mut fields = line.split_ascii_whitespace();
        let entry = match (fields.next(), fields.next(), fields.next(), fields.next()) {
            (Some(topic), Some(partition), Some(offset), None) => {
                let partition = partition.parse().ok().filter(|partition| *partition >= 0);
                partition.zip(offset.parse().ok()).map(|(p, offset)| (TopicPartition::new(topic, p), offset))
            }
            _ => None,
        };
        offsets.push(entry.ok_or_else(|| malformed(path, line))?);
    }
    offsets.sort();
    Ok(offsets)
}

/// Replaces such a file; it is on the disk when this returns.
pub(crate) fn write_offsets(disk: &dyn Disk, path: &Path, offsets: &Offsets) -> Result<(), StorageError> {
    let lines = offsets.iter().map(|(tp, offset)| format!("{} {} {offset}\n", tp.topic, tp.partition));
    let content = with_head(offsets.len(), lines);
    disk.replace(path, content.as_bytes())
        .map_err(|error| StorageError::io(path, "write the checkpoint", &error))
}

/// Looks a partition up.
pub(crate) fn offset_of(offsets: &Offsets, tp: &TopicPartition) -> Option<Offset> {
    let index = offsets.binary_search_by(|(found, _)| found.cmp(tp)).ok()?;
    Some(offsets[index].1)
}

/// Reads the epochs of a log; `None` if there is no file, or an empty one.
pub(crate) fn read_epochs(disk: &dyn Disk, path: &Path) -> Result<Option<LeaderEpochs>, StorageError> {
    let Some(lines) = read_lines(disk, path)? else { return Ok(None) };
    let mut epochs = LeaderEpochs::default();
    for line in &lines {
        let entry = line.split_once(' ').and_then(|(epoch, offset)| {
            Some((epoch.trim().parse().ok()?, offset.trim().parse::<Offset>().ok()?))
        });
        let (epoch, start_offset) = entry.ok_or_else(|| malformed(path, line))?;
        epochs.assign(LeaderEpoch(epoch), start_offset);
    }
    Ok(Some(epochs))
}

/// The bytes of `leader-epoch-checkpoint`.
pub(crate) fn epochs_content(entries: &[EpochEntry]) -> String {
    with_head(entries.len(), entries.iter().map(|entry| format!("{} {}\n", entry.epoch, entry.start_offset)))
}

fn with_head(count: usize, lines: impl Iterator<Item = String>) -> String {
    let mut content = format!("{VERSION}\n{count}\n");
    content.extend(lines);
    content
}

fn read_lines(disk: &dyn Disk, path: &Path) -> Result<Option<Vec<String>>, StorageError> {
    let Some(content) = read_if_there(disk, path, READ)? else { return Ok(None) };
    let content = String::from_utf8(content)
        .map_err(|_| StorageError::corrupt(path, READ, "the checkpoint is not text"))?;
    if !content.is_empty() && !content.ends_with('\n') {
        // A number may have lost its last digits.
        return Err(StorageError::corrupt(path, READ, "the checkpoint ends in the middle of a line"));
    }
    let mut lines = content.lines();
    // Kafka leaves empty files where it never had anything to say.
    let Some(version) = lines.next() else { return Ok(None) };
    match version.trim().parse() {
        Ok(VERSION) => {}
        Ok(version) if version > VERSION => {
            return Err(StorageError::unknown_version(path, READ, version, VERSION));
        }
        _ => return Err(malformed(path, version)),
    }
    let count = lines.next().unwrap_or_default();
    let expected: usize = count.trim().parse().map_err(|_| malformed(path, count))?;
    let lines: Vec<String> = lines.filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if lines.len() != expected {
        let reason = format!("{expected} entries were expected, {} are there", lines.len());
        return Err(StorageError::corrupt(path, READ, reason));
    }
    Ok(Some(lines))
}

fn malformed(path: &Path, line: &str) -> StorageError {
    let shown: String = line.chars().take(80).collect();
    StorageError::corrupt(path, READ, format!("a line makes no sense: {shown:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use klamm_testing::SimulatedDisk;

    fn disk_with(content: &str) -> SimulatedDisk {
        let disk = SimulatedDisk::new(1);
        disk.replace(Path::new("/checkpoint"), content.as_bytes()).unwrap();
        disk
    }

    #[test]
    fn offsets_read_back_and_look_as_kafka_writes_them() {
        let disk = SimulatedDisk::new(1);
        let path = Path::new("/checkpoint");
        let offsets =
            vec![(TopicPartition::new("alpha", 0), 40), (TopicPartition::new("beta.with_dots", 12), 7)];
        write_offsets(&disk, path, &offsets).unwrap();
        assert_eq!(disk.read(path).unwrap(), b"0\n2\nalpha 0 40\nbeta.with_dots 12 7\n");
        let read = read_offsets(&disk, path).unwrap();
        assert_eq!(read, offsets);
        assert_eq!(offset_of(&read, &TopicPartition::new("beta.with_dots", 12)), Some(7));
        assert_eq!(offset_of(&read, &TopicPartition::new("beta", 12)), None);
    }

    #[test]
    fn an_empty_or_missing_file_holds_nothing() {
        let path = Path::new("/checkpoint");
        assert_eq!(read_offsets(&SimulatedDisk::new(1), path).unwrap(), []);
        assert_eq!(read_offsets(&disk_with(""), path).unwrap(), []);
        assert_eq!(read_offsets(&disk_with("0\n0\n"), path).unwrap(), []);
    }

    #[test]
    fn nonsense_is_refused_with_the_line() {
        for content in [
            "x\n0\n",
            "1\n0\n",
            "0\n",
            "0\n2\na 0 1\n",
            "0\n1\na 0\n",
            "0\n1\na 0 12",
            "0\n1\na -1 4\n",
            "0\n1\na 0 1 2\n",
        ] {
            let error = read_offsets(&disk_with(content), Path::new("/checkpoint")).unwrap_err();
            assert!(error.to_string().starts_with("read the checkpoint /checkpoint: "), "{error}");
        }
        assert!(read_epochs(&disk_with("0\n1\n3\n"), Path::new("/checkpoint")).is_err());
    }
}

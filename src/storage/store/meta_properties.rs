//! `meta.properties`: to which cluster and node a log directory belongs, and which program keeps it.
//!
//! Apache Kafka must not start on a directory that Klamm keeps: it does not know Klamm's metadata and would set the
//! partitions aside as stray. So where Kafka has the number of the file's version, Klamm writes a sentence, which
//! Kafka 2.8.2, 3.9.1 and 4.4.0 show a person when they refuse to start.

use std::path::Path;

use klamm_io::Disk;
use klamm_model::{NodeId, Uuid};

use crate::error::StorageError;
use crate::small_files::read_if_there;

pub(super) const FILE_NAME: &str = "meta.properties";

const READ: &str = "read the identity of the log directory";
/// Kafka's version of the file with KRaft.
const KRAFT_VERSION: i32 = 1;
/// Kafka's version of the file with ZooKeeper.
const ZOOKEEPER_VERSION: i32 = 0;
/// Klamm's version of the file.
const VERSION: i32 = 1;
/// What stands before the number of Klamm's version.
const MARK: &str = "Klamm ";
/// What stands behind it, for whoever starts Apache Kafka on the directory, or gives it to `kafka-metadata-quorum`.
const MARK_SAYS: &str = " keeps this directory; 'klamm release' gives it back to Apache Kafka, and add-controller wants \
                         metadata.log.dir to name klamm-metadata in it";

/// Which program keeps a log directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// Klamm.
    Klamm,
    /// Apache Kafka with KRaft.
    KafkaWithKraft,
    /// Apache Kafka with ZooKeeper.
    KafkaWithZookeeper,
}

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetaProperties {
    pub(super) keeper: Keeper,
    /// Missing in directories of Klamm that belong to no cluster yet.
    pub(super) cluster_id: Option<String>,
    pub(super) node_id: NodeId,
    /// Missing in directories of Kafka before 3.7.
    pub(super) directory_id: Option<Uuid>,
    /// Lines that this program does not know and keeps.
    pub(super) others: Vec<(String, String)>,
}

impl MetaProperties {
    /// Reads the file; `None` if there is none.
    pub(super) fn read(disk: &dyn Disk, directory: &Path) -> Result<Option<MetaProperties>, StorageError> {
        let path = directory.join(FILE_NAME);
        let content = read_if_there(disk, &path, READ)?;
        content.map(|content| MetaProperties::parse(&path, &String::from_utf8_lossy(&content))).transpose()
    }

    fn parse(path: &Path, content: &str) -> Result<MetaProperties, StorageError> {
        let mut others = properties(content);
        let mut take = |name: &str| {
            let index = others.iter().position(|(key, _)| key == name)?;
            Some(others.remove(index).1)
        };
        let corrupt = |reason: &str| StorageError::corrupt(path, READ, reason);
        let version = take("version").ok_or_else(|| corrupt("the version is missing"))?;
        let keeper =
            keeper(&version).ok_or_else(|| StorageError::unknown_version(path, READ, version, VERSION))?;
        let cluster_id = take("cluster.id");
        if cluster_id.is_none() && keeper != Keeper::Klamm {
            return Err(corrupt("cluster.id is missing"));
        }
        let id_key = if keeper == Keeper::KafkaWithZookeeper { "broker.id" } else { "node.id" };
        let node_id = take(id_key).ok_or_else(|| corrupt(&format!("{id_key} is missing")))?;
        let node_id = node_id.parse().map(NodeId).map_err(|_| corrupt(&format!("{id_key} is no number")))?;
        let directory_id = match take("directory.id") {
            None => None,
            Some(id) => Some(id.parse().map_err(|_| corrupt("directory.id is no id"))?),
        };
        Ok(MetaProperties { keeper, cluster_id, node_id, directory_id, others })
    }

    /// Replaces the file; it is on the disk when this returns.
    pub(super) fn write(&self, disk: &dyn Disk, directory: &Path) -> Result<(), StorageError> {
        let path = directory.join(FILE_NAME);
        disk.replace(&path, self.content().as_bytes())
            .map_err(|error| StorageError::io(&path, "write the identity of the log directory", &error))
    }

    fn content(&self) -> String {
        let (id_key, version) = match self.keeper {
            Keeper::Klamm => ("node.id", format!("{MARK}{VERSION}{MARK_SAYS}")),
            Keeper::KafkaWithKraft => ("node.id", KRAFT_VERSION.to_string()),
            Keeper::KafkaWithZookeeper => ("broker.id", ZOOKEEPER_VERSION.to_string()),
        };
        let mut content = format!("#\n{id_key}={}\n", self.node_id);
        if let Some(directory_id) = self.directory_id {
            content += &format!("directory.id={directory_id}\n");
        }
        content += &format!("version={version}\n");
        if let Some(cluster_id) = &self.cluster_id {
            content += &format!("cluster.id={cluster_id}\n");
        }
        content.extend(self.others.iter().map(|(key, value)| format!("{key}={value}\n")));
        content
    }
}

/// Who writes a version of the file; `None` for one that is not known.
fn keeper(version: &str) -> Option<Keeper> {
    if let Some(marked) = version.strip_prefix(MARK) {
        let number = marked.split_once(' ').map_or(marked, |(number, _)| number);
        return (number.parse() == Ok(VERSION)).then_some(Keeper::Klamm);
    }
    match version.parse() {
        Ok(KRAFT_VERSION) => Some(Keeper::KafkaWithKraft),
        Ok(ZOOKEEPER_VERSION) => Some(Keeper::KafkaWithZookeeper),
        _ => None,
    }
}

/// The lines of a Java properties file, as far as this file needs it.
fn properties(content: &str) -> Vec<(String, String)> {
    let lines = content.lines().map(str::trim).filter(|line| !line.starts_with(['#', '!']));
    let unescaped = |text: &str| text.trim().replace('\\', "");
    lines.filter_map(|line| line.split_once('=').map(|(k, v)| (unescaped(k), unescaped(v)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KAFKA: &str = "#\n#Sun Nov 29 20:25:00 UTC 2026\nnode.id=1\ndirectory.id=Le_O1iMlKvvF63DFbgscEw\n\
                         version=1\ncluster.id=22ZIq6LATRGAhqKkbBaRwg\n";

    fn parse(content: &str) -> Result<MetaProperties, StorageError> {
        MetaProperties::parse(Path::new("/d/meta.properties"), content)
    }

    #[test]
    fn kafkas_file_is_understood_and_written_back() {
        let meta = parse(KAFKA).unwrap();
        assert_eq!(meta.keeper, Keeper::KafkaWithKraft);
        assert_eq!(meta.node_id, NodeId(1));
        assert_eq!(meta.cluster_id.as_deref(), Some("22ZIq6LATRGAhqKkbBaRwg"));
        assert_eq!(meta.directory_id.unwrap().to_string(), "Le_O1iMlKvvF63DFbgscEw");
        assert_eq!(parse(&meta.content()).unwrap(), meta);
        let unknown = parse(&format!("{KAFKA}future.key=a b\n")).unwrap();
        assert!(unknown.content().ends_with("future.key=a b\n"));
        let old = parse("#\nbroker.id=3\nversion=0\ncluster.id=zAD1JbodTE2pQtRBv-e-wA\n").unwrap();
        assert_eq!(
            (old.keeper, old.node_id, old.directory_id),
            (Keeper::KafkaWithZookeeper, NodeId(3), None)
        );
        assert_eq!(parse(&old.content()).unwrap(), old);
    }

    /// Kafka reads a number here, and shows what it finds instead when it refuses to start.
    #[test]
    fn klamms_own_file_is_none_that_kafka_takes() {
        let meta = MetaProperties { keeper: Keeper::Klamm, ..parse(KAFKA).unwrap() };
        let content = meta.content();
        let version = content.lines().find_map(|line| line.strip_prefix("version=")).unwrap();
        assert!(
            version
                .starts_with("Klamm 1 keeps this directory; 'klamm release' gives it back to Apache Kafka"),
            "{version}"
        );
        assert!(version.parse::<i32>().is_err());
        assert_eq!(parse(&content).unwrap(), meta);
        let new = MetaProperties { cluster_id: None, ..meta };
        assert_eq!(parse(&new.content()).unwrap(), new);
        let error = parse(&content.replace("Klamm 1 ", "Klamm 2 ")).unwrap_err().to_string();
        assert!(error.contains("version Klamm 2 keeps"), "{error}");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (from, to, message) in [
            ("version=1", "version=2", "version 2 is not one"),
            ("version=1", "version=0", "broker.id is missing"),
            ("version=1", "", "the version is missing"),
            ("node.id=1", "node.id=one", "node.id is no number"),
            ("cluster.id", "cluster", "cluster.id is missing"),
            ("Le_O1iMlKvvF63DFbgscEw", "short", "directory.id is no id"),
        ] {
            let error = parse(&KAFKA.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("/d/meta.properties"), "{error}");
        }
    }
}

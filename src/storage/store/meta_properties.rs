//! `meta.properties`: to which cluster and node a log directory belongs.

use std::path::Path;

use klamm_io::Disk;
use klamm_model::{NodeId, Uuid};

use crate::error::{StorageError, StorageErrorKind};

pub(super) const FILE_NAME: &str = "meta.properties";

const READ: &str = "read the identity of the log directory";
const VERSION: i32 = 1;

/// What the file says, in the form of KRaft (version 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetaProperties {
    pub(super) cluster_id: String,
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
        match disk.read(&path) {
            Ok(content) => MetaProperties::parse(&path, &String::from_utf8_lossy(&content)).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StorageError::io(&path, READ, &error)),
        }
    }

    fn parse(path: &Path, content: &str) -> Result<MetaProperties, StorageError> {
        let mut others = properties(content);
        let mut take = |name: &str| {
            let index = others.iter().position(|(key, _)| key == name)?;
            Some(others.remove(index).1)
        };
        let corrupt = |reason: &str| StorageError::corrupt(path, READ, reason);
        let version = take("version").ok_or_else(|| corrupt("the version is missing"))?;
        match version.parse::<i32>() {
            Ok(VERSION) => {}
            Ok(0) => {
                return Err(corrupt(
                    "version 0 is of Apache Kafka with ZooKeeper; only directories of KRaft (version 1) can be used",
                ));
            }
            _ => {
                let kind = StorageErrorKind::UnknownVersion { found: version, newest: VERSION };
                return Err(StorageError::new(path, READ, kind));
            }
        }
        let cluster_id = take("cluster.id").ok_or_else(|| corrupt("cluster.id is missing"))?;
        let node_id = take("node.id").ok_or_else(|| corrupt("node.id is missing"))?;
        let node_id = node_id.parse().map(NodeId).map_err(|_| corrupt("node.id is no number"))?;
        let directory_id = match take("directory.id") {
            None => None,
            Some(id) => Some(id.parse().map_err(|_| corrupt("directory.id is no id"))?),
        };
        Ok(MetaProperties { cluster_id, node_id, directory_id, others })
    }

    /// Replaces the file; it is on the disk when this returns.
    pub(super) fn write(&self, disk: &dyn Disk, directory: &Path) -> Result<(), StorageError> {
        let path = directory.join(FILE_NAME);
        disk.replace(&path, self.content().as_bytes())
            .map_err(|error| StorageError::io(&path, "write the identity of the log directory", &error))
    }

    fn content(&self) -> String {
        let mut content = format!("#\nnode.id={}\n", self.node_id);
        if let Some(directory_id) = self.directory_id {
            content += &format!("directory.id={directory_id}\n");
        }
        content += &format!("version={VERSION}\ncluster.id={}\n", self.cluster_id);
        content.extend(self.others.iter().map(|(key, value)| format!("{key}={value}\n")));
        content
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
        assert_eq!(meta.node_id, NodeId(1));
        assert_eq!(meta.cluster_id, "22ZIq6LATRGAhqKkbBaRwg");
        assert_eq!(meta.directory_id.unwrap().to_string(), "Le_O1iMlKvvF63DFbgscEw");
        assert_eq!(parse(&meta.content()).unwrap(), meta);
        let unknown = parse(&format!("{KAFKA}future.key=a b\n")).unwrap();
        assert!(unknown.content().ends_with("future.key=a b\n"));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (from, to, message) in [
            ("version=1", "version=2", "version 2 is not one"),
            ("version=1", "version=0", "ZooKeeper"),
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

//! What can go wrong with the disk, or with what stands on it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use klamm_model::{Offset, TopicId};

/// A failure of the store, with the place where it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageError {
    /// The file or directory.
    pub path: PathBuf,
    /// Where in the file, in bytes.
    pub position: Option<u64>,
    /// What is wrong.
    pub kind: StorageErrorKind,
    /// What was being done: "append", "read the index".
    pub context: &'static str,
}

/// The kinds of [`StorageError`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorageErrorKind {
    /// The disk is full or the quota is used up.
    DiskFull,
    /// The operating system refused.
    Io(io::ErrorKind, String),
    /// The bytes are not what they should be.
    Corrupt(String),
    /// The log takes no more calls since a failure that it could not undo, told here.
    Offline(String),
    /// The log is checked after an unclean stop and will be there when that is done.
    Recovering,
    /// The whole log directory takes no more calls since a failure of its device, told here.
    DirectoryOffline(String),
    /// The partition may lie in one of the log directories that cannot be used, so it is not made anew.
    MaybeElsewhere(String),
    /// The partition was deleted meanwhile.
    Deleted,
    /// The store was closed meanwhile; what is there can still be read.
    Closed,
    /// Another process uses the log directory.
    Locked,
    /// The log directory cannot be written.
    NotWritable(String),
    /// The log directory belongs to another cluster, or to another node of this one.
    Foreign {
        /// `cluster.id` or `node.id`.
        what: &'static str,
        /// What the directory says.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A file was written by a version that this one does not know.
    UnknownVersion {
        /// The version found.
        found: String,
        /// The newest that is understood.
        newest: i32,
    },
    /// The folder holds an earlier topic of the same name.
    InconsistentTopicId {
        /// The id on the disk.
        found: TopicId,
        /// The id asked for.
        expected: TopicId,
    },
    /// Batches that do not follow the end of the log.
    OutOfOrder {
        /// The first offset of the batch.
        offset: Offset,
        /// Where the log ends.
        log_end_offset: Offset,
    },
}

impl StorageError {
    /// An error of the operating system.
    pub fn io(path: &Path, context: &'static str, error: &io::Error) -> StorageError {
        let kind = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StorageErrorKind::DiskFull,
            kind => StorageErrorKind::Io(kind, error.to_string()),
        };
        StorageError { path: path.to_owned(), position: None, kind, context }
    }

    /// Bytes that make no sense.
    pub(crate) fn corrupt(path: &Path, context: &'static str, reason: impl Into<String>) -> StorageError {
        StorageError::new(path, context, StorageErrorKind::Corrupt(reason.into()))
    }

    pub(crate) fn new(path: &Path, context: &'static str, kind: StorageErrorKind) -> StorageError {
        StorageError { path: path.to_owned(), position: None, kind, context }
    }

    /// A file of a version that this program does not know.
    pub(crate) fn unknown_version(
        path: &Path,
        context: &'static str,
        found: impl ToString,
        newest: i32,
    ) -> StorageError {
        let kind = StorageErrorKind::UnknownVersion { found: found.to_string(), newest };
        StorageError::new(path, context, kind)
    }

    pub(crate) fn at(mut self, position: u64) -> StorageError {
        self.position = Some(position);
        self
    }

    /// Whether the bytes were read and are not what they should be.
    pub(crate) fn is_of_content(&self) -> bool {
        matches!(self.kind, StorageErrorKind::Corrupt(_) | StorageErrorKind::UnknownVersion { .. })
    }

    /// Whether the file or directory was not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self.kind, StorageErrorKind::Io(io::ErrorKind::NotFound, _))
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.context, self.path.display())?;
        if let Some(position) = self.position {
            write!(f, " at {position}")?;
        }
        write!(f, ": {}", self.kind)
    }
}

impl fmt::Display for StorageErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StorageErrorKind::DiskFull => f.write_str("no space left on the disk"),
            StorageErrorKind::Io(_, error) => f.write_str(error),
            StorageErrorKind::Corrupt(reason) => f.write_str(reason),
            StorageErrorKind::Offline(reason) => write!(f, "the log is offline since an earlier failure: {reason}"),
            StorageErrorKind::Recovering => {
                f.write_str("the log is being checked after an unclean stop, and is served when that is done")
            }
            StorageErrorKind::DirectoryOffline(reason) => {
                write!(f, "the log directory is offline since an earlier failure: {reason}")
            }
            StorageErrorKind::MaybeElsewhere(directories) => write!(
                f,
                "the partition is in none of the log directories that can be used, and may be in {directories}; bring \
                 that back and start again, or delete the topic if its records are lost"
            ),
            StorageErrorKind::Closed => f.write_str("the log was closed"),
            StorageErrorKind::Deleted => f.write_str("the partition was deleted"),
            StorageErrorKind::Locked => f.write_str(
                "another process uses this log directory; stop it first, or give this one a directory of its own",
            ),
            StorageErrorKind::NotWritable(error) => write!(f, "the log directory cannot be written: {error}"),
            StorageErrorKind::Foreign { what, found, expected } => write!(
                f,
                "the directory has {what}={found}, but this node has {what}={expected}; it belongs to another \
                 {}. If it is a left-over, use an empty directory",
                if *what == "cluster.id" { "cluster" } else { "node" }
            ),
            StorageErrorKind::UnknownVersion { found, newest } => {
                write!(f, "version {found} is not one that this program knows (the newest is {newest}); start the version that wrote it, \
                     or a newer one of this program")
            }
            StorageErrorKind::InconsistentTopicId { found, expected } => {
                write!(f, "the folder holds the topic with id {found}, not the one with id {expected}; move the folder away if that \
                     topic is not missed")
            }
            StorageErrorKind::OutOfOrder { offset, log_end_offset } => {
                write!(f, "a batch at offset {offset} cannot follow the log end offset {log_end_offset}")
            }
        }
    }
}

impl std::error::Error for StorageError {}

/// Why a read gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The offset is not between the start and the end of the log.
    #[error("the offset is outside of the log, which goes from {start} to {end}")]
    OutOfRange {
        /// The log start offset.
        start: Offset,
        /// The log end offset.
        end: Offset,
    },
    /// The disk failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

//! Small files that need not be there, and those of `name: value` lines.

use std::io;
use std::path::Path;

use klamm_io::Disk;

use crate::error::StorageError;

/// Reads a whole file, if there is one. `context` is what is being done.
pub(crate) fn read_if_there(
    disk: &dyn Disk,
    path: &Path,
    context: &'static str,
) -> Result<Option<Vec<u8>>, StorageError> {
    match disk.read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StorageError::io(path, context, &error)),
    }
}

/// The `name: value` lines of a file, one of which is the version.
pub(crate) struct Fields(String);

impl Fields {
    /// Reads a file, if there is one.
    pub(crate) fn read(
        disk: &dyn Disk,
        path: &Path,
        context: &'static str,
    ) -> Result<Option<Fields>, StorageError> {
        let content = read_if_there(disk, path, context)?;
        Ok(content.map(|content| Fields(String::from_utf8_lossy(&content).into_owned())))
    }

    /// What stands behind a name; of several lines the first counts.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim)
    }

    /// The version, if it is a number.
    pub(crate) fn version(&self) -> Option<i32> {
        self.get("version")?.parse().ok()
    }
}

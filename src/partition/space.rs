//! Whether the disk has room for more records, as far as the last appends tell.

use std::sync::atomic::{AtomicU64, Ordering};

use klamm_storage::{StorageError, StorageErrorKind};

/// For how long an append that found no room counts at least. What leads or follows where records are written tries again
/// much sooner.
const COUNTS_FOR_MS: u64 = 30_000;

/// When an append last found no room.
#[derive(Default)]
pub(crate) struct Space {
    /// In ms of the monotonic clock, and one more; 0 when the last append found room.
    refused_at: AtomicU64,
}

impl Space {
    /// Notes what came of an append, and hands it on.
    pub(crate) fn note<T>(&self, appended: Result<T, StorageError>, now_ms: u64) -> Result<T, StorageError> {
        match &appended {
            Ok(_) => self.refused_at.store(0, Ordering::Relaxed),
            Err(error) if error.kind == StorageErrorKind::DiskFull => {
                self.refused_at.store(now_ms.saturating_add(1), Ordering::Relaxed);
            }
            Err(_) => {}
        }
        appended
    }

    /// Whether there is none. Where the last append that found none is long ago, `has_room` is asked.
    pub(crate) fn is_lacking(&self, now_ms: u64, has_room: impl FnOnce() -> bool) -> bool {
        let refused_at = self.refused_at.load(Ordering::Relaxed);
        refused_at > 0 && (now_ms.saturating_sub(refused_at) < COUNTS_FOR_MS || !has_room())
    }
}

//! In which log directory a partition is made, and how the directories are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use klamm_model::{TopicId, TopicPartition, Uuid};

use super::{LogDirectory, LogStore, Unopened};
use crate::config::LogConfig;
use crate::error::{StorageError, StorageErrorKind};
use crate::health::Listener;
use crate::log::{Log, OpenLog};

/// For so many partitions that are not there yet a directory is remembered.
const WISHES_MAX: usize = 10_000;

/// What was said about where partitions are to be made.
#[derive(Default)]
pub(super) struct Placement {
    /// The directory for a partition that does not exist yet (AlterReplicaLogDirs); memory only, as in Kafka.
    pub(super) wishes: BTreeMap<TopicPartition, PathBuf>,
    /// `cordoned.log.dirs`: these get no new partitions (KIP-1066).
    pub(super) cordoned: Vec<PathBuf>,
    /// Directories that this node had before its last start and has no more.
    pub(super) lost: Vec<Uuid>,
}

/// Why a directory for a partition is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// `log.dirs` does not name it.
    #[error("log.dirs does not name this directory")]
    Unknown,
    /// It is offline, for this reason.
    #[error("the log directory is offline: {0}")]
    Offline(String),
}

/// A log directory, as [`LogStore::directory_statuses`] shows it.
#[derive(Clone)]
pub struct DirectoryStatus {
    /// As `log.dirs` names it.
    pub path: PathBuf,
    /// Why it is offline, if it is.
    pub failure: Option<StorageError>,
    /// The size of its file system and what is free there, in bytes, where it can be told.
    pub space: Option<(u64, u64)>,
    /// Whether it gets no new partitions.
    pub is_cordoned: bool,
    /// The logs in it.
    pub logs: Vec<Arc<Log>>,
    /// The copies in it of partitions that are moving here.
    pub futures: Vec<Arc<Log>>,
}

impl LogStore {
    /// Tries a log again that could not be opened for a reason that passes: a full disk, too many open files. Of
    /// several folders the one of the topic's id is taken, if only one has it.
    pub(super) fn open_again(
        &self,
        tp: &TopicPartition,
        topic_id: TopicId,
        config: &LogConfig,
    ) -> Result<(), StorageError> {
        let unopened = self.shared.unopened.lock().get(tp).cloned();
        let undecided = self.shared.undecided.lock().get(tp).cloned().unwrap_or_default();
        let chosen: Vec<&Unopened> = match &unopened {
            Some(one)
                if matches!(one.failure.kind, StorageErrorKind::DiskFull | StorageErrorKind::Io(..)) =>
            {
                vec![one]
            }
            Some(one) => return Err(one.failure_for(topic_id)),
            None if undecided.is_empty() => return Ok(()),
            None => undecided.iter().filter(|one| one.topic_id == Some(topic_id)).collect(),
        };
        let [chosen] = &chosen[..] else { return Err(undecided[0].failure.clone()) };
        let open = OpenLog {
            topic_partition: tp.clone(),
            directory_id: chosen.directory,
            dir: chosen.folder.clone(),
            config: config.clone(),
            log_start_offset: chosen.log_start_offset,
            recovery_point: chosen.recovery_point,
            cleaned_offset: chosen.cleaned_offset,
            was_clean: false,
        };
        match Log::open(self.shared.environment.clone(), open) {
            Ok(opened) => {
                let log = Arc::new(opened.log);
                if let Some(high_watermark) = chosen.high_watermark {
                    self.shared.high_watermarks.lock().insert(tp.clone(), high_watermark);
                }
                // The two change together, and in this order: who gathers a checkpoint sees the partition once.
                let mut logs = self.shared.logs.write();
                self.shared.unopened.lock().remove(tp);
                self.shared.undecided.lock().remove(tp);
                logs.insert(tp.clone(), log);
                Ok(())
            }
            Err(failure) => {
                if let Some(kept) = self.shared.unopened.lock().get_mut(tp) {
                    kept.failure = failure.clone();
                }
                Err(failure)
            }
        }
    }

    /// Opens a log again that is offline for a reason that passes, as a full disk, so that it serves without a
    /// restart of the process; as such a restart would, it looks for the last whole batch. `None` if the log is not
    /// offline, or for good.
    pub fn reopen(&self, tp: &TopicPartition) -> Result<Option<Arc<Log>>, StorageError> {
        let _changing = self.changing.lock();
        let Some(failed) = self.get(tp).filter(|log| log.is_directory_online()) else { return Ok(None) };
        match failed.failure().map(|failure| &failure.kind) {
            Some(StorageErrorKind::DiskFull | StorageErrorKind::Io(..)) => {}
            Some(_) if self.settle(&failed) => {}
            _ => return Ok(None),
        }
        // Else what a sync could not bring to the disk would pass for written.
        failed.note_failed_sync_again()?;
        let open = OpenLog {
            topic_partition: tp.clone(),
            directory_id: failed.directory_id(),
            dir: failed.dir(),
            config: (*failed.config()).clone(),
            log_start_offset: Some(failed.log_start_offset()),
            recovery_point: Some(failed.recovery_point()),
            cleaned_offset: failed.cleaned_offset(),
            was_clean: false,
        };
        let log = Arc::new(Log::open(self.shared.environment.clone(), open)?.log);
        let (before, now) = (failed.log_end_offset(), log.log_end_offset());
        if now < before {
            tracing::error!(partition = %tp, before, now, "the disk has lost the end of the log");
        }
        log.set_moving(failed.is_moving());
        self.shared.logs.write().insert(tp.clone(), log.clone());
        tracing::info!(partition = %tp, "the log serves again");
        Ok(Some(log))
    }

    /// Looks whether the directories are still there: one whose file system was taken away gives no error of the
    /// device.
    pub fn check_directories(&self) {
        for directory in self.shared.online() {
            directory.check_identity(&*self.shared.environment.disk);
        }
    }

    /// Remembers where a partition is to be made that does not exist yet.
    pub fn wish(&self, tp: &TopicPartition, directory: &Path) -> Result<(), PlacementError> {
        self.directory_at(directory)?;
        let wishes = &mut self.shared.placement.lock().wishes;
        if wishes.len() < WISHES_MAX || wishes.contains_key(tp) {
            wishes.insert(tp.clone(), directory.to_owned());
        }
        Ok(())
    }

    /// Sets `cordoned.log.dirs`.
    pub fn set_cordoned(&self, directories: Vec<PathBuf>) {
        self.shared.placement.lock().cordoned = directories;
    }

    /// Tells of the directories that this node had before this start. Returns those that it has no more, for
    /// which partitions that cannot be found are kept.
    pub fn note_known_directories(&self, known: &[Uuid]) -> Vec<Uuid> {
        let is_lost = |id: &&Uuid| self.shared.directory(**id).is_none();
        let lost: Vec<Uuid> = known.iter().filter(is_lost).copied().collect();
        self.shared.placement.lock().lost = lost.clone();
        lost
    }

    /// Whether all directories of `log.dirs` work.
    pub fn are_directories_online(&self) -> bool {
        self.shared.health.iter().all(|health| health.failure().is_none())
    }

    /// The ids of the directories that went offline since the start.
    pub fn offline_directory_ids(&self) -> Vec<Uuid> {
        let online: Vec<Uuid> = self.shared.online().map(|directory| directory.id).collect();
        self.shared
            .directories
            .iter()
            .map(|directory| directory.id)
            .filter(|id| !online.contains(id))
            .collect()
    }

    /// Whether a directory that works has a folder of this partition.
    pub fn has_folder(&self, tp: &TopicPartition) -> bool {
        let disk = &*self.shared.environment.disk;
        self.shared.online().any(|one| disk.exists(&one.path.join(tp.to_string())).unwrap_or(false))
    }

    pub(super) fn directory_at(&self, path: &Path) -> Result<&LogDirectory, PlacementError> {
        let health = self.shared.health.iter().find(|health| health.path() == path);
        let health = health.ok_or(PlacementError::Unknown)?;
        if let Some(failure) = health.failure() {
            return Err(PlacementError::Offline(failure.to_string()));
        }
        let found = self.shared.directories.iter().find(|directory| directory.path == path);
        found.ok_or(PlacementError::Unknown)
    }

    /// All log directories with what is in them, in the order of `log.dirs`.
    pub fn directory_statuses(&self) -> Vec<DirectoryStatus> {
        self.check_directories();
        let disk = &*self.shared.environment.disk;
        let cordoned = self.shared.placement.lock().cordoned.clone();
        let futures: Vec<Arc<Log>> = self.shared.futures.read().values().cloned().collect();
        let logs = self.logs();
        let status = |path: &Path, failure: Option<&StorageError>| {
            let opened = self.shared.directories.iter().find(|directory| directory.path == path);
            let within = |logs: &[Arc<Log>]| -> Vec<Arc<Log>> {
                let is_within = |log: &&Arc<Log>| opened.is_some_and(|one| one.id == log.directory_id());
                logs.iter().filter(is_within).cloned().collect()
            };
            DirectoryStatus {
                path: path.to_owned(),
                failure: failure.cloned(),
                space: disk.space(path).ok(),
                is_cordoned: cordoned.iter().any(|one| one == path),
                logs: within(&logs),
                futures: within(&futures),
            }
        };
        self.shared.health.iter().map(|health| status(health.path(), health.failure())).collect()
    }

    /// How many bytes are free on the file system of a log; nothing if that cannot be found out.
    pub fn free_bytes(&self, log: &Log) -> Option<u64> {
        let (_, free) = self.shared.environment.disk.space(&log.dir()).ok()?;
        Some(free)
    }

    /// Calls `listener` with the path and the reason when a log directory goes offline, and at once for those
    /// that are.
    pub fn on_directory_failure(&self, listener: impl Fn(&Path, &StorageError) + Send + Sync + 'static) {
        let listener: Arc<Listener> = Arc::new(listener);
        for health in &self.shared.health {
            health.set_listener(listener.clone());
        }
    }
}

//! In which log directory a partition is made, and how the directories are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    wishes: BTreeMap<TopicPartition, PathBuf>,
    /// `cordoned.log.dirs`: these get no new partitions (KIP-1066).
    cordoned: Vec<PathBuf>,
    /// Directories that this node had before its last start and has no more.
    lost: Vec<Uuid>,
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

/// Whether a partition may be anywhere already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Past {
    None,
    Unknown,
}

impl LogStore {
    /// Opens a log that is to be there, or makes it, in the directory that was asked for with
    /// [`LogStore::wish`], else in the one with the fewest partitions. A log that belongs to another topic of the
    /// same name is an error, [`crate::StorageErrorKind::InconsistentTopicId`].
    pub fn create(
        &self,
        tp: &TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
    ) -> Result<Arc<Log>, StorageError> {
        self.open_or_make(tp, topic_id, config, Past::None)
    }

    /// As [`LogStore::create`], for a partition that was there before this start. While a log directory is
    /// offline or lost, it may lie there: a new one would hide its records, and is not made.
    pub fn create_unless_elsewhere(
        &self,
        tp: &TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
    ) -> Result<Arc<Log>, StorageError> {
        self.open_or_make(tp, topic_id, config, Past::Unknown)
    }

    fn open_or_make(
        &self,
        tp: &TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        past: Past,
    ) -> Result<Arc<Log>, StorageError> {
        let _changing = self.changing.lock();
        assert!(self.is_loaded.load(Ordering::Acquire), "a store is loaded before partitions are made in it");
        if self.get(tp).is_none() {
            self.delete_again(tp)?;
        }
        self.open_again(tp, topic_id, &config)?;
        if let Some(log) = self.get(tp) {
            log.check_directory("open")?;
            log.set_topic_id(topic_id)?;
            log.update_config(config);
            return Ok(log);
        }
        if past == Past::Unknown {
            self.check_is_nowhere(tp)?;
        }
        let directory = self.directory_for(tp)?;
        if self.shared.directories.iter().any(|directory| directory.checkpoints().name(tp)) {
            // Offsets of an earlier partition of this name would be taken for those of the new one.
            self.shared.write_checkpoints()?;
        }
        let log = Arc::new(self.make_log(tp, topic_id, directory, config)?);
        self.shared.logs.write().insert(tp.clone(), log.clone());
        self.shared.placement.lock().wishes.remove(tp);
        tracing::debug!(partition = %tp, folder = %log.dir().display(), "made a log");
        Ok(log)
    }

    /// Makes the folder of a log with all that belongs to it, or nothing: one without the topic's id would be taken
    /// for that of any topic of this name.
    fn make_log(
        &self,
        tp: &TopicPartition,
        topic_id: TopicId,
        directory: &LogDirectory,
        config: LogConfig,
    ) -> Result<Log, StorageError> {
        let dir = directory.path.join(tp.to_string());
        let disk = &*self.shared.environment.disk;
        let failed = |error| StorageError::io(&dir, "make", &error);
        let was_there = disk.exists(&dir).map_err(failed)?;
        let open = OpenLog {
            topic_partition: tp.clone(),
            directory_id: directory.id,
            dir: dir.clone(),
            config,
            log_start_offset: None,
            recovery_point: None,
            cleaned_offset: None,
            was_clean: false,
        };
        let made = disk.create_dir_all(&dir).map_err(failed).and_then(|()| {
            let log = Log::open(self.shared.environment.clone(), open)?.log;
            log.set_topic_id(topic_id).inspect_err(|_| log.set_deleted())?;
            Ok(log)
        });
        if made.is_err() && !was_there {
            // If not even this works, the next attempt finds the folder and goes on with it.
            let _ = disk.remove_dir_all(&dir);
        }
        made
    }

    /// Tries a log again that could not be opened for a reason that passes: a full disk, too many open files. Of
    /// several folders the one of the topic's id is taken, if only one has it.
    fn open_again(
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

    fn check_is_nowhere(&self, tp: &TopicPartition) -> Result<(), StorageError> {
        if let Some(future) = self.shared.futures.read().get(tp) {
            let reason = format!(
                "only a copy of {tp} is there, which a move has begun; if the original is lost, rename it to {tp}"
            );
            return Err(StorageError::corrupt(&future.dir(), "open", reason));
        }
        let offline = self.shared.health.iter().filter(|health| !health.is_online());
        let offline = offline.map(|health| health.path().display().to_string());
        let lost = self.shared.placement.lock().lost.clone();
        let lost = lost.iter().map(|id| format!("the lost directory with the id {id}"));
        let places: Vec<String> = offline.chain(lost).collect();
        if places.is_empty() {
            return Ok(());
        }
        let kind = StorageErrorKind::MaybeElsewhere(places.join(", "));
        Err(StorageError::new(Path::new(&tp.to_string()), "open", kind))
    }

    /// Where a new partition goes, as Kafka decides: where it was asked for, else where the fewest are, and of
    /// those into the first. Cordoned directories are taken only if there is no other.
    fn directory_for(&self, tp: &TopicPartition) -> Result<&LogDirectory, StorageError> {
        self.check_directories();
        let placement = self.shared.placement.lock();
        let wish = placement.wishes.get(tp);
        if let Some(wished) = wish.and_then(|wish| self.shared.online().find(|one| one.path == *wish)) {
            return Ok(wished);
        }
        let (logs, futures) = (self.shared.logs.read(), self.shared.futures.read());
        let all = || logs.values().chain(futures.values());
        let count = |directory: &LogDirectory| all().filter(|log| log.directory_id() == directory.id).count();
        let rank =
            |directory: &&LogDirectory| (placement.cordoned.contains(&directory.path), count(directory));
        let chosen = self.shared.online().min_by_key(rank);
        chosen.ok_or_else(|| {
            let failure = self.shared.health.iter().find_map(|health| health.failure());
            failure.cloned().expect("a directory that is not online has failed")
        })
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

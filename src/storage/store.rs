//! All logs of the process, in one or more log directories.

mod directory;
mod foreign;
mod load;
mod maintenance;
mod meta_properties;
mod recovery;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use klamm_io::{Clock, Disk, Random};
use klamm_model::{NodeId, Offset, TopicId, TopicPartition, Uuid};
use parking_lot::{Mutex, RwLock};

use crate::config::LogConfig;
use crate::deletion::{DELETED_FOLDER_SUFFIX, Deletions};
use crate::error::{StorageError, StorageErrorKind};
use crate::log::{Environment, Log, OpenLog};
use crate::open_files::OpenFiles;
#[cfg(debug_assertions)]
use crate::planted::PlantedBug;
use crate::planted::{Planted, planted};

use directory::{Locked, LogDirectory};
pub use foreign::{FolderContents, PartitionFolder, identity};
pub use load::LoadReport;
pub use meta_properties::Keeper;
use recovery::Recoveries;
pub use recovery::{RecoveryStatus, UncheckedPartition};

/// The folder in the first log directory where the metadata quorum keeps its files.
const METADATA_FOLDER: &str = "klamm-metadata";

/// The longest name of a folder.
const FOLDER_NAME_MAX: usize = 255;

/// What a store needs.
#[derive(Clone)]
pub struct StoreSettings {
    /// `log.dirs`: at least one.
    pub log_dirs: Vec<PathBuf>,
    /// The node to which the directories must belong.
    pub node_id: NodeId,
    /// The cluster to which they must belong. `None` takes what the directories say; if they are all new, an
    /// id is made up.
    pub cluster_id: Option<String>,
    /// The file system.
    pub disk: Arc<dyn Disk>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// For ids and jitter.
    pub random: Arc<dyn Random>,
    /// `num.recovery.threads.per.data.dir`: how many logs of a directory are recovered at once. With 1 and one
    /// directory there are no threads at all.
    pub recovery_threads: usize,
    /// How many files of segments are open at once.
    pub open_files_max: usize,
    /// `producer.id.expiration.ms`.
    pub producer_expiration_ms: i64,
    /// A mistake that the store is to make; tests plant it, to see that they notice.
    #[cfg(debug_assertions)]
    pub planted_bug: Option<PlantedBug>,
}

impl StoreSettings {
    /// Settings with Kafka's defaults, where Kafka has one.
    pub fn new(
        log_dirs: Vec<PathBuf>,
        node_id: NodeId,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> StoreSettings {
        StoreSettings {
            log_dirs,
            node_id,
            cluster_id: None,
            disk,
            clock,
            random,
            recovery_threads: 2,
            open_files_max: 10_000,
            producer_expiration_ms: 24 * 60 * 60 * 1000,
            #[cfg(debug_assertions)]
            planted_bug: None,
        }
    }
}

/// All logs of the process. The log directories are locked as long as it lives.
pub struct LogStore {
    shared: Arc<Shared>,
    cluster_id: String,
    keeper: Keeper,
    previous_broker_epoch: Mutex<Option<i64>>,
    is_loaded: AtomicBool,
    /// Held while partitions are loaded, made or deleted, and while checkpoints are written.
    changing: Mutex<()>,
}

/// What checkpoints are made from; logs reach it when their recovery point goes back.
struct Shared {
    environment: Arc<Environment>,
    directories: Vec<LogDirectory>,
    logs: RwLock<BTreeMap<TopicPartition, Arc<Log>>>,
    /// As of the last checkpoint.
    high_watermarks: Mutex<BTreeMap<TopicPartition, Offset>>,
    /// Partitions that could not be opened. What the checkpoints say of them must outlive this process.
    unopened: Mutex<BTreeMap<TopicPartition, Unopened>>,
    /// Partitions that are deleted, but whose folders could not be renamed yet.
    undeleted: Mutex<BTreeMap<TopicPartition, Undeleted>>,
    recoveries: Recoveries,
}

/// A deleted partition whose folder still has its name.
#[derive(Clone, Copy)]
struct Undeleted {
    directory: Uuid,
    delay_ms: i64,
}

/// A partition that could not be opened, or not yet: then the failure is [`StorageErrorKind::Recovering`].
#[derive(Clone)]
struct Unopened {
    directory: Uuid,
    failure: StorageError,
    /// If it is known.
    topic_id: Option<TopicId>,
    recovery_point: Option<Offset>,
    log_start_offset: Option<Offset>,
    high_watermark: Option<Offset>,
    cleaned_offset: Option<Offset>,
}

impl Unopened {
    /// Why the partition of a topic cannot be used.
    fn failure_for(&self, topic_id: TopicId) -> StorageError {
        match self.topic_id {
            Some(found) if found != topic_id => {
                let kind = StorageErrorKind::InconsistentTopicId { found, expected: topic_id };
                StorageError::new(&self.failure.path, "open", kind)
            }
            _ => self.failure.clone(),
        }
    }
}

impl LogStore {
    /// Locks the log directories and settles to whom they belong. Logs are opened by [`LogStore::load`].
    ///
    /// Directories of Apache Kafka ([`LogStore::keeper`]) are not changed before [`LogStore::take_over`].
    pub fn open(settings: StoreSettings) -> Result<LogStore, StorageError> {
        assert!(!settings.log_dirs.is_empty(), "a store has a log directory");
        let locked: Result<Vec<Locked>, StorageError> =
            settings.log_dirs.iter().map(|path| Locked::new(&*settings.disk, path)).collect();
        let locked = locked?;
        let keeper = foreign::keeper(&*settings.disk, &locked)?;
        let found = locked.iter().find_map(|directory| Some(directory.meta.as_ref()?.cluster_id.clone()));
        let cluster_id = settings.cluster_id.clone().or(found);
        let cluster_id = cluster_id.unwrap_or_else(|| random_id(&*settings.random).to_string());
        let mut directories: Vec<LogDirectory> = Vec::new();
        for directory in locked {
            let directory = directory.settle(&settings, &cluster_id)?;
            if let Some(twin) = directories.iter().find(|other| other.id == directory.id) {
                let reason = format!("it has the same directory.id as {}", twin.path.display());
                return Err(StorageError::corrupt(&directory.path, "open the log directory", reason));
            }
            directories.push(directory);
        }
        let environment = Environment {
            files: OpenFiles::new(settings.disk.clone(), settings.open_files_max),
            disk: settings.disk,
            clock: settings.clock,
            random: settings.random,
            deletions: Deletions::default(),
            producer_expiration_ms: settings.producer_expiration_ms,
            planted: Planted {
                #[cfg(debug_assertions)]
                bug: settings.planted_bug,
            },
            recovery_point_went_back: OnceLock::new(),
        };
        let shared = Arc::new(Shared {
            environment: Arc::new(environment),
            directories,
            logs: RwLock::default(),
            high_watermarks: Mutex::default(),
            unopened: Mutex::default(),
            undeleted: Mutex::default(),
            recoveries: Recoveries::new(settings.recovery_threads),
        });
        let weak = Arc::downgrade(&shared);
        let write = move |directory| match weak.upgrade() {
            Some(shared) => shared.write_recovery_points(directory),
            None => Ok(()),
        };
        let _ = shared.environment.recovery_point_went_back.set(Box::new(write));
        let store = LogStore {
            shared,
            cluster_id,
            keeper,
            previous_broker_epoch: Mutex::default(),
            is_loaded: AtomicBool::new(false),
            changing: Mutex::new(()),
        };
        if keeper == Keeper::Klamm {
            store.take_over()?;
        }
        Ok(store)
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.shared.environment.clock.clone()
    }

    pub(crate) fn random(&self) -> &dyn Random {
        &*self.shared.environment.random
    }

    /// The cluster to which the directories belong.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// Where the metadata quorum keeps its files. The folder is made by whom it belongs to.
    pub fn metadata_dir(&self) -> PathBuf {
        self.shared.directories[0].path.join(METADATA_FOLDER)
    }

    /// The log directories with their ids, in the order of `log.dirs`.
    pub fn directory_ids(&self) -> Vec<(PathBuf, Uuid)> {
        self.shared.directories.iter().map(|directory| (directory.path.clone(), directory.id)).collect()
    }

    /// The broker epoch with which the store was closed, if the last stop was clean (KIP-966).
    pub fn previous_broker_epoch(&self) -> Option<i64> {
        *self.previous_broker_epoch.lock()
    }

    /// The log of a partition.
    pub fn get(&self, tp: &TopicPartition) -> Option<Arc<Log>> {
        self.shared.logs.read().get(tp).cloned()
    }

    /// Why a partition that is there cannot be used, if that is so.
    pub fn failure_of(&self, tp: &TopicPartition) -> Option<StorageError> {
        Some(self.shared.unopened.lock().get(tp)?.failure.clone())
    }

    /// All logs, by partition.
    pub fn logs(&self) -> Vec<Arc<Log>> {
        self.shared.logs.read().values().cloned().collect()
    }

    /// Opens a log that is to be there, or makes it in the directory with the fewest partitions. One that
    /// belongs to another topic of the same name is an error, [`crate::StorageErrorKind::InconsistentTopicId`].
    pub fn create(
        &self,
        tp: &TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
    ) -> Result<Arc<Log>, StorageError> {
        let _changing = self.changing.lock();
        assert!(self.is_loaded.load(Ordering::Acquire), "a store is loaded before partitions are made in it");
        self.delete_again(tp)?;
        if let Some(unopened) = self.shared.unopened.lock().get(tp) {
            return Err(unopened.failure_for(topic_id));
        }
        if let Some(log) = self.get(tp) {
            log.set_topic_id(topic_id)?;
            log.update_config(config);
            return Ok(log);
        }
        let directory = self.emptiest_directory();
        if self.shared.directories.iter().any(|directory| directory.checkpoints().name(tp)) {
            // Offsets of an earlier partition of this name would be taken for those of the new one.
            self.shared.write_checkpoints()?;
        }
        let dir = directory.path.join(tp.to_string());
        let disk = &*self.shared.environment.disk;
        disk.create_dir_all(&dir).map_err(|error| StorageError::io(&dir, "make", &error))?;
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
        let log = Log::open(self.shared.environment.clone(), open)?.log;
        log.set_topic_id(topic_id)?;
        let log = Arc::new(log);
        self.shared.logs.write().insert(tp.clone(), log.clone());
        tracing::debug!(partition = %tp, folder = %dir.display(), "made a log");
        Ok(log)
    }

    /// Deletes a partition. Its folder gets another name at once and goes after `file.delete.delay.ms`. Returns
    /// whether it was there.
    ///
    /// After a failure the partition is not served any more, and the deletion is tried again: by another call,
    /// by [`LogStore::run_maintenance`], and before a partition of that name is made.
    pub fn delete(&self, tp: &TopicPartition) -> Result<bool, StorageError> {
        let _changing = self.changing.lock();
        self.shared.recoveries.cancel(tp);
        let log = self.shared.logs.write().remove(tp);
        let unopened = self.shared.unopened.lock().remove(tp);
        let undeleted = match (log, unopened) {
            (Some(log), _) => {
                log.set_deleted();
                Undeleted { directory: log.directory_id(), delay_ms: log.config().file_delete_delay_ms }
            }
            (None, Some(unopened)) => Undeleted { directory: unopened.directory, delay_ms: 0 },
            (None, None) => return self.delete_again(tp),
        };
        self.shared.high_watermarks.lock().remove(tp);
        self.shared.undeleted.lock().insert(tp.clone(), undeleted);
        self.delete_again(tp)
    }

    /// Gives the folder of a deleted partition its new name, if it still has the old one. Returns whether it
    /// had. Its caller holds `changing`.
    fn delete_again(&self, tp: &TopicPartition) -> Result<bool, StorageError> {
        let Some(undeleted) = self.shared.undeleted.lock().get(tp).copied() else { return Ok(false) };
        let Undeleted { directory, delay_ms } = undeleted;
        for directory in self.shared.directories.iter().filter(|other| other.id == directory) {
            self.rename_for_deletion(&directory.path, tp, delay_ms)?;
        }
        self.shared.undeleted.lock().remove(tp);
        Ok(true)
    }

    fn rename_for_deletion(
        &self,
        parent: &Path,
        tp: &TopicPartition,
        delay_ms: i64,
    ) -> Result<(), StorageError> {
        let Environment { disk, clock, random, deletions, .. } = &*self.shared.environment;
        let (from, to) = (parent.join(tp.to_string()), parent.join(deleted_name(tp, random_id(&**random))));
        match disk.rename(&from, &to) {
            Ok(()) => deletions.add_folder(to, clock.now_ms().saturating_add(delay_ms)),
            // An attempt before this one has renamed it, and failed behind that.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StorageError::io(&from, "rename for deletion", &error)),
        }
        let failed = |error| StorageError::io(&from, "rename for deletion", &error);
        if !planted!(self.shared.environment, DeleteWithoutSync) {
            disk.sync_dir(parent).map_err(failed)?;
        }
        tracing::debug!(partition = %tp, folder = %from.display(), "deleted a log");
        Ok(())
    }

    /// The high watermark as of the last checkpoint: of this process or, after a start, of the one before.
    pub fn high_watermark(&self, tp: &TopicPartition) -> Option<Offset> {
        self.shared.high_watermarks.lock().get(tp).copied()
    }

    fn emptiest_directory(&self) -> &LogDirectory {
        let logs = self.shared.logs.read();
        let count =
            |directory: &LogDirectory| logs.values().filter(|log| log.directory_id() == directory.id).count();
        self.shared
            .directories
            .iter()
            .min_by_key(|directory| count(directory))
            .expect("a store has a log directory")
    }

    /// Closes all logs in order, so that the next start needs no recovery, and writes the checkpoints. A
    /// directory in which everything went well is marked clean.
    ///
    /// `broker_epoch` is remembered for the next registration. The locks go with the store.
    ///
    /// A recovery that is under way is given up; the next start begins it again.
    pub fn close(&self, broker_epoch: Option<i64>) -> Result<(), StorageError> {
        self.shared.recoveries.stop();
        let _changing = self.changing.lock();
        // What was never loaded was never recovered, and its checkpoints are those of the process before.
        if !self.is_loaded.load(Ordering::Acquire) {
            return Ok(());
        }
        let unopened = self.shared.unopened.lock();
        let mut unclean: BTreeSet<Uuid> = unopened.values().map(|unopened| unopened.directory).collect();
        drop(unopened);
        // What could not be deleted comes back with the next start, and was not closed in order.
        unclean.extend(self.shared.undeleted.lock().values().map(|undeleted| undeleted.directory));
        let mut failure = Ok(());
        if planted!(self.shared.environment, CleanMarkFirst) {
            self.shared.directories[0].mark_clean(&*self.shared.environment.disk, -1)?;
        }
        for log in self.logs() {
            if let Err(error) = log.close() {
                tracing::error!(partition = %log.topic_partition(), %error, "the log cannot be closed in order");
                unclean.insert(log.directory_id());
                failure = Err(error);
            }
        }
        self.shared.write_checkpoints()?;
        for directory in self.shared.directories.iter().filter(|directory| !unclean.contains(&directory.id)) {
            directory.mark_clean(&*self.shared.environment.disk, broker_epoch.unwrap_or(-1))?;
        }
        failure
    }
}

/// An id that, as a command-line argument, is not taken for an option.
fn random_id(random: &dyn Random) -> Uuid {
    loop {
        let id = Uuid::from_random(random.next_16());
        if !id.to_string().starts_with('-') {
            return id;
        }
    }
}

/// `<topic>-<partition>.<32 hex digits>-delete`; the topic is cut if the whole would be too long.
fn deleted_name(tp: &TopicPartition, id: Uuid) -> String {
    let hex: String = id.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let suffix = format!("-{}.{hex}{DELETED_FOLDER_SUFFIX}", tp.partition);
    let topic = &tp.topic[..tp.topic.len().min(FOLDER_NAME_MAX - suffix.len())];
    format!("{topic}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A topic with the longest name must be deletable, although its folder's name has no room for a suffix.
    #[test]
    fn the_name_of_a_deleted_folder_fits() {
        let id = Uuid([0xab; 16]);
        let short = deleted_name(&TopicPartition::new("a-b", 3), id);
        assert_eq!(short, "a-b-3.abababababababababababababababab-delete");
        let long = deleted_name(&TopicPartition::new("x".repeat(249), 12345), id);
        assert_eq!(long.len(), 255);
        assert!(long.ends_with("-12345.abababababababababababababababab-delete"));
    }
}

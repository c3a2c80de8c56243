//! All logs of the process, in one or more log directories.

mod deleting;
mod directory;
mod duplicates;
mod foreign;
mod load;
mod maintenance;
mod making;
mod meta_properties;
mod moves;
mod placement;
mod recovery;
mod side_by_side;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use klamm_io::{Clock, Disk, Random, Threads};
use klamm_model::{NodeId, Offset, TopicId, TopicPartition, Uuid};
use parking_lot::{Mutex, RwLock};

use crate::deletion::Deletions;
use crate::error::{StorageError, StorageErrorKind};
use crate::health::{DirectoryHealth, WatchedDisk};
use crate::log::{Environment, Log};
use crate::open_files::OpenFiles;
#[cfg(debug_assertions)]
use crate::planted::PlantedBug;
use crate::planted::{Planted, planted};
use crate::syncer::Syncer;

use deleting::Undeleted;
use directory::{Locked, LogDirectory};
pub use foreign::{FolderContents, PartitionFolder, identity};
pub use load::LoadReport;
pub use making::{Past, Wanted};
pub use meta_properties::Keeper;
use moves::{Interrupted, Unsettled};
pub use moves::{Move, MoveError};
use placement::Placement;
pub use placement::{DirectoryStatus, PlacementError};
use recovery::Recoveries;
pub use recovery::{RecoveryStatus, UncheckedPartition};
use side_by_side::side_by_side;

/// The folder in the first log directory where the metadata quorum keeps its files.
const METADATA_FOLDER: &str = "klamm-metadata";

/// The longest name of a folder.
const FOLDER_NAME_MAX: usize = 255;

/// How many logs are closed or made at once, at the least, unless the settings ask for one thread: each is a handful of
/// syncs, so that a thousand logs, one after the other, took a quarter of a minute on a busy disk.
const WAITING_THREADS: usize = 8;

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
    /// Whether directories whose first is new belong to no cluster, and nothing is written, until
    /// [`LogStore::join_cluster`] says to which. The first has the metadata: whatever the others were part of, the
    /// node has to find it again.
    pub joins_later: bool,
    /// The id that the first directory gets if it is new; `None` for one that is made up.
    pub first_directory_id: Option<Uuid>,
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
    /// Where syncs are done that acknowledgements wait for.
    pub threads: Threads,
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
            joins_later: false,
            first_directory_id: None,
            disk,
            clock,
            random,
            recovery_threads: 2,
            open_files_max: 10_000,
            producer_expiration_ms: 24 * 60 * 60 * 1000,
            threads: Threads::Own,
            #[cfg(debug_assertions)]
            planted_bug: None,
        }
    }
}

/// All logs of the process. The log directories are locked as long as it lives.
pub struct LogStore {
    shared: Arc<Shared>,
    /// Empty until the directories belong to a cluster.
    cluster_id: OnceLock<String>,
    wanted_cluster_id: Option<String>,
    keeper: Keeper,
    previous_broker_epoch: Option<i64>,
    is_loaded: AtomicBool,
    /// Held while partitions are loaded, made or deleted, and while checkpoints are written.
    changing: Mutex<()>,
}

/// What checkpoints are made from; logs reach it when their recovery point goes back.
struct Shared {
    environment: Arc<Environment>,
    /// Those that could be opened.
    directories: Vec<LogDirectory>,
    /// All of `log.dirs`, in that order.
    health: Vec<Arc<DirectoryHealth>>,
    logs: RwLock<BTreeMap<TopicPartition, Arc<Log>>>,
    /// The copies of partitions that move into another directory.
    futures: RwLock<BTreeMap<TopicPartition, Arc<Log>>>,
    /// As of the last checkpoint.
    high_watermarks: Mutex<BTreeMap<TopicPartition, Offset>>,
    /// Partitions that could not be opened. What the checkpoints say of them must outlive this process.
    unopened: Mutex<BTreeMap<TopicPartition, Unopened>>,
    /// Partitions that stand in several directories, where nothing says which is the right one.
    undecided: Mutex<BTreeMap<TopicPartition, Vec<Unopened>>>,
    /// Folders of partitions that are deleted or have moved, and that could not be renamed yet.
    undeleted: Mutex<BTreeMap<TopicPartition, Vec<Undeleted>>>,
    /// Partitions of which it is not known which folder is theirs.
    unsettled: Mutex<BTreeMap<TopicPartition, Unsettled>>,
    placement: Mutex<Placement>,
    recoveries: Recoveries,
    /// Copies that were being made, to be opened when the partitions that they copy are open.
    interrupted: Mutex<Vec<Interrupted>>,
}

/// A partition that could not be opened, or not yet: then the failure is [`StorageErrorKind::Recovering`].
#[derive(Clone)]
struct Unopened {
    directory: Uuid,
    folder: PathBuf,
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
        let health: Vec<Arc<DirectoryHealth>> =
            settings.log_dirs.iter().map(|path| DirectoryHealth::new(path)).collect();
        let mut locked: Vec<Locked> = Vec::new();
        for health in &health {
            locked.extend(unless_unusable(Locked::new(&*settings.disk, health.path()), health)?);
        }
        check_first(&health)?;
        let unusable = health.iter().find_map(|health| health.failure());
        let keeper = foreign::keeper(&*settings.disk, &locked, unusable)?;
        let found = locked.iter().find_map(|directory| directory.meta.as_ref()?.cluster_id.clone());
        let made_up = || random_id(&*settings.random).to_string();
        let joins_later =
            settings.joins_later && keeper == Keeper::Klamm && !has_cluster(&locked, health[0].path());
        let wanted = settings.cluster_id.clone().or(found);
        let wanted = if joins_later { wanted } else { Some(wanted.unwrap_or_else(made_up)) };
        let directories = settle(locked, &settings, wanted.as_deref(), joins_later, &health)?;
        check_first(&health)?;
        let disk: Arc<dyn Disk> = Arc::new(WatchedDisk::new(settings.disk.clone(), health.clone()));
        let environment = Environment {
            files: OpenFiles::new(disk.clone(), settings.open_files_max),
            disk,
            syncer: Syncer::new(settings.threads),
            unwatched_disk: settings.disk,
            directories: directories.iter().map(|one| (one.id, one.health.clone())).collect(),
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
        let previous_broker_epoch = directory::previous_broker_epoch(&*environment.disk, &directories);
        let shared = Arc::new(Shared {
            environment: Arc::new(environment),
            directories,
            health,
            logs: RwLock::default(),
            futures: RwLock::default(),
            high_watermarks: Mutex::default(),
            unopened: Mutex::default(),
            undeleted: Mutex::default(),
            undecided: Mutex::default(),
            unsettled: Mutex::default(),
            placement: Mutex::default(),
            recoveries: Recoveries::new(settings.recovery_threads),
            interrupted: Mutex::default(),
        });
        let weak = Arc::downgrade(&shared);
        let write =
            move |directory| weak.upgrade().map_or(Ok(()), |shared| shared.write_recovery_points(directory));
        let _ = shared.environment.recovery_point_went_back.set(Box::new(write));
        let store = LogStore {
            shared,
            cluster_id: wanted.clone().filter(|_| !joins_later).map(OnceLock::from).unwrap_or_default(),
            wanted_cluster_id: wanted,
            keeper,
            previous_broker_epoch,
            is_loaded: AtomicBool::new(false),
            changing: Mutex::new(()),
        };
        if keeper == Keeper::Klamm && !store.cluster_id().is_empty() {
            store.write_identities()?;
        }
        Ok(store)
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.shared.environment.clock.clone()
    }

    pub(crate) fn random(&self) -> &dyn Random {
        &*self.shared.environment.random
    }

    /// The cluster to which the directories belong; empty while they belong to none.
    pub fn cluster_id(&self) -> &str {
        self.cluster_id.get().map_or("", String::as_str)
    }

    /// The cluster to which the directories must belong, from the settings or because one of them does.
    pub fn wanted_cluster_id(&self) -> Option<&str> {
        self.wanted_cluster_id.as_deref()
    }

    /// Writes who the directories are, also where they belong to no cluster yet.
    pub fn write_identities(&self) -> Result<(), StorageError> {
        for directory in self.shared.directories.iter().rev() {
            let written = directory.write_identity(&*self.shared.environment.disk);
            unless_unusable(written, &directory.health)?;
        }
        check_first(&self.shared.health)
    }

    /// Has the directories, which belonged to no cluster yet, belong to this one. It is on the disk when this
    /// returns. After a crash in between, they all belong to it: one that says so is enough.
    pub fn join_cluster(&self, cluster_id: &str) -> Result<(), StorageError> {
        for directory in self.shared.directories.iter().rev() {
            let joined = directory.join_cluster(&*self.shared.environment.disk, cluster_id);
            unless_unusable(joined, &directory.health)?;
        }
        check_first(&self.shared.health)?;
        let known = self.cluster_id.get_or_init(|| cluster_id.to_owned());
        assert_eq!(known, cluster_id, "a store belongs to one cluster");
        Ok(())
    }

    /// Where the metadata quorum keeps its files. The folder is made by whom it belongs to.
    pub fn metadata_dir(&self) -> PathBuf {
        self.shared.directories[0].path.join(METADATA_FOLDER)
    }

    /// The log directories with their ids, in the order of `log.dirs`.
    pub fn directory_ids(&self) -> Vec<(PathBuf, Uuid)> {
        self.shared.directories.iter().map(|directory| (directory.path.clone(), directory.id)).collect()
    }

    /// The broker epoch with which the store was closed, if the last stop was clean (KIP-966). It is known before the
    /// logs are opened, since a broker tells it when it registers.
    pub fn previous_broker_epoch(&self) -> Option<i64> {
        self.previous_broker_epoch
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

    /// The high watermark as of the last checkpoint: of this process or, after a start, of the one before.
    pub fn high_watermark(&self, tp: &TopicPartition) -> Option<Offset> {
        self.shared.high_watermarks.lock().get(tp).copied()
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
        let mut unclean: BTreeSet<Uuid> = unopened.values().map(|one| one.directory).collect();
        drop(unopened);
        unclean.extend(self.shared.undecided.lock().values().flatten().map(|one| one.directory));
        // The copies of interrupted moves were not looked at either.
        unclean.extend(self.shared.interrupted.lock().iter().map(|Interrupted(open)| open.directory_id));
        // What could not be deleted comes back with the next start, and was not closed in order.
        unclean.extend(self.shared.undeleted.lock().values().flatten().map(|undeleted| undeleted.directory));
        let mut failure = Ok(());
        if planted!(self.shared.environment, CleanMarkFirst) {
            self.shared.directories[0].mark_clean(&*self.shared.environment.disk, -1)?;
        }
        let futures: Vec<Arc<Log>> = self.shared.futures.read().values().cloned().collect();
        let logs = self.logs().into_iter().chain(futures).filter(|log| log.is_directory_online());
        let logs: Vec<Arc<Log>> = logs.collect();
        let failed = Mutex::new(Vec::new());
        side_by_side(self.waiting_threads(), &logs, |log| {
            if let Err(error) = log.close() {
                tracing::error!(partition = %log.topic_partition(), %error, "the log cannot be closed in order");
                failed.lock().push((log.directory_id(), error));
            }
        });
        for (directory, error) in failed.into_inner() {
            unclean.insert(directory);
            failure = Err(error);
        }
        self.shared.write_checkpoints()?;
        for directory in self.shared.online().filter(|directory| !unclean.contains(&directory.id)) {
            directory.mark_clean(&*self.shared.environment.disk, broker_epoch.unwrap_or(-1))?;
        }
        failure
    }

    /// How many threads work on logs that mostly wait for the disk.
    fn waiting_threads(&self) -> usize {
        match self.shared.recoveries.threads() {
            1 => 1,
            threads => threads.max(WAITING_THREADS),
        }
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

/// `<topic>-<partition>.<32 hex digits><suffix>`; the topic is cut if the whole would be too long.
fn suffixed_name(tp: &TopicPartition, id: Uuid, suffix: &str) -> String {
    let hex: String = id.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let suffix = format!("-{}.{hex}{suffix}", tp.partition);
    let topic = &tp.topic[..tp.topic.len().min(FOLDER_NAME_MAX - suffix.len())];
    format!("{topic}{suffix}")
}

/// What was opened, or nothing if the directory cannot be used: it is offline then, and others may serve on.
/// What belongs to somebody else, is used by another process or makes no sense is an error all the same.
fn unless_unusable<T>(
    opened: Result<T, StorageError>,
    health: &DirectoryHealth,
) -> Result<Option<T>, StorageError> {
    match opened {
        Err(
            error @ StorageError { kind: StorageErrorKind::Io(..) | StorageErrorKind::NotWritable(_), .. },
        ) => {
            health.fail(error);
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

/// Whether the directory at `path` belongs to a cluster.
fn has_cluster(locked: &[Locked], path: &Path) -> bool {
    let meta = locked.iter().find(|directory| directory.path() == path).and_then(|found| found.meta.as_ref());
    meta.is_some_and(|meta| meta.cluster_id.is_some())
}

/// Compares the identities of the directories with what is expected. Those that cannot be used are left out.
fn settle(
    locked: Vec<Locked>,
    settings: &StoreSettings,
    cluster_id: Option<&str>,
    joins_later: bool,
    health: &[Arc<DirectoryHealth>],
) -> Result<Vec<LogDirectory>, StorageError> {
    let mut directories: Vec<LogDirectory> = Vec::new();
    for directory in locked {
        let is_first = directory.path() == health[0].path();
        let cluster_id = cluster_id.filter(|_| !(is_first && joins_later));
        let health = directory.health_among(health);
        let id = settings.first_directory_id.filter(|_| is_first);
        let settled = directory.settle(settings, cluster_id, id, health.clone());
        let Some(directory) = unless_unusable(settled, &health)? else { continue };
        if let Some(twin) = directories.iter().find(|other| other.id == directory.id) {
            let reason = format!("it has the same directory.id as {}", twin.path.display());
            return Err(StorageError::corrupt(&directory.path, "open the log directory", reason));
        }
        directories.push(directory);
    }
    Ok(directories)
}

/// The first directory holds the metadata, without which there is nothing to serve.
fn check_first(health: &[Arc<DirectoryHealth>]) -> Result<(), StorageError> {
    health[0].failure().map_or(Ok(()), |failure| Err(failure.clone()))
}

impl Shared {
    fn directory(&self, id: Uuid) -> Option<&LogDirectory> {
        self.directories.iter().find(|directory| directory.id == id)
    }

    /// The directories that work.
    fn online(&self) -> impl Iterator<Item = &LogDirectory> {
        self.directories.iter().filter(|directory| directory.health.is_online())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A topic with the longest name must be deletable, although its folder's name has no room for a suffix.
    #[test]
    fn the_name_of_a_deleted_folder_fits() {
        let id = Uuid([0xab; 16]);
        let short = suffixed_name(&TopicPartition::new("a-b", 3), id, "-delete");
        assert_eq!(short, "a-b-3.abababababababababababababababab-delete");
        let long = suffixed_name(&TopicPartition::new("x".repeat(249), 12345), id, "-delete");
        assert_eq!(long.len(), 255);
        assert!(long.ends_with("-12345.abababababababababababababababab-delete"));
    }
}

//! One partition's log.
//!
//! There is one writer at a time, under a mutex. Readers never wait for it: they take the list of segments and
//! the end of the log as the writer last published them.

mod append;
mod clean;
mod gaps;
mod leftovers;
mod lookup;
mod moving;
mod open;
mod read;
mod recovery;
mod recovery_start;
mod retention;
mod snapshots;
mod sync;
mod truncate;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use klamm_io::{Clock, Disk, Random};
use klamm_model::{LeaderEpoch, Offset, ProducerId, TimestampMs, TopicId, TopicPartition, Uuid};
use parking_lot::{Mutex, RwLock};

use crate::config::LogConfig;
use crate::deletion::Deletions;
use crate::error::{StorageError, StorageErrorKind};
use crate::health::DirectoryHealth;
use crate::leader_epochs::{EpochEntry, LeaderEpochs};
use crate::open_files::OpenFiles;
use crate::planted::Planted;
use crate::positions::Positions;
use crate::producers::{ProducerState, Producers};
use crate::segment::{LogSegment, SegmentPlace};
use crate::syncer::{Gathering, Syncer};

pub use append::{Appended, FlushDue};
pub(crate) use clean::{CleaningView, Replacement};
pub use lookup::AbortedTransaction;
pub use moving::Piece;
pub(crate) use open::{OpenLog, OpenedLog, Opening, UncheckedLog};
pub use read::LogSlice;
pub use recovery::Recovery;

/// What all logs of a process share.
pub(crate) struct Environment {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) files: Arc<OpenFiles>,
    pub(crate) syncer: Syncer,
    pub(crate) deletions: Deletions,
    pub(crate) producer_expiration_ms: i64,
    #[cfg_attr(not(debug_assertions), allow(dead_code, reason = "a release build has no mistakes to plant"))]
    pub(crate) planted: Planted,
    /// The disk as it is, for what must be tried in a log directory that has failed too.
    pub(crate) unwatched_disk: Arc<dyn Disk>,
    /// The log directories by their ids; those that could not be opened are missing.
    pub(crate) directories: Vec<(Uuid, Arc<DirectoryHealth>)>,
    /// Writes the recovery points of a log directory. A checkpoint above what a truncation has left would keep
    /// recovery from looking at what is written there later.
    pub(crate) recovery_point_went_back: OnceLock<Box<CheckpointWriter>>,
}

type CheckpointWriter = dyn Fn(Uuid) -> Result<(), StorageError> + Send + Sync;

/// A partition's log. All methods take `&self` and may be called from any thread; those that touch the disk
/// block.
pub struct Log {
    topic_partition: TopicPartition,
    topic_id: Mutex<Option<TopicId>>,
    directory_id: Uuid,
    pub(crate) dir: Arc<Path>,
    pub(crate) environment: Arc<Environment>,
    config: ArcSwap<LogConfig>,
    /// Never empty; the last one takes the appends.
    segments: ArcSwap<Vec<Arc<LogSegment>>>,
    end: ArcSwap<LogEnd>,
    log_start_offset: AtomicI64,
    recovery_point: AtomicI64,
    /// Up to where the log was compacted, or [`NEVER_CLEANED`].
    cleaned_offset: AtomicI64,
    /// Below this offset the indexes are on the disk too, and the snapshots of producers.
    sealed_point: AtomicI64,
    writer: Mutex<Writer>,
    producers: Mutex<Producers>,
    epochs: RwLock<LeaderEpochs>,
    positions: Positions,
    /// Held while files are synced, and by what moves the recovery point back. It comes before `writer`.
    syncing: Mutex<()>,
    /// Taken after any other lock.
    pub(crate) gathering: Mutex<Gathering>,
    unsynced: Unsynced,
    failure: OnceLock<StorageError>,
    is_deleted: AtomicBool,
    /// Whether it is being copied into another log directory.
    is_moving: AtomicBool,
    /// Whether the store was closed: nothing is written any more.
    is_closed: AtomicBool,
}

/// The end of the log. Offset and position always belong together.
#[derive(Clone, Copy, Debug)]
struct LogEnd {
    offset: Offset,
    segment: Offset,
    position: u64,
}

/// What the writer's mutex guards beside the segments.
struct Writer {
    /// What is taken off `segment.ms` for the active segment.
    roll_jitter_ms: i64,
    /// The offset of the newest `.snapshot` file.
    snapshot_offset: Option<Offset>,
    /// How often batches were taken off the end: what was read before may be of no log any more.
    truncations: u64,
}

/// In the place of the offset up to which a log was compacted.
const NEVER_CLEANED: Offset = -1;

/// Which changes beside those of the segments' content may not survive a power cut yet.
struct Unsynced {
    /// Names in the log's folder.
    names: AtomicBool,
    /// The folder's own name, and `partition.metadata` in it.
    folder: AtomicBool,
    /// `leader-epoch-checkpoint`.
    epochs: AtomicBool,
    /// The removal of `recovery-start`, which waits for all the others.
    recovery_start: AtomicBool,
    /// The note of a sync that failed, where the disk would not take that either.
    failed_sync: AtomicBool,
    /// When the log was last synced, in milliseconds of the monotonic clock.
    last_sync_ms: AtomicU64,
}

impl Log {
    /// The partition.
    pub fn topic_partition(&self) -> &TopicPartition {
        &self.topic_partition
    }

    /// The topic's id; none in folders of old versions.
    pub fn topic_id(&self) -> Option<TopicId> {
        *self.topic_id.lock()
    }

    /// The folder.
    pub fn dir(&self) -> PathBuf {
        self.dir.to_path_buf()
    }

    /// The id of the log directory in which the folder is.
    pub fn directory_id(&self) -> Uuid {
        self.directory_id
    }

    /// The settings in force.
    pub fn config(&self) -> Arc<LogConfig> {
        self.config.load_full()
    }

    /// Changes the settings. They count from the next append or maintenance on.
    pub fn update_config(&self, config: LogConfig) {
        self.config.store(Arc::new(config));
    }

    /// The first offset that can be read.
    pub fn log_start_offset(&self) -> Offset {
        self.log_start_offset.load(Ordering::Acquire)
    }

    /// The offset that the next record gets.
    pub fn log_end_offset(&self) -> Offset {
        self.end.load().offset
    }

    /// Everything below this offset is on the disk, whatever happens to the machine.
    pub fn recovery_point(&self) -> Offset {
        self.recovery_point.load(Ordering::Acquire)
    }

    /// What a checkpoint says of the recovery point. Where a flush has reached the end of the active segment, its
    /// indexes are not on the disk with it; should the segment end just there, a recovery must not pass it by.
    pub(crate) fn recovery_point_to_remember(&self) -> Offset {
        let recovery_point = self.recovery_point();
        let is_sealed = self.sealed_point.load(Ordering::Acquire) >= recovery_point;
        if is_sealed || self.is_closed.load(Ordering::Acquire) { recovery_point } else { recovery_point - 1 }
    }

    /// Bytes of all segments, without their indexes.
    pub fn size(&self) -> u64 {
        self.segments.load().iter().map(|segment| segment.size()).sum()
    }

    /// The number of segments.
    pub fn segment_count(&self) -> usize {
        self.segments.load().len()
    }

    /// The base offsets of the segments, rising.
    pub fn segment_offsets(&self) -> Vec<Offset> {
        self.segments.load().iter().map(|segment| segment.base_offset()).collect()
    }

    /// A failure after which the log takes no more calls, if there was one.
    pub fn failure(&self) -> Option<&StorageError> {
        self.failure.get()
    }

    /// An error that says that the disk has lost records that others count on.
    pub fn lost_records(&self) -> StorageError {
        let reason = format!(
            "the disk has lost records behind offset {}, which other replicas have; one of them has to lead",
            self.log_end_offset()
        );
        StorageError::corrupt(&self.dir, "lead from", reason)
    }

    /// What is known of a producer.
    pub fn producer(&self, id: ProducerId) -> Option<ProducerState> {
        self.producers.lock().get(id).cloned()
    }

    /// All producers, by id.
    pub fn producers(&self) -> Vec<ProducerState> {
        self.producers.lock().iter().cloned().collect()
    }

    /// The open transactions: producer, first offset, and when the producer was last heard of; by first offset.
    pub fn open_transactions(&self) -> Vec<(ProducerId, Offset, TimestampMs)> {
        self.producers.lock().ongoing().collect()
    }

    /// Forgets producers that were silent for longer than the setting allows and have no transaction open.
    /// Returns how many.
    pub fn expire_producers(&self, now_ms: TimestampMs) -> usize {
        self.producers.lock().expire(now_ms, self.environment.producer_expiration_ms)
    }

    /// The first offset that belongs to a transaction that is open, or whose end is not known to be replicated.
    pub fn first_unstable_offset(&self) -> Option<Offset> {
        self.producers.lock().first_unstable_offset()
    }

    /// Up to where a reader of committed records may go: the high watermark, or the first offset of a
    /// transaction whose end is not below it.
    pub fn last_stable_offset(&self, high_watermark: Offset) -> Offset {
        let producers = self.producers.lock();
        producers.first_unstable_offset_at(high_watermark).map_or(high_watermark, |o| o.min(high_watermark))
    }

    /// Tells that all below is replicated, so that ended transactions no longer count as unstable. The high
    /// watermark of a leader never goes back, so what is below it once stays so.
    pub fn on_high_watermark(&self, high_watermark: Offset) {
        let mut producers = self.producers.lock();
        if producers.has_unreplicated_below(high_watermark) {
            producers.on_high_watermark(high_watermark);
        }
    }

    /// The newest leader epoch.
    pub fn latest_epoch(&self) -> Option<LeaderEpoch> {
        self.epochs.read().latest().map(|entry| entry.epoch)
    }

    /// All leader epochs, rising.
    pub fn leader_epochs(&self) -> Vec<EpochEntry> {
        self.epochs.read().entries().to_vec()
    }

    /// The leader epoch to which an offset belongs.
    pub fn epoch_of(&self, offset: Offset) -> Option<LeaderEpoch> {
        self.epochs.read().epoch_of(offset)
    }

    /// The largest epoch that is known and not above the one asked for, and where it ends. `None` where Kafka
    /// answers with an undefined epoch and offset (-1, -1).
    pub fn end_offset_for(&self, epoch: LeaderEpoch) -> Option<(LeaderEpoch, Offset)> {
        self.epochs.read().end_offset_for(epoch, self.log_end_offset())
    }

    /// Notes that a leader epoch begins at an offset.
    pub fn assign_epoch(&self, epoch: LeaderEpoch, start_offset: Offset) -> Result<(), StorageError> {
        self.check_writable("assign an epoch in")?;
        let mut epochs = self.epochs.write();
        let before = epochs.clone();
        if !epochs.assign(epoch, start_offset) {
            return Ok(());
        }
        // What is not in the file must be written with the next attempt.
        self.write_epochs(&epochs).inspect_err(|_| *epochs = before)
    }

    fn health(&self) -> Option<&DirectoryHealth> {
        let found = self.environment.directories.iter().find(|(id, _)| *id == self.directory_id);
        found.map(|(_, health)| &**health)
    }

    pub(crate) fn check_directory(&self, context: &'static str) -> Result<(), StorageError> {
        self.health().map_or(Ok(()), |health| health.check(context))
    }

    /// Whether the log directory works, as far as is known.
    pub fn is_directory_online(&self) -> bool {
        self.health().is_none_or(DirectoryHealth::is_online)
    }

    /// As [`Log::check_usable`], for calls that change something.
    fn check_writable(&self, context: &'static str) -> Result<(), StorageError> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StorageError::new(&self.dir, context, StorageErrorKind::Closed));
        }
        self.check_usable(context)
    }

    /// Why the log, or its whole directory, takes no more calls, if it is so. `context` is what is to be done.
    pub fn check_usable(&self, context: &'static str) -> Result<(), StorageError> {
        if self.is_deleted.load(Ordering::Acquire) {
            return Err(StorageError::new(&self.dir, context, StorageErrorKind::Deleted));
        }
        self.check_directory(context)?;
        match self.failure.get() {
            None => Ok(()),
            Some(failure) => {
                let kind = StorageErrorKind::Offline(failure.to_string());
                Err(StorageError::new(&self.dir, context, kind))
            }
        }
    }

    /// Takes the log out of service after a failure that left memory and disk apart.
    pub(crate) fn set_offline(&self, failure: StorageError) -> StorageError {
        // A directory that goes offline says so once, for all its logs.
        if self.failure.set(failure.clone()).is_ok() && self.is_directory_online() {
            tracing::error!(partition = %self.topic_partition, %failure, "the log goes offline");
        }
        failure
    }

    /// As [`Log::set_offline`], for what happened outside of the log.
    pub(crate) fn fail(&self, failure: StorageError) {
        self.set_offline(failure);
    }

    fn active(&self) -> Arc<LogSegment> {
        self.segments.load().last().expect("a log has a segment").clone()
    }

    fn place(&self) -> SegmentPlace<'_> {
        SegmentPlace {
            directory: &self.dir,
            files: &self.environment.files,
            now_ms: self.environment.clock.now_ms(),
        }
    }

    /// Publishes a new end. Readers see batches only from then on.
    fn publish_end(&self, offset: Offset, segment: &LogSegment) {
        let end = LogEnd { offset, segment: segment.base_offset(), position: segment.size() };
        self.end.store(Arc::new(end));
    }
}

/// A part of `segment.ms` by chance, so that the segments of many partitions do not all end at once.
fn roll_jitter_ms(config: &LogConfig, random: &dyn Random) -> i64 {
    let bound = config.segment_jitter_ms.min(config.segment_ms_max());
    if bound <= 0 { 0 } else { (random.next_u64() % bound as u64) as i64 }
}

//! Opening a log from its folder.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use klamm_model::{Offset, TopicId, TopicPartition, Uuid};
use parking_lot::{Mutex, RwLock};

use super::leftovers::{self, Folder};
use super::recovery::{Progress, Recovery, first_to_recover};
use super::recovery_start::{Cause, RecoveryStart};
use super::{Environment, Log, LogEnd, NEVER_CLEANED, Unsynced, Writer, roll_jitter_ms};
use crate::checkpoint;
use crate::config::LogConfig;
use crate::error::{StorageError, StorageErrorKind};
use crate::leader_epochs::{self, LeaderEpochs};
use crate::partition_metadata;
use crate::positions::Positions;
use crate::producers::Producers;
use crate::segment::{LogSegment, SegmentPlace};

/// What it takes to open a log.
pub(crate) struct OpenLog {
    pub(crate) topic_partition: TopicPartition,
    pub(crate) directory_id: Uuid,
    pub(crate) dir: PathBuf,
    pub(crate) config: LogConfig,
    /// From the checkpoints of the log directory.
    pub(crate) log_start_offset: Option<Offset>,
    pub(crate) recovery_point: Option<Offset>,
    /// Up to where the log was compacted.
    pub(crate) cleaned_offset: Option<Offset>,
    /// Whether the log directory was closed in order, so that nothing needs to be scanned.
    pub(crate) was_clean: bool,
}

/// An opened log, and what had to be done for it.
pub(crate) struct OpenedLog {
    pub(crate) log: Log,
    pub(crate) recovery: Option<Recovery>,
}

/// What is found where a log is to be opened.
pub(crate) enum Opening {
    /// The log, in order.
    Ready(Log),
    /// A log that must be checked first.
    Unchecked(UncheckedLog),
}

/// A log whose batches must be checked before anybody uses it.
pub(crate) struct UncheckedLog {
    log: Log,
    recovery_point: Option<Offset>,
    /// All below this offset is known to be in order.
    from: Offset,
    /// From where on all is to be written again.
    rewrite_from: Option<Offset>,
}

impl UncheckedLog {
    /// The topic's id; none in folders of old versions.
    pub(crate) fn topic_id(&self) -> Option<TopicId> {
        self.log.topic_id()
    }

    /// How many bytes there are to check.
    pub(crate) fn bytes(&self) -> u64 {
        self.log.bytes_to_recover(self.from)
    }

    /// Checks and mends the log.
    pub(crate) fn recover(self, progress: &Progress<'_>) -> Result<OpenedLog, StorageError> {
        if let Some(offset) = self.rewrite_from {
            // What recovery finds as it would make it, it leaves.
            self.log.forget_what_recovery_makes(offset.min(self.from))?;
        }
        let recovery = self.log.recover(self.from, self.recovery_point.unwrap_or(0), progress)?;
        if let Some(offset) = self.rewrite_from {
            self.log.rewrite_from(offset)?;
        }
        let recovery_point = self.recovery_point.unwrap_or(0).min(self.from);
        self.log.settle(Some(recovery_point))?;
        Ok(OpenedLog { log: self.log, recovery: Some(recovery) })
    }
}

impl Log {
    /// Opens a log, with all that this takes. Its folder must be there; an empty one gives an empty log.
    pub(crate) fn open(environment: Arc<Environment>, open: OpenLog) -> Result<OpenedLog, StorageError> {
        match Log::begin_opening(environment, open)? {
            Opening::Ready(log) => Ok(OpenedLog { log, recovery: None }),
            Opening::Unchecked(unchecked) => unchecked.recover(&|_| true),
        }
    }

    /// Opens a log if that can be done without looking at all its batches.
    pub(crate) fn begin_opening(
        environment: Arc<Environment>,
        open: OpenLog,
    ) -> Result<Opening, StorageError> {
        let disk = &*environment.disk;
        let folder = leftovers::put_in_order(disk, &open.dir)?;
        let topic_id = read_topic_id(&environment, &open)?;
        let epochs = read_epochs(&environment, &open, &folder)?;
        let log = Log::new(environment, &open, topic_id, epochs.clone().unwrap_or_default(), &folder)?;
        log.remove_stray_snapshots(&folder)?;
        let noted = RecoveryStart::read(&*log.environment.disk, &open.dir)?;
        let from = match epochs {
            // The batches tell the epochs, so all of them are looked at.
            None => Some(log.segments.load()[0].base_offset()),
            Some(_) => log.recovery_start(&folder, &open)?,
        };
        if let Some(from) = log.noted_start(from, noted, open.recovery_point)? {
            let rewrite_from =
                noted.filter(|noted| noted.cause == Cause::FailedSync).map(|noted| noted.offset);
            let recovery_point = open.recovery_point;
            return Ok(Opening::Unchecked(UncheckedLog { log, recovery_point, from, rewrite_from }));
        }
        // A close leaves a snapshot of the end; without one the checkpoint may be of another time than the files.
        let end_offset = open.recovery_point.filter(|point| *point == 0 || folder.snapshots.contains(point));
        if !log.set_end_of_clean_log(end_offset)? {
            let from = log.active().base_offset();
            log.noted_start(Some(from), noted, open.recovery_point)?;
            let recovery_point = open.recovery_point;
            return Ok(Opening::Unchecked(UncheckedLog { log, recovery_point, from, rewrite_from: None }));
        }
        log.settle(None)?;
        Ok(Opening::Ready(log))
    }

    /// From which offset on the log must be recovered; `None` if it is as it was closed.
    fn recovery_start(&self, folder: &Folder, open: &OpenLog) -> Result<Option<Offset>, StorageError> {
        let lacks_index = |offset: &&Offset| {
            !folder.offset_indexes.contains(*offset) || !folder.time_indexes.contains(*offset)
        };
        let mut without_index = folder.segments.iter().find(lacks_index).copied();
        if open.was_clean && without_index.is_none() {
            without_index = self.first_with_broken_index()?;
        }
        let recovery_point = open.recovery_point.unwrap_or(0);
        let is_closed = folder.segments.is_empty()
            || open.was_clean
            || (without_index.is_none() && self.is_as_closed_at(recovery_point, folder)?);
        if is_closed {
            return Ok(without_index);
        }
        Ok(Some(without_index.map_or(recovery_point, |offset| offset.min(recovery_point))))
    }

    /// The first segment of which an index cannot be what was closed in order: torn, or with a last entry that points
    /// behind the segment. An entry in its middle that is wrong is noticed by who searches with it.
    fn first_with_broken_index(&self) -> Result<Option<Offset>, StorageError> {
        let segments = self.segments.load();
        for (index, segment) in segments.iter().enumerate() {
            let next = segments.get(index + 1).map(|next| next.base_offset());
            let broken = segment.broken_index(next)?;
            segment.close_files();
            if let Some((path, problem)) = broken {
                tracing::warn!(
                    partition = %self.topic_partition, index = %path.display(), problem,
                    "the index is broken; the log is read from this segment on, and the index is made anew"
                );
                return Ok(Some(segment.base_offset()));
            }
        }
        Ok(None)
    }

    /// Whether nothing has happened to the log since it was closed in order, at its recovery point, although the
    /// last stop was not clean: an idle log of a node that was restarted and killed.
    ///
    /// A close brings the indexes to the disk, then a snapshot of that offset, then the checkpoint. An append
    /// makes the file longer. What cuts the log moves the recovery point back first, and takes the snapshot.
    fn is_as_closed_at(&self, recovery_point: Offset, folder: &Folder) -> Result<bool, StorageError> {
        let active = self.active();
        let has_snapshot = folder.snapshots.contains(&recovery_point)
            || (recovery_point == active.base_offset() && active.size() == 0);
        if !has_snapshot {
            return Ok(false);
        }
        match active.ends_whole_at(recovery_point, &self.config()) {
            Err(StorageError { kind: StorageErrorKind::Corrupt(_), .. }) => Ok(false),
            result => result,
        }
    }

    fn new(
        environment: Arc<Environment>,
        open: &OpenLog,
        topic_id: Option<TopicId>,
        epochs: LeaderEpochs,
        folder: &Folder,
    ) -> Result<Log, StorageError> {
        let dir: Arc<std::path::Path> = open.dir.as_path().into();
        let now_ms = environment.clock.now_ms();
        let monotonic_ms = environment.clock.monotonic_ms();
        let place = SegmentPlace { directory: &dir, files: &environment.files, now_ms };
        let mut segments = Vec::with_capacity(folder.segments.len().max(1));
        for base_offset in folder.segments.iter().copied() {
            segments.push(Arc::new(LogSegment::open_file(&place, base_offset)?));
        }
        if segments.is_empty() {
            let base_offset = open.log_start_offset.unwrap_or(0);
            segments.push(Arc::new(LogSegment::create(&place, base_offset, &open.config)?));
        }
        let last = segments.last().expect("one was made if there was none");
        let end = LogEnd { offset: last.base_offset(), segment: last.base_offset(), position: 0 };
        let first_offset = segments[0].base_offset();
        let is_new = folder.segments.is_empty();
        let writer = Writer {
            roll_jitter_ms: roll_jitter_ms(&open.config, &*environment.random),
            snapshot_offset: None,
            truncations: 0,
        };
        let was_synced = open.was_clean && !is_new;
        Ok(Log {
            topic_partition: open.topic_partition.clone(),
            topic_id: Mutex::new(topic_id),
            directory_id: open.directory_id,
            dir,
            environment,
            config: ArcSwap::from_pointee(open.config.clone()),
            log_start_offset: AtomicI64::new(open.log_start_offset.unwrap_or(0).max(first_offset)),
            recovery_point: AtomicI64::new(0),
            cleaned_offset: AtomicI64::new(open.cleaned_offset.unwrap_or(NEVER_CLEANED)),
            sealed_point: AtomicI64::new(first_offset),
            segments: ArcSwap::from_pointee(segments),
            end: ArcSwap::from_pointee(end),
            writer: Mutex::new(writer),
            producers: Mutex::new(Producers::default()),
            epochs: RwLock::new(epochs),
            positions: Positions::default(),
            syncing: Mutex::new(()),
            gathering: Mutex::default(),
            unsynced: Unsynced {
                names: AtomicBool::new(!was_synced),
                folder: AtomicBool::new(!was_synced),
                epochs: AtomicBool::new(!was_synced),
                recovery_start: AtomicBool::new(false),
                failed_sync: AtomicBool::new(false),
                last_sync_ms: AtomicU64::new(monotonic_ms),
            },
            failure: OnceLock::new(),
            is_deleted: AtomicBool::new(false),
            is_moving: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Finds the end without a scan: after a clean stop the recovery point is the end. Where the checkpoint does not
    /// know the log, the heads behind the last index entry tell. Returns false if the last segment does not end with
    /// a whole batch, or before the end that the checkpoint knows: something happened to its file since.
    fn set_end_of_clean_log(&self, recovery_point: Option<Offset>) -> Result<bool, StorageError> {
        let active = self.active();
        let found = match active.read_next_offset() {
            Ok(offset) if recovery_point.is_none_or(|point| point <= offset) => Ok(offset),
            Ok(offset) => Err(format!("it ends at offset {offset}")),
            Err(error) if error.is_of_content() => Err(error.to_string()),
            Err(error) => return Err(error),
        };
        match found {
            Ok(end_offset) => self.publish_end(end_offset, &active),
            Err(ref problem) => tracing::error!(
                partition = %self.topic_partition, segment = %active.path().display(), recovery_point, problem,
                "the last segment is not as the clean stop left it, and records may be missing at its end; it is \
                 checked as after an unclean stop"
            ),
        }
        Ok(found.is_ok())
    }

    /// Brings the start of the log, the epochs, the producers and the recovery point in line with its end.
    /// `recovered` is the recovery point of a log that was recovered: below it nothing was touched.
    fn settle(&self, recovered: Option<Offset>) -> Result<(), StorageError> {
        let mut writer = self.writer.lock();
        let (start, end) = (self.log_start_offset(), self.log_end_offset());
        if start > end {
            tracing::warn!(
                partition = %self.topic_partition, start, end,
                "the log ends before its start offset; it is emptied and goes on from there"
            );
            self.restart_at(&mut writer, start)?;
            return Ok(());
        }
        {
            let mut epochs = self.epochs.write();
            let is_changed = epochs.truncate_from_end(end) | epochs.truncate_from_start(start);
            if is_changed || (recovered.is_some() && !self.says_epochs(&epochs)) {
                self.write_epochs(&epochs)?;
            }
        }
        if let Some(recovery_point) = recovered {
            // Recovery has followed all producers up to the end. Later snapshots belong to what was cut.
            self.remove_snapshots_above(&mut writer, end)?;
            self.recovery_point.store(recovery_point.min(end), Ordering::Release);
            let segments = self.segments.load();
            let first = first_to_recover(&segments, recovery_point);
            self.sealed_point.store(segments[first].base_offset(), Ordering::Release);
            return Ok(());
        }
        self.recovery_point.store(end, Ordering::Release);
        self.sealed_point.store(end, Ordering::Release);
        if self.snapshot_offsets()?.is_empty() {
            // Kafka below 0.11 knew no producers, and a clean stop leaves a snapshot otherwise.
            self.producers.lock().set_end_offset(end);
            return Ok(());
        }
        self.reload_producers(&mut writer, end)
    }

    /// Snapshots that no segment begins with are of use only at the end of the log.
    fn remove_stray_snapshots(&self, folder: &Folder) -> Result<(), StorageError> {
        let offsets: Vec<Offset> = folder.snapshots.iter().copied().collect();
        let newest = offsets.last().copied();
        self.remove_snapshots(&offsets, |offset| Some(offset) != newest && !folder.segments.contains(&offset))
    }

    /// Gives a log without topic id one. A log that has another one is of an earlier topic of that name.
    pub(crate) fn set_topic_id(&self, topic_id: TopicId) -> Result<(), StorageError> {
        let mut current = self.topic_id.lock();
        match *current {
            Some(found) if found != topic_id => {
                let kind = StorageErrorKind::InconsistentTopicId { found, expected: topic_id };
                return Err(StorageError::new(&self.dir, "open", kind));
            }
            Some(_) => return Ok(()),
            None => {}
        }
        self.write_topic_id(topic_id)?;
        self.unsynced.folder.store(true, Ordering::Release);
        self.unsynced.names.store(true, Ordering::Release);
        *current = Some(topic_id);
        Ok(())
    }

    /// Writes the topic's id and syncs it at once, as Kafka does: a log whose id a power cut took could be taken for that of
    /// a later topic of its name, with the records of the earlier one.
    pub(super) fn write_topic_id(&self, topic_id: TopicId) -> Result<(), StorageError> {
        let path = self.dir.join(partition_metadata::FILE_NAME);
        let written = self.environment.disk.replace(&path, partition_metadata::content(topic_id).as_bytes());
        written.map_err(|error| StorageError::io(&path, "write the topic id", &error))
    }

    /// Ends all use of the log; its folder is about to be renamed.
    pub(crate) fn set_deleted(&self) {
        let _syncing = self.syncing.lock();
        let _writer = self.writer.lock();
        self.is_deleted.store(true, Ordering::Release);
        self.segments.load().iter().for_each(|segment| segment.close_files());
    }
}

/// The topic's id. It is synced when it is written, so that what a power cut breaks is the file of a log that has no
/// records yet; where something else broke it, the topic of the folder's name is taken, with a line in the log.
fn read_topic_id(environment: &Environment, open: &OpenLog) -> Result<Option<TopicId>, StorageError> {
    match partition_metadata::read(&*environment.disk, &open.dir) {
        Err(error @ StorageError { kind: StorageErrorKind::Corrupt(_), .. }) if !open.was_clean => {
            tracing::warn!(partition = %open.topic_partition, %error, "the topic id is lost");
            Ok(None)
        }
        result => result,
    }
}

/// The epochs; `None` if they are lost, so that the batches must tell them: a power cut can leave a broken or an
/// empty file, since it is synced later.
fn read_epochs(
    environment: &Environment,
    open: &OpenLog,
    folder: &Folder,
) -> Result<Option<LeaderEpochs>, StorageError> {
    let path = open.dir.join(leader_epochs::FILE_NAME);
    match checkpoint::read_epochs(&*environment.disk, &path) {
        Ok(None)
            if !open.was_clean
                && !folder.segments.is_empty()
                && environment
                    .disk
                    .exists(&path)
                    .map_err(|error| StorageError::io(&path, "look for", &error))? =>
        {
            tracing::warn!(partition = %open.topic_partition, path = %path.display(), "the file with the leader epochs is empty; learning them from the batches");
            Ok(None)
        }
        Ok(epochs) => Ok(Some(epochs.unwrap_or_default())),
        Err(error @ StorageError { kind: StorageErrorKind::Corrupt(_), .. }) => {
            tracing::warn!(partition = %open.topic_partition, %error, "learning the leader epochs from the batches");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

//! Moving partitions between log directories while they are written (KIP-113).
//!
//! The copy grows in `<topic>-<partition>.<32 hex digits>-future` of its directory. When it has everything and
//! nobody appends, it is closed as at a stop, marked ([`super::duplicates`]), and renamed; then the original
//! is renamed for deletion. Whatever happens in between, one folder is the partition, with everything in it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use klamm_model::{Offset, TopicPartition, Uuid};

use super::duplicates::Mark;
use super::{LogDirectory, LogStore, PlacementError, random_id, suffixed_name};
use crate::deletion::FUTURE_FOLDER_SUFFIX;
use crate::error::{StorageError, StorageErrorKind};
use crate::log::{Log, OpenLog};
use crate::planted::planted;

/// What became of the wish to move a partition.
#[derive(Clone)]
pub enum Move {
    /// The partition is where it is to be; a move elsewhere was called off.
    Stays,
    /// Its copy, new or not.
    Copies(Arc<Log>),
}

/// The copy of a move that a stop has interrupted, not opened yet.
pub(super) struct Interrupted(pub(super) OpenLog);

/// A move whose end failed so that nobody knows which folder has the partition's name on the disk.
#[derive(Clone)]
pub(super) struct Unsettled {
    future: Arc<Log>,
    pub(super) directory: Uuid,
    mark: Mark,
}

impl Unsettled {
    /// The names that the copy may have.
    pub(super) fn folders(&self, tp: &TopicPartition) -> [PathBuf; 2] {
        let renamed = self.future.dir().with_file_name(tp.to_string());
        [self.future.dir(), renamed]
    }
}

/// Why a partition cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// There is no such partition here.
    #[error("there is no log of the partition")]
    NoLog,
    /// The directory cannot take it.
    #[error(transparent)]
    Directory(#[from] PlacementError),
    /// A disk failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl LogStore {
    /// The copy of a partition that moves.
    pub fn future(&self, tp: &TopicPartition) -> Option<Arc<Log>> {
        self.shared.futures.read().get(tp).cloned()
    }

    /// The partitions that move.
    pub fn moving(&self) -> Vec<TopicPartition> {
        let mut moving: Vec<TopicPartition> = self.shared.futures.read().keys().cloned().collect();
        moving.retain(|tp| self.get(tp).is_some());
        moving
    }

    /// Opens the copies of moves that a stop has interrupted, as far as the partitions are open by now. The caller
    /// holds `changing`.
    pub(super) fn resume_moves(&self) {
        let interrupted = std::mem::take(&mut *self.shared.interrupted.lock());
        for Interrupted(open) in interrupted {
            let tp = open.topic_partition.clone();
            if self.shared.unopened.lock().contains_key(&tp) {
                self.shared.interrupted.lock().push(Interrupted(open));
            } else if let Err(error) = self.resume(open) {
                tracing::error!(partition = %tp, %error, "the copy of a partition cannot be used");
            }
        }
    }

    fn resume(&self, open: OpenLog) -> Result<(), StorageError> {
        let name = open.topic_partition.clone();
        let (directory, folder, was_clean) = (open.directory_id, open.dir.clone(), open.was_clean);
        let current = self.get(&name);
        let is_of_use = self.future(&name).is_none()
            && current.as_ref().is_none_or(|current| current.directory_id() != directory);
        let synced = open.recovery_point.unwrap_or(0);
        let open = OpenLog { cleaned_offset: None, ..open };
        let opened = is_of_use.then(|| Log::open(self.shared.environment.clone(), open));
        match (opened, current) {
            (Some(Ok(opened)), Some(current)) => {
                let future = opened.log;
                if let Some(id) = current.topic_id() {
                    future.set_topic_id(id)?;
                }
                // What a power cut took from the original's end may stand in the copy still, and other records may
                // have got its offsets since. Only below the recovery points both are known to be the same, and what
                // a failed sync of the copy has left in memory alone stands behind its own.
                if !was_clean {
                    let certain = current.recovery_point().min(synced);
                    future.truncate_to(certain.max(current.log_start_offset()))?;
                }
                tracing::info!(partition = %name, folder = %folder.display(), "the move goes on");
                current.set_moving(true);
                self.shared.futures.write().insert(name, Arc::new(future));
                Ok(())
            }
            // It may be all that is left of the partition, so it is kept and stands in the way of a new one.
            (Some(opened), None) => {
                let future = Arc::new(opened?.log);
                self.shared.futures.write().insert(name, future);
                Ok(())
            }
            // The original is there: the copy is of no use to anybody.
            (failed, Some(_)) => {
                self.delete_folder_later(&name, directory, folder, 0);
                self.delete_again(&name)?;
                failed.map_or(Ok(()), |failed| failed.map(drop))
            }
            (None, None) => Ok(()),
        }
    }

    /// Begins to move a partition into a log directory, instead of any move that has begun. The copy is empty at
    /// first: [`Log::next_piece`] and [`Log::append_piece`] fill it.
    pub fn begin_move(&self, tp: &TopicPartition, directory: &Path) -> Result<Move, MoveError> {
        let _changing = self.changing.lock();
        self.check_directories();
        let directory = self.directory_at(directory)?;
        let current = self.get(tp).ok_or(MoveError::NoLog)?;
        current.check_directory("move")?;
        match self.future(tp) {
            Some(future) if future.directory_id() == directory.id => return Ok(Move::Copies(future)),
            Some(_) => self.cancel(tp)?,
            None => {}
        }
        if current.directory_id() == directory.id {
            return Ok(Move::Stays);
        }
        self.delete_again(tp)?;
        let future = self.make_future(&current, directory)?;
        current.set_moving(true);
        self.shared.futures.write().insert(tp.clone(), future.clone());
        tracing::info!(partition = %tp, from = %current.dir().display(), to = %future.dir().display(), "moving");
        Ok(Move::Copies(future))
    }

    fn make_future(&self, current: &Log, directory: &LogDirectory) -> Result<Arc<Log>, StorageError> {
        let (environment, tp) = (&self.shared.environment, current.topic_partition());
        let disk = &*environment.disk;
        let taken = directory.path.join(tp.to_string());
        if disk.exists(&taken).map_err(|error| StorageError::io(&taken, "look for", &error))? {
            let reason = "an earlier folder of the partition is in the way; move it out of the log directory";
            return Err(StorageError::corrupt(&taken, "move the partition to", reason));
        }
        if directory.checkpoints().name(tp) {
            // Offsets from when the partition was here would be taken for those of the copy.
            self.shared.write_checkpoints_of(directory)?;
        }
        let name = suffixed_name(tp, random_id(&*environment.random), FUTURE_FOLDER_SUFFIX);
        let dir = directory.path.join(name);
        disk.create_dir_all(&dir).map_err(|error| StorageError::io(&dir, "make", &error))?;
        let open = OpenLog {
            topic_partition: tp.clone(),
            directory_id: directory.id,
            dir: dir.clone(),
            config: (*current.config()).clone(),
            log_start_offset: None,
            recovery_point: None,
            // What the copy lacks of an earlier compaction, the next one makes up for.
            cleaned_offset: None,
            was_clean: false,
        };
        let made = Log::open(environment.clone(), open).and_then(|opened| {
            let topic_id = current.topic_id();
            topic_id.map_or(Ok(()), |id| opened.log.set_topic_id(id)).map(|()| Arc::new(opened.log))
        });
        // What was made halfway has nothing in it that anybody misses.
        made.inspect_err(|_| environment.deletions.add_folder(dir, environment.clock.now_ms()))
    }

    /// Calls the move of a partition off. Returns whether there was one.
    pub fn cancel_move(&self, tp: &TopicPartition) -> Result<bool, StorageError> {
        let _changing = self.changing.lock();
        let was_moving = self.future(tp).is_some();
        self.cancel(tp)?;
        Ok(was_moving)
    }

    /// The caller holds `changing`.
    fn cancel(&self, tp: &TopicPartition) -> Result<(), StorageError> {
        if let Some(current) = self.get(tp) {
            current.set_moving(false);
        }
        let Some(future) = self.shared.futures.write().remove(tp) else { return Ok(()) };
        tracing::info!(partition = %tp, folder = %future.dir().display(), "the move is called off");
        self.delete_later(&future);
        self.delete_again(tp).map(drop)
    }

    /// Ends a move: the copy becomes the partition. Nobody appends to the original meanwhile, and the copy has
    /// all of it. After an error the original is the partition as before, or it is offline if that cannot be
    /// known for certain; [`LogStore::future`] tells whether the move goes on.
    pub fn finish_move(&self, tp: &TopicPartition, high_watermark: Offset) -> Result<Arc<Log>, StorageError> {
        let _changing = self.changing.lock();
        let gone = || {
            let path = PathBuf::from(tp.to_string());
            StorageError::new(&path, "end the move of", StorageErrorKind::Deleted)
        };
        let current = self.get(tp).ok_or_else(gone)?;
        let future = self.future(tp).ok_or_else(gone)?;
        let directory = self.shared.directory(future.directory_id()).ok_or_else(gone)?;
        self.shared.high_watermarks.lock().insert(tp.clone(), high_watermark);
        match self.bring_to_disk(&current, &future, directory) {
            Ok(mark) => self.swap(&current, &future, directory, mark),
            Err(error) => {
                self.put_back(&current, &future);
                Err(error)
            }
        }
    }

    /// After this the copy would be found whole by a start, with the offsets that the checkpoints hold.
    fn bring_to_disk(
        &self,
        current: &Log,
        future: &Log,
        directory: &LogDirectory,
    ) -> Result<Mark, StorageError> {
        let disk = &*self.shared.environment.disk;
        future.take_over(current)?;
        if !planted!(self.shared.environment, SwapBeforeSync) {
            future.close()?;
        }
        let earlier = Mark::read(disk, &current.dir())?.map_or(0, |mark| mark.number);
        let mark = Mark { number: earlier + 1, replaces: current.directory_id() };
        if !planted!(self.shared.environment, SwapWithoutMark) {
            mark.write(disk, &future.dir())?;
        }
        self.shared.write_checkpoints_of(directory)?;
        Ok(mark)
    }

    fn swap(
        &self,
        current: &Arc<Log>,
        future: &Arc<Log>,
        directory: &LogDirectory,
        mark: Mark,
    ) -> Result<Arc<Log>, StorageError> {
        let (disk, tp) = (&*self.shared.environment.disk, current.topic_partition());
        let place = directory.path.join(tp.to_string());
        let renamed = disk
            .rename(&future.dir(), &place)
            .and_then(|()| disk.sync_dir(&directory.path))
            .map_err(|error| StorageError::io(&future.dir(), "give its final name to", &error));
        // What is open or about to begin counts on, though a start would forget it.
        let opened = renamed.and_then(|()| self.open_copy(future, &place));
        let opened = opened.and_then(|log| log.take_over_state(current).map(|()| log));
        let log = match opened {
            Ok(log) => log,
            Err(error) => {
                self.back_out(current, future, directory, mark);
                return Err(error);
            }
        };
        self.shared.futures.write().remove(tp);
        self.shared.logs.write().insert(tp.clone(), log.clone());
        self.delete_later(current);
        if let Err(error) = self.delete_again(tp) {
            tracing::error!(partition = %tp, %error, "the original of a moved partition stays for now");
        }
        // As long as the original has its name, the mark keeps a later start from taking it for the partition.
        if !self.shared.undeleted.lock().contains_key(tp) {
            Mark::remove(disk, &place);
        }
        tracing::info!(partition = %tp, from = %current.dir().display(), to = %place.display(), "moved");
        Ok(log)
    }

    /// Opens a copy that was closed in order.
    fn open_copy(&self, closed: &Log, dir: &Path) -> Result<Arc<Log>, StorageError> {
        let start = closed.log_start_offset();
        let open = OpenLog {
            topic_partition: closed.topic_partition().clone(),
            directory_id: closed.directory_id(),
            dir: dir.to_owned(),
            config: (*closed.config()).clone(),
            log_start_offset: closed.has_start_within_segment().then_some(start),
            recovery_point: Some(closed.log_end_offset()),
            cleaned_offset: None,
            was_clean: true,
        };
        Ok(Arc::new(Log::open(self.shared.environment.clone(), open)?.log))
    }

    /// Opens the copy of a partition again that has failed, for one more try. Returns it, unless the move had to be
    /// called off.
    pub fn reopen_future(&self, tp: &TopicPartition) -> Option<Arc<Log>> {
        let _changing = self.changing.lock();
        if let (Some(current), Some(future)) = (self.get(tp), self.future(tp)) {
            self.put_back(&current, &future);
        }
        self.future(tp)
    }

    /// Puts the copy back into service after a failure, or calls the move off.
    fn put_back(&self, current: &Log, future: &Log) {
        let tp = current.topic_partition();
        let dir = future.dir();
        let open = OpenLog {
            topic_partition: tp.clone(),
            directory_id: future.directory_id(),
            dir: dir.clone(),
            config: (*current.config()).clone(),
            log_start_offset: future.has_start_within_segment().then(|| future.log_start_offset()),
            recovery_point: Some(future.recovery_point()),
            cleaned_offset: None,
            was_clean: false,
        };
        // Else what a sync could not bring to the disk would pass for written.
        let noted = future.note_failed_sync_again();
        match noted.and_then(|()| Log::open(self.shared.environment.clone(), open)) {
            Ok(opened) => {
                self.shared.futures.write().insert(tp.clone(), Arc::new(opened.log));
            }
            Err(error) => {
                tracing::error!(partition = %tp, %error, "the copy cannot be used any more; the partition stays where it is");
                if let Err(error) = self.cancel(tp) {
                    tracing::error!(partition = %tp, %error, "the copy is removed later");
                }
            }
        }
    }

    /// Makes sure that the original is the partition after the rename of the copy has failed, perhaps only
    /// seemingly, or takes it offline until that is sure.
    fn back_out(&self, current: &Log, future: &Arc<Log>, directory: &LogDirectory, mark: Mark) {
        let Err(error) = self.try_back_out(current, future, directory, mark) else { return };
        let tp = current.topic_partition().clone();
        let (future, directory) = (future.clone(), directory.id);
        self.shared.unsettled.lock().insert(tp, Unsettled { future, directory, mark });
        let reason = format!("it cannot be told yet where the partition stands: {error}");
        let kind = StorageErrorKind::Offline(reason);
        current.fail(StorageError::new(&current.dir(), "end the move of", kind));
    }

    fn try_back_out(
        &self,
        current: &Log,
        future: &Arc<Log>,
        directory: &LogDirectory,
        mark: Mark,
    ) -> Result<(), StorageError> {
        let (disk, tp) = (&*self.shared.environment.disk, current.topic_partition());
        let place = directory.path.join(tp.to_string());
        let is_back = match disk.exists(&place) {
            Ok(true) => disk.rename(&place, &future.dir()).and_then(|()| disk.sync_dir(&directory.path)),
            Ok(false) => disk.sync_dir(&directory.path),
            Err(error) => Err(error),
        };
        if is_back.is_ok() {
            self.put_back(current, future);
            return Ok(());
        }
        // The copy may have the partition's name on the disk. A higher mark in the original outdoes it.
        self.shared.futures.write().remove(tp);
        Mark { number: mark.number + 1, replaces: directory.id }.write(disk, &current.dir())?;
        current.set_moving(false);
        self.delete_folder_later(tp, directory.id, place, 0);
        Ok(())
    }

    /// Tries again to make sure that the original of a failed move is the partition. Returns whether it was in doubt
    /// and is no more. The caller holds `changing`.
    pub(super) fn settle(&self, current: &Log) -> bool {
        let tp = current.topic_partition();
        let Some(unsettled) = self.shared.unsettled.lock().get(tp).cloned() else { return false };
        let Unsettled { future, directory, mark } = unsettled;
        let directory = self.shared.directory(directory);
        let is_settled = directory.is_some_and(|one| self.try_back_out(current, &future, one, mark).is_ok());
        if is_settled {
            self.shared.unsettled.lock().remove(tp);
        }
        is_settled
    }
}

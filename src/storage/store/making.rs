//! Making logs, and finding those that are there: of a topic with thousands of partitions many at once, since each waits for
//! the disk twice.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use klamm_model::{TopicId, TopicPartition, Uuid};

use super::side_by_side::side_by_side;
use super::{LogDirectory, LogStore};
use crate::config::LogConfig;
use crate::error::{StorageError, StorageErrorKind};
use crate::log::{Log, OpenLog};

/// A log that is to be there.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The partition.
    pub topic_partition: TopicPartition,
    /// The id of its topic.
    pub topic_id: TopicId,
    /// The settings that the log is to have.
    pub config: LogConfig,
    /// Whether the partition may be anywhere already.
    pub past: Past,
}

/// Whether a partition may be anywhere already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past {
    /// It is new. If no log is there, one is made.
    None,
    /// It was there before this start. While a log directory is offline or lost, it may lie there: a new one would hide its
    /// records, and is not made.
    Unknown,
}

/// How many logs there are in each directory, those that are about to be made with them.
type Counts = BTreeMap<Uuid, usize>;

enum Place<'a> {
    /// The log is there.
    There(Arc<Log>),
    /// It is to be made in this directory.
    New { directory: &'a LogDirectory, made: OnceLock<Result<Arc<Log>, StorageError>> },
}

impl LogStore {
    /// Opens the log of a new partition, or makes it: see [`LogStore::open_or_make`].
    pub fn create(
        &self,
        tp: &TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
    ) -> Result<Arc<Log>, StorageError> {
        self.open_or_make(Wanted { topic_partition: tp.clone(), topic_id, config, past: Past::None })
    }

    /// Opens a log that is to be there, or makes it, in the directory that was asked for with
    /// [`LogStore::wish`], else in the one with the fewest partitions. A log that belongs to another topic of the
    /// same name is an error, [`crate::StorageErrorKind::InconsistentTopicId`].
    pub fn open_or_make(&self, wanted: Wanted) -> Result<Arc<Log>, StorageError> {
        let mut opened = self.open_or_make_all(vec![wanted]);
        opened.pop().expect("one was asked for")
    }

    /// As [`LogStore::open_or_make`], for many, each of which is named once; the results stand in the same order. They
    /// are made side by side, as logs are closed.
    pub fn open_or_make_all(&self, wanted: Vec<Wanted>) -> Vec<Result<Arc<Log>, StorageError>> {
        let _changing = self.changing.lock();
        assert!(self.is_loaded.load(Ordering::Acquire), "a store is loaded before partitions are made in it");
        let mut counts = None;
        let place = |one: Wanted| {
            let place = self.find_or_place(&one, &mut counts);
            (one, place)
        };
        let placed: Vec<(Wanted, Result<Place<'_>, StorageError>)> = wanted.into_iter().map(place).collect();
        let new: Vec<_> = placed
            .iter()
            .filter_map(|(one, place)| match place {
                Ok(Place::New { directory, made }) => Some((one, *directory, made)),
                _ => None,
            })
            .collect();
        side_by_side(self.waiting_threads(), &new, |(one, directory, made)| {
            let log = self.make_log(one, directory).map(Arc::new);
            assert!(made.set(log).is_ok(), "each log is made once");
        });
        drop(new);
        let settle = |(one, place): (Wanted, Result<Place<'_>, StorageError>)| {
            let made = match place? {
                Place::There(log) => return Ok(log),
                Place::New { made, .. } => made.into_inner().expect("each log was made, or failed"),
            };
            let log = made?;
            let replaced = self.shared.logs.write().insert(one.topic_partition.clone(), log.clone());
            assert!(replaced.is_none(), "a log is wanted once");
            self.shared.placement.lock().wishes.remove(&one.topic_partition);
            tracing::debug!(partition = %one.topic_partition, folder = %log.dir().display(), "made a log");
            Ok(log)
        };
        placed.into_iter().map(settle).collect()
    }

    /// The log, or where it is to be made.
    fn find_or_place(&self, wanted: &Wanted, counts: &mut Option<Counts>) -> Result<Place<'_>, StorageError> {
        let Wanted { topic_partition: tp, topic_id, config, past } = wanted;
        if self.get(tp).is_none() {
            self.delete_again(tp)?;
        }
        self.open_again(tp, *topic_id, config)?;
        if let Some(log) = self.get(tp) {
            log.check_directory("open")?;
            log.set_topic_id(*topic_id)?;
            log.update_config(config.clone());
            return Ok(Place::There(log));
        }
        if *past == Past::Unknown {
            self.check_is_nowhere(tp)?;
        }
        let directory = self.directory_for(tp, counts)?;
        if self.shared.directories.iter().any(|directory| directory.checkpoints().name(tp)) {
            // Offsets of an earlier partition of this name would be taken for those of the new one.
            self.shared.write_checkpoints()?;
        }
        Ok(Place::New { directory, made: OnceLock::new() })
    }

    /// Makes the folder of a log with all that belongs to it, or nothing: one without the topic's id would be taken
    /// for that of any topic of this name.
    fn make_log(&self, wanted: &Wanted, directory: &LogDirectory) -> Result<Log, StorageError> {
        let dir = directory.path.join(wanted.topic_partition.to_string());
        let disk = &*self.shared.environment.disk;
        let failed = |error| StorageError::io(&dir, "make", &error);
        let was_there = disk.exists(&dir).map_err(failed)?;
        let open = OpenLog {
            topic_partition: wanted.topic_partition.clone(),
            directory_id: directory.id,
            dir: dir.clone(),
            config: wanted.config.clone(),
            log_start_offset: None,
            recovery_point: None,
            cleaned_offset: None,
            was_clean: false,
        };
        let made = disk.create_dir_all(&dir).map_err(failed).and_then(|()| {
            let log = Log::open(self.shared.environment.clone(), open)?.log;
            log.set_topic_id(wanted.topic_id).inspect_err(|_| log.set_deleted())?;
            Ok(log)
        });
        if made.is_err() && !was_there {
            // If not even this works, the next attempt finds the folder and goes on with it.
            let _ = disk.remove_dir_all(&dir);
        }
        made
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
    fn directory_for(
        &self,
        tp: &TopicPartition,
        counts: &mut Option<Counts>,
    ) -> Result<&LogDirectory, StorageError> {
        let counts = counts.get_or_insert_with(|| {
            self.check_directories();
            self.counts()
        });
        let placement = self.shared.placement.lock();
        let wish = placement.wishes.get(tp);
        let wished = wish.and_then(|wish| self.shared.online().find(|one| one.path == *wish));
        let count = |directory: &LogDirectory| counts.get(&directory.id).copied().unwrap_or(0);
        let rank =
            |directory: &&LogDirectory| (placement.cordoned.contains(&directory.path), count(directory));
        let chosen = wished.or_else(|| self.shared.online().min_by_key(rank));
        let chosen = chosen.ok_or_else(|| {
            let failure = self.shared.health.iter().find_map(|health| health.failure());
            failure.cloned().expect("a directory that is not online has failed")
        })?;
        *counts.entry(chosen.id).or_default() += 1;
        Ok(chosen)
    }

    fn counts(&self) -> Counts {
        let (logs, futures) = (self.shared.logs.read(), self.shared.futures.read());
        let mut counts = Counts::new();
        for log in logs.values().chain(futures.values()) {
            *counts.entry(log.directory_id()).or_default() += 1;
        }
        counts
    }
}

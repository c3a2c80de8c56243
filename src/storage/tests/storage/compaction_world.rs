//! A compacted log with its cleaner, for tests of compaction.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use klamm_io::Clock;
use klamm_model::{Offset, ProducerEpoch, ProducerId};
use klamm_records::{Batch, BatchBuilder, BatchSettings, Compression, Record, batches};
use klamm_storage::{
    Cleaner, CleanerSettings, CleanupPolicy, Log, LogConfig, LogStore, Outcome, StorageError, StoreSettings,
};
use klamm_testing::{SimulatedClock, SimulatedDisk};

use crate::support::*;

/// Segments of a few batches, compacted whenever anything is new, tombstones kept for ever.
pub(crate) fn compacted() -> LogConfig {
    LogConfig {
        segment_bytes: 700,
        cleanup: CleanupPolicy { delete: false, compact: true },
        min_cleanable_dirty_ratio: 0.0,
        delete_retention_ms: i64::MAX,
        file_delete_delay_ms: 0,
        ..small()
    }
}

pub(crate) struct CleanedWorld {
    pub(crate) clock: SimulatedClock,
    pub(crate) store: Arc<LogStore>,
    pub(crate) log: Arc<Log>,
    pub(crate) cleaner: Cleaner,
}

/// A record to append: key and value.
pub(crate) type Pair<'a> = (Option<&'a str>, Option<&'a str>);

impl CleanedWorld {
    pub(crate) fn open(disk: &SimulatedDisk, config: &LogConfig) -> CleanedWorld {
        CleanedWorld::try_open(disk, config, CleanerSettings::default()).unwrap()
    }

    pub(crate) fn try_open(
        disk: &SimulatedDisk,
        config: &LogConfig,
        cleaner: CleanerSettings,
    ) -> Result<CleanedWorld, StorageError> {
        CleanedWorld::try_open_with(settings(disk), config, cleaner)
    }

    pub(crate) fn try_open_with(
        mut settings: StoreSettings,
        config: &LogConfig,
        cleaner: CleanerSettings,
    ) -> Result<CleanedWorld, StorageError> {
        let clock = SimulatedClock::new(NOW);
        settings.clock = Arc::new(clock.clone());
        let store = Arc::new(LogStore::open(settings)?);
        let report = store.load(&|_| config.clone())?;
        if let Some((_, error)) = report.failed.into_iter().next() {
            return Err(error);
        }
        let log = store.create(&partition(), TOPIC_ID, config.clone())?;
        let cleaner = Cleaner::new(store.clone(), cleaner);
        Ok(CleanedWorld { clock, store, log, cleaner })
    }

    pub(crate) fn step(&self) -> Outcome {
        let end = self.log.log_end_offset();
        let go_on = |_: Duration| ControlFlow::Continue(());
        self.cleaner.clean_next(self.clock.now_ms(), &|_| Some(end), &go_on)
    }

    /// Compacts until nothing is due, and returns how many rounds it took.
    pub(crate) fn clean(&self) -> usize {
        for round in 0..1000 {
            match self.step() {
                Outcome::Idle => return round,
                Outcome::Cleaned(..) => {}
                other => panic!("{other:?}"),
            }
        }
        panic!("compaction comes to no end");
    }

    pub(crate) fn append(&self, pairs: &[Pair<'_>]) -> Result<Offset, StorageError> {
        let offset = self.log.log_end_offset();
        self.log.append_replicated(&[batch_of(offset, pairs)])?;
        Ok(offset)
    }

    /// Ends the active segment, so that all before can be compacted.
    pub(crate) fn roll(&self) {
        self.log.roll().unwrap();
    }
}

pub(crate) fn batch_of(offset: Offset, pairs: &[Pair<'_>]) -> Batch {
    legacy_batch(2, Compression::None, offset, pairs).remove(0)
}

/// The same in any format; several batches where the format knows none of several records.
pub(crate) fn legacy_batch(magic: i8, codec: Compression, offset: Offset, pairs: &[Pair<'_>]) -> Vec<Batch> {
    build(magic, BatchSettings { compression: codec, base_offset: offset, ..BatchSettings::default() }, pairs)
}

/// Data of a transaction.
pub(crate) fn transactional(offset: Offset, producer: i64, sequence: i32, pairs: &[Pair<'_>]) -> Batch {
    let settings = BatchSettings {
        base_offset: offset,
        producer_id: ProducerId(producer),
        producer_epoch: ProducerEpoch(0),
        base_sequence: sequence,
        transactional: true,
        ..BatchSettings::default()
    };
    build(2, settings, pairs).remove(0)
}

fn build(magic: i8, settings: BatchSettings, pairs: &[Pair<'_>]) -> Vec<Batch> {
    let mut builder = BatchBuilder::new(magic, settings);
    for (key, value) in pairs {
        builder.append(NOW, key.map(str::as_bytes), value.map(str::as_bytes), &[]);
    }
    batches(builder.build()).map(Result::unwrap).collect()
}

/// All batches of a log, checked: their checksums, and that their offsets rise without overlap.
pub(crate) fn all_batches(log: &Log) -> Vec<Batch> {
    let (mut found, mut next): (Vec<Batch>, Offset) = (Vec::new(), log.log_start_offset());
    while let Some(slice) = log.read(next, 1, log.log_end_offset(), true).unwrap() {
        let batch = batches(slice.to_bytes().unwrap()).next().unwrap().unwrap();
        batch.check_crc().unwrap();
        assert!(batch.header.last_offset() >= next, "the log goes on");
        if let Some(before) = found.last() {
            assert!(batch.first_offset().unwrap() > before.header.last_offset(), "no offset stands twice");
        }
        next = batch.header.next_offset();
        found.push(batch);
    }
    found
}

/// The records that are no markers.
pub(crate) fn data(log: &Log) -> Vec<Record> {
    let batches = all_batches(log).into_iter().filter(|batch| !batch.header.is_control());
    batches.flat_map(|batch| batch.records().unwrap()).collect()
}

//! A small machine for the store, and records to put into it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use klamm_io::{Disk, OpenMode};
use klamm_model::{
    LeaderEpoch, NodeId, Offset, ProducerEpoch, ProducerId, TimestampMs, TopicPartition, Uuid,
};
use klamm_records::control::EndTxnMarker;
use klamm_records::{Batch, BatchBuilder, BatchSettings, Record, batches};
use klamm_storage::{LoadReport, Log, LogConfig, LogStore, StorageError, StoreSettings};
pub(crate) use klamm_testing::told;
use klamm_testing::{OperationKind, SeededRandom, SimulatedClock, SimulatedDisk, Unsynced};

/// Some seconds after the first record of the fixtures.
pub(crate) const NOW: TimestampMs = 1_700_000_100_000;
pub(crate) const TOPIC_ID: Uuid = Uuid([7; 16]);
pub(crate) const LOGS: &str = "/logs";

/// A second directory, for those that need one.
pub(crate) const MORE: &str = "/more";

pub(crate) fn settings(disk: &SimulatedDisk) -> StoreSettings {
    let clock = Arc::new(SimulatedClock::new(NOW));
    let random = Arc::new(SeededRandom::new(1));
    let mut settings =
        StoreSettings::new(vec![LOGS.into()], NodeId(1), Arc::new(disk.clone()), clock, random);
    settings.recovery_threads = 1;
    settings
}

/// How the machine is found again; `None` after a kill.
pub(crate) const ENDINGS: [Option<Unsynced>; 6] = [
    None,
    Some(Unsynced::Lost),
    Some(Unsynced::Kept),
    Some(Unsynced::Torn),
    Some(Unsynced::Scattered),
    Some(Unsynced::Seeded),
];

/// The disk as it is found after such an end.
pub(crate) fn found_after(ending: Option<Unsynced>, disk: &SimulatedDisk) -> SimulatedDisk {
    ending.map_or_else(|| disk.kill(), |unsynced| disk.crash_leaving(unsynced))
}

/// Segments and index intervals as small as those of the fixtures.
pub(crate) fn small() -> LogConfig {
    LogConfig {
        segment_bytes: 1500,
        index_interval_bytes: 200,
        segment_index_bytes: 4096,
        retention_ms: None,
        ..LogConfig::default()
    }
}

pub(crate) fn partition() -> TopicPartition {
    TopicPartition::new("t", 0)
}

pub(crate) fn folder() -> PathBuf {
    Path::new(LOGS).join("t-0")
}

pub(crate) struct Store {
    pub(crate) store: LogStore,
    pub(crate) report: LoadReport,
}

impl std::ops::Deref for Store {
    type Target = LogStore;
    fn deref(&self) -> &LogStore {
        &self.store
    }
}

impl Store {
    pub(crate) fn log(&self) -> Arc<Log> {
        self.get(&partition()).expect("the partition is there")
    }
}

/// Opens and loads a store; all its logs have these settings.
pub(crate) fn try_open(disk: &SimulatedDisk, config: &LogConfig) -> Result<Store, StorageError> {
    let store = LogStore::open(settings(disk))?;
    let report = store.load(&|_| config.clone())?;
    Ok(Store { store, report })
}

pub(crate) fn open(disk: &SimulatedDisk, config: &LogConfig) -> Store {
    let store = try_open(disk, config).unwrap();
    assert_eq!(store.report.failed, [], "every log opens");
    store
}

/// A store with one empty partition.
pub(crate) fn with_partition(disk: &SimulatedDisk, config: &LogConfig) -> (Store, Arc<Log>) {
    let store = open(disk, config);
    let log = store.create(&partition(), TOPIC_ID, config.clone()).unwrap();
    (store, log)
}

/// A batch to append: where nothing is said, three records without producer.
#[derive(Clone)]
pub(crate) struct Draft {
    pub(crate) base_offset: Offset,
    pub(crate) timestamps: Vec<TimestampMs>,
    pub(crate) producer: Option<(i64, i16, i32)>,
    pub(crate) is_transactional: bool,
    pub(crate) epoch: i32,
    pub(crate) value_bytes: usize,
}

impl Draft {
    pub(crate) fn at(base_offset: Offset) -> Draft {
        let timestamps = (0..3).map(|n| NOW + (base_offset + n) * 1000).collect();
        Draft { base_offset, timestamps, producer: None, is_transactional: false, epoch: 0, value_bytes: 30 }
    }

    pub(crate) fn batch(&self) -> Batch {
        let (id, epoch, sequence) = self.producer.unwrap_or((-1, -1, -1));
        let mut builder = BatchBuilder::v2(BatchSettings {
            base_offset: self.base_offset,
            producer_id: ProducerId(id),
            producer_epoch: ProducerEpoch(epoch),
            base_sequence: sequence,
            transactional: self.is_transactional,
            partition_leader_epoch: LeaderEpoch(self.epoch),
            ..BatchSettings::default()
        });
        for (index, timestamp) in self.timestamps.iter().enumerate() {
            let offset = self.base_offset + index as i64;
            let value = format!("{offset:0width$}", width = self.value_bytes);
            builder.append(
                *timestamp,
                Some(format!("key-{offset:04}").as_bytes()),
                Some(value.as_bytes()),
                &[],
            );
        }
        parsed(builder.build())
    }
}

/// The end of a transaction.
pub(crate) fn marker(offset: Offset, producer: (i64, i16), commit: bool) -> Batch {
    let marker = EndTxnMarker { commit, coordinator_epoch: 3 };
    parsed(marker.batch(offset, NOW, (ProducerId(producer.0), ProducerEpoch(producer.1)), LeaderEpoch(0)))
}

fn parsed(bytes: Bytes) -> Batch {
    batches(bytes).next().unwrap().unwrap()
}

/// Appends a batch of three records at the end.
pub(crate) fn append(log: &Log) -> Result<Offset, StorageError> {
    let offset = log.log_end_offset();
    log.append_replicated(&[Draft::at(offset).batch()])?;
    Ok(offset)
}

pub(crate) fn append_many(log: &Log, batches: i32) {
    for _ in 0..batches {
        append(log).unwrap();
    }
}

/// Reads all records from an offset on, so many bytes at a time.
pub(crate) fn read_from(log: &Log, from: Offset, max_bytes: usize) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    let mut next = from;
    while let Some(slice) = log.read(next, max_bytes, log.log_end_offset(), true).unwrap() {
        let bytes = slice.to_bytes().unwrap();
        assert_eq!(bytes.len() as u64, slice.len, "the file holds what the slice says");
        let before = next;
        for batch in batches(bytes).lenient() {
            let batch = batch.unwrap();
            batch.check_crc().unwrap();
            records.extend(batch.records().unwrap().into_iter().filter(|record| record.offset >= next));
            next = batch.header.next_offset();
        }
        assert!(next > before, "a read at {before} gives at least one whole batch");
    }
    records
}

pub(crate) fn read_all(log: &Log) -> Vec<Record> {
    read_from(log, log.log_start_offset(), 1000)
}

pub(crate) fn offsets(records: &[Record]) -> Vec<Offset> {
    records.iter().map(|record| record.offset).collect()
}

/// How many bytes were read from `.log` files so far.
pub(crate) fn log_bytes_read(disk: &SimulatedDisk) -> u64 {
    let operations = disk.operations();
    let reads = operations.iter().filter(|operation| operation.kind == OperationKind::Read);
    reads.filter(|read| read.path.extension().is_some_and(|end| end == "log")).map(|read| read.len).sum()
}

pub(crate) fn put(disk: &SimulatedDisk, path: &Path, content: &[u8]) {
    let file = disk.open(path, OpenMode::CreateOrOpen).unwrap();
    file.set_len(0).unwrap();
    file.write_all_at(&[content], 0).unwrap();
}

/// The files of a folder whose names end so, with their content.
pub(crate) fn files(disk: &SimulatedDisk, folder: &Path, suffix: &str) -> Vec<(String, Vec<u8>)> {
    let names = disk.read_dir(folder).unwrap().into_iter().map(|entry| entry.name);
    let named = names.filter(|name| name.ends_with(suffix));
    named.map(|name| (name.clone(), disk.read(&folder.join(&name)).unwrap())).collect()
}

pub(crate) fn names(disk: &SimulatedDisk, folder: &Path) -> Vec<String> {
    disk.read_dir(folder).unwrap().into_iter().map(|entry| entry.name).collect()
}

//! What Apache Kafka of five versions wrote must read as Kafka reads it, with its indexes and without.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use klamm_io::{Disk, SystemDisk};
use klamm_model::{Offset, TimestampMs, TopicPartition};
use klamm_records::Record;
use klamm_storage::{CleanupPolicy, Log, LogConfig, LogStore, ProducerBatch, ProducerState, ReadError};
use klamm_testing::SimulatedDisk;
use serde_json::Value;

use crate::support::*;

/// The folder with the fixtures, and the settings with which they were written.
const SETS: [(&str, u64, u64); 17] = [
    ("v0", 4000, 300),
    ("v1", 4000, 300),
    ("v2-0.11", 4000, 300),
    ("v2-4.4", 4000, 300),
    ("txn/0.11", 1500, 200),
    ("txn/4.4", 1500, 200),
    ("compacted/2.8", 1500, 200),
    ("compacted/4.4", 1500, 200),
    ("compacted/2.8/input", 1500, 200),
    ("compacted/4.4/input", 1500, 200),
    ("offsets/0.10.2", 1 << 30, 4096),
    ("offsets/2.8", 1 << 30, 4096),
    ("offsets/4.4", 1 << 30, 4096),
    ("mixed", 1 << 20, 300),
    ("dir/2.8/data", 4000, 300),
    ("dir/3.9/data", 4000, 300),
    ("dir/4.4/data", 4000, 300),
];

struct Fixture {
    name: String,
    source: PathBuf,
    topic_partition: TopicPartition,
    config: LogConfig,
    expected: Vec<Value>,
    batches: Vec<Value>,
}

pub(crate) fn fixtures_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn all() -> Vec<Fixture> {
    let mut found = Vec::new();
    for (set, segment_bytes, index_interval_bytes) in SETS {
        let folder = fixtures_dir().join(set);
        let mut names: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        for name in names {
            let Some(topic_partition) = TopicPartition::from_folder_name(&name) else { continue };
            let beside = if set.ends_with("/data") { folder.join("..") } else { folder.clone() };
            if !beside.join(format!("{name}.expected.jsonl")).exists() {
                continue;
            }
            found.push(Fixture {
                name: format!("{set}/{name}"),
                source: folder.join(&name),
                topic_partition,
                config: LogConfig {
                    segment_bytes,
                    // The settings were the topics'; internal topics have the default.
                    index_interval_bytes: if name.starts_with("__") { 4096 } else { index_interval_bytes },
                    cleanup: CleanupPolicy { delete: false, compact: set.contains("compacted") },
                    ..small()
                },
                expected: lines(&beside.join(format!("{name}.expected.jsonl"))),
                batches: lines(&beside.join(format!("{name}.batches.jsonl"))),
            });
        }
    }
    assert!(found.len() > 90, "{} fixtures were found", found.len());
    found
}

pub(crate) fn lines(path: &Path) -> Vec<Value> {
    let content = std::fs::read_to_string(path).unwrap();
    content.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Stop {
    Clean,
    Unclean,
}

impl Fixture {
    fn disk(&self, stop: Stop) -> SimulatedDisk {
        let disk = SimulatedDisk::new(1);
        drop(LogStore::open(settings(&disk)).unwrap());
        disk.copy_from(&SystemDisk, &self.source, &self.folder()).unwrap();
        if stop == Stop::Clean {
            put(&disk, &Path::new(LOGS).join(".kafka_cleanshutdown"), b"");
        }
        disk
    }

    fn folder(&self) -> PathBuf {
        Path::new(LOGS).join(self.topic_partition.to_string())
    }

    fn open(&self, disk: &SimulatedDisk) -> (Store, Arc<Log>) {
        let store = open(disk, &self.config);
        let log = store.get(&self.topic_partition).unwrap();
        (store, log)
    }

    fn is_of(&self, version: &str) -> bool {
        self.name.contains(version)
    }

    fn end_offset(&self) -> Offset {
        self.batches.last().map_or(0, |batch| batch["last_offset"].as_i64().unwrap() + 1)
    }

    /// Offset and timestamp of all records, in offset order.
    fn times(&self) -> Vec<(Offset, TimestampMs)> {
        let number = |line: &Value, key: &str| line[key].as_i64().unwrap();
        self.expected.iter().map(|line| (number(line, "offset"), number(line, "timestamp"))).collect()
    }
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * digit)) as usize & 63] as char;
            text.push(if digit <= chunk.len() { letter } else { '=' });
        }
    }
    text
}

fn assert_same(fixture: &Fixture, records: &[Record]) {
    assert_eq!(records.len(), fixture.expected.len(), "{}", fixture.name);
    for (record, expected) in records.iter().zip(&fixture.expected) {
        let text = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map(|bytes| base64(bytes));
        let context = format!("{} at {}", fixture.name, record.offset);
        assert_eq!(Some(record.offset), expected["offset"].as_i64(), "{context}");
        assert_eq!(Some(record.timestamp), expected["timestamp"].as_i64(), "{context}");
        assert_eq!(text(&record.key).as_deref(), expected["key"].as_str(), "{context}");
        assert_eq!(text(&record.value).as_deref(), expected["value"].as_str(), "{context}");
    }
}

#[test]
fn every_fixture_reads_as_expected_after_a_clean_stop_and_after_recovery() {
    for fixture in all() {
        for stop in [Stop::Clean, Stop::Unclean] {
            let disk = fixture.disk(stop);
            let (store, log) = fixture.open(&disk);
            assert_eq!(store.report.cut_bytes, 0, "{}", fixture.name);
            assert!(log.log_end_offset() >= fixture.end_offset(), "{}", fixture.name);
            for max_bytes in [1, 700, 1 << 20] {
                assert_same(&fixture, &read_from(&log, log.log_start_offset(), max_bytes));
            }
        }
    }
}

/// A fetch may ask for any offset: it gets the batch that holds it, or the next one where compaction left a gap.
#[test]
fn every_offset_of_every_fixture_can_be_read_from() {
    for fixture in all() {
        for stop in [Stop::Clean, Stop::Unclean] {
            let disk = fixture.disk(stop);
            let (_store, log) = fixture.open(&disk);
            let batches: Vec<(Offset, Offset)> = fixture
                .batches
                .iter()
                .map(|batch| (batch["last_offset"].as_i64().unwrap(), batch["size"].as_i64().unwrap()))
                .collect();
            for offset in log.log_start_offset()..log.log_end_offset() {
                let slice = log.read(offset, 1, log.log_end_offset(), true).unwrap();
                let batch = batches.iter().find(|(last, _)| *last >= offset);
                let found = slice.map(|slice| (slice.first.last_offset(), slice.len as i64));
                assert_eq!(found.as_ref(), batch, "{} at {offset}", fixture.name);
            }
            let beyond = log.log_end_offset() + 1;
            assert!(matches!(log.read(beyond, 1, beyond, true), Err(ReadError::OutOfRange { .. })));
        }
    }
}

#[test]
fn times_are_found_as_a_scan_finds_them() {
    for fixture in all() {
        let times = fixture.times();
        let mut asked: Vec<TimestampMs> = times.iter().flat_map(|(_, t)| [t - 1, *t, t + 1]).collect();
        asked.extend([0, i64::MAX]);
        asked.retain(|timestamp| *timestamp >= 0);
        asked.sort_unstable();
        asked.dedup();
        for stop in [Stop::Clean, Stop::Unclean] {
            let disk = fixture.disk(stop);
            let (_store, log) = fixture.open(&disk);
            for timestamp in &asked {
                let expected = times.iter().find(|(_, time)| time >= timestamp).copied();
                let found = log.offset_for_timestamp(*timestamp).unwrap();
                let found = found.map(|found| (found.offset, found.timestamp));
                assert_eq!(found, expected, "{} for {timestamp}", fixture.name);
            }
            let largest = times.iter().map(|(_, time)| *time).max().filter(|time| *time >= 0);
            let expected = largest.and_then(|largest| times.iter().find(|(_, time)| *time == largest));
            let found = log.max_timestamp().unwrap().map(|found| (found.offset, found.timestamp));
            assert_eq!(found.as_ref(), expected, "{}", fixture.name);
        }
    }
}

/// Recovery makes indexes from the batches alone. Those of Kafka 4.4 must come out byte for byte.
#[test]
fn recovery_makes_kafkas_own_indexes_again() {
    let mut compared = 0;
    for fixture in all().iter().filter(|f| f.is_of("4.4") && !f.is_of("compacted/4.4/") || f.is_of("input")) {
        if fixture.is_of("2.8") {
            continue;
        }
        let disk = fixture.disk(Stop::Unclean);
        let contents = || {
            let of = |suffix| files(&disk, &fixture.folder(), suffix);
            [of(".index"), of(".timeindex"), of(".txnindex")]
        };
        // An empty transaction index is no file here; Kafka leaves empty ones behind where it looked for one.
        let without_empty = |mut contents: [Vec<(String, Vec<u8>)>; 3]| {
            contents[2].retain(|(_, content)| !content.is_empty());
            contents
        };
        let before = without_empty(contents());
        let _store = fixture.open(&disk);
        let after = without_empty(contents());
        compared += before.iter().flatten().count();
        assert_eq!(after, before, "{}", fixture.name);
    }
    assert!(compared > 100, "{compared} files were compared");
}

fn without_history(producers: Vec<ProducerState>) -> Vec<ProducerState> {
    let last_only = |mut state: ProducerState| {
        // A snapshot keeps the last batch, without a time of its own.
        let last = state.batches.pop_back();
        let timestamp = state.last_timestamp;
        state.batches = last.into_iter().map(|last| ProducerBatch { timestamp, ..last }).collect();
        state
    };
    producers.into_iter().map(last_only).collect()
}

/// What recovery learns about producers from the batches must be what Kafka's snapshot of the end says.
#[test]
fn recovered_producers_are_those_of_kafkas_snapshot() {
    let mut compared = 0;
    for fixture in all() {
        let end = format!("{:020}.snapshot", fixture.end_offset());
        // 0.11 counted a marker as a batch of its producer, which no later version does.
        let differs = fixture.is_of("compacted") || fixture.is_of("0.11");
        if !fixture.source.join(&end).exists() || differs {
            continue;
        }
        let clean = fixture.disk(Stop::Clean);
        let (_store, from_snapshot) = fixture.open(&clean);
        let unclean = fixture.disk(Stop::Unclean);
        for (name, _) in files(&unclean, &fixture.folder(), ".snapshot") {
            unclean.remove_file(&fixture.folder().join(name)).unwrap();
        }
        let (_store, from_batches) = fixture.open(&unclean);
        let expected = from_snapshot.producers();
        compared += expected.len();
        assert_eq!(without_history(from_batches.producers()), expected, "{}", fixture.name);
        assert_eq!(from_batches.open_transactions(), from_snapshot.open_transactions(), "{}", fixture.name);
    }
    assert!(compared > 20, "{compared} producers were compared");
}

#[test]
fn leader_epochs_can_be_learned_from_the_batches() {
    let mut compared = 0;
    for fixture in all().iter().filter(|fixture| !fixture.is_of("compacted")) {
        let file = fixture.source.join("leader-epoch-checkpoint");
        if !file.exists() || fixture.is_of("0.11") {
            continue;
        }
        let (_store, kept) = fixture.open(&fixture.disk(Stop::Clean));
        let disk = fixture.disk(Stop::Unclean);
        disk.remove_file(&fixture.folder().join("leader-epoch-checkpoint")).unwrap();
        let (_store, learned) = fixture.open(&disk);
        let epochs: Vec<i64> = fixture
            .batches
            .iter()
            .map(|batch| batch["partition_leader_epoch"].as_i64().unwrap_or(-1))
            .collect();
        if epochs.iter().all(|epoch| *epoch < 0) {
            continue;
        }
        // An epoch without records leaves no trace in the batches.
        let with_records = kept.leader_epochs().into_iter().filter(|e| epochs.contains(&e.epoch.0.into()));
        let learned: Vec<i32> = learned.leader_epochs().iter().map(|entry| entry.epoch.0).collect();
        assert_eq!(learned, with_records.map(|entry| entry.epoch.0).collect::<Vec<_>>(), "{}", fixture.name);
        compared += 1;
    }
    assert!(compared > 30, "{compared} logs were compared");
}

/// `read_committed` must leave out what was aborted. The list that a reader needs for it must come out the same
/// from Kafka's transaction indexes and from recovered ones, and give what Kafka's own consumer saw.
#[test]
fn aborted_transactions_are_listed_for_readers() {
    for set in ["txn/4.4", "txn/0.11"] {
        for fixture in all().iter().filter(|fixture| fixture.is_of(set)) {
            let path = format!("{}.expected-read-committed.jsonl", fixture.source.display());
            let expected: Vec<i64> =
                lines(Path::new(&path)).iter().map(|line| line["offset"].as_i64().unwrap()).collect();
            for stop in [Stop::Clean, Stop::Unclean] {
                let (_store, log) = fixture.open(&fixture.disk(stop));
                assert_eq!(committed_offsets(&log), expected, "{}", fixture.name);
            }
        }
    }
}

/// What a consumer does with the list: a producer's records are left out from the first offset of an aborted
/// transaction to its marker.
pub(crate) fn committed_offsets(log: &Log) -> Vec<Offset> {
    let end = log.last_stable_offset(log.log_end_offset());
    let mut aborted = log.aborted_transactions(0, end).unwrap();
    aborted.sort_by_key(|transaction| transaction.first_offset);
    let mut aborting = Vec::new();
    let mut offsets = Vec::new();
    let mut next = 0;
    while let Some(slice) = log.read(next, 1, end, true).unwrap() {
        let batch = klamm_records::batches(slice.to_bytes().unwrap()).next().unwrap().unwrap();
        let header = &batch.header;
        next = header.next_offset();
        while aborted.first().is_some_and(|transaction| transaction.first_offset <= header.last_offset()) {
            aborting.push(aborted.remove(0).producer_id);
        }
        if header.is_control() {
            aborting.retain(|id| *id != header.producer_id);
        } else if !(header.is_transactional() && aborting.contains(&header.producer_id)) {
            offsets.extend(batch.records().unwrap().iter().map(|record| record.offset));
        }
    }
    offsets
}

/// A whole directory of Kafka 4.4, stopped in order, opens with a look at the last batches alone.
#[test]
fn a_directory_of_kafka_opens_without_a_scan() {
    for version in ["4.4", "3.9"] {
        let disk = SimulatedDisk::new(1);
        let source = fixtures_dir().join("dir").join(version).join("data");
        disk.copy_from(&SystemDisk, &source, Path::new(LOGS)).unwrap();
        let store = open(&disk, &LogConfig { segment_bytes: 4000, ..small() });
        assert_eq!(store.report.recovered_logs, 0);
        assert_eq!(store.report.logs, 7);
        assert_eq!(store.report.ignored, [Path::new(LOGS).join("__cluster_metadata-0")]);
        let tails = log_bytes_read(&disk);
        assert!(tails <= 7 * 4096, "only the ends of the last segments are looked at: {tails} bytes");
        assert!(store.previous_broker_epoch().is_some());
        let alpha = TopicPartition::new("alpha", 0);
        assert_eq!(store.get(&alpha).unwrap().log_end_offset(), 40);
        assert_eq!(store.high_watermark(&alpha), Some(40));
        assert!(store.get(&alpha).unwrap().topic_id().is_some());
    }
}

/// Kafka was killed while it wrote. All that its producer was told is there after our recovery, as it was after
/// Kafka's own.
#[test]
fn a_directory_of_a_killed_kafka_recovers() {
    let source = fixtures_dir().join("dir/4.4-killed");
    let disk = SimulatedDisk::new(1);
    disk.copy_from(&SystemDisk, &source.join("data"), Path::new(LOGS)).unwrap();
    let store = open(&disk, &LogConfig { segment_bytes: 4000, ..small() });
    assert_eq!((store.report.recovered_logs, store.report.logs), (5, 7), "two are empty");
    for name in ["alpha-0", "alpha-1", "beta.with_dots-0"] {
        let expected = lines(&source.join(format!("{name}.after-recovery.jsonl")));
        let fixture = Fixture {
            name: name.to_owned(),
            source: PathBuf::new(),
            topic_partition: TopicPartition::from_folder_name(name).unwrap(),
            config: small(),
            expected,
            batches: Vec::new(),
        };
        let log = store.get(&fixture.topic_partition).unwrap();
        let (mut records, mut next) = (Vec::new(), 0);
        while let Some(slice) = log.read(next, 1, log.log_end_offset(), true).unwrap() {
            let batch = klamm_records::batches(slice.to_bytes().unwrap()).next().unwrap().unwrap();
            next = batch.header.next_offset();
            if !batch.header.is_control() {
                records.extend(batch.records().unwrap());
            }
        }
        assert_same(&fixture, &records);
    }
}

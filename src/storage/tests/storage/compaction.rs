//! Compaction leaves what Apache Kafka's own cleaner left of the same topics.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use klamm_io::{Clock, Disk, SystemDisk};
use klamm_model::{Offset, TimestampMs, TopicPartition};
use klamm_records::{Batch, BatchBuilder, BatchSettings, Header, batches};
use klamm_storage::{CleanedLog, Cleaner, CleanerSettings, CleanupPolicy, Log, LogConfig, LogStore, Outcome};
use klamm_testing::{SimulatedClock, SimulatedDisk};
use serde_json::Value;

use crate::fixtures::{base64, committed_offsets, fixtures_dir, lines};
use crate::support::*;

/// When the fixtures were made; the first horizon of `drop`, whose retention was 0.
const MADE: TimestampMs = 1_795_983_711_760;
/// `delete.retention.ms` of all topics but `drop`.
const TEN_YEARS: i64 = 315_360_000_000;

struct Compacted {
    version: &'static str,
    topic: &'static str,
    clock: SimulatedClock,
    disk: SimulatedDisk,
    log: Arc<Log>,
    cleaner: Cleaner,
}

impl Compacted {
    fn open(version: &'static str, topic: &'static str, now_ms: TimestampMs) -> Compacted {
        let config = LogConfig {
            cleanup: CleanupPolicy { delete: false, compact: true },
            min_cleanable_dirty_ratio: 0.01,
            delete_retention_ms: if topic == "drop" { 0 } else { TEN_YEARS },
            ..small()
        };
        let disk = SimulatedDisk::new(1);
        drop(LogStore::open(settings(&disk)).unwrap());
        let name = format!("{topic}-0");
        let input = fixtures_dir().join("compacted").join(version).join("input").join(&name);
        disk.copy_from(&SystemDisk, &input, &Path::new(LOGS).join(&name)).unwrap();
        put(&disk, &Path::new(LOGS).join(".kafka_cleanshutdown"), b"");
        let clock = SimulatedClock::new(now_ms);
        let mut settings = settings(&disk);
        settings.clock = Arc::new(clock.clone());
        let store = Arc::new(LogStore::open(settings).unwrap());
        let report = store.load(&|_| config.clone()).unwrap();
        assert_eq!((report.failed, report.cut_bytes), (Vec::new(), 0));
        let log = store.get(&TopicPartition::new(topic, 0)).unwrap();
        let cleaner = Cleaner::new(store, CleanerSettings::default());
        Compacted { version, topic, clock, disk, log, cleaner }
    }

    fn clean(&self) -> CleanedLog {
        let end = self.log.log_end_offset();
        let go_on = |wait: Duration| {
            assert!(wait.is_zero());
            ControlFlow::Continue(())
        };
        match self.cleaner.clean_next(self.clock.now_ms(), &|_| Some(end), &go_on) {
            Outcome::Cleaned(_, cleaned) => cleaned,
            other => panic!("{} {}: {other:?}", self.version, self.topic),
        }
    }

    fn beside(&self, suffix: &str) -> Vec<Value> {
        let name = format!("{}-0.{suffix}.jsonl", self.topic);
        lines(&fixtures_dir().join("compacted").join(self.version).join(name))
    }

    /// All batches, each with the base offset of its segment.
    fn batches(&self) -> Vec<(Offset, Batch)> {
        let mut found = Vec::new();
        let folder = Path::new(LOGS).join(format!("{}-0", self.topic));
        for (name, content) in files(&self.disk, &folder, ".log") {
            let base: Offset = name[..20].parse().unwrap();
            for batch in batches(content.into()) {
                let batch = batch.unwrap();
                batch.check_crc().unwrap();
                found.push((base, batch));
            }
        }
        found
    }

    /// Every surviving record is the expected one, with all its fields.
    fn check_records(&self) {
        let expected = self.beside("expected");
        let records: Vec<_> = self.batches().iter().flat_map(|(_, batch)| batch.records().unwrap()).collect();
        assert_eq!(
            offsets(&records),
            expected.iter().map(|line| line["offset"].as_i64().unwrap()).collect::<Vec<_>>(),
            "{} {}",
            self.version,
            self.topic
        );
        for (record, line) in records.iter().zip(&expected) {
            let text = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map(|bytes| base64(bytes));
            assert_eq!(Some(record.timestamp), line["timestamp"].as_i64());
            assert_eq!(text(&record.key).as_deref(), line["key"].as_str());
            assert_eq!(text(&record.value).as_deref(), line["value"].as_str());
            assert_eq!(Some(i64::from(record.sequence)), line["sequence"].as_i64());
            let headers: Vec<Value> = record
                .headers
                .iter()
                .map(|h| serde_json::json!([String::from_utf8(h.key.to_vec()).unwrap(), text(&h.value)]))
                .collect();
            assert_eq!(Value::Array(headers), line["headers"]);
        }
    }

    /// Every batch is the expected one: where it stands, its range, its producer, its horizon.
    fn check_batches(&self) {
        let (found, expected) = (self.batches(), self.beside("batches"));
        assert_eq!(found.len(), expected.len(), "{} {}", self.version, self.topic);
        for ((segment, batch), line) in found.iter().zip(&expected) {
            let header = &batch.header;
            let context = format!("{} {} at {}: {line}", self.version, self.topic, header.base_offset);
            let number = |key: &str| line[key].as_i64();
            assert_eq!(line["segment"].as_str(), Some(format!("{segment:020}.log").as_str()), "{context}");
            assert_eq!(number("base_offset"), Some(header.base_offset), "{context}");
            assert_eq!(number("last_offset"), Some(header.last_offset()), "{context}");
            assert_eq!(number("records"), Some(header.record_count.into()), "{context}");
            assert_eq!(number("magic"), Some(header.magic.into()), "{context}");
            assert_eq!(number("max_timestamp"), Some(header.max_timestamp), "{context}");
            assert_eq!(number("producer_id"), Some(header.producer_id.0), "{context}");
            assert_eq!(number("producer_epoch"), Some(header.producer_epoch.0.into()), "{context}");
            assert_eq!(number("base_sequence"), Some(header.base_sequence.into()), "{context}");
            assert_eq!(line["transactional"].as_bool(), Some(header.is_transactional()), "{context}");
            assert_eq!(line["control"].as_bool(), Some(header.is_control()), "{context}");
            assert_eq!(line["codec"].as_str(), Some(header.compression().unwrap().name()), "{context}");
            assert_eq!(number("delete_horizon_ms"), header.delete_horizon(), "{context}");
            // What is not compressed is the same to the byte.
            if !header.is_compressed() {
                assert_eq!(number("size"), Some(header.size as i64), "{context}");
                assert_eq!(number("crc"), Some(header.crc.into()), "{context}");
            }
        }
    }

    /// How far the real cleaner came.
    fn reached(&self) -> Offset {
        let path = fixtures_dir().join("compacted").join(self.version).join("cleaner-offset-checkpoint");
        let content = std::fs::read_to_string(path).unwrap();
        let line = content.lines().find(|line| line.starts_with(&format!("{} ", self.topic))).unwrap();
        line.split(' ').nth(2).unwrap().parse().unwrap()
    }

    /// Appends what came to `drop` later, while the cleaner ran on whenever a segment had ended.
    fn append_more(&self) {
        let more = lines(&fixtures_dir().join("compacted/drop-0.more.jsonl"));
        for pair in more.chunks(2) {
            let base_offset = pair[0]["offset"].as_i64().unwrap();
            assert_eq!(self.log.log_end_offset(), base_offset);
            let mut builder = BatchBuilder::v2(BatchSettings { base_offset, ..BatchSettings::default() });
            for line in pair {
                let bytes = |value: &Value| value.as_str().map(unbase64);
                let header = |pair: &Value| Header {
                    key: pair[0].as_str().unwrap().to_owned().into(),
                    value: bytes(&pair[1]).map(Into::into),
                };
                let headers: Vec<Header> = line["headers"].as_array().unwrap().iter().map(header).collect();
                let (key, value) = (bytes(&line["key"]), bytes(&line["value"]));
                let timestamp = line["timestamp"].as_i64().unwrap();
                builder.append(timestamp, key.as_deref(), value.as_deref(), &headers);
            }
            let batch = batches(builder.build()).next().unwrap().unwrap();
            let segments = self.log.segment_count();
            self.log.append_replicated(&[batch]).unwrap();
            if self.log.segment_count() > segments {
                self.clean();
                self.clock.advance(Duration::from_millis(10));
            }
        }
    }
}

fn unbase64(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits: Vec<u8> = text
        .bytes()
        .filter_map(|letter| LETTERS.iter().position(|l| *l == letter))
        .map(|d| d as u8)
        .collect();
    let mut bytes = Vec::new();
    for chunk in digits.chunks(4) {
        let bits =
            chunk.iter().fold(0u32, |bits, digit| bits << 6 | u32::from(*digit)) << (6 * (4 - chunk.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..chunk.len()]);
    }
    bytes
}

/// When the round ran that set the horizons of a topic.
fn time_of_round(topic: &str) -> TimestampMs {
    match topic {
        "keep" => 2_111_343_702_727 - TEN_YEARS,
        "transactions" => 2_111_343_704_162 - TEN_YEARS,
        _ => MADE,
    }
}

#[test]
fn one_round_leaves_what_kafkas_cleaner_left() {
    for version in ["4.4", "2.8"] {
        for topic in ["keep", "idempotent", "expired", "transactions"] {
            let compacted = Compacted::open(version, topic, time_of_round(topic));
            let cleaned = compacted.clean();
            assert_eq!(cleaned.cleaned_offset, compacted.reached(), "{version} {topic}");
            compacted.check_records();
            if version == "4.4" {
                compacted.check_batches();
            }
            if topic == "transactions" {
                let committed: Vec<i64> = compacted
                    .beside("expected-read-committed")
                    .iter()
                    .map(|line| line["offset"].as_i64().unwrap())
                    .collect();
                assert_eq!(committed_offsets(&compacted.log), committed, "{version}");
            }
            let path = Path::new(LOGS).join("cleaner-offset-checkpoint");
            let checkpoint = String::from_utf8(compacted.disk.read(&path).unwrap()).unwrap();
            assert_eq!(checkpoint, format!("0\n1\n{topic} 0 {}\n", compacted.reached()));
        }
    }
}

/// Tombstones go in a later round, when their time is over; new records came between.
#[test]
fn several_rounds_leave_what_kafkas_cleaner_left() {
    for version in ["4.4", "2.8"] {
        let compacted = Compacted::open(version, "drop", MADE);
        compacted.clean();
        compacted.clock.advance(Duration::from_millis(38_371));
        compacted.append_more();
        assert_eq!(compacted.log.cleaned_offset(), Some(compacted.reached()), "{version}");
        compacted.check_records();
        if version == "4.4" {
            compacted.check_batches();
        }
    }
}

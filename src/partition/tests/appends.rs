//! The same Produce gives the same bytes in the log as Apache Kafka wrote, in topics of every format, time and codec.
//! One byte that differs, and a tool or a follower that reads the folder finds corrupt batches, an old client parses
//! another record than was sent, or a retry is not known again.
//!
//! `oracle/appends-VERSION.jsonl` holds what real brokers answered and stored; `oracle/appends.py` asked them.

#![allow(clippy::disallowed_methods)]

mod replica;

use std::collections::BTreeMap;

use bytes::Bytes;
use klamm_io::Disk;
use klamm_model::{NodeId, TimestampType};
use klamm_partition::{AppendOptions, Origin, PartitionSettings};
use klamm_records::{Batch, BatchHeader, Compression, batches, compression};
use klamm_storage::LogConfig;
use replica::Replica;
use serde_json::Value;

const NODE: NodeId = NodeId(1);

/// Where we answer otherwise on purpose: who was asked, what was sent, our code, and why. What only we take is not
/// sent here, so that the logs stay the same.
const DIFFERENT: &[(&str, &str, i16, &str)] = &[
    ("2.8.2", "with an append time", 0, "4.4.0 takes the flag and overrules it, and so do we"),
    ("2.8.2", "", 76, "zstd in an old format is an internal error there (-1)"),
];

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digits).collect()
}

fn broker(kafka: &str, topic: &Value) -> Replica {
    let config = LogConfig { index_interval_bytes: 100, retention_ms: None, ..LogConfig::default() };
    let settings = PartitionSettings {
        target_magic: topic["magic"].as_i64().unwrap() as i8,
        timestamp_type: match topic["timestamp_type"].as_str().unwrap() {
            "LogAppendTime" => TimestampType::LogAppendTime,
            _ => TimestampType::CreateTime,
        },
        // Older Kafkas take any time.
        timestamp_after_max_ms: if kafka == "2.8.2" { i64::MAX } else { 3_600_000 },
        compression: topic["compression"].as_str().map(|name| Compression::from_name(name).unwrap()),
        is_compacted: topic["compacted"].as_bool().unwrap(),
        ..PartitionSettings::default()
    };
    let broker = Replica::new(NODE, topic["appends"][0]["now"].as_i64().unwrap(), config, settings);
    broker.lead_alone(NODE);
    broker
}

impl Replica {
    /// What the answer would say: code, first offset, append time and which records are at fault.
    fn append(&self, records: Vec<u8>, append: &Value) -> (i16, i64, i64, Vec<(i64, Option<String>)>) {
        self.clock.set_wall(append["now"].as_i64().unwrap());
        let options = AppendOptions {
            origin: Origin::Client,
            produce_version: append["version"].as_i64().unwrap() as i16,
            acks: 1,
            expected_leader_epoch: None,
            guard: None,
        };
        match self.partition.append_as_leader(records.into(), &options) {
            Ok(appended) => {
                // v0 and v1 have no place for it.
                let time = if options.produce_version < 2 { -1 } else { appended.log_append_time };
                (0, appended.base_offset, time, Vec::new())
            }
            Err(error) => {
                let records = match &error {
                    klamm_partition::AppendError::Invalid(invalid) => &invalid.record_errors[..],
                    _ => &[],
                };
                let records =
                    records.iter().map(|(index, text)| (i64::from(*index), text.as_deref().map(comparable)));
                (
                    error.code().code(),
                    -1,
                    -1,
                    if options.produce_version < 8 { Vec::new() } else { records.collect() },
                )
            }
        }
    }

    fn file(&self, suffix: &str) -> Vec<u8> {
        let path = self.partition.log().dir().join(format!("{:020}{suffix}", 0));
        self.disk.read(&path).unwrap()
    }
}

/// The text of an error without the topic's name and the clock.
fn comparable(text: &str) -> String {
    let end = [" in topic partition ", " should be within "].iter().find_map(|before| text.find(before));
    text[..end.unwrap_or(text.len())].to_owned()
}

fn told(append: &Value) -> (i16, i64, i64, Vec<(i64, Option<String>)>) {
    let records = append["record_errors"].as_array().unwrap().iter();
    let record = |error: &Value| (error[0].as_i64().unwrap(), error[1].as_str().map(comparable));
    (
        append["error"].as_i64().unwrap() as i16,
        append["base_offset"].as_i64().unwrap(),
        append["log_append_time"].as_i64().unwrap(),
        records.map(record).collect(),
    )
}

/// Where the records of a batch begin; in the old formats a null key and the value's length stand before them.
fn content_start(batch: &Batch) -> usize {
    [26, 34, klamm_records::HEAD_LEN][batch.header.magic as usize]
}

/// The same bytes, or, where the broker has compressed them anew, the same but for what the codec's writer chooses.
fn assert_same_batch(ours: &Batch, kafkas: &Batch, sent: &[Vec<u8>], context: &str) {
    let codec = kafkas.header.compression().unwrap();
    let content = &kafkas.bytes[content_start(kafkas)..];
    if codec == Compression::None || sent.iter().any(|sent| sent.ends_with(content)) {
        assert_eq!(ours.bytes, kafkas.bytes, "{context}\n{:?}\n{:?}", ours.header, kafkas.header);
        return;
    }
    let comparable = |header: BatchHeader| BatchHeader { size: 0, crc: 0, ..header };
    assert_eq!(comparable(ours.header), comparable(kafkas.header), "{context}");
    ours.check_crc().unwrap();
    let content = |batch: &Batch| {
        let packed = batch.bytes.slice(content_start(batch)..);
        compression::decompress(codec, batch.header.magic, &packed, 1 << 20).unwrap()
    };
    assert_eq!(content(ours), content(kafkas), "{context}");
}

/// Which batch begins at each position.
fn ordinals(log: &[Batch]) -> BTreeMap<u32, usize> {
    let mut position = 0;
    let mut found = BTreeMap::new();
    for (ordinal, batch) in log.iter().enumerate() {
        found.insert(position, ordinal);
        position += batch.bytes.len() as u32;
    }
    found
}

/// The entries of an offset index: the offset, and which batch it points to.
fn offset_entries(index: &[u8], log: &[Batch]) -> Vec<(u32, usize)> {
    let ordinals = ordinals(log);
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    index.chunks(8).map(|entry| (number(&entry[..4]), ordinals[&number(&entry[4..])])).collect()
}

fn compare(kafka: &str, inputs: &Value, topic: &Value) {
    let name = format!(
        "{kafka}: V{} {} {} {}",
        topic["magic"], topic["timestamp_type"], topic["compression"], topic["compacted"]
    );
    let broker = broker(kafka, topic);
    let mut wrong = String::new();
    for append in topic["appends"].as_array().unwrap() {
        let input = append["input"].as_str().unwrap();
        let accepted: Vec<i16> = DIFFERENT
            .iter()
            .filter(|(version, part, code, _)| {
                *version == kafka && input.ends_with(part) && (*code != 76 || told(append).0 == -1)
            })
            .map(|(.., code, _)| *code)
            .collect();
        if told(append).0 != 0 && accepted.contains(&0) {
            continue;
        }
        let ours = broker.append(unhex(inputs[input].as_str().unwrap()), append);
        if ours != told(append) && !accepted.contains(&ours.0) {
            wrong += &format!("{name}: {input} v{}: {ours:?}, Kafka {:?}\n", append["version"], told(append));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    broker.store.close(None).unwrap();
    let log =
        |bytes: Vec<u8>| batches(Bytes::from(bytes)).map(|batch| batch.unwrap()).collect::<Vec<Batch>>();
    let ours = log(broker.file(".log"));
    let kafkas = log(unhex(topic["log"].as_str().unwrap()));
    let sent: Vec<Vec<u8>> =
        inputs.as_object().unwrap().values().map(|input| unhex(input.as_str().unwrap())).collect();
    for (ours, kafkas) in ours.iter().zip(&kafkas) {
        let context = format!("{name} at offset {}", kafkas.header.base_offset);
        assert_same_batch(ours, kafkas, &sent, &context);
    }
    assert_eq!(ours.len(), kafkas.len(), "{name}");
    let entries = offset_entries(&broker.file(".index"), &ours);
    if topic["magic"] == 2 {
        let index = unhex(topic["index"].as_str().unwrap());
        assert_eq!(entries, offset_entries(&index, &kafkas), "{name}");
        assert_eq!(broker.file(".timeindex"), unhex(topic["timeindex"].as_str().unwrap()), "{name}");
    }
    // For old formats 2.8.2 makes at most one entry an append, from its last offset to its first message, and in V0
    // with LogAppendTime it indexes times that its messages have not. Later Kafkas go by batches, and so do we.
    for (offset, ordinal) in entries {
        assert_eq!(i64::from(offset), ours[ordinal].header.last_offset(), "{name}");
    }
}

#[test]
fn logs_are_those_of_kafka() {
    for (kafka, topics) in [("2.8.2", 27), ("4.4.0", 9)] {
        let path = format!("{}/tests/oracle/appends-{kafka}.jsonl", env!("CARGO_MANIFEST_DIR"));
        let content = std::fs::read_to_string(path).unwrap();
        let lines: Vec<Value> = content.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 1 + topics);
        lines[1..].iter().for_each(|topic| compare(kafka, &lines[0], topic));
    }
}

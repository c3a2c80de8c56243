//! Every partition that real Kafka left in `fixtures/` reads as real Kafka reads it. A reader that is wrong
//! about one attribute bit, one relative offset or one checksum serves other records than were written, and no
//! test against our own writer would show it.

#![allow(clippy::disallowed_methods)]

use std::fs;
use std::path::{Path, PathBuf};

use klamm_model::TimestampType;
use klamm_records::control::ControlRecord;
use klamm_records::{Batch, Record, batches};
use serde_json::{Value, json};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// All `P.expected.jsonl` below `folder` whose partition folder `P` is there.
fn expectations(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            expectations(&path, found);
        } else if path.to_string_lossy().ends_with(".expected.jsonl") {
            found.push(path);
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for digit in 0..4 {
            let used = digit <= group.len();
            text.push(if used { DIGITS[(bits >> (18 - 6 * digit)) as usize & 63] as char } else { '=' });
        }
    }
    text
}

fn nullable(bytes: Option<&[u8]>) -> Value {
    bytes.map_or(Value::Null, |bytes| base64(bytes).into())
}

fn timestamp_type(batch: &Batch) -> &'static str {
    match (batch.header.magic, batch.header.timestamp_type()) {
        (0, _) => "NoTimestampType",
        (_, TimestampType::CreateTime) => "CreateTime",
        (_, TimestampType::LogAppendTime) => "LogAppendTime",
    }
}

fn describe_record(batch: &Batch, record: &Record) -> Value {
    let headers: Vec<Value> = record
        .headers
        .iter()
        .map(|header| {
            json!([String::from_utf8(header.key.to_vec()).unwrap(), nullable(header.value.as_deref())])
        })
        .collect();
    let mut line = json!({
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": timestamp_type(batch),
        "key": nullable(record.key.as_deref()),
        "value": nullable(record.value.as_deref()),
        "headers": headers,
        "magic": batch.header.magic,
        "codec": batch.header.compression().unwrap().name(),
    });
    if batch.header.magic == 2 {
        let control = match batch.header.is_control() {
            false => json!(false),
            true => match batch.control_record().unwrap() {
                ControlRecord::EndTxn(marker) => json!(if marker.commit { "COMMIT" } else { "ABORT" }),
                ControlRecord::Other { kind } => json!(kind),
            },
        };
        line["producer_id"] = batch.header.producer_id.0.into();
        line["producer_epoch"] = batch.header.producer_epoch.0.into();
        line["sequence"] = record.sequence.into();
        line["transactional"] = batch.header.is_transactional().into();
        line["control"] = control;
    }
    line
}

fn describe_batch(batch: &Batch, segment: &str, position: usize, records: usize) -> Value {
    let header = &batch.header;
    let mut line = json!({
        "segment": segment,
        "position": position,
        "size": header.size,
        "base_offset": batch.first_offset().unwrap(),
        "last_offset": header.last_offset(),
        "records": records,
        "magic": header.magic,
        "codec": header.compression().unwrap().name(),
        "timestamp_type": timestamp_type(batch),
        "max_timestamp": header.max_timestamp,
    });
    if header.magic == 2 {
        line["partition_leader_epoch"] = header.partition_leader_epoch.0.into();
        line["crc"] = header.crc.into();
        line["producer_id"] = header.producer_id.0.into();
        line["producer_epoch"] = header.producer_epoch.0.into();
        line["base_sequence"] = header.base_sequence.into();
        line["last_sequence"] = header.last_sequence().into();
        line["transactional"] = header.is_transactional().into();
        line["control"] = header.is_control().into();
        line["delete_horizon_ms"] = json!(header.delete_horizon());
    }
    line
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn check_partition(expected: &Path) {
    let prefix = expected.to_string_lossy().strip_suffix(".expected.jsonl").unwrap().to_owned();
    let mut folder = PathBuf::from(&prefix);
    if !folder.is_dir() {
        folder = folder.parent().unwrap().join("data").join(folder.file_name().unwrap());
    }
    let mut segments: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    segments.sort();
    let (mut found_records, mut found_batches) = (Vec::new(), Vec::new());
    for segment in segments {
        let name = segment.file_name().unwrap().to_string_lossy().into_owned();
        let mut position = 0;
        for batch in batches(fs::read(&segment).unwrap().into()) {
            let batch = batch.unwrap_or_else(|error| panic!("{}: {error}", segment.display()));
            batch.check_crc().unwrap();
            let records = batch.records().unwrap();
            found_records.extend(records.iter().map(|record| describe_record(&batch, record)));
            found_batches.push(describe_batch(&batch, &name, position, records.len()));
            position += batch.header.size;
        }
    }
    assert_same(expected, &found_records);
    assert_same(Path::new(&format!("{prefix}.batches.jsonl")), &found_batches);
}

fn assert_same(expected: &Path, found: &[Value]) {
    let wanted = lines(expected);
    for (index, (wanted, found)) in wanted.iter().zip(found).enumerate() {
        assert_eq!(wanted, found, "{} line {}", expected.display(), index + 1);
    }
    assert_eq!(wanted.len(), found.len(), "{}", expected.display());
}

#[test]
fn every_partition_of_real_kafka_reads_as_kafka_reads_it() {
    let mut found = Vec::new();
    expectations(&fixtures(), &mut found);
    assert!(found.len() >= 100, "only {} partitions: are the fixtures there?", found.len());
    for expected in &found {
        check_partition(expected);
    }
}

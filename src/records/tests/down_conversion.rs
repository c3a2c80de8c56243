//! Down-conversion gives what Kafka 2.8.2 gives, message for message. Old clients parse these bytes strictly: a
//! relative offset where an absolute one belongs, or a missing append time, and they lose or repeat records.
//!
//! `oracle/down-conversion-2.8.2.txt` was printed by Kafka's own classes (`oracle/DownConvert.java`).

#![allow(clippy::disallowed_methods)]

use std::fmt::Write;
use std::fs;
use std::path::Path;

use bytes::Bytes;
use flate2::Crc;
use klamm_records::{Compression, ConversionLimit, RecordsError, batches, compression, down_convert};

const UNLIMITED: ConversionLimit = ConversionLimit { bytes_max: usize::MAX };

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// The same lines as `DownConvert.java`.
fn describe(converted: Bytes) -> String {
    let mut text = String::new();
    for message in batches(converted) {
        let message = message.unwrap();
        message.check_crc().unwrap();
        let header = &message.header;
        write!(text, "  {} {} {}", header.base_offset, header.magic, header.attributes).unwrap();
        if header.magic > 0 {
            write!(text, " {}", header.max_timestamp).unwrap();
        }
        match header.compression().unwrap() {
            Compression::None => writeln!(text, " crc {}", header.crc).unwrap(),
            codec => {
                // A null key and the value's length stand before the value.
                let start = if header.magic == 0 { 26 } else { 34 };
                let value = message.bytes.slice(start..);
                let inner = compression::decompress(codec, header.magic, &value, usize::MAX).unwrap();
                writeln!(text, " inner {} {}", inner.len(), crc32(&inner)).unwrap();
            }
        }
    }
    text
}

#[test]
fn segments_convert_down_as_kafka_converts_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let wanted = fs::read_to_string(root.join("tests/oracle/down-conversion-2.8.2.txt")).unwrap();
    let mut found = String::new();
    for case in wanted.lines().filter(|line| !line.starts_with(' ')) {
        let mut words = case.split(' ');
        let segment = root.join("../../fixtures").join(words.next().unwrap());
        let magic = words.next().unwrap().parse().unwrap();
        let from_offset = words.next().unwrap().parse().unwrap();
        let head = case.strip_suffix(" unsupported").unwrap_or(case);
        match down_convert(fs::read(segment).unwrap().into(), magic, from_offset, UNLIMITED) {
            Ok(converted) => write!(found, "{head}\n{}", describe(converted)).unwrap(),
            Err(RecordsError::UnsupportedCompression { .. }) => {
                writeln!(found, "{head} unsupported").unwrap()
            }
            Err(error) => panic!("{case}: {error}"),
        }
    }
    for (index, (wanted, found)) in wanted.lines().zip(found.lines()).enumerate() {
        assert_eq!(wanted, found, "line {}", index + 1);
    }
    assert_eq!(wanted.len(), found.len());
}

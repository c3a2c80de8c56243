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
use klamm_records::{Batch, Compression, ConversionLimit, RecordsError, batches, compression, down_convert};

/// How many of the recorded cases ask for a record that compaction took from the end of a compressed batch.
const HOLES: usize = 4;

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

/// The offset of the last record of the compressed batch that holds `from_offset`, if compaction has taken that
/// record and all behind it.
fn last_before_a_hole(segment: Bytes, from_offset: i64) -> Option<i64> {
    let holds = |batch: &Batch| {
        let header = &batch.header;
        header.magic == 2
            && header.is_compressed()
            && (header.base_offset..=header.last_offset()).contains(&from_offset)
    };
    let batch = batches(segment).filter_map(Result::ok).find(holds)?;
    let last = batch.record_iter().unwrap().last().map(|record| record.unwrap().offset);
    last.filter(|last| *last < from_offset)
}

/// In one respect Klamm differs: of a batch whose records from the asked one on are gone, Kafka gives those before,
/// and a client that has them asks for the same again, for ever. Here the batch is left out.
#[test]
fn segments_convert_down_as_kafka_converts_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recorded = fs::read_to_string(root.join("tests/oracle/down-conversion-2.8.2.txt")).unwrap();
    let (mut wanted, mut found, mut holes) = (String::new(), String::new(), 0);
    let mut hole = None;
    for line in recorded.lines() {
        if line.starts_with(' ') {
            let is_left_out = hole.is_some_and(|offset| line.starts_with(&format!("  {offset} ")));
            holes += usize::from(is_left_out);
            if !is_left_out {
                writeln!(wanted, "{line}").unwrap();
            }
            continue;
        }
        writeln!(wanted, "{line}").unwrap();
        let mut words = line.split(' ');
        let segment: Bytes =
            fs::read(root.join("../../fixtures").join(words.next().unwrap())).unwrap().into();
        let magic = words.next().unwrap().parse().unwrap();
        let from_offset = words.next().unwrap().parse().unwrap();
        hole = last_before_a_hole(segment.clone(), from_offset);
        let head = line.strip_suffix(" unsupported").unwrap_or(line);
        match down_convert(segment, magic, from_offset, UNLIMITED) {
            Ok(converted) => write!(found, "{head}\n{}", describe(converted)).unwrap(),
            Err(RecordsError::UnsupportedCompression { .. }) => {
                writeln!(found, "{head} unsupported").unwrap()
            }
            Err(error) => panic!("{line}: {error}"),
        }
    }
    for (index, (wanted, found)) in wanted.lines().zip(found.lines()).enumerate() {
        assert_eq!(wanted, found, "line {}", index + 1);
    }
    assert_eq!(wanted.len(), found.len());
    assert_eq!(holes, HOLES, "as many batches as the recorded cases ask behind the last of");
}

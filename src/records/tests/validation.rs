//! What a leader refuses, with Kafka's error codes, and what it makes of what it accepts. Clients retry, split
//! or give up by these codes, so a wrong one turns into a duplicate or a lost record on their side.

use bytes::Bytes;
use klamm_model::{ErrorCode, LeaderEpoch, ProducerEpoch, ProducerId, TimestampType, TopicPartition};
use klamm_records::compression::EXPANDED_BYTES_MAX;
use klamm_records::control::EndTxnMarker;
use klamm_records::{
    AppendRules, Batch, BatchBuilder, BatchSettings, Compression, HEAD_LEN, Header, InvalidRecords, Origin,
    Record, ValidBatch, batches, validate_for_append,
};

const NOW: i64 = 1_700_000_000_000;
const HOUR: i64 = 3_600_000;
const CODECS: [Compression; 5] =
    [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

fn rules() -> AppendRules {
    AppendRules {
        produce_version: 9,
        target_magic: 2,
        timestamp_type: TimestampType::CreateTime,
        now_ms: NOW,
        timestamp_before_max_ms: i64::MAX,
        timestamp_after_max_ms: HOUR,
        max_batch_bytes: 1_048_588,
        is_compacted: false,
        compression_type: None,
        level: None,
        expanded_bytes_max: EXPANDED_BYTES_MAX,
        first_offset: 500,
        leader_epoch: LeaderEpoch(7),
        origin: Origin::Client,
        topic_partition: TopicPartition::new("orders", 3),
    }
}

fn old_produce(target_magic: i8) -> AppendRules {
    AppendRules { produce_version: 2, target_magic, ..rules() }
}

fn headers() -> Vec<Header> {
    vec![Header { key: Bytes::from_static(b"trace"), value: Some(Bytes::from_static(b"1")) }]
}

/// Three records; the middle one is the youngest.
fn fill(mut builder: BatchBuilder, headers: &[Header]) -> Bytes {
    builder.append(NOW, Some(b"a"), Some(b"first"), headers);
    builder.append(NOW + 20, Some(b"b"), None, headers);
    builder.append(NOW + 10, Some(b""), Some(b"third"), headers);
    builder.build()
}

fn v2(compression: Compression) -> Bytes {
    fill(BatchBuilder::v2(BatchSettings { compression, ..BatchSettings::default() }), &headers())
}

fn old(magic: i8, compression: Compression) -> Bytes {
    fill(BatchBuilder::new(magic, BatchSettings { compression, ..BatchSettings::default() }), &[])
}

/// Overwrites bytes of a V2 batch and makes the checksum right again.
fn patched(batch: &Bytes, position: usize, field: &[u8]) -> Bytes {
    let mut bytes = batch.to_vec();
    bytes[position..position + field.len()].copy_from_slice(field);
    if position != 17 {
        let crc = crc32c::crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    }
    bytes.into()
}

fn refused(bytes: Bytes, rules: &AppendRules) -> InvalidRecords {
    validate_for_append(bytes, rules).expect_err("it should have been refused")
}

fn written(valid: &[ValidBatch]) -> Bytes {
    valid.iter().flat_map(|batch| batch.to_bytes()).collect::<Vec<u8>>().into()
}

fn records_in(bytes: Bytes) -> Vec<Record> {
    let mut records = Vec::new();
    for batch in batches(bytes) {
        let batch = batch.unwrap();
        batch.check_crc().unwrap();
        records.extend(batch.records().unwrap());
    }
    records
}

/// Offset, timestamp, key and value: what every format keeps.
fn essence(records: &[Record]) -> Vec<(i64, i64, Option<Bytes>, Option<Bytes>)> {
    records.iter().map(|r| (r.offset, r.timestamp, r.key.clone(), r.value.clone())).collect()
}

#[test]
fn broken_batches_get_kafkas_codes() {
    use ErrorCode::{
        CorruptMessage, InvalidRecord, MessageTooLarge, UnknownServerError, UnsupportedCompressionType,
    };
    let good = v2(Compression::None);
    let len = good.len() as i32;
    let gzip = v2(Compression::Gzip);
    let control = BatchSettings { control: true, ..BatchSettings::default() };
    let idempotent = BatchSettings {
        producer_id: ProducerId(9),
        producer_epoch: ProducerEpoch(0),
        base_sequence: -1,
        ..BatchSettings::default()
    };
    let table: Vec<(&str, Bytes, ErrorCode)> = vec![
        ("no batch", Bytes::new(), InvalidRecord),
        ("a batch cut off in its head", good.slice(..40), InvalidRecord),
        ("a batch cut off by one byte", good.slice(..good.len() - 1), InvalidRecord),
        ("two batches", [&good[..], &good[..]].concat().into(), InvalidRecord),
        ("a message of V1", old(1, Compression::None), InvalidRecord),
        ("a wrong checksum", patched(&good, 17, &[1, 2, 3, 4]), CorruptMessage),
        ("an unknown format", patched(&good, 16, &[3]), CorruptMessage),
        ("a size below any head", patched(&good, 8, &10i32.to_be_bytes()), CorruptMessage),
        ("a size below a V2 head", patched(&good, 8, &48i32.to_be_bytes()), CorruptMessage),
        ("a size beyond the bytes", patched(&good, 8, &len.to_be_bytes()), InvalidRecord),
        ("a base offset", patched(&good, 0, &12345i64.to_be_bytes()), InvalidRecord),
        (
            "a count above the records",
            patched(&patched(&good, 57, &4i32.to_be_bytes()), 23, &3i32.to_be_bytes()),
            InvalidRecord,
        ),
        (
            "a count below the records",
            patched(&patched(&good, 57, &2i32.to_be_bytes()), 23, &1i32.to_be_bytes()),
            InvalidRecord,
        ),
        ("a count that is not the offsets'", patched(&good, 57, &2i32.to_be_bytes()), InvalidRecord),
        (
            "a count of 0",
            patched(&patched(&good, 57, &0i32.to_be_bytes()), 23, &(-1i32).to_be_bytes()),
            InvalidRecord,
        ),
        ("a last offset delta of 5", patched(&good, 23, &5i32.to_be_bytes()), InvalidRecord),
        (
            "a count that reaches the sky",
            patched(&patched(&good, 57, &i32::MAX.to_be_bytes()), 23, &(i32::MAX - 1).to_be_bytes()),
            InvalidRecord,
        ),
        ("codec 7", patched(&good, 21, &[0, 7]), UnknownServerError),
        ("gzip without gzip", patched(&good, 21, &[0, 1]), UnknownServerError),
        ("snappy without snappy", patched(&good, 21, &[0, 2]), UnknownServerError),
        ("lz4 without lz4", patched(&good, 21, &[0, 3]), UnknownServerError),
        ("zstd without zstd", patched(&good, 21, &[0, 4]), UnknownServerError),
        (
            "a compressed batch with a count above the records",
            patched(&patched(&gzip, 57, &4i32.to_be_bytes()), 23, &3i32.to_be_bytes()),
            InvalidRecord,
        ),
        (
            "a compressed batch with a count below the records",
            patched(&patched(&gzip, 57, &2i32.to_be_bytes()), 23, &1i32.to_be_bytes()),
            InvalidRecord,
        ),
        ("a control batch", fill(BatchBuilder::v2(control), &[]), InvalidRecord),
        ("a producer without a sequence", fill(BatchBuilder::v2(idempotent), &[]), InvalidRecord),
        ("a record whose length lies", patched(&good, HEAD_LEN, &[2]), InvalidRecord),
        ("a record of negative length", patched(&good, HEAD_LEN, &[1]), InvalidRecord),
    ];
    for (name, bytes, code) in table {
        let error = refused(bytes, &rules());
        assert_eq!(error.code, code, "{name}: {error}");
        assert!(
            !error.message.is_empty() && error.record_errors.is_empty(),
            "{name}: no single record is at fault"
        );
    }
    let zstd_too_early = AppendRules { produce_version: 6, ..rules() };
    assert_eq!(refused(v2(Compression::Zstd), &zstd_too_early).code, UnsupportedCompressionType);
    let small = AppendRules { max_batch_bytes: good.len() - 1, ..rules() };
    assert_eq!(refused(good, &small).code, MessageTooLarge);
}

#[test]
fn a_stray_tail_is_ignored() {
    let bytes: Bytes = [&v2(Compression::None)[..], &[0]].concat().into();
    assert_eq!(validate_for_append(bytes, &rules()).unwrap().len(), 1);
}

#[test]
fn an_old_produce_without_messages_appends_nothing() {
    assert!(validate_for_append(Bytes::new(), &old_produce(2)).unwrap().is_empty());
}

/// Compaction needs keys: each record without one is named, and the others are not blamed (KIP-467).
#[test]
fn records_without_keys_are_refused_by_compacted_topics() {
    for compression in CODECS {
        let mut builder = BatchBuilder::v2(BatchSettings { compression, ..BatchSettings::default() });
        builder.append(NOW, Some(b"k"), Some(b"v"), &[]);
        builder.append(NOW, None, Some(b"v"), &[]);
        builder.append(NOW, Some(b""), Some(b"v"), &[]);
        builder.append(NOW, None, None, &[]);
        let compacted = AppendRules { is_compacted: true, ..rules() };
        let error = refused(builder.build(), &compacted);
        assert_eq!(error.code, ErrorCode::InvalidRecord);
        let text = "Compacted topic cannot accept message without key in topic partition orders-3";
        assert_eq!(error.record_errors, [(1, Some(text.to_owned())), (3, Some(text.to_owned()))]);
        assert_eq!(
            error.message,
            format!(
                "One or more records have been rejected due to 2 record errors in total, and only showing the \
                 first three errors at most: [RecordError(batchIndex=1, message='{text}'), \
                 RecordError(batchIndex=3, message='{text}')]"
            )
        );
    }
}

#[test]
fn the_list_of_record_errors_is_bounded() {
    let settings = BatchSettings { compression: Compression::Zstd, ..BatchSettings::default() };
    let mut builder = BatchBuilder::v2(settings);
    for _ in 0..5000 {
        builder.append(NOW, None, None, &[]);
    }
    let error = refused(builder.build(), &AppendRules { is_compacted: true, ..rules() });
    assert_eq!(error.record_errors.len(), 1000);
    assert!(error.message.contains("due to 5000 record errors in total"), "{}", error.message);
}

#[test]
fn timestamps_out_of_range_are_refused() {
    let range = AppendRules { timestamp_before_max_ms: HOUR, ..rules() };
    for (timestamp, fits) in [
        (NOW, true),
        (NOW + HOUR, true),
        (NOW + HOUR + 1, false),
        (NOW - HOUR, true),
        (NOW - HOUR - 1, false),
        (-1, true),
        (-2, false),
    ] {
        for compression in CODECS {
            let mut builder = BatchBuilder::v2(BatchSettings { compression, ..BatchSettings::default() });
            builder.append(NOW, None, None, &[]).append(timestamp, None, None, &[]);
            let result = validate_for_append(builder.build(), &range);
            assert_eq!(result.is_ok(), fits, "{timestamp}");
            let Err(error) = result else { continue };
            assert_eq!(error.code, ErrorCode::InvalidTimestamp);
            let message = "One or more records have been rejected due to invalid timestamp";
            assert_eq!(error.message, message);
            let text = format!(
                "Timestamp {timestamp} of message with offset 1 is out of range. The timestamp should be within \
                 [{}, {}]",
                NOW - HOUR,
                NOW + HOUR
            );
            assert_eq!(error.record_errors, [(1, Some(text))]);
        }
    }
}

#[test]
fn a_client_must_not_claim_the_append_time() {
    let settings = BatchSettings {
        timestamp_type: TimestampType::LogAppendTime,
        log_append_time: NOW,
        ..BatchSettings::default()
    };
    let error = refused(
        fill(BatchBuilder::v2(settings), &[]),
        &AppendRules { timestamp_type: TimestampType::LogAppendTime, ..rules() },
    );
    assert_eq!(error.code, ErrorCode::InvalidTimestamp);
    assert_eq!(error.record_errors.len(), 3);
    let text = error.record_errors[0].1.as_deref().unwrap();
    assert_eq!(
        text,
        "Invalid timestamp type in message DefaultRecord(offset=0, timestamp=1700000000000, key=1 bytes, \
         value=5 bytes). Producer should not set timestamp type to LogAppendTime."
    );
}

/// The hot path: what a modern client sends is written as it came, but for base offset and leader epoch.
#[test]
fn a_modern_batch_is_not_copied() {
    for compression in CODECS {
        let sent = v2(compression);
        let valid = validate_for_append(sent.clone(), &rules()).unwrap();
        let [batch] = &valid[..] else { panic!("one batch") };
        assert_eq!(batch.head.len(), HEAD_LEN);
        assert_eq!(batch.rest.as_ptr(), sent[HEAD_LEN..].as_ptr(), "the records were copied");
        assert_eq!(batch.head[17..], sent[17..HEAD_LEN], "checksum and what it covers stay");
        assert_eq!((batch.first_offset, batch.record_count), (500, 3));
        assert_eq!(batch.offset_of_max_timestamp, 501);
        let parsed = Batch::parse(batch.to_bytes()).unwrap();
        assert_eq!(parsed.header, batch.header);
        assert_eq!((parsed.header.base_offset, parsed.header.last_offset()), (500, 502));
        assert_eq!(parsed.header.partition_leader_epoch, LeaderEpoch(7));
        parsed.check_crc().unwrap();
    }
}

#[test]
fn the_append_time_overrules_the_producers() {
    let append_time = AppendRules { timestamp_type: TimestampType::LogAppendTime, ..rules() };
    for compression in CODECS {
        let sent = v2(compression);
        let valid = validate_for_append(sent.clone(), &append_time).unwrap();
        assert_eq!(valid[0].rest.as_ptr(), sent[HEAD_LEN..].as_ptr(), "the records were copied");
        assert_eq!(valid[0].header.timestamp_type(), TimestampType::LogAppendTime);
        assert_eq!(valid[0].offset_of_max_timestamp, 502);
        let records = records_in(written(&valid));
        assert!(records.iter().all(|record| record.timestamp == NOW));
    }
}

/// Some producers leave the head's largest timestamp wrong; time indexes would be built on it.
#[test]
fn a_wrong_max_timestamp_is_made_right() {
    let sent = patched(&v2(Compression::None), 35, &5i64.to_be_bytes());
    let valid = validate_for_append(sent, &rules()).unwrap();
    assert_eq!(valid[0].header.max_timestamp, NOW + 20);
    Batch::parse(valid[0].to_bytes()).unwrap().check_crc().unwrap();
}

/// Early sarama numbered the records of a compressed batch wrongly. Written as it came, two records would
/// share an offset.
#[test]
fn wrong_offset_deltas_are_made_right() {
    for compression in [Compression::None, Compression::Gzip] {
        let mut builder = BatchBuilder::v2(BatchSettings { compression, ..BatchSettings::default() });
        for offset in [0, 7, 9] {
            builder.append_at(offset, NOW, Some(b"k"), Some(b"v"), &headers());
        }
        let sent = patched(&builder.build(), 23, &2i32.to_be_bytes());
        let records = records_in(written(&validate_for_append(sent, &rules()).unwrap()));
        let offsets: Vec<i64> = records.iter().map(|record| record.offset).collect();
        assert_eq!(offsets, [500, 501, 502]);
        assert!(records.iter().all(|record| record.headers == headers()));
    }
}

#[test]
fn the_topics_codec_is_applied() {
    for sent in CODECS {
        for wanted in CODECS {
            let settings = BatchSettings {
                compression: sent,
                producer_id: ProducerId(4),
                producer_epoch: ProducerEpoch(1),
                base_sequence: 10,
                transactional: true,
                ..BatchSettings::default()
            };
            let bytes = fill(BatchBuilder::v2(settings), &headers());
            let topic = AppendRules { compression_type: Some(wanted), ..rules() };
            let valid = validate_for_append(bytes, &topic).unwrap();
            assert_eq!(valid[0].header.compression().unwrap(), wanted);
            assert!(valid[0].header.is_transactional());
            assert_eq!((valid[0].header.producer_id, valid[0].header.base_sequence), (ProducerId(4), 10));
            assert_eq!((valid[0].first_offset, valid[0].offset_of_max_timestamp), (500, 501));
            let records = records_in(written(&valid));
            assert_eq!(records.iter().map(|r| r.sequence).collect::<Vec<_>>(), [10, 11, 12]);
            assert!(records.iter().all(|record| record.headers == headers()));
        }
    }
}

/// Whatever format a client sends and a topic keeps, the records are the same, at the offsets given out.
#[test]
fn every_format_is_converted_to_every_other() {
    let wanted = records_in(v2(Compression::None));
    for sent in CODECS {
        for from in [0, 1, 2] {
            for to in [0, 1, 2] {
                for timestamp_type in [TimestampType::CreateTime, TimestampType::LogAppendTime] {
                    if sent == Compression::Zstd && (from < 2 || to < 2) {
                        continue;
                    }
                    let bytes = fill(
                        BatchBuilder::new(
                            from,
                            BatchSettings { compression: sent, ..BatchSettings::default() },
                        ),
                        &[],
                    );
                    let valid =
                        validate_for_append(bytes, &AppendRules { timestamp_type, ..old_produce(to) })
                            .unwrap();
                    let context = format!("V{from} {} to V{to} {timestamp_type:?}", sent.name());
                    assert!(valid.iter().all(|batch| batch.header.magic == to), "{context}");
                    let count: i32 = valid.iter().map(|batch| batch.record_count).sum();
                    assert_eq!(count, 3, "{context}");
                    let mut next = 500;
                    for batch in &valid {
                        assert_eq!(batch.first_offset, next, "{context}");
                        next = batch.header.last_offset() + 1;
                        assert_eq!(Batch::parse(batch.to_bytes()).unwrap().header, batch.header, "{context}");
                    }
                    let mut wanted = essence(&wanted);
                    for (offset, record) in (500..).zip(&mut wanted) {
                        record.0 = offset;
                        record.1 = match (from, to, timestamp_type) {
                            (_, 0, _) => -1,
                            (_, _, TimestampType::LogAppendTime) => NOW,
                            (0, _, _) => -1,
                            _ => record.1,
                        };
                    }
                    assert_eq!(essence(&records_in(written(&valid))), wanted, "{context}");
                }
            }
        }
    }
}

#[test]
fn old_messages_are_checked_too() {
    let flipped = |bytes: Bytes, from_end: usize| -> Bytes {
        let mut bytes = bytes.to_vec();
        let at = bytes.len() - from_end;
        bytes[at] ^= 1;
        bytes.into()
    };
    let wrong_crc = flipped(old(1, Compression::None), 1);
    assert_eq!(refused(wrong_crc, &old_produce(2)).code, ErrorCode::CorruptMessage);
    let two_wrappers: Bytes = [old(1, Compression::Gzip), old(1, Compression::Gzip)].concat().into();
    assert_eq!(refused(two_wrappers, &old_produce(2)).code, ErrorCode::InvalidRecord);
    let mixed: Bytes = [old(0, Compression::None), old(1, Compression::None)].concat().into();
    assert_eq!(refused(mixed, &old_produce(2)).code, ErrorCode::InvalidRecord);
    let compacted = AppendRules { is_compacted: true, ..old_produce(2) };
    for compression in [Compression::None, Compression::Gzip] {
        let mut builder = BatchBuilder::new(1, BatchSettings { compression, ..BatchSettings::default() });
        builder.append(NOW, None, Some(b"v"), &[]);
        assert_eq!(refused(builder.build(), &compacted).record_errors.len(), 1);
    }
}

#[test]
fn headers_and_producers_need_the_format_that_has_them() {
    let to_v1 = AppendRules { target_magic: 1, ..rules() };
    let error = refused(v2(Compression::None), &to_v1);
    assert_eq!(
        (error.code, &error.message[..]),
        (ErrorCode::UnknownServerError, "Magic v1 does not support record headers")
    );
    let idempotent =
        BatchSettings { producer_id: ProducerId(1), base_sequence: 0, ..BatchSettings::default() };
    let error = refused(fill(BatchBuilder::v2(idempotent.clone()), &[]), &to_v1);
    assert_eq!(error.code, ErrorCode::UnsupportedForMessageFormat);
    let transactional = BatchSettings { transactional: true, ..idempotent };
    let error = refused(fill(BatchBuilder::v2(transactional), &[]), &to_v1);
    assert_eq!(error.code, ErrorCode::UnsupportedForMessageFormat);
}

/// Kilobytes that expand to a gigabyte must be refused while only a window of them is in memory.
#[test]
fn a_decompression_bomb_is_refused() {
    for compression in [Compression::Gzip, Compression::Lz4, Compression::Zstd, Compression::Snappy] {
        let mut builder = BatchBuilder::v2(BatchSettings { compression, ..BatchSettings::default() });
        builder.append(NOW, None, Some(&vec![0; 2_000_000]), &[]);
        let bomb = builder.build();
        let bounded = AppendRules { expanded_bytes_max: 1_000_000, ..rules() };
        assert_eq!(
            refused(bomb.clone(), &bounded).code,
            ErrorCode::MessageTooLarge,
            "{}",
            compression.name()
        );
        assert!(validate_for_append(bomb, &rules()).is_ok());
    }
}

/// The coordinators' own markers are control batches, which stay as they are whatever the topic's codec is.
#[test]
fn a_coordinator_may_write_markers() {
    let marker = EndTxnMarker { commit: true, coordinator_epoch: 12 };
    let bytes = marker.batch(0, NOW, (ProducerId(4), ProducerEpoch(2)), LeaderEpoch::NONE);
    assert_eq!(refused(bytes.clone(), &rules()).code, ErrorCode::InvalidRecord);
    let own =
        AppendRules { origin: Origin::Coordinator, compression_type: Some(Compression::Gzip), ..rules() };
    let valid = validate_for_append(bytes, &own).unwrap();
    let batch = Batch::parse(valid[0].to_bytes()).unwrap();
    assert!(batch.header.is_control() && batch.header.is_transactional());
    assert_eq!(batch.header.compression().unwrap(), Compression::None);
    assert_eq!(batch.control_record().unwrap(), klamm_records::control::ControlRecord::EndTxn(marker));
}

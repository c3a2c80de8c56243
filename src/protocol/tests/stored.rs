//! What would go wrong: group state that Kafka wrote reads as something else, or what we write is not what Kafka
//! reads. Input: the records of internal topics in data folders of Apache Kafka 0.10.2 to 4.4. Each must decode to
//! its last byte and encode back to the same bytes.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;

use bytes::Bytes;
use klamm_protocol::records::{
    cluster_metadata, consumer_offsets, control, share_group_state, transaction_state,
};
use klamm_protocol::{
    Message, Reader, Writer, decode_metadata_record, decode_versioned, encode_metadata_record,
    encode_versioned,
};

fn bytes(hex: &str) -> Bytes {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    hex.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// A value with its leading version, there and back.
fn value_again<M: Message>(value: &Bytes) -> Bytes {
    let (decoded, version) = decode_versioned::<M>(value.clone()).unwrap();
    encode_versioned(&decoded, version).unwrap()
}

/// A control record whose first field is its version.
fn body_again<M: Message>(value: &Bytes) -> Bytes {
    let version = i16::from_be_bytes([value[0], value[1]]);
    let mut reader = Reader::new(value.clone());
    let decoded = M::decode(&mut reader, version).unwrap();
    assert_eq!(reader.remaining(), 0);
    let mut writer = Writer::new();
    decoded.encode(&mut writer, version).unwrap();
    writer.finish().into_bytes()
}

macro_rules! by_kind {
    ($topic:ident, $key:expr, $value:expr; $($kind:ident = $record:ident)*) => {
        match &$key {
            $($topic::Key::$kind(_) => value_again::<$topic::$record>($value),)*
            $topic::Key::Unknown(kind, _) => panic!("unknown key {kind}"),
        }
    };
}

fn offsets_value(key: &consumer_offsets::Key, value: &Bytes) -> Bytes {
    by_kind! { consumer_offsets, *key, value;
        LegacyOffsetCommit = LegacyOffsetCommitValue
        OffsetCommit = OffsetCommitValue
        GroupMetadata = GroupMetadataValue
        ConsumerGroupMetadata = ConsumerGroupMetadataValue
        ConsumerGroupPartitionMetadata = ConsumerGroupPartitionMetadataValue
        ConsumerGroupMemberMetadata = ConsumerGroupMemberMetadataValue
        ConsumerGroupTargetAssignmentMetadata = ConsumerGroupTargetAssignmentMetadataValue
        ConsumerGroupTargetAssignmentMember = ConsumerGroupTargetAssignmentMemberValue
        ConsumerGroupCurrentMemberAssignment = ConsumerGroupCurrentMemberAssignmentValue
        ShareGroupMemberMetadata = ShareGroupMemberMetadataValue
        ShareGroupMetadata = ShareGroupMetadataValue
        ShareGroupTargetAssignmentMetadata = ShareGroupTargetAssignmentMetadataValue
        ShareGroupTargetAssignmentMember = ShareGroupTargetAssignmentMemberValue
        ShareGroupCurrentMemberAssignment = ShareGroupCurrentMemberAssignmentValue
        ShareGroupStatePartitionMetadata = ShareGroupStatePartitionMetadataValue
        ConsumerGroupRegularExpression = ConsumerGroupRegularExpressionValue
        StreamsGroupMetadata = StreamsGroupMetadataValue
        StreamsGroupMemberMetadata = StreamsGroupMemberMetadataValue
        StreamsGroupTargetAssignmentMetadata = StreamsGroupTargetAssignmentMetadataValue
        StreamsGroupTargetAssignmentMember = StreamsGroupTargetAssignmentMemberValue
        StreamsGroupCurrentMemberAssignment = StreamsGroupCurrentMemberAssignmentValue
        StreamsGroupTopology = StreamsGroupTopologyValue
    }
}

/// Key and value there and back; a tombstone has no value.
fn again(topic: &str, key: &Bytes, value: Option<&Bytes>) -> (Bytes, Option<Bytes>) {
    match topic {
        "__consumer_offsets" => {
            let key = consumer_offsets::Key::decode(key.clone()).unwrap();
            (key.encode().unwrap(), value.map(|v| offsets_value(&key, v)))
        }
        "__transaction_state" => {
            let key = transaction_state::Key::decode(key.clone()).unwrap();
            let value =
                value.map(|v| by_kind! { transaction_state, key, v; TransactionLog = TransactionLogValue });
            (key.encode().unwrap(), value)
        }
        "__share_group_state" => {
            let key = share_group_state::Key::decode(key.clone()).unwrap();
            let value = value.map(|v| {
                by_kind! { share_group_state, key, v;
                    ShareSnapshot = ShareSnapshotValue
                    ShareUpdate = ShareUpdateValue
                }
            });
            (key.encode().unwrap(), value)
        }
        "__cluster_metadata" => {
            let (record, version) = decode_metadata_record(value.unwrap().clone()).unwrap();
            (key.clone(), Some(encode_metadata_record(&record, version).unwrap()))
        }
        "control" => {
            let (kind, _) = decode_versioned::<control::ControlRecordTypeSchema>(key.clone()).unwrap();
            let value = value.unwrap();
            let value = match kind.r#type {
                0 | 1 => value_again::<control::EndTxnMarker>(value),
                2 => body_again::<control::LeaderChangeMessage>(value),
                3 => body_again::<control::SnapshotHeaderRecord>(value),
                4 => body_again::<control::SnapshotFooterRecord>(value),
                other => panic!("control record {other}"),
            };
            (encode_versioned(&kind, 0).unwrap(), Some(value))
        }
        other => panic!("topic {other}"),
    }
}

#[test]
fn every_record_that_kafka_stored_comes_back_to_the_byte() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stored/records.tsv")).unwrap();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for line in text.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        let [topic, key, value, place] = columns[..] else { panic!("a line of {} columns", columns.len()) };
        let part = |hex: &str| (hex != "-").then(|| bytes(hex));
        let (key, value) = (part(key).unwrap_or_default(), part(value));
        let found = again(topic, &key, value.as_ref());
        assert_eq!(found, (key, value), "{topic} in {place}: {line}");
        *counts.entry(topic).or_default() += 1;
    }
    assert_eq!(counts.len(), 5, "{counts:?}");
    assert!(counts.values().sum::<usize>() > 500, "{counts:?}");
}

/// A record of a later Kafka: its key is kept as it came, its place in the metadata log refuses it by name.
#[test]
fn records_of_a_later_kafka_are_told_apart() {
    let key = bytes("03e70001");
    assert_eq!(
        consumer_offsets::Key::decode(key.clone()).unwrap(),
        consumer_offsets::Key::Unknown(999, key.clone())
    );
    assert_eq!(consumer_offsets::Key::Unknown(999, key.clone()).encode().unwrap(), key);

    let told = |hex: &str| decode_metadata_record(bytes(hex)).unwrap_err().to_string();
    assert_eq!(told("016300"), "byte 3: metadata record 99 is not known");
    assert_eq!(told("020200"), "byte 1: frame version 2 is not known");
    assert_eq!(told("010209"), "TopicRecord v9, byte 3: version 9 is not known");

    let topic = cluster_metadata::TopicRecord { name: "t".to_owned(), ..Default::default() };
    let encoded = encode_metadata_record(&topic.clone().into(), 0).unwrap();
    assert_eq!(encoded[..5], [1, 2, 0, 2, b't']);
    assert_eq!(decode_metadata_record(encoded).unwrap(), (topic.into(), 0));
}

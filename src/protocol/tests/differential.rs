//! What would go wrong: our decoder and our encoder agree with each other and with nobody else. Input: arbitrary
//! messages of every version, read and written again by codecs of other people. Each must read our bytes to the
//! last one and write the same bytes back.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::{Bytes, BytesMut};
use klamm_protocol::arbitrary::{Arbitrary, message};
use klamm_protocol::{Message, Writer, messages, records};

#[macro_use]
#[path = "differential/names.rs"]
mod names;

const SEEDS: u64 = 12;

/// What another codec makes of a message's bytes: the same message in its own bytes.
type Recode = fn(Bytes, i16) -> Result<Bytes, String>;

/// What was found of one message in one version.
struct Difference {
    message: &'static str,
    version: i16,
    /// The first seed and what the other codec said.
    what: String,
}

fn compare<M: Message + Arbitrary>(
    low: i16,
    high: i16,
    recode: Recode,
    found: &mut Vec<Difference>,
) -> usize {
    let mut compared = 0;
    for version in M::VERSIONS.filter(|v| (low..=high).contains(v)) {
        for seed in 0..SEEDS {
            let ours: M = message(seed, version);
            let mut writer = Writer::new();
            ours.encode(&mut writer, version).unwrap();
            let bytes = writer.finish().into_bytes();
            let theirs = catch_unwind(AssertUnwindSafe(|| recode(bytes.clone(), version)));
            let what = match theirs {
                Ok(Ok(theirs)) if theirs == bytes => {
                    compared += 1;
                    continue;
                }
                Ok(Ok(theirs)) => format!("{} bytes became {}", bytes.len(), theirs.len()),
                Ok(Err(error)) => error,
                Err(_) => "a panic".to_owned(),
            };
            found.push(Difference { message: M::NAME, version, what: format!("seed {seed}: {what}") });
            break;
        }
    }
    compared
}

/// `kafka-protocol` reads these messages' own field `Version` into the variable that holds the schema's version,
/// and then reads their arrays in that version.
const SHADOWED_VERSION: [(&str, RangeInclusive<i16>); 2] =
    [("LeaderChangeMessage", 0..=1), ("VotersRecord", 0..=0)];

/// Panics unless the differences are exactly those that are explained.
fn all_explained(found: &[Difference], explained: &[(&str, RangeInclusive<i16>)]) {
    let is_known = |d: &&Difference| explained.iter().any(|(m, v)| *m == d.message && v.contains(&d.version));
    let unknown: Vec<&Difference> = found.iter().filter(|d| !is_known(d)).collect();
    let told: Vec<String> =
        unknown.iter().map(|d| format!("{} v{}, {}", d.message, d.version, d.what)).collect();
    assert!(told.is_empty(), "{} differences:\n{}", told.len(), told.join("\n"));
    for (message, versions) in explained {
        let still = found.iter().any(|d| d.message == *message && versions.contains(&d.version));
        assert!(still, "{message} agrees now: strike it from the list");
    }
}

macro_rules! kafka_protocol_recode {
    ($theirs:ident, $($message:tt)*) => {
        |bytes, version| {
            use $theirs::protocol::{Decodable, Encodable};
            let mut rest = bytes;
            let decoded = $theirs::messages::$($message)*::decode(&mut rest, version).map_err(|e| e.to_string())?;
            if !rest.is_empty() {
                return Err(format!("{} bytes are left", rest.len()));
            }
            let mut encoded = BytesMut::new();
            decoded.encode(&mut encoded, version).map_err(|e| e.to_string())?;
            Ok(encoded.freeze())
        }
    };
}

#[test]
fn kafka_protocol_reads_and_writes_the_same() {
    let (mut found, mut compared) = (Vec::new(), 0);
    macro_rules! check {
        ($(($($ours:ident)::+, $theirs:ident))*) => {$(
            let versions = <kafka_protocol::messages::$theirs as kafka_protocol::protocol::Message>::VERSIONS;
            let recode: Recode = kafka_protocol_recode!(kafka_protocol, $theirs);
            compared += compare::<$($ours)::+>(versions.min, versions.max, recode, &mut found);
        )*};
    }
    in_kafka_protocol!(check);
    all_explained(&found, &SHADOWED_VERSION);
    assert!(compared > 2_000, "{compared} messages were compared");
}

#[test]
fn the_last_kafka_protocol_with_all_old_versions_reads_and_writes_the_same() {
    let (mut found, mut compared) = (Vec::new(), 0);
    macro_rules! check {
        ($(($($ours:ident)::+, $theirs:ident))*) => {$(
            let versions = <kafka_protocol_old::messages::$theirs as kafka_protocol_old::protocol::Message>::VERSIONS;
            let recode: Recode = kafka_protocol_recode!(kafka_protocol_old, $theirs);
            compared += compare::<$($ours)::+>(versions.min, versions.max, recode, &mut found);
        )*};
    }
    in_kafka_protocol_old!(check);
    all_explained(&found, &SHADOWED_VERSION);
    assert!(compared > 2_000, "{compared} messages were compared");
}

#[test]
fn kafka_wire_reads_and_writes_the_same() {
    use kafka_wire::KafkaMessage;
    use kafka_wire_core::{ApiVersion, DecodeLimits, KafkaDecode, KafkaEncode};
    let (mut found, mut compared) = (Vec::new(), 0);
    macro_rules! check {
        ($(($($ours:ident)::+, $theirs:ident))*) => {$(
            let versions = <kafka_wire::$theirs as KafkaMessage>::SUPPORTED_VERSIONS;
            let recode: Recode = |bytes, version| {
                let version = ApiVersion::new(version);
                let decoded = kafka_wire::$theirs::decode_from_bytes(bytes, version, DecodeLimits::default())
                    .map_err(|e| e.to_string())?;
                decoded.encode_to_bytes(version).map_err(|e| e.to_string())
            };
            let (low, high) = (versions.min().value(), versions.max().value());
            compared += compare::<$($ours)::+>(low, high, recode, &mut found);
        )*};
    }
    in_kafka_wire!(check);
    // Its schema is of a commit before the field AssignorName came into v1, which the release 4.4.0 has.
    all_explained(&found, &[("StreamsGroupDescribeResponse", 1..=1)]);
    assert!(compared > 2_000, "{compared} messages were compared");
}

//! What would go wrong: a version whose decoder and encoder disagree, a frame cut short that passes for a whole
//! one, a least size that is too large and refuses good frames. Input: arbitrary messages of every version.

use klamm_protocol::arbitrary::{Arbitrary, message};
use klamm_protocol::{Message, Reader, Writer, for_each_api, for_each_record};

const SEEDS: u64 = 24;

fn goes_round<M: Message + Arbitrary>() {
    for version in M::VERSIONS {
        for seed in 0..SEEDS {
            let original: M = message(seed, version);
            let named = || format!("{} v{version}, seed {seed}: {original:?}", M::NAME);
            let mut writer = Writer::new();
            original.encode(&mut writer, version).unwrap_or_else(|e| panic!("{e}: {}", named()));
            let bytes = writer.finish().into_bytes();
            assert!(bytes.len() >= M::min_size(version), "the least size of {}", named());

            let mut reader = Reader::new(bytes.clone());
            let decoded = M::decode(&mut reader, version).unwrap_or_else(|e| panic!("{e}: {}", named()));
            assert_eq!(decoded, original, "{}", named());
            assert_eq!(reader.remaining(), 0, "{}", named());

            let json = original.to_json(version);
            assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), "{json}");

            for cut in cuts(bytes.len()) {
                let found = M::decode(&mut Reader::new(bytes.slice(..cut)), version);
                assert!(found.is_err(), "{cut} of {} bytes are no {}", bytes.len(), named());
            }
        }
    }
}

/// Lengths below this one: all of a short message, some of a long one.
fn cuts(length: usize) -> impl Iterator<Item = usize> {
    (0..length).step_by(1 + length / 40)
}

#[test]
fn requests_and_responses_come_back_equal() {
    macro_rules! all {
        ($(($name:ident, $request:path, $response:path))*) => {
            $(goes_round::<$request>(); goes_round::<$response>();)*
        };
    }
    for_each_api!(all);
}

#[test]
fn stored_records_come_back_equal() {
    macro_rules! all {
        ($($record:path)*) => { $(goes_round::<$record>();)* };
    }
    for_each_record!(all);
}

/// The messages of which this proves nothing unless their versions are there: a generator that lost a version
/// would pass the tests above.
#[test]
fn no_version_is_missing() {
    use klamm_protocol::messages::*;
    assert_eq!(ProduceRequest::VERSIONS, 0..=13);
    assert_eq!(FetchResponse::VERSIONS, 0..=18);
    assert_eq!(OffsetCommitRequest::VERSIONS, 0..=10);
    assert_eq!(ApiVersionsResponse::VERSIONS, 0..=5);
    let mut versions = 0;
    macro_rules! count {
        ($(($name:ident, $request:path, $response:path))*) => {
            $(
                assert_eq!(<$request>::VERSIONS, <$response>::VERSIONS);
                versions += <$request>::VERSIONS.count();
            )*
        };
    }
    for_each_api!(count);
    assert_eq!(versions, 368, "versions of all APIs together");
}

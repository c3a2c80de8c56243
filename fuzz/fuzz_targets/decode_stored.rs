//! Any bytes as a stored record, as a broker finds it on a damaged disk: a byte that says which, then a key or a
//! value. The rules are those of `decode_request`.
#![no_main]

use bytes::Bytes;
use klamm_protocol::{decode_metadata_record, decode_versioned, for_each_record};
use klamm_protocol::records::{consumer_offsets, share_group_state, transaction_state};
use libfuzzer_sys::fuzz_target;

mod memory;

macro_rules! by_number {
    ($($record:path)*) => {
        fn decode(number: usize, value: Bytes) {
            let length = value.len();
            let mut next = 0;
            $(
                if number == next {
                    let version = value.first_chunk().map_or(0, |v| i16::from_be_bytes(*v));
                    let decoded = memory::bounded(length, || decode_versioned::<$record>(value.clone()));
                    memory::comes_back(decoded.map(|(record, _)| record), version);
                }
                next += 1;
            )*
            match number - next.min(number) {
                0 => drop(memory::bounded(length, || decode_metadata_record(value))),
                1 => drop(memory::bounded(length, || consumer_offsets::Key::decode(value))),
                2 => drop(memory::bounded(length, || transaction_state::Key::decode(value))),
                3 => drop(memory::bounded(length, || share_group_state::Key::decode(value))),
                _ => {}
            }
        }
    };
}
for_each_record!(by_number);

fuzz_target!(|input: &[u8]| {
    let Some((number, value)) = input.split_first() else { return };
    decode(usize::from(*number), Bytes::copy_from_slice(value));
});

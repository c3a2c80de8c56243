//! Any bytes as a response, as a broker gets it from another node: two bytes of API key, two of version, then the
//! frame without its length. The rules are those of `decode_request`.
#![no_main]

use bytes::Bytes;
use klamm_protocol::{ApiKey, decode_response, for_each_api};
use libfuzzer_sys::fuzz_target;

mod memory;

macro_rules! by_key {
    ($(($name:ident, $request:path, $response:path))*) => {
        fn decode(key: ApiKey, version: i16, frame: Bytes) {
            let length = frame.len();
            match key {
                $(ApiKey::$name => {
                    let decoded = memory::bounded(length, || decode_response::<$request>(frame, version));
                    memory::comes_back::<$response>(decoded.map(|(_, response)| response), version);
                })*
            }
        }
    };
}
for_each_api!(by_key);

fuzz_target!(|input: &[u8]| {
    let Some(([k0, k1, v0, v1], frame)) = input.split_first_chunk::<4>() else { return };
    let Some(key) = ApiKey::from_i16(i16::from_be_bytes([*k0, *k1])) else { return };
    decode(key, i16::from_be_bytes([*v0, *v1]), Bytes::copy_from_slice(frame));
});

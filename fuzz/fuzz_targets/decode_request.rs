//! Any bytes as a request frame (without its length), as a broker gets it from a socket: decoding returns, takes
//! no more memory than the bytes justify, and what was decoded comes back from its own encoding.
#![no_main]

use bytes::Bytes;
use klamm_protocol::{ApiKey, Message, RequestHeader, for_each_api};
use libfuzzer_sys::fuzz_target;

mod memory;

macro_rules! by_key {
    ($(($name:ident, $request:path, $response:path))*) => {
        fn decode(frame: Bytes) {
            let length = frame.len();
            let Ok((header, mut reader)) = memory::bounded(length, || RequestHeader::split(frame)) else { return };
            let Some(key) = ApiKey::from_i16(header.api_key) else { return };
            let version = header.api_version;
            match key {
                $(ApiKey::$name => {
                    let decoded = memory::bounded(length, || <$request>::decode(&mut reader, version));
                    memory::comes_back(decoded, version);
                })*
            }
        }
    };
}
for_each_api!(by_key);

fuzz_target!(|input: &[u8]| {
    let _ = RequestHeader::peek(input);
    decode(Bytes::copy_from_slice(input));
});

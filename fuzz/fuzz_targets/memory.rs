//! The bound on memory that every target holds its decoder to, and the check on what it decoded.

use std::alloc::System;

use bytes::Bytes;
use cap::Cap;
use klamm_protocol::{DecodeError, Message, Reader, Writer};

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// All allocations for an input of this length together, freed ones included: 16 bytes of arrays a byte, three for
/// what was no UTF-8, and room for a small frame.
fn allowed(input: usize) -> usize {
    20 * input + 70_000
}

/// Runs a decoder on an input and panics when it took more memory than the input justifies.
pub fn bounded<T>(input: usize, decode: impl FnOnce() -> T) -> T {
    let before = MEMORY.total_allocated();
    let result = decode();
    let taken = MEMORY.total_allocated() - before;
    assert!(taken <= allowed(input), "{input} bytes took {taken}");
    result
}

/// What was decoded must come back from its own encoding. Bytes are compared, since a NaN equals nothing.
pub fn comes_back<M: Message>(decoded: Result<M, DecodeError>, version: i16) {
    let Ok(message) = decoded else { return };
    // Replacement characters may have made a string too long to be written.
    let Some(bytes) = encoded(&message, version) else { return };
    let again = M::decode(&mut Reader::new(bytes.clone()), version);
    // A message at the limit of its memory may be beyond that of its canonical, shorter form.
    let Ok(again) = again else { return };
    assert_eq!(encoded(&again, version).as_ref(), Some(&bytes));
    let _ = message.to_json(version);
}

fn encoded<M: Message>(message: &M, version: i16) -> Option<Bytes> {
    let mut writer = Writer::new();
    message.encode(&mut writer, version).ok()?;
    Some(writer.finish().into_bytes())
}

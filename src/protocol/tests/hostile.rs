//! What would go wrong: 14 bytes that claim two thousand million topics, and a process that allocates for them;
//! a length that runs over; a count that overflows. Input: every recorded frame, mutilated from a seed. Decoding
//! must return, with a message or an error, and must not have allocated out of proportion to the bytes.
#![allow(clippy::disallowed_methods)]

use std::alloc::System;

use bytes::{BufMut, Bytes, BytesMut};
use cap::Cap;
use klamm_protocol::arbitrary::Source;
use klamm_protocol::{ApiKey, Message, Reader, Request, RequestHeader, decode_response, for_each_api};

mod recorded;

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// All allocations of decoding a frame together, freed ones included: 16 bytes an array byte, three for what was
/// no UTF-8 and becomes replacement characters, and room for the error and a small frame.
fn allowed(frame: usize) -> usize {
    20 * frame + 70_000
}

macro_rules! by_key {
    ($(($name:ident, $request:path, $response:path))*) => {
        /// Decodes as the peer would; whether it was a message matters to the caller only.
        fn decode(key: ApiKey, version: i16, request: bool, frame: Bytes) -> bool {
            match key {
                $(ApiKey::$name if request => as_request::<$request>(frame),
                ApiKey::$name => decode_response::<$request>(frame, version).is_ok(),)*
            }
        }
    };
}
for_each_api!(by_key);

fn as_request<R: Request>(frame: Bytes) -> bool {
    let Ok((header, mut reader)) = RequestHeader::split(frame) else { return false };
    R::decode(&mut reader, header.api_version).is_ok()
}

fn within_bounds(key: ApiKey, version: i16, request: bool, frame: Bytes) -> bool {
    let length = frame.len();
    let before = MEMORY.total_allocated();
    let good = decode(key, version, request, frame.clone());
    let allocated = MEMORY.total_allocated() - before;
    assert!(allocated <= allowed(length), "{key} v{version}: {length} bytes took {allocated}: {frame:02x?}");
    good
}

/// Integers that lengths and counts are mistaken at.
const EDGES: [&[u8]; 10] = [
    &[0x7f, 0xff, 0xff, 0xff],
    &[0xff, 0xff, 0xff, 0xff],
    &[0xff, 0xff, 0xff, 0xfe],
    &[0x80, 0x00, 0x00, 0x00],
    &[0x7f, 0xff],
    &[0xff, 0xff],
    &[0xff, 0xff, 0xff, 0xff, 0x07],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[0x00],
];

fn mutilate(frame: &Bytes, source: &mut Source) -> Bytes {
    let mut bytes = BytesMut::from(&frame[..]);
    for _ in 0..=source.below(3) {
        // The key and the version stay: another one would only be another frame.
        let at = 4 + source.below((bytes.len().max(5) - 4) as u64) as usize;
        match source.below(5) {
            0 if at < bytes.len() => bytes[at] ^= 1 << source.below(8),
            1 => bytes.truncate(at),
            2 => {
                let edge = EDGES[source.below(EDGES.len() as u64) as usize];
                let end = bytes.len().min(at + edge.len());
                if at < end {
                    bytes[at..end].copy_from_slice(&edge[..end - at]);
                }
            }
            3 if at < bytes.len() => {
                // A part of the frame once more: counts and contents no longer agree.
                let again = bytes.split_off(at);
                bytes.put_slice(&again);
                bytes.put_slice(&again);
            }
            _ => bytes.put_bytes(source.bits() as u8, source.below(64) as usize),
        }
    }
    bytes.freeze()
}

fn mutilated_frames_stay_within_bounds() {
    let mut source = Source::new(20);
    let (mut good, mut bad) = (0, 0);
    for pair in recorded::pairs() {
        let Some(key) = pair.key else { continue };
        for (request, frame) in [(true, Some(pair.request)), (false, pair.response)] {
            for _ in 0..64 {
                let Some(frame) = &frame else { continue };
                let hostile = mutilate(frame, &mut source);
                match within_bounds(key, pair.version, request, hostile) {
                    true => good += 1,
                    false => bad += 1,
                }
            }
        }
    }
    // Both must happen, or the mutations test nothing.
    assert!(good > 1_000 && bad > 1_000, "{good} were messages, {bad} were not");
}

/// Frames whose least elements are much smaller on the wire than in memory.
fn crowded_frames_stay_within_bounds() {
    let crowd = |key: ApiKey, version: i16, beginning: &[u8], element: &[u8]| {
        let count = 200_000u32;
        let mut bytes = BytesMut::new();
        bytes.put_i16(key as i16);
        bytes.put_i16(version);
        bytes.put_slice(&[0, 0, 0, 7, 0xff, 0xff, 0]);
        bytes.put_slice(beginning);
        let mut length = count + 1;
        while length >= 0x80 {
            bytes.put_u8(length as u8 | 0x80);
            length >>= 7;
        }
        bytes.put_u8(length as u8);
        for _ in 0..count {
            bytes.put_slice(element);
        }
        bytes.put_slice(&[0; 8]);
        within_bounds(key, version, true, bytes.freeze())
    };
    assert!(!crowd(ApiKey::DescribeGroups, 5, &[], &[1]), "empty names of groups");
    assert!(crowd(ApiKey::DescribeGroups, 5, &[], &[4, b'a', b'b', b'c']), "short names of groups");
    assert!(!crowd(ApiKey::LeaveGroup, 4, &[2, b'g'], &[1, 0, 0]), "members without a name");
    assert!(crowd(ApiKey::Metadata, 9, &[], &[2, b't', 0]), "topics of one letter");
}

/// The frame on which other codecs abort the process, and its kin.
fn claims_of_a_short_frame_cost_nothing() {
    for claim in [[0x7f, 0xff, 0xff, 0xff], [0x00, 0xff, 0xff, 0xff], [0x40, 0, 0, 0]] {
        let mut frame = BytesMut::from(&[0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff][..]);
        frame.put_slice(&claim);
        let before = MEMORY.total_allocated();
        let (header, mut reader) = RequestHeader::split(frame.freeze()).unwrap();
        let error = klamm_protocol::messages::MetadataRequest::decode(&mut reader, header.api_version);
        let text = error.unwrap_err().to_string();
        assert!(MEMORY.total_allocated() - before < 1_000);
        assert!(text.starts_with("MetadataRequest v1, byte 14: an array of "), "{text}");
    }
    for length in 0..14 {
        let frame = Bytes::from_static(&[0, 3, 0, 9, 0, 0, 0, 1, 0, 1, b'a', 0, 0, 0]).slice(..length);
        assert_eq!(RequestHeader::peek(&frame).is_some(), length >= 8);
        assert_eq!(RequestHeader::decode(&mut Reader::new(frame)).is_ok(), length >= 12);
    }
}

/// One test, since what it measures is the whole process's.
#[test]
fn hostile_bytes_cost_no_more_than_they_are() {
    claims_of_a_short_frame_cost_nothing();
    crowded_frames_stay_within_bounds();
    mutilated_frames_stay_within_bounds();
}

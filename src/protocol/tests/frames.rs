//! What would go wrong: a field read in the wrong order, a version's width mistaken, a default-valued tagged
//! field written. Input: every frame that real clients and brokers exchanged. It must decode to its last byte
//! and encode back to the same bytes.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;

use bytes::Bytes;
use klamm_protocol::{
    ApiKey, Message, Reader, Request, RequestHeader, decode_response, encode_request, encode_response,
    for_each_api,
};

mod recorded;

use recorded::Pair;

/// What a frame became, or why it did not.
type Recoded = Result<Bytes, String>;

fn recode_request<R: Request>(frame: Bytes) -> Recoded {
    let (header, mut reader) = RequestHeader::split(frame).map_err(|e| e.to_string())?;
    let request = R::decode(&mut reader, header.api_version).map_err(|e| e.to_string())?;
    if reader.remaining() > 0 {
        return Err(format!("{} bytes are left", reader.remaining()));
    }
    let json = request.to_json(header.api_version);
    serde_json::from_str::<serde_json::Value>(&json).map_err(|e| format!("the view is no JSON: {e}"))?;
    encode_request(&header, &request).map_err(|e| e.to_string())
}

fn recode_response<R: Request>(version: i16, frame: Bytes) -> Recoded {
    let length = frame.len();
    let (correlation_id, response) = decode_response::<R>(frame, version).map_err(|e| e.to_string())?;
    let json = response.to_json(version);
    serde_json::from_str::<serde_json::Value>(&json).map_err(|e| format!("the view is no JSON: {e}"))?;
    let encoded = encode_response(R::KEY, version, correlation_id, &response).map_err(|e| e.to_string())?;
    if encoded.len() != length + 4 {
        return Err(format!("{} bytes became {}", length, encoded.len() - 4));
    }
    Ok(encoded.into_bytes())
}

macro_rules! by_key {
    ($(($name:ident, $request:path, $response:path))*) => {
        fn request_of(key: ApiKey, frame: Bytes) -> Recoded {
            match key { $(ApiKey::$name => recode_request::<$request>(frame),)* }
        }

        fn response_of(key: ApiKey, version: i16, frame: Bytes) -> Recoded {
            match key { $(ApiKey::$name => recode_response::<$request>(version, frame),)* }
        }
    };
}
for_each_api!(by_key);

fn same(frame: &Bytes, recoded: Recoded) -> Result<(), String> {
    let recoded = recoded?;
    let length = u32::from_be_bytes(recoded[..4].try_into().unwrap()) as usize;
    assert_eq!(length, recoded.len() - 4, "the frame's own length");
    if recoded[4..] == frame[..] { Ok(()) } else { Err("other bytes".to_owned()) }
}

/// The frames that are no messages of their version, with the reason.
fn known_exception(pair: &Pair, request: bool) -> Option<&'static str> {
    match (pair.key, pair.version) {
        (None, _) => Some("a bare SASL token has no header and no format"),
        (Some(ApiKey::AlterUserScramCredentials), 0) if request && pair.client == "librdkafka-2.16.0" => {
            Some("librdkafka appends one byte too many")
        }
        (Some(ApiKey::ApiVersions), 4 | 5) if !request && pair.broker == "2.8.2" => {
            Some("2.8.2 does not know the version and answers in the form of v0 (KIP-511)")
        }
        _ => None,
    }
}

#[test]
fn every_recorded_frame_comes_back_to_the_byte() {
    let mut good = 0;
    let mut exceptions: BTreeMap<String, &str> = BTreeMap::new();
    let mut bad = Vec::new();
    for pair in recorded::pairs() {
        let mut frames = vec![(true, pair.request.clone())];
        frames.extend(pair.response.clone().map(|frame| (false, frame)));
        for (request, frame) in frames {
            let side = if request { "request" } else { "response" };
            let recoded = match pair.key {
                None => Err("no message".to_owned()),
                Some(key) if request => request_of(key, frame.clone()),
                Some(key) => response_of(key, pair.version, frame.clone()),
            };
            match (same(&frame, recoded), known_exception(&pair, request)) {
                (Ok(()), None) => good += 1,
                (Ok(()), Some(reason)) => bad.push(format!("{} is no exception: {reason}", pair.name())),
                (Err(_), Some(reason)) => {
                    exceptions.insert(pair.name(), reason);
                }
                (Err(why), None) => bad.push(format!("{side} of {}: {why}", pair.name())),
            }
        }
    }
    assert!(bad.is_empty(), "{} frames are wrong:\n{}", bad.len(), bad.join("\n"));
    assert_eq!(good, 3754, "as many frames as were recorded");
    assert_eq!(exceptions.len(), 8, "{exceptions:#?}");
}

/// A broker of Kafka 2.8 answers ApiVersions v4 in the form of v0: a client must read it so.
#[test]
fn the_fallback_of_api_versions_reads_as_v0() {
    let fallback =
        |pair: &Pair| known_exception(pair, false).is_some() && pair.key == Some(ApiKey::ApiVersions);
    let pairs: Vec<Pair> = recorded::pairs().into_iter().filter(fallback).collect();
    assert!(!pairs.is_empty());
    for pair in pairs {
        let mut reader = Reader::new(pair.response.unwrap().slice(4..));
        let response = klamm_protocol::messages::ApiVersionsResponse::decode(&mut reader, 0).unwrap();
        assert_eq!(response.error_code, 35);
        assert_eq!(reader.remaining(), 0);
    }
}

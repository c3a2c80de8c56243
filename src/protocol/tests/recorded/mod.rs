//! The frames of `tests/wire`: what real clients and real Apache Kafka brokers said to each other.

// Each test binary uses a part of it.
#![allow(dead_code)]

use bytes::Bytes;
use klamm_protocol::ApiKey;

/// A request and its answer, both without their four bytes of length.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    /// `None` for the bare tokens after SaslHandshake v0, which are no messages.
    pub(crate) key: Option<ApiKey>,
    pub(crate) version: i16,
    pub(crate) broker: String,
    pub(crate) client: String,
    pub(crate) scenario: String,
    pub(crate) request: Bytes,
    pub(crate) response: Option<Bytes>,
}

impl Pair {
    pub(crate) fn name(&self) -> String {
        let api = self.key.map_or("SaslToken", ApiKey::name);
        format!("{api} v{} {} to {}: {}", self.version, self.client, self.broker, self.scenario)
    }
}

/// All recorded pairs in the order of their files.
pub(crate) fn pairs() -> Vec<Pair> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wire");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "tsv"));
    paths.sort();
    let mut pairs = Vec::new();
    for path in paths {
        let api = path.file_stem().unwrap().to_string_lossy().into_owned();
        let key = ApiKey::all().find(|key| key.name() == api);
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let columns: Vec<&str> = line.split('\t').collect();
            let [version, broker, client, scenario, request, response] = columns[..] else {
                panic!("{}: a line of {} columns", path.display(), columns.len());
            };
            pairs.push(Pair {
                key,
                version: version.parse().unwrap(),
                broker: broker.to_owned(),
                client: client.to_owned(),
                scenario: scenario.to_owned(),
                request: from_hex(request),
                response: (response != "-").then(|| from_hex(response)),
            });
        }
    }
    pairs
}

fn from_hex(text: &str) -> Bytes {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

//! The table of APIs.

use std::fmt;
use std::ops::RangeInclusive;

/// Which listeners of Kafka an API belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListenerKind {
    /// Those of a broker.
    Broker,
    /// Those of a controller.
    Controller,
    /// Those of a broker of the times of ZooKeeper.
    ZkBroker,
}

pub(crate) struct ApiFacts {
    key: ApiKey,
    name: &'static str,
    low: i16,
    high: i16,
    request_flexible_from: i16,
    response_flexible_from: i16,
    listeners: &'static [ListenerKind],
}

include!(concat!(env!("OUT_DIR"), "/api_table.rs"));

impl ApiKey {
    /// From the number in a request's header.
    pub fn from_i16(key: i16) -> Option<ApiKey> {
        let facts = API_TABLE.get(usize::try_from(key).ok()?)?;
        Some(facts.key)
    }

    /// All of them in order.
    pub fn all() -> impl Iterator<Item = ApiKey> {
        API_TABLE.iter().map(|facts| facts.key)
    }

    fn facts(self) -> &'static ApiFacts {
        &API_TABLE[self as usize]
    }

    /// The name in Kafka's protocol guide, such as `Fetch`.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// The versions that this crate can read and write, which is more than a broker needs to serve.
    pub fn versions(self) -> RangeInclusive<i16> {
        self.facts().low..=self.facts().high
    }

    /// The kinds of listeners on which Kafka serves it.
    pub fn listeners(self) -> &'static [ListenerKind] {
        self.facts().listeners
    }

    /// The version of the header before a request of this version, known or not.
    pub fn request_header_version(self, version: i16) -> i16 {
        match self {
            // The one request without a client id.
            ApiKey::ControlledShutdown if version == 0 => 0,
            _ if version >= self.facts().request_flexible_from => 2,
            _ => 1,
        }
    }

    /// The version of the header before a response of this version.
    pub fn response_header_version(self, version: i16) -> i16 {
        match self {
            // A client that does not know yet what the broker speaks must be able to read it (KIP-511).
            ApiKey::ApiVersions => 0,
            _ => i16::from(version >= self.facts().response_flexible_from),
        }
    }
}

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_indexed_by_the_key() {
        // A gap or a wrong order in the schema's keys would make `from_i16` name the wrong API.
        for (index, facts) in API_TABLE.iter().enumerate() {
            assert_eq!(facts.key as usize, index, "{}", facts.name);
        }
        assert_eq!(ApiKey::from_i16(1), Some(ApiKey::Fetch));
        assert_eq!(ApiKey::from_i16(-1), None);
        assert_eq!(ApiKey::from_i16(999), None);
        assert_eq!(ApiKey::Fetch.versions(), 0..=18);
        assert_eq!(ApiKey::Fetch.listeners(), [ListenerKind::Broker, ListenerKind::Controller]);
    }

    #[test]
    fn headers_have_their_exceptions() {
        assert_eq!(ApiKey::ControlledShutdown.request_header_version(0), 0);
        assert_eq!(ApiKey::ControlledShutdown.request_header_version(1), 1);
        assert_eq!(ApiKey::ApiVersions.request_header_version(99), 2);
        assert_eq!(ApiKey::ApiVersions.request_header_version(-1), 1);
        assert_eq!(ApiKey::ApiVersions.response_header_version(4), 0);
        assert_eq!(ApiKey::Fetch.response_header_version(11), 0);
        assert_eq!(ApiKey::Fetch.response_header_version(12), 1);
        assert_eq!(ApiKey::SaslHandshake.request_header_version(1), 1);
    }
}

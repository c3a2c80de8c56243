//! Subscriptions to the metrics of clients (KIP-714): resources with three settings. As on an Apache Kafka without a
//! plug-in that takes such metrics, they are kept and shown, and no client is asked for anything.

use std::collections::BTreeMap;

use crate::describe::{ConfigEntry, ConfigSource, ConfigSynonym};
use crate::key::Kind;
use crate::value::list_items;

const INTERVAL: &str = "interval.ms";
const MATCH: &str = "match";
const METRICS: &str = "metrics";

/// Name, type, default, and what it does.
const KEYS: [(&str, Kind, &str, &str); 3] = [
    (INTERVAL, Kind::Int, "300000", "How often clients send their metrics."),
    (MATCH, Kind::List, "", "Which clients: pairs of what is known of a client and a pattern for it."),
    (METRICS, Kind::List, "", "Which metrics: the beginnings of their names, or * for all."),
];

/// How often clients may be asked for metrics, in ms.
const INTERVAL_MS: std::ops::RangeInclusive<i32> = 100..=3_600_000;

/// What a pattern may match.
const MATCHED: [&str; 6] = [
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
];

/// Why settings of a subscription are refused.
#[derive(Debug, PartialEq, Eq)]
pub enum InvalidClientMetrics {
    /// To be answered with INVALID_REQUEST.
    Request(String),
    /// To be answered with INVALID_CONFIG.
    Config(String),
}

/// Checks the settings of a subscription as they would stand after a change, as Kafka 4.4.0 does and in its words.
pub fn validate_client_metrics(settings: &BTreeMap<String, String>) -> Result<(), InvalidClientMetrics> {
    use InvalidClientMetrics::{Config, Request};
    if let Some(unknown) = settings.keys().find(|name| !KEYS.iter().any(|key| key.0 == name.as_str())) {
        return Err(Request(format!("Unknown client metrics configuration: {unknown}")));
    }
    for name in [MATCH, METRICS] {
        let items = settings.get(name).map(|value| list_items(value)).unwrap_or_default();
        if items.iter().any(|item| item.is_empty()) {
            return Err(Config(format!("Configuration '{name}' values must not be empty.")));
        }
    }
    if let Some(text) = settings.get(INTERVAL) {
        let interval: i32 = text.trim().parse().map_err(|_| {
            Config(format!("Invalid value {text} for configuration {INTERVAL}: Not a number of type INT"))
        })?;
        if !INTERVAL_MS.contains(&interval) {
            return Err(Request(format!(
                "Invalid value {interval} for {INTERVAL}, interval must be between 100 and 3600000 (1 hour)"
            )));
        }
    }
    let patterns = settings.get(MATCH).map(|value| list_items(value)).unwrap_or_default();
    match patterns.into_iter().find(|pattern| !is_pattern(pattern)) {
        Some(wrong) => Err(Config(format!("Illegal client matching pattern: {wrong}"))),
        None => Ok(()),
    }
}

fn is_pattern(pair: &str) -> bool {
    let Some((matched, pattern)) = pair.split_once('=') else { return false };
    MATCHED.contains(&matched.trim()) && !pattern.contains('=') && !is_broken(pattern.trim())
}

/// Whether a pattern is wrong in Java's language too, which knows more than this crate's.
fn is_broken(pattern: &str) -> bool {
    use regex_syntax::ast::ErrorKind;
    match regex_syntax::ast::parse::Parser::new().parse(pattern) {
        Ok(_) => false,
        Err(error) => matches!(
            error.kind(),
            ErrorKind::ClassUnclosed
                | ErrorKind::EscapeUnexpectedEof
                | ErrorKind::GroupUnclosed
                | ErrorKind::GroupUnopened
                | ErrorKind::RepetitionMissing
        ),
    }
}

/// The three keys of a subscription, sorted by name.
pub fn describe_client_metrics(settings: &BTreeMap<String, String>) -> Vec<ConfigEntry> {
    KEYS.iter()
        .map(|(name, kind, default, documentation)| {
            let synonym = settings.get(*name).map(|value| ConfigSynonym {
                name: (*name).to_owned(),
                value: Some(value.clone()),
                source: ConfigSource::ClientMetrics,
            });
            ConfigEntry {
                name: (*name).to_owned(),
                value: Some(settings.get(*name).cloned().unwrap_or_else(|| (*default).to_owned())),
                source: synonym.as_ref().map_or(ConfigSource::Default, |synonym| synonym.source),
                read_only: false,
                sensitive: false,
                synonyms: synonym.into_iter().collect(),
                kind: Some(*kind),
                documentation: (*documentation).to_owned(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str, value: &str) -> Option<InvalidClientMetrics> {
        validate_client_metrics(&BTreeMap::from([(name.to_owned(), value.to_owned())])).err()
    }

    /// As observed on Kafka 4.4.0.
    #[test]
    fn subscriptions_are_judged_as_kafka_judges_them() {
        for (name, value) in [
            (INTERVAL, "100"),
            (MATCH, ""),
            (MATCH, "client_id=a,client_software_name=b.*"),
            (MATCH, r"client_id=\w+\d"),
            (MATCH, r"client_id=(?!x).*(a)\1\p{L}"),
            (METRICS, ""),
            (METRICS, "a.,b."),
        ] {
            assert_eq!(refusal(name, value), None, "{name}={value}");
        }
        let request = |message: &str| Some(InvalidClientMetrics::Request(message.to_owned()));
        let config = |message: &str| Some(InvalidClientMetrics::Config(message.to_owned()));
        assert_eq!(refusal("no.such", "1"), request("Unknown client metrics configuration: no.such"));
        let range = "Invalid value 99 for interval.ms, interval must be between 100 and 3600000 (1 hour)";
        assert_eq!(refusal(INTERVAL, "99"), request(range));
        let number = "Invalid value x for configuration interval.ms: Not a number of type INT";
        assert_eq!(refusal(INTERVAL, "x"), config(number));
        assert_eq!(refusal(MATCH, "a,"), config("Configuration 'match' values must not be empty."));
        for wrong in ["nope=a", "client_id=(", "client_id", "client_id=a=b"] {
            let message = format!("Illegal client matching pattern: {wrong}");
            assert_eq!(refusal(MATCH, wrong), config(&message));
        }
    }
}

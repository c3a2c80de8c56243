//! The settings of a group (`kafka-configs --entity-type groups`): those of the newer group protocols, kept, checked and
//! shown as Kafka 4.4.0 does.

use std::collections::{BTreeMap, BTreeSet};

use crate::broker::BrokerConfig;
use crate::key::Kind;
use crate::table;
use crate::topic::{DynamicConfigs, default_value};
use crate::validate::{InvalidConfig, check_value};
use crate::value::{list_items, validate};

const ASSIGNOR: &str = "streams.assignor.name";
const ASSIGNORS: &str = "group.streams.assignors";

/// Checks all settings of a group as they would stand after a change, in Kafka's words. A failure is answered with
/// INVALID_CONFIG (40).
pub fn validate_group_configs(
    settings: &BTreeMap<String, String>,
    broker: &BrokerConfig,
) -> Result<(), InvalidConfig> {
    if let Some(unknown) = settings.keys().find(|name| table::group_key(name).is_none()) {
        return Err(InvalidConfig::new(unknown, format!("Unknown group config name: {unknown}")));
    }
    let set = || table::group_keys().iter().filter_map(|key| Some((key, settings.get(key.name)?.trim())));
    for (key, value) in set() {
        check_value(key, value).map_err(|message| InvalidConfig::new(key.name, message))?;
    }
    for (key, value) in set() {
        let checked =
            check_bounds(key.name, value, broker).and_then(|()| check_text(key.name, value, broker));
        checked.map_err(|message| InvalidConfig::new(key.name, message))?;
    }
    check_sessions(settings, broker)
}

/// The broker's keys bound those of groups: `group.consumer.min.session.timeout.ms` and
/// `group.consumer.max.session.timeout.ms` those for `consumer.session.timeout.ms`.
fn check_bounds(name: &str, value: &str, broker: &BrokerConfig) -> Result<(), String> {
    let (Some((protocol, rest)), Ok(number)) = (name.split_once('.'), value.parse::<i64>()) else {
        return Ok(());
    };
    let rest = rest.strip_prefix("num.").unwrap_or(rest);
    let bound = |which| broker.value(&format!("group.{protocol}.{which}.{rest}"))?.parse::<i64>().ok();
    match (bound("min"), bound("max")) {
        (Some(least), Some(greatest)) if !(least..=greatest).contains(&number) => {
            Err(format!("{name} must be in the range {least} to {greatest} inclusive."))
        }
        (Some(least), None) if number < least => {
            Err(format!("{name} must be greater than or equal to {least}"))
        }
        (None, Some(greatest)) if number > greatest => {
            Err(format!("{name} must be less than or equal to {greatest}"))
        }
        _ => Ok(()),
    }
}

fn check_text(name: &str, value: &str, broker: &BrokerConfig) -> Result<(), String> {
    match name {
        ASSIGNOR => {
            let known = broker.value(ASSIGNORS).unwrap_or_default();
            let known = list_items(&known);
            if known.contains(&value) {
                return Ok(());
            }
            let known = known.join(", ");
            Err(format!(
                "{name} '{value}' is not a registered task assignor. Registered assignors are: [{known}]."
            ))
        }
        "streams.rack.aware.assignment.tags" => {
            let mut seen = BTreeSet::new();
            match list_items(value) {
                tags if tags.contains(&"") => {
                    Err(format!("Configuration '{name}' values must not be empty."))
                }
                tags if !tags.iter().all(|tag| seen.insert(*tag)) => {
                    Err(format!("{name} must not contain duplicate tag keys."))
                }
                _ => Ok(()),
            }
        }
        "errors.deadletterqueue.topic.name" if value.starts_with("__") => {
            Err(format!("{name}: DLQ topic name must not start with '__'"))
        }
        _ => Ok(()),
    }
}

/// A member must be able to send more than one heartbeat before it is given up.
fn check_sessions(settings: &BTreeMap<String, String>, broker: &BrokerConfig) -> Result<(), InvalidConfig> {
    for protocol in ["consumer", "share", "streams"] {
        let (session, heartbeat) =
            (format!("{protocol}.session.timeout.ms"), format!("{protocol}.heartbeat.interval.ms"));
        let number = |name: &str| -> Option<i64> {
            group_value(name, settings, &DynamicConfigs::default(), broker)?.parse().ok()
        };
        let is_set = settings.contains_key(&session) || settings.contains_key(&heartbeat);
        if is_set && number(&session) <= number(&heartbeat) {
            let message = format!("{session} must be greater than {heartbeat}");
            return Err(InvalidConfig::new(&session, message));
        }
    }
    Ok(())
}

/// The value of a group's key that is in force, as text; `None` for null and for keys that nobody knows.
pub(crate) fn group_value(
    name: &str,
    settings: &BTreeMap<String, String>,
    dynamic: &DynamicConfigs<'_>,
    broker: &BrokerConfig,
) -> Option<String> {
    let key = table::group_key(name)?;
    match settings.get(name) {
        Some(value) if validate(key, value).is_ok() && key.kind == Kind::List => {
            Some(list_items(value).join(","))
        }
        Some(value) if validate(key, value).is_ok() => Some(value.trim().to_owned()),
        _ => {
            let default = default_value(key, dynamic, broker)?;
            // The first of the assignors is the one for groups that do not say.
            let first = || list_items(&default).first().copied().unwrap_or_default().to_owned();
            Some(if name == ASSIGNOR { first() } else { default })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConfigEntry, ConfigSource, Sources, describe_group, load};

    fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    fn broker(overrides: &[(&str, &str)]) -> BrokerConfig {
        let overrides = overrides.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        load(&Sources { overrides, ..Sources::default() }).unwrap().0
    }

    fn refusal(pairs: &[(&str, &str)], overrides: &[(&str, &str)]) -> Option<String> {
        validate_group_configs(&settings(pairs), &broker(overrides)).err().map(|error| error.message)
    }

    /// As observed on Kafka 4.4.0.
    #[test]
    fn settings_of_groups_are_judged_as_kafka_judges_them() {
        for (name, value) in [
            ("consumer.session.timeout.ms", " 46000 "),
            ("consumer.assignment.interval.ms", "0"),
            ("errors.deadletterqueue.topic.name", "a b"),
            ("share.auto.offset.reset", "by_duration:PT0S"),
            ("streams.acceptable.recovery.lag", "999999999"),
            ("streams.initial.rebalance.delay.ms", "999999999"),
            ("streams.rack.aware.assignment.tags", ""),
            ("streams.rack.aware.assignment.tags", "a,b"),
            ("streams.assignor.name", "sticky"),
            ("streams.num.standby.replicas", "2"),
            ("streams.task.offset.interval.ms", "999999999"),
        ] {
            assert_eq!(refusal(&[(name, value)], &[]), None, "{name}={value}");
        }
        for (name, value, message) in [
            ("no.such.key", "1", "Unknown group config name: no.such.key"),
            (
                "consumer.session.timeout.ms",
                "1",
                "consumer.session.timeout.ms must be in the range 45000 to 60000 inclusive.",
            ),
            (
                "consumer.session.timeout.ms",
                "0",
                "Invalid value 0 for configuration consumer.session.timeout.ms: Value must be at least 1",
            ),
            (
                "share.delivery.count.limit",
                "100",
                "share.delivery.count.limit must be in the range 2 to 10 inclusive.",
            ),
            (
                "share.isolation.level",
                "x",
                "Invalid value x for configuration share.isolation.level: String must be one of: read_committed, \
                 read_uncommitted",
            ),
            (
                "share.auto.offset.reset",
                "x",
                "Invalid value x for configuration share.auto.offset.reset: Invalid value `x` for configuration \
                 share.auto.offset.reset. The value must be either 'earliest', 'latest' or of the format \
                 'by_duration:<PnDTnHnMn.nS>'.",
            ),
            (
                "streams.assignor.name",
                "a,b",
                "streams.assignor.name 'a,b' is not a registered task assignor. Registered assignors are: [sticky].",
            ),
            (
                "streams.num.standby.replicas",
                "3",
                "streams.num.standby.replicas must be less than or equal to 2",
            ),
            (
                "streams.num.warmup.replicas",
                "100",
                "streams.num.warmup.replicas must be less than or equal to 20",
            ),
            (
                "streams.task.offset.interval.ms",
                "14999",
                "streams.task.offset.interval.ms must be greater than or equal to 15000",
            ),
            (
                "streams.rack.aware.assignment.tags",
                "a,,b",
                "Configuration 'streams.rack.aware.assignment.tags' values must not be empty.",
            ),
            (
                "streams.rack.aware.assignment.tags",
                "a,a",
                "streams.rack.aware.assignment.tags must not contain duplicate tag keys.",
            ),
            (
                "errors.deadletterqueue.topic.name",
                "__x",
                "errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'",
            ),
        ] {
            assert_eq!(refusal(&[(name, value)], &[]).as_deref(), Some(message), "{name}={value}");
        }
    }

    #[test]
    fn the_brokers_keys_bound_those_of_groups() {
        let wide =
            [("group.share.min.session.timeout.ms", "10"), ("group.streams.max.standby.replicas", "5")];
        let session = |value| refusal(&[("share.session.timeout.ms", value)], &wide);
        let message = "share.session.timeout.ms must be greater than share.heartbeat.interval.ms";
        assert_eq!(session("5000").as_deref(), Some(message));
        assert_eq!(session("5001"), None);
        let both = [("share.session.timeout.ms", "5001"), ("share.heartbeat.interval.ms", "5001")];
        assert_eq!(refusal(&both, &wide).as_deref(), Some(message));
        assert_eq!(refusal(&[("streams.num.standby.replicas", "5")], &wide), None);
    }

    #[test]
    fn a_group_is_described_with_what_its_broker_says() {
        let described = |pairs: &[(&str, &str)],
                         overrides: &[(&str, &str)]|
         -> BTreeMap<String, ConfigEntry> {
            let entries = describe_group(&settings(pairs), &DynamicConfigs::default(), &broker(overrides));
            entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect()
        };
        let shown = |entry: &ConfigEntry| {
            let synonyms = entry.synonyms.iter();
            let synonyms =
                synonyms.map(|it| (it.name.clone(), it.value.clone().unwrap_or_default(), it.source));
            (entry.value.clone().unwrap_or_default(), entry.source, Vec::from_iter(synonyms))
        };
        let untouched = described(&[], &[]);
        assert_eq!(untouched.len(), 21, "what Kafka 4.4.0 shows; internal keys are not among it");
        assert!(untouched.values().all(|entry| entry.documentation.ends_with("does not act on it.")));
        assert_eq!(untouched["streams.assignor.name"].value.as_deref(), Some("sticky"));
        let (session, level) = ("group.consumer.session.timeout.ms", "share.isolation.level");
        let named = |name: &str, value: &str, source| (name.to_owned(), value.to_owned(), source);
        let default = named(level, "read_uncommitted", ConfigSource::Default);
        assert_eq!(
            shown(&untouched[level]),
            ("read_uncommitted".to_owned(), ConfigSource::Default, vec![default])
        );
        let pairs = [("consumer.session.timeout.ms", " 46000 "), ("streams.acceptable.recovery.lag", "7")];
        let set = described(&pairs, &[(session, "50000")]);
        let synonyms = vec![
            named("consumer.session.timeout.ms", "46000", ConfigSource::Group),
            named(session, "50000", ConfigSource::StaticBroker),
            named(session, "45000", ConfigSource::Default),
        ];
        let expected = ("46000".to_owned(), ConfigSource::Group, synonyms);
        assert_eq!(shown(&set["consumer.session.timeout.ms"]), expected);
        assert_eq!(set.len(), 22, "an internal key that was set is shown");
    }
}

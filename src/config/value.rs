//! Checks of single values, and how values are read.

use std::collections::BTreeMap;

use crate::kafka_version::magic_of;
use crate::key::{Allowed, Key, Kind};

/// Checks a text against the type and the range of a key. The error says what is allowed, as in
/// "expected a whole number from 1 to 2147483647".
pub fn validate(key: &Key, value: &str) -> Result<(), String> {
    let value = value.trim();
    let fits = match key.kind {
        Kind::Boolean => parse_boolean(value).is_some(),
        Kind::Int => value.parse::<i32>().is_ok_and(|number| number_fits(&key.allowed, number.into())),
        Kind::Short => value.parse::<i16>().is_ok_and(|number| number_fits(&key.allowed, number.into())),
        // An i64 near its limits is rounded here; no range of the table ends where that would matter.
        Kind::Long => value.parse::<i64>().is_ok_and(|number| number_fits(&key.allowed, number as f64)),
        Kind::Double => parse_double(value).is_some_and(|number| number_fits(&key.allowed, number)),
        Kind::String | Kind::Class | Kind::Password => text_fits(&key.allowed, value),
        Kind::List => list_fits(&key.allowed, value),
    };
    if fits { Ok(()) } else { Err(format!("expected {}", expectation(key))) }
}

/// What is wrong with a value that [`validate`] refuses, in the words of Kafka's own checks.
pub(crate) fn fault(key: &Key, value: &str) -> String {
    let value = value.trim();
    let (number, type_name) = match key.kind {
        Kind::Boolean => return "Expected value to be either true or false".to_owned(),
        Kind::Int => (value.parse::<i32>().ok().map(f64::from), "INT"),
        Kind::Short => (value.parse::<i16>().ok().map(f64::from), "SHORT"),
        Kind::Long => (value.parse::<i64>().ok().map(|number| number as f64), "LONG"),
        Kind::Double => (parse_double(value), "DOUBLE"),
        Kind::String | Kind::Class | Kind::Password | Kind::List => return text_fault(key, value),
    };
    match (number, &key.allowed) {
        (None, _) => format!("Not a number of type {type_name}"),
        (_, Allowed::Range { from, to, or: Some(or) }) => {
            format!("Value must be between {from} and {to} or equal to {or}")
        }
        (Some(number), Allowed::Range { from, .. }) if number < *from => {
            format!("Value must be at least {from}")
        }
        (_, Allowed::Range { to, .. }) => format!("Value must be no more than {to}"),
        _ => format!("expected {}", expectation(key)),
    }
}

fn text_fault(key: &Key, value: &str) -> String {
    match &key.allowed {
        Allowed::OneOf { words, .. } => format!("String must be one of: {}", words.join(", ")),
        Allowed::NonEmpty => "String must be non-empty".to_owned(),
        Allowed::OffsetReset => format!(
            "Invalid value `{value}` for configuration {}. The value must be either 'earliest', 'latest' or of the \
             format 'by_duration:<PnDTnHnMn.nS>'.",
            key.name
        ),
        _ => format!("expected {}", expectation(key)),
    }
}

/// `host:number` pairs with commas between them, as `max.connections.per.ip.overrides` holds them. An address of
/// IPv6 may stand in brackets.
pub(crate) fn parse_connections_per_host(text: &str) -> Option<BTreeMap<String, i32>> {
    let pair = |item: &str| {
        let (host, count) = item.rsplit_once(':')?;
        let (host, count) = (host.trim(), count.trim().parse::<i32>().ok()?);
        let host_name = host.trim_start_matches('[').trim_end_matches(']');
        (!host.is_empty() && count >= 0).then(|| (host_name.to_owned(), count))
    };
    list_items(text).into_iter().map(pair).collect()
}

/// The items of a list: split at commas, blanks around them removed, nothing for an empty text.
pub fn list_items(value: &str) -> Vec<&str> {
    let value = value.trim();
    if value.is_empty() { Vec::new() } else { value.split(',').map(str::trim).collect() }
}

pub(crate) fn parse_boolean(value: &str) -> Option<bool> {
    if value.eq_ignore_ascii_case("true") {
        Some(true)
    } else if value.eq_ignore_ascii_case("false") {
        Some(false)
    } else {
        None
    }
}

/// A number as Java reads it: a letter at its end may say that it is a float or a double.
pub(crate) fn parse_double(value: &str) -> Option<f64> {
    let digits = value
        .strip_suffix(['f', 'F', 'd', 'D'])
        .filter(|digits| digits.ends_with(|last: char| last.is_ascii_digit() || last == '.'));
    digits.unwrap_or(value).parse().ok()
}

/// A number as Java writes it, which is what clients are shown.
pub(crate) fn java_double(number: f64) -> String {
    if number == 0.0 || (1e-3..1e7).contains(&number.abs()) {
        return format!("{number:?}");
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let point = if digits.contains('.') { "" } else { ".0" };
    format!("{digits}{point}E{exponent}")
}

fn number_fits(allowed: &Allowed, number: f64) -> bool {
    match allowed {
        Allowed::Range { from, to, or } => (*from <= number && number <= *to) || *or == Some(number),
        Allowed::NotZero => number != 0.0,
        _ => !number.is_nan(),
    }
}

fn text_fits(allowed: &Allowed, value: &str) -> bool {
    match allowed {
        Allowed::OneOf { words, any_case } => {
            words.iter().any(|word| *word == value || (*any_case && word.eq_ignore_ascii_case(value)))
        }
        Allowed::NonEmpty => !value.is_empty(),
        Allowed::KafkaVersion => magic_of(value).is_some(),
        Allowed::OffsetReset => {
            matches!(value, "latest" | "earliest")
                || value.strip_prefix("by_duration:").is_some_and(is_duration)
        }
        Allowed::ConnectionsPerHost => parse_connections_per_host(value).is_some(),
        Allowed::Any | Allowed::Range { .. } | Allowed::NotZero | Allowed::ThrottledReplicas => true,
    }
}

fn list_fits(allowed: &Allowed, value: &str) -> bool {
    let items = list_items(value);
    match allowed {
        Allowed::ThrottledReplicas => {
            value == "*"
                || items.iter().all(|item| {
                    item.split_once(':')
                        .is_some_and(|(partition, broker)| is_digits(partition) && is_digits(broker))
                })
        }
        Allowed::OneOf { .. } => items.iter().all(|item| text_fits(allowed, item)),
        _ => true,
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// An ISO 8601 duration of days, hours, minutes and seconds, not negative: `P1DT2H`, `PT0.5S`.
fn is_duration(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('P') else { return false };
    let (days, time) = rest.split_once('T').map_or((rest, None), |(days, time)| (days, Some(time)));
    let days_fit = days.is_empty() || days.strip_suffix('D').is_some_and(is_digits);
    let time_fits = time.is_none_or(|time| {
        let mut rest = time;
        for unit in ['H', 'M', 'S'] {
            if let Some((number, after)) = rest.split_once(unit) {
                let number_fits = if unit == 'S' { number.parse::<f64>().is_ok() } else { is_digits(number) };
                if !number_fits {
                    return false;
                }
                rest = after;
            }
        }
        rest.is_empty() && !time.is_empty()
    });
    days_fit && time_fits && !(days.is_empty() && time.is_none())
}

/// What a key takes, in words.
pub(crate) fn expectation(key: &Key) -> String {
    let (noun, least, greatest) = match key.kind {
        Kind::Boolean => return "true or false".to_owned(),
        Kind::Int => ("a whole number", i32::MIN.to_string(), i32::MAX.to_string()),
        Kind::Short => ("a whole number", i16::MIN.to_string(), i16::MAX.to_string()),
        Kind::Long => ("a whole number", i64::MIN.to_string(), i64::MAX.to_string()),
        Kind::Double => ("a number", String::new(), String::new()),
        Kind::List => return list_expectation(&key.allowed),
        Kind::String | Kind::Class | Kind::Password => return text_expectation(&key.allowed),
    };
    match &key.allowed {
        Allowed::Range { from, to, or } => {
            let or = or.map(|or| format!(", or {or}")).unwrap_or_default();
            match (to.is_finite(), greatest.as_str()) {
                (true, _) => format!("{noun} from {from} to {to}{or}"),
                (false, "") => format!("{noun} from {from} on{or}"),
                (false, greatest) => format!("{noun} from {from} to {greatest}{or}"),
            }
        }
        Allowed::NotZero => format!("{noun} that is not 0, as -1 for no limit"),
        _ if greatest.is_empty() => noun.to_owned(),
        _ => format!("{noun} from {least} to {greatest}"),
    }
}

fn text_expectation(allowed: &Allowed) -> String {
    match allowed {
        Allowed::OneOf { words, .. } => format!("one of {}", words.join(", ")),
        Allowed::NonEmpty => "a text that is not empty".to_owned(),
        Allowed::ConnectionsPerHost => {
            "host:number pairs with commas between them, as 10.0.0.1:100".to_owned()
        }
        Allowed::KafkaVersion => "a version of Kafka up to 3.9, as 0.10.2, 2.8 or 3.0-IV1".to_owned(),
        Allowed::OffsetReset => "latest, earliest, or by_duration: and a duration as PT1H30M".to_owned(),
        _ => "a text".to_owned(),
    }
}

fn list_expectation(allowed: &Allowed) -> String {
    match allowed {
        Allowed::OneOf { words, .. } => {
            format!("a list of {}", words.join(", "))
        }
        Allowed::ThrottledReplicas => {
            "*, or pairs partition:broker with commas between them, as 0:1,1:2".to_owned()
        }
        _ => "a list with commas between its items".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{broker_key, group_key, topic_key};

    /// A value that Kafka refuses and Klamm takes would surface much later, as odd behaviour; one that Kafka
    /// takes and Klamm refuses breaks a working file.
    #[test]
    fn values_are_checked_as_kafka_checks_them() {
        for (name, good, bad) in [
            (
                "num.partitions",
                &["1", " 7 ", "+3", "2147483647"][..],
                &["0", "-1", "x", "", "1.5", "2147483648"][..],
            ),
            ("auto.create.topics.enable", &["true", "FALSE", " True "], &["yes", "1", ""]),
            ("offsets.topic.replication.factor", &["1", "32767"], &["0", "32768"]),
            ("log.retention.ms", &["-1", "-2", "9223372036854775807"], &["0", "9223372036854775808", "7d"]),
            (
                "log.cleaner.min.cleanable.ratio",
                &["0", "0.5", "1", "1e-3", "0.5f", "1.D"],
                &["1.1", "-0.1", "NaN", "half", "f", "Inf"],
            ),
            ("log.roll.ms", &["1"], &["0"]),
            ("socket.send.buffer.bytes", &["-1", "1"], &["0", "-2"]),
            ("compression.gzip.level", &["-1", "1", "9"], &["0", "10", "-2"]),
            ("compression.type", &["producer", "zstd"], &["none", "ZSTD", ""]),
            (
                "log.cleanup.policy",
                &["delete", "compact , delete", "", "delete,delete"],
                &["keep", "DELETE", "delete,"],
            ),
            ("group.consumer.migration.policy", &["Bidirectional", "DISABLED"], &["sideways"]),
            ("inter.broker.protocol.version", &["2.8", "0.10.2", "3.0-IV1"], &["new", "3", "3.0-IVx", "4.0"]),
        ] {
            let key = broker_key(name).unwrap();
            for value in good {
                assert_eq!(validate(key, value), Ok(()), "{name}={value}");
            }
            for value in bad {
                assert!(validate(key, value).is_err(), "{name}={value}");
            }
        }
        let throttled = topic_key("leader.replication.throttled.replicas").unwrap();
        assert!(["", "*", "0:1", "0:1, 1:2"].iter().all(|value| validate(throttled, value).is_ok()));
        assert!(["0", "a:b", "0:1,", "*,0:1"].iter().all(|value| validate(throttled, value).is_err()));
        let reset = group_key("share.auto.offset.reset").unwrap();
        assert!(
            ["latest", "by_duration:P1DT2H", "by_duration:PT0.5S"].iter().all(|v| validate(reset, v).is_ok())
        );
        assert!(
            ["none", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:1H"]
                .iter()
                .all(|value| validate(reset, value).is_err())
        );
    }

    #[test]
    fn what_is_allowed_is_said_in_words() {
        for (name, expected) in [
            ("num.partitions", "expected a whole number from 1 to 2147483647"),
            ("offset.metadata.max.bytes", "expected a whole number from -2147483648 to 2147483647"),
            ("compression.gzip.level", "expected a whole number from 1 to 9, or -1"),
            (
                "log.retention.bytes",
                "expected a whole number from -9223372036854775808 to 9223372036854775807",
            ),
            ("log.retention.ms", "expected a whole number that is not 0, as -1 for no limit"),
            ("log.cleaner.min.cleanable.ratio", "expected a number from 0 to 1"),
            ("auto.create.topics.enable", "expected true or false"),
            ("log.cleanup.policy", "expected a list of compact, delete"),
            ("compression.type", "expected one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ] {
            assert_eq!(validate(broker_key(name).unwrap(), "?"), Err(expected.to_owned()), "{name}");
        }
    }

    /// As Kafka 4.4.0 shows them.
    #[test]
    fn numbers_are_shown_as_java_writes_them() {
        for (number, text) in [
            (9e7, "9.0E7"),
            (1234567.5, "1234567.5"),
            (12345678.5, "1.23456785E7"),
            (0.0001234, "1.234E-4"),
            (0.25, "0.25"),
            (1.0, "1.0"),
            (0.0, "0.0"),
            (f64::MAX, "1.7976931348623157E308"),
        ] {
            assert_eq!(java_double(number), text);
        }
    }
}

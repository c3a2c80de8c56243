//! The table of all keys, read from `keys.tsv`, and the look-ups in it.

use std::sync::LazyLock;

use crate::key::{Allowed, DefaultValue, Importance, Key, Kind, Scope, Synonym, Update};

/// All three scopes, each sorted by name.
struct Table {
    broker: Vec<Key>,
    topic: Vec<Key>,
    group: Vec<Key>,
}

/// A mistake in `keys.tsv` is a mistake of ours that no input can cause, and a test reads the whole table; so
/// reading it may panic.
static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table { broker: Vec::new(), topic: Vec::new(), group: Vec::new() };
    for line in include_str!("keys.tsv").lines().skip(1) {
        let key = key_of_line(line);
        match key.scope {
            Scope::Broker => table.broker.push(key),
            Scope::Topic => table.topic.push(key),
            Scope::Group => table.group.push(key),
        }
    }
    for keys in [&mut table.broker, &mut table.topic, &mut table.group] {
        keys.sort_by_key(|key| key.name);
    }
    table
});

/// The keys of a broker, sorted by name.
pub fn broker_keys() -> &'static [Key] {
    &TABLE.broker
}

/// The keys of a topic, sorted by name.
pub fn topic_keys() -> &'static [Key] {
    &TABLE.topic
}

/// The keys of a group, sorted by name.
pub fn group_keys() -> &'static [Key] {
    &TABLE.group
}

/// The broker's key with this name.
pub fn broker_key(name: &str) -> Option<&'static Key> {
    find(broker_keys(), name)
}

/// The topic's key with this name.
pub fn topic_key(name: &str) -> Option<&'static Key> {
    find(topic_keys(), name)
}

/// The group's key with this name.
pub fn group_key(name: &str) -> Option<&'static Key> {
    find(group_keys(), name)
}

fn find(keys: &'static [Key], name: &str) -> Option<&'static Key> {
    keys.binary_search_by(|key| key.name.cmp(name)).ok().map(|at| &keys[at])
}

/// The known name that the writer of an unknown one most likely meant, if any is near enough.
///
/// For a broker, a topic's key counts as meaning the broker's key that gives its default.
pub fn nearest(scope: Scope, name: &str) -> Option<&'static str> {
    if scope == Scope::Broker
        && let Some(synonym) = topic_key(name).and_then(|key| key.synonyms.first())
    {
        return Some(synonym.name);
    }
    let keys = match scope {
        Scope::Broker => broker_keys(),
        Scope::Topic => topic_keys(),
        Scope::Group => group_keys(),
    };
    let wanted = name.to_ascii_lowercase().replace(['_', '-'], ".");
    let most = (wanted.len() / 4).clamp(1, 6);
    keys.iter()
        .filter(|key| key.name.len().abs_diff(wanted.len()) <= most)
        .map(|key| (distance(&wanted, key.name), key.name))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, name)| name)
}

/// How many letters must be added, removed, replaced or swapped with their neighbour to turn one into the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut rows = vec![vec![0; other.len() + 1]; one.len() + 1];
    for i in 0..=one.len() {
        for j in 0..=other.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
                let mut least = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                    least = least.min(rows[i - 2][j - 2] + 1);
                }
                least
            };
        }
    }
    rows[one.len()][other.len()]
}

fn key_of_line(line: &'static str) -> Key {
    let columns: Vec<&'static str> = line.split('\t').collect();
    let &[scope, name, kind, default, allowed, importance, update, kafka, internal, synonyms, acts, doc] =
        columns.as_slice()
    else {
        panic!("keys.tsv: a line has {} columns instead of 12: {line}", columns.len());
    };
    Key {
        scope: match scope {
            "broker" => Scope::Broker,
            "topic" => Scope::Topic,
            "group" => Scope::Group,
            _ => panic!("keys.tsv: {name}: scope {scope}"),
        },
        name,
        kind: kind_of(name, kind),
        default: match default {
            "<required>" => DefaultValue::Required,
            "<null>" => DefaultValue::Null,
            text => DefaultValue::Value(text),
        },
        allowed: allowed_of(name, allowed),
        importance: match importance {
            "HIGH" => Importance::High,
            "MEDIUM" => Importance::Medium,
            "LOW" => Importance::Low,
            _ => panic!("keys.tsv: {name}: importance {importance}"),
        },
        update: match update {
            "read-only" => Update::ReadOnly,
            "per-broker" => Update::PerBroker,
            "cluster-wide" => Update::ClusterWide,
            _ => panic!("keys.tsv: {name}: update {update}"),
        },
        last_kafka: kafka,
        internal: internal == "internal",
        synonyms: synonyms.split_whitespace().map(synonym_of).collect(),
        acted_on: acts == "yes",
        doc,
    }
}

fn kind_of(name: &str, kind: &str) -> Kind {
    match kind {
        "BOOLEAN" => Kind::Boolean,
        "STRING" => Kind::String,
        "INT" => Kind::Int,
        "SHORT" => Kind::Short,
        "LONG" => Kind::Long,
        "DOUBLE" => Kind::Double,
        "LIST" => Kind::List,
        "CLASS" => Kind::Class,
        "PASSWORD" => Kind::Password,
        _ => panic!("keys.tsv: {name}: type {kind}"),
    }
}

fn synonym_of(text: &'static str) -> Synonym {
    match text.split_once('*') {
        None => Synonym { name: text, factor: 1 },
        Some((name, factor)) => {
            Synonym { name, factor: factor.parse().expect("a factor in keys.tsv is a whole number") }
        }
    }
}

/// Reads the notation of Apache Kafka's own documentation, as `[1,...,9] or -1`.
fn allowed_of(name: &str, text: &'static str) -> Allowed {
    match text {
        // A required list or class is never null here: its text is there or it is not.
        "" | "non-null string" | "non-empty list" => return Allowed::Any,
        "not 0" => return Allowed::NotZero,
        "non-empty string" => return Allowed::NonEmpty,
        "Kafka version" => return Allowed::KafkaVersion,
        "[partitionId]:[brokerId],[partitionId]:[brokerId],..." => return Allowed::ThrottledReplicas,
        "host:number,host:number,..." => return Allowed::ConnectionsPerHost,
        "[latest, earliest, by_duration:PnDTnHnMn.nS]" => return Allowed::OffsetReset,
        _ => {}
    }
    let (any_case, rest) = match text.strip_prefix("(case insensitive) ") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (inside, after) = rest
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
        .unwrap_or_else(|| panic!("keys.tsv: {name}: allowed {text}"));
    let number = |text: &str| -> f64 {
        text.parse().unwrap_or_else(|_| panic!("keys.tsv: {name}: {text} in allowed is no number"))
    };
    match inside.split_once(",...") {
        Some((from, to)) => Allowed::Range {
            from: number(from),
            to: to.strip_prefix(',').map_or(f64::INFINITY, number),
            or: after.strip_prefix(" or ").map(number),
        },
        None => Allowed::OneOf { words: inside.split(", ").collect(), any_case },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that stands in the schema and not in the table would be "unknown" to people whose file is right.
    #[test]
    fn every_key_of_every_schema_is_in_the_table() {
        let schemas = [
            include_str!("../protocol/schema/configs-2.8.2.tsv"),
            include_str!("../protocol/schema/configs-3.9.1.tsv"),
            include_str!("../protocol/schema/configs-4.4.0.tsv"),
        ];
        let mut seen = 0;
        for line in schemas.iter().flat_map(|schema| schema.lines().skip(1)) {
            let mut columns = line.split('\t');
            let (scope, name) = (columns.next().unwrap(), columns.next().unwrap());
            let found = match scope {
                "broker" => broker_key(name),
                "topic" => topic_key(name),
                "group" => group_key(name),
                _ => continue,
            };
            assert!(found.is_some(), "{scope} {name}");
            seen += 1;
        }
        assert!(seen > 900, "only {seen} lines were looked at");
    }

    /// The default of every key has to pass the key's own check, or a restart with what DescribeConfigs
    /// showed would be refused.
    #[test]
    fn defaults_pass_their_own_checks() {
        for key in broker_keys().iter().chain(topic_keys()).chain(group_keys()) {
            if let Some(text) = key.default_text() {
                assert_eq!(crate::validate(key, text), Ok(()), "{}", key.name);
            }
        }
    }

    /// A topic's default is read from its synonyms: each must exist and be a number where it is multiplied.
    #[test]
    fn synonyms_name_keys_of_the_broker() {
        for key in topic_keys().iter().chain(group_keys()) {
            for synonym in &key.synonyms {
                let broker = broker_key(synonym.name).unwrap_or_else(|| panic!("{}", synonym.name));
                if synonym.factor != 1 {
                    assert_eq!(broker.kind, Kind::Int, "{}", synonym.name);
                }
            }
        }
    }

    #[test]
    fn the_nearest_name_is_the_one_that_was_meant() {
        for (written, meant) in [
            ("num.partition", Some("num.partitions")),
            ("num.partitons", Some("num.partitions")),
            ("auto.create.topic.enable", Some("auto.create.topics.enable")),
            ("Log.Dirs", Some("log.dirs")),
            ("log_retention_hours", Some("log.retention.hours")),
            ("retention.ms", Some("log.retention.ms")),
            ("max.message.bytes", Some("message.max.bytes")),
            ("advertised.listener", Some("advertised.listeners")),
            ("something.else.entirely", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(Scope::Broker, written), meant, "{written}");
        }
        assert_eq!(nearest(Scope::Topic, "retention.mss"), Some("retention.ms"));
    }
}

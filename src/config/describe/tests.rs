//! What clients see of settings, compared with what Apache Kafka 4.4 shows.

use super::*;
use crate::{Sources, load};

fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn broker(overrides: &[(&str, &str)]) -> BrokerConfig {
    let overrides = overrides.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    load(&Sources { overrides, ..Sources::default() }).unwrap().0
}

/// `name=value {SOURCE:name=value, …}`, as `kafka-configs --describe --all` prints it.
fn line(entry: &ConfigEntry) -> String {
    let synonyms: Vec<String> = entry
        .synonyms
        .iter()
        .map(|synonym| {
            let source = match synonym.source {
                ConfigSource::DynamicTopic => "DYNAMIC_TOPIC_CONFIG",
                ConfigSource::DynamicBroker => "DYNAMIC_BROKER_CONFIG",
                ConfigSource::DynamicDefaultBroker => "DYNAMIC_DEFAULT_BROKER_CONFIG",
                ConfigSource::StaticBroker => "STATIC_BROKER_CONFIG",
                ConfigSource::Default => "DEFAULT_CONFIG",
                ConfigSource::ClientMetrics => "DYNAMIC_CLIENT_METRICS_CONFIG",
                ConfigSource::DynamicBrokerLogger => "DYNAMIC_BROKER_LOGGER_CONFIG",
                ConfigSource::Group => "DYNAMIC_GROUP_CONFIG",
            };
            format!("{source}:{}={}", synonym.name, synonym.value.as_deref().unwrap_or("null"))
        })
        .collect();
    format!(
        "{}={} sensitive={} synonyms={{{}}}",
        entry.name,
        entry.value.as_deref().unwrap_or("null"),
        entry.sensitive,
        synonyms.join(", ")
    )
}

fn entry_of(entries: &[ConfigEntry], name: &str) -> ConfigEntry {
    entries.iter().find(|entry| entry.name == name).unwrap_or_else(|| panic!("{name}")).clone()
}

/// One line after the other, so that a difference can be read.
fn compare(lines: &[String], golden: &[&str]) {
    for (line, golden) in lines.iter().zip(golden) {
        assert_eq!(line, golden);
    }
    assert_eq!(lines.len(), golden.len());
}

/// The golden file is the output of Kafka 4.4's own tool against Kafka 4.4, for a topic with retention.ms=1000.
#[test]
fn a_topic_is_described_as_kafka_does() {
    let cluster = new_cluster();
    let dynamic = DynamicConfigs { broker: None, cluster: Some(&cluster) };
    let described = describe_topic(&settings(&[("retention.ms", "1000")]), &dynamic, &broker(&[]));
    let golden: Vec<&str> = include_str!("../golden/topic-4.4.0.txt").lines().map(str::trim).collect();
    compare(&described.iter().map(line).collect::<Vec<_>>(), &golden);
    assert!(described.iter().all(|entry| !entry.read_only));
}

/// The golden file is the output of Kafka 4.4's own tool against Kafka 4.4 with what is set below, without the
/// lines that hold its listeners and directories.
#[test]
fn a_broker_is_described_as_kafka_does() {
    let broker = broker(&[
        ("process.roles", "broker,controller"),
        ("controller.listener.names", "CONTROLLER"),
        ("node.id", "1"),
        ("group.initial.rebalance.delay.ms", "0"),
        ("offsets.topic.replication.factor", "1"),
        ("transaction.state.log.replication.factor", "1"),
        ("transaction.state.log.min.isr", "1"),
        ("share.coordinator.state.topic.replication.factor", "1"),
        ("share.coordinator.state.topic.min.isr", "1"),
        ("num.partitions", "4"),
    ]);
    // Where Klamm's default is not Kafka's; README.md lists them.
    let own: Vec<&str> = broker.defaults.keys().copied().collect();
    let here = ["advertised.listeners", "controller.quorum.voters", "listeners", "log.dir", "log.dirs"];
    let compared = |name: &str| !own.contains(&name) && !here.contains(&name) && !name.starts_with("klamm.");
    let cluster = new_cluster();
    let described = describe_broker(&DynamicConfigs { broker: None, cluster: Some(&cluster) }, &broker);
    let golden: Vec<&str> = include_str!("../golden/broker-4.4.0.txt")
        .lines()
        .map(str::trim)
        .filter(|line| compared(line.split('=').next().unwrap_or_default()))
        .collect();
    assert!(golden.len() > 250, "the golden file has only {} lines", golden.len());
    let lines: Vec<String> = described.iter().filter(|entry| compared(&entry.name)).map(line).collect();
    compare(&lines, &golden);
}

#[test]
fn what_can_be_changed_is_not_read_only() {
    let described = describe_broker(&DynamicConfigs::default(), &broker(&[]));
    let read_only = |name: &str| entry_of(&described, name).read_only;
    assert!(read_only("num.partitions") && read_only("node.id") && read_only("log.retention.hours"));
    assert!(!read_only("log.retention.ms") && !read_only("max.connections"));
    assert!(read_only("listeners") && read_only("ssl.keystore.type"));
}

/// What a new cluster of Kafka 4.4 sets by itself.
fn new_cluster() -> BTreeMap<String, String> {
    settings(&[("min.insync.replicas", "1")])
}

/// The order of the places is the order in which they win.
#[test]
fn every_place_that_sets_a_key_is_a_synonym() {
    let broker = broker(&[("log.retention.ms", "3"), ("log.retention.hours", "2")]);
    let (own, cluster) = (settings(&[("log.retention.ms", "1")]), settings(&[("log.retention.ms", "2")]));
    let dynamic = DynamicConfigs { broker: Some(&own), cluster: Some(&cluster) };
    let described = describe_broker(&dynamic, &broker);
    assert_eq!(
        line(&entry_of(&described, "log.retention.ms")),
        "log.retention.ms=1 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:log.retention.ms=1, \
         DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=2, STATIC_BROKER_CONFIG:log.retention.ms=3, \
         STATIC_BROKER_CONFIG:log.retention.hours=2, DEFAULT_CONFIG:log.retention.hours=168}"
    );
    let topic = describe_topic(&settings(&[]), &dynamic, &broker);
    let retention = entry_of(&topic, "retention.ms");
    assert_eq!((retention.value.as_deref(), retention.source), (Some("1"), ConfigSource::DynamicBroker));
    assert!(!retention.is_default());
    assert!(entry_of(&topic, "segment.bytes").is_default());
}

#[test]
fn secrets_and_unknown_keys_show_no_value() {
    let broker = broker(&[("ssl.key.password", "hunter2"), ("my.own.secret", "hunter2")]);
    let described = describe_broker(&DynamicConfigs::default(), &broker);
    for (name, kind_code) in [("ssl.key.password", 9), ("my.own.secret", 0)] {
        let entry = entry_of(&described, name);
        assert!(entry.sensitive, "{name}");
        assert_eq!((entry.value, entry.synonyms[0].value.clone()), (None, None), "{name}");
        assert_eq!(
            (entry.source, entry.kind.map_or(0, |kind| kind as i8)),
            (ConfigSource::StaticBroker, kind_code)
        );
    }
}

/// `kafka-reassign-partitions --throttle` sets them, and whoever looks must see them. As observed on Kafka 4.4.0.
#[test]
fn quotas_of_replication_are_shown_where_they_are_set() {
    let key = "leader.replication.throttled.rate";
    let set = settings(&[(key, "500")]);
    let dynamic = DynamicConfigs { broker: Some(&set), cluster: None };
    let entry = entry_of(&describe_broker(&dynamic, &broker(&[])), key);
    assert_eq!(
        line(&entry),
        format!("{key}=500 sensitive=false synonyms={{DYNAMIC_BROKER_CONFIG:{key}=500}}")
    );
    assert_eq!((entry.read_only, entry.kind), (false, Some(Kind::Long)));
    let unset = describe_broker(&DynamicConfigs::default(), &broker(&[]));
    assert!(unset.iter().all(|entry| entry.name != key));
}

#[test]
fn the_cluster_default_holds_what_was_set_for_all() {
    let described = describe_cluster_default(&settings(&[("max.connections", "9")]));
    assert_eq!(described.len(), 1);
    assert_eq!(
        line(&described[0]),
        "max.connections=9 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:max.connections=9}"
    );
    assert!(!described[0].read_only);
}

/// A key that is taken and does nothing says so, where people look it up.
#[test]
fn documentation_says_what_is_not_acted_on() {
    let described = describe_broker(&DynamicConfigs::default(), &broker(&[]));
    let documentation = |name: &str| entry_of(&described, name).documentation;
    assert_eq!(
        documentation("num.partitions"),
        "How many partitions a topic gets where its creator does not say."
    );
    assert!(documentation("num.io.threads").ends_with("Klamm accepts this key and does not act on it."));
}

/// Kafka 4 does not know `message.format.version`, so today's tools do not expect it; whoever set it, for a topic or
/// for all, must see it. What Kafka 3.9.1 shows is the same with the key always there.
#[test]
fn the_message_format_is_shown_where_somebody_set_it() {
    let is_shown = |topic: &[(&str, &str)], broker: &BrokerConfig| {
        let described = describe_topic(&settings(topic), &DynamicConfigs::default(), broker);
        described.iter().find(|entry| entry.name == "message.format.version").map(line)
    };
    assert_eq!(is_shown(&[], &broker(&[])), None);
    assert_eq!(
        is_shown(&[("message.format.version", "0.10.2")], &broker(&[])).unwrap(),
        "message.format.version=0.10.2 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:message.format.version=0.10.2, \
         DEFAULT_CONFIG:log.message.format.version=3.0-IV1}"
    );
    assert_eq!(
        is_shown(&[], &broker(&[("log.message.format.version", "0.9.0")])).unwrap(),
        "message.format.version=0.9.0 sensitive=false synonyms={STATIC_BROKER_CONFIG:log.message.format.version=0.9.0, \
         DEFAULT_CONFIG:log.message.format.version=3.0-IV1}"
    );
}

//! The settings of this broker, typed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use klamm_model::NodeId;

use crate::listeners::{AdvertisedListener, Listener};
use crate::roles::{QuorumVoter, Roles};
use crate::source::Source;
use crate::table;
use crate::topic::DynamicConfigs;
use crate::value::{parse_boolean, parse_connections_per_host, parse_double};

const SELECTOR: &str = "replica.selector.class";
const RACK_AWARE_SELECTOR: &str = "org.apache.kafka.common.replica.RackAwareReplicaSelector";
/// The classes of Kafka that choose replicas; the first one always chooses the leader, as without any.
const SELECTORS: [&str; 2] = ["org.apache.kafka.common.replica.LeaderSelector", RACK_AWARE_SELECTOR];

const PER_HOST: &str = "max.connections.per.ip.overrides";

/// `klamm.flush.policy`: what an acknowledgement promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushPolicy {
    /// As in Apache Kafka: the records are in the system's page cache, and survive the end of the process.
    Kafka,
    /// They are on the disk, and survive the end of the machine too.
    GroupCommit,
}

impl FlushPolicy {
    fn parse(text: &str) -> Option<FlushPolicy> {
        match text {
            "kafka" => Some(FlushPolicy::Kafka),
            "group-commit" => Some(FlushPolicy::GroupCommit),
            _ => None,
        }
    }
}

/// Declares [`BrokerConfig`]: the fields that take more than a look at one key by hand, the others with their key.
macro_rules! broker_config {
    ($($field:ident: $kind:ty = $key:literal;)*) => {
        /// All settings of a broker. Times and sizes are in the unit that the name ends with.
        #[derive(Clone, PartialEq, Debug)]
        pub struct BrokerConfig {
            /// `node.id`, or `broker.id` as it was called before.
            pub node_id: NodeId,
            /// The id that a new cluster gets: the variable `CLUSTER_ID`. Without it, one is made up.
            pub cluster_id: Option<String>,
            /// Whether a directory of Apache Kafka is taken over although its access control entries would not be
            /// enforced. No key sets it, only the command line, where the one who starts the broker sees it.
            pub ignores_access_control: bool,
            /// `broker.rack`.
            pub rack: Option<String>,
            /// `process.roles`.
            pub roles: Roles,
            /// `controller.quorum.voters`; empty if nobody set it.
            pub quorum_voters: Vec<QuorumVoter>,
            /// `controller.quorum.bootstrap.servers`, without what names this node alone. If this and the voters are
            /// empty, the node is its quorum's only voter.
            pub quorum_bootstrap_servers: Vec<(String, u16)>,
            /// `listeners`, those for controllers included.
            pub listeners: Vec<Listener>,
            /// `advertised.listeners` without those for controllers; empty if nobody set it, and then clients
            /// are told the local address of their own connection.
            pub advertised_listeners: Vec<AdvertisedListener>,
            /// `advertised.listeners`, those for controllers included.
            pub all_advertised: Vec<AdvertisedListener>,
            /// The listener that other brokers connect to, in upper case.
            pub inter_broker_listener_name: String,
            /// `controller.listener.names`, in upper case.
            pub controller_listener_names: Vec<String>,
            /// `klamm.http.listener`: where metrics and health are served, if anywhere.
            pub http_listener: Option<Listener>,
            /// `log.dirs` or `log.dir`.
            pub log_dirs: Vec<PathBuf>,
            /// `max.connections.per.ip.overrides`: how many connections an address or host name may have.
            pub max_connections_per_ip_overrides: BTreeMap<String, i32>,
            $(
                #[doc = concat!("`", $key, "`")]
                pub $field: $kind,
            )*
            /// What was set, by key, and where; keys that nobody knows included.
            pub values: BTreeMap<String, (String, Source)>,
            /// Klamm's own defaults where they differ from Apache Kafka's.
            pub(crate) defaults: BTreeMap<&'static str, String>,
        }

        impl BrokerConfig {
            /// A config whose plain fields come from `values` and the defaults, and whose other fields are still
            /// empty. The values must have been checked.
            pub(crate) fn read(
                values: BTreeMap<String, (String, Source)>,
                defaults: BTreeMap<&'static str, String>,
            ) -> BrokerConfig {
                let get = |key: &str| value_of(key, &DynamicConfigs::default(), &values, &defaults);
                BrokerConfig {
                    node_id: NodeId(1),
                    cluster_id: None,
                    ignores_access_control: false,
                    rack: None,
                    roles: Roles { broker: true, controller: true },
                    quorum_voters: Vec::new(),
                    quorum_bootstrap_servers: Vec::new(),
                    listeners: Vec::new(),
                    advertised_listeners: Vec::new(),
                    all_advertised: Vec::new(),
                    inter_broker_listener_name: String::new(),
                    controller_listener_names: Vec::new(),
                    http_listener: None,
                    log_dirs: Vec::new(),
                    max_connections_per_ip_overrides: BTreeMap::new(),
                    $($field: <$kind as Plain>::read(&get, $key),)*
                    values,
                    defaults,
                }
            }

            /// This config with what was set while the cluster ran. Listeners, directories and the node's id stay
            /// what they were at start.
            pub fn with_dynamic(&self, dynamic: &DynamicConfigs<'_>) -> BrokerConfig {
                let get = |key: &str| value_of(key, dynamic, &self.values, &self.defaults);
                let mut config = self.clone();
                $(config.$field = <$kind as Plain>::read(&get, $key);)*
                if let Some(per_host) = get(PER_HOST).and_then(|text| parse_connections_per_host(&text)) {
                    config.max_connections_per_ip_overrides = per_host;
                }
                config
            }
        }

        /// The keys that have a plain field.
        #[cfg(test)]
        const PLAIN_KEYS: &[&str] = &[$($key),*];
    };
}

broker_config! {
    auto_create_topics_enable: bool = "auto.create.topics.enable";
    auto_leader_rebalance_enable: bool = "auto.leader.rebalance.enable";
    broker_heartbeat_interval_ms: i32 = "broker.heartbeat.interval.ms";
    add_partitions_to_txn_retry_backoff_max_ms: i32 = "add.partitions.to.txn.retry.backoff.max.ms";
    add_partitions_to_txn_retry_backoff_ms: i32 = "add.partitions.to.txn.retry.backoff.ms";
    broker_session_timeout_ms: i32 = "broker.session.timeout.ms";
    connections_max_idle_ms: i64 = "connections.max.idle.ms";
    controller_quorum_election_timeout_ms: i32 = "controller.quorum.election.timeout.ms";
    controller_quorum_fetch_timeout_ms: i32 = "controller.quorum.fetch.timeout.ms";
    controller_quota_window_num: i32 = "controller.quota.window.num";
    controller_quota_window_size_seconds: i32 = "controller.quota.window.size.seconds";
    default_replication_factor: i32 = "default.replication.factor";
    delete_topic_enable: bool = "delete.topic.enable";
    fetch_max_bytes: i32 = "fetch.max.bytes";
    group_initial_rebalance_delay_ms: i32 = "group.initial.rebalance.delay.ms";
    group_max_session_timeout_ms: i32 = "group.max.session.timeout.ms";
    group_max_size: i32 = "group.max.size";
    group_min_session_timeout_ms: i32 = "group.min.session.timeout.ms";
    leader_imbalance_check_interval_seconds: i64 = "leader.imbalance.check.interval.seconds";
    log_cleaner_backoff_ms: i64 = "log.cleaner.backoff.ms";
    log_cleaner_dedupe_buffer_size: i64 = "log.cleaner.dedupe.buffer.size";
    log_cleaner_enable: bool = "log.cleaner.enable";
    log_cleaner_io_buffer_load_factor: f64 = "log.cleaner.io.buffer.load.factor";
    log_cleaner_io_buffer_size: i32 = "log.cleaner.io.buffer.size";
    log_cleaner_io_max_bytes_per_second: f64 = "log.cleaner.io.max.bytes.per.second";
    log_cleaner_threads: i32 = "log.cleaner.threads";
    klamm_flush_policy: FlushPolicy = "klamm.flush.policy";
    log_flush_scheduler_interval_ms: i64 = "log.flush.scheduler.interval.ms";
    log_retention_check_interval_ms: i64 = "log.retention.check.interval.ms";
    max_connections: i32 = "max.connections";
    max_connections_per_ip: i32 = "max.connections.per.ip";
    max_incremental_fetch_session_cache_slots: i32 = "max.incremental.fetch.session.cache.slots";
    max_request_partition_size_limit: i32 = "max.request.partition.size.limit";
    metadata_log_max_record_bytes_between_snapshots: i64 = "metadata.log.max.record.bytes.between.snapshots";
    num_partitions: i32 = "num.partitions";
    num_recovery_threads_per_data_dir: i32 = "num.recovery.threads.per.data.dir";
    num_replica_fetchers: i32 = "num.replica.fetchers";
    offset_metadata_max_bytes: i32 = "offset.metadata.max.bytes";
    offsets_commit_timeout_ms: i32 = "offsets.commit.timeout.ms";
    offsets_load_buffer_size: i32 = "offsets.load.buffer.size";
    offsets_retention_check_interval_ms: i64 = "offsets.retention.check.interval.ms";
    offsets_retention_minutes: i32 = "offsets.retention.minutes";
    offsets_topic_num_partitions: i32 = "offsets.topic.num.partitions";
    offsets_topic_replication_factor: i16 = "offsets.topic.replication.factor";
    offsets_topic_segment_bytes: i32 = "offsets.topic.segment.bytes";
    producer_id_expiration_check_interval_ms: i32 = "producer.id.expiration.check.interval.ms";
    producer_id_expiration_ms: i32 = "producer.id.expiration.ms";
    queued_max_requests: i32 = "queued.max.requests";
    quota_window_num: i32 = "quota.window.num";
    quota_window_size_seconds: i32 = "quota.window.size.seconds";
    replica_fetch_backoff_ms: i32 = "replica.fetch.backoff.ms";
    replica_fetch_max_bytes: i32 = "replica.fetch.max.bytes";
    replica_fetch_min_bytes: i32 = "replica.fetch.min.bytes";
    replica_fetch_response_max_bytes: i32 = "replica.fetch.response.max.bytes";
    replica_fetch_wait_max_ms: i32 = "replica.fetch.wait.max.ms";
    replica_high_watermark_checkpoint_interval_ms: i64 = "replica.high.watermark.checkpoint.interval.ms";
    replica_lag_time_max_ms: i64 = "replica.lag.time.max.ms";
    replica_socket_timeout_ms: i32 = "replica.socket.timeout.ms";
    request_timeout_ms: i32 = "request.timeout.ms";
    socket_request_max_bytes: i32 = "socket.request.max.bytes";
    transaction_abort_timed_out_transaction_cleanup_interval_ms: i32 =
        "transaction.abort.timed.out.transaction.cleanup.interval.ms";
    transaction_max_timeout_ms: i32 = "transaction.max.timeout.ms";
    transaction_partition_verification_enable: bool = "transaction.partition.verification.enable";
    transaction_remove_expired_transaction_cleanup_interval_ms: i32 =
        "transaction.remove.expired.transaction.cleanup.interval.ms";
    transaction_state_log_load_buffer_size: i32 = "transaction.state.log.load.buffer.size";
    transaction_state_log_min_isr: i32 = "transaction.state.log.min.isr";
    transaction_state_log_num_partitions: i32 = "transaction.state.log.num.partitions";
    transaction_state_log_replication_factor: i16 = "transaction.state.log.replication.factor";
    transaction_state_log_segment_bytes: i32 = "transaction.state.log.segment.bytes";
    transactional_id_expiration_ms: i32 = "transactional.id.expiration.ms";
}

impl BrokerConfig {
    /// The config of a broker that nobody told anything.
    pub fn defaults() -> BrokerConfig {
        match crate::load(&crate::Sources::default()) {
            Ok((config, _)) => config,
            Err(errors) => unreachable!("the defaults are valid: {errors:?}"),
        }
    }

    /// The value of a broker's key as it stands at start: what was set, or else the default; `None` for null.
    pub fn value(&self, key: &str) -> Option<String> {
        value_of(key, &DynamicConfigs::default(), &self.values, &self.defaults)
    }

    /// The default of a broker's key here: Klamm's own where it has one, else Apache Kafka's; `None` for null.
    pub fn default_value(&self, key: &str) -> Option<String> {
        default_of(key, &self.defaults)
    }

    /// What cannot be true together: a key and what is wrong with it.
    pub(crate) fn contradictions(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms {
            let most = self.group_max_session_timeout_ms;
            found.push((
                "group.min.session.timeout.ms",
                format!("it must not be greater than group.max.session.timeout.ms={most}"),
            ));
        }
        if self.max_connections_per_ip == 0 && self.max_connections_per_ip_overrides.is_empty() {
            let problem = "nobody could connect; allow some addresses with max.connections.per.ip.overrides";
            found.push(("max.connections.per.ip", problem.to_owned()));
        }
        if i64::from(self.replica_fetch_wait_max_ms) > self.replica_lag_time_max_ms {
            let most = self.replica_lag_time_max_ms;
            found.push((
                "replica.fetch.wait.max.ms",
                format!("it must not be greater than replica.lag.time.max.ms={most}, or followers would lag while \
                         they wait"),
            ));
        }
        if let Some(class) = self.value(SELECTOR).filter(|class| !SELECTORS.contains(&class.as_str())) {
            found
                .push((SELECTOR, format!("{class} cannot be loaded; there are {}", SELECTORS.join(" and "))));
        }
        found
    }

    /// Whether nothing names another node of the quorum.
    pub fn is_alone(&self) -> bool {
        let others = self.quorum_voters.iter().any(|voter| voter.id != self.node_id);
        !others && self.quorum_bootstrap_servers.is_empty()
    }

    /// Where other members of the quorum reach this node: as `controller.quorum.voters` says, else what its listener
    /// for controllers advertises. A node without such a listener, which is only a broker, is reached as by other
    /// brokers.
    pub fn quorum_address(&self) -> (String, u16) {
        let name = self
            .controller_listener_names
            .iter()
            .find(|name| self.listeners.iter().any(|it| it.name == **name));
        let name = name.unwrap_or(&self.inter_broker_listener_name);
        let configured = self.quorum_voters.iter().find(|voter| voter.id == self.node_id);
        let configured = configured.map(|voter| (voter.host.clone(), voter.port));
        let advertised = self.all_advertised.iter().find(|it| it.name == *name);
        let advertised = advertised.map(|it| (it.host.clone(), it.port));
        let listener = self.listeners.iter().find(|it| it.name == *name);
        let listener =
            listener.map(|it| (it.host.clone().unwrap_or_else(|| "localhost".to_owned()), it.port));
        configured.or(advertised).or(listener).unwrap_or_default()
    }

    /// Whether consumers are sent to a replica in their rack (KIP-392): `replica.selector.class` names Kafka's own class
    /// for that.
    pub fn selects_replicas_by_rack(&self) -> bool {
        self.value(SELECTOR).is_some_and(|class| class == RACK_AWARE_SELECTOR)
    }

    /// The listeners that clients and other brokers use.
    pub fn client_listeners(&self) -> impl Iterator<Item = &Listener> {
        self.listeners.iter().filter(|listener| !listener.is_controller)
    }
}

fn default_of(key: &str, defaults: &BTreeMap<&'static str, String>) -> Option<String> {
    match defaults.get(key) {
        Some(own) => Some(own.clone()),
        None => table::broker_key(key)?.default_text().map(str::to_owned),
    }
}

/// The value that is in force: dynamic for this broker, dynamic for all, set at start, default.
pub(crate) fn value_of(
    key: &str,
    dynamic: &DynamicConfigs<'_>,
    values: &BTreeMap<String, (String, Source)>,
    defaults: &BTreeMap<&'static str, String>,
) -> Option<String> {
    dynamic
        .value(key)
        .map(str::to_owned)
        .or_else(|| values.get(key).map(|(value, _)| value.trim().to_owned()))
        .or_else(|| default_of(key, defaults))
}

/// A type that a plain field can have.
trait Plain {
    /// Reads a value that has passed the check of its key. A key without any value is a mistake in the table.
    fn read(get: &dyn Fn(&str) -> Option<String>, key: &str) -> Self;
}

macro_rules! plain {
    ($($kind:ty: $parse:expr;)*) => {
        $(impl Plain for $kind {
            fn read(get: &dyn Fn(&str) -> Option<String>, key: &str) -> $kind {
                let parse: fn(&str) -> Option<$kind> = $parse;
                get(key)
                    .and_then(|value| parse(value.trim()))
                    .unwrap_or_else(|| panic!("the value of {key} was checked before it is read"))
            }
        })*
    };
}

plain! {
    bool: parse_boolean;
    i16: |value| value.parse().ok();
    i32: |value| value.parse().ok();
    i64: |value| value.parse().ok();
    f64: parse_double;
    FlushPolicy: FlushPolicy::parse;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields that are no plain ones, by the keys they come from.
    const OTHER_KEYS: &[&str] = &[
        "advertised.host.name",
        "advertised.listeners",
        "advertised.port",
        "broker.id",
        "broker.rack",
        "controller.listener.names",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
        "cordoned.log.dirs",
        "follower.replication.throttled.rate",
        "host.name",
        "inter.broker.listener.name",
        "klamm.http.listener",
        "leader.replication.throttled.rate",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "log.dirs",
        "max.connections.per.ip.overrides",
        "node.id",
        "num.replica.alter.log.dirs.threads",
        "port",
        "process.roles",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "replica.selector.class",
        "security.inter.broker.protocol",
    ];

    /// A key that is said to be acted on and that no field holds would be a lie to whoever reads the table.
    #[test]
    fn every_key_that_is_acted_on_has_a_field() {
        let of_topics: Vec<&str> = table::topic_keys()
            .iter()
            .filter(|key| key.acted_on)
            .flat_map(|key| key.synonyms.iter().map(|synonym| synonym.name))
            .collect();
        for key in table::broker_keys().iter().filter(|key| key.acted_on) {
            assert!(
                PLAIN_KEYS.contains(&key.name)
                    || OTHER_KEYS.contains(&key.name)
                    || of_topics.contains(&key.name),
                "{}",
                key.name
            );
        }
        for name in of_topics {
            assert!(
                table::broker_key(name).unwrap().acted_on,
                "{name} gives an acted-on topic key its default"
            );
        }
    }

    /// What is read and changes nothing all the same: Klamm's LZ4 has one level.
    const READ_IN_VAIN: &[&str] = &["compression.lz4.level"];

    /// A key that is read and said to be without effect would be warned of where it works.
    #[test]
    fn every_key_that_is_read_is_said_to_be_acted_on() {
        let read_of_topics = include_str!("topic.rs").split("#[cfg(test)]").next().unwrap();
        let quoted = |name: &str| read_of_topics.contains(&format!("\"{name}\""));
        let of_brokers = table::broker_keys().iter();
        let of_brokers =
            of_brokers.filter(|key| PLAIN_KEYS.contains(&key.name) || OTHER_KEYS.contains(&key.name));
        let of_topics = table::topic_keys().iter().filter(|key| quoted(key.name));
        let silent: Vec<&str> =
            of_brokers.chain(of_topics).filter(|key| !key.acted_on).map(|key| key.name).collect();
        let silent: Vec<&str> = silent.into_iter().filter(|name| !READ_IN_VAIN.contains(name)).collect();
        assert_eq!(silent, [""; 0]);
    }

    #[test]
    fn dynamic_values_of_this_broker_win_over_those_of_the_cluster() {
        let config = BrokerConfig::defaults();
        let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
        };
        let cluster = of(&[("max.connections", "10"), ("max.connections.per.ip", "5")]);
        let broker = of(&[("max.connections", "20")]);
        let changed = config.with_dynamic(&DynamicConfigs { broker: Some(&broker), cluster: Some(&cluster) });
        assert_eq!((changed.max_connections, changed.max_connections_per_ip), (20, 5));
        assert_eq!(config.with_dynamic(&DynamicConfigs::default()), config);
    }
}

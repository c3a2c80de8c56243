//! How the nodes of a simulated cluster are configured.

use klamm_config::{BrokerConfig, Sources};

use crate::host::node_address;

/// Where brokers listen, on each host.
pub(crate) const BROKER_PORT: u16 = 9092;

/// Where controllers listen, on each host.
const CONTROLLER_PORT: u16 = 9093;

/// The directory of a node on its disk.
pub(crate) const LOG_DIR: &str = "/data";

/// How many partitions each of the coordinators' topics has.
pub(crate) const INTERNAL_PARTITIONS: i32 = 2;

/// `min.insync.replicas` of all topics.
pub(crate) fn min_in_sync(nodes: i32) -> usize {
    if nodes >= 3 { 2 } else { 1 }
}

/// The configuration of node `id` of a cluster of `nodes`, with ids from 1 on.
pub(crate) fn node_config(id: i32, nodes: i32) -> BrokerConfig {
    let host = node_address(id);
    let voters = (1..=nodes).map(|id| format!("{id}@{}:{CONTROLLER_PORT}", node_address(id)));
    let settings = [
        ("process.roles", "broker,controller".to_owned()),
        ("controller.quorum.voters", voters.collect::<Vec<_>>().join(",")),
        ("node.id", id.to_string()),
        ("listeners", format!("PLAINTEXT://{host}:{BROKER_PORT},CONTROLLER://{host}:{CONTROLLER_PORT}")),
        ("advertised.listeners", format!("PLAINTEXT://{host}:{BROKER_PORT}")),
        ("controller.listener.names", "CONTROLLER".to_owned()),
        ("log.dirs", LOG_DIR.to_owned()),
        // One thread does everything.
        ("num.recovery.threads.per.data.dir", "1".to_owned()),
        // What is rare in a day of an installation shall be frequent in an hour of simulation.
        ("broker.heartbeat.interval.ms", "500".to_owned()),
        ("broker.session.timeout.ms", "4000".to_owned()),
        ("replica.lag.time.max.ms", "4000".to_owned()),
        ("log.segment.bytes", (1 << 20).to_string()),
        ("log.cleaner.enable", "false".to_owned()),
        // What is missing in the end was lost, then; the clients' clocks are years behind.
        ("log.retention.ms", "-1".to_owned()),
        ("offsets.topic.num.partitions", INTERNAL_PARTITIONS.to_string()),
        ("transaction.state.log.num.partitions", INTERNAL_PARTITIONS.to_string()),
        // Coordinators load what they have in many pieces.
        ("offsets.load.buffer.size", "4096".to_owned()),
        ("transaction.state.log.load.buffer.size", "4096".to_owned()),
        ("auto.create.topics.enable", "false".to_owned()),
        // Acknowledged offsets and decisions survive the loss of a node, as those of topics do.
        ("min.insync.replicas", min_in_sync(nodes).to_string()),
        ("group.initial.rebalance.delay.ms", "500".to_owned()),
        ("transaction.abort.timed.out.transaction.cleanup.interval.ms", "1000".to_owned()),
    ];
    let overrides = settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let (config, _) = klamm_config::load(&Sources { overrides, ..Sources::default() })
        .unwrap_or_else(|errors| panic!("the simulation's own settings are wrong: {errors:?}"));
    config
}

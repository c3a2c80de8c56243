//! The page of metrics, in the text format of OpenMetrics, which Prometheus reads.
//!
//! What is counted comes from [`crate::metrics`]; all else is looked up when the page is asked for, so that it
//! costs nothing in between. There is no metric for each topic or partition: a cluster has too many.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use klamm_coordinator::runtime::Loading;
use klamm_metadata::Image;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::api;
use crate::context::Context;
use crate::metrics::DURATION_BOUNDS_US;

/// The whole page.
pub(super) fn exposition(context: &Arc<Context>) -> String {
    let mut registry = Registry::with_prefix("klamm");
    registry.register_collector(Box::new(Node(context.clone())));
    let mut page = String::new();
    text::encode(&mut page, &registry).expect("a string takes all that is written");
    page
}

/// Everything that is known of this node when it is asked.
struct Node(Arc<Context>);

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0.node_id)
    }
}

impl Collector for Node {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer { encoder };
        let image = self.0.image();
        cluster(&mut writer, &image, &self.0)?;
        partitions(&mut writer, &image, &self.0)?;
        logs(&mut writer, &self.0)?;
        coordinators(&mut writer, &self.0)?;
        compaction(&mut writer, &self.0)?;
        requests(&mut writer, &self.0)
    }
}

fn cluster(writer: &mut Writer<'_>, image: &Image, context: &Context) -> fmt::Result {
    let is_controller = image.controller == Some(context.node_id);
    writer.gauge(
        "active_controller",
        "1 on the node whose controller is active",
        i64::from(is_controller),
    )?;
    let registered = image.brokers.len();
    let fenced = image.brokers.values().filter(|broker| broker.fenced).count();
    writer.gauge("brokers", "Registered brokers, fenced ones included", count(registered))?;
    writer.gauge("fenced_brokers", "Registered brokers that may lead nothing", count(fenced))?;
    writer.gauge(
        "metadata_offset",
        "The offset of the cluster's metadata that this node has",
        image.offset,
    )?;
    writer.gauge("topics", "Topics of the cluster", count(image.topics.len()))
}

/// What an operator asks first. Each leader tells of its own partitions, as Kafka's brokers do; partitions that
/// nobody leads are told by all.
fn partitions(writer: &mut Writer<'_>, image: &Image, context: &Context) -> fmt::Result {
    let table = context.partitions.load();
    let (mut led, mut under_replicated, mut at_min, mut under_min) = (0, 0, 0, 0);
    let mut offline = 0;
    for topic in image.topics.values() {
        for (state, index) in topic.partitions.iter().zip(0..) {
            let (state, _) = table.as_told(context.node_id, image, topic, index, state);
            offline += i64::from(state.leader.is_none());
            if state.leader != Some(context.node_id) {
                continue;
            }
            let local = table.topic(topic.id).and_then(|topic| topic.partitions.get(&index));
            let setting = local.map_or(1, |partition| partition.settings().in_sync_replicas_min);
            let min_in_sync = setting.min(state.replicas.len());
            let in_sync = state.isr.len();
            led += 1;
            under_replicated += i64::from(in_sync < state.replicas.len());
            at_min += i64::from(in_sync == min_in_sync);
            under_min += i64::from(in_sync < min_in_sync);
        }
    }
    let here = count(table.partitions().count());
    writer.gauge("partitions", "Partitions of which this node has a replica", here)?;
    writer.gauge("leader_partitions", "Partitions that this node leads", led)?;
    writer.gauge("under_replicated_partitions", "Led here, with replicas out of sync", under_replicated)?;
    writer.gauge("at_min_isr_partitions", "Led here, with just min.insync.replicas in sync", at_min)?;
    writer.gauge("under_min_isr_partitions", "Led here, with fewer in sync", under_min)?;
    let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let (shrinks, expands) = (of(&context.metrics.isr_shrinks), of(&context.metrics.isr_expands));
    writer.counter(
        "isr_shrinks",
        "Changes by this leader after which fewer replicas were in sync",
        shrinks,
    )?;
    writer.counter("isr_expands", "Changes by this leader after which more were", expands)?;
    let (elections, unclean) = context.elections.seen();
    let help = "Partitions that got another leader, as this node has seen it";
    writer.counter("leader_elections", help, elections)?;
    let help = "Those whose new leader may not have had all that was acknowledged";
    writer.counter("unclean_leader_elections", help, unclean)?;
    let lag = table.partitions().map(|partition| partition.follower_lag_max()).max().unwrap_or(0);
    writer.gauge("replica_lag_max", "The most offsets that a follower of a partition led here lacks", lag)?;
    writer.gauge("offline_partitions", "Partitions of the cluster that nobody leads", offline)
}

fn logs(writer: &mut Writer<'_>, context: &Context) -> fmt::Result {
    let logs = context.store.logs();
    let (mut bytes, mut segments, mut offline, mut unsynced) = (0, 0, 0, 0);
    for log in &logs {
        bytes += i64::try_from(log.size()).unwrap_or(i64::MAX);
        segments += count(log.segment_count());
        offline += i64::from(log.failure().is_some());
        unsynced += log.log_end_offset() - log.recovery_point();
    }
    writer.gauge("log_bytes", "Bytes of all segments, without their indexes", bytes)?;
    writer.gauge("log_segments", "Segments", segments)?;
    writer.gauge("offline_logs", "Logs that failed and serve nothing", offline)?;
    let unserved = count(context.partitions.load().offline().count());
    writer.gauge("unserved_partitions", "Partitions of this node that it cannot serve", unserved)?;
    let directories = context.store.directory_statuses();
    let failed = count(directories.iter().filter(|directory| directory.failure.is_some()).count());
    writer.gauge("offline_log_directories", "Log directories that failed", failed)?;
    let recovery = context.store.recovery_status();
    let left = count(recovery.logs - recovery.logs_done);
    writer.gauge("recovering_logs", "Logs that are still checked after an unclean stop", left)?;
    let bytes = i64::try_from(recovery.bytes.saturating_sub(recovery.bytes_done)).unwrap_or(i64::MAX);
    writer.gauge("recovering_bytes", "Bytes of them that are still to be checked", bytes)?;
    writer.gauge("unsynced_records", "Records above their log's recovery point", unsynced)
}

/// What waits for groups and transactions while a coordinator loads.
fn coordinators(writer: &mut Writer<'_>, context: &Context) -> fmt::Result {
    let (groups, transactions) = (context.groups.loading(), context.transactions.loading());
    let both = |of: fn(&Loading) -> usize| count(of(&groups) + of(&transactions));
    let help = "Partitions of groups and transactions that this node serves as coordinator";
    writer.gauge("coordinator_partitions_active", help, both(|loading| loading.active))?;
    let help = "Those that are being loaded; clients are told to come again";
    writer.gauge("coordinator_partitions_loading", help, both(|loading| loading.loading))?;
    let help = "Those that could not be loaded, and are tried again";
    writer.gauge("coordinator_partitions_failed", help, both(|loading| loading.failed))?;
    let bytes = i64::try_from(groups.bytes_left + transactions.bytes_left).unwrap_or(i64::MAX);
    writer.gauge("coordinator_bytes_to_load", "Bytes of their logs that are still to be loaded", bytes)
}

fn compaction(writer: &mut Writer<'_>, context: &Context) -> fmt::Result {
    let status = context.cleaner.status();
    let percent = status.dirty_percent_max.round() as i64;
    let since_last = status.last_run_ms.map_or(-1, |last| (context.clock.now_ms() - last) / 1000);
    writer.counter("compaction_rounds", "Rounds of compaction over a log", status.rounds)?;
    writer.counter("compaction_read_bytes", "Bytes that compaction has read", status.bytes_read)?;
    writer.counter("compaction_written_bytes", "Bytes that compaction has written", status.bytes_written)?;
    writer.counter("compaction_kept_records", "Records that compaction has kept", status.records_kept)?;
    writer.counter(
        "compaction_dropped_records",
        "Records that compaction has removed",
        status.records_dropped,
    )?;
    let milliseconds = u64::try_from(status.total_duration.as_millis()).unwrap_or(u64::MAX);
    writer.counter("compaction_milliseconds", "How long all rounds took together", milliseconds)?;
    writer.gauge("compaction_running", "Logs that are compacted now", count(status.cleaning.len()))?;
    writer.gauge(
        "compaction_dirty_percent_max",
        "The largest share of new bytes of a compacted log",
        percent,
    )?;
    writer.gauge(
        "compaction_seconds_since_last",
        "Since the last round's end; -1 before the first",
        since_last,
    )?;
    let failed = count(status.uncleanable.len());
    writer.gauge("uncleanable_partitions", "Compacted logs that could not be compacted", failed)
}

fn requests(writer: &mut Writer<'_>, context: &Context) -> fmt::Result {
    let metrics = &context.metrics;
    let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    writer.gauge("connections", "Connections of clients that are open", count(context.connections.open()))?;
    writer.counter("received_bytes", "Bytes that clients sent", of(&metrics.received_bytes))?;
    writer.counter("sent_bytes", "Bytes that clients were sent", of(&metrics.sent_bytes))?;
    let malformed = "Connections closed because of what came on them";
    writer.counter("malformed_requests", malformed, of(&metrics.malformed))?;
    let refused = "Connections refused because there were too many";
    writer.counter("refused_connections", refused, of(&metrics.refused_connections))?;
    let help = "How long requests took until their answer was ready, waiting included";
    let mut family =
        writer.encoder.encode_descriptor("request_seconds", help, None, MetricType::Histogram)?;
    for entry in api::TABLE {
        let requests = metrics.requests(entry.key);
        let by_duration = requests.by_duration();
        let total: u64 = by_duration.iter().sum();
        if total == 0 {
            continue;
        }
        let bounds = DURATION_BOUNDS_US.iter().map(|bound| *bound as f64 / 1e6).chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds.zip(by_duration).collect();
        let labels = [("api", entry.key.name())];
        let mut metric = family.encode_family(&labels)?;
        metric.encode_histogram::<NoLabelSet>(requests.total().as_secs_f64(), total, &buckets, None)?;
    }
    Ok(())
}

struct Writer<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Writer<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: i64) -> fmt::Result {
        self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, u64, u64>(&value, None)
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

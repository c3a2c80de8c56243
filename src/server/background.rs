//! What happens without a request: settings are taken over, watermarks are checkpointed, old records are deleted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use klamm_config::{DynamicConfigs, FlushPolicy};
use klamm_metadata::Image;
use klamm_model::{Offset, TopicPartition};
use klamm_storage::LogStore;
use tokio::sync::Notify;

use crate::context::{Context, dynamic_broker_configs};
use crate::limits::Limits;
use crate::partition_table::PartitionTable;
use crate::stop::Stop;

/// Takes over what was set while running.
pub(crate) fn update_config(context: &Context, image: &Image) {
    let (broker, cluster) = dynamic_broker_configs(image, context.node_id);
    let dynamic = DynamicConfigs { broker: Some(&broker), cluster: Some(&cluster) };
    let config = context.static_config.with_dynamic(&dynamic);
    context.store.set_cordoned(cordoned(context, image));
    let (now, rate) = (context.clock.monotonic(), |key| context.broker_setting(image, key)?.parse().ok());
    context.leader_throttle.set_rate(rate("leader.replication.throttled.rate"), now);
    context.follower_throttle.set_rate(rate("follower.replication.throttled.rate"), now);
    // Most images change no setting, and what is said of a wrong one is said once.
    if config != *context.config() {
        let has_other_fetchers = config.num_replica_fetchers != context.config().num_replica_fetchers;
        context.connections.set_limits(Limits::of(&config));
        context
            .store
            .set_recovery_threads(usize::try_from(config.num_recovery_threads_per_data_dir).unwrap_or(1));
        context.store.set_group_commit(config.klamm_flush_policy == FlushPolicy::GroupCommit);
        context.current_config.store(Arc::new(config));
        if has_other_fetchers {
            let table = context.partitions.load();
            context.replica_fetchers.leadership_changed(table.partitions().cloned());
        }
    }
}

/// `cordoned.log.dirs`, as `log.dirs` names the directories; `*` means all (KIP-1066).
fn cordoned(context: &Context, image: &Image) -> Vec<PathBuf> {
    let set = context.broker_setting(image, "cordoned.log.dirs").unwrap_or_default();
    let named: Vec<&str> = set.split(',').map(str::trim).collect();
    let is_named = |dir: &&PathBuf| {
        let absolute = std::path::absolute(dir);
        named.contains(&"*")
            || named.iter().any(|name| {
                Path::new(name) == dir.as_path()
                    || absolute.as_deref().is_ok_and(|dir| Path::new(name) == dir)
            })
    };
    context.static_config.log_dirs.iter().filter(is_named).cloned().collect()
}

/// Serves partitions again whose logs a full disk, or something else that passes, has taken offline.
fn reopen_failed(context: &Context) {
    for partition in context.partitions.load().partitions().filter(|one| one.log().failure().is_some()) {
        let name = partition.topic_partition();
        if let Err(error) = partition.replace_failed_log(|| context.store.reopen(name)) {
            // That it is offline was told; this is the same again.
            tracing::debug!("partition {name} stays offline: {error}");
        }
    }
}

/// The shortest pause between two rounds of maintenance.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Something that is done once in a while.
struct Pace {
    last: Duration,
}

impl Pace {
    /// Whether it is time again; then it counts as done.
    fn is_due(&mut self, now: Duration, every: Duration) -> bool {
        let is_due = now.saturating_sub(self.last) >= every;
        if is_due {
            self.last = now;
        }
        is_due
    }
}

/// Checkpoints watermarks, deletes old records and forgets silent producers, each at its own pace, until `stop`.
pub(crate) async fn maintain(context: Arc<Context>, mut stop: Stop) {
    let begin = context.clock.monotonic();
    let (mut retention, mut expiry) = (Pace { last: begin }, Pace { last: begin });
    let milliseconds = |of: i64| Duration::from_millis(u64::try_from(of).unwrap_or(0).max(1));
    loop {
        let config = context.config();
        let expiry_interval = milliseconds(i64::from(config.producer_id_expiration_check_interval_ms));
        let pause = milliseconds(config.replica_high_watermark_checkpoint_interval_ms);
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = tokio::time::sleep(pause.min(expiry_interval).max(PAUSE_MIN)) => {}
        }
        let now = context.clock.monotonic();
        let retention_is_due = retention.is_due(now, milliseconds(config.log_retention_check_interval_ms));
        let expiry_is_due = expiry.is_due(now, expiry_interval);
        let (threads, context) = (context.threads, context.clone());
        let work = threads.run(move || {
            context.store.check_directories();
            reopen_failed(&context);
            checkpoint(&context.partitions, &context.store);
            let high_watermarks: BTreeMap<TopicPartition, Offset> =
                high_watermarks(&context.partitions).collect();
            let of = |name: &TopicPartition| high_watermarks.get(name).copied();
            let now_ms = context.clock.now_ms();
            if expiry_is_due {
                context.store.expire_producers(now_ms);
            }
            if retention_is_due {
                context.store.run_maintenance(now_ms, &of);
            }
            context.store.flush_due();
        });
        if let Err(error) = work.await {
            tracing::error!("maintenance failed: {error}");
        }
    }
}

/// Removes deleted files and folders when they are due, until `stop`. Where nothing is deleted it sleeps.
pub(crate) async fn remove_deleted(context: Arc<Context>, mut stop: Stop) {
    let changed = Arc::new(Notify::new());
    let notify = changed.clone();
    context.store.on_deletion(move || notify.notify_one());
    loop {
        let left_ms = context.store.next_removal_ms().map(|due| due.saturating_sub(context.clock.now_ms()));
        let left = Duration::from_millis(left_ms.and_then(|left| u64::try_from(left).ok()).unwrap_or(0));
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = changed.notified() => continue,
            () = tokio::time::sleep(left), if left_ms.is_some() => {}
        }
        let (threads, context) = (context.threads, context.clone());
        let work = move || context.store.remove_deleted(context.clock.now_ms());
        if let Err(error) = threads.run(work).await {
            tracing::error!("deleted files were not removed: {error}");
        }
    }
}

/// The high watermarks of all partitions that this node serves.
pub(crate) fn high_watermarks(partitions: &PartitionTable) -> impl Iterator<Item = (TopicPartition, Offset)> {
    let table = partitions.load();
    let all: Vec<_> = table
        .partitions()
        .map(|partition| (partition.topic_partition().clone(), partition.offsets().high_watermark))
        .collect();
    all.into_iter()
}

/// Writes the high watermarks and the store's other checkpoints.
pub(crate) fn checkpoint(partitions: &PartitionTable, store: &LogStore) {
    let high_watermarks: Vec<(TopicPartition, Offset)> = high_watermarks(partitions).collect();
    if let Err(error) = store.checkpoint(&high_watermarks) {
        tracing::error!("checkpoints were not written: {error}");
    }
}

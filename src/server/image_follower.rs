//! This node's partitions follow the cluster's metadata: what changed between two images is opened, led, followed,
//! closed or deleted.

mod making;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use imbl::ordmap::DiffItem;
use klamm_config::{BrokerConfig, CompressionType, TopicConfig};
use klamm_io::Clock;
use klamm_metadata::{ConfigResource, Image, PartitionState, Topic};
use klamm_model::{LeaderEpoch, NodeId, TopicId, TopicPartition, topic_name};
use klamm_partition::{ActiveBrokers, Leadership, Partition, PartitionSettings};
use klamm_records::Compression;
use klamm_storage::{CleanupPolicy, Log, LogConfig, LogStore, StorageError, StorageErrorKind};
use tokio::sync::{Notify, watch};

use crate::background::update_config;
use crate::context::{Context, dynamic_broker_configs, topic_config};
use crate::coordinators::Coordinators;
use crate::elections::{Changes, Elections};
use crate::partition_table::{LocalTopic, PartitionTable, Table};
use crate::planted::planted;
use crate::replica_fetcher::ReplicaFetchers;
use crate::stop::Stop;

use making::{Opened, Unmade};

/// Up to which metadata offset this node's partitions have followed.
pub(crate) struct Applied {
    offset: watch::Receiver<i64>,
}

impl Applied {
    /// Returns when this node has followed the metadata up to `offset`, or when time is up.
    pub(crate) async fn wait_for(&self, offset: i64, timeout: Duration) {
        let mut applied = self.offset.clone();
        let _ = tokio::time::timeout(timeout, applied.wait_for(|applied| *applied >= offset)).await;
    }
}

/// Who is told what the metadata says of this node's partitions.
pub(crate) struct Followed {
    pub(crate) partitions: Arc<PartitionTable>,
    pub(crate) coordinators: Coordinators,
    pub(crate) replica_fetchers: Arc<ReplicaFetchers>,
    pub(crate) active_brokers: Arc<ActiveBrokers>,
    pub(crate) elections: Arc<Elections>,
}

/// Makes this node's partitions follow images.
pub(crate) struct Follower {
    pub(crate) node_id: NodeId,
    pub(crate) static_config: Arc<BrokerConfig>,
    pub(crate) store: Arc<LogStore>,
    followed: Followed,
    pub(crate) clock: Arc<dyn Clock>,
    /// Whether a log that belongs to no topic of the cluster may be deleted; see `strays`.
    pub(crate) deletes_strays: bool,
    applied: watch::Sender<i64>,
    last: Option<Arc<Image>>,
    /// Partitions that could not be opened or led, and why (nothing while the log is being recovered). They are
    /// tried again.
    unopened: BTreeMap<(TopicId, i32), String>,
    /// Those that were made while this node ran, and are to be made here. Others may lie in a log directory that
    /// cannot be used.
    new: BTreeSet<(TopicId, i32)>,
    /// Those whose logs are made with the next steps.
    unmade: Unmade,
    /// Woken when a log directory goes offline.
    pub(crate) directory_failed: Arc<Notify>,
    /// When they were tried last, by the monotonic clock; nothing if they are to be tried at once.
    tried: Option<Duration>,
    /// Told when the log of a partition was recovered, so that it can be opened.
    pub(crate) recovered: Arc<Notify>,
}

/// What came of it that the partitions followed the metadata: what others are told when the table is in force.
#[derive(Default)]
struct News {
    /// Partitions that are on other nodes now, to be deleted here.
    left: Vec<Arc<Partition>>,
    /// Partitions of the coordinators whose leadership may have changed.
    of_coordinators: Vec<Arc<Partition>>,
    /// Partitions that may have another leader.
    of_leaders: Vec<Arc<Partition>>,
}

/// A topic of which something may have to be done.
struct Seen<'a> {
    topic: &'a Topic,
    /// What it was when it was followed last; nothing if all of it is to be looked at.
    before: Option<&'a Topic>,
    config: TopicConfig,
}

fn key_of<'a, K, V>(item: &DiffItem<'a, 'a, K, V>) -> &'a K {
    match item {
        DiffItem::Add(key, _) | DiffItem::Update { new: (key, _), .. } | DiffItem::Remove(key, _) => key,
    }
}

/// What a partition is told that is never served here again: nobody leads it, and no later news changes that.
fn nobody() -> Leadership {
    Leadership {
        leader: None,
        leader_epoch: LeaderEpoch(i32::MAX),
        partition_epoch: i32::MAX,
        replicas: Vec::new(),
        isr: Vec::new(),
        lost: Vec::new(),
    }
}

/// How long a partition that could not be opened waits until it is tried again.
const RETRY_EVERY: Duration = Duration::from_secs(1);

impl Follower {
    pub(crate) fn new(
        node_id: NodeId,
        static_config: Arc<BrokerConfig>,
        store: Arc<LogStore>,
        followed: Followed,
        clock: Arc<dyn Clock>,
        deletes_strays: bool,
    ) -> (Follower, Applied) {
        let (applied, offset) = watch::channel(-1);
        let follower = Follower {
            node_id,
            static_config,
            store,
            followed,
            clock,
            deletes_strays,
            applied,
            last: None,
            unopened: BTreeMap::new(),
            new: BTreeSet::new(),
            unmade: Unmade::new(),
            directory_failed: Arc::default(),
            tried: None,
            recovered: Arc::default(),
        };
        (follower, Applied { offset })
    }

    /// Opens, leads, follows, closes and deletes what changed between the last image and this one, and tries
    /// again what could not be opened. Works on the disk, so it runs where it may block. Of very many new logs some are
    /// left for the next call ([`Follower::is_behind`]).
    pub(crate) fn apply(&mut self, image: &Arc<Image>) {
        let now = self.clock.monotonic();
        let retry_is_due = self.tried.is_none_or(|tried| now.saturating_sub(tried) >= RETRY_EVERY);
        if retry_is_due {
            self.tried = Some(now);
        }
        let last = self.last.replace(image.clone());
        let brokers = image.brokers.values().filter(|broker| broker.is_active());
        self.followed.active_brokers.replace(brokers.map(|broker| (broker.id, broker.epoch)).collect());
        let mut table: Table = (**self.followed.partitions.load()).clone();
        let mut news = News::default();
        if let Some(last) = &last {
            self.delete_topics(&mut table, last, image, &mut news);
        }
        let seen = self.look_at(last.as_deref(), image, retry_is_due);
        let mut opened = self.open_logs(&table, &seen, image.offset);
        for seen in &seen {
            self.follow_topic(&mut table, seen, &mut opened, &mut news);
        }
        let left = std::mem::take(&mut news.left);
        self.delete_partitions(&left, &mut news);
        self.note_offline(&mut table);
        let brokers_changed = last.as_ref().is_none_or(|last| !last.brokers.ptr_eq(&image.brokers));
        if brokers_changed {
            table.partitions().for_each(|partition| partition.reconsider_high_watermark());
        }
        self.followed.partitions.replace(table);
        // Coordinators look their partitions up in the table, so they hear of them after it was replaced.
        news.of_coordinators.iter().for_each(|partition| self.followed.coordinators.on_leadership(partition));
        self.followed.replica_fetchers.leadership_changed(news.of_leaders);
        self.applied.send_replace(self.followed_up_to(image.offset));
    }

    /// The topics of which something may have to be done, and what they were before.
    fn look_at<'a>(
        &mut self,
        last: Option<&'a Image>,
        image: &'a Image,
        retry_is_due: bool,
    ) -> Vec<Seen<'a>> {
        let (mut seen, mut changes) = (Vec::new(), Changes::default());
        for id in self.to_look_at(last, image, retry_is_due) {
            let Some(topic) = image.topic(id) else { continue };
            let before = last.and_then(|last| last.topic(id)).map(|topic| &**topic);
            if let Some(before) = before {
                self.followed.elections.count(before, topic, &mut changes);
            }
            if last.is_some() {
                let known = before.map_or(0, |before| before.partitions.len());
                let new = known..topic.partitions.len();
                self.new.extend(new.filter_map(|index| Some((id, i32::try_from(index).ok()?))));
            }
            let config = topic_config(image, &topic.name, self.node_id, &self.static_config);
            let is_configured = last.is_some_and(|last| !self.has_other_config(last, image, &topic.name));
            seen.push(Seen { topic, before: before.filter(|_| is_configured), config });
        }
        changes.tell();
        seen
    }

    /// The topics of which something may have to be done: those that changed, and those of which some partition is not
    /// open. Of images that follow each other nearly all is shared, so that little is compared.
    fn to_look_at(&self, last: Option<&Image>, image: &Image, retry_is_due: bool) -> BTreeSet<TopicId> {
        let Some(last) = last.filter(|last| !self.have_brokers_other_configs(last, image)) else {
            return image.topics.keys().copied().collect();
        };
        let mut found: BTreeSet<TopicId> =
            last.topics.diff(&image.topics).map(|item| *key_of(&item)).collect();
        for item in last.configs.diff(&image.configs) {
            if let ConfigResource::Topic(name) = key_of(&item) {
                found.extend(image.topic_by_name(name).map(|topic| topic.id));
            }
        }
        if retry_is_due {
            found.extend(self.unopened.keys().map(|(topic, _)| *topic));
        }
        found.extend(self.unmade.keys().map(|(topic, _)| *topic));
        if planted!(OverlookTopic) {
            // As a comparison of maps that passes over an entry where two of its nodes meet.
            let borders: BTreeSet<TopicId> = image.topics.keys().copied().skip(31).step_by(32).collect();
            found.retain(|topic| !borders.contains(topic));
        }
        found
    }

    fn have_brokers_other_configs(&self, last: &Image, image: &Image) -> bool {
        dynamic_broker_configs(last, self.node_id) != dynamic_broker_configs(image, self.node_id)
    }

    fn has_other_config(&self, last: &Image, image: &Image, topic: &str) -> bool {
        self.have_brokers_other_configs(last, image) || last.topic_config(topic) != image.topic_config(topic)
    }

    fn delete_topics(&mut self, table: &mut Table, last: &Image, image: &Image, news: &mut News) {
        let gone: Vec<Arc<Topic>> = last
            .topics
            .diff(&image.topics)
            .filter_map(|item| if let DiffItem::Remove(_, topic) = item { Some(topic.clone()) } else { None })
            .collect();
        let partitions = gone.iter().flat_map(|topic| self.delete_topic(table, topic)).collect::<Vec<_>>();
        self.delete_partitions(&partitions, news);
        if !gone.is_empty() {
            let names: Vec<String> = gone.iter().map(|topic| topic.name.to_string()).collect();
            self.followed.coordinators.groups.on_topics_deleted(&names);
        }
    }

    /// Finds the partitions whose log directory went offline. Their groups move on when they are led again.
    fn note_offline(&self, table: &mut Table) {
        let is_offline = |partition: &Arc<Partition>| !partition.log().is_directory_online();
        let failed: Vec<(TopicId, i32)> = table
            .partitions()
            .filter(|partition| is_offline(partition))
            .map(|partition| (partition.topic_id(), partition.topic_partition().partition))
            .collect();
        for (id, index) in failed {
            let Some(local) = table.topic(id).filter(|local| !local.offline.contains(&index)) else {
                continue;
            };
            let mut local = (**local).clone();
            self.followed.coordinators.on_resigned(&local.name, index);
            local.offline.insert(index);
            table.put(local);
        }
    }

    /// Takes a topic out of the table, and returns the partitions that are to be deleted.
    fn delete_topic(&mut self, table: &mut Table, topic: &Topic) -> Vec<Arc<Partition>> {
        self.delete_unopened(topic);
        self.new.retain(|(id, _)| *id != topic.id);
        // Those whose logs are still being recovered are not in the table.
        for (_, index) in topic.partitions.iter().zip(0..) {
            self.followed.coordinators.on_resigned(&topic.name, index);
        }
        let Some(local) = table.topic(topic.id).cloned() else {
            return Vec::new();
        };
        table.remove(topic.id);
        local.partitions.values().cloned().collect()
    }

    /// Serves partitions no longer, and deletes their logs.
    fn delete_partitions(&self, partitions: &[Arc<Partition>], news: &mut News) {
        for partition in partitions {
            partition.become_follower(&nobody());
            news.of_leaders.push(partition.clone());
        }
        if planted!(KeepRecreatedLog) {
            return;
        }
        let names: Vec<TopicPartition> =
            partitions.iter().map(|partition| partition.topic_partition().clone()).collect();
        for (name, deleted) in names.iter().zip(self.store.delete_all(&names)) {
            if let Err(error) = deleted {
                tracing::error!("partition {name} was not deleted: {error}");
            }
        }
    }

    /// Leads and follows nothing any more: another process has this one's place in the cluster, or none has.
    fn resign(&self) {
        let table = self.followed.partitions.load();
        for partition in table.partitions() {
            partition.become_follower(&nobody());
            let name = partition.topic_partition();
            self.followed.coordinators.on_resigned(&name.topic, name.partition);
        }
        self.followed.replica_fetchers.leadership_changed(table.partitions().cloned());
    }

    /// Deletes what is there of a topic's partitions that could not be opened.
    fn delete_unopened(&mut self, topic: &Topic) {
        let kept = self.unopened.split_off(&(topic.id, i32::MIN));
        for (key, failure) in kept {
            if key.0 != topic.id {
                self.unopened.insert(key, failure);
                continue;
            }
            let name = TopicPartition::new(topic.name.clone(), key.1);
            // A log of another topic of this name may be in the way, and is none of this topic's.
            if self.is_of(&name, topic.id)
                && let Err(error) = self.store.delete(&name)
            {
                tracing::error!("partition {name} was not deleted: {error}");
            }
        }
    }

    /// Whether what is there of a partition belongs to the topic, as far as that can be told.
    fn is_of(&self, name: &TopicPartition, topic: TopicId) -> bool {
        match self.store.get(name) {
            Some(log) => log.topic_id() == Some(topic),
            None => {
                let unchecked = self.store.unchecked().into_iter();
                let unchecked = unchecked.filter(|unchecked| unchecked.topic_partition == *name);
                unchecked.filter_map(|unchecked| unchecked.topic_id).all(|found| found == topic)
            }
        }
    }

    /// Follows what changed of a topic.
    fn follow_topic(&mut self, table: &mut Table, seen: &Seen<'_>, opened: &mut Opened, news: &mut News) {
        let topic = seen.topic;
        let mut local = table.topic(topic.id).map_or_else(
            || LocalTopic {
                name: topic.name.clone(),
                id: topic.id,
                partitions: imbl::OrdMap::new(),
                offline: imbl::OrdSet::new(),
            },
            |local| (**local).clone(),
        );
        for (state, index) in topic.partitions.iter().zip(0..) {
            let opened = opened.remove(&(topic.id, index));
            let is_left = self.unmade.contains_key(&(topic.id, index));
            if is_left || (opened.is_none() && self.is_as_before(seen, index)) {
                continue;
            }
            if !state.replicas.contains(&self.node_id) {
                self.leave_partition(&mut local, topic, index, news);
                continue;
            }
            let name = TopicPartition::new(topic.name.clone(), index);
            match self.follow_partition(local.partitions.get(&index), &name, seen, state, opened) {
                Ok(partition) => {
                    if Coordinators::own(&topic.name) {
                        news.of_coordinators.push(partition.clone());
                    }
                    news.of_leaders.push(partition.clone());
                    local.partitions.insert(index, partition);
                    local.offline.remove(&index);
                    self.new.remove(&(topic.id, index));
                    if self.unopened.remove(&(topic.id, index)).is_some_and(|failure| !failure.is_empty()) {
                        tracing::info!("partition {name} could be opened now, and is served");
                    }
                }
                Err(error) => {
                    let is_recovering = error.kind == StorageErrorKind::Recovering;
                    if is_recovering && state.leader == Some(self.node_id) {
                        self.followed.coordinators.on_recovering(&topic.name, index);
                    } else {
                        // Its coordinator may have been told to wait for the recovery, which has failed since, or is
                        // of a follower now.
                        self.followed.coordinators.on_resigned(&topic.name, index);
                    }
                    if !is_recovering {
                        local.offline.insert(index);
                    }
                    self.note_unopened(topic.id, &name, &error);
                }
            }
        }
        if local.partitions.is_empty() && local.offline.is_empty() {
            table.remove(topic.id);
        } else {
            table.put(local);
        }
    }

    /// Gives a replica up that was moved to other nodes.
    fn leave_partition(&mut self, local: &mut LocalTopic, topic: &Topic, index: i32, news: &mut News) {
        self.new.remove(&(topic.id, index));
        local.offline.remove(&index);
        let name = TopicPartition::new(topic.name.clone(), index);
        self.followed.coordinators.on_resigned(&topic.name, index);
        if let Some(partition) = local.partitions.remove(&index) {
            tracing::info!("partition {name} is on other nodes now, and its log here is deleted");
            news.left.push(partition);
        } else if self.unopened.remove(&(topic.id, index)).is_some()
            && self.is_of(&name, topic.id)
            && let Err(error) = self.store.delete(&name)
        {
            tracing::error!("partition {name} was not deleted: {error}");
        }
    }

    /// Keeps a partition to be tried again. The log hears of it once, and when the reason changes.
    fn note_unopened(&mut self, topic: TopicId, name: &TopicPartition, error: &StorageError) {
        let known = self.unopened.entry((topic, name.partition)).or_default();
        if error.kind == StorageErrorKind::Recovering {
            // Recovery itself tells how far it is.
            known.clear();
            return;
        }
        let failure = error.to_string();
        if *known != failure {
            tracing::error!("partition {name} is not served, and is tried again: {failure}");
            *known = failure;
        }
    }

    fn follow_partition(
        &self,
        known: Option<&Arc<Partition>>,
        name: &TopicPartition,
        seen: &Seen<'_>,
        state: &PartitionState,
        opened: Option<Result<Arc<Log>, StorageError>>,
    ) -> Result<Arc<Partition>, StorageError> {
        let Seen { topic, config, .. } = seen;
        let (node, index) = (self.node_id, name.partition);
        let settings = PartitionSettings {
            is_throttled_as_leader: config.leader_throttled.holds(index, node),
            is_throttled_as_follower: config.follower_throttled.holds(index, node),
            ..partition_settings(&topic.name, config, &self.static_config)
        };
        let partition = match known {
            Some(partition) => {
                partition.update_settings(settings);
                partition.log().update_config(log_config(config));
                partition.clone()
            }
            None => {
                let log = opened.expect("a log was opened for each partition that has none")?;
                let high_watermark = self.store.high_watermark(name).unwrap_or(0);
                let clock = self.clock.clone();
                let partition = Partition::new(topic.id, self.node_id, log, high_watermark, settings, clock)
                    .with_brokers(self.followed.active_brokers.clone());
                // A move that the stop has interrupted goes on.
                partition.set_future(self.store.future(name));
                Arc::new(partition)
            }
        };
        let leadership = Leadership {
            leader: state.leader,
            leader_epoch: state.leader_epoch,
            partition_epoch: state.partition_epoch,
            replicas: state.replicas.clone(),
            isr: state.isr.clone(),
            lost: state.lost_replicas().collect(),
        };
        if state.leader == Some(self.node_id) {
            partition.become_leader(&leadership)?;
        } else {
            partition.become_follower(&leadership);
        }
        Ok(partition)
    }
}

/// Follows images until the sender of `stop` says so. If it has to end before that, `failure` is told why: one whose
/// registration has ended must lead nothing, also where it hears no more of the metadata, and a broker whose partitions
/// no longer follow the metadata would answer wrongly for ever.
pub(crate) async fn follow_images(
    mut follower: Follower,
    context: Arc<Context>,
    mut images: watch::Receiver<Arc<Image>>,
    mut stop: Stop,
    failure: watch::Sender<Option<String>>,
) {
    let recovered = follower.recovered.clone();
    let directory_failed = follower.directory_failed.clone();
    let mut lost = context.registration_lost.subscribe();
    loop {
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = std::future::ready(()), if follower.is_behind() => {}
            changed = images.changed() => if changed.is_err() {
                failure.send_replace(Some("this node's part of the quorum has ended".to_owned()));
                return;
            },
            () = async { drop(lost.wait_for(Option::is_some).await) } => {}
            () = recovered.notified() => follower.tried = None,
            () = directory_failed.notified() => {}
            () = tokio::time::sleep(RETRY_EVERY), if !follower.unopened.is_empty() => {}
        }
        let image = images.borrow_and_update().clone();
        if let Some(why) = context.why_lost(&image) {
            follower.resign();
            failure.send_replace(Some(why));
            return;
        }
        update_config(&context, &image);
        let work = context.threads.run(move || {
            follower.apply(&image);
            follower
        });
        match work.await {
            Ok(back) => follower = back,
            Err(error) => {
                failure.send_replace(Some(format!("this node's partitions do not follow it: {error}")));
                return;
            }
        }
    }
}

/// What a topic's configs mean to its log.
pub(crate) fn log_config(config: &TopicConfig) -> LogConfig {
    let unsigned = |value: i32| u64::try_from(value).unwrap_or(0);
    LogConfig {
        segment_bytes: unsigned(config.segment_bytes),
        segment_ms: config.segment_ms,
        segment_jitter_ms: config.segment_jitter_ms,
        segment_index_bytes: unsigned(config.segment_index_bytes),
        index_interval_bytes: unsigned(config.index_interval_bytes),
        retention_ms: config.retention_ms,
        retention_bytes: config.retention_bytes.and_then(|bytes| u64::try_from(bytes).ok()),
        file_delete_delay_ms: config.file_delete_delay_ms,
        cleanup: CleanupPolicy {
            delete: config.cleanup_policy.delete,
            compact: config.cleanup_policy.compact,
        },
        delete_retention_ms: config.delete_retention_ms,
        min_compaction_lag_ms: config.min_compaction_lag_ms,
        max_compaction_lag_ms: config.max_compaction_lag_ms,
        min_cleanable_dirty_ratio: config.min_cleanable_dirty_ratio,
        flush_messages: u64::try_from(config.flush_messages).unwrap_or(u64::MAX),
        flush_ms: (config.flush_ms != i64::MAX).then_some(config.flush_ms),
        preallocate: config.preallocate,
        max_message_bytes: unsigned(config.max_message_bytes),
    }
}

fn partition_settings(topic: &str, config: &TopicConfig, broker: &BrokerConfig) -> PartitionSettings {
    let (compression, compression_level) = match config.compression_type {
        CompressionType::Producer => (None, None),
        CompressionType::Uncompressed => (Some(Compression::None), None),
        CompressionType::Gzip => (Some(Compression::Gzip), Some(config.compression_gzip_level)),
        CompressionType::Snappy => (Some(Compression::Snappy), None),
        CompressionType::Lz4 => (Some(Compression::Lz4), Some(config.compression_lz4_level)),
        CompressionType::Zstd => (Some(Compression::Zstd), Some(config.compression_zstd_level)),
    };
    PartitionSettings {
        // What coordinators write needs V2: producers' ids, control batches.
        target_magic: if topic_name::is_internal(topic) { 2 } else { config.message_format_magic },
        timestamp_type: config.message_timestamp_type,
        timestamp_before_max_ms: config.message_timestamp_before_max_ms,
        timestamp_after_max_ms: config.message_timestamp_after_max_ms,
        batch_bytes_max: usize::try_from(config.max_message_bytes).unwrap_or(0),
        is_compacted: config.cleanup_policy.compact,
        compression,
        compression_level,
        expanded_bytes_max: usize::try_from(config.max_decompressed_message_bytes).unwrap_or(0),
        in_sync_replicas_min: usize::try_from(config.min_insync_replicas).unwrap_or(1),
        replica_lag_max_ms: u64::try_from(broker.replica_lag_time_max_ms).unwrap_or(u64::MAX),
        ..PartitionSettings::default()
    }
}

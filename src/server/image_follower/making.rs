//! Opening the logs of partitions that this node has not served yet, and making those that are new. They are made side by
//! side, since each waits for the disk. Of very many so many are made at once; then what else the metadata says comes
//! first, so that no other partition waits for its leader until all of a large topic's logs are made.

use std::collections::BTreeMap;
use std::sync::Arc;

use klamm_metadata::PartitionState;
use klamm_model::{TopicId, TopicPartition};
use klamm_storage::{Log, Past, StorageError, StorageErrorKind, Wanted};

use super::{Follower, Seen, log_config};
use crate::partition_table::Table;
use crate::planted::planted;

/// How many logs are made before the metadata is looked at again.
const MADE_AT_ONCE_MAX: usize = 256;

/// What became of the logs that were needed.
pub(super) type Opened = BTreeMap<(TopicId, i32), Result<Arc<Log>, StorageError>>;

/// Partitions whose logs are not made yet, and the offset of the metadata that first wanted them.
pub(super) type Unmade = BTreeMap<(TopicId, i32), i64>;

/// A log that is needed, and since which offset of the metadata.
struct Needed {
    since: i64,
    key: (TopicId, i32),
    wanted: Wanted,
}

impl Follower {
    /// Whether logs are still to be made.
    pub(super) fn is_behind(&self) -> bool {
        !self.unmade.is_empty()
    }

    /// Up to which offset all of the metadata was followed, now that an image with this one was.
    pub(super) fn followed_up_to(&self, offset: i64) -> i64 {
        self.unmade.values().map(|since| since - 1).min().unwrap_or(offset)
    }

    /// Whether nothing changed of a partition, and nothing of it is left to be done.
    pub(super) fn is_as_before(&self, seen: &Seen<'_>, index: i32) -> bool {
        let key = (seen.topic.id, index);
        let is_same =
            seen.before.is_some_and(|before| before.partition(index) == seen.topic.partition(index));
        is_same && !self.unopened.contains_key(&key) && !self.unmade.contains_key(&key)
    }

    /// Opens the logs of partitions that are not in the table, and makes those that are not there; what is too much at
    /// once is left for later.
    pub(super) fn open_logs(&mut self, table: &Table, seen: &[Seen<'_>], offset: i64) -> Opened {
        let mut needed: Vec<Needed> = seen.iter().flat_map(|seen| self.needed(table, seen, offset)).collect();
        needed.sort_by_key(|needed| (needed.since, needed.key));
        let (mut new, mut unmade) = (0, Unmade::new());
        needed.retain(|Needed { since, key, wanted }| {
            if self.is_new(*key, &wanted.topic_partition) {
                new += 1;
                if new > MADE_AT_ONCE_MAX {
                    unmade.insert(*key, *since);
                    return false;
                }
            }
            true
        });
        self.unmade = unmade;
        let opened = self.store.open_or_make_all(needed.iter().map(|needed| needed.wanted.clone()).collect());
        let opened = needed.into_iter().zip(opened);
        opened.map(|(needed, opened)| (needed.key, self.make_room(needed.wanted, opened))).collect()
    }

    fn needed(&self, table: &Table, seen: &Seen<'_>, offset: i64) -> Vec<Needed> {
        let topic = seen.topic;
        let known = table.topic(topic.id);
        let is_known = |index: i32| known.is_some_and(|local| local.partitions.contains_key(&index));
        let here = topic.partitions.iter().zip(0..).filter(|(state, index)| {
            state.replicas.contains(&self.node_id) && !is_known(*index) && !self.is_as_before(seen, *index)
        });
        here.map(|(state, index)| {
            let key = (topic.id, index);
            let since = self.unmade.get(&key).copied().unwrap_or(offset);
            Needed { since, key, wanted: self.wanted(seen, state, index) }
        })
        .collect()
    }

    fn wanted(&self, seen: &Seen<'_>, state: &PartitionState, index: i32) -> Wanted {
        let topic = seen.topic;
        // In the place of a disk that was replaced, a follower begins anew: the leader has everything.
        let has_other_leader = state.leader.is_some_and(|leader| leader != self.node_id);
        let begins_anew = has_other_leader && self.store.are_directories_online();
        let is_new = begins_anew || self.new.contains(&(topic.id, index));
        Wanted {
            topic_partition: TopicPartition::new(topic.name.clone(), index),
            topic_id: topic.id,
            config: log_config(&seen.config),
            past: if is_new { Past::None } else { Past::Unknown },
        }
    }

    /// Whether a log must be made, as far as is known. What could not be opened before is tried again with all others.
    fn is_new(&self, key: (TopicId, i32), name: &TopicPartition) -> bool {
        let is_there = self.store.get(name).is_some() || self.store.failure_of(name).is_some();
        !is_there && !self.unopened.contains_key(&key)
    }

    /// What was opened. A log that an earlier topic of the same name left behind makes room: topic ids decide, and that
    /// topic was deleted.
    fn make_room(
        &self,
        wanted: Wanted,
        opened: Result<Arc<Log>, StorageError>,
    ) -> Result<Arc<Log>, StorageError> {
        match opened {
            Err(error) if planted!(KeepRecreatedLog) => self.store.get(&wanted.topic_partition).ok_or(error),
            Err(error)
                if self.deletes_strays
                    && matches!(error.kind, StorageErrorKind::InconsistentTopicId { .. }) =>
            {
                tracing::warn!("{error}; that topic was deleted, and so is its log");
                self.store.delete(&wanted.topic_partition)?;
                self.store.open_or_make(wanted)
            }
            opened => opened,
        }
    }
}

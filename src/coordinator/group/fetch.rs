//! OffsetFetch for one group.

use std::sync::Arc;

use klamm_model::ErrorCode;
use klamm_protocol::messages::offset_fetch::{
    OffsetFetchRequestTopics, OffsetFetchResponseGroup, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
};

use super::GroupShard;
use super::classic::Group;
use super::message::Fetch;
use super::offsets::CommittedOffset;

impl GroupShard {
    pub(super) fn fetch(&self, fetch: Fetch) -> OffsetFetchResponseGroup {
        let group = self.groups.get(&*fetch.group.group_id);
        let topics = match &fetch.group.topics {
            Some(topics) => {
                topics.iter().map(|topic| self.fetch_topic(group, topic, fetch.require_stable)).collect()
            }
            None => group.map_or_else(Vec::new, |group| self.fetch_all(group, &fetch)),
        };
        OffsetFetchResponseGroup { group_id: fetch.group.group_id, topics, ..Default::default() }
    }

    fn fetch_topic(
        &self,
        group: Option<&Group>,
        topic: &OffsetFetchRequestTopics,
        require_stable: bool,
    ) -> OffsetFetchResponseTopics {
        let name = self.topics.get(&*topic.name);
        let answers = topic.partition_indexes.iter().map(|&partition| {
            let (Some(group), Some(name)) = (group, name) else {
                return no_offset(partition, ErrorCode::None);
            };
            let found = self.offsets.get(&group.id, name, partition);
            let found = found.filter(|offset| !offset.is_of_another_topic(topic.topic_id));
            self.answer(group, name, partition, found, require_stable)
        });
        OffsetFetchResponseTopics {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partitions: answers.collect(),
        }
    }

    /// All that the group committed for topics that exist. A topic that was deleted, and perhaps made again,
    /// may have left offsets behind: its consumers would skip the records of the new one.
    fn fetch_all(&self, group: &Group, fetch: &Fetch) -> Vec<OffsetFetchResponseTopics> {
        let mut topics = Vec::new();
        for (name, partitions) in self.offsets.of_group(&group.id) {
            let Some(&topic_id) = fetch.image.topic_ids.get(name) else { continue };
            let current = partitions.filter(|(_, offset)| !offset.is_of_another_topic(topic_id));
            let answers = current.map(|(partition, offset)| {
                self.answer(group, name, partition, Some(offset), fetch.require_stable)
            });
            let partitions: Vec<_> = answers.collect();
            if !partitions.is_empty() {
                topics.push(OffsetFetchResponseTopics { name: name.to_string(), topic_id, partitions });
            }
        }
        topics
    }

    fn answer(
        &self,
        group: &Group,
        topic: &Arc<str>,
        partition: i32,
        found: Option<&CommittedOffset>,
        require_stable: bool,
    ) -> OffsetFetchResponsePartitions {
        if require_stable && self.pending.contains(&group.id, topic, partition) {
            return no_offset(partition, ErrorCode::UnstableOffsetCommit);
        }
        match found {
            None => no_offset(partition, ErrorCode::None),
            Some(found) => OffsetFetchResponsePartitions {
                partition_index: partition,
                committed_offset: found.offset,
                committed_leader_epoch: found.leader_epoch,
                metadata: Some(found.metadata.clone()),
                error_code: ErrorCode::None.code(),
            },
        }
    }
}

/// The answer where there is no offset to tell.
pub(crate) fn no_offset(partition: i32, error: ErrorCode) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions {
        partition_index: partition,
        committed_offset: -1,
        committed_leader_epoch: -1,
        metadata: Some(String::new()),
        error_code: error.code(),
    }
}

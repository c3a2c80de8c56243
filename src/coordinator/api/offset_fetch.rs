//! OffsetFetch: one group up to version 7, several from version 8 on; topics by id from version 10 on.

use std::time::Duration;

use klamm_metadata::Image;
use klamm_model::{ErrorCode, Uuid};
use klamm_protocol::messages::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics, OffsetFetchResponse,
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};

use super::error_of;
use super::repeats::Repeats;
use crate::coordinator::{Client, GroupCoordinator};
use crate::group::{Fetch, Reply, Request};
use crate::partition_of;

const FIRST_VERSION_WITH_GROUP_ERROR: i16 = 2;
const FIRST_VERSION_WITH_GROUPS: i16 = 8;
const FIRST_VERSION_WITH_IDS: i16 = 10;

impl GroupCoordinator {
    /// OffsetFetch. A partition without a commit is answered with offset -1.
    ///
    /// A coordinator that may have a successor answers COORDINATOR_NOT_AVAILABLE, so that no offset goes back.
    pub async fn offset_fetch(&self, client: &Client, request: OffsetFetchRequest) -> OffsetFetchResponse {
        let version = client.api_version;
        let asked_at = self.mailboxes.clock.monotonic();
        if version >= FIRST_VERSION_WITH_GROUPS {
            let mut response = OffsetFetchResponse::default();
            let mut repeats = Repeats::default();
            for group in request.groups {
                let group_id = group.group_id.clone();
                let fetched = self.fetch_group(version, group, request.require_stable, asked_at);
                response.groups.extend(repeats.answer(group_id, fetched, bytes_of).await);
            }
            return response;
        }
        let asked: Option<Vec<OffsetFetchRequestTopics>> = request.topics.map(|topics| {
            let topic = |topic: klamm_protocol::messages::offset_fetch::OffsetFetchRequestTopic| {
                OffsetFetchRequestTopics {
                    name: topic.name,
                    topic_id: Uuid::ZERO,
                    partition_indexes: topic.partition_indexes,
                }
            };
            topics.into_iter().map(topic).collect()
        });
        let group_id = request.group_id;
        let group = OffsetFetchRequestGroup { group_id, topics: asked.clone(), ..Default::default() };
        let fetched = self.fetch_group(version, group, request.require_stable, asked_at).await;
        to_single(version, fetched, asked.unwrap_or_default())
    }

    async fn fetch_group(
        &self,
        version: i16,
        mut group: OffsetFetchRequestGroup,
        require_stable: bool,
        asked_at: Duration,
    ) -> OffsetFetchResponseGroup {
        let image = self.env.image();
        let by_id = version >= FIRST_VERSION_WITH_IDS;
        let mut refused = Vec::new();
        if let Some(topics) = &mut group.topics {
            refused = resolve(&image, by_id, topics);
        }
        let group_id = group.group_id.clone();
        let fetch = Fetch { group, require_stable, image };
        let mut fetched = match self.ask(&group_id, Request::Fetch(fetch)).await {
            Reply::Fetch(fetched) => fetched,
            other => {
                let error_code = error_of(&other).code();
                return OffsetFetchResponseGroup { group_id, error_code, ..Default::default() };
            }
        };
        let index = partition_of(&group_id, self.env.offsets_partition_count());
        if !self.env.led_alone(index, asked_at).await {
            let error_code = ErrorCode::CoordinatorNotAvailable.code();
            return OffsetFetchResponseGroup { group_id, error_code, ..Default::default() };
        }
        fetched.topics.extend(refused);
        fetched
    }
}

fn bytes_of(group: &OffsetFetchResponseGroup) -> usize {
    let partition = |partition: &OffsetFetchResponsePartitions| {
        size_of::<OffsetFetchResponsePartitions>() + partition.metadata.as_ref().map_or(0, String::len)
    };
    let topic = |topic: &OffsetFetchResponseTopics| {
        let partitions = topic.partitions.iter().map(partition).sum::<usize>();
        size_of::<OffsetFetchResponseTopics>() + topic.name.len() + partitions
    };
    let topics = group.topics.iter().map(topic).sum::<usize>();
    size_of::<OffsetFetchResponseGroup>() + group.group_id.len() + topics
}

/// Gives topics that exist their name and id, and takes out ids that no topic has.
fn resolve(
    image: &Image,
    by_id: bool,
    topics: &mut Vec<OffsetFetchRequestTopics>,
) -> Vec<OffsetFetchResponseTopics> {
    let mut refused = Vec::new();
    topics.retain_mut(|topic| {
        if !by_id {
            topic.topic_id = image.topic_by_name(&topic.name).map_or(Uuid::ZERO, |known| known.id);
            return true;
        }
        match image.topic(topic.topic_id) {
            Some(known) => {
                topic.name = known.name.to_string();
                true
            }
            None => {
                let none = |&partition: &i32| no_offset(partition, ErrorCode::UnknownTopicId);
                refused.push(OffsetFetchResponseTopics {
                    topic_id: topic.topic_id,
                    partitions: topic.partition_indexes.iter().map(none).collect(),
                    ..Default::default()
                });
                false
            }
        }
    });
    refused
}

fn no_offset(partition: i32, error: ErrorCode) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions {
        partition_index: partition,
        committed_offset: -1,
        committed_leader_epoch: -1,
        metadata: Some(String::new()),
        error_code: error.code(),
    }
}

/// The form before version 8. Versions 0 and 1 have no error for the whole; each partition carries it.
/// Version 0 once asked ZooKeeper, and says of a partition without a commit that it is not known.
fn to_single(
    version: i16,
    mut fetched: OffsetFetchResponseGroup,
    asked: Vec<OffsetFetchRequestTopics>,
) -> OffsetFetchResponse {
    let mut response = OffsetFetchResponse::default();
    if version >= FIRST_VERSION_WITH_GROUP_ERROR {
        response.error_code = fetched.error_code;
    } else if fetched.error_code != ErrorCode::None.code() {
        let failed = |topic: OffsetFetchRequestTopics| {
            let none = |&partition: &i32| OffsetFetchResponsePartitions {
                error_code: fetched.error_code,
                ..no_offset(partition, ErrorCode::None)
            };
            let partitions = topic.partition_indexes.iter().map(none).collect();
            OffsetFetchResponseTopics { name: topic.name, topic_id: Uuid::ZERO, partitions }
        };
        fetched.topics = asked.into_iter().map(failed).collect();
    }
    response.topics = fetched.topics.into_iter().map(|topic| single_topic(version, topic)).collect();
    response
}

fn single_topic(version: i16, topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic {
    let partition = |partition: OffsetFetchResponsePartitions| {
        let is_missing = version == 0 && partition.error_code == 0 && partition.committed_offset < 0;
        let missing = ErrorCode::UnknownTopicOrPartition.code();
        OffsetFetchResponsePartition {
            partition_index: partition.partition_index,
            committed_offset: partition.committed_offset,
            committed_leader_epoch: partition.committed_leader_epoch,
            metadata: partition.metadata,
            error_code: if is_missing { missing } else { partition.error_code },
        }
    };
    OffsetFetchResponseTopic {
        name: topic.name,
        partitions: topic.partitions.into_iter().map(partition).collect(),
    }
}

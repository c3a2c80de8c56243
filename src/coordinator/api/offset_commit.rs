//! OffsetCommit and OffsetDelete.

use std::sync::Arc;

use klamm_metadata::Image;
use klamm_model::ErrorCode;
use klamm_protocol::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestTopic, OffsetCommitResponse, OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
};
use klamm_protocol::messages::offset_delete::{
    OffsetDeleteRequest, OffsetDeleteRequestTopic, OffsetDeleteResponse, OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
};

use super::error_of;
use crate::coordinator::{Client, GroupCoordinator};
use crate::group::{Reply, Request};

/// The first version that names topics by id (KIP-848).
const FIRST_VERSION_WITH_IDS: i16 = 10;

impl GroupCoordinator {
    /// OffsetCommit. An empty group id is a group like any other. Partitions that do not exist are refused,
    /// the others are committed.
    pub async fn offset_commit(&self, client: &Client, request: OffsetCommitRequest) -> OffsetCommitResponse {
        let by_id = client.api_version >= FIRST_VERSION_WITH_IDS;
        let (request, refused) = resolve(&self.env.image(), by_id, request);
        if request.topics.is_empty() && !refused.is_empty() {
            return OffsetCommitResponse { topics: refused, ..OffsetCommitResponse::default() };
        }
        let (version, request) = (client.api_version, Arc::new(request));
        let asked = Request::Commit { version, request: request.clone() };
        let mut response = match self.ask(&request.group_id, asked).await {
            Reply::Commit(response) => response,
            other => answer_all(&request, error_of(&other)),
        };
        merge(&mut response.topics, refused);
        response
    }

    /// OffsetDelete.
    pub async fn offset_delete(
        &self,
        _client: &Client,
        mut request: OffsetDeleteRequest,
    ) -> OffsetDeleteResponse {
        if request.group_id.is_empty() {
            let error_code = ErrorCode::InvalidGroupId.code();
            return OffsetDeleteResponse { error_code, ..OffsetDeleteResponse::default() };
        }
        let refused = take_unknown(&self.env.image(), &mut request);
        if request.topics.is_empty() && !refused.is_empty() {
            return OffsetDeleteResponse { topics: refused, ..OffsetDeleteResponse::default() };
        }
        let group = request.group_id.clone();
        match self.ask(&group, Request::DeleteOffsets(request)).await {
            Reply::DeleteOffsets(mut response) => {
                if response.error_code == ErrorCode::None.code() {
                    response.topics.extend(refused);
                }
                response
            }
            other => {
                let error_code = error_of(&other).code();
                OffsetDeleteResponse { error_code, ..OffsetDeleteResponse::default() }
            }
        }
    }
}

/// Gives each topic its name and id, and takes out the partitions that do not exist.
pub(super) fn resolve(
    image: &Image,
    by_id: bool,
    mut request: OffsetCommitRequest,
) -> (OffsetCommitRequest, Vec<OffsetCommitResponseTopic>) {
    let unknown = if by_id { ErrorCode::UnknownTopicId } else { ErrorCode::UnknownTopicOrPartition };
    let mut refused = Vec::new();
    for topic in &mut request.topics {
        let found = if by_id { image.topic(topic.topic_id) } else { image.topic_by_name(&topic.name) };
        let partitions = std::mem::take(&mut topic.partitions);
        let (known, error) = match found {
            Some(found) => {
                topic.name = found.name.to_string();
                topic.topic_id = found.id;
                (Some(found), ErrorCode::UnknownTopicOrPartition)
            }
            None => (None, unknown),
        };
        let (there, missing): (Vec<_>, Vec<_>) = partitions
            .into_iter()
            .partition(|partition| known.is_some_and(|t| t.partition(partition.partition_index).is_some()));
        topic.partitions = there;
        if !missing.is_empty() {
            let answer =
                |index| OffsetCommitResponsePartition { partition_index: index, error_code: error.code() };
            refused.push(OffsetCommitResponseTopic {
                name: topic.name.clone(),
                topic_id: topic.topic_id,
                partitions: missing.iter().map(|partition| answer(partition.partition_index)).collect(),
            });
        }
    }
    request.topics.retain(|topic: &OffsetCommitRequestTopic| !topic.partitions.is_empty());
    (request, refused)
}

/// One answer for all partitions of the request.
pub(super) fn answer_all(request: &OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse {
    let topics = request.topics.iter().map(|topic| {
        let answer =
            |index| OffsetCommitResponsePartition { partition_index: index, error_code: error.code() };
        OffsetCommitResponseTopic {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partitions: topic.partitions.iter().map(|partition| answer(partition.partition_index)).collect(),
        }
    });
    OffsetCommitResponse { topics: topics.collect(), ..OffsetCommitResponse::default() }
}

/// Adds the refused partitions to the answer, each topic once.
pub(super) fn merge(topics: &mut Vec<OffsetCommitResponseTopic>, refused: Vec<OffsetCommitResponseTopic>) {
    for mut topic in refused {
        let is_known = !topic.topic_id.is_zero();
        let same = |other: &&mut OffsetCommitResponseTopic| {
            other.name == topic.name && other.topic_id == topic.topic_id
        };
        match topics.iter_mut().find(same).filter(|_| is_known) {
            Some(there) => there.partitions.append(&mut topic.partitions),
            None => topics.push(topic),
        }
    }
}

/// Takes the topics and partitions that do not exist out of the request.
fn take_unknown(image: &Image, request: &mut OffsetDeleteRequest) -> Vec<OffsetDeleteResponseTopic> {
    let error_code = ErrorCode::UnknownTopicOrPartition.code();
    let mut refused = Vec::new();
    for topic in &mut request.topics {
        let known = image.topic_by_name(&topic.name);
        let partitions = std::mem::take(&mut topic.partitions);
        let (there, missing): (Vec<_>, Vec<_>) = partitions
            .into_iter()
            .partition(|partition| known.is_some_and(|t| t.partition(partition.partition_index).is_some()));
        topic.partitions = there;
        if !missing.is_empty() {
            let answer = |index| OffsetDeleteResponsePartition { partition_index: index, error_code };
            refused.push(OffsetDeleteResponseTopic {
                name: topic.name.clone(),
                partitions: missing.iter().map(|partition| answer(partition.partition_index)).collect(),
            });
        }
    }
    request.topics.retain(|topic: &OffsetDeleteRequestTopic| !topic.partitions.is_empty());
    refused
}

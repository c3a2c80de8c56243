//! DeleteTopics (KIP-4), by name, or since version 6 by id (KIP-516).

use std::collections::BTreeMap;

use klamm_model::{ErrorCode, TopicId};
use klamm_protocol::messages::delete_topics::{
    DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse,
};
use klamm_protocol::records::cluster_metadata::{MetadataRecord, RemoveTopicRecord};

use super::{ControllerContext, Refusal};
use crate::image::Image;

/// Deletes topics. A name or id that stands more than once is refused and not deleted.
pub fn delete_topics(
    image: &Image,
    context: &ControllerContext<'_>,
    request: &DeleteTopicsRequest,
) -> (Vec<MetadataRecord>, DeleteTopicsResponse) {
    let asked = asked_for(request);
    let mut counts: BTreeMap<&Asked, usize> = BTreeMap::new();
    let mut ids: BTreeMap<TopicId, usize> = BTreeMap::new();
    for topic in &asked {
        *counts.entry(topic).or_default() += 1;
    }
    for topic in counts.keys() {
        if let Some(id) = resolve(image, topic) {
            *ids.entry(id).or_default() += 1;
        }
    }
    let mut records = Vec::new();
    let mut response = DeleteTopicsResponse::default();
    for (topic, count) in counts {
        let id = resolve(image, topic);
        let is_named_both_ways = id.is_some_and(|id| ids[&id] > 1);
        if is_named_both_ways && topic.name.is_none() {
            // The name's answer speaks for both.
            continue;
        }
        let outcome = if count > 1 {
            let message = if topic.name.is_some() { "Duplicate topic name." } else { "Duplicate topic id." };
            Err(Refusal::new(ErrorCode::InvalidRequest, message))
        } else if is_named_both_ways {
            let message = "The provided topic name maps to an ID that was already supplied.";
            Err(Refusal::new(ErrorCode::InvalidRequest, message))
        } else if !context.defaults.delete_topics {
            let message = "This cluster does not let topics be deleted (delete.topic.enable=false)";
            Err(Refusal::new(ErrorCode::TopicDeletionDisabled, message))
        } else {
            check(image, topic)
        };
        let (name, topic_id) = describe(image, topic, outcome.is_ok() || is_named_both_ways);
        let mut result = DeletableTopicResult { name, topic_id, ..Default::default() };
        match outcome {
            Ok(id) => records.push(MetadataRecord::RemoveTopic(RemoveTopicRecord { topic_id: id })),
            Err(refusal) => {
                result.error_code = refusal.code.code();
                result.error_message = Some(refusal.message);
            }
        }
        response.responses.push(result);
    }
    (records, response)
}

/// A topic as the request names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    name: Option<String>,
    id: TopicId,
}

/// The topics in either form of the request: bare names up to version 5, names or ids from version 6.
fn asked_for(request: &DeleteTopicsRequest) -> Vec<Asked> {
    let by_name =
        request.topic_names.iter().map(|name| Asked { name: Some(name.clone()), id: TopicId::ZERO });
    let by_either = request.topics.iter().map(|topic| Asked { name: topic.name.clone(), id: topic.topic_id });
    by_name.chain(by_either).collect()
}

/// The topic that is meant, if it exists and is named in one way.
fn resolve(image: &Image, topic: &Asked) -> Option<TopicId> {
    match &topic.name {
        Some(_) if !topic.id.is_zero() => None,
        Some(name) => image.topic_ids.get(name.as_str()).copied(),
        None => image.topic(topic.id).map(|found| found.id),
    }
}

fn check(image: &Image, topic: &Asked) -> Result<TopicId, Refusal> {
    match &topic.name {
        Some(_) if !topic.id.is_zero() => {
            Err(Refusal::new(ErrorCode::InvalidRequest, "You may not specify both topic name and topic id."))
        }
        None if topic.id.is_zero() => {
            Err(Refusal::new(ErrorCode::InvalidRequest, "Neither topic name nor id were specified."))
        }
        Some(_) => resolve(image, topic).ok_or_else(|| {
            let message = "This server does not host this topic-partition.";
            Refusal::new(ErrorCode::UnknownTopicOrPartition, message)
        }),
        None => resolve(image, topic).ok_or_else(|| {
            Refusal::new(ErrorCode::UnknownTopicId, "This server does not host this topic ID.")
        }),
    }
}

/// Name and id in the reply: what the request said, or `both` for a topic that is deleted or was named both
/// ways. A refusal tells nothing that the client did not know.
fn describe(image: &Image, topic: &Asked, both: bool) -> (Option<String>, TopicId) {
    match resolve(image, topic) {
        Some(id) if both => (image.topic(id).map(|found| found.name.to_string()), id),
        _ => (topic.name.clone(), topic.id),
    }
}

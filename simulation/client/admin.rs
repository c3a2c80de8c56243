//! Admins: they make topics, and delete them and make them again.

use klamm_model::ErrorCode;
use klamm_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use klamm_protocol::messages::delete_topics::DeleteTopicState;
use klamm_protocol::messages::{CreateTopicsRequest, DeleteTopicsRequest};

use super::Client;

/// A topic as it is to be made.
#[derive(Clone, Debug)]
pub(crate) struct NewTopic {
    pub(crate) name: String,
    pub(crate) partitions: i32,
    pub(crate) replicas: i16,
    pub(crate) min_in_sync: usize,
}

/// Makes a topic, however often that takes.
pub(crate) async fn create(client: &mut Client, topic: &NewTopic) {
    let set = |name: &str, value: String| CreatableTopicConfig { name: name.to_owned(), value: Some(value) };
    let wanted = CreatableTopic {
        name: topic.name.clone(),
        num_partitions: topic.partitions,
        replication_factor: topic.replicas,
        configs: vec![set("min.insync.replicas", topic.min_in_sync.to_string())],
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: vec![wanted], timeout_ms: 3000, validate_only: false };
    loop {
        let answer = client.ask_any(7, &request).await;
        let code = answer.ok().and_then(|answer| Some(answer.topics.first()?.error_code));
        // An earlier try may have made it without saying so.
        if matches!(code, Some(0)) || code == Some(ErrorCode::TopicAlreadyExists.code()) {
            return;
        }
        client.rest(1000).await;
    }
}

/// Deletes a topic and makes it again, over and over, until it is asked to stop.
pub(crate) async fn recreate(mut client: Client, topic: NewTopic) {
    loop {
        client.rest(60_000).await;
        if client.surroundings.is_stopping() {
            return;
        }
        let Some(topic_id) = client.topic_id(&topic.name).await else { continue };
        client.surroundings.recorder.note(|history| history.deleted.push(topic_id));
        loop {
            let doomed = DeleteTopicState { name: None, topic_id };
            let request =
                DeleteTopicsRequest { topics: vec![doomed], timeout_ms: 3000, ..Default::default() };
            let answer = client.ask_any(6, &request).await;
            let code = answer.ok().and_then(|answer| Some(answer.responses.first()?.error_code));
            if matches!(code, Some(0)) || code == Some(ErrorCode::UnknownTopicId.code()) {
                break;
            }
            client.rest(1000).await;
        }
        client.rest(2000).await;
        create(&mut client, &topic).await;
    }
}

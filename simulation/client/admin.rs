//! Admins: they make topics, delete them and make them again, and move their replicas.

use klamm_model::{ErrorCode, TopicId};
use klamm_protocol::messages::alter_partition_reassignments::{ReassignablePartition, ReassignableTopic};
use klamm_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use klamm_protocol::messages::delete_topics::DeleteTopicState;
use klamm_protocol::messages::{
    AlterPartitionReassignmentsRequest, CreateTopicsRequest, DeleteTopicsRequest, ElectLeadersRequest,
};
use klamm_testing::SeededRandom;

use super::Client;

/// How many topics a crowd has.
const CROWD: usize = 70;

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
        delete(&mut client, topic_id).await;
        client.rest(2000).await;
        create(&mut client, &topic).await;
    }
}

/// Deletes a topic, however often that takes.
async fn delete(client: &mut Client, topic_id: TopicId) {
    client.surroundings.recorder.note(|history| history.deleted.push(topic_id));
    loop {
        let doomed = DeleteTopicState { name: None, topic_id };
        let request = DeleteTopicsRequest { topics: vec![doomed], timeout_ms: 3000, ..Default::default() };
        let answer = client.ask_any(6, &request).await;
        let code = answer.ok().and_then(|answer| Some(answer.responses.first()?.error_code));
        if matches!(code, Some(0)) || code == Some(ErrorCode::UnknownTopicId.code()) {
            return;
        }
        client.rest(1000).await;
    }
}

/// Makes a crowd of topics like one, whose name gets a number, and then deletes one of them and makes another, over and over,
/// until it is asked to stop. Nobody writes to them: they are there to be followed.
pub(crate) async fn crowd(mut client: Client, like: NewTopic) {
    let mut crowd = Vec::new();
    for number in 0.. {
        if client.surroundings.is_stopping() {
            return;
        }
        let topic = NewTopic { name: format!("{}-{number}", like.name), ..like.clone() };
        create(&mut client, &topic).await;
        crowd.push(topic.name);
        if crowd.len() > CROWD {
            let chosen = crowd.swap_remove(client.random.below(crowd.len() as u64) as usize);
            match client.topic_id(&chosen).await {
                Some(topic_id) => delete(&mut client, topic_id).await,
                None => crowd.push(chosen),
            }
            client.rest(4000).await;
        }
    }
}

/// How many nodes there are, and what is moved among them: the topics with their partitions, and how many replicas they have.
pub(crate) struct Moves {
    pub(crate) nodes: i32,
    pub(crate) topics: Vec<(String, i32)>,
    pub(crate) replicas: usize,
}

/// Moves partitions to other nodes, or puts their replicas into another order, gives that up half-way at times, and has the
/// preferred replicas lead; over and over, until it is asked to stop.
pub(crate) async fn move_about(mut client: Client, moves: Moves) {
    loop {
        client.rest(20_000).await;
        if client.surroundings.is_stopping() {
            return;
        }
        let (name, partitions) = &moves.topics[client.random.below(moves.topics.len() as u64) as usize];
        let partition_index = client.random.below(*partitions as u64) as i32;
        let replicas = drawn(&client.random, &moves);
        reassign(&mut client, name, partition_index, Some(replicas)).await;
        client.rest(3000).await;
        if client.random.chance(1, 4) {
            reassign(&mut client, name, partition_index, None).await;
        }
        let request = ElectLeadersRequest { timeout_ms: 3000, topic_partitions: None, ..Default::default() };
        // Whoever cannot be elected now is later, or somebody else leads on.
        let _ = client.ask_any(2, &request).await;
    }
}

/// Some of the nodes, in some order.
fn drawn(random: &SeededRandom, moves: &Moves) -> Vec<i32> {
    let mut left: Vec<i32> = (1..=moves.nodes).collect();
    (0..moves.replicas).map(|_| left.swap_remove(random.below(left.len() as u64) as usize)).collect()
}

/// Asks once for a partition to be moved, or for its move to be given up; it may be refused.
async fn reassign(client: &mut Client, topic: &str, partition_index: i32, replicas: Option<Vec<i32>>) {
    let partitions = vec![ReassignablePartition { partition_index, replicas }];
    let topics = vec![ReassignableTopic { name: topic.to_owned(), partitions }];
    let request = AlterPartitionReassignmentsRequest { timeout_ms: 3000, topics, ..Default::default() };
    let _ = client.ask_any(1, &request).await;
}

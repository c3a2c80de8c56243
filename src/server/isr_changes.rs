//! Changes of the in-sync replicas on their way to the controller (KIP-497): partitions propose them, here they are
//! sent, many in one request and one request at a time, and the answers are handed back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use klamm_model::{ErrorCode, LeaderEpoch, NodeId, TopicId, TopicPartition};
use klamm_partition::{IsrAnswer, IsrChange, Partition};
use klamm_protocol::messages::alter_partition::{
    AlterPartitionRequest, AlterPartitionResponse, BrokerState, PartitionDataRequest, PartitionDataResponse,
    TopicDataRequest,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::context::Context;
use crate::stop::Stop;

/// How long one request looks for a controller before what it asks is looked at again.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// How long it waits after a request that the controller did not take in full.
const PAUSE: Duration = Duration::from_millis(50);

/// How many partitions go into one request.
const PARTITIONS_MAX: usize = 5_000;

/// Names a partition.
type Key = (TopicId, i32);

/// Partitions with a replica that has caught up and is not in sync, each once.
#[derive(Default)]
pub(crate) struct IsrChanges {
    due: Mutex<BTreeMap<Key, Arc<Partition>>>,
    wake: Notify,
}

impl IsrChanges {
    /// Tells that a change of a partition's in-sync replicas should be proposed now.
    pub(crate) fn note_due(&self, partition: &Arc<Partition>) {
        self.due.lock().insert(key_of(partition), partition.clone());
        self.wake.notify_one();
    }
}

fn key_of(partition: &Partition) -> Key {
    (partition.topic_id(), partition.topic_partition().partition)
}

/// What waits for an answer, by partition.
type UnderWay = BTreeMap<Key, (Arc<Partition>, IsrChange)>;

/// Proposes and sends until the stop. Replicas that lag are looked for each half of `replica.lag.time.max.ms`.
pub(crate) async fn run(context: Arc<Context>, mut stop: Stop) {
    let mut under_way = UnderWay::new();
    let mut looked = context.clock.monotonic();
    loop {
        let lag_max = u64::try_from(context.config().replica_lag_time_max_ms).unwrap_or(0);
        let look_at = looked + Duration::from_millis(lag_max / 2).max(PAUSE);
        let left = look_at.saturating_sub(context.clock.monotonic());
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = context.isr_changes.wake.notified() => {}
            () = tokio::time::sleep(left) => {}
            () = tokio::time::sleep(PAUSE), if !under_way.is_empty() => {}
        }
        under_way.retain(|_, (partition, change)| partition.awaits_answer(change));
        let now = context.clock.monotonic();
        let mut due = std::mem::take(&mut *context.isr_changes.due.lock());
        if now >= look_at {
            looked = now;
            due.extend(led(&context).map(|partition| (key_of(&partition), partition)));
        }
        for (key, partition) in due {
            if under_way.len() >= PARTITIONS_MAX {
                context.isr_changes.note_due(&partition);
                continue;
            }
            if let Some(change) = partition.propose_isr_change() {
                under_way.insert(key, (partition, change));
            }
        }
        if under_way.is_empty() {
            continue;
        }
        let is_taken = tokio::select! {
            biased;
            () = stop.requested() => return,
            is_taken = send(&context, &mut under_way) => is_taken,
        };
        if !is_taken {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// The partitions that this node leads; their high watermark may have waited for a replica that is late by now.
fn led(context: &Context) -> impl Iterator<Item = Arc<Partition>> {
    let table = context.partitions.load();
    let led: Vec<Arc<Partition>> =
        table.partitions().filter(|partition| partition.is_leader()).cloned().collect();
    led.into_iter().inspect(|partition| partition.reconsider_high_watermark())
}

/// Sends what is under way and hands the answers back; what is to be sent again stays. Returns whether the controller
/// has taken all of it.
async fn send(context: &Context, under_way: &mut UnderWay) -> bool {
    let response = context.controller.ask(request(context, under_way), ASK_TIMEOUT).await;
    match ErrorCode::from_code(response.error_code).unwrap_or(ErrorCode::UnknownServerError) {
        ErrorCode::None => {}
        code => {
            let count = under_way.len();
            tracing::warn!(
                "the controller did not take changes of the in-sync replicas of {count} partitions: {code}"
            );
            return false;
        }
    }
    let mut is_taken = true;
    for (key, answer) in answers(response) {
        let Some((partition, change)) = under_way.get(&key) else { continue };
        let name = partition.topic_partition();
        match answer_of(&answer) {
            Some(told) => {
                match &told {
                    IsrAnswer::Changed { isr, .. } => count(context, change, isr.len()),
                    _ => {
                        is_taken = false;
                        tell(name, change, answer.error_code);
                    }
                }
                partition.isr_answered(change, told);
                under_way.remove(&key);
            }
            None => is_taken = false,
        }
    }
    is_taken
}

/// Logs that what was proposed is not the state now.
fn tell(partition: &TopicPartition, change: &IsrChange, error_code: i16) {
    match ErrorCode::from_code(error_code) {
        // The change was made, and ended a reassignment that leaves this node out.
        Some(ErrorCode::NewLeaderElected) => {}
        code => {
            let members: Vec<String> = change.isr.iter().map(|(node, _)| node.to_string()).collect();
            let code = code.map_or_else(|| format!("error {error_code}"), |code| code.to_string());
            tracing::info!(
                "the in-sync replicas of {partition} are not changed to {}: the controller answers {code}",
                members.join(", ")
            );
        }
    }
}

fn count(context: &Context, change: &IsrChange, now: usize) {
    let counter = match now.cmp(&change.before.len()) {
        std::cmp::Ordering::Less => &context.metrics.isr_shrinks,
        std::cmp::Ordering::Equal => return,
        std::cmp::Ordering::Greater => &context.metrics.isr_expands,
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

fn request(context: &Context, under_way: &UnderWay) -> AlterPartitionRequest {
    let broker_epoch = context.broker_epoch();
    let mut topics: BTreeMap<TopicId, Vec<PartitionDataRequest>> = BTreeMap::new();
    for ((topic, index), (_, change)) in under_way {
        let member = |(node, epoch): &(NodeId, i64)| BrokerState {
            broker_id: node.0,
            broker_epoch: if *node == context.node_id { broker_epoch } else { *epoch },
        };
        topics.entry(*topic).or_default().push(PartitionDataRequest {
            partition_index: *index,
            leader_epoch: change.leader_epoch.0,
            new_isr_with_epochs: change.isr.iter().map(member).collect(),
            partition_epoch: change.partition_epoch,
            ..Default::default()
        });
    }
    let topics = topics.into_iter();
    AlterPartitionRequest {
        broker_id: context.node_id.0,
        broker_epoch,
        topics: topics
            .map(|(topic_id, partitions)| TopicDataRequest { topic_id, partitions, ..Default::default() })
            .collect(),
    }
}

fn answers(response: AlterPartitionResponse) -> impl Iterator<Item = (Key, PartitionDataResponse)> {
    response.topics.into_iter().flat_map(|topic| {
        let id = topic.topic_id;
        topic.partitions.into_iter().map(move |partition| ((id, partition.partition_index), partition))
    })
}

/// What an answer means; nothing if the same is to be asked again.
fn answer_of(answer: &PartitionDataResponse) -> Option<IsrAnswer> {
    match ErrorCode::from_code(answer.error_code).unwrap_or(ErrorCode::UnknownServerError) {
        ErrorCode::None => Some(IsrAnswer::Changed {
            leader_epoch: LeaderEpoch(answer.leader_epoch),
            partition_epoch: answer.partition_epoch,
            isr: answer.isr.iter().map(|id| NodeId(*id)).collect(),
        }),
        ErrorCode::IneligibleReplica | ErrorCode::OperationNotAttempted => Some(IsrAnswer::Refused),
        ErrorCode::UnknownTopicId
        | ErrorCode::UnknownTopicOrPartition
        | ErrorCode::InvalidUpdateVersion
        | ErrorCode::InvalidRequest
        | ErrorCode::NewLeaderElected
        | ErrorCode::FencedLeaderEpoch => Some(IsrAnswer::Unknown),
        _ => None,
    }
}

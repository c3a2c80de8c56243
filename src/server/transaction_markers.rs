//! Writing the ends of transactions into their partitions.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use klamm_coordinator::transaction::WriteMarkers;
use klamm_model::{ErrorCode, LeaderEpoch, NodeId, ProducerId, topic_name};
use klamm_partition::{Appended, Partition, TransactionMarker};
use klamm_protocol::messages::describe_producers::{DescribeProducersRequest, ProducerState, TopicRequest};

use tokio::task::JoinSet;

use crate::context::Context;
use crate::marker_channel::Named;

/// How long it is waited before the partitions that have no marker yet are tried again, at first; each time twice
/// as long.
const PAUSE: Duration = Duration::from_millis(20);

/// The version of DescribeProducers that brokers speak with each other.
const DESCRIBE_PRODUCERS_VERSION: i16 = 0;

/// The longest wait.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How many markers of one transaction are waited for at once.
const UNDER_WAY_MAX: usize = 256;

/// Writes the markers of a transaction until all partitions have theirs and the coordinator knows it, or until
/// this node is not its coordinator any more: the next one writes them all again.
pub(crate) async fn write_all(context: Weak<Context>, markers: WriteMarkers) {
    let WriteMarkers { producer, coordinator_epoch, is_commit, version, partitions } = markers;
    let marker = TransactionMarker {
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        coordinator_epoch,
        is_commit,
        transaction_version: i8::try_from(version.0).unwrap_or(i8::MAX),
    };
    let mut left: Vec<Named> = partitions
        .into_iter()
        .flat_map(|(topic, indexes)| indexes.into_iter().map(move |index| (topic.clone(), index)))
        .collect();
    let mut pause = PAUSE;
    loop {
        let Some(context) = context.upgrade() else { return };
        if !context.transactions.leads(&producer.transactional_id, LeaderEpoch(coordinator_epoch)) {
            return;
        }
        left = write_once(&context, left, &producer.transactional_id, &marker).await;
        if left.is_empty() {
            let epoch = LeaderEpoch(coordinator_epoch);
            match context.transactions.markers_written(producer.clone(), epoch).await {
                Ok(()) => return,
                Err(error) => tracing::warn!(
                    transactional_id = producer.transactional_id,
                    %error,
                    "the end of a transaction could not be noted, and is tried again"
                ),
            }
        }
        drop(context);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Writes a marker into the partitions, each at the broker that leads it, all at once. Returns those that still need
/// it.
async fn write_once(
    context: &Arc<Context>,
    left: Vec<Named>,
    transactional_id: &str,
    marker: &TransactionMarker,
) -> Vec<Named> {
    let image = context.image();
    let mut by_leader: BTreeMap<Option<NodeId>, Vec<Named>> = BTreeMap::new();
    for (topic, index) in left {
        let state = image.topic_by_name(&topic).and_then(|topic| topic.partition(index));
        // What is not there any more is told by this node.
        let leader = state.map_or(Some(context.node_id), |state| state.leader);
        by_leader.entry(leader).or_default().push((topic, index));
    }
    let mut failed = by_leader.remove(&None).unwrap_or_default();
    let mut asked = JoinSet::new();
    for (leader, partitions) in by_leader.into_iter().filter_map(|(leader, all)| Some((leader?, all))) {
        let (context, marker, transactional_id) = (context.clone(), *marker, transactional_id.to_owned());
        asked.spawn(async move {
            let codes = write_at(&context, leader, partitions.clone(), marker).await;
            let mut left = Vec::new();
            for named in partitions {
                let code = codes.get(&named).copied().unwrap_or(ErrorCode::UnknownServerError);
                if !is_settled(&context, leader, &named, &transactional_id, &marker, code).await {
                    left.push(named);
                }
            }
            left
        });
    }
    while let Some(left) = asked.join_next().await {
        match left {
            Ok(left) => failed.extend(left),
            Err(error) => tracing::error!("markers of a transaction were not written: {error}"),
        }
    }
    failed
}

/// Writes a marker into partitions that a broker leads, which may be this one.
async fn write_at(
    context: &Arc<Context>,
    leader: NodeId,
    partitions: Vec<Named>,
    marker: TransactionMarker,
) -> BTreeMap<Named, ErrorCode> {
    match leader == context.node_id {
        true => write_here(context, partitions, marker).await,
        false => context.markers.write(context, leader, marker, partitions).await,
    }
}

/// Writes a marker into partitions of this node, many of them before the first is waited for.
pub(crate) async fn write_here(
    context: &Arc<Context>,
    partitions: Vec<Named>,
    marker: TransactionMarker,
) -> BTreeMap<Named, ErrorCode> {
    let (mut writes, mut codes) = (JoinSet::new(), BTreeMap::new());
    for (topic, index) in partitions {
        if writes.len() >= UNDER_WAY_MAX {
            codes.extend(writes.join_next().await.and_then(Result::ok));
        }
        let context = context.clone();
        writes.spawn(async move {
            let code = write(&context, &topic, index, &marker).await;
            ((topic, index), code)
        });
    }
    while let Some(written) = writes.join_next().await {
        codes.extend(written);
    }
    codes
}

/// Whether a partition, whose leader has given that code, needs no marker any more.
async fn is_settled(
    context: &Arc<Context>,
    leader: NodeId,
    named: &Named,
    transactional_id: &str,
    marker: &TransactionMarker,
    code: ErrorCode,
) -> bool {
    let (topic, index) = named;
    match code {
        ErrorCode::None | ErrorCode::UnsupportedForMessageFormat => true,
        // The topic was deleted, and the transaction's records with it.
        ErrorCode::UnknownTopicOrPartition => {
            context.image().topic_by_name(topic).is_none_or(|topic| topic.partition(*index).is_none())
        }
        code if is_fenced(code) => match open_transaction(context, leader, named, marker.producer_id).await {
            Some(None) => true,
            Some(Some(coordinator_epoch)) if code == ErrorCode::TransactionCoordinatorFenced => {
                let known = TransactionMarker { coordinator_epoch, ..*marker };
                overrule(context, leader, named, transactional_id, (marker, known)).await
            }
            _ => {
                tracing::warn!(
                    "{topic}-{index}, led by broker {leader}, does not take the end of a transaction of producer {}: \
                     {code}; what reads only committed records waits there until it is ended",
                    marker.producer_id
                );
                false
            }
        },
        _ => false,
    }
}

/// Ends a transaction in a partition that knows a marker of a later coordinator, where there was none: whoever may write
/// markers may claim any epoch, and a topic of transactions that is made anew begins with the first one. Only who led
/// alone even after it was refused knows that; it ends the transaction with the epoch that is known there. In Kafka 4.4.0
/// the transaction stays open.
async fn overrule(
    context: &Arc<Context>,
    leader: NodeId,
    named: &Named,
    transactional_id: &str,
    (own, known): (&TransactionMarker, TransactionMarker),
) -> bool {
    if !context.transactions.leads_alone(transactional_id, LeaderEpoch(own.coordinator_epoch)).await {
        return false;
    }
    tracing::warn!(
        "{}-{}, led by broker {leader}, knows a marker of epoch {} of a transaction's coordinator, which nobody was: a \
         client has written it, or the topic of transactions was made anew; the transaction of {transactional_id:?} is \
         ended with that epoch",
        named.0,
        named.1,
        known.coordinator_epoch
    );
    let codes = write_at(context, leader, vec![named.clone()], known).await;
    codes.get(named) == Some(&ErrorCode::None)
}

/// Whether a partition has seen a later epoch of the producer, or of the coordinator. Somebody else has ended the
/// transaction then, or records of a later epoch came into it and hold its end up.
fn is_fenced(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::InvalidProducerEpoch | ErrorCode::TransactionCoordinatorFenced)
}

/// The epoch of the coordinator that wrote a producer's last marker, if the producer has a transaction open in a
/// partition, as its leader knows it; `None` if the leader does not tell.
async fn open_transaction(
    context: &Context,
    leader: NodeId,
    (topic, index): &Named,
    producer: ProducerId,
) -> Option<Option<i32>> {
    if leader == context.node_id {
        let partition = context.partitions.by_name(topic, *index)?;
        return partition.is_leader().then(|| partition.coordinator_of_open_transaction(producer));
    }
    let topics = vec![TopicRequest { name: topic.to_string(), partition_indexes: vec![*index] }];
    let request = DescribeProducersRequest { topics };
    let answer = context.questions.ask(context, leader, DESCRIBE_PRODUCERS_VERSION, &request).await.ok()?;
    let partition = answer.topics.into_iter().next()?.partitions.into_iter().next()?;
    if partition.error_code != ErrorCode::None.code() {
        return None;
    }
    let is_open =
        |known: &&ProducerState| known.producer_id == producer.0 && known.current_txn_start_offset >= 0;
    Some(partition.active_producers.iter().find(is_open).map(|known| known.coordinator_epoch))
}

/// Writes one marker into a partition of this node, and waits until the in-sync replicas have it.
async fn write(context: &Context, topic: &str, index: i32, marker: &TransactionMarker) -> ErrorCode {
    let Some(partition) = context.partitions.by_name(topic, index) else {
        return context.missing_partition(None, topic, index);
    };
    if topic == topic_name::GROUP_METADATA {
        return match context.groups.end_transaction(index, *marker).await {
            Ok(()) => ErrorCode::None,
            Err(
                ErrorCode::NotCoordinator
                | ErrorCode::CoordinatorLoadInProgress
                | ErrorCode::CoordinatorNotAvailable,
            ) => ErrorCode::NotLeaderOrFollower,
            Err(error) => error,
        };
    }
    match partition.end_transaction(marker, None) {
        Ok(ended) => replicated_in_time(context, partition, ended.appended).await,
        // The end that came before this one must not be lost with this node either.
        Err(error) if is_fenced(error.code()) && !partition.has_open_transaction(marker.producer_id) => {
            match partition.appended_so_far() {
                Ok(appended) => match replicated_in_time(context, partition, appended).await {
                    ErrorCode::None => error.code(),
                    failure => failure,
                },
                Err(error) => error.code(),
            }
        }
        Err(error) => error.code(),
    }
}

async fn replicated_in_time(context: &Context, partition: Arc<Partition>, appended: Appended) -> ErrorCode {
    let timeout_ms = u64::try_from(context.config().request_timeout_ms).unwrap_or(0);
    let replicated = replicated(partition, appended);
    let replicated = tokio::time::timeout(Duration::from_millis(timeout_ms), replicated).await;
    replicated.unwrap_or(ErrorCode::RequestTimedOut)
}

async fn replicated(partition: Arc<Partition>, appended: Appended) -> ErrorCode {
    if appended.flush_due.comes_before_answer(-1) && partition.flush().await.is_err() {
        return ErrorCode::KafkaStorageError;
    }
    let waited = partition.wait_for_high_watermark(appended.last_offset + 1, appended.leader_epoch).await;
    waited.map_or_else(|error| error.code(), |()| ErrorCode::None)
}

//! Writing the ends of transactions into their partitions.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use klamm_coordinator::transaction::WriteMarkers;
use klamm_model::{ErrorCode, LeaderEpoch, NodeId, topic_name};
use klamm_partition::{Appended, Partition, TransactionMarker};

use tokio::task::JoinSet;

use crate::context::Context;
use crate::marker_channel::Named;

/// How long it is waited before the partitions that have no marker yet are tried again, at first; each time twice
/// as long.
const PAUSE: Duration = Duration::from_millis(20);

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
        left = write_once(&context, left, &marker).await;
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
async fn write_once(context: &Arc<Context>, left: Vec<Named>, marker: &TransactionMarker) -> Vec<Named> {
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
        let (context, marker) = (context.clone(), *marker);
        asked.spawn(async move {
            let codes = match leader == context.node_id {
                true => write_here(&context, partitions.clone(), marker).await,
                false => context.markers.write(&context, leader, marker, partitions.clone()).await,
            };
            let is_left = |(topic, index): &Named| {
                let code =
                    codes.get(&(topic.clone(), *index)).copied().unwrap_or(ErrorCode::UnknownServerError);
                !is_settled(&context, topic, *index, &marker, code)
            };
            partitions.into_iter().filter(is_left).collect::<Vec<Named>>()
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

/// Whether a partition needs no marker any more.
fn is_settled(
    context: &Context,
    topic: &str,
    index: i32,
    marker: &TransactionMarker,
    code: ErrorCode,
) -> bool {
    match code {
        ErrorCode::None | ErrorCode::UnsupportedForMessageFormat => true,
        // The topic was deleted, and the transaction's records with it.
        ErrorCode::UnknownTopicOrPartition => {
            context.image().topic_by_name(topic).is_none_or(|topic| topic.partition(index).is_none())
        }
        // The partition has seen a later epoch, which it would not have taken before the end of this transaction.
        ErrorCode::InvalidProducerEpoch => true,
        // Somebody ended the transaction here in the name of a later coordinator.
        ErrorCode::TransactionCoordinatorFenced => {
            let partition = context.partitions.by_name(topic, index);
            partition.is_some_and(|partition| !partition.has_open_transaction(marker.producer_id))
        }
        _ => false,
    }
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
        Ok(None) => ErrorCode::None,
        Ok(Some(appended)) => {
            let timeout_ms = u64::try_from(context.config().request_timeout_ms).unwrap_or(0);
            let replicated = replicated(partition, appended);
            let replicated = tokio::time::timeout(Duration::from_millis(timeout_ms), replicated).await;
            replicated.unwrap_or(ErrorCode::RequestTimedOut)
        }
        Err(error) => error.code(),
    }
}

async fn replicated(partition: Arc<Partition>, appended: Appended) -> ErrorCode {
    if appended.flush_due.comes_before_answer(-1) && partition.flush().await.is_err() {
        return ErrorCode::KafkaStorageError;
    }
    let waited = partition.wait_for_high_watermark(appended.last_offset + 1, appended.leader_epoch).await;
    waited.map_or_else(|error| error.code(), |()| ErrorCode::None)
}

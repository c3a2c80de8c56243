//! Writing the ends of transactions into their partitions.

use std::sync::{Arc, Weak};
use std::time::Duration;

use klamm_coordinator::transaction::WriteMarkers;
use klamm_model::{ErrorCode, LeaderEpoch, topic_name};
use klamm_partition::{Appended, Partition, TransactionMarker};

use crate::context::Context;

/// How long it is waited before the partitions that have no marker yet are tried again, at first; each time twice
/// as long.
const PAUSE: Duration = Duration::from_millis(20);

/// The longest wait.
const PAUSE_MAX: Duration = Duration::from_secs(1);

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
    let mut left: Vec<(Arc<str>, i32)> = partitions
        .into_iter()
        .flat_map(|(topic, indexes)| indexes.into_iter().map(move |index| (topic.clone(), index)))
        .collect();
    let mut pause = PAUSE;
    loop {
        let Some(context) = context.upgrade() else { return };
        if !context.transactions.leads(&producer.transactional_id, LeaderEpoch(coordinator_epoch)) {
            return;
        }
        let mut failed = Vec::new();
        for (topic, index) in left {
            let code = write(&context, &topic, index, &marker).await;
            if !is_settled(&context, &topic, index, &marker, code) {
                failed.push((topic, index));
            }
        }
        left = failed;
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
pub(crate) async fn write(
    context: &Context,
    topic: &str,
    index: i32,
    marker: &TransactionMarker,
) -> ErrorCode {
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

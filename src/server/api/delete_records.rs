//! DeleteRecords (key 21), versions 0 to 2: moves the first offset of partitions up (KIP-107).
//!
//! v2 flexible. Offset -1 means the high watermark.
//!
//! As in Kafka the answer waits until the followers have deleted the same, or the next leader would show it again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use klamm_model::{ErrorCode, Offset, topic_name};
use klamm_partition::{LookUpError, Partition};
use klamm_protocol::messages::delete_records::{
    DeleteRecordsPartition, DeleteRecordsPartitionResult, DeleteRecordsRequest, DeleteRecordsResponse,
    DeleteRecordsTopicResult,
};

use tokio::sync::Notify;

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    _call: &Call,
    request: DeleteRecordsRequest,
) -> DeleteRecordsResponse {
    // A partition that is named twice counts once, with what was said last; topics without one are not answered.
    let mut wanted: BTreeMap<&str, BTreeMap<i32, &DeleteRecordsPartition>> = BTreeMap::new();
    for topic in &request.topics {
        for partition in &topic.partitions {
            wanted.entry(&topic.name).or_default().insert(partition.partition_index, partition);
        }
    }
    let topics = wanted.into_iter().map(|(name, partitions)| DeleteRecordsTopicResult {
        name: name.to_owned(),
        partitions: partitions.into_values().map(|wanted| delete(context, name, wanted)).collect(),
    });
    let mut topics: Vec<DeleteRecordsTopicResult> = topics.collect();
    // What was deleted must stay deleted if the process is killed after the answer.
    if let Err(error) = context.store.checkpoint_log_start_offsets() {
        tracing::error!("the new first offsets were not written and may be back after a crash: {error}");
        topics.iter_mut().flat_map(|topic| &mut topic.partitions).for_each(not_written);
    }
    // One whose log directory went offline in between was not among them.
    for topic in &mut topics {
        for result in &mut topic.partitions {
            let partition = context.partitions.by_name(&topic.name, result.partition_index);
            if partition.is_some_and(|partition| !partition.log().is_directory_online()) {
                not_written(result);
            }
        }
    }
    await_followers(context, request.timeout_ms, &mut topics).await;
    DeleteRecordsResponse { topics, ..Default::default() }
}

/// Waits until no active replica of the partitions begins before what was deleted.
async fn await_followers(context: &Context, timeout_ms: i32, topics: &mut [DeleteRecordsTopicResult]) {
    let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
    let deadline = tokio::time::Instant::now() + timeout;
    for topic in topics {
        let name = &topic.name;
        let deleted = topic.partitions.iter_mut().filter(|result| result.error_code == 0);
        for result in deleted {
            let Some(partition) = context.partitions.by_name(name, result.partition_index) else { continue };
            let before = result.low_watermark;
            let told = tokio::time::timeout_at(deadline, low_watermark_at(&partition, before)).await;
            let code = match told {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.code(),
                Err(_) => ErrorCode::RequestTimedOut,
            };
            result.error_code = code.code();
            result.low_watermark = partition.low_watermark().unwrap_or(-1);
        }
    }
}

async fn low_watermark_at(partition: &Partition, before: Offset) -> Result<(), LookUpError> {
    let wake = Arc::new(Notify::new());
    loop {
        partition.wake_on_progress(&wake);
        if partition.low_watermark()? >= before {
            return Ok(());
        }
        wake.notified().await;
    }
}

/// A deletion that may not outlive a crash did not succeed, whatever can be read until then.
fn not_written(result: &mut DeleteRecordsPartitionResult) {
    if result.error_code == ErrorCode::None.code() {
        result.error_code = ErrorCode::KafkaStorageError.code();
        result.low_watermark = -1;
    }
}

fn delete(context: &Context, topic: &str, wanted: &DeleteRecordsPartition) -> DeleteRecordsPartitionResult {
    let failed = |code: ErrorCode| DeleteRecordsPartitionResult {
        partition_index: wanted.partition_index,
        low_watermark: -1,
        error_code: code.code(),
    };
    let Some(partition) = context.partitions.by_name(topic, wanted.partition_index) else {
        return failed(context.missing_partition(None, topic, wanted.partition_index));
    };
    if topic_name::is_internal(topic) {
        return failed(ErrorCode::InvalidTopicException);
    }
    let config = context.topic_config(&context.image(), topic);
    if !config.cleanup_policy.delete {
        return failed(ErrorCode::PolicyViolation);
    }
    match partition.delete_records_before(wanted.offset) {
        Ok(low_watermark) => DeleteRecordsPartitionResult {
            partition_index: wanted.partition_index,
            low_watermark,
            ..Default::default()
        },
        Err(error) => {
            if let LookUpError::Storage(error) = &error {
                tracing::error!("records of {topic}-{} were not deleted: {error}", wanted.partition_index);
            }
            failed(error.code())
        }
    }
}

//! DescribeLogDirs (key 35), versions 0 to 5: what lies in the log directories of this broker (KIP-113).
//!
//! v1 throttling comes after the answer; v2 flexible; v3 a top-level error; v4 size and free space of each
//! directory's file system (KIP-827); v5 whether a directory gets no new partitions (KIP-1066).
//!
//! Deviation: topics and partitions come in order, where Kafka's order is that of a hash map.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use klamm_model::{ErrorCode, Offset};
use klamm_protocol::messages::describe_log_dirs::{
    DescribeLogDirsPartition, DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeLogDirsResult,
    DescribeLogDirsTopic,
};
use klamm_storage::{DirectoryStatus, Log, LogStore};

use super::Call;
use crate::context::Context;

/// What is asked for: partitions by topic, or everything.
type Wanted = Option<BTreeMap<String, BTreeSet<i32>>>;

pub(crate) async fn handle(
    context: &Context,
    _call: &Call,
    request: DescribeLogDirsRequest,
) -> DescribeLogDirsResponse {
    let wanted: Wanted = request.topics.map(|topics| {
        let mut wanted: BTreeMap<String, BTreeSet<i32>> = BTreeMap::new();
        for topic in topics {
            wanted.entry(topic.topic).or_default().extend(topic.partitions);
        }
        wanted
    });
    let store = context.store.clone();
    // A directory that does not answer must not hold up a thread that serves others.
    let described = context.threads.run(move || {
        store.directory_statuses().iter().map(|status| describe(&store, status, &wanted)).collect()
    });
    match described.await {
        Ok(results) => DescribeLogDirsResponse { results, ..Default::default() },
        Err(error) => {
            tracing::error!("the log directories cannot be described: {error}");
            let error_code = ErrorCode::UnknownServerError.code();
            DescribeLogDirsResponse { error_code, ..Default::default() }
        }
    }
}

fn describe(store: &LogStore, status: &DirectoryStatus, wanted: &Wanted) -> DescribeLogDirsResult {
    let log_dir = absolute(&status.path);
    if status.failure.is_some() {
        let error_code = ErrorCode::KafkaStorageError.code();
        return DescribeLogDirsResult { error_code, log_dir, ..Default::default() };
    }
    let is_wanted = |log: &&Arc<Log>| {
        let name = log.topic_partition();
        wanted.as_ref().is_none_or(|wanted| {
            wanted.get(&*name.topic).is_some_and(|partitions| partitions.contains(&name.partition))
        })
    };
    let mut topics: BTreeMap<String, Vec<DescribeLogDirsPartition>> = BTreeMap::new();
    let mut add = |log: &Log, offset_lag: Offset, is_future_key: bool| {
        let name = log.topic_partition();
        topics.entry(name.topic.to_string()).or_default().push(DescribeLogDirsPartition {
            partition_index: name.partition,
            partition_size: i64::try_from(log.size()).unwrap_or(i64::MAX),
            offset_lag,
            is_future_key,
        });
    };
    for log in status.logs.iter().filter(is_wanted) {
        // A replica ends at or behind its high watermark but for a follower that has just begun.
        let high_watermark = store.high_watermark(log.topic_partition()).unwrap_or(0);
        add(log, (high_watermark - log.log_end_offset()).max(0), false);
    }
    for future in status.futures.iter().filter(is_wanted) {
        let current = store.get(future.topic_partition());
        add(future, current.map_or(-1, |current| future.lag_behind(&current)), true);
    }
    let (total, usable) = status.space.unzip();
    let bytes = |bytes: Option<u64>| bytes.map_or(-1, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
    let topics = topics.into_iter().map(|(name, partitions)| DescribeLogDirsTopic { name, partitions });
    DescribeLogDirsResult {
        error_code: ErrorCode::None.code(),
        log_dir,
        topics: topics.collect(),
        total_bytes: bytes(total),
        usable_bytes: bytes(usable),
        is_cordoned: status.is_cordoned,
    }
}

/// The path as tools show it and give it back.
fn absolute(path: &Path) -> String {
    std::path::absolute(path).as_deref().unwrap_or(path).to_string_lossy().into_owned()
}

//! AlterReplicaLogDirs (key 34), versions 0 to 2: moves partitions into other log directories of this broker
//! (KIP-113).
//!
//! v1 throttling comes after the answer; v2 flexible. The answer says that the move has begun; DescribeLogDirs
//! tells how far it is. A move to where the partition is calls a running one off. A partition that does not exist
//! yet is answered with an error, and is made in that directory when it comes.
//!
//! Deviation: topics and partitions come in order, where Kafka's order is that of a hash map.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use klamm_model::{ErrorCode, TopicPartition};
use klamm_partition::Partition;
use klamm_protocol::messages::alter_replica_log_dirs::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult, AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
};
use klamm_storage::{LogStore, Move, MoveError, PlacementError};

use super::Call;
use crate::context::Context;

/// A partition that is to be moved.
struct Wanted {
    name: TopicPartition,
    directory: String,
    partition: Option<Arc<Partition>>,
    /// What is answered for a partition that has no log here.
    without_log: ErrorCode,
}

pub(crate) async fn handle(
    context: &Context,
    _call: &Call,
    request: AlterReplicaLogDirsRequest,
) -> AlterReplicaLogDirsResponse {
    // A partition that is named twice goes where was said last.
    let mut named: BTreeMap<TopicPartition, String> = BTreeMap::new();
    for directory in request.dirs {
        for topic in &directory.topics {
            let names = topic.partitions.iter().map(|index| TopicPartition::new(&*topic.name, *index));
            named.extend(names.map(|name| (name, directory.path.clone())));
        }
    }
    let wanted: Vec<Wanted> =
        named.into_iter().map(|(name, directory)| look_up(context, name, directory)).collect();
    let names: Vec<TopicPartition> = wanted.iter().map(|wanted| wanted.name.clone()).collect();
    let (store, log_dirs) = (context.store.clone(), context.static_config.log_dirs.clone());
    let begun = context.threads.run(move || -> Vec<ErrorCode> {
        wanted.iter().map(|wanted| begin(&store, &log_dirs, wanted)).collect()
    });
    let codes = begun.await.unwrap_or_else(|error| {
        tracing::error!("partitions were not moved: {error}");
        vec![ErrorCode::UnknownServerError; names.len()]
    });
    context.moves.notify_one();
    let mut topics: BTreeMap<String, Vec<AlterReplicaLogDirPartitionResult>> = BTreeMap::new();
    for (name, code) in names.iter().zip(codes) {
        let result =
            AlterReplicaLogDirPartitionResult { partition_index: name.partition, error_code: code.code() };
        topics.entry(name.topic.to_string()).or_default().push(result);
    }
    let results = topics
        .into_iter()
        .map(|(topic_name, partitions)| AlterReplicaLogDirTopicResult { topic_name, partitions });
    AlterReplicaLogDirsResponse { results: results.collect(), ..Default::default() }
}

fn look_up(context: &Context, name: TopicPartition, directory: String) -> Wanted {
    let table = context.partitions.load();
    let image = context.image();
    let topic = table.topic_by_name(&name.topic);
    let is_offline = topic.is_some_and(|topic| topic.offline.contains(&name.partition));
    let is_known = image.topic_by_name(&name.topic).is_some_and(|t| t.partition(name.partition).is_some());
    let without_log = match (is_offline, is_known) {
        (true, _) => ErrorCode::KafkaStorageError,
        // Another broker has it.
        (false, true) => ErrorCode::ReplicaNotAvailable,
        (false, false) => ErrorCode::UnknownTopicOrPartition,
    };
    let partition = topic.and_then(|topic| topic.partitions.get(&name.partition)).cloned();
    Wanted { name, directory, partition, without_log }
}

fn begin(store: &LogStore, log_dirs: &[PathBuf], wanted: &Wanted) -> ErrorCode {
    let Wanted { name, directory, partition, without_log } = wanted;
    // Kafka compares the names and not what they mean, so that a slash at the end is another directory.
    let is_named = |log_dir: &&PathBuf| {
        let absolute = std::path::absolute(log_dir);
        absolute.as_deref().unwrap_or(log_dir).as_os_str() == Path::new(directory).as_os_str()
    };
    let Some(directory) = log_dirs.iter().find(is_named) else { return ErrorCode::LogDirNotFound };
    let Some(partition) = partition else {
        return match store.wish(name, directory) {
            Ok(()) => *without_log,
            Err(error) => code_of(name, &error.into()),
        };
    };
    match store.begin_move(name, directory) {
        Ok(Move::Copies(future)) => {
            partition.set_future(Some(future));
            ErrorCode::None
        }
        Ok(Move::Stays) => {
            partition.set_future(None);
            ErrorCode::None
        }
        Err(error) => {
            partition.set_future(store.future(name));
            code_of(name, &error)
        }
    }
}

fn code_of(name: &TopicPartition, error: &MoveError) -> ErrorCode {
    tracing::warn!("partition {name} is not moved: {error}");
    match error {
        MoveError::NoLog => ErrorCode::ReplicaNotAvailable,
        MoveError::Directory(PlacementError::Unknown) => ErrorCode::LogDirNotFound,
        MoveError::Directory(PlacementError::Offline(_)) | MoveError::Storage(_) => {
            ErrorCode::KafkaStorageError
        }
    }
}

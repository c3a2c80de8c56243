//! Telling the controller in which log directory each replica is, so that it elects nobody whose directory is offline
//! (KIP-858). A broker with one directory is assumed to use it; this tells what is otherwise.
//!
//! A replica that cannot serve, whose disk has no room for more, or that lacks what it had told that it has, is told to be
//! in no directory: it leaves the ISR, and another one leads. Kafka takes the whole directory offline then. The last one
//! in sync is not told of: nobody could take its place.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use klamm_metadata::{DIRECTORY_LOST, Image, PartitionState};
use klamm_model::{ErrorCode, TopicId, Uuid};
use klamm_partition::Partition;
use klamm_protocol::messages::AssignReplicasToDirsRequest;
use klamm_protocol::messages::assign_replicas_to_dirs::{
    DirectoryDataRequest, PartitionDataRequest, TopicDataRequest,
};

use crate::context::{CONTROLLER_TIMEOUT, Context};
use crate::partition_table::LocalTopic;
use crate::stop::Stop;

/// How many replicas one request tells of, as in Kafka.
const REPLICAS_MAX: usize = 2250;

/// How often it is looked again when no metadata have changed: a move into another directory ends without that, and a disk
/// becomes full.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How many bytes have to be free until a replica that found no room for its records comes back where nothing is written.
const ROOM_BYTES: u64 = 64 << 20;

/// How long it waits after a change of the metadata, so that many new partitions make one request.
const PAUSE: Duration = Duration::from_millis(500);

/// Tells until `stop`.
pub(crate) async fn run(context: Arc<Context>, mut stop: Stop) {
    let mut images = context.metadata.watch();
    loop {
        let image = images.borrow_and_update().clone();
        let untold = untold(&context, &image);
        let is_told = untold.is_empty() || tell(&context, untold).await;
        let pause = if is_told { Duration::ZERO } else { LOOK_EVERY };
        let changed = async {
            tokio::time::sleep(pause.max(PAUSE)).await;
            // An error means that the quorum has ended on this node, which others tell.
            let _ = tokio::time::timeout(LOOK_EVERY, images.changed()).await;
        };
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = changed => {}
        }
    }
}

/// The replicas here of which the cluster believes that they are in another directory, by the one that they are in.
fn untold(context: &Context, image: &Image) -> BTreeMap<Uuid, BTreeMap<TopicId, Vec<i32>>> {
    let mut untold: BTreeMap<Uuid, BTreeMap<TopicId, Vec<i32>>> = BTreeMap::new();
    let mut count = 0;
    let table = context.partitions.load();
    for local in table.topics() {
        let Some(topic) = image.topic(local.id) else { continue };
        let unopened = local.offline.iter().filter(|index| !local.partitions.contains_key(*index));
        for index in local.partitions.keys().chain(unopened).copied() {
            let Some(state) = topic.partition(index) else { continue };
            let Some(directory) = directory_of(context, local, index, state) else { continue };
            if !state.replicas.contains(&context.node_id) || state.directory_of(context.node_id) == directory
            {
                continue;
            }
            count += 1;
            if count > REPLICAS_MAX {
                return untold;
            }
            untold.entry(directory).or_default().entry(local.id).or_default().push(index);
        }
    }
    untold
}

/// Where a replica is; nothing if that is not to be told.
fn directory_of(context: &Context, local: &LocalTopic, index: i32, state: &PartitionState) -> Option<Uuid> {
    let node = context.node_id;
    let partition = local.partitions.get(&index);
    let log = partition.map(|partition| partition.log());
    if log.as_ref().is_some_and(|log| !log.is_directory_online()) {
        return log.map(|log| log.directory_id());
    }
    let others = state.isr.iter().filter(|member| **member != node).count();
    let has_failed =
        |partition: &Partition| partition.log().failure().is_some() || partition.has_lost_records();
    if local.offline.contains(&index) || partition.is_some_and(|partition| has_failed(partition)) {
        return (others > 0 || state.directory_of(node) == DIRECTORY_LOST).then_some(DIRECTORY_LOST);
    }
    let is_given_away = |partition: &Partition| {
        // Without as many as acknowledgements need, nobody would gain by it, and this one can at least be read.
        lacks_space(context, partition) && others >= partition.in_sync_replicas_min().max(1)
    };
    if partition.is_some_and(|partition| is_given_away(partition)) {
        return Some(DIRECTORY_LOST);
    }
    log.map(|log| log.directory_id())
}

/// Whether a partition's records find no room, so that another replica should lead.
pub(crate) fn lacks_space(context: &Context, partition: &Partition) -> bool {
    partition.lacks_space(|| has_room(context, partition))
}

/// Whether the file system of a partition's log has room for more than a few records.
fn has_room(context: &Context, partition: &Partition) -> bool {
    let free = context.store.free_bytes(&partition.log());
    free.is_none_or(|free| free >= ROOM_BYTES)
}

/// Whether the controller took it.
async fn tell(context: &Context, untold: BTreeMap<Uuid, BTreeMap<TopicId, Vec<i32>>>) -> bool {
    let topic = |(topic_id, indexes): (TopicId, Vec<i32>)| {
        let partitions = indexes.into_iter().map(|partition_index| PartitionDataRequest { partition_index });
        TopicDataRequest { topic_id, partitions: partitions.collect() }
    };
    let directories = untold
        .into_iter()
        .map(|(id, topics)| DirectoryDataRequest { id, topics: topics.into_iter().map(topic).collect() });
    let request = AssignReplicasToDirsRequest {
        broker_id: context.node_id.0,
        broker_epoch: context.broker_epoch(),
        directories: directories.collect(),
    };
    let answer = context.controller.ask(request, CONTROLLER_TIMEOUT).await;
    let code = ErrorCode::from_code(answer.error_code).unwrap_or(ErrorCode::UnknownServerError);
    if code != ErrorCode::None {
        tracing::warn!("the controller was not told in which log directories replicas are: {code}");
    }
    code == ErrorCode::None
}

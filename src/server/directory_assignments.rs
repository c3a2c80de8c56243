//! Telling the controller in which log directory each replica is, so that it elects nobody whose directory is offline
//! (KIP-858). A broker with one directory is assumed to use it; this tells what is otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use klamm_metadata::Image;
use klamm_model::{ErrorCode, TopicId, Uuid};
use klamm_protocol::messages::AssignReplicasToDirsRequest;
use klamm_protocol::messages::assign_replicas_to_dirs::{
    DirectoryDataRequest, PartitionDataRequest, TopicDataRequest,
};

use crate::context::{CONTROLLER_TIMEOUT, Context};
use crate::stop::Stop;

/// How many replicas one request tells of, as in Kafka.
const REPLICAS_MAX: usize = 2250;

/// How often it is looked again when no metadata have changed: a move into another directory ends without that.
const LOOK_EVERY: Duration = Duration::from_secs(5);

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
    for partition in table.partitions() {
        let (id, index) = (partition.topic_id(), partition.topic_partition().partition);
        let Some(state) = image.topic(id).and_then(|topic| topic.partition(index)) else { continue };
        let directory = partition.log().directory_id();
        if !state.replicas.contains(&context.node_id) || state.directory_of(context.node_id) == directory {
            continue;
        }
        count += 1;
        if count > REPLICAS_MAX {
            break;
        }
        untold.entry(directory).or_default().entry(id).or_default().push(index);
    }
    untold
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

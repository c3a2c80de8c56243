//! Markers on their way to the brokers that lead the partitions: what waits for a broker goes in one request.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use klamm_io::Network;
use klamm_model::{ErrorCode, NodeId};
use klamm_partition::TransactionMarker;
use klamm_protocol::messages::write_txn_markers::{
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest, WriteTxnMarkersResponse,
};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::broker_channel::BrokerChannel;
use crate::context::Context;

/// The version of WriteTxnMarkers that brokers speak with each other.
const VERSION: i16 = 2;

/// How many transactions may wait for one broker before their tasks do, and how many go into one request.
const WAITING_MAX: usize = 1_000;

/// Names a partition.
pub(crate) type Named = (Arc<str>, i32);

/// One transaction's end at one broker.
struct Ending {
    marker: TransactionMarker,
    partitions: Vec<Named>,
    answer: oneshot::Sender<BTreeMap<Named, ErrorCode>>,
}

/// A queue for each broker that a marker was sent to.
pub(crate) struct MarkerChannel {
    brokers: Arc<BrokerChannel>,
    queues: Mutex<BTreeMap<NodeId, mpsc::Sender<Ending>>>,
}

impl MarkerChannel {
    pub(crate) fn new(network: Arc<dyn Network>, node: NodeId) -> MarkerChannel {
        let brokers = BrokerChannel::new(network, format!("broker-{node}-txn-marker-sender"));
        MarkerChannel { brokers: Arc::new(brokers), queues: Mutex::default() }
    }

    /// Has another broker write a marker into its partitions; the code of each. Those without one are not known to
    /// have it.
    pub(crate) async fn write(
        &self,
        context: &Arc<Context>,
        node: NodeId,
        marker: TransactionMarker,
        partitions: Vec<Named>,
    ) -> BTreeMap<Named, ErrorCode> {
        let (answer, answered) = oneshot::channel();
        let queue = self.queue(context, node);
        // Both fail only when the node stops.
        if queue.send(Ending { marker, partitions, answer }).await.is_err() {
            return BTreeMap::new();
        }
        answered.await.unwrap_or_default()
    }

    fn queue(&self, context: &Arc<Context>, node: NodeId) -> mpsc::Sender<Ending> {
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get(&node).filter(|queue| !queue.is_closed()) {
            return queue.clone();
        }
        let (queue, endings) = mpsc::channel(WAITING_MAX);
        tokio::spawn(send_all(Arc::downgrade(context), self.brokers.clone(), node, endings));
        queues.insert(node, queue.clone());
        queue
    }
}

async fn send_all(
    context: Weak<Context>,
    brokers: Arc<BrokerChannel>,
    node: NodeId,
    mut endings: mpsc::Receiver<Ending>,
) {
    let mut waiting = Vec::new();
    while endings.recv_many(&mut waiting, WAITING_MAX).await > 0 {
        let Some(context) = context.upgrade() else { return };
        let request = WriteTxnMarkersRequest { markers: waiting.iter().map(written).collect() };
        let answer = brokers.ask(&context, node, VERSION, &request).await;
        let answer = answer.unwrap_or_else(|error| {
            tracing::debug!("broker {node} did not write {} markers: {error}", waiting.len());
            WriteTxnMarkersResponse::default()
        });
        // Answers come in the order of the markers.
        let mut results = answer.markers.into_iter();
        for ending in waiting.drain(..) {
            let topics = results.next().map(|result| result.topics).unwrap_or_default();
            let codes = topics.into_iter().flat_map(|topic| {
                let name: Arc<str> = topic.name.as_str().into();
                topic.partitions.into_iter().map(move |partition| {
                    let code = ErrorCode::from_code(partition.error_code);
                    ((name.clone(), partition.partition_index), code.unwrap_or(ErrorCode::UnknownServerError))
                })
            });
            // Whoever asked may have gone.
            let _ = ending.answer.send(codes.collect());
        }
    }
}

fn written(ending: &Ending) -> WritableTxnMarker {
    let mut topics: BTreeMap<&Arc<str>, Vec<i32>> = BTreeMap::new();
    for (topic, index) in &ending.partitions {
        topics.entry(topic).or_default().push(*index);
    }
    let topic = |(name, partition_indexes): (&Arc<str>, Vec<i32>)| WritableTxnMarkerTopic {
        name: name.to_string(),
        partition_indexes,
    };
    WritableTxnMarker {
        producer_id: ending.marker.producer_id.0,
        producer_epoch: ending.marker.producer_epoch.0,
        transaction_result: ending.marker.is_commit,
        topics: topics.into_iter().map(topic).collect(),
        coordinator_epoch: ending.marker.coordinator_epoch,
        transaction_version: ending.marker.transaction_version,
    }
}

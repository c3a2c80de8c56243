//! WriteTxnMarkers (key 27), versions 0 to 2: a coordinator, or `kafka-transactions abort`, ends transactions in
//! partitions of this node.
//!
//! v1 flexible; v2 the version of transactions that the producer speaks (KIP-1228).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use klamm_model::{ErrorCode, ProducerEpoch, ProducerId};
use klamm_partition::TransactionMarker;
use klamm_protocol::messages::write_txn_markers::{
    WritableTxnMarker, WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult, WriteTxnMarkersRequest, WriteTxnMarkersResponse,
};

use tokio::task::JoinSet;

use super::Call;
use crate::context::Context;
use crate::transaction_markers;

/// How many transactions are ended at once.
const UNDER_WAY_MAX: usize = 256;

pub(crate) async fn handle(
    context: &Arc<Context>,
    _call: &Call,
    request: WriteTxnMarkersRequest,
) -> WriteTxnMarkersResponse {
    // A coordinator sends the next end of a producer only when it knows that the last one was written, so that no two
    // of them are in one request.
    let (mut writes, mut results) = (JoinSet::new(), BTreeMap::new());
    for (place, marker) in request.markers.into_iter().enumerate() {
        if writes.len() >= UNDER_WAY_MAX {
            results.extend(writes.join_next().await.and_then(Result::ok));
        }
        let context = context.clone();
        writes.spawn(async move { (place, write(&context, marker).await) });
    }
    while let Some(written) = writes.join_next().await {
        results.extend(written);
    }
    WriteTxnMarkersResponse { markers: results.into_values().collect() }
}

async fn write(context: &Arc<Context>, request: WritableTxnMarker) -> WritableTxnMarkerResult {
    let marker = TransactionMarker {
        producer_id: ProducerId(request.producer_id),
        producer_epoch: ProducerEpoch(request.producer_epoch),
        coordinator_epoch: request.coordinator_epoch,
        is_commit: request.transaction_result,
        transaction_version: request.transaction_version,
    };
    let is_a_producer = marker.producer_id.0 >= 0 && marker.producer_epoch.0 >= 0;
    let named = once(request.topics);
    let all = named.iter().flat_map(|(name, indexes)| {
        let name: Arc<str> = name.as_str().into();
        indexes.iter().map(move |index| (name.clone(), *index))
    });
    let codes = match is_a_producer {
        true => transaction_markers::write_here(context, all.collect(), marker).await,
        false => BTreeMap::new(),
    };
    let topics = named.into_iter().map(|(name, indexes)| {
        let shared: Arc<str> = name.as_str().into();
        let partitions = indexes.into_iter().map(|partition_index| {
            let code = codes.get(&(shared.clone(), partition_index)).copied();
            let error_code = code.unwrap_or(ErrorCode::UnknownServerError).code();
            WritableTxnMarkerPartitionResult { partition_index, error_code }
        });
        WritableTxnMarkerTopicResult { partitions: partitions.collect(), name }
    });
    WritableTxnMarkerResult { producer_id: request.producer_id, topics: topics.collect() }
}

/// The partitions by topic, each once, as in Kafka: a few bytes of the request become a batch in a log.
fn once(topics: Vec<WritableTxnMarkerTopic>) -> BTreeMap<String, BTreeSet<i32>> {
    let mut by_name: BTreeMap<String, BTreeSet<i32>> = BTreeMap::new();
    for topic in topics {
        by_name.entry(topic.name).or_default().extend(topic.partition_indexes);
    }
    by_name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_that_is_named_often_gets_one_marker() {
        let topic = |name: &str, partition_indexes: &[i32]| WritableTxnMarkerTopic {
            name: name.to_owned(),
            partition_indexes: partition_indexes.to_vec(),
        };
        let named = vec![topic("b", &[1, 0, 1]), topic("", &[]), topic("a", &[0]), topic("b", &[1, 2])];
        let partitions: Vec<(String, Vec<i32>)> =
            once(named).into_iter().map(|(name, indexes)| (name, indexes.into_iter().collect())).collect();
        let expected = [("", vec![]), ("a", vec![0]), ("b", vec![0, 1, 2])];
        assert_eq!(partitions, expected.map(|(name, indexes)| (name.to_owned(), indexes)));
    }
}

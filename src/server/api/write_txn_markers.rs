//! WriteTxnMarkers (key 27), versions 0 to 2: a coordinator, or `kafka-transactions abort`, ends transactions in
//! partitions of this node.
//!
//! v1 flexible; v2 the version of transactions that the producer speaks (KIP-1228).

use std::collections::{BTreeMap, BTreeSet};

use klamm_model::{ErrorCode, ProducerEpoch, ProducerId};
use klamm_partition::TransactionMarker;
use klamm_protocol::messages::write_txn_markers::{
    WritableTxnMarker, WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult, WriteTxnMarkersRequest, WriteTxnMarkersResponse,
};

use super::Call;
use crate::context::Context;
use crate::transaction_markers;

pub(crate) async fn handle(
    context: &Context,
    _call: &Call,
    request: WriteTxnMarkersRequest,
) -> WriteTxnMarkersResponse {
    let mut response = WriteTxnMarkersResponse::default();
    for marker in request.markers {
        response.markers.push(write(context, marker).await);
    }
    response
}

async fn write(context: &Context, request: WritableTxnMarker) -> WritableTxnMarkerResult {
    let marker = TransactionMarker {
        producer_id: ProducerId(request.producer_id),
        producer_epoch: ProducerEpoch(request.producer_epoch),
        coordinator_epoch: request.coordinator_epoch,
        is_commit: request.transaction_result,
        transaction_version: request.transaction_version,
    };
    let is_a_producer = marker.producer_id.0 >= 0 && marker.producer_epoch.0 >= 0;
    let mut topics = Vec::new();
    for (name, indexes) in once(request.topics) {
        let mut partitions = Vec::with_capacity(indexes.len());
        for partition_index in indexes {
            let error = match is_a_producer {
                true => transaction_markers::write(context, &name, partition_index, &marker).await,
                false => ErrorCode::UnknownServerError,
            };
            partitions.push(WritableTxnMarkerPartitionResult { partition_index, error_code: error.code() });
        }
        topics.push(WritableTxnMarkerTopicResult { name, partitions });
    }
    WritableTxnMarkerResult { producer_id: request.producer_id, topics }
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

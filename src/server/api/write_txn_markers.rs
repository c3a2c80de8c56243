//! WriteTxnMarkers (key 27), versions 0 to 2: a coordinator, or `kafka-transactions abort`, ends transactions in
//! partitions of this node.
//!
//! v1 flexible; v2 the version of transactions that the producer speaks (KIP-1228).

use klamm_model::{ErrorCode, ProducerEpoch, ProducerId};
use klamm_partition::TransactionMarker;
use klamm_protocol::messages::write_txn_markers::{
    WritableTxnMarker, WritableTxnMarkerPartitionResult, WritableTxnMarkerResult,
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
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let mut partitions = Vec::with_capacity(topic.partition_indexes.len());
        for index in topic.partition_indexes {
            let is_a_producer = marker.producer_id.0 >= 0 && marker.producer_epoch.0 >= 0;
            let error = match is_a_producer {
                true => transaction_markers::write(context, &topic.name, index, &marker).await,
                false => ErrorCode::UnknownServerError,
            };
            let partition_index = index;
            partitions.push(WritableTxnMarkerPartitionResult { partition_index, error_code: error.code() });
        }
        topics.push(WritableTxnMarkerTopicResult { name: topic.name, partitions });
    }
    WritableTxnMarkerResult { producer_id: request.producer_id, topics }
}

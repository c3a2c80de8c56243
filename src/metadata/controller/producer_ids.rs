//! Producer ids are given to brokers in blocks, so that InitProducerId seldom asks the controller.

use std::ops::Range;

use klamm_model::{ErrorCode, NodeId};
use klamm_protocol::records::cluster_metadata::{MetadataRecord, ProducerIdsRecord};

use crate::image::Image;

/// How many ids are in a block, as in Kafka.
pub const PRODUCER_ID_BLOCK_LEN: i64 = 1000;

/// Gives a broker the next block. A broker that is not registered, or no longer in that epoch, gets none
/// (102 and 77); past the last id there are no more (-1).
pub fn allocate_producer_ids(
    image: &Image,
    broker: NodeId,
    broker_epoch: i64,
) -> (Vec<MetadataRecord>, Result<Range<i64>, ErrorCode>) {
    let registered = match image.brokers.get(&broker) {
        None => return (Vec::new(), Err(ErrorCode::BrokerIdNotRegistered)),
        Some(registered) => registered,
    };
    if registered.epoch != broker_epoch {
        return (Vec::new(), Err(ErrorCode::StaleBrokerEpoch));
    }
    let first = image.next_producer_id;
    let Some(next) = first.checked_add(PRODUCER_ID_BLOCK_LEN) else {
        return (Vec::new(), Err(ErrorCode::UnknownServerError));
    };
    let record = ProducerIdsRecord { broker_id: broker.0, broker_epoch, next_producer_id: next };
    (vec![MetadataRecord::ProducerIds(record)], Ok(first..next))
}

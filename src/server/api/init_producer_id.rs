//! InitProducerId (key 22), versions 0 to 5.
//!
//! v2 flexible; v3 the id and epoch that the producer has (KIP-360); v4 PRODUCER_FENCED (KIP-588); v5 the error
//! TRANSACTION_ABORTABLE (KIP-890).

use klamm_model::{ErrorCode, ProducerEpoch, ProducerId};
use klamm_protocol::messages::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse {
    let given = match &request.transactional_id {
        // Both of id and epoch, or neither.
        None if (request.producer_id == -1) != (request.producer_epoch == -1) => {
            Err(ErrorCode::InvalidRequest)
        }
        // A producer without transactions gets a new id whatever it had (KIP-360 is about transactional ones).
        None => context.unused_producer_id().await.map(|id| (id, ProducerEpoch(0))),
        Some(_) => context.transactions.init_producer_id(call.version, &request).await,
    };
    match given {
        Ok((ProducerId(producer_id), ProducerEpoch(producer_epoch))) => {
            InitProducerIdResponse { producer_id, producer_epoch, ..Default::default() }
        }
        Err(code) => InitProducerIdResponse {
            error_code: code.code(),
            producer_id: -1,
            producer_epoch: -1,
            ..Default::default()
        },
    }
}

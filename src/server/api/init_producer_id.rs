//! InitProducerId (key 22), versions 0 to 5.
//!
//! v2 flexible; v3 the id and epoch that the producer has (KIP-360); v4 PRODUCER_FENCED (KIP-588); v5 the error
//! TRANSACTION_ABORTABLE (KIP-890). Transactional ids are not served: such a producer is refused.

use klamm_model::{ErrorCode, ProducerId};
use klamm_protocol::messages::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    _call: &Call,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse {
    let given = match &request.transactional_id {
        // Both of id and epoch, or neither.
        None if (request.producer_id == -1) != (request.producer_epoch == -1) => {
            Err(ErrorCode::InvalidRequest)
        }
        // A producer without transactions gets a new id whatever it had (KIP-360 is about transactional ones).
        None => context.producer_ids.next(&context.controller, context.node_id, context.broker_epoch()).await,
        Some(_) => Err(ErrorCode::InvalidRequest),
    };
    match given {
        Ok(ProducerId(producer_id)) => {
            InitProducerIdResponse { producer_id, producer_epoch: 0, ..Default::default() }
        }
        Err(code) => InitProducerIdResponse {
            error_code: code.code(),
            producer_id: -1,
            producer_epoch: -1,
            ..Default::default()
        },
    }
}

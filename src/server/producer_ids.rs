//! Producer ids: handed out from a block that the controller has promised to nobody else.

use std::ops::Range;
use std::time::Duration;

use klamm_model::{ErrorCode, NodeId, ProducerId};
use klamm_protocol::messages::AllocateProducerIdsRequest;
use tokio::sync::Mutex;

use crate::controller_channel::ControllerChannel;

/// How long the controller may take to give a block.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The rest of this node's block.
#[derive(Default)]
pub(crate) struct ProducerIds {
    // An async mutex, because it is held while a new block is fetched: all who wait need that block.
    block: Mutex<Range<i64>>,
}

impl ProducerIds {
    /// An id that no producer ever had.
    pub(crate) async fn next(
        &self,
        controller: &ControllerChannel,
        node: NodeId,
        broker_epoch: i64,
    ) -> Result<ProducerId, ErrorCode> {
        let mut block = self.block.lock().await;
        if block.is_empty() {
            let request = AllocateProducerIdsRequest { broker_id: node.0, broker_epoch };
            let given = controller.ask(request, TIMEOUT).await;
            if given.error_code != ErrorCode::None.code() {
                return Err(ErrorCode::from_code(given.error_code).unwrap_or(ErrorCode::UnknownServerError));
            }
            *block = given.producer_id_start..given.producer_id_start + i64::from(given.producer_id_len);
        }
        let id = block.start;
        block.start += 1;
        Ok(ProducerId(id))
    }
}

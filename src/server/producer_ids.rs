//! Producer ids: handed out from a block that the controller has promised to nobody else.

use std::ops::Range;

use klamm_model::{ErrorCode, NodeId, ProducerId};
use tokio::sync::Mutex;

use klamm_metadata::MetadataNode;

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
        metadata: &MetadataNode,
        node: NodeId,
        broker_epoch: i64,
    ) -> Result<ProducerId, ErrorCode> {
        let mut block = self.block.lock().await;
        if block.is_empty() {
            *block = metadata.allocate_producer_ids(node, broker_epoch).await?;
        }
        let id = block.start;
        block.start += 1;
        Ok(ProducerId(id))
    }
}

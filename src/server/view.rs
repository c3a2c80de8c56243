//! What a simulation may see of a node that no client sees.

use std::sync::Arc;

use klamm_metadata::Image;
use klamm_partition::Partition;

use crate::context::Context;

/// A look into a node, which changes nothing in it. It stays valid when the node has ended, and then shows its end.
#[derive(Clone)]
pub struct NodeView(pub(crate) Arc<Context>);

impl NodeView {
    /// The newest image of the cluster that the node has.
    pub fn image(&self) -> Arc<Image> {
        self.0.image()
    }

    /// The epoch of its registration as a broker.
    pub fn broker_epoch(&self) -> i64 {
        self.0.broker_epoch()
    }

    /// The replicas that it has, in the order of topics' ids and partitions.
    pub fn replicas(&self) -> Vec<Arc<Partition>> {
        self.0.partitions.load().partitions().cloned().collect()
    }
}

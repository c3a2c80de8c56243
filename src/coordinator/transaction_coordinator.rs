//! The coordinator of all transactions of this node.

use std::sync::Arc;
use std::time::Duration;

use klamm_io::{BoxFuture, Clock};
use klamm_metadata::Image;
use klamm_model::{ErrorCode, LeaderEpoch, ProducerId};
use klamm_partition::Partition;

use crate::machine::Host;
use crate::partition_of;
use crate::runtime::{CoordinatorLog, Loading, Mailboxes};
use crate::settings::TransactionSettings;
use crate::transaction::{Reply, Request, TransactionShard, WriteMarkers};

/// What the coordinator of transactions sees of the node it runs on.
pub trait TransactionEnvironment: Send + Sync {
    /// A partition of `__transaction_state` that this node holds.
    fn transactions_partition(&self, index: i32) -> Option<Arc<Partition>>;

    /// How many partitions `__transaction_state` has; 0 while the topic does not exist.
    fn transactions_partition_count(&self) -> i32;

    /// The cluster as this node knows it.
    fn image(&self) -> Arc<Image>;

    /// Whether no other node led a partition of `__transaction_state` at a time of the monotonic clock, though this one
    /// believed to lead it. It may take a while to find out.
    fn led_alone(&self, index: i32, time: Duration) -> BoxFuture<'_, bool>;

    /// An id that no producer ever had.
    fn unused_producer_id(&self) -> BoxFuture<'_, Result<ProducerId, ErrorCode>>;

    /// Begins to write markers into the partitions of a transaction, which may be on other nodes, and goes on
    /// until all have theirs; then [`TransactionCoordinator::markers_written`] is to be told. Does not wait.
    fn write_markers(&self, markers: WriteMarkers);
}

/// Serves the transactions whose partitions of `__transaction_state` this node leads.
pub struct TransactionCoordinator {
    pub(crate) settings: Arc<TransactionSettings>,
    pub(crate) env: Arc<dyn TransactionEnvironment>,
    pub(crate) mailboxes: Mailboxes<TransactionShard>,
}

struct TransactionHost {
    settings: Arc<TransactionSettings>,
    env: Arc<dyn TransactionEnvironment>,
}

impl Host<TransactionShard> for TransactionHost {
    fn machine(&self, coordinator_epoch: i32) -> TransactionShard {
        TransactionShard::new(self.settings.clone(), coordinator_epoch)
    }

    fn image(&self) -> Arc<Image> {
        self.env.image()
    }

    fn carry_out(&self, command: WriteMarkers) {
        self.env.write_markers(command);
    }
}

impl TransactionCoordinator {
    /// A coordinator that leads nothing yet.
    pub fn new(
        settings: TransactionSettings,
        clock: Arc<dyn Clock>,
        env: Arc<dyn TransactionEnvironment>,
    ) -> TransactionCoordinator {
        let settings = Arc::new(settings);
        let host = Arc::new(TransactionHost { settings: settings.clone(), env: env.clone() });
        let mailboxes = Mailboxes::new(settings.runtime(), clock, host);
        TransactionCoordinator { settings, env, mailboxes }
    }

    /// This node leads a partition of `__transaction_state`, but its log is still being recovered: who asks for
    /// its transactions is told to come again.
    pub fn on_recovering(&self, partition: i32) {
        self.mailboxes.expect(partition);
    }

    /// This node leads a partition of `__transaction_state` now: its transactions are loaded. Needs to be
    /// called on a tokio runtime.
    pub fn on_elected(&self, partition: i32, epoch: LeaderEpoch) {
        self.mailboxes.elect(partition, epoch, || self.env.transactions_partition(partition));
    }

    /// This node does not lead the partition any more: whoever waits is told to look for another.
    pub fn on_resigned(&self, partition: i32) {
        self.mailboxes.close(partition);
    }

    /// Whether this node is the coordinator of a transactional id, in an epoch.
    pub fn leads(&self, transactional_id: &str, epoch: LeaderEpoch) -> bool {
        let count = self.env.transactions_partition_count();
        count > 0 && self.mailboxes.has(partition_of(transactional_id, count), epoch)
    }

    /// Whether this node is the coordinator of a transactional id, in an epoch, and no other node was by now. It may
    /// take a while to find out.
    pub async fn leads_alone(&self, transactional_id: &str, epoch: LeaderEpoch) -> bool {
        let now = self.mailboxes.clock.monotonic();
        let index = partition_of(transactional_id, self.env.transactions_partition_count());
        self.leads(transactional_id, epoch) && self.env.led_alone(index, now).await
    }

    /// How far the partitions are that this node leads.
    pub fn loading(&self) -> Loading {
        self.mailboxes.loading()
    }

    /// Opens a mailbox over a log, in place of one from an earlier epoch, and loads it. What
    /// [`TransactionCoordinator::on_elected`] does with a partition of this node. Needs to be called on a tokio
    /// runtime.
    pub fn open(&self, partition: i32, epoch: LeaderEpoch, log: Arc<dyn CoordinatorLog>) {
        self.mailboxes.open(partition, epoch, log);
    }

    /// Asks the mailbox that a transactional id belongs to.
    pub(crate) async fn ask(&self, transactional_id: &str, request: Request) -> Reply {
        let count = self.env.transactions_partition_count();
        let asked_at = self.mailboxes.clock.monotonic();
        let reply = self.mailboxes.ask(transactional_id, count, request).await;
        let is_settled = matches!(reply, Reply::Refused(_) | Reply::NeedsProducerId);
        // What was so already is answered without an append, and may be so no longer.
        let index = partition_of(transactional_id, count);
        if is_settled || self.env.led_alone(index, asked_at).await {
            reply
        } else {
            Reply::Refused(ErrorCode::CoordinatorNotAvailable)
        }
    }

    /// As [`TransactionCoordinator::ask`] for requests that may need an id that no producer had.
    pub(crate) async fn ask_with_id(
        &self,
        transactional_id: &str,
        request: impl Fn(Option<ProducerId>) -> Request,
    ) -> Reply {
        match self.ask(transactional_id, request(None)).await {
            Reply::NeedsProducerId => match self.env.unused_producer_id().await {
                Ok(unused) => self.ask(transactional_id, request(Some(unused))).await,
                Err(error) => Reply::Refused(error),
            },
            reply => reply,
        }
    }
}

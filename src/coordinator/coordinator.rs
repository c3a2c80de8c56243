//! The coordinator of all groups of this node: which mailbox a group belongs to, and whether it is open.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use klamm_io::{BoxFuture, Clock, Random};
use klamm_metadata::Image;
use klamm_model::LeaderEpoch;
use klamm_partition::Partition;

use crate::group::{GroupShard, Reply, Request};
use crate::machine::Host;
use crate::runtime::{CoordinatorLog, Loading, Mailboxes};
use crate::settings::GroupSettings;

/// Who sent a request.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// The client id of the request's header; empty where it had none.
    pub client_id: String,
    /// The address, as Kafka shows it: a slash, then the address without the port.
    pub client_host: String,
    /// The version of the request.
    pub api_version: i16,
}

/// What the coordinator sees of the node it runs on.
pub trait GroupEnvironment: Send + Sync {
    /// A partition of `__consumer_offsets` that this node holds.
    fn offsets_partition(&self, index: i32) -> Option<Arc<Partition>>;

    /// How many partitions `__consumer_offsets` has; 0 while the topic does not exist.
    fn offsets_partition_count(&self) -> i32;

    /// The cluster as this node knows it.
    fn image(&self) -> Arc<Image>;

    /// Whether no other node led a partition of `__consumer_offsets` at a time of the monotonic clock, though this one
    /// believed to lead it. It may take a while to find out.
    fn led_alone(&self, index: i32, time: Duration) -> BoxFuture<'_, bool>;
}

/// Serves the groups whose partitions of `__consumer_offsets` this node leads.
pub struct GroupCoordinator {
    pub(crate) settings: Arc<GroupSettings>,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) env: Arc<dyn GroupEnvironment>,
    pub(crate) mailboxes: Mailboxes<GroupShard>,
}

struct GroupHost {
    settings: Arc<GroupSettings>,
    env: Arc<dyn GroupEnvironment>,
}

impl Host<GroupShard> for GroupHost {
    fn machine(&self, _coordinator_epoch: i32) -> GroupShard {
        GroupShard::new(self.settings.clone())
    }

    fn image(&self) -> Arc<Image> {
        self.env.image()
    }

    fn carry_out(&self, command: Infallible) {
        match command {}
    }
}

impl GroupCoordinator {
    /// A coordinator that leads nothing yet.
    pub fn new(
        settings: GroupSettings,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
        env: Arc<dyn GroupEnvironment>,
    ) -> GroupCoordinator {
        let settings = Arc::new(settings);
        let host = Arc::new(GroupHost { settings: settings.clone(), env: env.clone() });
        let mailboxes = Mailboxes::new(settings.runtime(), clock, host);
        GroupCoordinator { settings, random, env, mailboxes }
    }

    /// This node leads a partition of `__consumer_offsets`, but its log is still being recovered: who asks for
    /// its groups is told to come again.
    pub fn on_recovering(&self, partition: i32) {
        self.mailboxes.expect(partition);
    }

    /// This node leads a partition of `__consumer_offsets` now: its groups are loaded. Needs to be called
    /// on a tokio runtime.
    pub fn on_elected(&self, partition: i32, epoch: LeaderEpoch) {
        self.mailboxes.elect(partition, epoch, || self.env.offsets_partition(partition));
    }

    /// This node does not lead the partition any more: whoever waits is told to look for another.
    pub fn on_resigned(&self, partition: i32) {
        self.mailboxes.close(partition);
    }

    /// Topics were deleted: so are the offsets that groups committed for them. Needs to be called on a tokio
    /// runtime.
    pub fn on_topics_deleted(&self, names: &[String]) {
        if names.is_empty() {
            return;
        }
        let mailboxes = self.mailboxes.opened();
        let (names, image) = (names.to_vec(), self.env.image());
        tokio::spawn(async move {
            for mailbox in mailboxes {
                let (names, image) = (names.clone(), image.clone());
                mailbox.ask(Request::TopicsDeleted { names, image }).await;
            }
        });
    }

    /// How far the partitions are that this node leads.
    pub fn loading(&self) -> Loading {
        self.mailboxes.loading()
    }

    /// Opens a mailbox over a log, in place of one from an earlier epoch, and loads it. What
    /// [`GroupCoordinator::on_elected`] does with a partition of this node. Needs to be called on a tokio
    /// runtime.
    pub fn open(&self, partition: i32, epoch: LeaderEpoch, log: Arc<dyn CoordinatorLog>) {
        self.mailboxes.open(partition, epoch, log);
    }

    /// Asks the mailbox that a group belongs to.
    pub(crate) async fn ask(&self, group: &str, request: Request) -> Reply {
        self.mailboxes.ask(group, self.env.offsets_partition_count(), request).await
    }
}

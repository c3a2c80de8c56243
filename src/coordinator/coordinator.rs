//! The coordinator of all groups of this node: which mailbox a group belongs to, and whether it is open.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use klamm_io::{Clock, Random};
use klamm_metadata::Image;
use klamm_model::{ErrorCode, LeaderEpoch};
use klamm_partition::Partition;
use parking_lot::Mutex;

use crate::group::{Reply, Request};
use crate::partition_of;
use crate::runtime::{Mailbox, Means, OffsetsLog, PartitionLog, Status};
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
}

/// Serves the groups whose partitions of `__consumer_offsets` this node leads.
pub struct GroupCoordinator {
    pub(crate) settings: Arc<GroupSettings>,
    clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) env: Arc<dyn GroupEnvironment>,
    mailboxes: Mutex<BTreeMap<i32, Mailbox>>,
    /// Partitions that this node leads and whose logs are being recovered.
    recovering: Mutex<BTreeSet<i32>>,
}

impl GroupCoordinator {
    /// A coordinator that leads nothing yet.
    pub fn new(
        settings: GroupSettings,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
        env: Arc<dyn GroupEnvironment>,
    ) -> GroupCoordinator {
        let mailboxes = Mutex::new(BTreeMap::new());
        let recovering = Mutex::default();
        GroupCoordinator { settings: Arc::new(settings), clock, random, env, mailboxes, recovering }
    }

    /// This node leads a partition of `__consumer_offsets`, but its log is still being recovered: who asks for
    /// its groups is told to come again.
    pub fn on_recovering(&self, partition: i32) {
        self.recovering.lock().insert(partition);
    }

    /// This node leads a partition of `__consumer_offsets` now: its groups are loaded. Needs to be called
    /// on a tokio runtime.
    pub fn on_elected(&self, partition: i32, epoch: LeaderEpoch) {
        if self.mailboxes.lock().get(&partition).is_some_and(|mailbox| mailbox.epoch == epoch) {
            return;
        }
        self.recovering.lock().remove(&partition);
        match self.env.offsets_partition(partition) {
            Some(log) => self.open(partition, epoch, Arc::new(PartitionLog::new(log, epoch))),
            None => {
                tracing::error!(partition, "elected for a partition of __consumer_offsets that is not here")
            }
        }
    }

    /// This node does not lead the partition any more: whoever waits is told to look for another.
    pub fn on_resigned(&self, partition: i32) {
        self.recovering.lock().remove(&partition);
        self.mailboxes.lock().remove(&partition);
    }

    /// Topics were deleted: so are the offsets that groups committed for them. Needs to be called on a tokio
    /// runtime.
    pub fn on_topics_deleted(&self, names: &[String]) {
        if names.is_empty() {
            return;
        }
        let mailboxes: Vec<Mailbox> = self.mailboxes.lock().values().cloned().collect();
        let (names, image) = (names.to_vec(), self.env.image());
        tokio::spawn(async move {
            for mailbox in mailboxes {
                let (names, image) = (names.clone(), image.clone());
                mailbox.ask(Request::TopicsDeleted { names, image }).await;
            }
        });
    }

    /// Opens a mailbox over a log, in place of one from an earlier epoch, and loads it. What
    /// [`GroupCoordinator::on_elected`] does with a partition of this node. Needs to be called on a tokio
    /// runtime.
    pub fn open(&self, partition: i32, epoch: LeaderEpoch, log: Arc<dyn OffsetsLog>) {
        let (settings, clock, env) = (self.settings.clone(), self.clock.clone(), self.env.clone());
        let mailbox = Mailbox::start(Means { partition, log, settings, clock, env }, epoch);
        self.mailboxes.lock().insert(partition, mailbox);
    }

    /// Asks the mailbox that a group belongs to.
    pub(crate) async fn ask(&self, group: &str, request: Request) -> Reply {
        match self.mailbox_of(group) {
            Ok(mailbox) => mailbox.ask(request).await,
            Err(error) => Reply::Refused(error),
        }
    }

    fn mailbox_of(&self, group: &str) -> Result<Mailbox, ErrorCode> {
        let count = self.env.offsets_partition_count();
        if count <= 0 {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        let partition = partition_of(group, count);
        let mailbox = self.mailboxes.lock().get(&partition).cloned();
        let mailbox = mailbox.ok_or_else(|| match self.recovering.lock().contains(&partition) {
            true => ErrorCode::CoordinatorLoadInProgress,
            false => ErrorCode::NotCoordinator,
        })?;
        match mailbox.status() {
            Status::Active => Ok(mailbox),
            Status::Loading | Status::Failed => Err(ErrorCode::CoordinatorLoadInProgress),
        }
    }

    /// All open mailboxes; an error while one of them loads, since its groups would be missing. One that
    /// could not be loaded is left out: it may stay so, and must not hide the groups of all others.
    pub(crate) fn all_mailboxes(&self) -> Result<Vec<Mailbox>, ErrorCode> {
        let mailboxes: Vec<Mailbox> = self.mailboxes.lock().values().cloned().collect();
        let is_recovering = !self.recovering.lock().is_empty();
        if is_recovering || mailboxes.iter().any(|mailbox| mailbox.status() == Status::Loading) {
            return Err(ErrorCode::CoordinatorLoadInProgress);
        }
        Ok(mailboxes.into_iter().filter(|mailbox| mailbox.status() == Status::Active).collect())
    }
}

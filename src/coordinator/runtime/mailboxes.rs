//! The mailboxes of one coordinator on this node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use klamm_io::Clock;
use klamm_model::{ErrorCode, LeaderEpoch};
use parking_lot::Mutex;

use super::RuntimeSettings;
use super::log::CoordinatorLog;
use super::mailbox::{Mailbox, Means, Status};
use crate::machine::{Host, Machine};
use crate::partition_of;

/// One mailbox for each partition of the topic that this node leads.
pub(crate) struct Mailboxes<M: Machine> {
    settings: RuntimeSettings,
    clock: Arc<dyn Clock>,
    host: Arc<dyn Host<M>>,
    by_partition: Mutex<BTreeMap<i32, Mailbox<M>>>,
    /// Partitions that this node leads and whose logs are being recovered.
    expected: Mutex<BTreeSet<i32>>,
}

impl<M: Machine> Mailboxes<M> {
    /// No mailbox yet.
    pub(crate) fn new(
        settings: RuntimeSettings,
        clock: Arc<dyn Clock>,
        host: Arc<dyn Host<M>>,
    ) -> Mailboxes<M> {
        Mailboxes { settings, clock, host, by_partition: Mutex::default(), expected: Mutex::default() }
    }

    /// Whether a partition is open in an epoch.
    pub(crate) fn has(&self, partition: i32, epoch: LeaderEpoch) -> bool {
        self.by_partition.lock().get(&partition).is_some_and(|mailbox| mailbox.epoch == epoch)
    }

    /// A mailbox will be opened when the log of its partition is recovered: who asks is told to come again.
    pub(crate) fn expect(&self, partition: i32) {
        self.expected.lock().insert(partition);
    }

    /// Opens a mailbox over a log, in place of one from an earlier epoch, and loads it. Needs to be called on a
    /// tokio runtime.
    pub(crate) fn open(&self, partition: i32, epoch: LeaderEpoch, log: Arc<dyn CoordinatorLog>) {
        let (settings, clock, host) = (self.settings, self.clock.clone(), self.host.clone());
        let mailbox = Mailbox::start(Means { partition, epoch, log, settings, clock, host });
        self.by_partition.lock().insert(partition, mailbox);
        self.expected.lock().remove(&partition);
    }

    /// Closes a mailbox: whoever waits is told to look for another coordinator.
    pub(crate) fn close(&self, partition: i32) {
        self.expected.lock().remove(&partition);
        self.by_partition.lock().remove(&partition);
    }

    /// Asks the mailbox that a name belongs to, where the topic has `count` partitions.
    pub(crate) async fn ask(&self, name: &str, count: i32, request: M::Request) -> M::Reply {
        match self.of(name, count) {
            Ok(mailbox) => mailbox.ask(request).await,
            Err(error) => M::refusal(error),
        }
    }

    /// Asks the mailbox of one partition, whatever it holds.
    pub(crate) async fn ask_partition(&self, partition: i32, request: M::Request) -> M::Reply {
        match self.active(partition) {
            Ok(mailbox) => mailbox.ask(request).await,
            Err(error) => M::refusal(error),
        }
    }

    fn of(&self, name: &str, count: i32) -> Result<Mailbox<M>, ErrorCode> {
        if count <= 0 {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        self.active(partition_of(name, count))
    }

    fn active(&self, partition: i32) -> Result<Mailbox<M>, ErrorCode> {
        let mailbox = self.by_partition.lock().get(&partition).cloned();
        let mailbox = mailbox.ok_or_else(|| match self.expected.lock().contains(&partition) {
            true => ErrorCode::CoordinatorLoadInProgress,
            false => ErrorCode::NotCoordinator,
        })?;
        match mailbox.status() {
            Status::Active => Ok(mailbox),
            Status::Loading | Status::Failed => Err(ErrorCode::CoordinatorLoadInProgress),
        }
    }

    /// All open mailboxes, whatever their status.
    pub(crate) fn opened(&self) -> Vec<Mailbox<M>> {
        self.by_partition.lock().values().cloned().collect()
    }

    /// All that are loaded; an error while one of them loads, since what it holds would be missing. One that
    /// could not be loaded is left out: it may stay so, and must not hide what all others hold.
    pub(crate) fn loaded(&self) -> Result<Vec<Mailbox<M>>, ErrorCode> {
        let mailboxes = self.opened();
        let is_recovering = !self.expected.lock().is_empty();
        if is_recovering || mailboxes.iter().any(|mailbox| mailbox.status() == Status::Loading) {
            return Err(ErrorCode::CoordinatorLoadInProgress);
        }
        Ok(mailboxes.into_iter().filter(|mailbox| mailbox.status() == Status::Active).collect())
    }
}

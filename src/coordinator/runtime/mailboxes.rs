//! The mailboxes of one coordinator on this node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use klamm_io::Clock;
use klamm_model::{ErrorCode, LeaderEpoch};
use klamm_partition::Partition;
use parking_lot::Mutex;

use super::RuntimeSettings;
use super::log::{CoordinatorLog, PartitionLog};
use super::mailbox::{Mailbox, Means, Status};
use crate::machine::{Host, Machine};
use crate::partition_of;

/// One mailbox for each partition of the topic that this node leads.
pub(crate) struct Mailboxes<M: Machine> {
    settings: RuntimeSettings,
    pub(crate) clock: Arc<dyn Clock>,
    host: Arc<dyn Host<M>>,
    led: Mutex<Led<M>>,
}

/// How far the partitions of a coordinator on this node are.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Loading {
    /// Those that are served.
    pub active: usize,
    /// Those that are being loaded, or whose logs are being recovered.
    pub loading: usize,
    /// Those that could not be loaded; each is tried again.
    pub failed: usize,
    /// Bytes of their logs that are still to be loaded.
    pub bytes_left: u64,
}

/// The partitions that this node leads.
struct Led<M: Machine> {
    opened: BTreeMap<i32, Mailbox<M>>,
    /// Those whose logs are being recovered.
    expected: BTreeSet<i32>,
}

impl<M: Machine> Mailboxes<M> {
    /// No mailbox yet.
    pub(crate) fn new(
        settings: RuntimeSettings,
        clock: Arc<dyn Clock>,
        host: Arc<dyn Host<M>>,
    ) -> Mailboxes<M> {
        let led = Mutex::new(Led { opened: BTreeMap::new(), expected: BTreeSet::new() });
        Mailboxes { settings, clock, host, led }
    }

    /// This node leads a partition, which it holds: its mailbox is opened, unless it is already. Needs to be called
    /// on a tokio runtime.
    pub(crate) fn elect(
        &self,
        index: i32,
        epoch: LeaderEpoch,
        held: impl FnOnce() -> Option<Arc<Partition>>,
    ) {
        if self.has(index, epoch) {
            return;
        }
        match held() {
            Some(partition) => self.open(index, epoch, Arc::new(PartitionLog::new(partition, epoch))),
            None => {
                tracing::error!(partition = index, "elected for a partition of {} that is not here", M::TOPIC)
            }
        }
    }

    /// Whether a partition is open in an epoch.
    pub(crate) fn has(&self, partition: i32, epoch: LeaderEpoch) -> bool {
        self.led.lock().opened.get(&partition).is_some_and(|mailbox| mailbox.epoch == epoch)
    }

    /// A mailbox will be opened when the log of its partition is recovered: who asks is told to come again.
    pub(crate) fn expect(&self, partition: i32) {
        self.led.lock().expected.insert(partition);
    }

    /// Opens a mailbox over a log, in place of one from an earlier epoch, and loads it. Needs to be called on a
    /// tokio runtime.
    pub(crate) fn open(&self, partition: i32, epoch: LeaderEpoch, log: Arc<dyn CoordinatorLog>) {
        let (settings, clock, host) = (self.settings, self.clock.clone(), self.host.clone());
        let mailbox = Mailbox::start(Means { partition, epoch, log, settings, clock, host });
        let mut led = self.led.lock();
        led.opened.insert(partition, mailbox);
        led.expected.remove(&partition);
    }

    /// Closes a mailbox: whoever waits is told to look for another coordinator.
    pub(crate) fn close(&self, partition: i32) {
        let mut led = self.led.lock();
        led.opened.remove(&partition);
        led.expected.remove(&partition);
    }

    /// Asks the mailbox that a name belongs to, where the topic has `count` partitions.
    pub(crate) async fn ask(&self, name: &str, count: i32, request: M::Request) -> M::Reply {
        if count <= 0 {
            return M::refusal(ErrorCode::CoordinatorNotAvailable);
        }
        self.ask_partition(partition_of(name, count), request).await
    }

    /// Asks the mailbox of one partition, whatever it holds.
    pub(crate) async fn ask_partition(&self, partition: i32, request: M::Request) -> M::Reply {
        match self.active(partition) {
            Ok(mailbox) => mailbox.ask(request).await,
            Err(error) => M::refusal(error),
        }
    }

    fn active(&self, partition: i32) -> Result<Mailbox<M>, ErrorCode> {
        let led = self.led.lock();
        match led.opened.get(&partition) {
            Some(mailbox) if mailbox.status() == Status::Active => Ok(mailbox.clone()),
            None if !led.expected.contains(&partition) => Err(ErrorCode::NotCoordinator),
            _ => Err(ErrorCode::CoordinatorLoadInProgress),
        }
    }

    /// All open mailboxes, whatever their status.
    pub(crate) fn opened(&self) -> Vec<Mailbox<M>> {
        self.led.lock().opened.values().cloned().collect()
    }

    /// Asks all of them, and returns the answers of those that are still led then. An error while one of them loads:
    /// clients ask again, and a list with a hole would be taken for the whole. What could not be loaded is left out, as
    /// in Kafka 4.4.0: it may never be there again, and all else is to be seen meanwhile.
    pub(crate) async fn ask_all(&self, request: impl Fn() -> M::Request) -> Result<Vec<M::Reply>, ErrorCode> {
        let mut answers = Vec::new();
        for (partition, mailbox) in self.all_active()? {
            answers.push((partition, mailbox.epoch, mailbox.send(request()).await));
        }
        let mut replies = Vec::new();
        for (partition, epoch, answer) in answers {
            let reply = answer.await;
            if self.has(partition, epoch) {
                replies.push(reply);
            }
        }
        Ok(replies)
    }

    /// How far all of them are.
    pub(crate) fn loading(&self) -> Loading {
        let led = self.led.lock();
        let mut loading = Loading { loading: led.expected.len(), ..Loading::default() };
        for mailbox in led.opened.values() {
            match mailbox.status() {
                Status::Active => loading.active += 1,
                Status::Loading => loading.loading += 1,
                Status::Failed => loading.failed += 1,
            }
            loading.bytes_left += mailbox.bytes_to_load();
        }
        loading
    }

    fn all_active(&self) -> Result<Vec<(i32, Mailbox<M>)>, ErrorCode> {
        let led = self.led.lock();
        let loads = |mailbox: &Mailbox<M>| mailbox.status() == Status::Loading;
        if !led.expected.is_empty() || led.opened.values().any(loads) {
            return Err(ErrorCode::CoordinatorLoadInProgress);
        }
        let active = led.opened.iter().filter(|(_, mailbox)| mailbox.status() == Status::Active);
        Ok(active.map(|(partition, mailbox)| (*partition, mailbox.clone())).collect())
    }
}

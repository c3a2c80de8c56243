//! Following: this node fetches what other brokers lead and it has a replica of.
//!
//! For each of those brokers there are `num.replica.fetchers` fetchers at the most, each with one connection, over
//! which one Fetch at a time asks for all of the fetcher's partitions. `background` tells which partitions follow
//! whom.

mod answer;
mod fetcher;
mod session;

use std::collections::BTreeMap;
use std::sync::Arc;

use klamm_io::Network;
use klamm_model::{LeaderEpoch, NodeId, TopicId};
use klamm_partition::Partition;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

use crate::context::Context;
use crate::stop::Stop;
use fetcher::Fetcher;

/// Names a partition.
type Key = (TopicId, i32);

/// Where the news about leadership of this node's partitions comes in.
pub(crate) struct ReplicaFetchers {
    network: Arc<dyn Network>,
    /// What has changed and was not seen yet, each partition once.
    changed: Mutex<BTreeMap<Key, Arc<Partition>>>,
    wake: Notify,
}

impl ReplicaFetchers {
    pub(crate) fn new(network: Arc<dyn Network>) -> ReplicaFetchers {
        ReplicaFetchers { network, changed: Mutex::default(), wake: Notify::new() }
    }

    /// Tells that partitions follow another leader, or another epoch of it, or none; or that there are more fetchers
    /// or fewer.
    pub(crate) fn leadership_changed(&self, partitions: impl IntoIterator<Item = Arc<Partition>>) {
        let mut changed = self.changed.lock();
        for partition in partitions {
            changed.insert((partition.topic_id(), partition.topic_partition().partition), partition);
        }
        drop(changed);
        self.wake.notify_one();
    }

    fn take(&self) -> BTreeMap<Key, Arc<Partition>> {
        std::mem::take(&mut self.changed.lock())
    }
}

/// What is new for one fetcher: partitions to fetch, and (nothing) those to leave.
#[derive(Default)]
struct Inbox {
    news: Mutex<BTreeMap<Key, Option<Arc<Partition>>>>,
    arrived: Notify,
}

impl Inbox {
    fn tell(&self, key: Key, partition: Option<Arc<Partition>>) {
        self.news.lock().insert(key, partition);
    }

    fn take(&self) -> BTreeMap<Key, Option<Arc<Partition>>> {
        std::mem::take(&mut self.news.lock())
    }

    /// Whether there is something to fetch that no request asks for.
    fn has_partitions(&self) -> bool {
        self.news.lock().values().any(Option::is_some)
    }
}

/// A fetcher: which broker it fetches from, and its number among those that do.
type Lane = (NodeId, usize);

struct Running {
    inbox: Arc<Inbox>,
    /// How many partitions it has.
    partitions: usize,
    task: AbortHandle,
}

/// Where a partition is fetched.
#[derive(Clone)]
struct Place {
    lane: Lane,
    leader_epoch: LeaderEpoch,
    /// A replica that was given up and came back is another object under the same name.
    partition: Arc<Partition>,
}

/// Which fetcher has which partition.
struct Assignment {
    context: Arc<Context>,
    lanes: BTreeMap<Lane, Running>,
    places: BTreeMap<Key, Place>,
    tasks: JoinSet<()>,
}

/// Fetches until the stop.
pub(crate) async fn run(context: Arc<Context>, mut stop: Stop) {
    let fetchers = context.replica_fetchers.clone();
    let mut assignment =
        Assignment { context, lanes: BTreeMap::new(), places: BTreeMap::new(), tasks: JoinSet::new() };
    loop {
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = fetchers.wake.notified() => assignment.take_over(fetchers.take()),
            // Fetchers end only when they are told to, which is no failure.
            Some(ended) = assignment.tasks.join_next() => {
                if let Err(error) = ended
                    && error.is_panic()
                {
                    tracing::error!("a fetcher has ended, and all begin anew: {error}");
                    assignment.begin_anew();
                }
            }
        }
    }
}

impl Assignment {
    fn take_over(&mut self, changed: BTreeMap<Key, Arc<Partition>>) {
        for (key, partition) in changed {
            let place = self.place_for(&key, partition);
            let before = self.places.remove(&key);
            let lane_before = before.as_ref().map(|before| before.lane);
            if let Some(lane) = lane_before.filter(|lane| place.as_ref().is_none_or(|now| now.lane != *lane))
            {
                self.leave(lane, key);
            }
            let Some(place) = place else { continue };
            let is_known = before.is_some_and(|before| {
                before.leader_epoch == place.leader_epoch
                    && before.lane == place.lane
                    && Arc::ptr_eq(&before.partition, &place.partition)
            });
            if !is_known {
                self.enter(place.lane, lane_before != Some(place.lane));
                self.lanes[&place.lane].inbox.tell(key, Some(place.partition.clone()));
            }
            self.places.insert(key, place);
        }
        self.lanes.values().for_each(|lane| {
            if !lane.inbox.news.lock().is_empty() {
                lane.inbox.arrived.notify_one();
            }
        });
    }

    /// The fetcher that is to have a partition, and the leader's epoch; nothing if it follows nobody.
    fn place_for(&self, (topic, index): &Key, partition: Arc<Partition>) -> Option<Place> {
        let leader = partition.leader().filter(|leader| *leader != self.context.node_id)?;
        let count = usize::try_from(self.context.config().num_replica_fetchers).unwrap_or(1).max(1);
        let spread = topic.0.iter().fold(index.unsigned_abs() as usize, |sum, byte| sum + usize::from(*byte));
        Some(Place { lane: (leader, spread % count), leader_epoch: partition.leader_epoch(), partition })
    }

    fn enter(&mut self, lane: Lane, is_new: bool) {
        let (context, tasks) = (&self.context, &mut self.tasks);
        let running = self.lanes.entry(lane).or_insert_with(|| {
            let inbox = Arc::new(Inbox::default());
            let fetcher = Fetcher::new(context.clone(), lane.0, lane.1, inbox.clone());
            Running { inbox, partitions: 0, task: tasks.spawn(fetcher.run()) }
        });
        running.partitions += usize::from(is_new);
    }

    /// Ends all fetchers and begins with what they had.
    fn begin_anew(&mut self) {
        self.lanes.values().for_each(|running| running.task.abort());
        self.lanes.clear();
        let places = std::mem::take(&mut self.places);
        self.take_over(places.into_iter().map(|(key, place)| (key, place.partition)).collect());
    }

    fn leave(&mut self, lane: Lane, key: Key) {
        let Some(running) = self.lanes.get_mut(&lane) else { return };
        running.partitions -= 1;
        running.inbox.tell(key, None);
        if running.partitions == 0 {
            running.task.abort();
            self.lanes.remove(&lane);
        }
    }
}

//! One fetcher: one connection to one broker, and one request at a time for all of its partitions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use klamm_io::BoxFuture;
use klamm_model::{ErrorCode, NodeId, Offset, TopicPartition};
use klamm_partition::Partition;
use klamm_protocol::messages::fetch::{FetchRequest, FetchResponse, ReplicaState};
use klamm_protocol::messages::list_offsets::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic,
};
use klamm_storage::StorageError;

use super::answer::{self, Next};
use super::session::Session;
use super::{Inbox, Key};
use crate::context::Context;
use crate::limits::RateLimit;
use crate::peers::{PeerError, Peers};

/// The version of Fetch that brokers speak with each other.
const FETCH_VERSION: i16 = 18;

/// The version of ListOffsets that brokers speak with each other.
const LIST_OFFSETS_VERSION: i16 = 7;

/// How long it is waited after a failure, at first. Each time it is twice as long, up to `replica.fetch.backoff.ms`.
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// How old a request is at least before it is given up because there are partitions that it does not ask for. Those
/// that come together are asked for together.
const GIVE_UP_AFTER: Duration = Duration::from_millis(10);

/// How often one fetcher tells of a partition that cannot take its records.
const FAILURE_LOG_EVERY: Duration = Duration::from_secs(30);

/// The timestamps of ListOffsets that mean the two ends of a log.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;

/// Fetches from one broker.
pub(super) struct Fetcher {
    context: Arc<Context>,
    leader: NodeId,
    number: usize,
    inbox: Arc<Inbox>,
    followed: BTreeMap<Key, Followed>,
    session: Session,
    peers: Peers,
    pause: Pause,
    /// Limits what is told of partitions that cannot take their records: all of them, again and again, on a full disk.
    failures: RateLimit,
}

struct Followed {
    partition: Arc<Partition>,
    pause: Pause,
}

/// How long is waited after failures.
#[derive(Default)]
struct Pause {
    length: Duration,
    /// By the monotonic clock; nothing while nothing is waited for.
    until: Option<Duration>,
}

impl Pause {
    fn begin(&mut self, now: Duration, longest: Duration) {
        self.length = (self.length * 2).max(PAUSE_MIN).min(longest);
        self.until = Some(now + self.length);
    }

    /// Whether this is the first failure of several.
    fn is_first(&self) -> bool {
        self.length.is_zero()
    }

    fn end(&mut self) {
        *self = Pause::default();
    }
}

/// How a request ended.
enum Round {
    Answered(FetchResponse),
    Failed(PeerError),
    /// It was given up for the partitions that are new.
    GivenUp,
}

impl Fetcher {
    pub(super) fn new(context: Arc<Context>, leader: NodeId, number: usize, inbox: Arc<Inbox>) -> Fetcher {
        let peers = peers(&context, number);
        Fetcher {
            context,
            leader,
            number,
            inbox,
            followed: BTreeMap::new(),
            session: Session::default(),
            peers,
            pause: Pause::default(),
            failures: RateLimit::new(FAILURE_LOG_EVERY),
        }
    }

    /// Fetches until it is dropped.
    pub(super) async fn run(mut self) {
        loop {
            self.take_news();
            self.end_pauses();
            if self.session.is_empty() || self.pause.until.is_some() {
                self.wait().await;
                continue;
            }
            match self.fetch().await {
                Round::Answered(response) => {
                    self.pause.end();
                    self.take_answer(response).await;
                }
                Round::Failed(error) => self.note_failure(&error),
                Round::GivenUp => {
                    self.session.reset();
                    self.peers = peers(&self.context, self.number);
                }
            }
        }
    }

    fn now(&self) -> Duration {
        self.context.clock.monotonic()
    }

    fn pause_max(&self) -> Duration {
        let backoff = u64::try_from(self.context.config().replica_fetch_backoff_ms).unwrap_or(0);
        Duration::from_millis(backoff).max(PAUSE_MIN)
    }

    fn take_news(&mut self) {
        for (key, news) in self.inbox.take() {
            match news {
                Some(partition) => {
                    // Leadership has changed: a broker that could not be reached may be there again.
                    self.pause.until = None;
                    self.followed.insert(key, Followed { partition, pause: Pause::default() });
                    self.ask_for(key);
                }
                None => {
                    self.followed.remove(&key);
                    self.session.remove(&key);
                }
            }
        }
    }

    /// Asks for what comes next of a partition. While its log takes no records, nothing is fetched for it.
    fn ask_for(&mut self, key: Key) {
        let bytes_max = self.context.config().replica_fetch_max_bytes;
        let (now, longest) = (self.now(), self.pause_max());
        let Some(followed) = self.followed.get_mut(&key) else { return };
        match answer::wanted(&followed.partition, bytes_max) {
            Ok(wanted) => self.session.put(key, wanted),
            Err(error) => {
                let name = followed.partition.topic_partition();
                tracing::debug!("{name} is not fetched from broker {} for now: {error}", self.leader);
                followed.pause.begin(now, longest);
                self.session.remove(&key);
            }
        }
    }

    fn end_pauses(&mut self) {
        let now = self.now();
        let is_over = |pause: &Pause| pause.until.is_some_and(|until| until <= now);
        if is_over(&self.pause) {
            self.pause.until = None;
        }
        let over: Vec<Key> =
            self.followed.iter().filter(|(_, one)| is_over(&one.pause)).map(|(key, _)| *key).collect();
        for key in over {
            self.followed.entry(key).and_modify(|one| one.pause.until = None);
            self.ask_for(key);
        }
    }

    /// When the first pause of a partition ends.
    fn next_end(&self) -> Option<Duration> {
        self.followed.values().filter_map(|followed| followed.pause.until).min()
    }

    /// Waits for news or for the end of the first pause.
    async fn wait(&self) {
        let next = self.pause.until.or_else(|| self.next_end());
        let left = next.map(|until| until.saturating_sub(self.now()));
        tokio::select! {
            biased;
            () = self.inbox.arrived.notified() => {}
            () = tokio::time::sleep(left.unwrap_or_default()), if left.is_some() => {}
        }
    }

    async fn fetch(&mut self) -> Round {
        let config = self.context.config();
        let session = self.session.request();
        let request = FetchRequest {
            replica_state: ReplicaState {
                replica_id: self.context.node_id.0,
                replica_epoch: self.context.broker_epoch(),
            },
            max_wait_ms: wait_max_ms(config.replica_fetch_wait_max_ms, self.next_end(), self.now()),
            min_bytes: config.replica_fetch_min_bytes,
            max_bytes: config.replica_fetch_response_max_bytes,
            session_id: session.id,
            session_epoch: session.epoch,
            topics: session.topics,
            forgotten_topics_data: session.forgotten,
            ..Default::default()
        };
        let address = match self.context.address_of_broker(self.leader) {
            Ok(address) => address,
            Err(error) => return Round::Failed(error),
        };
        let begun = tokio::time::Instant::now();
        let answer = self.peers.ask(&address, FETCH_VERSION, &request, self.timeout());
        let has_more = async {
            loop {
                self.inbox.arrived.notified().await;
                tokio::time::sleep_until(begun + GIVE_UP_AFTER).await;
                if self.inbox.has_partitions() {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            answer = answer => answer.map_or_else(Round::Failed, Round::Answered),
            () = has_more => Round::GivenUp,
        }
    }

    fn timeout(&self) -> Duration {
        let timeout = u64::try_from(self.context.config().replica_socket_timeout_ms).unwrap_or(0);
        Duration::from_millis(timeout.max(1))
    }

    fn note_failure(&mut self, error: &PeerError) {
        let (leader, count) = (self.leader, self.session.len());
        if self.pause.is_first() {
            tracing::warn!("cannot fetch {count} partitions from broker {leader}, and tries again: {error}");
        }
        self.session.reset();
        self.peers = peers(&self.context, self.number);
        let (now, longest) = (self.now(), self.pause_max());
        self.pause.begin(now, longest);
    }

    async fn take_answer(&mut self, response: FetchResponse) {
        let error = ErrorCode::from_code(response.error_code).unwrap_or(ErrorCode::UnknownServerError);
        if !self.session.answered(response.session_id, error) {
            tracing::debug!("broker {} has ended the fetch session: {error}", self.leader);
            return;
        }
        let mut next = Vec::new();
        for topic in response.responses {
            for data in topic.partitions {
                let key = (topic.topic_id, data.partition_index);
                let (Some(followed), Some(asked)) = (self.followed.get(&key), self.session.wanted(&key))
                else {
                    continue;
                };
                next.push((key, answer::take(&followed.partition, asked, data)));
            }
        }
        let out_of_range: Vec<Key> = next
            .iter()
            .filter(|(_, next)| matches!(next, Next::AskForOffsets))
            .map(|(key, _)| *key)
            .collect();
        self.go_on(next).await;
        if !out_of_range.is_empty() {
            self.find_offsets(out_of_range).await;
        }
    }

    /// Waits for the syncs that have to come before the next fetch, and asks for what comes next.
    async fn go_on(&mut self, next: Vec<(Key, Next)>) {
        let (now, longest) = (self.now(), self.pause_max());
        let mut syncs: Vec<(Key, BoxFuture<'static, Result<(), StorageError>>)> = Vec::new();
        for (key, next) in next {
            let Some(followed) = self.followed.get_mut(&key) else { continue };
            match next {
                Next::FetchOn(taken) => {
                    followed.pause.end();
                    syncs.extend(taken.sync.map(|sync| (key, sync)));
                    let throttle = &self.context.follower_throttle;
                    let is_throttled = followed.partition.settings().is_throttled_as_follower;
                    if is_throttled {
                        throttle.count(taken.bytes, now);
                    }
                    match throttle.wait(now).filter(|_| is_throttled && taken.is_behind) {
                        Some(wait) => {
                            followed.pause.until = Some(now + wait);
                            self.session.remove(&key);
                        }
                        None => self.ask_for(key),
                    }
                }
                Next::Wait(why) => {
                    let name = followed.partition.topic_partition();
                    tracing::debug!("{name} is not fetched from broker {} for now: {why}", self.leader);
                    followed.pause.begin(now, longest);
                    self.session.remove(&key);
                }
                Next::Fail(why) => {
                    if let Some(line) = self.failures.line(now, || why) {
                        tracing::error!("{line}");
                    }
                    followed.pause.begin(now, longest);
                    self.session.remove(&key);
                }
                Next::AskForOffsets => {}
            }
        }
        for (key, sync) in syncs {
            if let Err(error) = sync.await
                && let Some(followed) = self.followed.get_mut(&key)
            {
                let name = followed.partition.topic_partition();
                tracing::error!("records of {name} are not known to be on the disk: {error}");
                followed.pause.begin(now, longest);
                self.session.remove(&key);
            }
        }
    }

    /// Asks the leader where the logs begin and end of which it does not have what was asked for.
    async fn find_offsets(&mut self, keys: Vec<Key>) {
        let ends = self.ask_offsets(&keys, LATEST).await;
        let begins = self.ask_offsets(&keys, EARLIEST).await;
        let mut next = Vec::new();
        for key in keys {
            let (Some(followed), Some(asked)) = (self.followed.get(&key), self.session.wanted(&key)) else {
                continue;
            };
            let name = followed.partition.topic_partition();
            let found = match (&begins, &ends) {
                (Ok(begins), Ok(ends)) => begins.get(name).copied().zip(ends.get(name).copied()),
                _ => None,
            };
            let then = match found {
                Some((earliest, latest)) => {
                    answer::take_offsets(&followed.partition, asked, earliest, latest)
                }
                None => Next::Wait("the leader does not tell where its log begins and ends".to_owned()),
            };
            next.push((key, then));
        }
        self.go_on(next).await;
    }

    async fn ask_offsets(
        &self,
        keys: &[Key],
        timestamp: i64,
    ) -> Result<BTreeMap<TopicPartition, Offset>, PeerError> {
        let named = keys.iter().filter_map(|key| self.followed.get(key).zip(self.session.wanted(key)));
        let topics = named.map(|(followed, asked)| ListOffsetsTopic {
            name: followed.partition.topic_partition().topic.to_string(),
            partitions: vec![ListOffsetsPartition {
                partition_index: asked.partition,
                current_leader_epoch: asked.current_leader_epoch,
                timestamp,
                ..Default::default()
            }],
        });
        let request = ListOffsetsRequest {
            replica_id: self.context.node_id.0,
            topics: topics.collect(),
            ..Default::default()
        };
        let address = self.context.address_of_broker(self.leader)?;
        let answer = self.peers.ask(&address, LIST_OFFSETS_VERSION, &request, self.timeout()).await?;
        Ok(offsets_of(answer))
    }
}

/// How long the leader may let a request wait for records: no longer than until a partition is asked for again that is
/// left out now.
fn wait_max_ms(configured: i32, next_end: Option<Duration>, now: Duration) -> i32 {
    let Some(until) = next_end else { return configured };
    let left = until.saturating_sub(now).as_micros().div_ceil(1000);
    i32::try_from(left).map_or(configured, |left| configured.min(left))
}

fn offsets_of(answer: ListOffsetsResponse) -> BTreeMap<TopicPartition, Offset> {
    let mut found = BTreeMap::new();
    for topic in answer.topics {
        for partition in topic.partitions.iter().filter(|partition| partition.error_code == 0) {
            let name = TopicPartition::new(topic.name.as_str(), partition.partition_index);
            found.insert(name, partition.offset);
        }
    }
    found
}

/// A connection of this fetcher's own, opened when it is needed.
fn peers(context: &Context, number: usize) -> Peers {
    let client_id = format!("broker-{}-fetcher-{number}", context.node_id);
    Peers::new(context.replica_fetchers.network.clone(), client_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new leader answered the first fetch before it knew that it led, and the next one came when the wait for records of
    /// the other partitions was over, 500 ms later. For so long nothing could be acknowledged.
    #[test]
    fn a_partition_that_is_left_out_for_a_moment_does_not_wait_for_the_others() {
        let ms = Duration::from_millis;
        assert_eq!(wait_max_ms(500, None, ms(7)), 500);
        assert_eq!(wait_max_ms(500, Some(ms(12)), ms(7)), 5);
        assert_eq!(
            wait_max_ms(500, Some(Duration::from_micros(7_001)), ms(7)),
            1,
            "not at once, again and again"
        );
        assert_eq!(wait_max_ms(500, Some(ms(7)), ms(8)), 0);
        assert_eq!(wait_max_ms(500, Some(ms(3_000)), ms(8)), 500);
        assert_eq!(wait_max_ms(500, Some(Duration::MAX), ms(8)), 500);
    }

    /// A disk stays full for hours, and each of its partitions is tried again once a second.
    #[test]
    fn a_full_disk_does_not_fill_the_log() {
        let limit = RateLimit::new(FAILURE_LOG_EVERY);
        let tries = (0..61).flat_map(|second| (0..100).map(move |partition| (second, partition)));
        let lines: Vec<String> = tries
            .filter_map(|(second, partition)| {
                limit.line(Duration::from_secs(second), || format!("t-{partition} is full"))
            })
            .collect();
        let more = |count| format!("t-0 is full ({count} more since the last such line)");
        assert_eq!(lines, ["t-0 is full".to_owned(), more(2999), more(2999)]);
    }
}

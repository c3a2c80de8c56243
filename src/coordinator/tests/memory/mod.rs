//! A log in memory, and the surroundings that a coordinator needs.
#![allow(dead_code, reason = "each test file uses its part of this")]

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use klamm_coordinator::GroupEnvironment;
use klamm_coordinator::runtime::{CoordinatorLog, LogFault};
use klamm_io::BoxFuture;
use klamm_metadata::{Image, PartitionState, RecoveryState, Topic};
use klamm_model::{LeaderEpoch, NodeId, Offset, TopicId};
use klamm_partition::{Partition, TransactionMarker, VerificationGuard};
use klamm_records::batches;
use klamm_records::control::EndTxnMarker;
use klamm_testing::SimulatedClock;
use parking_lot::Mutex;
use tokio::sync::watch;

/// A partition of `__consumer_offsets` whose high watermark and faults the test decides about.
pub(crate) struct MemoryLog {
    state: Mutex<State>,
    high_watermark: watch::Sender<Offset>,
}

struct State {
    bytes: BytesMut,
    end: Offset,
    follows: bool,
    refuses: Option<fn() -> LogFault>,
    is_unreadable: bool,
    /// What a read takes, on which clock.
    slowness: Option<(SimulatedClock, Duration)>,
    /// The largest batch, in bytes: what the log says, and what it takes.
    batch_bytes_max: (usize, usize),
    reads: usize,
    appends: usize,
}

impl MemoryLog {
    /// An empty log, in which each append is committed at once.
    pub(crate) fn new() -> Arc<MemoryLog> {
        MemoryLog::holding(Bytes::new())
    }

    /// A log that holds these batches.
    pub(crate) fn holding(bytes: Bytes) -> Arc<MemoryLog> {
        let end =
            batches(bytes.clone()).map(|batch| batch.expect("whole batches").header.next_offset()).last();
        let end = end.unwrap_or(0);
        let bytes = BytesMut::from(&bytes[..]);
        let state = State {
            bytes,
            end,
            follows: true,
            refuses: None,
            is_unreadable: false,
            slowness: None,
            batch_bytes_max: (1_048_588, 1_048_588),
            reads: 0,
            appends: 0,
        };
        Arc::new(MemoryLog { state: Mutex::new(state), high_watermark: watch::Sender::new(end) })
    }

    /// From now on the high watermark stands still until it is moved.
    pub(crate) fn hold_high_watermark(&self) {
        self.state.lock().follows = false;
    }

    /// Moves the high watermark to the end.
    pub(crate) fn commit_all(&self) {
        let end = self.state.lock().end;
        self.high_watermark.send_replace(end);
    }

    /// From now on appends fail, or succeed again.
    pub(crate) fn refuse(&self, fault: Option<fn() -> LogFault>) {
        self.state.lock().refuses = fault;
    }

    /// From now on reads fail, or succeed again.
    pub(crate) fn set_unreadable(&self, is_unreadable: bool) {
        self.state.lock().is_unreadable = is_unreadable;
    }

    /// From now on each read takes so long.
    pub(crate) fn slow_down(&self, clock: &SimulatedClock, a_read: Duration) {
        self.state.lock().slowness = Some((clock.clone(), a_read));
    }

    /// From now on it says that it takes batches up to `told` bytes, and takes those up to `taken`.
    pub(crate) fn limit_batches(&self, told: usize, taken: usize) {
        self.state.lock().batch_bytes_max = (told, taken);
    }

    pub(crate) fn reads(&self) -> usize {
        self.state.lock().reads
    }

    pub(crate) fn content(&self) -> Bytes {
        self.state.lock().bytes.clone().freeze()
    }

    pub(crate) fn appends(&self) -> usize {
        self.state.lock().appends
    }
}

impl CoordinatorLog for MemoryLog {
    fn start_offset(&self) -> Offset {
        let first = batches(self.content()).next();
        first.map_or(0, |batch| batch.expect("whole batches").header.base_offset)
    }

    fn end_offset(&self) -> Offset {
        self.state.lock().end
    }

    fn size(&self) -> u64 {
        self.state.lock().bytes.len() as u64
    }

    fn read(&self, from: Offset, bytes_max: usize) -> Result<Bytes, LogFault> {
        let mut state = self.state.lock();
        state.reads += 1;
        if let Some((clock, a_read)) = &state.slowness {
            clock.advance(*a_read);
        }
        if state.is_unreadable {
            return Err(LogFault::Other("the disk is on fire".to_owned()));
        }
        drop(state);
        let content = self.content();
        let mut position = 0;
        for batch in batches(content.clone()) {
            let batch = batch.expect("whole batches");
            if batch.header.next_offset() > from {
                let end = content.len().min(position + bytes_max.max(batch.bytes.len()));
                return Ok(content.slice(position..end));
            }
            position += batch.bytes.len();
        }
        Ok(Bytes::new())
    }

    fn batch_bytes_max(&self) -> usize {
        self.state.lock().batch_bytes_max.0
    }

    fn append(&self, batch: Bytes, _guard: Option<VerificationGuard>) -> Result<Offset, LogFault> {
        let mut state = self.state.lock();
        if let Some(fault) = state.refuses {
            return Err(fault());
        }
        if batch.len() > state.batch_bytes_max.1 {
            return Err(LogFault::TooLarge);
        }
        let base = state.end;
        let mut batch = BytesMut::from(&batch[..]);
        batch[..8].copy_from_slice(&base.to_be_bytes());
        let header = klamm_records::peek_batch(&batch).expect("a batch").expect("a whole head");
        state.end = header.next_offset();
        state.bytes.extend_from_slice(&batch);
        state.appends += 1;
        if state.follows {
            self.high_watermark.send_replace(state.end);
        }
        Ok(base)
    }

    fn end_transaction(&self, marker: &TransactionMarker) -> Result<Option<Offset>, LogFault> {
        let control = EndTxnMarker { commit: marker.is_commit, coordinator_epoch: marker.coordinator_epoch };
        let producer = (marker.producer_id, marker.producer_epoch);
        self.append(control.batch(0, 0, producer, LeaderEpoch(0)), None).map(Some)
    }

    fn is_committed(&self, below: Offset) -> Result<bool, LogFault> {
        Ok(*self.high_watermark.borrow() >= below)
    }

    fn wait_committed(&self, below: Offset) -> BoxFuture<'_, Result<(), LogFault>> {
        let mut receiver = self.high_watermark.subscribe();
        Box::pin(async move {
            receiver
                .wait_for(|high_watermark| *high_watermark >= below)
                .await
                .map_err(|_| LogFault::NotLeader)?;
            Ok(())
        })
    }
}

/// A cluster with some topics. By default all groups are in one partition.
pub(crate) struct Surroundings {
    pub(crate) image: Mutex<Arc<Image>>,
    partition_count: i32,
}

impl Surroundings {
    /// The same with Kafka's number of partitions.
    pub(crate) fn with_all_partitions(topics: &[(&str, TopicId, usize)]) -> Arc<Surroundings> {
        let image = Surroundings::with_topics(topics).image.lock().clone();
        Arc::new(Surroundings { image: Mutex::new(image), partition_count: 50 })
    }

    pub(crate) fn with_topics(topics: &[(&str, TopicId, usize)]) -> Arc<Surroundings> {
        let mut image = Image::empty("cluster");
        for (name, id, count) in topics {
            let name: Arc<str> = (*name).into();
            let partitions = (0..*count).map(|_| partition()).collect();
            image.topics.insert(*id, Arc::new(Topic { name: name.clone(), id: *id, partitions }));
            image.topic_ids.insert(name, *id);
        }
        Arc::new(Surroundings { image: Mutex::new(Arc::new(image)), partition_count: 1 })
    }
}

fn partition() -> PartitionState {
    PartitionState {
        replicas: vec![NodeId(1)],
        directories: Vec::new(),
        isr: vec![NodeId(1)],
        removing: Vec::new(),
        adding: Vec::new(),
        leader: Some(NodeId(1)),
        leader_epoch: LeaderEpoch(0),
        partition_epoch: 0,
        recovery: RecoveryState::Recovered,
        eligible_leaders: Vec::new(),
        last_known_eligible_leaders: Vec::new(),
    }
}

impl Surroundings {
    /// A topic of that name is there no more or, with an id, is another one.
    pub(crate) fn replace_topic(&self, name: &str, id: Option<TopicId>) {
        let mut image = Image::clone(&self.image.lock());
        let old = image.topic_ids.remove(name).and_then(|old| image.topics.remove(&old)).expect("a topic");
        if let Some(id) = id {
            image.topics.insert(id, Arc::new(Topic { id, ..Topic::clone(&old) }));
            image.topic_ids.insert(name.into(), id);
        }
        *self.image.lock() = Arc::new(image);
    }
}

impl GroupEnvironment for Surroundings {
    fn offsets_partition(&self, _index: i32) -> Option<Arc<Partition>> {
        None
    }

    fn offsets_partition_count(&self) -> i32 {
        self.partition_count
    }

    fn image(&self) -> Arc<Image> {
        self.image.lock().clone()
    }

    fn led_alone(&self, _index: i32, _time: Duration) -> BoxFuture<'_, bool> {
        Box::pin(ready(true))
    }
}

//! The mailbox: a task that owns the groups of one partition.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use klamm_io::Clock;
use klamm_model::{ErrorCode, LeaderEpoch, Offset, ProducerId, TimestampMs};
use klamm_protocol::EncodeError;
use klamm_records::{BatchBuilder, BatchSettings};
use tokio::sync::{mpsc, oneshot};

use super::load::{LoadError, Loaded, load_some};
use super::log::OffsetsLog;
use crate::coordinator::GroupEnvironment;
use crate::group::{Effects, GroupRecord, GroupShard, Now, Origin, Reply, Request, Then, Ticket, Write};
use crate::settings::GroupSettings;

/// How far a mailbox is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Loading,
    Active,
    /// It could not be loaded, and will be tried again.
    Failed,
}

/// How long it waits before it tries to load again, at first; each time twice as long.
const LOAD_PAUSE: Duration = Duration::from_secs(1);

/// The longest wait.
const LOAD_PAUSE_MAX: Duration = Duration::from_secs(30);

/// What a mailbox works with.
#[derive(Clone)]
pub(crate) struct Means {
    pub(crate) partition: i32,
    pub(crate) log: Arc<dyn OffsetsLog>,
    pub(crate) settings: Arc<GroupSettings>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) env: Arc<dyn GroupEnvironment>,
}

/// The way into a mailbox. When the last one is dropped, its task ends, and whoever still waits for an
/// answer gets none.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: mpsc::Sender<Letter>,
    status: Arc<AtomicU8>,
    pub(crate) epoch: LeaderEpoch,
}

struct Letter {
    request: Request,
    reply: oneshot::Sender<Reply>,
}

impl Mailbox {
    /// Starts the task, which loads the partition first. Needs a tokio runtime.
    pub(crate) fn start(means: Means, epoch: LeaderEpoch) -> Mailbox {
        let capacity = usize::try_from(means.settings.queued_max_requests).unwrap_or(1).max(1);
        let (sender, receiver) = mpsc::channel(capacity);
        let status = Arc::new(AtomicU8::new(Status::Loading as u8));
        let worker = Worker {
            shard: GroupShard::new(means.settings.clone()),
            means,
            receiver,
            put_back: None,
            waiting: BTreeMap::new(),
            next_ticket: 0,
            appended_below: 0,
            uncommitted: VecDeque::new(),
        };
        tokio::spawn(worker.run(status.clone()));
        Mailbox { sender, status, epoch }
    }

    pub(crate) fn status(&self) -> Status {
        match self.status.load(Ordering::Acquire) {
            0 => Status::Loading,
            1 => Status::Active,
            _ => Status::Failed,
        }
    }

    /// Asks, and waits for the answer. It waits for room in the mailbox too. It takes the mailbox, since who
    /// only waits for an answer must not keep it open.
    pub(crate) async fn ask(self, request: Request) -> Reply {
        let gone = Reply::Refused(ErrorCode::NotCoordinator);
        let (reply, answer) = oneshot::channel();
        let is_sent = self.sender.send(Letter { request, reply }).await.is_ok();
        drop(self);
        if is_sent { answer.await.unwrap_or(gone) } else { gone }
    }
}

/// Something that is settled once the log is committed up to an offset.
struct Uncommitted {
    below: Offset,
    deadline_ms: u64,
    then: Then,
}

struct Worker {
    means: Means,
    shard: GroupShard,
    receiver: mpsc::Receiver<Letter>,
    /// A letter that was taken out of turn.
    put_back: Option<Letter>,
    waiting: BTreeMap<Ticket, oneshot::Sender<Reply>>,
    next_ticket: u64,
    /// The offset behind all that was loaded and appended.
    appended_below: Offset,
    /// In the order of offsets.
    uncommitted: VecDeque<Uncommitted>,
}

/// What woke the worker.
enum Event {
    Letter(Letter),
    Committed,
    Deadline,
    Closed,
}

impl Worker {
    async fn run(mut self, status: Arc<AtomicU8>) {
        let partition = self.means.partition;
        let mut pause = LOAD_PAUSE;
        loop {
            match self.load().await {
                Ok(true) => break,
                Ok(false) => return,
                Err(error) => {
                    let pause_ms = pause.as_millis();
                    tracing::error!(partition, %error, pause_ms, "__consumer_offsets could not be loaded");
                    status.store(Status::Failed as u8, Ordering::Release);
                }
            }
            if !self.is_wanted_after(pause).await {
                return;
            }
            pause = (pause * 2).min(LOAD_PAUSE_MAX);
        }
        let effects = self.shard.finish_loading(self.now());
        self.carry_out(effects);
        let effects = self.shard.drop_stale_offsets(&self.means.env.image());
        self.carry_out(effects);
        status.store(Status::Active as u8, Ordering::Release);
        loop {
            match self.next_event().await {
                Event::Letter(letter) => self.serve(letter),
                // What the log says now holds, whatever woke us.
                Event::Committed => self.carry_out(Effects::default()),
                Event::Deadline => self.expire(),
                Event::Closed => return,
            }
        }
    }

    /// Waits before the next attempt to load; false if the partition is not wanted any more.
    async fn is_wanted_after(&self, pause: Duration) -> bool {
        let end = self.means.clock.monotonic() + pause;
        loop {
            if self.receiver.is_closed() {
                return false;
            }
            let left = end.saturating_sub(self.means.clock.monotonic());
            if left.is_zero() {
                return true;
            }
            tokio::time::sleep(left.min(LOAD_PAUSE)).await;
        }
    }

    /// Loads the partition from its beginning; false if it is not wanted any more.
    async fn load(&mut self) -> Result<bool, LoadError> {
        self.shard = GroupShard::new(self.means.settings.clone());
        let (partition, start) = (self.means.partition, self.means.clock.monotonic());
        let bytes_max = usize::try_from(self.means.settings.offsets_load_buffer_size).unwrap_or(1);
        let mut loaded = Loaded::default();
        let mut next = self.means.log.start_offset();
        while next < self.means.log.end_offset() {
            next = load_some(&*self.means.log, &mut self.shard, next, bytes_max, &mut loaded)?;
            if self.receiver.is_closed() {
                return Ok(false);
            }
            tokio::task::yield_now().await;
        }
        self.appended_below = next;
        let took_ms = self.means.clock.monotonic().saturating_sub(start).as_millis();
        let (groups, Loaded { records, bytes }) = (self.shard.group_count(), loaded);
        tracing::debug!(partition, groups, records, bytes, took_ms, "groups loaded");
        Ok(true)
    }

    fn now(&self) -> Now {
        let monotonic_ms = u64::try_from(self.means.clock.monotonic().as_millis()).unwrap_or(u64::MAX);
        Now { wall_ms: self.means.clock.now_ms(), monotonic_ms }
    }

    async fn next_event(&mut self) -> Event {
        if let Some(letter) = self.put_back.take() {
            return Event::Letter(letter);
        }
        let front = self.uncommitted.front();
        let deadlines = [self.shard.next_deadline_ms(), front.map(|front| front.deadline_ms)];
        let deadline = deadlines.into_iter().flatten().min();
        let wait = deadline.map(|at| Duration::from_millis(at).saturating_sub(self.means.clock.monotonic()));
        let (log, receiver) = (&self.means.log, &mut self.receiver);
        tokio::select! {
            biased;
            _ = async {
                match front {
                    Some(front) => log.wait_committed(front.below).await,
                    None => std::future::pending().await,
                }
            } => Event::Committed,
            () = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            } => Event::Deadline,
            letter = receiver.recv() => letter.map_or(Event::Closed, Event::Letter),
        }
    }

    /// Serves a letter, and with a commit all commits that wait behind it: they go into one append.
    fn serve(&mut self, letter: Letter) {
        let mut is_commit = matches!(letter.request, Request::Commit { .. });
        let is_read = matches!(letter.request, Request::Fetch(_));
        let mut effects = self.handle(letter);
        while is_commit {
            let Ok(next) = self.receiver.try_recv() else { break };
            is_commit = matches!(next.request, Request::Commit { .. });
            if is_commit {
                let more = self.handle(next);
                effects.replies.extend(more.replies);
                effects.writes.extend(more.writes);
            } else {
                self.put_back = Some(next);
            }
        }
        if is_read {
            // What is read may rest on records that could still be lost: the answer waits for them.
            let below = self.appended_below;
            for (ticket, reply) in std::mem::take(&mut effects.replies) {
                self.await_commit(below, Then::Reply { ticket, reply });
            }
        }
        self.carry_out(effects);
    }

    fn handle(&mut self, letter: Letter) -> Effects {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.waiting.insert(ticket, letter.reply);
        self.shard.handle(self.now(), ticket, letter.request)
    }

    /// Sends replies and appends what is to be written, and whatever follows from that.
    fn carry_out(&mut self, effects: Effects) {
        let mut todo = VecDeque::from([effects]);
        while let Some(effects) = todo.pop_front() {
            for (ticket, reply) in effects.replies {
                if let Some(waiting) = self.waiting.remove(&ticket) {
                    // Whoever asked may have gone.
                    let _ = waiting.send(reply);
                }
            }
            todo.extend(self.append(effects.writes));
            todo.extend(self.take_committed());
        }
    }

    /// Appends writes, as many as fit into each batch; returns what follows from those that fail.
    fn append(&mut self, writes: Vec<Write>) -> Vec<Effects> {
        let bytes_max = self.means.settings.group_coordinator_cached_buffer_max_bytes;
        let bytes_max = usize::try_from(bytes_max).unwrap_or(0);
        let mut failed = Vec::new();
        let mut batch = Pending::default();
        for Write { records, then } in writes {
            let encoded = match records.into_iter().map(Encoded::new).collect::<Result<Vec<_>, _>>() {
                Ok(encoded) => encoded,
                Err(error) => {
                    tracing::warn!(%error, "a group's record cannot be written");
                    failed.push((then, ErrorCode::UnknownServerError));
                    continue;
                }
            };
            let size: usize = encoded.iter().map(|record| record.size).sum();
            if batch.size + size > bytes_max {
                let _ = self.flush(std::mem::take(&mut batch), &mut failed);
            }
            let mut outcome = Ok(());
            for record in encoded {
                // A write larger than a batch: a group with very many offsets that is deleted. Its parts
                // are tombstones that may as well be written one by one.
                if batch.size > 0 && batch.size + record.size > bytes_max {
                    outcome = self.flush(std::mem::take(&mut batch), &mut failed);
                    if outcome.is_err() {
                        break;
                    }
                }
                batch.size += record.size;
                batch.records.push(record);
            }
            match outcome {
                Ok(()) => batch.thens.push(then),
                Err(code) => failed.push((then, code)),
            }
        }
        let _ = self.flush(batch, &mut failed);
        let now = self.now();
        failed.into_iter().map(|(then, code)| self.shard.completed(now, then, Err(code))).collect()
    }

    /// Appends one batch and replays it.
    fn flush(&mut self, batch: Pending, failed: &mut Vec<(Then, ErrorCode)>) -> Result<(), ErrorCode> {
        if !batch.records.is_empty() {
            match self.means.log.append(batch.build(self.now().wall_ms)) {
                Ok(first) => self.replay(first, batch.records),
                Err(error) => {
                    let (partition, code) = (self.means.partition, error.code());
                    tracing::warn!(partition, %error, "an append to __consumer_offsets failed");
                    failed.extend(batch.thens.into_iter().map(|then| (then, code)));
                    return Err(code);
                }
            }
        }
        let below = self.appended_below;
        batch.thens.into_iter().for_each(|then| self.await_commit(below, then));
        Ok(())
    }

    fn replay(&mut self, first: Offset, records: Vec<Encoded>) {
        for (offset, record) in (first..).zip(records) {
            let origin = Origin { offset, transaction_of: ProducerId::NONE };
            self.shard.replay(origin, record.record);
            self.appended_below = offset + 1;
        }
    }

    fn await_commit(&mut self, below: Offset, then: Then) {
        let timeout_ms = u64::try_from(self.means.settings.offsets_commit_timeout_ms).unwrap_or(0);
        let deadline_ms = self.now().monotonic_ms + timeout_ms;
        self.uncommitted.push_back(Uncommitted { below, deadline_ms, then });
    }

    /// What follows from all that is committed by now.
    fn take_committed(&mut self) -> Vec<Effects> {
        let mut follow_ups = Vec::new();
        let now = self.now();
        while let Some(front) = self.uncommitted.front() {
            let outcome = match self.means.log.is_committed(front.below) {
                Ok(false) => break,
                Ok(true) => Ok(()),
                Err(fault) => Err(fault.code()),
            };
            if let Some(front) = self.uncommitted.pop_front() {
                follow_ups.push(self.shard.completed(now, front.then, outcome));
            }
        }
        follow_ups
    }

    /// Handles all deadlines that have passed.
    fn expire(&mut self) {
        let now = self.now();
        while self.uncommitted.front().is_some_and(|front| front.deadline_ms <= now.monotonic_ms) {
            if let Some(front) = self.uncommitted.pop_front() {
                let late = Err(ErrorCode::CoordinatorNotAvailable);
                let effects = self.shard.completed(now, front.then, late);
                self.carry_out(effects);
            }
        }
        while let Some(effects) = self.shard.expire(now) {
            self.carry_out(effects);
        }
    }
}

/// A record and its bytes.
struct Encoded {
    record: GroupRecord,
    key: Bytes,
    value: Option<Bytes>,
    size: usize,
}

/// More than what a record needs beside key and value.
const RECORD_OVERHEAD: usize = 32;

impl Encoded {
    fn new(record: GroupRecord) -> Result<Encoded, EncodeError> {
        let (key, value) = record.encode()?;
        let size = RECORD_OVERHEAD + key.len() + value.as_ref().map_or(0, Bytes::len);
        Ok(Encoded { record, key, value, size })
    }
}

/// A batch that is being filled.
#[derive(Default)]
struct Pending {
    records: Vec<Encoded>,
    size: usize,
    thens: Vec<Then>,
}

impl Pending {
    fn build(&self, now_ms: TimestampMs) -> Bytes {
        let mut builder = BatchBuilder::v2(BatchSettings::default());
        for record in &self.records {
            builder.append(now_ms, Some(&record.key), record.value.as_deref(), &[]);
        }
        builder.build()
    }
}

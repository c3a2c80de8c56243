//! The mailbox: a task that owns the state machine of one partition.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use klamm_io::Clock;
use klamm_model::{ErrorCode, LeaderEpoch, Offset, ProducerId};
use klamm_records::HEAD_LEN;
use tokio::sync::{mpsc, oneshot};

use super::RuntimeSettings;
use super::batch::{Encoded, EncodedWrite, Pending, build};
use super::load::{LoadError, Loaded, load_some};
use super::log::{CoordinatorLog, LogFault};
use crate::machine::{Effects, Form, Host, Machine, Now, Origin, Ticket, Write};
use crate::planted::planted;

/// What a mailbox does.
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

/// From then on it tells the log how far the loading is, each time after as long.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// How far a mailbox is, for those who ask it.
#[derive(Default)]
struct Progress {
    status: AtomicU8,
    /// Bytes of the log that were loaded, and that there are.
    loaded: AtomicU64,
    size: AtomicU64,
}

/// What a mailbox works with.
pub(crate) struct Means<M: Machine> {
    pub(crate) partition: i32,
    pub(crate) epoch: LeaderEpoch,
    pub(crate) log: Arc<dyn CoordinatorLog>,
    pub(crate) settings: RuntimeSettings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) host: Arc<dyn Host<M>>,
}

/// The way into a mailbox. When the last one is dropped, its task ends, and whoever still waits for an
/// answer gets none.
pub(crate) struct Mailbox<M: Machine> {
    sender: mpsc::Sender<Letter<M>>,
    progress: Arc<Progress>,
    pub(crate) epoch: LeaderEpoch,
}

impl<M: Machine> Clone for Mailbox<M> {
    fn clone(&self) -> Mailbox<M> {
        Mailbox { sender: self.sender.clone(), progress: self.progress.clone(), epoch: self.epoch }
    }
}

struct Letter<M: Machine> {
    request: M::Request,
    reply: oneshot::Sender<M::Reply>,
}

impl<M: Machine> Mailbox<M> {
    /// Starts the task, which loads the partition first. Needs a tokio runtime.
    pub(crate) fn start(means: Means<M>) -> Mailbox<M> {
        let epoch = means.epoch;
        let capacity = usize::try_from(means.settings.queue_max).unwrap_or(1).max(1);
        let (sender, receiver) = mpsc::channel(capacity);
        let progress = Arc::new(Progress { size: means.log.size().into(), ..Progress::default() });
        let worker = Worker {
            machine: means.host.machine(epoch.0),
            means,
            receiver,
            put_back: None,
            waiting: BTreeMap::new(),
            next_ticket: 0,
            appended_below: 0,
            uncommitted: VecDeque::new(),
            progress: progress.clone(),
        };
        tokio::spawn(worker.run());
        Mailbox { sender, progress, epoch }
    }

    pub(crate) fn status(&self) -> Status {
        match self.progress.status.load(Ordering::Acquire) {
            0 => Status::Loading,
            1 => Status::Active,
            _ => Status::Failed,
        }
    }

    /// Bytes that are still to be loaded.
    pub(crate) fn bytes_to_load(&self) -> u64 {
        let Progress { loaded, size, .. } = &*self.progress;
        size.load(Ordering::Relaxed).saturating_sub(loaded.load(Ordering::Relaxed))
    }

    /// Asks, and waits for the answer. It waits for room in the mailbox too.
    pub(crate) async fn ask(self, request: M::Request) -> M::Reply {
        self.send(request).await.await
    }

    /// Asks, and returns the answer to wait for. It takes the mailbox, since who only waits for an answer must not
    /// keep it open.
    pub(crate) async fn send(self, request: M::Request) -> impl Future<Output = M::Reply> {
        let (reply, answer) = oneshot::channel();
        let is_sent = self.sender.send(Letter { request, reply }).await.is_ok();
        async move {
            let gone = || M::refusal(ErrorCode::NotCoordinator);
            if is_sent { answer.await.unwrap_or_else(|_| gone()) } else { gone() }
        }
    }
}

/// Something that is settled once the log is committed up to an offset.
struct Uncommitted<M: Machine> {
    below: Offset,
    deadline_ms: u64,
    then: M::Then,
}

struct Worker<M: Machine> {
    means: Means<M>,
    machine: M,
    receiver: mpsc::Receiver<Letter<M>>,
    /// A letter that was taken out of turn.
    put_back: Option<Letter<M>>,
    waiting: BTreeMap<Ticket, oneshot::Sender<M::Reply>>,
    next_ticket: u64,
    /// The offset behind all that was loaded and appended.
    appended_below: Offset,
    /// In the order of offsets.
    uncommitted: VecDeque<Uncommitted<M>>,
    progress: Arc<Progress>,
}

/// What follows writes that failed, and why they did.
type Failed<M> = Vec<(<M as Machine>::Then, ErrorCode)>;

/// What woke the worker.
enum Event<M: Machine> {
    Letter(Letter<M>),
    Committed,
    Deadline,
    Closed,
}

impl<M: Machine> Worker<M> {
    async fn run(mut self) {
        let partition = self.means.partition;
        let mut pause = LOAD_PAUSE;
        loop {
            match self.load().await {
                Ok(true) => break,
                Ok(false) => return,
                Err(error) => {
                    let pause_ms = pause.as_millis();
                    tracing::error!(topic = M::TOPIC, partition, %error, pause_ms, "the partition could not be loaded");
                    self.progress.status.store(Status::Failed as u8, Ordering::Release);
                }
            }
            if !self.is_wanted_after(pause).await {
                return;
            }
            pause = (pause * 2).min(LOAD_PAUSE_MAX);
        }
        let effects = self.machine.start(self.now(), &self.means.host.image());
        self.carry_out(effects);
        self.progress.status.store(Status::Active as u8, Ordering::Release);
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
        self.machine = self.means.host.machine(self.means.epoch.0);
        let (partition, start) = (self.means.partition, self.means.clock.monotonic());
        let took = || self.means.clock.monotonic().saturating_sub(start);
        let bytes_max = usize::try_from(self.means.settings.load_bytes).unwrap_or(1);
        let (mut loaded, mut told) = (Loaded::default(), TOLD_AFTER);
        let mut next = self.means.log.start_offset();
        while next < self.means.log.end_offset() {
            if planted!(LoadHalf) && next > self.means.log.end_offset() / 2 {
                next = self.means.log.end_offset();
                break;
            }
            self.progress.size.store(self.means.log.size(), Ordering::Relaxed);
            next = load_some(&*self.means.log, &mut self.machine, next, bytes_max, &mut loaded)?;
            self.progress.loaded.store(loaded.bytes, Ordering::Relaxed);
            if took() >= told {
                told = took() + TOLD_AFTER;
                let Loaded { records, bytes } = loaded;
                let (of, rate) = (self.means.log.size(), loaded.rate_mib(took()));
                tracing::info!(
                    topic = M::TOPIC,
                    partition,
                    records,
                    bytes,
                    of,
                    "the partition is being loaded, {rate} MiB a second"
                );
            }
            if self.receiver.is_closed() {
                return Ok(false);
            }
            tokio::task::yield_now().await;
        }
        self.appended_below = next;
        self.progress.loaded.store(u64::MAX, Ordering::Relaxed);
        let ((what, count), Loaded { records, bytes }) = (self.machine.size(), loaded);
        let (took, rate) = (took(), loaded.rate_mib(took()));
        let took_ms = took.as_millis();
        if took >= TOLD_AFTER {
            tracing::info!(
                topic = M::TOPIC,
                partition,
                records,
                bytes,
                took_ms,
                "{count} {what} loaded, {rate} MiB a second"
            );
        } else {
            tracing::debug!(topic = M::TOPIC, partition, records, bytes, took_ms, "{count} {what} loaded");
        }
        Ok(true)
    }

    fn now(&self) -> Now {
        Now { wall_ms: self.means.clock.now_ms(), monotonic_ms: self.means.clock.monotonic_ms() }
    }

    async fn next_event(&mut self) -> Event<M> {
        if let Some(letter) = self.put_back.take() {
            return Event::Letter(letter);
        }
        let front = self.uncommitted.front();
        let deadlines = [self.machine.next_deadline_ms(), front.map(|front| front.deadline_ms)];
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
    fn serve(&mut self, letter: Letter<M>) {
        let mut is_batched = M::is_batched(&letter.request);
        let reads = M::reads(&letter.request);
        let mut effects = self.handle(letter);
        while is_batched {
            let Ok(next) = self.receiver.try_recv() else { break };
            is_batched = M::is_batched(&next.request);
            if is_batched {
                let more = self.handle(next);
                effects.extend(more);
            } else {
                self.put_back = Some(next);
            }
        }
        if reads {
            // What is read may rest on records that could still be lost: the answer waits for them.
            let below = self.appended_below;
            for (ticket, reply) in std::mem::take(&mut effects.replies) {
                self.await_commit(below, M::reply_when_committed(ticket, reply));
            }
        }
        self.carry_out(effects);
    }

    fn handle(&mut self, letter: Letter<M>) -> Effects<M> {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.waiting.insert(ticket, letter.reply);
        self.machine.handle(self.now(), ticket, letter.request)
    }

    /// Sends replies and commands and appends what is to be written, and whatever follows from that.
    fn carry_out(&mut self, effects: Effects<M>) {
        let mut todo = VecDeque::from([effects]);
        while let Some(effects) = todo.pop_front() {
            for (ticket, reply) in effects.replies {
                if let Some(waiting) = self.waiting.remove(&ticket) {
                    // Whoever asked may have gone.
                    let _ = waiting.send(reply);
                }
            }
            effects.commands.into_iter().for_each(|command| self.means.host.carry_out(command));
            todo.extend(self.append(effects.writes));
            todo.extend(self.take_committed());
        }
    }

    /// Appends writes, as many as fit into each batch; returns what follows from those that fail.
    fn append(&mut self, writes: Vec<Write<M>>) -> Vec<Effects<M>> {
        let mut failed = Vec::new();
        let mut batch = Pending::default();
        for Write { records, form, then } in writes {
            if !matches!(form, Form::Plain) {
                self.flush(std::mem::take(&mut batch), &mut failed);
                match self.append_alone(records, form) {
                    Ok(()) => self.await_commit(self.appended_below, then),
                    Err(code) => failed.push((then, code)),
                }
                continue;
            }
            match Encoded::all(records) {
                Ok(records) => self.fill(&mut batch, EncodedWrite::new(records, then), &mut failed),
                Err(code) => failed.push((then, code)),
            }
        }
        self.flush(batch, &mut failed);
        let now = self.now();
        failed.into_iter().map(|(then, code)| self.machine.completed(now, then, Err(code))).collect()
    }

    /// Adds one write to the batch; appends the batch first where both do not fit into one.
    fn fill(&mut self, batch: &mut Pending<M>, mut write: EncodedWrite<M>, failed: &mut Failed<M>) {
        let bytes_max = self.records_bytes_max();
        if batch.size + write.size > bytes_max {
            self.flush(std::mem::take(batch), failed);
        }
        while let Some(part) = write.take_part(bytes_max) {
            match self.append_plain(part.iter()) {
                Ok(first) => self.replay(first, ProducerId::NONE, part),
                Err(fault) => {
                    failed.push((write.then, self.tell(&fault)));
                    return;
                }
            };
        }
        batch.push(write);
    }

    /// Bytes of records that go into one append: no more than the partition takes now.
    fn records_bytes_max(&self) -> usize {
        let wanted = usize::try_from(self.means.settings.append_bytes_max).unwrap_or(0);
        wanted.min(self.means.log.batch_bytes_max().saturating_sub(HEAD_LEN))
    }

    /// Appends records in one batch; returns the offset of the first.
    fn append_plain<'a>(
        &self,
        records: impl Iterator<Item = &'a Encoded<M>> + Clone,
    ) -> Result<Offset, LogFault> {
        if records.clone().next().is_none() {
            return Ok(self.appended_below);
        }
        self.means.log.append(build(records, self.now().wall_ms, None), None)
    }

    /// Appends one batch and replays it.
    fn flush(&mut self, batch: Pending<M>, failed: &mut Failed<M>) {
        match self.append_plain(batch.writes.iter().flat_map(|write| &write.records)) {
            Ok(mut next) => {
                for write in batch.writes {
                    next = self.replay(next, ProducerId::NONE, write.records);
                    self.await_commit(self.appended_below, write.then);
                }
            }
            // The limit may have been lowered since it was asked for. What fits alone must not fail because of its
            // neighbours.
            Err(LogFault::TooLarge) if batch.writes.len() > 1 => {
                for write in batch.writes {
                    let mut alone = Pending::default();
                    alone.push(write);
                    self.flush(alone, failed);
                }
            }
            Err(fault) => {
                let code = self.tell(&fault);
                failed.extend(batch.writes.into_iter().map(|write| (write.then, code)));
            }
        }
    }

    /// Appends records of a transaction, or its end, and replays that.
    fn append_alone(&mut self, records: Vec<M::Record>, form: Form) -> Result<(), ErrorCode> {
        match form {
            Form::Plain => unreachable!("plain writes share batches"),
            Form::OfTransaction { producer_id, producer_epoch, guard } => {
                let records = Encoded::all(records)?;
                let producer = Some((producer_id, producer_epoch));
                let batch = build(records.iter(), self.now().wall_ms, producer);
                let first = self.means.log.append(batch, guard).map_err(|fault| self.tell(&fault))?;
                self.replay(first, producer_id, records);
            }
            Form::End(marker) => {
                let appended = self.means.log.end_transaction(&marker).map_err(|fault| self.tell(&fault))?;
                if let Some(offset) = appended {
                    self.machine.replay_transaction_end(marker.producer_id, marker.is_commit);
                    self.appended_below = offset + 1;
                }
            }
        }
        Ok(())
    }

    /// Tells the log of a failed append; returns what clients are told.
    fn tell(&self, error: &LogFault) -> ErrorCode {
        let (topic, partition) = (M::TOPIC, self.means.partition);
        tracing::warn!(topic, partition, %error, "an append failed");
        error.code()
    }

    /// Replays what was appended; returns the offset behind it.
    fn replay(&mut self, first: Offset, transaction_of: ProducerId, records: Vec<Encoded<M>>) -> Offset {
        let mut offset = first;
        let written_ms = self.means.clock.now_ms();
        for record in records {
            self.machine.replay(Origin { offset, transaction_of, written_ms }, record.record);
            offset += 1;
            self.appended_below = offset;
        }
        offset
    }

    fn await_commit(&mut self, below: Offset, then: M::Then) {
        let timeout_ms = u64::try_from(self.means.settings.commit_timeout_ms).unwrap_or(0);
        let deadline_ms = self.now().monotonic_ms + timeout_ms;
        self.uncommitted.push_back(Uncommitted { below, deadline_ms, then });
    }

    /// What follows from all that is committed by now.
    fn take_committed(&mut self) -> Vec<Effects<M>> {
        let mut follow_ups = Vec::new();
        let now = self.now();
        while let Some(front) = self.uncommitted.front() {
            let outcome = match self.means.log.is_committed(front.below) {
                Ok(false) if !planted!(ReplyBeforeCommitted) => break,
                Ok(_) => Ok(()),
                Err(fault) => Err(fault.code()),
            };
            if let Some(front) = self.uncommitted.pop_front() {
                follow_ups.push(self.machine.completed(now, front.then, outcome));
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
                let effects = self.machine.completed(now, front.then, late);
                self.carry_out(effects);
            }
        }
        while let Some(effects) = self.machine.expire(now) {
            self.carry_out(effects);
        }
    }
}

//! Checking the logs that an unclean stop has left, several at once, while the others are served.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::Duration;

use klamm_model::{TopicId, TopicPartition, Uuid};
use parking_lot::{Condvar, Mutex};

use super::{LoadReport, LogStore};
use crate::error::{StorageError, StorageErrorKind};
use crate::log::{OpenedLog, UncheckedLog};

/// How often the log says how far a recovery is.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// A partition that is not served before it is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncheckedPartition {
    /// Its name.
    pub topic_partition: TopicPartition,
    /// Its folder.
    pub dir: PathBuf,
    /// Its topic's id; none in folders of old versions.
    pub topic_id: Option<TopicId>,
}

/// How far the recovery after an unclean stop is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryStatus {
    /// Logs that had to be checked.
    pub logs: usize,
    /// Those of them that are done.
    pub logs_done: usize,
    /// Bytes that had to be checked.
    pub bytes: u64,
    /// Those of them that are done.
    pub bytes_done: u64,
    /// Since the recovery began; until its end.
    pub elapsed: Duration,
}

/// The logs that wait to be checked, and those that are.
pub(super) struct Recoveries {
    state: Mutex<State>,
    /// Told when a thread has let go of a log, or has ended.
    changed: Condvar,
}

struct State {
    /// `num.recovery.threads.per.data.dir`.
    threads: usize,
    /// By directory; the last ones come first.
    waiting: BTreeMap<Uuid, Vec<Waiting>>,
    /// Logs that are being checked, and how to end that.
    running: BTreeMap<TopicPartition, Arc<AtomicBool>>,
    /// Threads at work, by directory.
    working: BTreeMap<Uuid, usize>,
    is_stopped: bool,
    status: RecoveryStatus,
    began: Duration,
    told: Duration,
}

/// A log that waits.
pub(super) struct Waiting {
    pub(super) topic_partition: TopicPartition,
    pub(super) bytes: u64,
    pub(super) log: UncheckedLog,
}

/// A log to check.
struct Task {
    waiting: Waiting,
    is_cancelled: Arc<AtomicBool>,
    /// How many more threads the directory may have.
    threads_wanted: usize,
}

/// What the threads of one recovery share.
struct Run<'a> {
    report: Mutex<LoadReport>,
    on_recovered: &'a (dyn Fn() + Sync),
}

impl Recoveries {
    pub(super) fn new(threads: usize) -> Recoveries {
        let state = State {
            threads: threads.max(1),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            working: BTreeMap::new(),
            is_stopped: false,
            status: RecoveryStatus::default(),
            began: Duration::ZERO,
            told: Duration::ZERO,
        };
        Recoveries { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn threads(&self) -> usize {
        self.state.lock().threads
    }

    pub(super) fn add(&self, directory: Uuid, waiting: Waiting) {
        let mut state = self.state.lock();
        state.status.logs += 1;
        state.status.bytes += waiting.bytes;
        state.waiting.entry(directory).or_default().push(waiting);
    }

    /// Ends what is being done with a partition. Its log is not used any more when this returns.
    pub(super) fn cancel(&self, tp: &TopicPartition) {
        let mut state = self.state.lock();
        let (mut logs, mut bytes) = (0, 0);
        for waiting in state.waiting.values_mut() {
            for waiting in waiting.extract_if(.., |waiting| waiting.topic_partition == *tp) {
                logs += 1;
                bytes += waiting.bytes;
            }
        }
        state.status.logs -= logs;
        state.status.bytes -= bytes;
        while let Some(is_cancelled) = state.running.get(tp) {
            is_cancelled.store(true, Ordering::Release);
            self.changed.wait(&mut state);
        }
    }

    /// Ends everything. No log is being checked any more when this returns.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.is_stopped = true;
        state.running.values().for_each(|is_cancelled| is_cancelled.store(true, Ordering::Release));
        while state.working.values().any(|working| *working > 0) {
            self.changed.wait(&mut state);
        }
    }

    /// The next log of a directory. With `None` the thread that asks has to end.
    fn take(&self, directory: Uuid) -> Option<Task> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let working = state.working.entry(directory).or_default();
        let left = state.waiting.get_mut(&directory);
        let next = match left {
            Some(left) if !state.is_stopped && *working <= state.threads => {
                left.pop().map(|next| (next, left.len()))
            }
            _ => None,
        };
        let Some((waiting, left)) = next else {
            *working -= 1;
            self.changed.notify_all();
            return None;
        };
        let threads_wanted = state.threads.saturating_sub(*working).min(left);
        *working += threads_wanted;
        let is_cancelled = Arc::new(AtomicBool::new(false));
        state.running.insert(waiting.topic_partition.clone(), is_cancelled.clone());
        Some(Task { waiting, is_cancelled, threads_wanted })
    }

    /// Says so that a log is not used any more.
    fn let_go(&self, tp: &TopicPartition) {
        let mut state = self.state.lock();
        state.running.remove(tp);
        state.status.logs_done += 1;
        self.changed.notify_all();
    }

    /// Counts bytes, and tells from time to time how far it is.
    fn count(&self, bytes: u64, now: Duration) {
        let mut state = self.state.lock();
        state.status.bytes_done += bytes;
        state.status.elapsed = now.saturating_sub(state.began);
        if now.saturating_sub(state.told) < TELL_EVERY {
            return;
        }
        state.told = now;
        let status = state.status.clone();
        drop(state);
        let per_second = status.bytes_per_second();
        let left = (status.bytes.saturating_sub(status.bytes_done)) as f64 / per_second.max(1.0);
        tracing::info!(
            "recovery: {} of {} partitions and {} of {} MiB are checked, {:.0} MiB/s, about {left:.0} s left",
            status.logs_done,
            status.logs,
            status.bytes_done >> 20,
            status.bytes >> 20,
            per_second / f64::from(1 << 20),
        );
    }
}

impl RecoveryStatus {
    /// The rate so far.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes_done as f64 / self.elapsed.as_secs_f64().max(1e-6)
    }
}

impl LogStore {
    /// The partitions that wait for their recovery.
    pub fn unchecked(&self) -> Vec<UncheckedPartition> {
        let unopened = self.shared.unopened.lock();
        let unchecked = unopened.iter().filter(|(_, unopened)| unopened.is_recovering());
        let partition = |(tp, unopened): (&TopicPartition, &super::Unopened)| UncheckedPartition {
            topic_partition: tp.clone(),
            dir: unopened.failure.path.clone(),
            topic_id: unopened.topic_id,
        };
        unchecked.map(partition).collect()
    }

    /// How far the recovery is.
    pub fn recovery_status(&self) -> RecoveryStatus {
        self.shared.recoveries.state.lock().status.clone()
    }

    /// Sets how many logs of a directory are recovered at once. It counts from the next log on.
    pub fn set_recovery_threads(&self, threads: usize) {
        self.shared.recoveries.state.lock().threads = threads.max(1);
    }

    /// Checks the logs that [`LogStore::open_logs`] has left, the shortest ones first, and returns when that is
    /// done or given up by [`LogStore::close`]. Each log can be had from [`LogStore::get`] as soon as it is done;
    /// then `on_recovered` is called, on the thread that did it.
    pub fn recover(&self, on_recovered: &(dyn Fn() + Sync)) -> LoadReport {
        let now = self.shared.environment.clock.monotonic();
        let directories: Vec<Uuid> = {
            let mut state = self.shared.recoveries.state.lock();
            (state.began, state.told) = (now, now);
            for waiting in state.waiting.values_mut() {
                waiting.sort_by_key(|waiting| std::cmp::Reverse(waiting.bytes));
            }
            let waiting = state.waiting.iter().filter(|(_, waiting)| !waiting.is_empty());
            let directories: Vec<Uuid> = waiting.map(|(directory, _)| *directory).collect();
            state.working = directories.iter().map(|directory| (*directory, 1)).collect();
            directories
        };
        let run = Run { report: Mutex::default(), on_recovered };
        let Some((last, others)) = directories.split_last() else { return run.report.into_inner() };
        std::thread::scope(|scope| {
            for directory in others {
                scope.spawn(|| self.work(scope, *directory, &run));
            }
            self.work(scope, *last, &run);
        });
        {
            let _changing = self.changing.lock();
            self.resume_moves();
        }
        self.tell_end(run.report.into_inner())
    }

    /// Checks logs of a directory as long as there are any.
    fn work<'s>(&'s self, scope: &'s Scope<'s, '_>, directory: Uuid, run: &'s Run<'_>) {
        while let Some(Task { waiting, is_cancelled, threads_wanted }) =
            self.shared.recoveries.take(directory)
        {
            for _ in 0..threads_wanted {
                scope.spawn(move || self.work(scope, directory, run));
            }
            let Waiting { topic_partition, log, .. } = waiting;
            let progress = |bytes| {
                self.shared.recoveries.count(bytes, self.shared.environment.clock.monotonic());
                !is_cancelled.load(Ordering::Acquire)
            };
            let recovered = log.recover(&progress);
            self.finish(&topic_partition, recovered, run);
            self.shared.recoveries.let_go(&topic_partition);
            (run.on_recovered)();
        }
    }

    /// Gives a log that is checked to its users, or keeps the failure.
    fn finish(&self, tp: &TopicPartition, recovered: Result<OpenedLog, StorageError>, run: &Run<'_>) {
        let mut report = run.report.lock();
        // The two change together, and in this order: who gathers a checkpoint sees the partition once.
        let mut logs = self.shared.logs.write();
        let mut unopened = self.shared.unopened.lock();
        let Some(kept) = unopened.get_mut(tp).filter(|kept| kept.is_recovering()) else { return };
        match recovered {
            Ok(OpenedLog { log, recovery }) => {
                let recovery = recovery.unwrap_or_default();
                tracing::debug!(
                    partition = %tp, bytes = recovery.scanned_bytes, cut_bytes = recovery.cut_bytes, "recovered a log"
                );
                unopened.remove(tp);
                logs.insert(tp.clone(), Arc::new(log));
                report.recovered_logs += 1;
                report.scanned_bytes += recovery.scanned_bytes;
                report.cut_bytes += recovery.cut_bytes;
            }
            // It was given up, for a stop or for the deletion of the partition.
            Err(StorageError { kind: StorageErrorKind::Recovering, .. }) => {}
            Err(error) => {
                tracing::error!(partition = %tp, %error, "the log cannot be recovered");
                kept.failure = error.clone();
                report.failed.push((tp.clone(), error));
            }
        }
    }

    fn tell_end(&self, mut report: LoadReport) -> LoadReport {
        report.unchecked_logs = self.unchecked().len();
        let mut state = self.shared.recoveries.state.lock();
        state.status.elapsed = self.shared.environment.clock.monotonic().saturating_sub(state.began);
        let status = state.status.clone();
        drop(state);
        report.failed.sort_by(|(one, _), (other, _)| one.cmp(other));
        let LoadReport { recovered_logs, cut_bytes, unchecked_logs, .. } = report;
        tracing::info!(
            "recovery {}: {recovered_logs} partitions, {} MiB in {:.1} s ({:.0} MiB/s); {cut_bytes} bytes were cut off, \
             {} partitions cannot be opened, {unchecked_logs} were not reached",
            if unchecked_logs == 0 { "is done" } else { "was given up" },
            status.bytes_done >> 20,
            status.elapsed.as_secs_f64(),
            status.bytes_per_second() / f64::from(1 << 20),
            report.failed.len(),
        );
        report
    }
}

impl super::Unopened {
    /// Whether the partition will be there when its log is checked.
    fn is_recovering(&self) -> bool {
        self.failure.kind == StorageErrorKind::Recovering
    }
}

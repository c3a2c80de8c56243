//! Syncs that acknowledgements wait for, on threads of their own.
//!
//! Each log directory has a few threads, since a disk that hangs must hold up nobody but those who wait for it.
//! Whoever needs a sync leaves word at the log; the log is queued once. While its sync runs, more gather, and
//! all of them share the next one (group commit). So the busier the log, the fewer syncs an acknowledgement costs.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use klamm_io::Threads;
use klamm_model::Uuid;
use parking_lot::{Condvar, Mutex};

use crate::error::StorageError;
use crate::log::Log;
use crate::planted::planted;

/// How many logs of a directory are synced at once: file systems put what comes together into one commit of
/// their journal.
const THREADS_MAX: usize = 8;

/// Told once what became of a sync.
type Done = Box<dyn FnOnce(Result<(), StorageError>) + Send>;

/// What the logs of a process share of it.
pub(crate) struct Syncer {
    threads: Threads,
    group_commit: AtomicBool,
    lanes: Mutex<BTreeMap<Uuid, Arc<Lane>>>,
}

/// The threads of one log directory. They begin when there is work for them, and end with the syncer.
#[derive(Default)]
struct Lane {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    logs: VecDeque<Arc<Log>>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

/// Who waits for the next sync of a log.
#[derive(Default)]
pub(crate) struct Gathering {
    waiting: Vec<Done>,
    /// Whether the log is queued, or being synced: then whoever comes need not queue it.
    is_queued: bool,
}

impl Syncer {
    pub(crate) fn new(threads: Threads) -> Syncer {
        Syncer { threads, group_commit: AtomicBool::default(), lanes: Mutex::default() }
    }

    /// Whether every acknowledgement waits for a sync.
    pub(crate) fn is_group_commit(&self) -> bool {
        self.group_commit.load(Ordering::Acquire)
    }

    pub(crate) fn set_group_commit(&self, group_commit: bool) {
        self.group_commit.store(group_commit, Ordering::Release);
    }

    fn enqueue(&self, log: Arc<Log>) {
        let lane = self.lanes.lock().entry(log.directory_id()).or_default().clone();
        lane.enqueue(log, self.threads);
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        for lane in self.lanes.get_mut().values() {
            lane.queue.lock().is_closed = true;
            lane.changed.notify_all();
        }
    }
}

impl Lane {
    fn enqueue(self: Arc<Lane>, log: Arc<Log>, threads: Threads) {
        let mut queue = self.queue.lock();
        queue.logs.push_back(log);
        if threads == Threads::Inline {
            drop(queue);
            return self.work_off();
        }
        if queue.logs.len() <= queue.idle || queue.threads == THREADS_MAX {
            self.changed.notify_one();
            return;
        }
        let name = format!("klamm-sync-{}", queue.threads);
        queue.threads += 1;
        drop(queue);
        let lane = self.clone();
        if let Err(error) = std::thread::Builder::new().name(name).spawn(move || lane.work()) {
            tracing::error!(%error, "a thread for syncs cannot be started; this one syncs instead");
            self.queue.lock().threads -= 1;
            self.work_off();
        }
    }

    /// What a thread does until the syncer is gone and nobody waits any more.
    fn work(&self) {
        while let Some(log) = self.next() {
            self.serve(log);
        }
    }

    fn next(&self) -> Option<Arc<Log>> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(log) = queue.logs.pop_front() {
                return Some(log);
            }
            if queue.is_closed {
                return None;
            }
            queue.idle += 1;
            self.changed.wait(&mut queue);
            queue.idle -= 1;
        }
    }

    fn work_off(&self) {
        loop {
            let Some(log) = self.queue.lock().logs.pop_front() else { return };
            self.serve(log);
        }
    }

    /// Syncs a log for all who wait for it. If others have come meanwhile, it stands in line again.
    fn serve(&self, log: Arc<Log>) {
        if log.sync_for_waiting() {
            self.queue.lock().logs.push_back(log);
        }
    }
}

impl Log {
    /// Has all batches that were appended so far brought to the disk by another thread, and `done` told there;
    /// several callers share the work. It does not block.
    pub fn flush_then(self: &Arc<Log>, done: impl FnOnce(Result<(), StorageError>) + Send + 'static) {
        if planted!(self.environment, AcknowledgeBeforeSync) {
            done(Ok(()));
            let _ = self.flush();
            return;
        }
        let mut gathering = self.gathering.lock();
        gathering.waiting.push(Box::new(done));
        if !std::mem::replace(&mut gathering.is_queued, true) {
            drop(gathering);
            self.environment.syncer.enqueue(self.clone());
        }
    }

    /// One sync for all who wait by now; returns whether others wait by its end.
    fn sync_for_waiting(&self) -> bool {
        let waiting = std::mem::take(&mut self.gathering.lock().waiting);
        let result = catch_unwind(AssertUnwindSafe(|| self.flush())).unwrap_or_else(|_| {
            // What it has left undone is not known, and who waits must not wait for ever.
            let error = std::io::Error::other("the thread that syncs has panicked");
            Err(self.set_offline(StorageError::io(&self.dir, "sync", &error)))
        });
        waiting.into_iter().for_each(|done| done(result.clone()));
        let mut gathering = self.gathering.lock();
        gathering.is_queued = !gathering.waiting.is_empty();
        gathering.is_queued
    }
}

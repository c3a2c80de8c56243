//! Disk work that may stall, away from the thread that keeps the quorum alive: a slow disk must not cost a
//! leader its leadership. All of it is done in the order in which it was handed over.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use klamm_io::{Clock, File};
use tokio::sync::oneshot;

/// What to do when a sync has ended.
pub(crate) type Synced = Box<dyn FnOnce(io::Result<()>) + Send>;

/// How long a write to a full disk waits until it is tried again.
const FULL_DISK_PAUSE: Duration = Duration::from_millis(500);

/// How long a piece of work may take before it counts as one that stands still.
const STANDSTILL_MS: u64 = 500;

enum Work {
    Sync(Arc<dyn File>, Synced),
    Run(Box<dyn FnOnce() + Send>),
}

/// Where disk work is done. Clones do it in the same place.
#[derive(Clone)]
pub(crate) struct DiskThread {
    /// `None` for work on the caller's thread, as simulation needs it.
    queue: Option<mpsc::Sender<Work>>,
    is_closing: Arc<AtomicBool>,
    pace: Arc<Pace>,
}

/// Whether the work goes on.
#[derive(Default)]
struct Pace {
    /// How many writes wait for space.
    waiting: AtomicUsize,
    /// How many have ever begun to.
    waits: AtomicU64,
    /// What the thread works at was begun then, in ms of the monotonic clock and one more; 0 while it waits for work.
    busy_since: AtomicU64,
}

impl DiskThread {
    /// A thread of its own, which ends when the last clone is gone.
    pub(crate) fn spawn(clock: Arc<dyn Clock>) -> io::Result<DiskThread> {
        let (queue, work) = mpsc::channel();
        let pace = Arc::new(Pace::default());
        let noted = Arc::clone(&pace);
        let name = "klamm-metadata-disk".to_owned();
        std::thread::Builder::new().name(name).spawn(move || run(&work, &noted, &*clock))?;
        Ok(DiskThread { queue: Some(queue), is_closing: Arc::default(), pace })
    }

    /// The caller's thread.
    pub(crate) fn inline() -> DiskThread {
        DiskThread { queue: None, is_closing: Arc::default(), pace: Arc::default() }
    }

    /// `None` while the work stands still: a write waits for space, or the disk takes long. Else a number that is another
    /// one after each wait for space.
    pub(crate) fn goes_on(&self, now_ms: u64) -> Option<u64> {
        // Read first: a wait that begins now is seen, or is another number later.
        let waits = self.pace.waits.load(Ordering::Acquire);
        let busy_since = self.pace.busy_since.load(Ordering::Acquire);
        let is_slow = busy_since > 0 && now_ms.saturating_sub(busy_since) >= STANDSTILL_MS;
        let is_waiting = self.pace.waiting.load(Ordering::Acquire) > 0;
        (!is_slow && !is_waiting).then_some(waits)
    }

    /// Syncs a file. Syncs of one file that wait together are done as one.
    pub(crate) fn sync(&self, file: Arc<dyn File>, synced: Synced) {
        match &self.queue {
            None => synced(file.sync_data()),
            Some(queue) => {
                if let Err(mpsc::SendError(Work::Sync(_, synced))) = queue.send(Work::Sync(file, synced)) {
                    synced(Err(ended()));
                }
            }
        }
    }

    /// Does `work` and returns what it returned.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let Some(queue) = &self.queue else { return work() };
        let (sender, receiver) = oneshot::channel();
        let job = move || {
            // Nobody waits any more when the node was stopped meanwhile.
            let _ = sender.send(work());
        };
        queue.send(Work::Run(Box::new(job))).map_err(|_| ended())?;
        receiver.await.map_err(|_| ended())?
    }

    /// Does `work`, which writes `path`, until the disk has space for it. A quorum cannot live with a write that
    /// failed; so one for which there is no space waits for somebody to make some, and what asked for it with it.
    ///
    /// # Errors
    /// Every other error of `work`, and also that one after [`DiskThread::close`].
    pub(crate) async fn run_with_space<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl Fn() -> io::Result<T> + Clone + Send + 'static,
    ) -> io::Result<T> {
        let mut space = self.space_for(path);
        loop {
            match self.run(work.clone()).await {
                Err(error) if space.is_awaited(&error).await => {}
                result => return result,
            }
        }
    }

    /// What a write of `path` asks when it failed.
    pub(crate) fn space_for<'a>(&'a self, path: &'a Path) -> Space<'a> {
        Space { path, is_awaited: false, is_closing: &self.is_closing, pace: &self.pace }
    }

    /// From now on nothing waits for space: the node stops.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }
}

/// Whether a write failed for want of space, which may come back.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Space on the disk for one write, which may be tried many times.
pub(crate) struct Space<'a> {
    path: &'a Path,
    is_awaited: bool,
    is_closing: &'a AtomicBool,
    pace: &'a Pace,
}

impl Space<'_> {
    /// Whether a write that failed with `error` is to be tried again; returns after a pause then.
    pub(crate) async fn is_awaited(&mut self, error: &io::Error) -> bool {
        if !is_full(error) || self.is_closing.load(Ordering::Relaxed) {
            return false;
        }
        if !self.is_awaited {
            self.is_awaited = true;
            self.pace.waiting.fetch_add(1, Ordering::AcqRel);
            self.pace.waits.fetch_add(1, Ordering::AcqRel);
            let path = self.path.display();
            tracing::error!(
                "{path} cannot be written: {error}; changes of metadata wait until there is space"
            );
        }
        tokio::time::sleep(FULL_DISK_PAUSE).await;
        true
    }
}

impl Drop for Space<'_> {
    fn drop(&mut self) {
        if self.is_awaited {
            self.pace.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn run(work: &mpsc::Receiver<Work>, pace: &Pace, clock: &dyn Clock) {
    let mut next = work.recv().ok();
    while let Some(current) = next.take() {
        pace.busy_since.store(clock.monotonic_ms().saturating_add(1), Ordering::Release);
        match current {
            Work::Run(job) => job(),
            Work::Sync(file, synced) => {
                let mut waiting = vec![synced];
                while let Ok(following) = work.try_recv() {
                    match following {
                        Work::Sync(other, synced) if Arc::ptr_eq(&other, &file) => waiting.push(synced),
                        other => {
                            next = Some(other);
                            break;
                        }
                    }
                }
                report(file.sync_data(), waiting);
            }
        }
        pace.busy_since.store(0, Ordering::Release);
        next = next.or_else(|| work.recv().ok());
    }
}

fn report(result: io::Result<()>, waiting: Vec<Synced>) {
    for synced in waiting {
        synced(match &result {
            Ok(()) => Ok(()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        });
    }
}

fn ended() -> io::Error {
    io::Error::other("the thread for the metadata log's disk work has ended")
}

//! Disk work that may stall, away from the thread that keeps the quorum alive: a slow disk must not cost a
//! leader its leadership. All of it is done in the order in which it was handed over.

use std::io;
use std::sync::Arc;
use std::sync::mpsc;

use klamm_io::File;
use tokio::sync::oneshot;

/// What to do when a sync has ended.
pub(crate) type Synced = Box<dyn FnOnce(io::Result<()>) + Send>;

enum Work {
    Sync(Arc<dyn File>, Synced),
    Run(Box<dyn FnOnce() + Send>),
}

/// Where disk work is done. Clones do it in the same place.
#[derive(Clone)]
pub(crate) struct DiskThread {
    /// `None` for work on the caller's thread, as simulation needs it.
    queue: Option<mpsc::Sender<Work>>,
}

impl DiskThread {
    /// A thread of its own, which ends when the last clone is gone.
    pub(crate) fn spawn() -> io::Result<DiskThread> {
        let (queue, work) = mpsc::channel();
        std::thread::Builder::new().name("klamm-metadata-disk".to_owned()).spawn(move || run(&work))?;
        Ok(DiskThread { queue: Some(queue) })
    }

    /// The caller's thread.
    pub(crate) fn inline() -> DiskThread {
        DiskThread { queue: None }
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
}

fn run(work: &mpsc::Receiver<Work>) {
    let mut next = work.recv().ok();
    while let Some(current) = next.take() {
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

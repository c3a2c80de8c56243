//! Where work is done that may wait for a disk.

use std::io;

/// On which thread such work runs. A composition chooses once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Threads {
    /// On threads of its own, so that a disk that stalls holds up nobody else.
    #[default]
    Own,
    /// In place, on the caller's thread: what simulation needs, where one thread does everything in an order that
    /// a seed repeats.
    Inline,
}

impl Threads {
    /// Does `work` and returns what it returned.
    ///
    /// # Errors
    /// When `work` has panicked on a thread of its own, or the runtime ends.
    pub async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        match self {
            Threads::Own => tokio::task::spawn_blocking(work).await.map_err(io::Error::other),
            Threads::Inline => Ok(work()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// In simulation a second thread would make two runs of one seed differ.
    #[tokio::test]
    async fn inline_work_stays_on_the_thread_and_other_work_leaves_it() {
        let caller = thread::current().id();
        let by = |threads: Threads| threads.run(|| thread::current().id());
        assert_eq!(by(Threads::Inline).await.unwrap(), caller);
        assert_ne!(by(Threads::Own).await.unwrap(), caller);
    }
}

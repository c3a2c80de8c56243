//! Work on many logs at once, on threads that mostly wait for the disk: what several sync at the same time, a file system
//! writes back together.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `work` with each item, on so many threads, and returns when all is done. With one it is this thread, and the order
/// is that of the items.
pub(super) fn side_by_side<T: Sync>(threads: usize, items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(item);
        }
    };
    let threads = threads.min(items.len());
    if threads <= 1 {
        return work();
    }
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
}

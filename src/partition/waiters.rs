//! Who waits for a partition to move. There is no purgatory: the request's own task waits, on one handle for
//! all its partitions.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Below this many entries nobody looks for dead ones.
const SWEEP_MIN: usize = 16;

/// The handles that wait for the next move. A handle is woken once and then forgotten; those whose request has
/// ended are swept when the list has doubled, so that an idle partition that is polled for ever keeps nothing.
#[derive(Default)]
pub(crate) struct Waiters {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    waiting: Vec<Weak<Notify>>,
    sweep_at: usize,
}

impl Waiters {
    pub(crate) fn register(&self, wake: &Arc<Notify>) {
        let mut list = self.list.lock();
        if list.waiting.len() >= list.sweep_at.max(SWEEP_MIN) {
            list.waiting.retain(|waiter| waiter.strong_count() > 0);
            list.sweep_at = 2 * list.waiting.len();
        }
        // A request that waits on many partitions registers anew on all when one of them has woken it.
        let waits_already = |waiter: &Weak<Notify>| std::ptr::eq(waiter.as_ptr(), Arc::as_ptr(wake));
        if !list.waiting.iter().any(waits_already) {
            list.waiting.push(Arc::downgrade(wake));
        }
    }

    pub(crate) fn wake_all(&self) {
        let woken = {
            let mut list = self.list.lock();
            if list.waiting.is_empty() {
                return;
            }
            std::mem::take(&mut list.waiting)
        };
        for waiter in woken {
            if let Some(waiter) = waiter.upgrade() {
                waiter.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_once_however_often_it_is_woken_by_others() {
        let waiters = Waiters::default();
        let (one, other) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        for _ in 0..100 {
            waiters.register(&one);
            waiters.register(&other);
        }
        assert_eq!(waiters.list.lock().waiting.len(), 2);
    }

    #[test]
    fn requests_that_ended_leave_no_handle_behind() {
        let waiters = Waiters::default();
        let alive = Arc::new(Notify::new());
        waiters.register(&alive);
        for _ in 0..10_000 {
            waiters.register(&Arc::new(Notify::new()));
        }
        assert!(waiters.list.lock().waiting.len() <= 2 * SWEEP_MIN);
        waiters.wake_all();
        assert!(waiters.list.lock().waiting.is_empty());
    }
}

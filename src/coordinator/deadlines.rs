//! The deadlines of a machine: one ordered set, so that the next one is always at hand. A timer is what happens
//! at its deadline, and has at most one.

use std::collections::{BTreeMap, BTreeSet};

/// Deadlines in monotonic milliseconds.
pub(crate) struct Deadlines<T> {
    by_time: BTreeSet<(u64, T)>,
    by_timer: BTreeMap<T, u64>,
}

impl<T> Default for Deadlines<T> {
    fn default() -> Deadlines<T> {
        Deadlines { by_time: BTreeSet::new(), by_timer: BTreeMap::new() }
    }
}

impl<T: Ord + Clone> Deadlines<T> {
    /// Sets a deadline, in place of an earlier one of the same timer.
    pub(crate) fn set(&mut self, timer: T, at_ms: u64) {
        self.cancel(&timer);
        self.by_time.insert((at_ms, timer.clone()));
        self.by_timer.insert(timer, at_ms);
    }

    pub(crate) fn cancel(&mut self, timer: &T) {
        if let Some((timer, at_ms)) = self.by_timer.remove_entry(timer) {
            self.by_time.remove(&(at_ms, timer));
        }
    }

    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.by_time.first().map(|(at_ms, _)| *at_ms)
    }

    /// Takes the earliest timer whose deadline is not after `now_ms`.
    pub(crate) fn pop_due(&mut self, now_ms: u64) -> Option<T> {
        if self.next_ms()? > now_ms {
            return None;
        }
        let (_, timer) = self.by_time.pop_first()?;
        self.by_timer.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member that heartbeats moves its deadline; if the old one stayed, a live member would be expired.
    #[test]
    fn a_deadline_that_moved_fires_once_at_its_new_time() {
        let mut deadlines = Deadlines::default();
        let join = "join";
        deadlines.set(join, 10);
        deadlines.set("clean up", 15);
        deadlines.set(join, 20);
        assert_eq!(deadlines.next_ms(), Some(15));
        assert_eq!(deadlines.pop_due(14), None);
        assert_eq!(deadlines.pop_due(100), Some("clean up"));
        assert_eq!(deadlines.pop_due(19), None);
        assert_eq!(deadlines.pop_due(20), Some(join));
        deadlines.set(join, 30);
        deadlines.cancel(&join);
        assert_eq!(deadlines.next_ms(), None);
    }
}

//! The deadlines of a shard: one ordered set, so that the next one is always at hand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What happens at a deadline. There is at most one deadline for each value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    /// A member, or a member id that was given out, has not been heard of.
    Session { group: Arc<str>, member: Arc<str> },
    /// The time for joining is over.
    Join { group: Arc<str> },
    /// The time for fetching one's assignment is over.
    Sync { group: Arc<str> },
    /// Offsets may have expired.
    CleanUp,
}

impl Timer {
    /// The group that it belongs to; empty for a timer of the whole shard.
    pub(super) fn group(&self) -> &str {
        match self {
            Timer::Session { group, .. } | Timer::Join { group } | Timer::Sync { group } => group,
            Timer::CleanUp => "",
        }
    }
}

/// Deadlines in monotonic milliseconds.
#[derive(Default)]
pub(super) struct Deadlines {
    by_time: BTreeSet<(u64, Timer)>,
    by_timer: BTreeMap<Timer, u64>,
}

impl Deadlines {
    /// Sets a deadline, in place of an earlier one of the same timer.
    pub(super) fn set(&mut self, timer: Timer, at_ms: u64) {
        self.cancel(&timer);
        self.by_time.insert((at_ms, timer.clone()));
        self.by_timer.insert(timer, at_ms);
    }

    pub(super) fn cancel(&mut self, timer: &Timer) {
        if let Some((timer, at_ms)) = self.by_timer.remove_entry(timer) {
            self.by_time.remove(&(at_ms, timer));
        }
    }

    pub(super) fn next_ms(&self) -> Option<u64> {
        self.by_time.first().map(|(at_ms, _)| *at_ms)
    }

    /// Takes the earliest timer whose deadline is not after `now_ms`.
    pub(super) fn pop_due(&mut self, now_ms: u64) -> Option<Timer> {
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
        let join = Timer::Join { group: "g".into() };
        deadlines.set(join.clone(), 10);
        deadlines.set(Timer::CleanUp, 15);
        deadlines.set(join.clone(), 20);
        assert_eq!(deadlines.next_ms(), Some(15));
        assert_eq!(deadlines.pop_due(14), None);
        assert_eq!(deadlines.pop_due(100), Some(Timer::CleanUp));
        assert_eq!(deadlines.pop_due(19), None);
        assert_eq!(deadlines.pop_due(20), Some(join.clone()));
        deadlines.set(join.clone(), 30);
        deadlines.cancel(&join);
        assert_eq!(deadlines.next_ms(), None);
    }
}

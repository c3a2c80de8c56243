//! Time: of the wall for records, monotonic for deadlines.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use klamm_model::TimestampMs;

/// A source of time. Sleeping goes through tokio's timer, which simulation drives itself.
pub trait Clock: Send + Sync + 'static {
    /// The time of the wall. It may jump, in both directions.
    fn now_ms(&self) -> TimestampMs;

    /// Time since some fixed point; never goes back.
    fn monotonic(&self) -> Duration;

    /// The same in whole milliseconds.
    fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.monotonic().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The machine's clock.
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time begins now.
    #[allow(
        clippy::disallowed_methods,
        reason = "this is the one place that may ask the system for the time"
    )]
    pub fn new() -> SystemClock {
        SystemClock { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "this is the one place that may ask the system for the time"
    )]
    fn now_ms(&self) -> TimestampMs {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}

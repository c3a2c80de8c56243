//! The clock of one simulated host.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use klamm_io::Clock;
use klamm_model::TimestampMs;
use tokio::time::Instant;

/// A clock that goes with the time of the host's tokio runtime, which must be paused. Its rate is the runtime's: who
/// drives the runtime lets its time pass faster or slower than that of others.
pub struct HostClock {
    start: Instant,
    /// What the wall shows when `monotonic` is 0.
    wall_ms: AtomicI64,
}

impl HostClock {
    /// A clock whose monotonic time begins now and whose wall shows `wall_ms` now. It must be made, and asked, within
    /// the runtime.
    pub fn starting_now(wall_ms: TimestampMs) -> HostClock {
        HostClock { start: Instant::now(), wall_ms: AtomicI64::new(wall_ms) }
    }

    /// Sets the wall forwards or backwards, as an operator or NTP does. Monotonic time stays.
    pub fn shift_wall(&self, by_ms: i64) {
        self.wall_ms.fetch_add(by_ms, Ordering::Relaxed);
    }
}

impl Clock for HostClock {
    fn now_ms(&self) -> TimestampMs {
        let passed = i64::try_from(self.monotonic().as_millis()).unwrap_or(i64::MAX);
        self.wall_ms.load(Ordering::Relaxed).saturating_add(passed)
    }

    fn monotonic(&self) -> Duration {
        Instant::now().saturating_duration_since(self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If real time leaked in, no run could be repeated.
    #[tokio::test(start_paused = true)]
    async fn it_stands_still_unless_the_runtime_lets_time_pass() {
        let clock = HostClock::starting_now(5000);
        let real = std::time::Duration::from_millis(20);
        std::thread::sleep(real);
        assert_eq!((clock.now_ms(), clock.monotonic()), (5000, Duration::ZERO));
        tokio::time::sleep(Duration::from_millis(1234)).await;
        assert_eq!((clock.now_ms(), clock.monotonic()), (6234, Duration::from_millis(1234)));
        clock.shift_wall(-3_600_000);
        assert_eq!((clock.now_ms(), clock.monotonic()), (6234 - 3_600_000, Duration::from_millis(1234)));
    }
}

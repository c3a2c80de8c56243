//! How fast all cleaner threads together may read and write.

use std::sync::Arc;
use std::time::Duration;

use klamm_io::Clock;
use parking_lot::Mutex;

/// Over what time the rate is measured.
const PERIOD: Duration = Duration::from_millis(300);

/// Counts bytes, and says how long to wait so that their rate stays below a bound.
pub(super) struct Throttle {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    bytes_per_second_max: f64,
    period_start: Duration,
    bytes: u64,
}

impl Throttle {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Throttle {
        let period_start = clock.monotonic();
        Throttle {
            clock,
            state: Mutex::new(State { bytes_per_second_max: f64::MAX, period_start, bytes: 0 }),
        }
    }

    pub(super) fn set_bytes_per_second_max(&self, bytes: f64) {
        self.state.lock().bytes_per_second_max = bytes;
    }

    /// Counts bytes that were read or written. The caller waits as long as this says.
    pub(super) fn wait_after(&self, bytes: u64) -> Duration {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        state.bytes += bytes;
        let elapsed = now.saturating_sub(state.period_start);
        let due = state.bytes as f64 / state.bytes_per_second_max.max(f64::MIN_POSITIVE);
        let wait = Duration::try_from_secs_f64(due).unwrap_or(WAIT_MAX).min(WAIT_MAX).saturating_sub(elapsed);
        if wait >= PERIOD || elapsed >= PERIOD {
            // The next period begins when the wait is over.
            state.period_start = now + wait;
            state.bytes = 0;
            return wait;
        }
        Duration::ZERO
    }
}

/// However slow the cleaner is to be, it looks around so often.
const WAIT_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use klamm_testing::SimulatedClock;

    use super::*;

    /// Guards the disk from a cleaner that takes all of it: over a minute the rate is what was set.
    #[test]
    fn the_rate_is_kept() {
        let clock = Arc::new(SimulatedClock::new(0));
        let throttle = Throttle::new(clock.clone());
        throttle.set_bytes_per_second_max(10_000.0);
        let (start, mut bytes) = (clock.monotonic(), 0);
        while clock.monotonic() - start < Duration::from_secs(60) {
            clock.advance(Duration::from_millis(1) + throttle.wait_after(1000));
            bytes += 1000;
        }
        assert!((590_000..=615_000).contains(&bytes), "{bytes} bytes in a minute");
    }

    #[test]
    fn without_a_bound_nobody_waits() {
        let throttle = Throttle::new(Arc::new(SimulatedClock::new(0)));
        assert!((0..1000).all(|_| throttle.wait_after(1 << 30).is_zero()));
    }
}

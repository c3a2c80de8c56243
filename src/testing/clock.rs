//! Time that stands still until a test moves it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use klamm_io::Clock;
use klamm_model::TimestampMs;

/// A clock that is set by hand. Clones share one time.
#[derive(Clone)]
pub struct SimulatedClock {
    time: Arc<Mutex<Time>>,
}

struct Time {
    wall_ms: TimestampMs,
    wall_rest: Duration,
    monotonic: Duration,
}

impl SimulatedClock {
    /// A clock whose wall shows `wall_ms` and whose monotonic time is 0.
    pub fn new(wall_ms: TimestampMs) -> SimulatedClock {
        let time = Time { wall_ms, wall_rest: Duration::ZERO, monotonic: Duration::ZERO };
        SimulatedClock { time: Arc::new(Mutex::new(time)) }
    }

    /// Lets time pass, on the wall and monotonic.
    pub fn advance(&self, by: Duration) {
        let mut time = self.time.lock().unwrap_or_else(PoisonError::into_inner);
        time.monotonic += by;
        let passed = time.wall_rest + by;
        time.wall_ms += i64::try_from(passed.as_millis()).expect("a test lets less than an aeon pass");
        time.wall_rest = Duration::from_nanos(u64::from(passed.subsec_nanos() % 1_000_000));
    }

    /// Sets the wall's time, forwards or backwards, as an operator or NTP does. Monotonic time stays.
    pub fn set_wall(&self, wall_ms: TimestampMs) {
        let mut time = self.time.lock().unwrap_or_else(PoisonError::into_inner);
        time.wall_ms = wall_ms;
        time.wall_rest = Duration::ZERO;
    }
}

impl Default for SimulatedClock {
    /// A clock at 2020-01-01 00:00:00 UTC.
    fn default() -> SimulatedClock {
        SimulatedClock::new(1_577_836_800_000)
    }
}

impl Clock for SimulatedClock {
    fn now_ms(&self) -> TimestampMs {
        self.time.lock().unwrap_or_else(PoisonError::into_inner).wall_ms
    }

    fn monotonic(&self) -> Duration {
        self.time.lock().unwrap_or_else(PoisonError::into_inner).monotonic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps below a millisecond must add up, or a simulation of many short steps would freeze the wall.
    #[test]
    fn short_steps_add_up_on_the_wall() {
        let clock = SimulatedClock::new(100);
        for _ in 0..2500 {
            clock.advance(Duration::from_micros(1));
        }
        assert_eq!((clock.now_ms(), clock.monotonic()), (102, Duration::from_micros(2500)));
        clock.advance(Duration::from_micros(500));
        assert_eq!(clock.now_ms(), 103);
    }

    #[test]
    fn the_wall_may_go_back_and_monotonic_time_does_not() {
        let clock = SimulatedClock::new(5000);
        let other = clock.clone();
        clock.advance(Duration::from_secs(1));
        clock.set_wall(10);
        assert_eq!((other.now_ms(), other.monotonic()), (10, Duration::from_secs(1)));
    }
}

//! What is counted while requests run. It is read when somebody asks, by `admin`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use klamm_protocol::ApiKey;

/// Upper bounds of the classes in which the durations of requests are counted, in microseconds. What took
/// longer is counted in one class more.
pub(crate) const DURATION_BOUNDS_US: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 10_000_000];

/// API keys are small numbers, so that an array finds their counters.
const KEYS_MAX: usize = 128;

/// The counters of this node. They only grow.
pub(crate) struct Metrics {
    requests: Vec<Requests>,
    /// Bytes that came from clients.
    pub(crate) received_bytes: AtomicU64,
    /// Bytes that were sent to clients.
    pub(crate) sent_bytes: AtomicU64,
    /// Connections that were closed because of what came on them.
    pub(crate) malformed: AtomicU64,
    /// Connections that were refused because there were too many.
    pub(crate) refused_connections: AtomicU64,
    /// Changes after which fewer replicas of a partition were in sync.
    pub(crate) isr_shrinks: AtomicU64,
    /// Changes after which more were.
    pub(crate) isr_expands: AtomicU64,
}

/// The requests of one API.
#[derive(Default)]
pub(crate) struct Requests {
    by_duration: [AtomicU64; DURATION_BOUNDS_US.len() + 1],
    total_us: AtomicU64,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        Metrics {
            requests: (0..KEYS_MAX).map(|_| Requests::default()).collect(),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            refused_connections: AtomicU64::new(0),
            isr_shrinks: AtomicU64::new(0),
            isr_expands: AtomicU64::new(0),
        }
    }

    /// The counters of an API.
    pub(crate) fn requests(&self, key: ApiKey) -> &Requests {
        &self.requests[key as usize]
    }
}

impl Requests {
    /// Counts a request whose answer was ready after `duration`.
    pub(crate) fn count(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let class = DURATION_BOUNDS_US.partition_point(|bound| *bound < micros);
        self.by_duration[class].fetch_add(1, Ordering::Relaxed);
        self.total_us.fetch_add(micros, Ordering::Relaxed);
    }

    /// How many there were in each class, the last one without a bound.
    pub(crate) fn by_duration(&self) -> [u64; DURATION_BOUNDS_US.len() + 1] {
        self.by_duration.each_ref().map(|class| class.load(Ordering::Relaxed))
    }

    /// How long all of them took together.
    pub(crate) fn total(&self) -> Duration {
        Duration::from_micros(self.total_us.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_counted_in_the_first_class_that_holds_it() {
        let metrics = Metrics::new();
        let requests = metrics.requests(ApiKey::Fetch);
        for micros in [0, 100, 101, 10_000_000, 10_000_001] {
            requests.count(Duration::from_micros(micros));
        }
        assert_eq!(requests.by_duration(), [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(requests.total(), Duration::from_micros(20_000_202));
        assert_eq!(metrics.requests(ApiKey::Produce).by_duration(), [0; 13]);
    }
}

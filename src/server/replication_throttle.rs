//! The limit of the bytes that replicas which catch up may cost a node (`leader.replication.throttled.rate`,
//! `follower.replication.throttled.rate`).

use std::time::Duration;

use parking_lot::Mutex;

/// Bytes per second, with a second's worth of them at once. What is sent may overdraw it once: a batch is never cut.
#[derive(Default)]
pub(crate) struct ReplicationThrottle {
    bucket: Mutex<Bucket>,
}

#[derive(Default)]
struct Bucket {
    /// Nothing while nobody has set one.
    bytes_per_second: Option<f64>,
    /// What may be sent now; less than nothing after an overdraft.
    left: f64,
    /// As of when, by the monotonic clock.
    at: Duration,
}

impl Bucket {
    fn refill(&mut self, now: Duration) -> Option<f64> {
        let rate = self.bytes_per_second?;
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.left = (self.left + passed * rate).min(rate);
        self.at = now;
        Some(rate)
    }
}

impl ReplicationThrottle {
    /// Sets the rate in bytes per second; `None` is no limit.
    pub(crate) fn set_rate(&self, bytes_per_second: Option<u64>, now: Duration) {
        let mut bucket = self.bucket.lock();
        let rate = bytes_per_second.map(|rate| rate as f64);
        if bucket.bytes_per_second != rate {
            *bucket = Bucket { bytes_per_second: rate, left: rate.unwrap_or(0.0), at: now };
        }
    }

    /// How long nothing more may be sent; nothing if something may.
    pub(crate) fn wait(&self, now: Duration) -> Option<Duration> {
        let mut bucket = self.bucket.lock();
        let rate = bucket.refill(now)?;
        // A rate of nearly nothing must not become a wait that no clock can hold.
        (bucket.left <= 0.0).then(|| {
            let seconds = (1.0 - bucket.left) / rate.max(1.0);
            Duration::from_secs_f64(seconds.clamp(0.001, 60.0))
        })
    }

    /// Counts bytes that were sent.
    pub(crate) fn count(&self, bytes: usize, now: Duration) {
        let mut bucket = self.bucket.lock();
        if bucket.refill(now).is_some() {
            bucket.left -= bytes as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_rate_goes_out_over_time() {
        let throttle = ReplicationThrottle::default();
        throttle.count(1_000_000, Duration::ZERO);
        assert_eq!(throttle.wait(Duration::ZERO), None, "nobody has set a rate");
        throttle.set_rate(Some(1_000), Duration::ZERO);
        let (mut now, mut sent) = (Duration::ZERO, 0);
        while now < Duration::from_secs(100) {
            match throttle.wait(now) {
                None => {
                    throttle.count(700, now);
                    sent += 700;
                }
                Some(wait) => now += wait,
            }
        }
        assert!((100_000..=102_000).contains(&sent), "{sent} bytes in 100 s, and a second's worth at once");
        throttle.set_rate(None, now);
        assert_eq!(throttle.wait(now), None);
    }
}

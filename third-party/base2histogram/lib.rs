//! Histograms for openraft, in place of the crate of the same name.
//!
//! openraft always makes a few histograms, and the first one in base2histogram 0.2.3 computes tables for all of
//! its sixteen resolutions: 26 MiB that stay and up to 60 ms, where a broker is to be ready within 100 ms and to
//! idle in 30 MiB (`docs/decisions/metadata-quorum.md`). This one has a bucket for each power of two, no tables,
//! and only what openraft calls. It must never grow beyond that.

use std::fmt;
use std::marker::PhantomData;

/// One bucket for zero and one for each power of two.
const BUCKETS: usize = 65;

/// How often values of each size were seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram<T = ()> {
    buckets: [u64; BUCKETS],
    unit: PhantomData<T>,
}

impl<T> Histogram<T> {
    /// A histogram that has seen nothing.
    pub fn new() -> Histogram<T> {
        Histogram { buckets: [0; BUCKETS], unit: PhantomData }
    }

    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Counts one value several times.
    pub fn record_n(&mut self, value: u64, count: u64) {
        self.buckets[(u64::BITS - value.leading_zeros()) as usize] += count;
    }

    /// How many values were counted.
    pub fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The least power of two that this share of the values, in thousandths, is not above by a factor of two.
    fn percentile(&self, permille: u64) -> u64 {
        let rank = (self.total() * permille).div_ceil(1000).max(1);
        let mut seen = 0;
        let reached = |count: &u64| {
            seen += count;
            seen >= rank
        };
        self.buckets
            .iter()
            .position(reached)
            .map_or(0, |bucket| if bucket == 0 { 0 } else { 1 << (bucket - 1) })
    }

    /// The usual percentiles.
    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats {
            samples: self.total(),
            p0_1: self.percentile(1),
            p1: self.percentile(10),
            p5: self.percentile(50),
            p10: self.percentile(100),
            p50: self.percentile(500),
            p90: self.percentile(900),
            p99: self.percentile(990),
            p99_9: self.percentile(999),
        }
    }
}

impl<T> Default for Histogram<T> {
    fn default() -> Histogram<T> {
        Histogram::new()
    }
}

/// Percentiles of a histogram, each a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PercentileStats {
    /// How many values were counted.
    pub samples: u64,
    /// 0.1 %.
    pub p0_1: u64,
    /// 1 %.
    pub p1: u64,
    /// 5 %.
    pub p5: u64,
    /// 10 %.
    pub p10: u64,
    /// The median.
    pub p50: u64,
    /// 90 %.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p99_9: u64,
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[samples: {}, P50: {}, P99: {}]", self.samples, self.p50, self.p99)
    }
}

/// Several histograms, one a line.
#[derive(Clone, Debug)]
pub struct AsciiChart<T = ()> {
    series: Vec<(String, Histogram<T>)>,
}

impl<T> AsciiChart<T> {
    /// A chart of nothing.
    pub fn new() -> AsciiChart<T> {
        AsciiChart { series: Vec::new() }
    }

    /// Adds a line.
    #[must_use]
    pub fn add(mut self, name: &str, histogram: Histogram<T>) -> AsciiChart<T> {
        self.series.push((name.to_owned(), histogram));
        self
    }
}

impl<T> Default for AsciiChart<T> {
    fn default() -> AsciiChart<T> {
        AsciiChart::new()
    }
}

impl<T> fmt::Display for AsciiChart<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.series
            .iter()
            .try_for_each(|(name, histogram)| writeln!(f, "{name}: {}", histogram.percentile_stats()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_powers_of_two_at_or_below_the_values() {
        let mut histogram = Histogram::<()>::new();
        assert_eq!(histogram.percentile_stats().p50, 0);
        for value in [0, 1, 5, 5, 5, 5, 100, 100, 100, u64::MAX] {
            histogram.record(value);
        }
        let stats = histogram.percentile_stats();
        assert_eq!((stats.samples, stats.p10, stats.p50, stats.p90, stats.p99), (10, 0, 4, 64, 1 << 63));
    }
}

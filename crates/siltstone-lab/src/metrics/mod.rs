//! What is measured: latencies in HDR histograms, processor time of the process.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::num::float;

/// A latency of more than an hour is counted as an hour.
const MAX_NS: u64 = 3_600_000_000_000;

/// Latencies of many operations, to three significant digits.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

/// What is told of many latencies. All in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct LatencySummary {
    /// How many.
    pub count: u64,
    /// Their mean.
    pub mean_ns: f64,
    /// The median.
    pub p50_ns: u64,
    /// 90 % took no longer.
    pub p90_ns: u64,
    /// 99 % took no longer.
    pub p99_ns: u64,
    /// 99.9 % took no longer.
    pub p999_ns: u64,
    /// None took longer.
    pub max_ns: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies::new()
    }
}

impl Latencies {
    /// None yet.
    pub fn new() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, MAX_NS, 3).expect("the bounds are constants that hdrhistogram accepts"))
    }

    /// Counts the time since `start` and returns the present, the start of what follows.
    #[inline]
    pub fn record_since(&mut self, start: Instant) -> Instant {
        let now = Instant::now();
        self.record(now - start);
        now
    }

    /// Counts one latency.
    #[inline]
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(MAX_NS));
    }

    /// Counts all of `other`'s.
    pub fn merge(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// How many took longer than `ns`, to three digits.
    pub fn above(&self, ns: u64) -> u64 {
        self.0.len() - self.0.count_between(0, ns)
    }

    /// The figures. The maximum is exact to three digits, as the others are.
    pub fn summary(&self) -> LatencySummary {
        let histogram = &self.0;
        LatencySummary {
            count: histogram.len(),
            mean_ns: histogram.mean(),
            p50_ns: histogram.value_at_quantile(0.5),
            p90_ns: histogram.value_at_quantile(0.9),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
        }
    }
}

/// Processor seconds that this process has used so far, all threads together.
pub fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let nanos = u64::try_from(time.tv_nsec).expect("a time of day has no negative nanoseconds");
    let seconds = u64::try_from(time.tv_sec).expect("a process has used no negative time");
    float(seconds) + float(nanos) / 1e9
}

/// Bytes of memory that this process has now; 0 where the system does not say (no `/proc`).
pub fn resident_bytes() -> u64 {
    let pages = || std::fs::read_to_string("/proc/self/statm").ok()?.split_whitespace().nth(1)?.parse::<u64>().ok();
    pages().map_or(0, |pages| pages * crate::num::count(rustix::param::page_size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_known_set() {
        let mut latencies = Latencies::new();
        (1..=1000u64).for_each(|ms| latencies.record(Duration::from_millis(ms)));
        let summary = latencies.summary();
        let near = |found: u64, ms: f64| (float(found) / 1e6 - ms).abs() <= ms / 500.0;
        assert_eq!(summary.count, 1000);
        assert!(near(summary.p50_ns, 500.0) && near(summary.p99_ns, 990.0), "{summary:?}");
        assert!(near(summary.p999_ns, 999.0) && near(summary.max_ns, 1000.0), "{summary:?}");
        latencies.record(Duration::from_secs(1_000_000));
        assert!(near(latencies.summary().max_ns, 3_600_000.0), "clamped, not lost");
    }
}

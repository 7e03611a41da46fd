//! The measured part of a workload: operations one after the other, each of them timed.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::latency::Histogram;

const TENTH_NS: u64 = 100_000_000;

/// What operations came to.
pub(crate) struct Drive {
    /// Operations that ended.
    pub(crate) ops: u64,
    /// Keys found, or entries read by scans.
    pub(crate) found: u64,
    /// From the first operation's begin to the last one's end.
    pub(crate) elapsed: Duration,
    /// Of that, what no operation was at work in: making the next one up.
    pub(crate) idle: Duration,
    pub(crate) latencies: Histogram,
    /// Operations that ended in each full tenth of a second.
    tenths: Vec<u64>,
    ops_of_full_tenths: u64,
}

impl Drive {
    /// Nothing yet.
    pub(crate) fn new() -> Drive {
        Drive {
            ops: 0,
            found: 0,
            elapsed: Duration::ZERO,
            idle: Duration::ZERO,
            latencies: Histogram::new(),
            tenths: Vec::with_capacity(4096),
            ops_of_full_tenths: 0,
        }
    }

    /// Counts an operation that took `latency_ns`, ended `now_ns` after the first one's begin, and found so many records.
    #[inline]
    pub(crate) fn ended(&mut self, latency_ns: u64, now_ns: u64, found: u64) {
        self.latencies.record(latency_ns);
        while now_ns >= (crate::count(self.tenths.len()) + 1) * TENTH_NS {
            self.tenths.push(self.ops - self.ops_of_full_tenths);
            self.ops_of_full_tenths = self.ops;
        }
        self.ops += 1;
        self.found += found;
    }

    /// The time in which operations were at work.
    pub(crate) fn busy(&self) -> Duration {
        self.elapsed - self.idle
    }

    /// The slowest tenth of a second as a share of the average one; none if there are not two of them.
    pub(crate) fn slowest_tenth(&self) -> Option<f64> {
        let average = crate::float(self.ops) / (self.elapsed.as_secs_f64() * 10.0);
        let slowest = self.tenths.iter().min().filter(|_| self.tenths.len() >= 2)?;
        Some(crate::float(*slowest) / average)
    }

    /// Adds what another thread did at the same time.
    pub(crate) fn merge(&mut self, other: &Drive) {
        self.ops += other.ops;
        self.found += other.found;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.idle = self.idle.max(other.idle);
        self.latencies.merge(&other.latencies);
        // Beyond the end of the shorter one a single thread was left.
        self.tenths.truncate(other.tenths.len());
        self.tenths.iter_mut().zip(&other.tenths).for_each(|(own, theirs)| *own += theirs);
    }
}

/// Calls `op` `count` times, or until `cap` has passed, and times each call, with one reading of the clock: the end of one is the start of
/// the next.
pub(crate) fn drive(count: u64, cap: Duration, mut op: impl FnMut(u64) -> Result<u64>) -> Result<Drive> {
    let cap_ns = nanos(cap);
    let mut drive = Drive::new();
    let start = Instant::now();
    let mut last_ns = 0;
    while drive.ops < count && last_ns < cap_ns {
        let found = op(drive.ops)?;
        let now_ns = nanos(start.elapsed());
        drive.ended(now_ns - last_ns, now_ns, found);
        last_ns = now_ns;
    }
    drive.elapsed = Duration::from_nanos(last_ns);
    Ok(drive)
}

/// A duration as a count.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenths_count_what_ended_in_them_and_two_threads_add_up() {
        let mut one = Drive::new();
        // Three in the first tenth, none in the second, one in the third.
        for now_ns in [10, 20, 30, 2 * TENTH_NS + 1] {
            one.ended(10, now_ns, 1);
        }
        one.elapsed = Duration::from_nanos(2 * TENTH_NS + 1);
        assert_eq!((one.ops, one.found, &one.tenths[..]), (4, 4, &[3, 0][..]));
        assert_eq!(one.slowest_tenth(), Some(0.0));
        let mut two = Drive::new();
        two.ended(10, TENTH_NS, 0);
        two.elapsed = Duration::from_nanos(TENTH_NS);
        one.merge(&two);
        assert_eq!((one.ops, one.found, &one.tenths[..]), (5, 4, &[3][..]));
        assert_eq!(one.elapsed, Duration::from_nanos(2 * TENTH_NS + 1));
    }
}

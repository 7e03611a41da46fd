//! The measured part of a workload: operations one after the other, each of them timed.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::latency::Histogram;
use crate::process;

const TENTH_NS: u64 = 100_000_000;

/// A full tenth of a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tenth {
    /// Operations that ended in it.
    ops: u64,
    /// The longest of them.
    longest_ns: u64,
    /// What the host of a virtual machine has taken from its processors until its end, in hundredths of a second.
    stolen_until: u64,
}

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
    tenths: Vec<Tenth>,
    ops_of_full_tenths: u64,
    /// Of the operations after the full tenths.
    longest_ns: u64,
    stolen_before: u64,
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
            longest_ns: 0,
            stolen_before: process::stolen(),
        }
    }

    /// Counts an operation that took `latency_ns`, ended `now_ns` after the first one's begin, and found so many records.
    #[inline]
    pub(crate) fn ended(&mut self, latency_ns: u64, now_ns: u64, found: u64) {
        self.latencies.record(latency_ns);
        while now_ns >= (crate::count(self.tenths.len()) + 1) * TENTH_NS {
            // The operation that ends now began in it.
            let longest_ns = self.longest_ns.max(latency_ns);
            let ops = self.ops - self.ops_of_full_tenths;
            self.tenths.push(Tenth { ops, longest_ns, stolen_until: process::stolen() });
            self.ops_of_full_tenths = self.ops;
            self.longest_ns = 0;
        }
        self.ops += 1;
        self.longest_ns = self.longest_ns.max(latency_ns);
        self.found += found;
    }

    /// The time in which operations were at work.
    pub(crate) fn busy(&self) -> Duration {
        self.elapsed - self.idle
    }

    /// The slowest tenth of a second as a share of the average one; none if there are not two of them.
    pub(crate) fn slowest_tenth(&self) -> Option<f64> {
        let average = crate::float(self.ops) / (self.elapsed.as_secs_f64() * 10.0);
        let slowest = self.tenths.iter().map(|tenth| tenth.ops).min().filter(|_| self.tenths.len() >= 2)?;
        Some(crate::float(slowest) / average)
    }

    /// The tenths in which the host took nothing away, nor in those before and after: it is counted late.
    fn undisturbed(&self) -> impl Iterator<Item = &Tenth> {
        let until = |at: usize| self.tenths.get(at).or(self.tenths.last()).map_or(0, |tenth| tenth.stolen_until);
        let before = move |at: usize| if at == 0 { self.stolen_before } else { until(at - 1) };
        let kept = move |at: usize| before(at.saturating_sub(1)) == until(at + 1);
        self.tenths.iter().enumerate().filter(move |(at, _)| kept(*at)).map(|(_, tenth)| tenth)
    }

    /// The slowest of the tenths in which the host of a virtual machine took nothing away, as a share of the average one of these: the others
    /// would make the average smaller. None if there are not two of them.
    pub(crate) fn slowest_undisturbed(&self) -> Option<f64> {
        let tenths: Vec<u64> = self.undisturbed().map(|tenth| tenth.ops).collect();
        let slowest = tenths.iter().min().filter(|_| tenths.len() >= 2)?;
        let all: u64 = tenths.iter().sum();
        // All of them may be empty.
        Some(crate::float(slowest * crate::count(tenths.len())) / crate::float(all.max(1)))
    }

    /// The longest operation in those, in microseconds.
    pub(crate) fn max_undisturbed_us(&self) -> Option<f64> {
        self.undisturbed().map(|tenth| crate::float(tenth.longest_ns) / 1000.0).reduce(f64::max)
    }

    /// What the host has taken away, in seconds of all processors together.
    pub(crate) fn stolen_s(&self) -> f64 {
        let until = self.tenths.last().map_or(self.stolen_before, |tenth| tenth.stolen_until);
        crate::float(until - self.stolen_before) / 100.0
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
        for (own, theirs) in self.tenths.iter_mut().zip(&other.tenths) {
            own.ops += theirs.ops;
            own.longest_ns = own.longest_ns.max(theirs.longest_ns);
        }
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

    fn counts(drive: &Drive) -> Vec<u64> {
        drive.tenths.iter().map(|tenth| tenth.ops).collect()
    }

    #[test]
    fn tenths_count_what_ended_in_them_and_two_threads_add_up() {
        let mut one = Drive::new();
        // Three in the first tenth, none in the second, one in the third.
        for now_ns in [10, 20, 30, 2 * TENTH_NS + 1] {
            one.ended(10, now_ns, 1);
        }
        one.elapsed = Duration::from_nanos(2 * TENTH_NS + 1);
        assert_eq!((one.ops, one.found, counts(&one)), (4, 4, vec![3, 0]));
        assert_eq!(one.slowest_tenth(), Some(0.0));
        let mut two = Drive::new();
        two.ended(10, TENTH_NS, 0);
        two.elapsed = Duration::from_nanos(TENTH_NS);
        one.merge(&two);
        assert_eq!((one.ops, one.found, counts(&one)), (5, 4, vec![3]));
        assert_eq!(one.elapsed, Duration::from_nanos(2 * TENTH_NS + 1));
    }

    #[test]
    fn tenths_next_to_what_the_host_took_away_do_not_count() {
        let mut drive = Drive::new();
        drive.stolen_before = 5;
        let tenth = |ops, longest_ns, stolen_until| Tenth { ops, longest_ns, stolen_until };
        drive.tenths =
            vec![tenth(9, 1000, 5), tenth(8, 2000, 5), tenth(1, 9000, 7), tenth(2, 3000, 7), tenth(7, 4000, 7)];
        drive.ops = 27;
        drive.elapsed = Duration::from_millis(500);
        // Those with 9 and 7. It was 7 over 5.4, the average of all: the slowest was faster than it.
        assert_eq!((drive.slowest_tenth(), drive.slowest_undisturbed()), (Some(1.0 / 5.4), Some(7.0 / 8.0)));
        assert_eq!((drive.max_undisturbed_us(), drive.stolen_s()), (Some(4.0), 0.02));
        drive.tenths.iter_mut().for_each(|tenth| tenth.ops = 0);
        assert_eq!(drive.slowest_undisturbed(), Some(0.0), "nothing ended in any");
        drive.tenths.truncate(4);
        assert_eq!(drive.slowest_undisturbed(), None, "one has no slowest");
        drive.stolen_before = 4;
        drive.tenths.truncate(3);
        assert_eq!((drive.slowest_undisturbed(), drive.max_undisturbed_us()), (None, None), "all of them");
    }
}

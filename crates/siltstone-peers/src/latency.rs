//! A histogram of latencies that is small enough to stay out of the way: 10 KiB, of which a workload touches a few lines.
//!
//! Buckets are exact below 64 ns and 1/32 wide above, so a percentile is right to 3 %; the maximum is exact.

const SUB_BITS: u32 = 5;
const BUCKETS: usize = 64 * (1 << SUB_BITS);

/// Counts of durations in nanoseconds.
pub(crate) struct Histogram {
    counts: Box<[u32; BUCKETS]>,
    total: u64,
    max_ns: u64,
}

impl Histogram {
    /// An empty histogram.
    pub(crate) fn new() -> Histogram {
        Histogram { counts: Box::new([0; BUCKETS]), total: 0, max_ns: 0 }
    }

    /// Counts one duration.
    pub(crate) fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds what another one has counted.
    pub(crate) fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(other.counts.iter()).for_each(|(own, theirs)| *own += theirs);
        self.total += other.total;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// The longest duration in microseconds.
    pub(crate) fn max_us(&self) -> f64 {
        us(self.max_ns)
    }

    /// The duration in microseconds that `share` (from 0 to 1) of all stay at or below; 0 if there are none.
    pub(crate) fn quantile_us(&self, share: f64) -> f64 {
        let wanted = share * crate::float(self.total);
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if seen > 0 && crate::float(seen) >= wanted {
                return us(upper_ns(bucket).min(self.max_ns));
            }
        }
        0.0
    }
}

fn us(ns: u64) -> f64 {
    crate::float(ns) / 1000.0
}

fn bucket(ns: u64) -> usize {
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(SUB_BITS + 1);
    let sub = usize::try_from(ns >> shift).expect("six bits");
    (usize::try_from(shift).expect("below 64") << SUB_BITS) + sub
}

/// The largest duration that `bucket` counts.
fn upper_ns(bucket: usize) -> u64 {
    let shift = (bucket >> SUB_BITS).saturating_sub(1);
    let sub = u64::try_from(bucket - (shift << SUB_BITS)).expect("small");
    ((sub + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_lies_in_a_bucket_that_is_as_narrow_as_promised() {
        let mut last = 0;
        for ns in (0..100_000).chain((17..60).map(|bits| (1u64 << bits) + 12345)) {
            let bucket = bucket(ns);
            assert!(bucket >= last, "buckets ascend with durations");
            last = bucket;
            let upper = upper_ns(bucket);
            assert!(upper >= ns && upper - ns <= ns / 32, "{ns} in {bucket} up to {upper}");
        }
    }

    #[test]
    fn quantiles_of_a_known_set() {
        let mut histogram = Histogram::new();
        (1..=1000).for_each(|n| histogram.record(n * 1000));
        for (share, us) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let got = histogram.quantile_us(share);
            assert!((us..=us * 1.04).contains(&got), "{share}: {got}");
        }
        assert_eq!(histogram.max_us(), 1000.0);
    }
}

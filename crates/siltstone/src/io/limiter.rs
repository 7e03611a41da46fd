//! The bandwidth budget of background I/O: a token bucket over [`Clock`] time.
//!
//! The bucket is one number: the moment at which everything taken so far will have been paid for. Taking `n` bytes moves it on
//! by `n / rate`. A caller whose moment lies in the future sleeps until then; the limiter itself never blocks, so a simulation
//! can advance its clock instead. A bucket that nobody used holds at most [`BURST_NS`] of credit.
//!
//! Flushes go first: writers wait for them, and nobody waits for a merge. So a flush never sleeps. Its bytes are charged all
//! the same, and the merges that come next pay for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Clock, IoClass};

/// How much unused time a bucket remembers.
pub const BURST_NS: u64 = 50_000_000;

/// The longest that one call is told to sleep: beyond any debt that sensible pieces at sensible rates make. A change of the rate
/// is felt after the sleeps that were handed out, so callers take small pieces.
const LONGEST_SLEEP_NS: u64 = 60_000_000_000;

/// A token bucket, shared by all jobs.
pub struct Limiter {
    clock: Arc<dyn Clock>,
    rate_bytes_per_s: AtomicU64,
    /// The moment, in the clock's monotonic nanoseconds, up to which bandwidth is spent.
    paid_until_ns: AtomicU64,
}

impl Limiter {
    /// A limiter to `rate_bytes_per_s`; 0 is no limit.
    pub fn new(clock: Arc<dyn Clock>, rate_bytes_per_s: u64) -> Limiter {
        Limiter { clock, rate_bytes_per_s: AtomicU64::new(rate_bytes_per_s), paid_until_ns: AtomicU64::new(0) }
    }

    /// The limit; 0 is none.
    pub fn rate_bytes_per_s(&self) -> u64 {
        self.rate_bytes_per_s.load(Ordering::Relaxed)
    }

    /// Changes the limit for what is taken from now on; 0 is none, and forgives the debt.
    pub fn set_rate(&self, rate_bytes_per_s: u64) {
        self.rate_bytes_per_s.store(rate_bytes_per_s, Ordering::Relaxed);
        if rate_bytes_per_s == 0 {
            self.paid_until_ns.store(0, Ordering::Relaxed);
        }
    }

    /// Takes `bytes` from the budget and says how long the caller is to sleep before it moves them. Flushes and everything
    /// that a user waits for never sleep, but are charged.
    pub fn take(&self, bytes: u64, class: IoClass) -> Duration {
        let rate = self.rate_bytes_per_s();
        if rate == 0 || bytes == 0 {
            return Duration::ZERO;
        }
        let cost_ns = u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX);
        let now = self.clock.mono_ns();
        let oldest_credit = now.saturating_sub(BURST_NS);
        let charge = |paid: u64| Some(paid.max(oldest_credit).saturating_add(cost_ns));
        // Order with other memory does not matter: the number stands alone.
        let before = self.paid_until_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge);
        let paid_until = before.unwrap_or(0).max(oldest_credit).saturating_add(cost_ns);
        match class {
            IoClass::Compaction(_) | IoClass::Scrub | IoClass::Checkpoint => {
                Duration::from_nanos(paid_until.saturating_sub(now).min(LONGEST_SLEEP_NS))
            }
            IoClass::Log | IoClass::Flush | IoClass::UserRead | IoClass::Meta => Duration::ZERO,
        }
    }
}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limiter").field("rate_bytes_per_s", &self.rate_bytes_per_s()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sim::SimClock;
    use super::*;

    const MERGE: IoClass = IoClass::Compaction(1);

    #[test]
    fn a_job_that_sleeps_as_told_gets_the_rate() {
        let clock = SimClock::new();
        let limiter = Limiter::new(clock.clone(), 10_000_000);
        let (start, mut bytes) = (clock.mono_ns(), 0);
        while clock.mono_ns() - start < 10_000_000_000 {
            bytes += 64 << 10;
            clock.advance(u64::try_from(limiter.take(64 << 10, MERGE).as_nanos()).unwrap());
        }
        // Ten seconds at 10 MB/s, plus the burst and one piece.
        assert!((100_000_000..=100_000_000 + 500_000 + 2 * (64 << 10)).contains(&bytes), "{bytes}");
    }

    #[test]
    fn merges_pay_for_flushes() {
        let clock = SimClock::new();
        let limiter = Limiter::new(clock.clone(), 1_000_000);
        assert_eq!(limiter.take(500_000, IoClass::Flush), Duration::ZERO);
        let sleep = limiter.take(100_000, MERGE);
        assert_eq!(sleep, Duration::from_millis(600) - Duration::from_nanos(BURST_NS));
        clock.advance(u64::try_from(sleep.as_nanos()).unwrap());
        assert_eq!(limiter.take(1_000, MERGE), Duration::from_millis(1));
        limiter.set_rate(0);
        assert_eq!(limiter.take(1 << 40, MERGE), Duration::ZERO);
    }

    #[test]
    fn idle_time_is_not_hoarded_and_extremes_do_not_overflow() {
        let clock = SimClock::new();
        let limiter = Limiter::new(clock.clone(), 1_000_000);
        clock.advance(3_600_000_000_000);
        assert_eq!(limiter.take(50_000, MERGE), Duration::ZERO);
        assert_eq!(limiter.take(50_000, MERGE), Duration::from_millis(50));
        limiter.set_rate(1);
        assert_eq!(limiter.take(u64::MAX, MERGE), Duration::from_nanos(LONGEST_SLEEP_NS));
        assert_eq!(limiter.take(u64::MAX, MERGE), Duration::from_nanos(LONGEST_SLEEP_NS));
    }
}

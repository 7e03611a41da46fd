//! The bandwidth budget of background I/O: token buckets over [`Clock`] time, one for each class of work.
//!
//! A bucket is one number: the moment at which everything taken so far will have been paid for. Taking `n` bytes moves it on
//! by `n / rate`. A caller whose moment lies in the future waits until then; the limiter itself never blocks, so a simulation
//! can advance its clock instead, and a lane can do something else meanwhile. A bucket that nobody used holds at most
//! [`BURST_NS`] of credit.
//!
//! All classes share one budget, and a class pays for those before it ([`WorkClass`]): taking bytes moves on the bucket of the class and
//! the buckets of all classes behind it. So what prevents a stall never waits for what reclaims space, and that gets what is left. Flushes
//! go before all: writers wait for them, so a flush never waits; its bytes are charged all the same, and the merges pay for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use super::Clock;

/// How much unused time a bucket remembers.
pub const BURST_NS: u64 = 50_000_000;

/// The longest that one call is told to wait: beyond any debt that sensible pieces at sensible rates make. A change of the rate
/// is felt after the waits that were handed out, so callers take small pieces.
const LONGEST_WAIT_NS: u64 = 60_000_000_000;

const CLASSES: usize = WorkClass::ALL.len();

/// What background work is for. Ascending order is from what goes first to what goes last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkClass {
    /// A memtable becomes a file: writers wait for its memory.
    Flush,
    /// A merge that keeps the tree in its shape: writers wait when there are too many runs.
    StallPreventing,
    /// A merge that must be done by a date.
    Deadline,
    /// A merge that makes the tree smaller or reads cheaper.
    SpaceReclaiming,
    /// A merge that a user has asked for or that idle time allows, scrubs, checkpoints: nobody waits for its effect.
    Cosmetic,
}

impl WorkClass {
    /// All of them, the first to go first.
    pub const ALL: [WorkClass; 5] = [
        WorkClass::Flush,
        WorkClass::StallPreventing,
        WorkClass::Deadline,
        WorkClass::SpaceReclaiming,
        WorkClass::Cosmetic,
    ];

    /// Its name, as in `stall-preventing`.
    pub fn name(self) -> &'static str {
        match self {
            WorkClass::Flush => "flush",
            WorkClass::StallPreventing => "stall-preventing",
            WorkClass::Deadline => "deadline",
            WorkClass::SpaceReclaiming => "space-reclaiming",
            WorkClass::Cosmetic => "cosmetic",
        }
    }
}

/// A budget, shared by all jobs.
pub struct Limiter {
    clock: Arc<dyn Clock>,
    rate_bytes_per_s: AtomicU64,
    /// By class, the moment, in the clock's monotonic nanoseconds, up to which bandwidth is spent.
    paid_until_ns: [AtomicU64; CLASSES],
}

impl Limiter {
    /// A limiter to `rate_bytes_per_s`; 0 is no limit.
    pub fn new(clock: Arc<dyn Clock>, rate_bytes_per_s: u64) -> Limiter {
        Limiter { clock, rate_bytes_per_s: AtomicU64::new(rate_bytes_per_s), paid_until_ns: Default::default() }
    }

    /// The limit; 0 is none.
    pub fn rate_bytes_per_s(&self) -> u64 {
        self.rate_bytes_per_s.load(Ordering::Relaxed)
    }

    /// Changes the limit for what is taken from now on; 0 is none. Forgives the debt, which was made at the old rate.
    pub fn set_rate(&self, rate_bytes_per_s: u64) {
        self.rate_bytes_per_s.store(rate_bytes_per_s, Ordering::Relaxed);
        self.paid_until_ns.iter().for_each(|paid| paid.store(0, Ordering::Relaxed));
    }

    /// Takes `bytes` from the budget and says how long the caller is to wait before it moves more. Flushes never wait.
    pub fn take(&self, bytes: u64, class: WorkClass) -> Duration {
        let rate = self.rate_bytes_per_s();
        if rate == 0 || bytes == 0 {
            return Duration::ZERO;
        }
        let cost_ns = u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX);
        let now = self.clock.mono_ns();
        let oldest_credit = now.saturating_sub(BURST_NS);
        let charge = |paid: u64| Some(paid.max(oldest_credit).saturating_add(cost_ns));
        let mut wait_ns = 0;
        for behind in WorkClass::ALL.into_iter().filter(|behind| *behind >= class) {
            // Order with other memory does not matter: the numbers stand alone.
            let before = self.paid_until_ns[behind as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge);
            if behind == class {
                let paid_until = before.unwrap_or(0).max(oldest_credit).saturating_add(cost_ns);
                wait_ns = paid_until.saturating_sub(now).min(LONGEST_WAIT_NS);
            }
        }
        if class == WorkClass::Flush { Duration::ZERO } else { Duration::from_nanos(wait_ns) }
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

    const MERGE: WorkClass = WorkClass::StallPreventing;

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
        assert_eq!(limiter.take(500_000, WorkClass::Flush), Duration::ZERO);
        let sleep = limiter.take(100_000, MERGE);
        assert_eq!(sleep, Duration::from_millis(600) - Duration::from_nanos(BURST_NS));
        clock.advance(u64::try_from(sleep.as_nanos()).unwrap());
        assert_eq!(limiter.take(1_000, MERGE), Duration::from_millis(1));
        // What is owed at one rate is not owed at the next.
        assert_eq!(limiter.take(50_000_000, WorkClass::Flush), Duration::ZERO);
        limiter.set_rate(100_000_000);
        assert!(limiter.take(1_000_000, MERGE) <= Duration::from_millis(10));
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
        assert_eq!(limiter.take(u64::MAX, MERGE), Duration::from_nanos(LONGEST_WAIT_NS));
        assert_eq!(limiter.take(u64::MAX, MERGE), Duration::from_nanos(LONGEST_WAIT_NS));
    }

    #[test]
    fn classes_share_the_budget_and_the_first_go_first() {
        let clock = SimClock::new();
        let limiter = Limiter::new(clock.clone(), 1_000_000);
        // Three jobs that always have work, each of a class of its own; the first wants half of the rate only.
        let classes = [WorkClass::StallPreventing, WorkClass::SpaceReclaiming, WorkClass::Cosmetic];
        let (mut bytes, mut ready) = ([0u64; 3], [0u64; 3]);
        let start = clock.mono_ns();
        for past in (0..20_000_000_000).step_by(1_000_000) {
            let now = start + past;
            clock.advance_to(now);
            for (at, class) in classes.into_iter().enumerate() {
                if ready[at] <= now && (at > 0 || bytes[0] <= past / 2000) {
                    ready[at] = now + u64::try_from(limiter.take(1000, class).as_nanos()).unwrap();
                    bytes[at] += 1000;
                }
            }
        }
        let total: u64 = bytes.iter().sum();
        assert!((19_900_000..20_300_000).contains(&total), "{bytes:?}");
        assert!((9_900_000..10_100_000).contains(&bytes[0]) && bytes[1] > 9_500_000, "{bytes:?}");
        assert!(bytes[2] < 300_000, "what is cosmetic gets what is left: {bytes:?}");
    }
}

//! When operations are due.
//!
//! All in integers: rates are millionths of an operation a second, and what a nanosecond is too coarse for is carried on. At a
//! hundredth of a study's scale a rate is a few dozen a second, and rounding it to a whole number would move the load by percents.

use siltstone::io::Rng;

/// Work units of one operation: a rate of one millionth a second does one in a nanosecond.
const OPERATION: u128 = 1_000_000_000_000_000;

/// Operations a second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Rate {
    micros: u64,
}

impl Rate {
    /// `n` operations a second.
    pub const fn per_second(n: u64) -> Rate {
        Rate { micros: n * 1_000_000 }
    }

    /// As many millionths of an operation a second.
    pub const fn from_millionths(micros: u64) -> Rate {
        Rate { micros }
    }

    /// Operations over a time; at most 18 million a microsecond.
    ///
    /// # Panics
    /// If `elapsed_ns` is 0.
    pub fn over(operations: u64, elapsed_ns: u64) -> Rate {
        let micros = u128::from(operations) * OPERATION / u128::from(elapsed_ns);
        Rate { micros: u64::try_from(micros).unwrap_or(u64::MAX) }
    }

    /// `numerator / denominator` of it.
    pub fn times(self, numerator: u64, denominator: u64) -> Rate {
        let micros = u128::from(self.micros) * u128::from(numerator) / u128::from(denominator);
        Rate { micros: u64::try_from(micros).unwrap_or(u64::MAX) }
    }

    /// For people.
    pub fn as_f64(self) -> f64 {
        crate::num::float(self.micros) / 1e6
    }

    /// Whether nothing ever comes.
    pub const fn is_zero(self) -> bool {
        self.micros == 0
    }
}

/// A rate that holds for a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The rate.
    pub rate: Rate,
    /// For how long.
    pub ns: u64,
}

/// How an operation's time follows from the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spacing {
    /// Evenly.
    #[default]
    Constant,
    /// With exponential gaps: a Poisson process.
    Poisson,
}

/// Who decides when the next operation starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrivals {
    /// A closed loop: the next one starts when the last one has ended. Measures the most that a store can do.
    Closed,
    /// An open loop: operations are due whether or not the store keeps up. One that comes late has waited since it was due.
    Open {
        /// The rates, one after the other and from the first again. One stretch is a steady load, two are bursts, a zero rate among them is
        /// an on/off load.
        stretches: Vec<Stretch>,
        /// The gaps.
        spacing: Spacing,
    },
}

impl Arrivals {
    /// A steady open loop.
    pub fn steady(rate: Rate, spacing: Spacing) -> Arrivals {
        Arrivals::Open { stretches: vec![Stretch { rate, ns: u64::MAX }], spacing }
    }

    /// What is wrong with it.
    ///
    /// # Errors
    /// In words, if nothing would ever be due.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Arrivals::Open { stretches, .. } if stretches.iter().all(|s| s.rate.is_zero() || s.ns == 0) => {
                Err("an open loop needs a rate above 0".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// The times of an open loop, ascending, in nanoseconds since its start.
#[derive(Clone, Debug)]
pub struct Schedule {
    stretches: Vec<Stretch>,
    spacing: Spacing,
    rng: Rng,
    /// The stretch at work, and how much of it is left.
    at: usize,
    left_ns: u64,
    now_ns: u64,
    /// Work done beyond the last whole nanosecond.
    carried: u128,
}

impl Schedule {
    /// The times of `stretches`.
    ///
    /// # Panics
    /// If nothing would ever be due: see [`Arrivals::check`].
    pub fn new(stretches: &[Stretch], spacing: Spacing, rng: Rng) -> Schedule {
        assert!(stretches.iter().any(|s| !s.rate.is_zero() && s.ns > 0), "an open loop without a rate");
        let left_ns = stretches[0].ns;
        Schedule { stretches: stretches.to_vec(), spacing, rng, at: 0, left_ns, now_ns: 0, carried: 0 }
    }

    /// How many come before `at_ns`.
    ///
    /// Equal gaps are not counted one by one: whoever asks is the writer who is late already.
    pub(super) fn before(&self, at_ns: u64) -> u64 {
        let Some(mut left_ns) = at_ns.checked_sub(self.now_ns + 1) else { return 0 };
        if self.spacing == Spacing::Poisson {
            return crate::num::count(self.clone().take_while(|due| *due < at_ns).count());
        }
        let (mut work, mut at, mut stretch_ns) = (self.carried, self.at, self.left_ns);
        loop {
            let ns = left_ns.min(stretch_ns);
            work += u128::from(ns) * u128::from(self.stretches[at].rate.micros);
            left_ns -= ns;
            if left_ns == 0 {
                return u64::try_from(work / OPERATION).unwrap_or(u64::MAX);
            }
            at = (at + 1) % self.stretches.len();
            stretch_ns = self.stretches[at].ns;
        }
    }

    fn gap(&mut self) -> u128 {
        match self.spacing {
            Spacing::Constant => OPERATION,
            Spacing::Poisson => {
                // A uniform number above 0 and up to 1, of 53 bits.
                let uniform = crate::num::float((self.rng.next_u64() >> 11) + 1) / crate::num::float(1 << 53);
                u128::from(crate::num::floor(-libm::log(uniform) * 1e9)) * (OPERATION / 1_000_000_000)
            }
        }
    }
}

impl Iterator for Schedule {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let mut work = self.gap();
        loop {
            let rate = u128::from(self.stretches[self.at].rate.micros);
            let whole = u128::from(self.left_ns) * rate + self.carried;
            if work <= whole && rate > 0 {
                let ns = div_ceil(work.saturating_sub(self.carried), rate);
                self.carried = self.carried + ns * rate - work;
                // Fits: it is at most what is left.
                let ns = u64::try_from(ns).unwrap_or(self.left_ns);
                self.left_ns -= ns;
                self.now_ns += ns;
                return Some(self.now_ns);
            }
            work -= whole.min(work);
            self.carried = 0;
            self.now_ns += self.left_ns;
            self.at = (self.at + 1) % self.stretches.len();
            self.left_ns = self.stretches[self.at].ns;
        }
    }
}

/// The same as the method, without its call for numbers of 128 bits: the driver is on the path of each operation.
fn div_ceil(work: u128, rate: u128) -> u128 {
    match (u64::try_from(work), u64::try_from(rate)) {
        (Ok(work), Ok(rate)) => u128::from(work.div_ceil(rate)),
        _ => work.div_ceil(rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn times(stretches: &[Stretch], spacing: Spacing, n: usize) -> Vec<u64> {
        Schedule::new(stretches, spacing, Rng::new(1)).take(n).collect()
    }

    #[test]
    fn no_rate_is_rounded() {
        let rate = Rate::over(1000, 7 * SECOND);
        assert_eq!(rate, Rate::from_millionths(142_857_142));
        let times = times(&[Stretch { rate, ns: u64::MAX }], Spacing::Constant, 1_000_000);
        // A million operations at 142.857142 a second take 7000.000042 s and a third of a picosecond.
        assert_eq!(times.last(), Some(&7_000_000_042_001));
        assert!(times.is_sorted());
        assert_eq!(Rate::per_second(100).times(95, 100), Rate::per_second(95));
    }

    #[test]
    fn what_comes_before_a_moment_is_what_would_be_counted() {
        let stretches =
            [(Rate::over(1000, 7 * SECOND), 3 * SECOND), (Rate::per_second(0), 1), (Rate::per_second(3), SECOND)];
        let stretches = stretches.map(|(rate, ns)| Stretch { rate, ns });
        for spacing in [Spacing::Constant, Spacing::Poisson] {
            let mut schedule = Schedule::new(&stretches, spacing, Rng::new(1));
            for n in 0..2000 {
                let now = schedule.now_ns;
                let next = schedule.clone().next().unwrap();
                for at in [now, now + 1, next, next + 1, now + n * 5_000_003, 3 * SECOND, 3 * SECOND + 1] {
                    let counted = schedule.clone().take_while(|due| *due < at).count();
                    assert_eq!(schedule.before(at), crate::num::count(counted), "{n}: {at}");
                }
                schedule.next();
            }
        }
    }

    #[test]
    fn stretches_take_turns() {
        let burst = [
            Stretch { rate: Rate::per_second(10), ns: 2 * SECOND },
            Stretch { rate: Rate::per_second(0), ns: SECOND },
            Stretch { rate: Rate::per_second(1000), ns: SECOND },
        ];
        let times = times(&burst, Spacing::Constant, 3 * 1020);
        let between =
            |from: u64, to: u64| times.iter().filter(|t| (from * SECOND + 1..=to * SECOND).contains(t)).count();
        for round in 0..3 {
            let start = 4 * round;
            assert_eq!(between(start, start + 2), 20);
            assert_eq!(between(start + 2, start + 3), 0);
            assert_eq!(between(start + 3, start + 4), 1000);
        }
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_the_spread_of_an_exponential_law() {
        let n = 200_000;
        let times = times(&[Stretch { rate: Rate::per_second(1000), ns: u64::MAX }], Spacing::Poisson, n);
        let gaps: Vec<f64> = times.windows(2).map(|w| crate::num::float(w[1] - w[0])).collect();
        let mean = gaps.iter().sum::<f64>() / crate::num::float(crate::num::count(gaps.len()));
        let square = gaps.iter().map(|gap| gap * gap).sum::<f64>() / crate::num::float(crate::num::count(gaps.len()));
        let deviation = (square - mean * mean).sqrt();
        assert!((mean / 1e6 - 1.0).abs() < 0.01 && (deviation / 1e6 - 1.0).abs() < 0.01, "{mean} {deviation}");
    }

    #[test]
    fn a_loop_without_a_rate_is_refused() {
        let never = Arrivals::steady(Rate::default(), Spacing::Constant);
        assert!(never.check().unwrap_err().contains("above 0"));
        assert!(Arrivals::Closed.check().is_ok());
    }
}

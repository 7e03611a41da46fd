//! The component constraint: how many sorted runs a tree may hold before writers are slowed and stopped (luo19 section 4.2).
//!
//! Every run makes reads dearer, and runs gather when writes come faster than merges. A global limit of twice the number that the layout
//! expects leaves merges room to work with and still bounds reads; stopping at it, with writes as fast as possible below it, gives the highest
//! throughput (luo19 theorem 1). Between the expected number and the limit [`RunLimits::pressure`] lets a caller slow writes down
//! gradually, so that none of them waits long.

use crate::compaction::{CompactionPolicy, LsmView};

/// The run counts at which writers feel the merges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunLimits {
    /// The runs that a tree of this size holds when all is well.
    pub expected: u32,
    /// Above this many, writes slow down.
    pub slowdown_runs: u32,
    /// At this many, writers stop.
    pub stop_runs: u32,
}

/// What the run count asks of writers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pressure {
    /// Nothing.
    None,
    /// To slow down: above 0 just past the slow-down threshold, near 1 just before the stop.
    Slow(f64),
    /// To wait.
    Stop,
}

/// The limits for a tree under a policy; `max_runs` is the option of that name, 0 for twice the expected number.
///
/// A `max_runs` below what the policy's triggers wait for is raised to one more than that: otherwise writers would stop for runs
/// that nobody merges.
pub fn run_limits(policy: &dyn CompactionPolicy, view: &LsmView<'_>, max_runs: u32) -> RunLimits {
    let expected = policy.expected_runs(view).max(1);
    let stop_runs = match max_runs {
        0 => expected.saturating_mul(2).max(4),
        runs => runs.max(expected.saturating_add(1)),
    };
    // At once: the price of a write rises slowly at first, and a writer is far faster than the merges behind it.
    let slowdown_runs = expected;
    RunLimits { expected, slowdown_runs, stop_runs }
}

impl RunLimits {
    /// What `runs` sorted runs ask of writers.
    pub fn pressure(&self, runs: u32) -> Pressure {
        if runs >= self.stop_runs {
            Pressure::Stop
        } else if runs > self.slowdown_runs {
            Pressure::Slow(f64::from(runs - self.slowdown_runs) / f64::from(self.stop_runs - self.slowdown_runs))
        } else {
            Pressure::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::{Sizes, Strategy};
    use crate::version::text::parse;

    const SIZES: Sizes = Sizes { memtable_bytes: 1 << 10, file_bytes: 1 << 10, size_ratio: 0, level1_bytes: 0 };

    #[test]
    fn the_limit_is_twice_what_the_layout_expects() {
        let version = parse("L0 3:a-z:1K\nL1 2:a-z:1K\nL2 1:a-z:1K\n").unwrap();
        let limits = |name: &str, max_runs| {
            run_limits(&Strategy::named(name).unwrap(), &LsmView::new(&version, SIZES), max_runs)
        };
        assert_eq!(limits("one-leveling", 0), RunLimits { expected: 6, slowdown_runs: 6, stop_runs: 12 });
        assert_eq!(limits("tiering", 0).stop_runs, 60);
        assert_eq!(limits("one-leveling", 20).stop_runs, 20);
        assert_eq!(limits("one-leveling", 2).stop_runs, 7, "merges wait for 4 runs of L0 beside L1 and L2");
    }

    #[test]
    fn pressure_grows_towards_the_stop() {
        let limits = RunLimits { expected: 6, slowdown_runs: 8, stop_runs: 12 };
        assert_eq!(limits.pressure(8), Pressure::None);
        assert_eq!(limits.pressure(9), Pressure::Slow(0.25));
        assert_eq!(limits.pressure(11), Pressure::Slow(0.75));
        assert_eq!(limits.pressure(12), Pressure::Stop);
    }
}

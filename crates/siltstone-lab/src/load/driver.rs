//! One load: operations that are due by a law, and what became of them.
//!
//! The driver is one client. In an open loop the operations that it is late for wait in a queue, as they would with independent clients:
//! an operation's latency counts from the time at which it was due, so a stall is charged to every write that it delayed and not only to
//! the one that ran into it (luo19 section 3.2; "coordinated omission"). Its processing time counts from its own start.

use std::time::Duration;

use serde::Serialize;
use siltstone::io::Rng;
use siltstone::{Error, ErrorKind, Result};

use super::arrivals::{Arrivals, Schedule};
use super::world::World;
use crate::metrics::{Latencies, LatencySummary};
use crate::num::{float, per_second};

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub struct Load {
    /// When operations are due.
    pub arrivals: Arrivals,
    /// How long, warm-up included.
    pub run_ns: u64,
    /// What comes in this time from the start is done but not counted.
    pub warm_up_ns: u64,
    /// Throughput and the longest latency are told for each such time (luo19: 30 s).
    pub window_ns: u64,
    /// For random arrivals.
    pub seed: u64,
}

/// What became of a load.
#[derive(Clone, Debug, Serialize)]
pub struct LoadResult {
    /// Operations that were counted.
    pub operations: u64,
    /// Seconds over which they were counted.
    pub elapsed_s: f64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// From when they were due to their end; in a closed loop the same as `processing`.
    pub latency: LatencySummary,
    /// From their start to their end.
    pub processing: LatencySummary,
    /// What happened when, warm-up included.
    pub windows: Vec<Window>,
    /// Operations that were due before the end and were never begun.
    pub queued_at_end: u64,
    /// Seconds in operations that took more than 100 ms each to be processed: the time for which writers stood still.
    pub stalled_s: f64,
    /// The run was ended early: figures cover what was done until then.
    pub is_partial: bool,
    #[serde(skip)]
    latencies: Latencies,
}

impl LoadResult {
    /// How many operations took longer than `ns` from when they were due, to three digits.
    pub fn late(&self, ns: u64) -> u64 {
        self.latencies.above(ns)
    }
}

/// A stretch of a run.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Window {
    /// Its begin, in seconds since the start.
    pub at_s: f64,
    /// Operations that ended in it.
    pub operations: u64,
    /// The longest latency among them, from when the operation was due.
    pub longest_ns: u64,
    /// Operations that were due and had not ended at its end.
    pub queued: u64,
    /// What the caller's `gauge` said at its end: sorted runs, for a store.
    pub gauge: u64,
}

/// Where a run is, for a caller that shows progress.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Moment {
    /// The share of the run's time that is over, from 0 to 1.
    pub share: f64,
    /// Operations so far.
    pub operations: u64,
}

/// An operation that takes longer than this to be processed has met a stall.
const STALL_NS: u64 = 100_000_000;
/// Operations between two looks at the caller's wish to go on.
const TICK: u64 = 1 << 8;

/// Runs `load` in `world`. `operation` does one operation; `gauge` is asked at each window's end; `watch` is told how far the run is and
/// ends it early by answering false.
///
/// # Errors
/// The first error of an operation. `InvalidArgument` for arrivals that never come, or a window of no time.
pub fn drive(
    world: &dyn World,
    load: &Load,
    operation: &mut dyn FnMut() -> Result<()>,
    gauge: &mut dyn FnMut() -> u64,
    watch: &mut dyn FnMut(Moment) -> bool,
) -> Result<LoadResult> {
    load.arrivals.check().map_err(|what| Error::new(ErrorKind::InvalidArgument, what))?;
    if load.window_ns == 0 || load.run_ns <= load.warm_up_ns {
        let what = "a load needs a window and a time to run that are longer than its warm-up";
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    let rng = Rng::new(load.seed).split("arrivals");
    let mut schedule = match &load.arrivals {
        Arrivals::Closed => None,
        Arrivals::Open { stretches, spacing } => Some(Schedule::new(stretches, *spacing, rng)),
    };
    // The next operation that is due; with the clock past it, it waits already.
    let mut due = schedule.as_mut().and_then(Iterator::next);
    let mut tally = Tally::new(load);
    let start_ns = world.now_ns();
    let (mut done, mut is_partial) = (0u64, false);
    // An operation that is late begins when the one before it ended: reading the clock again would be a tenth of a fast write.
    let mut ended_ns = 0;
    loop {
        let due_ns = due.unwrap_or(ended_ns);
        if due_ns.max(ended_ns) >= load.run_ns {
            break;
        }
        let mut began_ns = ended_ns;
        if due_ns > began_ns {
            world.wait_until(start_ns + due_ns);
            began_ns = world.now_ns() - start_ns;
        }
        operation()?;
        world.spend();
        ended_ns = world.now_ns() - start_ns;
        done += 1;
        while tally.is_over(ended_ns) {
            let at_ns = tally.next_end();
            tally.end_window(waiting(due, schedule.as_ref(), at_ns), gauge());
        }
        tally.add(due.unwrap_or(began_ns), began_ns, ended_ns);
        due = schedule.as_mut().and_then(Iterator::next);
        if done.is_multiple_of(TICK) {
            let share = (float(ended_ns) / float(load.run_ns)).min(1.0);
            if !watch(Moment { share, operations: done }) {
                is_partial = true;
                break;
            }
        }
    }
    let ended_ns = if is_partial { world.now_ns() - start_ns } else { load.run_ns };
    if !is_partial {
        world.wait_until(start_ns + ended_ns);
    }
    while tally.is_over(ended_ns) {
        let at_ns = tally.next_end();
        tally.end_window(waiting(due, schedule.as_ref(), at_ns), gauge());
    }
    Ok(tally.result(ended_ns, waiting(due, schedule.as_ref(), ended_ns), is_partial))
}

/// How many operations are due before `at_ns`, counted from `due` on.
fn waiting(due: Option<u64>, schedule: Option<&Schedule>, at_ns: u64) -> u64 {
    let (Some(due), Some(schedule)) = (due, schedule) else { return 0 };
    if due < at_ns { 1 + schedule.before(at_ns) } else { 0 }
}

/// Counts operations.
struct Tally<'a> {
    load: &'a Load,
    latency: Latencies,
    processing: Latencies,
    windows: Vec<Window>,
    /// The window at work.
    window: Window,
    stalled_ns: u64,
}

impl<'a> Tally<'a> {
    fn new(load: &'a Load) -> Tally<'a> {
        Tally {
            load,
            latency: Latencies::new(),
            processing: Latencies::new(),
            windows: Vec::new(),
            window: Window::default(),
            stalled_ns: 0,
        }
    }

    fn next_end(&self) -> u64 {
        (crate::num::count(self.windows.len()) + 1) * self.load.window_ns
    }

    fn is_over(&self, at_ns: u64) -> bool {
        self.next_end() <= at_ns
    }

    fn end_window(&mut self, queued: u64, gauge: u64) {
        self.windows.push(Window { queued, gauge, ..self.window });
        self.window = Window { at_s: seconds(self.next_end() - self.load.window_ns), ..Window::default() };
    }

    fn add(&mut self, due_ns: u64, began_ns: u64, ended_ns: u64) {
        self.window.operations += 1;
        self.window.longest_ns = self.window.longest_ns.max(ended_ns - due_ns);
        // What is due in the warm-up belongs to it, however late it ends.
        if due_ns < self.load.warm_up_ns {
            return;
        }
        let took_ns = ended_ns - began_ns;
        self.latency.record(Duration::from_nanos(ended_ns - due_ns));
        self.processing.record(Duration::from_nanos(took_ns));
        if took_ns > STALL_NS {
            self.stalled_ns += took_ns;
        }
    }

    fn result(self, ended_ns: u64, queued_at_end: u64, is_partial: bool) -> LoadResult {
        let elapsed_s = seconds(ended_ns.saturating_sub(self.load.warm_up_ns));
        let latency = self.latency.summary();
        LoadResult {
            operations: latency.count,
            elapsed_s,
            ops_per_s: per_second(latency.count, elapsed_s),
            latency,
            processing: self.processing.summary(),
            windows: self.windows,
            queued_at_end,
            stalled_s: seconds(self.stalled_ns),
            is_partial,
            latencies: self.latency,
        }
    }
}

fn seconds(ns: u64) -> f64 {
    float(ns) / 1e9
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use siltstone::io::sim::Device;

    use super::super::{Arrivals, Rate, SimWorld, Spacing};
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn load(arrivals: Arrivals, run_s: u64) -> Load {
        Load { arrivals, run_ns: run_s * SECOND, warm_up_ns: 0, window_ns: SECOND, seed: 1 }
    }

    /// A store that stands still for a second, once, five seconds after the start.
    fn stall(world: &SimWorld) -> impl FnMut() -> Result<()> {
        let start_ns = world.now_ns();
        let stalled = Cell::new(false);
        move || {
            if world.now_ns() - start_ns >= 5 * SECOND && !stalled.replace(true) {
                world.wait_until(world.now_ns() + SECOND);
            }
            Ok(())
        }
    }

    /// A second's stall delays a thousand writes a second, not one: an open loop shows all of them, a closed one the first only.
    #[test]
    fn a_stall_is_charged_to_every_write_that_it_delays() {
        let run = |arrivals, operation_ns| {
            let world = SimWorld::new(Device::default(), operation_ns, 1);
            let mut operation = stall(&world);
            drive(&world, &load(arrivals, 10), &mut operation, &mut || 0, &mut |_| true).unwrap()
        };
        let late = |result: &LoadResult, share: f64| crate::num::floor((float(result.latency.count) * share).round());
        let open = run(Arrivals::steady(Rate::per_second(1000), Spacing::Constant), 0);
        assert_eq!((open.operations, open.queued_at_end), (9999, 0), "the last one is due at the very end");
        // A thousand are late, by 1 s, 0.999 s, ... 0.001 s.
        assert!((open.latency.mean_ns - 500.5e6 * 1000.0 / 9999.0).abs() < 1e5, "{}", open.latency.mean_ns);
        assert_eq!(open.late(0), 1000);
        assert_eq!(open.late(SECOND / 2), 500);
        assert_eq!(late(&open, 0.1), 1000);
        assert!(open.processing.p999_ns <= 1 && open.processing.max_ns > SECOND - SECOND / 1000);
        assert_eq!(open.windows[5].operations, 0, "{:?}", open.windows);
        assert_eq!(open.windows[5].queued, 1000);
        assert!((open.stalled_s - 1.0).abs() < 1e-9);
        let closed = run(Arrivals::Closed, 1_000_000);
        assert_eq!(closed.late(2_000_000), 1, "the closed loop sees one slow write");
        assert_eq!(closed.operations, 9000);
    }

    #[test]
    fn a_run_can_be_ended_early_and_says_so() {
        let world = SimWorld::new(Device::default(), 0, 1);
        let open = load(Arrivals::steady(Rate::per_second(1000), Spacing::Poisson), 100);
        let mut watch = |moment: Moment| moment.share < 0.25;
        let result = drive(&world, &open, &mut || Ok(()), &mut || 7, &mut watch).unwrap();
        assert!(result.is_partial && (25.0..27.0).contains(&result.elapsed_s), "{}", result.elapsed_s);
        assert!(result.windows.len() >= 25 && result.windows.iter().all(|window| window.gauge == 7));
        let wrong = Load { window_ns: 0, ..open.clone() };
        assert!(drive(&world, &wrong, &mut || Ok(()), &mut || 0, &mut |_| true).is_err());
        let never = load(Arrivals::steady(Rate::default(), Spacing::Constant), 1);
        assert!(
            drive(&world, &never, &mut || Ok(()), &mut || 0, &mut |_| true)
                .unwrap_err()
                .to_string()
                .contains("above 0")
        );
    }
}

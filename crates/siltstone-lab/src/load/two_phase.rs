//! The two-phase method of luo19 (section 3): measure what a store can do, then see whether it bears nearly that much for long.
//!
//! A closed loop measures the most writes a second that a store takes, but hides what stalls do to independent clients. An open loop at
//! a rate that is out of the air is either harmless or hopeless. So: first a *testing* phase, closed, which gives the rate `W`; then a
//! *running* phase, open, at a share of `W` (luo19: 95 %), on a store of its own that was loaded alike. If its writes stay
//! quick and nothing queues up, `W` was honest and the design is *sustainable* at that load.

use serde::Serialize;
use siltstone::Options;

use super::arrivals::{Arrivals, Rate, Spacing};
use super::driver::{Load, LoadResult, Moment};
use super::trial::{Stage, Trial};
use super::world::World;
use crate::report::duration_ns;
use crate::workload::{KeyLaw, Workload};

/// What is asked.
#[derive(Clone, Debug)]
pub struct TwoPhase {
    /// The store of the testing phase. luo19 measures with a fair scheduler: greedy ones flatter themselves at first.
    pub testing: Options,
    /// The store of the running phase.
    pub running: Options,
    /// Keys; all of them are loaded first. `value_bytes` and `key_bytes` as everywhere; phases are not looked at.
    pub workload: Workload,
    /// Which keys are updated.
    pub law: KeyLaw,
    /// How long the testing phase takes, warm-up included.
    pub testing_ns: u64,
    /// How long the running phase takes, warm-up included.
    pub running_ns: u64,
    /// What of each is not counted.
    pub warm_up_ns: u64,
    /// Throughput is told for each such time.
    pub window_ns: u64,
    /// The share of the measured rate at which writes come, in millionths.
    pub utilization_millionths: u64,
    /// How they come.
    pub spacing: Spacing,
    /// Sustainable means that 99 % of the writes take no longer, from when they were due.
    pub p99_limit_ns: u64,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct TwoPhaseResult {
    /// The closed loop; none if the run was ended before it began.
    pub testing: Option<LoadResult>,
    /// The rate of the running phase, in writes a second.
    pub arrivals_per_s: f64,
    /// The open loop; none if the run was ended before it began.
    pub running: Option<LoadResult>,
    /// The run was ended before both phases were over.
    pub is_partial: bool,
    /// Whether the store bears it.
    pub is_sustainable: bool,
    /// Why, or why not.
    pub reason: String,
}

/// Which part is at work, for a caller that shows progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All keys are loaded once, before either phase.
    Load,
    /// The closed loop.
    Testing,
    /// The open loop.
    Running,
}

/// Runs both phases, each in a world of its own that `world` makes.
///
/// # Errors
/// The first error of a store or of making a world. A run that `watch` ends early is no error: the result says so.
pub fn run(
    ask: &TwoPhase,
    world: &mut dyn FnMut() -> anyhow::Result<Box<dyn World>>,
    watch: &mut dyn FnMut(Part, Moment) -> bool,
) -> anyhow::Result<TwoPhaseResult> {
    let load = |arrivals, run_ns| Load {
        arrivals,
        run_ns,
        warm_up_ns: ask.warm_up_ns,
        window_ns: ask.window_ns,
        seed: ask.workload.seed,
    };
    // Nothing, if it was ended while its store was loaded.
    let mut phase = |options: &Options, load: &Load, part, world: Box<dyn World>| {
        let trial = Trial { options, workload: &ask.workload, law: ask.law, load, queries: false };
        let mut is_loaded = true;
        let made = trial.run(&*world, &mut |stage, moment| {
            let goes_on = is_loaded && watch(if stage == Stage::Load { Part::Load } else { part }, moment);
            is_loaded &= goes_on || stage != Stage::Load;
            goes_on
        });
        anyhow::Ok(Some(made?.load).filter(|_| is_loaded))
    };
    let closed = load(Arrivals::Closed, ask.testing_ns);
    let Some(testing) = phase(&ask.testing, &closed, Part::Testing, world()?)? else {
        return Ok(TwoPhaseResult::partial(None, "the store of the testing phase was not loaded to its end"));
    };
    if testing.is_partial {
        return Ok(TwoPhaseResult::partial(Some(testing), "the testing phase was not finished"));
    }
    let elapsed_ns = ask.testing_ns - ask.warm_up_ns;
    let rate = Rate::over(testing.operations, elapsed_ns).times(ask.utilization_millionths, 1_000_000);
    let arrivals = Arrivals::steady(rate, ask.spacing);
    let arrivals_per_s = rate.as_f64();
    let Some(running) = phase(&ask.running, &load(arrivals, ask.running_ns), Part::Running, world()?)? else {
        let reason = "the store of the running phase was not loaded to its end";
        return Ok(TwoPhaseResult { arrivals_per_s, ..TwoPhaseResult::partial(Some(testing), reason) });
    };
    let (is_partial, testing) = (running.is_partial, Some(testing));
    let (is_sustainable, reason) = judge(&running, ask.p99_limit_ns);
    Ok(TwoPhaseResult { testing, arrivals_per_s, running: Some(running), is_partial, is_sustainable, reason })
}

impl TwoPhaseResult {
    /// Of a run that was ended before its running phase.
    fn partial(testing: Option<LoadResult>, reason: &str) -> TwoPhaseResult {
        TwoPhaseResult {
            testing,
            arrivals_per_s: 0.0,
            running: None,
            is_partial: true,
            is_sustainable: false,
            reason: reason.to_owned(),
        }
    }
}

/// Whether a store that did `running` bears the load, and why.
fn judge(running: &LoadResult, p99_limit_ns: u64) -> (bool, String) {
    if running.is_partial {
        return (false, "the running phase was not finished".to_owned());
    }
    let p99_ns = running.latency.p99_ns;
    if running.operations == 0 || p99_ns > p99_limit_ns {
        let limit = duration_ns(p99_limit_ns);
        return (false, format!("the p99 write latency, {}, is above {limit}", duration_ns(p99_ns)));
    }
    let last_third = &running.windows[running.windows.len() * 2 / 3..];
    let before = last_third.first().map_or(0, |window| window.queued);
    // A queue of less than a second's writes comes and goes.
    let allowed = before.max(crate::num::floor(running.ops_per_s));
    if running.queued_at_end > allowed {
        return (
            false,
            format!("the queue grew from {before} to {} writes over the last third", running.queued_at_end),
        );
    }
    (true, format!("the p99 write latency is {}, and no queue grows", duration_ns(p99_ns)))
}

#[cfg(test)]
mod tests {
    use siltstone::io::sim::Device;

    use super::super::SimWorld;
    use super::*;

    /// Ten minutes a phase on a disk of 100 kB/s.
    fn ask(utilization_percent: u64) -> TwoPhase {
        let mut options = Options { write_memory_bytes: 128 << 10, ..Options::default() };
        options.log.segment_bytes = 32 << 10;
        options.keyspace.memtable_bytes = 64 << 10;
        options.keyspace.file_bytes = 32 << 10;
        options.keyspace.size_ratio = 4;
        let second = 1_000_000_000;
        TwoPhase {
            testing: options.clone(),
            running: options,
            workload: Workload { seed: 1, records: 5_000, key_bytes: 16, value_bytes: 500, phases: Vec::new() },
            law: KeyLaw::Uniform,
            testing_ns: 600 * second,
            running_ns: 600 * second,
            warm_up_ns: 100 * second,
            window_ns: 10 * second,
            utilization_millionths: utilization_percent * 10_000,
            spacing: Spacing::Poisson,
            p99_limit_ns: second,
        }
    }

    fn go(ask: &TwoPhase) -> TwoPhaseResult {
        let device = Device { bandwidth_bytes_per_s: 100_000, background_writes_only: true, ..Device::default() };
        let mut world = || Ok(Box::new(SimWorld::new(device, 20_000, 1)) as Box<dyn World>);
        run(ask, &mut world, &mut |_, _| true).unwrap()
    }

    #[test]
    fn what_a_store_can_do_it_bears_in_part_and_no_more() {
        let half = go(&ask(50));
        let running = half.running.as_ref().unwrap();
        assert!(half.is_sustainable, "{}", half.reason);
        let testing = half.testing.as_ref().unwrap();
        assert!((half.arrivals_per_s / testing.ops_per_s - 0.5).abs() < 1e-3);
        assert!((running.ops_per_s / half.arrivals_per_s - 1.0).abs() < 0.05, "{running:?}");
        assert_eq!(serde_json::to_string(&half).unwrap(), serde_json::to_string(&go(&ask(50))).unwrap(), "bit for bit");
        // A rate that nobody measured: the disk cannot bear it, and the queue shows it.
        let much = go(&TwoPhase { p99_limit_ns: u64::MAX, ..ask(150) });
        assert!(!much.is_sustainable && much.reason.contains("queue grew"), "{}", much.reason);
        let slow = go(&ask(150));
        assert!(!slow.is_sustainable && slow.reason.contains("p99"), "{}", slow.reason);
    }

    #[test]
    fn a_run_that_is_ended_early_has_no_verdict() {
        let device = Device::default();
        let mut world = || Ok(Box::new(SimWorld::new(device, 20_000, 1)) as Box<dyn World>);
        let result = run(&ask(50), &mut world, &mut |part, _| part != Part::Testing).unwrap();
        assert!(result.testing.unwrap().is_partial && result.running.is_none() && !result.is_sustainable);
        assert!(result.is_partial && result.reason.contains("testing phase was not finished"), "{}", result.reason);
        // A run that was ended while it loaded said that its testing phase was ended, and had a row of zeros for it.
        let result = run(&ask(50), &mut world, &mut |part, _| part != Part::Load).unwrap();
        assert!(result.is_partial && result.testing.is_none() && result.reason.contains("loaded"), "{}", result.reason);
    }
}

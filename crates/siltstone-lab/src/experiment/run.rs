//! Makes the runs of experiments in virtual time, several at once: each is a world of its own and the same wherever it runs.

mod queue;

use std::collections::BTreeMap;
use std::num::NonZero;

use anyhow::Context;
use serde::Serialize;
use siltstone::Options;
use siltstone::io::sim::Device;
use siltstone::schedule::write_control::Limit;
use siltstone::schedule::{Scheduler, WriteControl};

use self::queue::Queue;
use super::spec::{Experiment, RunSpec, Setup, Sizes, with_excess};
use crate::load::{Arrivals, Load, LoadResult, Rate, SimWorld, Spacing, Stretch, Trial, TrialResult};
use crate::num::{count, float, floor};
use crate::setting;
use crate::workload::{KeyLaw, Workload};

/// A run and what it measured.
#[derive(Clone, Debug, Serialize)]
pub struct RunResult {
    /// The experiment.
    pub experiment: String,
    /// The run.
    pub name: String,
    /// Which value of the sweep; 0 without one.
    pub point: usize,
    /// It was ended early.
    pub is_partial: bool,
    /// The figures.
    pub measures: Measures,
}

/// Figures of a run by the names that claims use. Times are seconds.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Measures(BTreeMap<&'static str, f64>);

impl Measures {
    /// The figure called `name`.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    fn of(job: &Job, trial: &TrialResult) -> Measures {
        let (load, warm_up_s) = (&trial.load, float(job.load.warm_up_ns) / 1e9);
        let level1 = trial.stats.levels.get(1).map_or(0, |level| level.bytes);
        let seconds = |ns: u64| float(ns) / 1e9;
        // A write stands for `scale` of the original, one after the other: each of them takes as small a part of its time.
        let each = |ns: u64| seconds(ns) / float(job.scale);
        let latency = |ns: u64| if job.load.arrivals == Arrivals::Closed { each(ns) } else { seconds(ns) };
        let beside = |level: u8| trial.flushes_beside.get(&level).copied().unwrap_or_default();
        let mean_beside = |level| crate::num::ratio(beside(level).flushes, beside(level).merges);
        let counted: Vec<_> = load.windows.iter().filter(|window| window.at_s >= warm_up_s).collect();
        let third = counted.len() / 3;
        let mean = |values: &mut dyn Iterator<Item = u64>| {
            let (sum, n) = values.fold((0, 0), |(sum, n), value| (sum + value, n + 1));
            crate::num::ratio(sum, n)
        };
        let throughput = mean(&mut counted.iter().map(|window| window.operations));
        let square = counted.iter().map(|window| (float(window.operations) - throughput).powi(2)).sum::<f64>();
        let deviation = (square / float(count(counted.len()).max(1))).sqrt();
        Measures(BTreeMap::from([
            // Writes a second.
            ("w", load.ops_per_s),
            ("p50", latency(load.latency.p50_ns)),
            ("p99", latency(load.latency.p99_ns)),
            ("p999", latency(load.latency.p999_ns)),
            // The longest is a stop, which is one however many writes the one that meets it stands for.
            ("max", seconds(load.latency.max_ns)),
            ("processing_p99", each(load.processing.p99_ns)),
            ("processing_max", seconds(load.processing.max_ns)),
            // Seconds in which writers stood still.
            ("stalled", load.stalled_s),
            // How much the throughput wavers from window to window, as a share of it.
            ("cv", if throughput > 0.0 { deviation / throughput } else { 0.0 }),
            ("first_third", mean(&mut counted.iter().take(third).map(|window| window.operations))),
            ("last_third", mean(&mut counted.iter().rev().take(third).map(|window| window.operations))),
            ("runs_mean", mean(&mut counted.iter().map(|window| window.gauge))),
            ("runs_max", float(counted.iter().map(|window| window.gauge).max().unwrap_or(0))),
            ("queued", float(load.queued_at_end)),
            ("wa", trial.stats.write_amplification),
            // What of the disk's bandwidth is new data.
            ("bandwidth_share", load.ops_per_s * float(job.workload.record_bytes()) / float(job.bandwidth)),
            // The size of L1 at the end, by the one that it should have, where that is given.
            ("level1_fill", crate::num::ratio(level1, job.options.keyspace.level1_bytes)),
            // Flushes during one merge into a level.
            ("flushes_beside_l3", mean_beside(3)),
            ("flushes_beside_l4", mean_beside(4)),
            ("flushes_beside_l5", mean_beside(5)),
            ("most_flushes_beside_l1", float(beside(1).most)),
            ("most_flushes_beside_l2", float(beside(2).most)),
            // Data pages that a query looks into.
            ("point_pages", trial.query_pages.point),
            ("short_pages", trial.query_pages.short),
            ("long_pages", trial.query_pages.long),
        ]))
    }
}

/// A run with all that it follows from; equal jobs have equal results and are done once.
#[derive(Clone, Debug)]
struct Job {
    options: Options,
    workload: Workload,
    law: KeyLaw,
    /// What flushes and merges may write a second, without what tables have too much at this scale.
    bandwidth: u64,
    scale: u64,
    load: Load,
    queries: bool,
}

/// What a write of the original costs its client, besides what it makes the disk do, which is far more. At a scale a write stands for so many.
const WRITE_NS: u64 = 200;

impl Job {
    fn new(setup: &Setup, scale: u64, seed: u64, arrivals: Arrivals) -> anyhow::Result<Job> {
        let Sizes { records, value_bytes, bandwidth_bytes_per_s, run_ns, warm_up_ns, window_ns } = setup.sizes()?;
        Ok(Job {
            options: setup.store_options(scale)?,
            workload: Workload {
                seed,
                records: (records / scale).max(1000),
                key_bytes: 16,
                value_bytes,
                phases: Vec::new(),
            },
            law: match setup.zipf {
                Some(theta) if theta > 0.0 => KeyLaw::Zipf { theta },
                _ => KeyLaw::Uniform,
            },
            bandwidth: (bandwidth_bytes_per_s / scale).max(1),
            scale,
            load: Load { arrivals, run_ns, warm_up_ns, window_ns, seed },
            queries: false,
        })
    }

    /// What loads its store: the loads of luo19's schedulers lead to the same tree nearly, so one is enough for all.
    fn load_options(&self) -> Options {
        let shared = matches!(self.options.scheduler, Scheduler::Single | Scheduler::Fair | Scheduler::Greedy(_));
        let scheduler = if shared { Scheduler::Fair } else { self.options.scheduler };
        Options { scheduler, ..self.options.clone() }
    }

    /// Jobs with equal keys begin with the same loaded store.
    fn load_key(&self) -> String {
        format!("{:?} {:?} {}", self.load_options(), self.workload, self.bandwidth)
    }

    /// About how long its run takes, in the time that a write takes in a small tree. What a merge begins and ends with grows with the
    /// files of the tree, and smaller files make more merges.
    fn work(&self) -> u64 {
        let record_bytes = self.workload.record_bytes();
        let writes = self.bandwidth / record_bytes.max(1) * (self.load.run_ns / 1_000_000_000);
        let file_bytes = self.options.keyspace.file_bytes.max(1);
        let files = self.workload.records * record_bytes / file_bytes;
        writes + writes * record_bytes / file_bytes * files / 400
    }

    fn trial<'a>(&'a self, options: &'a Options) -> Trial<'a> {
        Trial { options, workload: &self.workload, law: self.law, load: &self.load, queries: self.queries }
    }

    fn load(&self, go_on: &dyn Fn() -> bool) -> anyhow::Result<SimWorld> {
        let bandwidth_bytes_per_s = with_excess(self.bandwidth, self.options.keyspace.file_bytes, self.scale);
        let device = Device { bandwidth_bytes_per_s, background_writes_only: true, ..Device::default() };
        let world = SimWorld::new(device, WRITE_NS * self.scale, self.workload.seed);
        self.trial(&self.load_options()).load(&world, &mut |_, _| go_on())?;
        Ok(world)
    }

    fn run(&self, loaded: &SimWorld, go_on: &dyn Fn() -> bool) -> anyhow::Result<Made> {
        let result = self.trial(&self.options).run_loaded(&loaded.fork(), &mut |_, _| go_on())?;
        let measures = Measures::of(self, &result);
        Ok((result.load, measures))
    }
}

/// A run of an experiment at a value of its sweep.
struct Place<'a> {
    experiment: &'a Experiment,
    run: &'a RunSpec,
    point: usize,
    setup: Setup,
}

fn places(experiments: &[Experiment]) -> anyhow::Result<Vec<Place<'_>>> {
    let mut places = Vec::new();
    for experiment in experiments {
        let points = experiment.sweep.as_ref().map_or(1, |sweep| sweep.values.len());
        for point in 0..points {
            for run in &experiment.runs {
                let mut setup = run.setup.over(&experiment.setup);
                let time = experiment.sweep.as_ref().and_then(|sweep| sweep.run.get(point).copied());
                setup.run = time.or(setup.run);
                if let Some(sweep) = experiment.sweep.as_ref().filter(|sweep| sweep.option != "utilization") {
                    setting::set(&mut setup.options, &sweep.option, sweep.values[point].clone())
                        .map_err(anyhow::Error::msg)
                        .with_context(|| format!("{}, sweep", experiment.id))?;
                }
                places.push(Place { experiment, run, point, setup });
            }
        }
    }
    Ok(places)
}

/// Makes all runs of `experiments` at a `scale`th of the original's sizes. `progress` is told how many of how many are done, now and then,
/// and ends everything early by answering false: what was not made is left out.
///
/// # Errors
/// The first error of a store, with the run's name.
pub fn run_all(
    experiments: &[Experiment],
    scale: u64,
    seed: u64,
    progress: &(dyn Fn(usize, usize) -> bool + Sync),
) -> anyhow::Result<Vec<RunResult>> {
    let places = places(experiments)?;
    let queue = Queue::new(&places, scale, seed)?;
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(places.len().max(1));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| queue.work(progress))).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    let made = places.iter().zip(queue.into_results()).filter_map(|(place, result)| {
        let (load, measures) = result?;
        Some(RunResult {
            experiment: place.experiment.id.clone(),
            name: place.run.name.clone(),
            point: place.point,
            is_partial: load.is_partial,
            measures,
        })
    });
    Ok(made.collect())
}

impl Place<'_> {
    fn name(&self) -> String {
        format!("{}, run {}", self.experiment.id, self.run.name)
    }

    /// The place among `places` of the run that it takes its rates from.
    fn source(&self, places: &[Place<'_>]) -> Option<usize> {
        let of = self.run.of.as_ref()?;
        places.iter().position(|other| {
            other.experiment.id == self.experiment.id && other.point == self.point && other.run.name == *of
        })
    }

    /// What is to be done. A run that takes its rates from another one needs what that `measured`.
    fn job(&self, scale: u64, seed: u64, measured: Option<&LoadResult>) -> anyhow::Result<Job> {
        let whole = measured.map(|load| Rate::over(load.operations, floor(load.elapsed_s * 1e9).max(1)));
        let share = |whole: Rate, of: f64| whole.times(floor((of * 1e4).round()), 10_000);
        let arrivals = whole.map_or(Arrivals::Closed, |whole| self.arrivals(&|of| share(whole, of)));
        let mut job = Job::new(&self.setup, scale, seed, arrivals).with_context(|| self.name())?;
        job.queries = self.run.queries;
        if let Some((whole, limit)) = whole.zip(self.run.limit) {
            let rate_bytes_per_s = floor(share(whole, limit).as_f64() * float(job.workload.record_bytes())).max(1);
            job.options.keyspace.write_control = WriteControl::Limit(Limit { rate_bytes_per_s });
        }
        Ok(job)
    }

    /// When the writes of an open loop are due; `share` gives a share of the other run's rate.
    fn arrivals(&self, share: &dyn Fn(f64) -> Rate) -> Arrivals {
        let swept = self.experiment.sweep.as_ref().filter(|sweep| sweep.option == "utilization");
        let utilization = swept.and_then(|sweep| sweep.values[self.point].as_float()).or(self.run.utilization);
        let stretch = |burst: &super::spec::Burst| Stretch {
            rate: share(burst.utilization),
            ns: u64::try_from(burst.time.as_nanos()).unwrap_or(u64::MAX),
        };
        match utilization {
            Some(utilization) => Arrivals::steady(share(utilization), Spacing::Constant),
            None => {
                Arrivals::Open { stretches: self.run.bursts.iter().map(stretch).collect(), spacing: Spacing::Constant }
            }
        }
    }
}

/// What a run measured.
type Made = (LoadResult, Measures);

#[cfg(test)]
mod tests {
    use super::super::{Verdict, judge};
    use super::*;

    const SMALL: &str = r#"
        id = "X"
        title = "small"
        source = "nowhere"
        [setup]
        records = 2000
        value_bytes = 200
        bandwidth_bytes_per_s = 50_000
        run = "10m"
        warm_up = "1m"
        window = "10s"
        [setup.options]
        compaction_threads = 1
        write_memory_bytes = 65_536
        [setup.options.keyspace]
        strategy = "tiering"
        memtable_bytes = 32_768
        file_bytes = 32_768
        [sweep]
        option = "keyspace.size_ratio"
        values = [2, 4]
        [[run]]
        name = "closed"
        load = "closed"
        [[run]]
        name = "same"
        load = "closed"
        [[run]]
        name = "half"
        load = "open"
        of = "closed"
        utilization = 0.5
        [[run]]
        name = "bursts"
        load = "open"
        of = "closed"
        bursts = [{ utilization = 0.2, for = "1m" }, { utilization = 0.8, for = "1m" }]
        [[claim]]
        id = "X.a"
        says = "half of what it can do is half"
        paper = "0.5"
        left = "half.w"
        over = "closed.w"
        at_least = 0.49
        at_most = 0.51
        [[claim]]
        id = "X.b"
        says = "tiering does more with a larger size ratio"
        paper = "rising"
        left = "closed.w"
        trend = "rising"
        [[claim]]
        id = "X.c"
        says = "bursts waver"
        paper = "60 % about a mean of 50 %"
        left = "bursts.cv"
        over = "half.cv"
        at_least = 5.0
    "#;

    #[test]
    fn runs_are_made_once_each_and_come_out_the_same() {
        let experiment = Experiment::parse(SMALL, &Setup::default()).unwrap();
        let experiments = [experiment];
        let run = || run_all(&experiments, 1, 7, &|_, total| total == 8).unwrap();
        let results = run();
        assert_eq!(results.len(), 8, "four runs at two values");
        let measures = |name: &str, point: usize| {
            results
                .iter()
                .find(|result| result.name == name && result.point == point)
                .map(|result| result.measures.clone())
        };
        assert_eq!(measures("closed", 1), measures("same", 1));
        assert_ne!(measures("closed", 0), measures("closed", 1));
        let findings = judge(&experiments[0], &results);
        assert!(findings.iter().all(|finding| finding.verdict == Verdict::Holds), "{findings:?}");
        let text = |results: &[RunResult]| serde_json::to_string(results).unwrap();
        assert_eq!(text(&results), text(&run()), "bit for bit");
        let early = run_all(&experiments, 1, 7, &|done, _| done < 2).unwrap();
        let findings = judge(&experiments[0], &early);
        assert!(early.len() < 8 && findings.iter().any(|finding| finding.verdict == Verdict::NotRun), "{findings:?}");
    }

    #[test]
    fn a_value_of_a_sweep_may_have_a_time_of_its_own() {
        let text = SMALL.replace("values = [2, 4]", "values = [2, 4]\nrun = [\"3m\", \"5m\"]");
        let experiments = [Experiment::parse(&text, &Setup::default()).unwrap()];
        let minutes: Vec<_> = places(&experiments)
            .unwrap()
            .iter()
            .map(|place| place.job(1, 7, None).unwrap().load.run_ns / 60_000_000_000)
            .collect();
        assert_eq!(minutes, [3, 3, 3, 3, 5, 5, 5, 5]);
    }

    /// What the driver measures is a write here; claims are about one of the original.
    #[test]
    fn a_write_of_a_closed_loop_takes_the_same_at_every_scale() {
        let experiments = [Experiment::parse(SMALL, &Setup::default()).unwrap()];
        let p50 = |scale| run_all(&experiments, scale, 7, &|_, _| true).unwrap()[0].measures.get("p50").unwrap();
        let (whole, half) = (p50(1), p50(2));
        assert!((whole / half - 1.0).abs() < 0.01, "{whole} {half}");
    }
}

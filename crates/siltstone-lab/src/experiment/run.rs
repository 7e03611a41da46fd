//! Makes the runs of experiments in virtual time, several at once: each is a world of its own and the same wherever it runs.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use anyhow::Context;
use serde::Serialize;
use siltstone::Options;
use siltstone::io::sim::Device;
use siltstone::schedule::write_control::Limit;
use siltstone::schedule::{Scheduler, WriteControl};

use super::spec::{Experiment, LoadKind, RunSpec, Setup, Sizes};
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
            ("p50", seconds(load.latency.p50_ns)),
            ("p99", seconds(load.latency.p99_ns)),
            ("p999", seconds(load.latency.p999_ns)),
            ("max", seconds(load.latency.max_ns)),
            ("processing_p99", seconds(load.processing.p99_ns)),
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
    bandwidth: u64,
    load: Load,
    queries: bool,
}

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

    fn trial<'a>(&'a self, options: &'a Options) -> Trial<'a> {
        Trial { options, workload: &self.workload, law: self.law, load: &self.load, queries: self.queries }
    }

    fn load(&self, go_on: &dyn Fn() -> bool) -> anyhow::Result<SimWorld> {
        let device =
            Device { bandwidth_bytes_per_s: self.bandwidth, background_writes_only: true, ..Device::default() };
        let world = SimWorld::new(device, SimWorld::OPERATION_NS, self.workload.seed);
        self.trial(&self.load_options()).load(&world, &mut |_, _| go_on())?;
        Ok(world)
    }

    fn run(&self, loaded: &SimWorld, go_on: &dyn Fn() -> bool) -> anyhow::Result<(LoadResult, Measures)> {
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
    let total = places.len();
    let mut results: Vec<Option<(LoadResult, Measures)>> = vec![None; total];
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    // Open loops take their rates from closed ones.
    for kind in [LoadKind::Closed, LoadKind::Open] {
        let mut jobs: Vec<(usize, Job)> = Vec::new();
        let mut same: Vec<(usize, usize)> = Vec::new();
        for (at, place) in places.iter().enumerate().filter(|(_, place)| place.run.load == kind) {
            let Some((arrivals, limit)) = arrivals(place, &places, &results) else { continue };
            let mut job = Job::new(&place.setup, scale, seed, arrivals).with_context(|| place.name())?;
            job.queries = place.run.queries;
            if let Some(limit) = limit {
                let rate_bytes_per_s = floor(limit.as_f64() * float(job.workload.record_bytes())).max(1);
                job.options.keyspace.write_control = WriteControl::Limit(Limit { rate_bytes_per_s });
            }
            let first = *known.entry(format!("{job:?}")).or_insert(at);
            if first == at {
                jobs.push((at, job));
            } else {
                same.push((at, first));
            }
        }
        let done_before = results.iter().flatten().count();
        for (at, result) in run_jobs(&jobs, &|done| progress(done_before + done, total))? {
            results[at] = Some(result);
        }
        for (at, first) in same {
            results[at] = results[first].clone();
        }
    }
    let made = places.iter().zip(results).filter_map(|(place, result)| {
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
}

/// When the writes of a run are due, and how many a second the store may take; none if the run that it depends on was not made.
fn arrivals(
    place: &Place<'_>,
    places: &[Place<'_>],
    results: &[Option<(LoadResult, Measures)>],
) -> Option<(Arrivals, Option<Rate>)> {
    let Some(of) = &place.run.of else { return Some((Arrivals::Closed, None)) };
    let same = |other: &Place<'_>| {
        other.experiment.id == place.experiment.id && other.point == place.point && other.run.name == *of
    };
    let (measured, _) = results[places.iter().position(same)?].as_ref()?;
    if measured.is_partial {
        return None;
    }
    let share = |of: f64| {
        let whole = Rate::over(measured.operations, floor(measured.elapsed_s * 1e9).max(1));
        whole.times(floor((of * 1e4).round()), 10_000)
    };
    let swept = place.experiment.sweep.as_ref().filter(|sweep| sweep.option == "utilization");
    let utilization = swept.and_then(|sweep| sweep.values[place.point].as_float()).or(place.run.utilization);
    let arrivals = match utilization {
        Some(utilization) => Arrivals::steady(share(utilization), Spacing::Constant),
        None => {
            let stretch = |burst: &super::spec::Burst| Stretch {
                rate: share(burst.utilization),
                ns: u64::try_from(burst.time.as_nanos()).unwrap_or(u64::MAX),
            };
            Arrivals::Open { stretches: place.run.bursts.iter().map(stretch).collect(), spacing: Spacing::Constant }
        }
    };
    Some((arrivals, place.run.limit.map(share)))
}

/// What a thread of [`run_jobs`] has done: which job, and what it measured.
type Done = (usize, (LoadResult, Measures));

/// Jobs that nobody has taken yet, and the loaded stores that some of them begin with.
struct Queue<'a> {
    state: Mutex<QueueState<'a>>,
    changed: Condvar,
}

struct QueueState<'a> {
    /// With their load keys, in the order of these, so that few stores are kept at once.
    left: VecDeque<(String, usize, &'a Job)>,
    /// None while a thread loads it.
    stores: BTreeMap<String, Option<Arc<SimWorld>>>,
}

impl<'a> Queue<'a> {
    fn new(jobs: &'a [(usize, Job)]) -> Queue<'a> {
        let mut left: Vec<_> = jobs.iter().map(|(at, job)| (job.load_key(), *at, job)).collect();
        left.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        let state = Mutex::new(QueueState { left: left.into(), stores: BTreeMap::new() });
        Queue { state, changed: Condvar::new() }
    }

    /// The next job, with its store if that is loaded; otherwise whoever takes it loads it. Jobs whose store another thread loads wait.
    fn take(&self) -> Option<(String, usize, &'a Job, Option<Arc<SimWorld>>)> {
        let mut state = self.state.lock().expect("no holder panics");
        loop {
            let QueueState { left, stores } = &mut *state;
            let at = left.iter().position(|(key, ..)| stores.get(key).is_none_or(Option::is_some));
            let Some(at) = at else {
                if left.is_empty() {
                    return None;
                }
                state = self.changed.wait(state).expect("no holder panics");
                continue;
            };
            let (key, place, job) = left.remove(at)?;
            let store = stores.entry(key.clone()).or_insert(None).clone();
            if store.is_some() && !left.iter().any(|(other, ..)| *other == key) {
                stores.remove(&key);
            }
            return Some((key, place, job, store));
        }
    }

    /// The store of `key` is there, or could not be loaded.
    fn loaded(&self, key: &str, store: Option<&Arc<SimWorld>>) {
        let mut state = self.state.lock().expect("no holder panics");
        let QueueState { left, stores } = &mut *state;
        match store.filter(|_| left.iter().any(|(other, ..)| other == key)) {
            Some(store) => stores.insert(key.to_owned(), Some(Arc::clone(store))),
            None => stores.remove(key),
        };
        drop(state);
        self.changed.notify_all();
    }
}

/// A thread loads a store; at the end, whatever that is, the others hear of it.
struct Loading<'q, 'a> {
    queue: &'q Queue<'a>,
    key: &'q str,
    store: Option<Arc<SimWorld>>,
}

impl Drop for Loading<'_, '_> {
    fn drop(&mut self) {
        self.queue.loaded(self.key, self.store.as_ref());
    }
}

/// Does the jobs, as many at once as there are processors.
fn run_jobs(jobs: &[(usize, Job)], progress: &(dyn Fn(usize) -> bool + Sync)) -> anyhow::Result<Vec<Done>> {
    let done = AtomicUsize::new(0);
    let queue = Queue::new(jobs);
    let results: Mutex<Vec<Done>> = Mutex::default();
    let work = || -> anyhow::Result<()> {
        let go_on = || progress(done.load(Ordering::Relaxed));
        while let Some((key, at, job, store)) = queue.take() {
            let store = match store {
                Some(store) => store,
                None => {
                    let mut loading = Loading { queue: &queue, key: &key, store: None };
                    if !go_on() {
                        break;
                    }
                    Arc::clone(loading.store.insert(Arc::new(job.load(&go_on)?)))
                }
            };
            if !go_on() {
                break;
            }
            let result = job.run(&store, &go_on)?;
            done.fetch_add(1, Ordering::Relaxed);
            results.lock().expect("no holder panics").push((at, result));
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(jobs.len().max(1));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    Ok(results.into_inner().expect("no holder panics"))
}

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
}

//! One store, from its first operation to the fingerprint of what is in it.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use serde::Serialize;
use siltstone::{Db, EventListener, Keyspace, Options};

use super::drive::{Drive, Driven, Moment, Worker};
use super::gauge::Gauge;
use super::merges::{Fan, MergeTimes};
use super::row::{PhaseRow, Row, keyspaces};
use super::stage::{Operations, Stage};
use super::tally::{Tally, Window};
use super::totals::Totals;
use crate::load::{Rate, World};
use crate::metrics::cpu_seconds;
use crate::num::{float, per_second};
use crate::recorder::TreeRecorder;

/// Where a trial is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The phase, or `settle`, or `scan`.
    pub phase: &'a str,
    /// The share of the trial that is over, about, from 0 to 1.
    pub share: f64,
    /// Operations of the phase so far.
    pub operations: u64,
}

/// What is tried, and where.
pub(crate) struct Trial<'a> {
    pub(crate) world: &'a dyn World,
    pub(crate) is_sim: bool,
    pub(crate) options: &'a Options,
    /// Keyspaces by the numbers that operations have for them; one without a name is the default one.
    pub(crate) keyspaces: &'a [&'a str],
    pub(crate) stages: &'a [Stage],
    /// Whether values tell to which key they belong, so that each one that is read is checked.
    pub(crate) is_checked: bool,
    pub(crate) seed: u64,
    /// Writes down what happens to the tree.
    pub(crate) recorder: Option<Arc<TreeRecorder>>,
    /// Answers false to end the trial.
    pub(crate) watch: &'a dyn Fn(Progress<'_>) -> bool,
}

/// A line of `windows.jsonl`.
#[derive(Serialize)]
struct WindowLine<'a> {
    at_s: f64,
    length_s: f64,
    phase: &'a str,
    operations: BTreeMap<&'static str, u64>,
    longest_ns: BTreeMap<&'static str, u64>,
    queued: u64,
    runs: u64,
    debt_bytes: u64,
    tree_bytes: u64,
    cache_hits: u64,
    cache_misses: u64,
    stall_s: f64,
    cpu_s: Option<f64>,
    memory_bytes: Option<u64>,
}

/// How much of a trial settling and the last scan are, against its operations.
const END_SHARE: f64 = 0.05;

impl Trial<'_> {
    /// Runs it. `operations` makes the stream of a client; `windows` gets its lines; `look` sees what became of each phase. The row lacks what the trial does not know: the
    /// names of workload and strategy, repetition, versions.
    ///
    /// # Errors
    /// The first error of the store or of a stream; `Cancelled` if told so.
    pub(crate) fn run<'o>(
        &self,
        operations: &mut dyn FnMut(u32) -> anyhow::Result<Box<dyn Operations + 'o>>,
        windows: &mut dyn Write,
        look: &mut dyn FnMut(&Stage, &Tally),
    ) -> anyhow::Result<Row> {
        let begin_ns = self.world.now_ns();
        let times = Arc::new(MergeTimes::default());
        let mut listeners = vec![Arc::clone(&times) as Arc<dyn EventListener>];
        // The one place where the tree's recorder is attached.
        listeners.extend(self.recorder.iter().map(|recorder| Arc::clone(recorder) as Arc<dyn EventListener>));
        let db = self.world.open(self.options, Some(Arc::new(Fan(listeners))))?;
        let by_number = self.make_keyspaces(&db)?;
        let clients = self.stages.iter().map(Stage::clients).max().unwrap_or(1);
        let workers =
            (0..u32::try_from(clients)?).map(|n| Ok(Worker::new(operations(n)?, &db, &by_number, self.is_checked)));
        let mut run = Run {
            trial: self,
            workers: workers.collect::<anyhow::Result<_>>()?,
            times,
            row: Row::default(),
            counted: Totals::default(),
            cpu_s: 0.0,
            memory_bytes: 0,
            begin_ns,
            measured: BTreeMap::new(),
            windows,
            db,
        };
        for (n, stage) in self.stages.iter().enumerate() {
            if n > 0 {
                run.workers.iter_mut().for_each(|worker| worker.operations.next_phase());
            }
            run.stage(n, stage, look)?;
        }
        run.end()
    }

    fn make_keyspaces(&self, db: &Db) -> siltstone::Result<Vec<Keyspace>> {
        let name = |keyspace: &Keyspace| {
            self.recorder.iter().for_each(|recorder| recorder.name(keyspace.id(), keyspace.name()));
        };
        name(&db.default_keyspace());
        let make = |given: &&str| {
            let keyspace = match *given {
                "" | "default" => db.default_keyspace(),
                given => db.create_keyspace(given, self.options.keyspace.clone())?,
            };
            name(&keyspace);
            Ok(keyspace)
        };
        self.keyspaces.iter().map(make).collect()
    }

    /// The share of a trial that is over when `share` of stage `n` is.
    fn share(&self, n: usize, share: f64) -> f64 {
        // A phase that only time ends has no size: it is taken for an average one.
        let sizes: Vec<f64> = self.stages.iter().filter_map(|stage| Some(float(stage.operations?).max(1.0))).collect();
        let average =
            if sizes.is_empty() { 1.0 } else { sizes.iter().sum::<f64>() / float(crate::num::count(sizes.len())) };
        let size = |stage: &Stage| stage.operations.map_or(average, |operations| float(operations).max(1.0));
        let all: f64 = self.stages.iter().map(size).sum();
        let before: f64 = self.stages[..n].iter().map(size).sum();
        let now = self.stages.get(n).map_or(0.0, |stage| size(stage) * share);
        (1.0 - END_SHARE) * (before + now) / all
    }
}

/// A trial that has begun.
struct Run<'a, 'o> {
    trial: &'a Trial<'a>,
    db: Db,
    workers: Vec<Worker<'o>>,
    times: Arc<MergeTimes>,
    row: Row,
    counted: Totals,
    cpu_s: f64,
    memory_bytes: u64,
    begin_ns: u64,
    /// What phases did, by their names.
    measured: BTreeMap<String, Rate>,
    windows: &'a mut dyn Write,
}

impl Run<'_, '_> {
    fn stage(&mut self, n: usize, stage: &Stage, look: &mut dyn FnMut(&Stage, &Tally)) -> anyhow::Result<()> {
        let trial = self.trial;
        self.times.count(!stage.is_warm_up);
        let before = Totals::now(&self.db);
        let (start_ns, start_cpu_s) = (trial.world.now_ns(), cpu_seconds());
        let watch = |moment: Moment| {
            let share = trial.share(n, moment.share);
            (trial.watch)(Progress { phase: &stage.name, share, operations: moment.operations })
        };
        anyhow::ensure!(watch(Moment { share: 0.0, operations: 0 }), super::stopped());
        let Trial { world, is_sim, seed, .. } = *trial;
        let measured = &self.measured;
        let drive = Drive { world, is_sim, db: &self.db, stage, seed, measured, watch: &watch };
        let Driven { own, beside, gauges, elapsed_ns } = drive.run(&mut self.workers)?;
        look(stage, &own);
        let (operations, elapsed_s) = (own.operations(), seconds(elapsed_ns));
        let phase = PhaseRow {
            name: stage.name.clone(),
            elapsed_s,
            operations,
            ops_per_s: per_second(operations, elapsed_s),
            kinds: own.kinds(),
            beside: beside.kinds(),
        };
        self.measured.insert(stage.name.clone(), Rate::over(operations, elapsed_ns.max(1)));
        let mut all = own;
        all.merge(beside);
        let (mut windows, mut gauges) = (all.into_windows(), gauges.into_series());
        windows.coarsen(gauges.length_ns());
        gauges.coarsen(windows.length_ns());
        let length_ns = windows.length_ns();
        let (windows, gauges) = (windows.into_cells(), gauges.into_cells());
        self.write_windows(&stage.name, start_ns, elapsed_ns, length_ns, &windows, &gauges)?;
        self.memory_bytes = gauges.iter().map(|gauge| gauge.most_memory_bytes).fold(self.memory_bytes, u64::max);
        let settled_ns = if stage.settle_after { self.settle(n)? } else { 0 };
        if !stage.is_warm_up {
            self.counted += Totals::now(&self.db) - before;
            self.cpu_s += cpu_seconds() - start_cpu_s;
            self.row.settle_s += seconds(settled_ns);
            self.row.elapsed_s += elapsed_s;
            self.row.operations += operations;
            self.row.phases.push(phase);
        }
        Ok(())
    }

    /// Waits until nothing is left to flush or merge; returns how long that took.
    fn settle(&self, n: usize) -> anyhow::Result<u64> {
        let share = self.trial.share(n, 1.0);
        anyhow::ensure!((self.trial.watch)(Progress { phase: "settle", share, operations: 0 }), super::stopped());
        let start_ns = self.trial.world.now_ns();
        self.db.flush()?;
        self.db.wait_idle()?;
        Ok(self.trial.world.now_ns() - start_ns)
    }

    fn write_windows(
        &mut self,
        phase: &str,
        start_ns: u64,
        elapsed_ns: u64,
        length_ns: u64,
        windows: &[Window],
        gauges: &[Gauge],
    ) -> anyhow::Result<()> {
        let (nothing, mut gauge) = (Window::default(), Gauge::default());
        let is_sim = self.trial.is_sim;
        for n in 0..windows.len().max(gauges.len()) {
            let at_ns = crate::num::count(n) * length_ns;
            // What ended exactly at the end makes no window of its own.
            let window = windows.get(n).unwrap_or(&nothing);
            // A window that nobody sampled looks like the one before, in which nothing was counted.
            gauge = gauges.get(n).copied().unwrap_or(Gauge {
                cache_hits: 0,
                cache_misses: 0,
                stall_ns: 0,
                cpu_s: 0.0,
                ..gauge
            });
            let line = WindowLine {
                at_s: seconds(start_ns - self.begin_ns + at_ns),
                length_s: seconds(length_ns.min(elapsed_ns.saturating_sub(at_ns))),
                phase,
                operations: window.operations(),
                longest_ns: window.longest_ns(),
                queued: gauge.queued,
                runs: gauge.runs,
                debt_bytes: gauge.debt_bytes,
                tree_bytes: gauge.tree_bytes,
                cache_hits: gauge.cache_hits,
                cache_misses: gauge.cache_misses,
                stall_s: seconds(gauge.stall_ns),
                cpu_s: (!is_sim).then_some(gauge.cpu_s),
                memory_bytes: (!is_sim).then_some(gauge.memory_bytes),
            };
            serde_json::to_writer(&mut *self.windows, &line)?;
            self.windows.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Waits for the debt that the last phase left, and takes the figures of what is there.
    fn end(mut self) -> anyhow::Result<Row> {
        let last = self.trial.stages.last().is_some_and(|stage| !stage.is_warm_up);
        self.times.count(last);
        let (before, start_cpu_s) = (Totals::now(&self.db), cpu_seconds());
        self.workers.clear();
        let settled_ns = self.settle(self.trial.stages.len())?;
        if last {
            self.counted += Totals::now(&self.db) - before;
            self.cpu_s += cpu_seconds() - start_cpu_s;
            self.row.settle_s += seconds(settled_ns);
        }
        let Run { db, mut row, counted, times, trial, cpu_s, memory_bytes, .. } = self;
        row.format = super::FORMAT;
        row.seed = trial.seed;
        row.ops_per_s = per_second(row.operations, row.elapsed_s);
        row.count(&counted);
        (row.compaction_latency, row.compaction_cpu_s, row.compaction_io_s) = times.seen();
        row.cpu_s = (!trial.is_sim).then_some(cpu_s);
        row.memory_bytes = (!trial.is_sim).then_some(memory_bytes);
        let all = keyspaces(&db)?;
        let raw_bytes = row.draw(&all);
        let go_on = || (trial.watch)(Progress { phase: "scan", share: 1.0 - END_SHARE / 2.0, operations: 0 });
        let start_ns = trial.world.now_ns();
        row.scan(&all, raw_bytes, &go_on)?;
        row.scan_s = seconds(trial.world.now_ns() - start_ns);
        drop(all);
        db.close()?;
        if let Some(recorder) = &trial.recorder {
            recorder.finish()?;
        }
        Ok(row)
    }
}

fn seconds(ns: u64) -> f64 {
    float(ns) / 1e9
}

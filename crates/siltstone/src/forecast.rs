//! The dry run: what compaction would do to a tree until nothing is due, worked out on metadata alone.
//!
//! The same [planner](mod@crate::compaction::planner) that drives the store is asked again and again; a job "runs" by replacing the files that
//! it takes by files of estimated size and key range. Several jobs run at once, as many as there are lanes, all at the same speed, so
//! that what exists at one moment can be added up. No file is read, no time passes, nothing is random: equal views give equal forecasts.
//!
//! # What is estimated, and how wrong that can be
//!
//! Everything rests on the size of a merge's output. It is the size of its inputs without the versions that hide each other and the
//! tombstones that hide nothing. How many keys two files share cannot be seen in their metadata, so it is inferred ([`estimate`]):
//! sequence numbers tell how many writes a run has taken in, its entries how many different keys these were, and the two
//! together how large the set of keys is from which the writes were drawn, if each is drawn alike. Sources of error, the largest first:
//!
//! - writes that favour some keys: more versions hide each other in the hot part than is assumed, fewer elsewhere;
//! - keys that are not spread evenly between the borders of a file;
//! - parts of inputs that a merge links instead of copying them ([`crate::compaction::Stitch`]), where they lie within the borders of other
//!   files; and what stays dead of their tables: the files of a dry run are all their tables;
//! - compression that differs by level, and records that differ in size;
//! - several snapshots: they are taken for one, the oldest;
//! - ties between files decided otherwise because a size is a little off.
//!
//! Writes that come later are not in it, nor is what is in memtables.

use std::sync::Arc;

use bytes::Bytes;

use self::estimate::Estimate;
use crate::compaction::oldest::Loss;
use crate::compaction::{Action, CompactionPolicy, LsmView, Plan, PlanInput, Release, plan};
use crate::error::Result;
use crate::version::{FileMeta, LevelId, RunOrder, Version, VersionEdit};

mod estimate;

/// A dry run gives up after as many jobs.
pub const MAX_JOBS: u64 = 20_000;

/// What compaction would do until nothing is due.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// Merges, those that run already included.
    pub merges: u64,
    /// Files that change their level without being rewritten.
    pub moved_files: u64,
    /// Files of dead tombstones that go away.
    pub dropped_files: u64,
    /// What goes away with data in it: the oldest of a keyspace that may lose it.
    pub lost: Loss,
    /// Bytes that merges read. Those that run already count as a whole.
    pub read_bytes: u64,
    /// Bytes that merges write.
    pub write_bytes: u64,
    /// Bytes that the merges of one lane read, waits for others included, until the last one ends: a duration in the unit of one lane's
    /// speed.
    pub lane_bytes: u64,
    /// The most bytes that exist at once beyond those at the start.
    pub peak_extra_bytes: u64,
    /// Whether nothing is due at the end; otherwise [`MAX_JOBS`] were not enough.
    pub settled: bool,
    /// The tree at the end. File numbers above those of the start are made up.
    pub end: Version,
}

impl Forecast {
    /// Jobs of all kinds.
    pub fn jobs(&self) -> u64 {
        self.merges + self.moved_files + self.dropped_files + self.lost.files
    }
}

/// What the planner does not know and a dry run needs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Circumstances {
    /// How many jobs run at once, at least 1.
    pub lanes: usize,
    /// The keyspace's share of the store's sequence numbers, above 0, at most 1: 1 if it is the only one. None if nobody knows; it is
    /// estimated then.
    pub own_writes: Option<f64>,
}

/// What `policy` would do to the tree of `view`. Jobs that run are finished first.
///
/// # Errors
/// `InvalidArgument`, with the law, if the policy returns an illegal plan.
pub fn forecast(policy: &dyn CompactionPolicy, view: &LsmView<'_>, circumstances: Circumstances) -> Result<Forecast> {
    let mut run = DryRun::new(view, circumstances.own_writes);
    for plan in view.running() {
        run.start(plan, false)?;
    }
    let mut jobs = 0;
    loop {
        while run.active.len() < circumstances.lanes.max(1) {
            let running: Vec<Arc<Plan>> = run.active.iter().map(|job| Arc::clone(&job.plan)).collect();
            let now = view.over(&run.version, &running, &run.cursors);
            let Some(plan) = plan(policy, &now)? else { break };
            jobs += 1;
            if jobs > MAX_JOBS {
                return Ok(run.end(false));
            }
            let loses = plan.loses(&now);
            run.start(&Arc::new(plan), loses)?;
        }
        if run.active.is_empty() {
            return Ok(run.end(true));
        }
        run.finish_one()?;
    }
}

/// A tree on its way.
struct DryRun {
    version: Version,
    active: Vec<Active>,
    cursors: Vec<Bytes>,
    estimate: Estimate,
    start_bytes: u64,
    /// Bytes of the tree now, running jobs' outputs not counted.
    live_bytes: u64,
    now_ms: u64,
    forecast: Forecast,
}

/// A merge under way.
struct Active {
    plan: Arc<Plan>,
    input_bytes: u64,
    /// Input bytes still to be read.
    left: u64,
    outputs: Vec<Arc<FileMeta>>,
    /// Bytes of them that it writes.
    output_bytes: u64,
}

impl Active {
    /// Bytes that it takes beside the tree as it was when it began, if outputs grow as inputs are read: what is written, less what is
    /// released. Of a merge with progressive release that is about the output file being written and, of each run, the file that is
    /// half used up.
    fn taken(&self) -> u64 {
        let done = self.input_bytes - self.left;
        let share = u128::from(self.output_bytes) * u128::from(done) / u128::from(self.input_bytes.max(1));
        let written = u64::try_from(share).unwrap_or(self.output_bytes);
        match self.plan.release {
            Release::AtEnd => written,
            Release::Progressive => {
                let largest = |input: &PlanInput| input.files.iter().map(|file| file.bytes).max().unwrap_or(0);
                let held: u64 = self.plan.inputs.iter().map(|input| largest(input) / 2).sum();
                written.min((written.saturating_sub(done) + held).saturating_add(self.plan.cut.file_bytes))
            }
        }
    }
}

impl DryRun {
    fn new(view: &LsmView<'_>, own_writes: Option<f64>) -> DryRun {
        let version = view.version.clone();
        let live_bytes = version.bytes();
        let forecast = Forecast {
            merges: 0,
            moved_files: 0,
            dropped_files: 0,
            lost: Loss::default(),
            read_bytes: 0,
            write_bytes: 0,
            lane_bytes: 0,
            peak_extra_bytes: 0,
            settled: false,
            end: Version::empty(),
        };
        let estimate = Estimate::new(&version, view.oldest_snapshot, view.now_ms, own_writes);
        let cursors = view.cursors.to_vec();
        let (active, start_bytes, now_ms) = (Vec::new(), live_bytes, view.now_ms);
        DryRun { version, active, cursors, estimate, start_bytes, live_bytes, now_ms, forecast }
    }

    /// Begins a merge; does at once what costs nothing.
    fn start(&mut self, plan: &Arc<Plan>, loses: bool) -> Result<()> {
        if let Some((level, cursor)) = &plan.cursor {
            if self.cursors.len() <= level.index() {
                self.cursors.resize(level.index() + 1, Bytes::new());
            }
            self.cursors[level.index()] = cursor.clone();
        }
        let files = crate::num::to_u64(plan.files().count());
        match plan.action {
            Action::Move => {
                self.forecast.moved_files += files;
                self.install(plan, plan.moved(self.now_ms))
            }
            Action::Drop => {
                if loses {
                    self.forecast.lost = self.forecast.lost.plus(Loss::of(plan.files()));
                } else {
                    self.forecast.dropped_files += files;
                }
                self.install(plan, Vec::new())
            }
            Action::Merge => {
                let (outputs, linked) = self.estimate.outputs(plan, &self.version);
                let output_bytes = outputs.iter().map(|file| file.bytes).sum::<u64>().saturating_sub(linked);
                let input_bytes = plan.input_bytes().saturating_sub(linked);
                self.forecast.merges += 1;
                self.forecast.read_bytes += input_bytes;
                self.forecast.write_bytes += output_bytes;
                let plan = Arc::clone(plan);
                self.active.push(Active { plan, input_bytes, left: input_bytes, outputs, output_bytes });
                Ok(())
            }
        }
    }

    /// Lets all merges go on until the first one ends.
    fn finish_one(&mut self) -> Result<()> {
        let least = (0..self.active.len()).min_by_key(|at| self.active[*at].left);
        let Some(at) = least else { return Ok(()) };
        let step = self.active[at].left;
        self.forecast.lane_bytes += step;
        for job in &mut self.active {
            job.left -= step;
        }
        // The inputs count as live until their job ends.
        let taken: u64 = self.active.iter().map(Active::taken).sum();
        let extra = (self.live_bytes + taken).saturating_sub(self.start_bytes);
        self.forecast.peak_extra_bytes = self.forecast.peak_extra_bytes.max(extra);
        let job = self.active.remove(at);
        let place = job.plan.output;
        let added = job.outputs.into_iter().map(|file| (place.level, place.run, file)).collect();
        self.install(&job.plan, added)
    }

    fn install(&mut self, plan: &Plan, added: Vec<(LevelId, RunOrder, Arc<FileMeta>)>) -> Result<()> {
        self.version = self.version.apply(&VersionEdit { removed: plan.removed(), added })?;
        self.live_bytes = self.version.bytes();
        Ok(())
    }

    fn end(self, settled: bool) -> Forecast {
        Forecast { settled, end: self.version, ..self.forecast }
    }
}

#[cfg(test)]
mod tests;

//! From a policy or a user's request to a plan that is checked and as cheap as it can be.
//!
//! What every policy wants stands here once: files that can move instead of being rewritten go first (wei25; HyperLevelDB), and files of
//! tombstones that hide nothing any more are dropped.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::CompactionPolicy;
use super::plan::{
    Action, LawBroken, Place, Plan, PlanInput, Reuse, behind, hides_nothing, only_dead_tombstones, places,
};
use super::record::{DecisionRecord, Reason};
use super::view::LsmView;
use crate::error::{Error, Result};
use crate::version::{FileMeta, Level, LevelId, Run, RunOrder, SstId};

/// What to do next, by the policy; none if nothing is due or all that is due waits for running jobs.
///
/// # Errors
/// `InvalidArgument`, with the law, if the policy returned a plan that breaks one. Presets never do.
pub fn plan(policy: &dyn CompactionPolicy, view: &LsmView<'_>) -> Result<Option<Plan>> {
    next(policy, view).map_err(|broken| refused(policy, &broken))
}

/// The same, for who wants the law itself.
///
/// # Errors
/// The law that the policy's plan breaks, and by what.
pub fn next(policy: &dyn CompactionPolicy, view: &LsmView<'_>) -> std::result::Result<Option<Plan>, LawBroken> {
    let Some(plan) = policy.pick(view) else {
        return Ok(None);
    };
    plan.check(view)?;
    Ok(Some(cheapest(policy, view, plan)))
}

fn refused(policy: &dyn CompactionPolicy, broken: &LawBroken) -> Error {
    Error::invalid(format!("policy {}: {broken}", policy.name()))
}

/// The part of `plan` that costs nothing, if there is one; it is asked for again afterwards, and what remains is due then.
pub(super) fn cheapest(policy: &dyn CompactionPolicy, view: &LsmView<'_>, plan: Plan) -> Plan {
    if plan.action != Action::Merge {
        return plan;
    }
    // Legal by construction; the check stands in case a running job is in the way.
    let legal = |free: &Plan| free.check(view).is_ok();
    let drop = free(&plan, Action::Drop, dropped(view, &plan)).filter(legal);
    let free = drop.or_else(|| free(&plan, Action::Move, moved(policy, view, &plan)).filter(legal));
    free.unwrap_or(plan)
}

fn dropped(view: &LsmView<'_>, plan: &Plan) -> Vec<PlanInput> {
    let dead = |place: Place, file: &FileMeta| only_dead_tombstones(view, place, file, &BTreeSet::new());
    select(&plan.inputs, |input, file| dead(input.place(), file))
}

fn free(plan: &Plan, action: Action, inputs: Vec<PlanInput>) -> Option<Plan> {
    if inputs.is_empty() {
        return None;
    }
    let mut record = plan.record.clone();
    (record.read_bytes, record.write_bytes) = (0, 0);
    let same = inputs == plan.inputs;
    let cursor = plan.cursor.clone().filter(|_| same);
    if !same {
        // The candidates were judged for another choice.
        (record.candidates, record.candidates_total) = (Vec::new(), 0);
    }
    Some(Plan { inputs, action, cursor, record, borders: plan.borders.clone(), ..*plan })
}

fn select(inputs: &[PlanInput], keep: impl Fn(&PlanInput, &FileMeta) -> bool) -> Vec<PlanInput> {
    let selected = inputs.iter().map(|input| PlanInput {
        files: input.files.iter().filter(|file| keep(input, file)).cloned().collect(),
        ..*input
    });
    selected.filter(|input| !input.files.is_empty()).collect()
}

/// The files that can go to the output place as they are, as many bytes as the plan would take from their level at most.
fn moved(policy: &dyn CompactionPolicy, view: &LsmView<'_>, plan: &Plan) -> Vec<PlanInput> {
    let all_or_none = match plan.reuse {
        Reuse::Never => return Vec::new(),
        Reuse::Picked | Reuse::Stitch(_) => true,
        // The rest would become a second run of a tiered level.
        Reuse::MovesFirst => policy.run_limit(view, plan.output.level) > 1,
    };
    let sources = plan.inputs.iter().filter(|input| input.place() < plan.output);
    if all_or_none {
        let all = |input: &PlanInput| {
            let mut way = Way::new(view, plan, input.place());
            input.files.iter().all(|file| way.is_free(file) && plan.fits_guards(file))
        };
        let movable = plan.inputs.iter().all(|input| input.place() < plan.output) && sources.clone().all(all);
        return if movable { plan.inputs.clone() } else { Vec::new() };
    }
    let mut budget: u64 = sources.clone().flat_map(|input| &input.files).map(|file| file.bytes).sum();
    let mut inputs = Vec::new();
    for input in sources {
        let Some(run) = view.level(input.level).run(input.run) else { continue };
        let mut way = Way::new(view, plan, input.place());
        let mut files = Vec::new();
        for file in &run.files {
            if budget == 0 {
                break;
            }
            if way.is_free(file) && plan.fits_guards(file) {
                budget = budget.saturating_sub(file.bytes);
                files.push(Arc::clone(file));
            }
        }
        if !files.is_empty() {
            inputs.push(PlanInput { files, ..*input });
        }
    }
    inputs
}

/// The way from a run to a plan's output place, for files that could go there without being rewritten.
struct Way<'a> {
    view: &'a LsmView<'a>,
    from: Place,
    /// The files on the way, run by run; those that end before the file asked last are gone.
    runs: Vec<&'a [Arc<FileMeta>]>,
    /// What running jobs will put on the way, or take across its end.
    hulls: Vec<(&'a [u8], &'a [u8])>,
    below: &'a Level,
    grandparent_bytes: u64,
}

impl<'a> Way<'a> {
    fn new(view: &'a LsmView<'a>, plan: &Plan, from: Place) -> Way<'a> {
        let to = plan.output;
        let runs = places(view.version).filter(|(place, _)| from < *place && *place <= to);
        let meets = |running: &&Arc<Plan>| {
            let comes = from < running.output && running.output <= to;
            comes || (to <= running.output && running.inputs.iter().any(|input| input.place() < to))
        };
        Way {
            view,
            from,
            runs: runs.map(|(_, run)| &run.files[..]).collect(),
            hulls: view.running().iter().filter(meets).map(|running| running.hull()).collect(),
            below: view.level(to.level.parent()),
            grandparent_bytes: plan.cut.grandparent_bytes,
        }
    }

    /// Whether `file` is idle, nothing on the way overlaps it, it does not overlap too much below, and a merge would not rid it of
    /// tombstones. Files must be asked in key order: then all answers together take one pass over the runs.
    fn is_free(&mut self, file: &FileMeta) -> bool {
        // The oldest run first: it is the largest, and what stands in the way is mostly there. A run that is not looked at now catches up later.
        let clear = self.runs.iter_mut().rev().all(|rest| {
            *rest = behind(rest, &file.smallest);
            rest.first().is_none_or(|other| other.smallest > file.largest)
        });
        clear
            && !self.view.is_busy(file.id)
            && !self.hulls.iter().any(|(first, last)| file.overlaps(first, last))
            && self.fits_below(file)
            && !self.keeps_dead(file)
    }

    fn fits_below(&self, file: &FileMeta) -> bool {
        let below = self.below.runs.iter();
        let overlapped = below.flat_map(|run| run.overlapping(&file.smallest, &file.largest));
        self.grandparent_bytes == 0 || overlapped.map(|file| file.bytes).sum::<u64>() <= self.grandparent_bytes
    }

    fn keeps_dead(&self, file: &FileMeta) -> bool {
        file.tombstones > 0
            && self.view.visible_to_all_snapshots(file)
            && hides_nothing(self.view, self.from, file, &BTreeSet::new())
    }
}

/// A user's wish: everything in a key range goes to the last level, in one run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ManualRequest {
    /// The first key; none for the start.
    pub first: Option<Bytes>,
    /// The last key, inclusive; none for the end.
    pub last: Option<Bytes>,
}

/// The next step of a manual request.
#[derive(Clone, PartialEq, Debug)]
pub enum ManualStep {
    /// Do this, then ask again.
    Run(Box<Plan>),
    /// Running jobs are in the way: ask again when one of them has ended.
    Wait,
    /// The range is as was asked.
    Done,
}

impl ManualRequest {
    fn touched<'a>(&self, run: &'a Run) -> &'a [Arc<FileMeta>] {
        let from = self.first.as_ref().map_or(0, |first| run.files.partition_point(|file| file.largest < *first));
        let rest = &run.files[from..];
        let len = self.last.as_ref().map_or(rest.len(), |last| rest.partition_point(|file| file.smallest <= *last));
        &rest[..len]
    }
}

/// The next step of a manual request: level by level from the top, what the range touches is merged into the next level, until it is all
/// in the deepest level that held data, in one run, without tombstones that could be dropped.
///
/// Level by level costs little more than all at once (the upper levels are small), and a small range stays a small job below L0.
///
/// # Errors
/// `InvalidArgument` if the policy contradicts itself; presets never do.
pub fn plan_manual(policy: &dyn CompactionPolicy, view: &LsmView<'_>, request: &ManualRequest) -> Result<ManualStep> {
    let tiered_l0 = policy.run_limit(view, LevelId(0)) > 1;
    let bottom = view.last_level().max(LevelId(tiered_l0.into()));
    let touched = |level: LevelId| view.level(level).runs.iter().filter(|run| !request.touched(run).is_empty());
    let source = (0..bottom.0).map(LevelId).find(|level| touched(*level).next().is_some());
    let found = match source {
        Some(level) => Some(go_down(policy, view, request, level)),
        None if touched(bottom).nth(1).is_some() => Some(join_runs(view, request, bottom)),
        None => touched(bottom).next().and_then(|run| clean(view, request, bottom, run)),
    };
    let Some((inputs, output)) = found else {
        return Ok(ManualStep::Done);
    };
    let read_bytes = inputs.iter().flat_map(|input| &input.files).map(|file| file.bytes).sum();
    let record = DecisionRecord {
        read_bytes,
        write_bytes: read_bytes,
        ..DecisionRecord::new(Reason::Manual, "manual", 0.0, 0.0)
    };
    let plan = Plan {
        inputs,
        output,
        action: Action::Merge,
        cut: policy.cut(view),
        reuse: Reuse::Picked,
        borders: Vec::new(),
        cursor: None,
        release: policy.release(),
        record,
    };
    let plan = plan.cut_at_guards(view, policy.guards(output.level));
    match plan.check(view) {
        Ok(()) => Ok(ManualStep::Run(Box::new(cheapest(policy, view, plan)))),
        Err(_) if !view.running().is_empty() => Ok(ManualStep::Wait),
        Err(broken) => Err(refused(policy, &broken)),
    }
}

/// What the range touches in a level, and what that meets in older runs of the level, newest run first. A hull that grows downwards is enough:
/// newer files that it meets stay where they are, above.
fn gather(view: &LsmView<'_>, request: &ManualRequest, level: LevelId) -> (Vec<PlanInput>, Option<(Bytes, Bytes)>) {
    let mut hull: Option<(Bytes, Bytes)> = None;
    let mut inputs = Vec::new();
    for run in &view.level(level).runs {
        let touched = request.touched(run);
        let first =
            touched.first().map(|file| &file.smallest).into_iter().chain(hull.as_ref().map(|hull| &hull.0)).min();
        let last = touched.last().map(|file| &file.largest).into_iter().chain(hull.as_ref().map(|hull| &hull.1)).max();
        let (Some(first), Some(last)) = (first, last) else {
            continue;
        };
        let files = run.overlapping(first, last);
        let (mut first, mut last) = (first.clone(), last.clone());
        if let ([head, ..], [.., tail]) = (files, files) {
            first = first.min(head.smallest.clone());
            last = last.max(tail.largest.clone());
            inputs.push(PlanInput { level, run: run.order, files: files.to_vec() });
        }
        hull = Some((first, last));
    }
    (inputs, hull)
}

pub(super) fn go_down(
    policy: &dyn CompactionPolicy,
    view: &LsmView<'_>,
    request: &ManualRequest,
    level: LevelId,
) -> (Vec<PlanInput>, Place) {
    let to = level.parent();
    let (mut inputs, hull) = gather(view, request, level);
    let there = view.newest_run(to);
    let coming = view.running().iter().filter(|plan| plan.output.level == to).map(|plan| plan.output.run).max();
    let own = inputs.iter().map(|input| input.run).max().unwrap_or_default();
    let run = match there.map(|run| run.order).max(coming) {
        Some(newest) if policy.run_limit(view, to) == 1 => newest,
        Some(newest) => own.max(RunOrder(newest.0 + 1)),
        None => own,
    };
    if let (Some(target), Some((first, last))) = (there.filter(|there| there.order == run), hull) {
        let met = target.overlapping(&first, &last);
        if !met.is_empty() {
            inputs.push(PlanInput { level: to, run, files: met.to_vec() });
        }
    }
    (inputs, Place { level: to, run })
}

pub(super) fn join_runs(view: &LsmView<'_>, request: &ManualRequest, level: LevelId) -> (Vec<PlanInput>, Place) {
    let (inputs, _) = gather(view, request, level);
    let run = inputs.last().map(|input| input.run).unwrap_or_default();
    (inputs, Place { level, run })
}

/// The neighbouring files of the only run that hold tombstones which a rewrite would drop.
fn clean(view: &LsmView<'_>, request: &ManualRequest, level: LevelId, run: &Run) -> Option<(Vec<PlanInput>, Place)> {
    let place = Place { level, run: run.order };
    let leaving: BTreeSet<SstId> = BTreeSet::new();
    let dead = |file: &&Arc<FileMeta>| {
        file.tombstones > 0 && view.visible_to_all_snapshots(file) && hides_nothing(view, place, file, &leaving)
    };
    let touched = request.touched(run).iter().skip_while(|file| !dead(file));
    let files: Vec<Arc<FileMeta>> = touched.take_while(dead).cloned().collect();
    (!files.is_empty()).then(|| (vec![PlanInput { level, run: run.order, files }], place))
}

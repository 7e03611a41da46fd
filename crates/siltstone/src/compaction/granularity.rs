//! The third primitive: how much moves at once (sarkar21 section 3.1.3).
//!
//! The functions here turn "this level", "these runs" or "this file" into the complete inputs of a job and its output place: what
//! shares keys with it comes along, so that the laws of [`Plan::check`](super::Plan::check) hold unless a running job is in the way.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;

use super::guards;
use super::layout::Shape;
use super::plan::{Place, PlanInput, places};
pub use super::runs::RunPick;
use super::runs::pick::word_or_table;
use super::view::LsmView;
use crate::num::{to_f64, to_u64};
use crate::version::{FileMeta, LevelId, Run, RunOrder};

/// How much moves at once.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Granularity {
    /// The whole level, with the whole next one if that is leveled (sarkar21's Full).
    Level {},
    /// All files of one guard: the one that makes the rule fire, of several the one that does so most, then the one with the most bytes, then
    /// the left-most. Into the next level without what is there, or merged where it is. With the layout `guarded` only.
    Guard {},
    /// Whole runs of the level, or of the group.
    SortedRuns {
        /// Which. Default `all`.
        #[serde(default, deserialize_with = "word_or_table")]
        pick: RunPick,
    },
    /// The oldest runs of the level, as many as make the rule fire, range by range: each job takes the next range of keys, about `files` full
    /// files and what overlaps them, to the end of the run that grows in the next level, and its inputs are released when it ends
    /// (SifrDB). With the layout `tiering` only.
    RunSlices {
        /// Full files a job, at least 1. Default 4.
        #[serde(default = "four")]
        files: u32,
    },
    /// The oldest files of the tree, with whatever older they hide, as many as must go until the rule is quiet. They are dropped with what is
    /// in them, without a merge: in a keyspace with the option `may_lose_oldest` only ([`oldest`](super::oldest)). Takes the triggers
    /// `total-size` and `data-ttl`, which take no other.
    DropOldest {},
    /// One file, with what it overlaps in the next level.
    File {},
    /// Neighbouring files, the first chosen by the movement; `count` or `bytes` says how many.
    Files {
        /// At most so many files.
        count: Option<u32>,
        /// Files of at most so many bytes together, one at least.
        bytes: Option<u64>,
        /// For movement `max-ratio-window`: the files and what they overlap stay below as many full files together.
        window_files: Option<u32>,
    },
}

const fn four() -> u32 {
    4
}

impl Granularity {
    /// Whether a movement chooses among files.
    pub fn picks_files(&self) -> bool {
        matches!(self, Granularity::File {} | Granularity::Files { .. })
    }
}

/// Inputs and output place of a job that is still to be checked.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The inputs, newest place first.
    pub inputs: Vec<PlanInput>,
    /// The output place.
    pub output: Place,
}

impl Draft {
    /// Every input file.
    pub fn files(&self) -> impl Iterator<Item = &Arc<FileMeta>> {
        self.inputs.iter().flat_map(|input| &input.files)
    }

    fn bytes(&self) -> u64 {
        self.files().map(|file| file.bytes).sum()
    }

    /// Whether what it takes from other levels than `level` comes to at most `ratio` times what it takes from there.
    pub fn meets_at_most(&self, level: LevelId, ratio: f64) -> bool {
        let own = self.inputs.iter().filter(|input| input.level == level).flat_map(|input| &input.files);
        let own_bytes: u64 = own.map(|file| file.bytes).sum();
        to_f64(self.bytes() - own_bytes) <= ratio * to_f64(own_bytes)
    }
}

fn whole(level: LevelId, run: &Run) -> PlanInput {
    PlanInput { level, run: run.order, files: run.files.to_vec() }
}

/// All runs of a level.
pub fn all_runs(view: &LsmView<'_>, level: LevelId) -> Vec<PlanInput> {
    view.level(level).runs.iter().map(|run| whole(level, run)).collect()
}

/// The oldest `count` runs of a level of those that running jobs do not take away; fewer if there are not as many.
pub fn oldest_runs(view: &LsmView<'_>, level: LevelId, count: usize) -> Vec<PlanInput> {
    let runs = view.level(level).runs.iter().filter(|run| !view.is_consumed(level, run));
    let mut inputs: Vec<PlanInput> = runs.rev().take(count).map(|run| whole(level, run)).collect();
    inputs.reverse();
    inputs
}

/// The oldest run of a level that is not on its way down.
pub fn oldest_staying_run(shape: &Shape<'_>, level: LevelId) -> Vec<PlanInput> {
    shape.staying_runs(level).next_back().map(|run| whole(level, run)).into_iter().collect()
}

/// Smallest and largest key of `inputs`, which are not empty.
fn hull(inputs: &[PlanInput]) -> (&[u8], &[u8]) {
    let first = inputs.iter().filter_map(|input| input.files.first()).map(|file| &file.smallest[..]).min();
    let last = inputs.iter().filter_map(|input| input.files.last()).map(|file| &file.largest[..]).max();
    (first.unwrap_or_default(), last.unwrap_or_default())
}

/// `sources` and what they meet in the next level, which gets the output: added to its run if it is leveled, a new run otherwise.
/// With `all_of_it`, the run of a leveled next level is an input as a whole.
pub fn down(shape: &Shape<'_>, mut sources: Vec<PlanInput>, to: LevelId, all_of_it: bool) -> Draft {
    let output = output_place(shape, &sources, to);
    // In a guarded level what is there stays there.
    let target = shape.view.level(to).run(output.run).filter(|_| shape.guarded().is_none());
    if let Some(run) = target {
        let (first, last) = hull(&sources);
        let met = if all_of_it { &run.files[..] } else { run.overlapping(first, last) };
        if !met.is_empty() {
            sources.push(PlanInput { level: to, run: run.order, files: met.to_vec() });
        }
    }
    Draft { inputs: sources, output }
}

/// The place of a job's output in level `to`. In a leveled level it is the newest run (the only one, unless the strategy was changed),
/// or the one that a running job is about to make; beside a deletion part it is the insertion part, or the beginning of one. In a tiered
/// level it is a new run, newer than all that are there or coming; in a guarded one the output falls as deep as it can.
fn output_place(shape: &Shape<'_>, sources: &[PlanInput], to: LevelId) -> Place {
    if shape.guarded().is_some() {
        return guards::place(shape.view, sources, to);
    }
    let there = shape.view.newest_run(to).map(|run| run.order);
    let coming = shape.view.running().iter().filter(|plan| plan.output.level == to).map(|plan| plan.output.run).max();
    let own = sources.iter().map(|input| input.run).max().unwrap_or_default();
    let shrinking = shape.deletion_part(to).map(|run| run.order);
    let leaving = shape.is_pairwise() && coming.is_none() && shape.staying_runs(to).next().is_none();
    let run = match there.max(coming) {
        Some(newest) if shape.is_leveled(to) && Some(newest) != shrinking && !leaving => newest,
        Some(newest) => own.max(RunOrder(newest.0 + 1)),
        None => own,
    };
    Place { level: to, run }
}

/// The layout's own rule: the newer runs of a leveled level are merged into the oldest, a deletion part not counted.
pub fn into_oldest_run(shape: &Shape<'_>, level: LevelId) -> Option<Draft> {
    let runs: Vec<&Run> = shape.staying_runs(level).collect();
    let runs = &runs[..runs.len() - usize::from(shape.deletion_part(level).is_some())];
    let (oldest, newer) = runs.split_last().filter(|(_, newer)| !newer.is_empty())?;
    let newer = if shape.is_pairwise() { &newer[newer.len() - 1..] } else { newer };
    let mut inputs: Vec<PlanInput> = newer.iter().map(|run| whole(level, run)).collect();
    let (first, last) = hull(&inputs);
    let met = oldest.overlapping(first, last);
    if !met.is_empty() {
        inputs.push(PlanInput { level, run: oldest.order, files: met.to_vec() });
    }
    Some(Draft { inputs, output: Place { level, run: oldest.order } })
}

/// Runs of L0 merged within L0 while the way down is blocked (RocksDB): from the newest on, as many idle ones as join while the bytes
/// for each run that goes away do not grow, and at most `max_bytes`. None if those are fewer than `min_runs`.
pub fn within_l0(view: &LsmView<'_>, min_runs: usize, max_bytes: u64) -> Option<Draft> {
    let runs = &view.level(LevelId(0)).runs;
    let place = |run: &Run| Place { level: LevelId(0), run: run.order };
    let mut bytes = 0u64;
    let mut per_run_gone = u64::MAX;
    let joins = |(n, run): (usize, &Run)| {
        bytes = bytes.saturating_add(run.bytes());
        let per_run = if n == 0 { u64::MAX } else { bytes / to_u64(n) };
        let joins = !view.any_busy(place(run), &run.files) && per_run <= per_run_gone && (n == 0 || bytes <= max_bytes);
        per_run_gone = per_run;
        joins
    };
    let len = runs.iter().enumerate().map(joins).take_while(|joins| *joins).count();
    if len < min_runs.max(2) {
        return None;
    }
    let inputs: Vec<PlanInput> = runs[..len].iter().map(|run| whole(LevelId(0), run)).collect();
    let output = inputs.first()?.place();
    Some(Draft { inputs, output })
}

/// Everything into the oldest run of the tree.
pub fn whole_tree(view: &LsmView<'_>) -> Option<Draft> {
    let inputs: Vec<PlanInput> = view.version.runs().map(|(level, run)| whole(level, run)).collect();
    let output = inputs.last()?.place();
    Some(Draft { inputs, output })
}

/// The next range of the `count` oldest runs of a level, of about `bytes`, for the run that grows in the next level.
///
/// ```text
///  r3   [--] [-] | [---]  | [---]     The files of the oldest run, from the left, say where a range ends; from new to old, all that overlaps
///  r2   [------] |  [--]  | [---]     the range comes along. Outputs end where files of the oldest run of their level begin (`slice_borders`), so
///  r1   [----]   | [----] | [--]      that no file reaches beyond. In a tree that was built otherwise the range grows by a file a run.
/// ```
pub fn slice_down(shape: &Shape<'_>, level: LevelId, count: usize, bytes: u64) -> Option<Draft> {
    let view = shape.view;
    let runs = &view.level(level).runs;
    let runs = &runs[runs.len().checked_sub(count)?..];
    let (oldest, first) =
        (runs.last()?, runs.iter().filter_map(|run| run.files.first()).map(|file| &file.smallest).min()?);
    let inputs_up_to = |end: &FileMeta| {
        let (mut first, mut last) = (first, &end.largest);
        let mut inputs = Vec::new();
        for run in runs {
            let met = run.overlapping(first, last);
            if let ([head, ..], [.., tail]) = (met, met) {
                (first, last) = (first.min(&head.smallest), last.max(&tail.largest));
                inputs.push(PlanInput { level, run: run.order, files: met.to_vec() });
            }
        }
        inputs
    };
    let size = |end: &Arc<FileMeta>| {
        inputs_up_to(end).iter().flat_map(|input| &input.files).map(|file| file.bytes).sum::<u64>()
    };
    let ends = oldest.files.partition_point(|end| size(end) < bytes);
    let inputs = inputs_up_to(oldest.files.get(ends).or(oldest.files.last())?);
    let to = level.parent();
    let (first, _) = hull(&inputs);
    let grows = view.newest_run(to).filter(|run| run.files.last().is_some_and(|file| file.largest[..] < *first));
    let output = match grows {
        Some(run) => Place { level: to, run: run.order },
        None => output_place(shape, &inputs, to),
    };
    Some(Draft { inputs, output })
}

/// Where the outputs of [`slice_down`] end besides: at the beginnings of the files of the oldest run of the output level.
pub fn slice_borders(view: &LsmView<'_>, draft: &Draft) -> Vec<Bytes> {
    let oldest = view.level(draft.output.level).runs.last().filter(|run| run.order != draft.output.run);
    let (first, last) = hull(&draft.inputs);
    let beginnings = oldest.into_iter().flat_map(|run| run.files.iter().skip(1)).map(|file| &file.smallest);
    beginnings.filter(|key| *first < key[..] && key[..] <= *last).cloned().collect()
}

/// Where `file` stands among the runs of a level.
#[derive(Clone, Copy, Debug)]
pub struct Pick<'a> {
    /// Its level.
    pub level: LevelId,
    /// Its run.
    pub run: &'a Run,
    /// Its position in the run.
    pub at: usize,
}

impl<'a> Pick<'a> {
    /// The file.
    pub fn file(self) -> &'a Arc<FileMeta> {
        &self.run.files[self.at]
    }
}

/// The files of a pick's run from it on, as many as the granularity takes.
pub fn neighbours<'a>(pick: Pick<'a>, granularity: &Granularity) -> &'a [Arc<FileMeta>] {
    let rest = &pick.run.files[pick.at..];
    let len = match granularity {
        Granularity::Files { count, bytes, .. } => {
            let mut taken = 0u64;
            let fits = rest.iter().take_while(|file| {
                taken = taken.saturating_add(file.bytes);
                bytes.is_none_or(|bytes| taken <= bytes)
            });
            fits.count().max(1).min(count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX)))
        }
        _ => 1,
    };
    &rest[..len.min(rest.len())]
}

/// The files of a pick's run from it on that go down together: see [`Expand::contiguous_files`](super::strategy::Expand); `max_bytes` is what
/// all inputs may come to.
pub fn contiguous<'a>(shape: &Shape<'_>, pick: Pick<'a>, max_bytes: u64) -> &'a [Arc<FileMeta>] {
    let view = shape.view;
    let rest = &pick.run.files[pick.at..];
    let excess = to_f64(view.staying_bytes(pick.level)) - shape.capacity_bytes(pick.level);
    let mut len = 1;
    let mut taken = rest[0].bytes;
    while let Some(next) = rest.get(len).filter(|next| to_f64(taken) < excess && !view.is_busy(next.id)) {
        let sources = vec![PlanInput { level: pick.level, run: pick.run.order, files: rest[..=len].to_vec() }];
        let draft = down(shape, sources, shape.next_level(pick.level), false);
        if draft.bytes() > max_bytes || draft.files().any(|file| view.is_busy(file.id)) {
            break;
        }
        taken += next.bytes;
        len += 1;
    }
    &rest[..len]
}

/// `draft` and a file of the last level that has been left alone while `starved_files` files were written: see
/// [`Expand::starved_files`](super::strategy::Expand). None if the level is not starved or has no such file.
///
/// Cassandra counts the compactions since one wrote to the level, 25 of them. A decision has no memory here, but the numbers that files get are
/// one: they are given out in the order in which files are written (in all keyspaces of a store, so that another one's writes make a level
/// look older than it is, and the aid comes sooner).
pub fn with_starved(view: &LsmView<'_>, draft: &Draft, starved_files: u32) -> Option<Draft> {
    let last = view.last_level();
    if starved_files == 0 || draft.output.level >= last {
        return None;
    }
    let newest = view.version.runs().filter_map(|(_, run)| run.files.newest()).max()?;
    let newest_there = view.level(last).runs.iter().filter_map(|run| run.files.newest()).max()?;
    if newest.0 - newest_there.0 < u64::from(starved_files) {
        return None;
    }
    let (first, end) = hull(&draft.inputs);
    let run = view.level(last).runs.first()?;
    let own = Place { level: last, run: run.order };
    let free_way = |file: &FileMeta| {
        let mut between = places(view.version).filter(|(place, _)| draft.output < *place && *place < own);
        between.all(|(_, run)| run.overlapping(&file.smallest, &file.largest).is_empty())
    };
    let within = |file: &&Arc<FileMeta>| *first <= file.smallest[..] && file.largest[..] <= *end;
    let mut files = run.overlapping(first, end).iter().filter(within);
    let lent = files.find(|file| !view.is_busy(file.id) && free_way(file))?;
    let mut draft = draft.clone();
    draft.inputs.push(PlanInput { level: last, run: run.order, files: vec![Arc::clone(lent)] });
    Some(draft)
}

/// All runs of a level and what they meet in the next one.
pub fn all_down(shape: &Shape<'_>, level: LevelId) -> Draft {
    down(shape, all_runs(shape.view, level), shape.next_level(level), false)
}

/// The same, and on through the levels behind it as long as all that the runs meet comes to at most `met_ratio` times their bytes.
pub fn all_through(shape: &Shape<'_>, level: LevelId, met_ratio: f64) -> Draft {
    let is_one_run = |level| shape.is_leveled(level) && shape.view.level(level).runs.len() <= 1;
    let last = shape.view.last_level();
    let mut draft = all_down(shape, level);
    while draft.output.level < last && is_one_run(draft.output.level) {
        let to = shape.next_level(draft.output.level);
        let deeper = down(shape, draft.inputs.clone(), to, false);
        if !is_one_run(to) || !deeper.meets_at_most(level, met_ratio) {
            break;
        }
        draft = deeper;
    }
    draft
}

/// Where the outputs of a merge end besides: behind the output level's cursor, if that is among the keys of `draft`.
pub fn cursor_border(view: &LsmView<'_>, draft: &Draft) -> Option<Bytes> {
    let cursor = view.cursor(draft.output.level);
    let (first, last) = hull(&draft.inputs);
    // The first key behind it.
    let border = || Bytes::from([cursor, &[0]].concat());
    (!cursor.is_empty() && first <= cursor && cursor < last).then(border)
}

/// `files` of one run and what they meet: in a tiered level every file of the level that shares keys with them, directly or through
/// others, and the files of the next level. With `expand_bytes`, more files of the level join as long as they meet no further file of
/// the next level and all inputs together stay below it (LevelDB).
pub fn files_down(
    shape: &Shape<'_>,
    level: LevelId,
    run: RunOrder,
    files: &[Arc<FileMeta>],
    expand_bytes: u64,
) -> Draft {
    let seed = vec![PlanInput { level, run, files: files.to_vec() }];
    let draft = down(shape, closure(shape, level, seed), shape.next_level(level), false);
    let met =
        |draft: &Draft| draft.inputs.iter().filter(|input| input.level != level).flat_map(|input| &input.files).count();
    if expand_bytes == 0 || met(&draft) == 0 {
        return draft;
    }
    let (first, last) = hull(&draft.inputs);
    // Of a leveled level that still holds several runs only the ones that are moving; of a tiered one all, as LevelDB does with its L0.
    let tiered = !shape.is_leveled(level);
    let runs = shape.view.level(level).runs.iter();
    let runs = runs.filter(|other| tiered || draft.inputs.iter().any(|input| input.run == other.order));
    let wider = runs.map(|run| PlanInput { level, run: run.order, files: run.overlapping(first, last).to_vec() });
    let wider: Vec<PlanInput> =
        wider.filter(|input| !input.files.is_empty() && !shape.view.any_busy(input.place(), &input.files)).collect();
    if wider.is_empty() {
        return draft;
    }
    let wider = down(shape, closure(shape, level, wider), shape.next_level(level), false);
    let same_output = met(&wider) == met(&draft) && wider.output == draft.output;
    if same_output && wider.bytes() > draft.bytes() && wider.bytes() < expand_bytes { wider } else { draft }
}

/// `seed` and all files of the level that share keys with it, directly or through others; newest run first. A leveled level's only run
/// adds nothing. Where a leveled level still holds several runs, newer ones stay behind: they are merged into it later. What leaves an
/// insertion part takes along what it meets in the deletion part, which is older.
fn closure(shape: &Shape<'_>, level: LevelId, seed: Vec<PlanInput>) -> Vec<PlanInput> {
    if shape.is_leveled(level) {
        return with_older(shape.view, level, seed);
    }
    let runs = &shape.view.level(level).runs;
    let mut inputs = seed;
    loop {
        let (first, last) = hull(&inputs);
        let met =
            runs.iter().map(|run| PlanInput { level, run: run.order, files: run.overlapping(first, last).to_vec() });
        let met: Vec<PlanInput> = met.filter(|input| !input.files.is_empty()).collect();
        let count = |inputs: &[PlanInput]| inputs.iter().map(|input| input.files.len()).sum::<usize>();
        if count(&met) == count(&inputs) {
            return met;
        }
        inputs = met;
    }
}

/// `seed`, of one level, and what it meets in older runs of the level, which may meet more in still older ones.
fn with_older(view: &LsmView<'_>, level: LevelId, seed: Vec<PlanInput>) -> Vec<PlanInput> {
    let mut inputs = seed;
    let Some(newest) = inputs.last().map(|input| input.run) else {
        return inputs;
    };
    for run in view.level(level).runs.iter().filter(|run| run.order < newest) {
        let (first, last) = hull(&inputs);
        let met = run.overlapping(first, last);
        if !met.is_empty() {
            inputs.push(PlanInput { level, run: run.order, files: met.to_vec() });
        }
    }
    inputs
}

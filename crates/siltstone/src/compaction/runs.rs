//! Strategies that merge whole sorted runs, chosen by age, size, density or window, instead of moving files down levels.
//!
//! With the layout `runs` the tree is one list of runs, newest to oldest; flushes land in L0 and merges stay there.
//!
//! ```text
//!  all runs, newest first --Grouping--> groups --trigger--> those that are due --RunPick--> runs of one job
//! ```
//!
//! | module | |
//! | --- | --- |
//! | [`grouping`] | which runs count as one level |
//! | [`pick`] | which runs of a group are merged: the option and its parameters |
//! | [`rules`] | the published rules behind it, pure functions over sizes |
//!
//! Age is place here as everywhere ([`plan`](mod@super::plan)): a reader stops at the newest version that it meets. The published rules that
//! pick by size alone (Cassandra, Accumulo) may choose runs that are not neighbours in age. A rule answers what was published, and
//! [`draft`] takes along the runs between that overlap a newer one of the chosen. In the systems themselves every entry carries its own
//! timestamp, and a read asks all runs.
//!
//! Data in deeper levels, left by another strategy or by a manual compaction, is the older end of the same list.

use std::sync::Arc;

use super::granularity::Draft;
use super::plan::{Place, PlanInput};
use super::view::LsmView;
use crate::num::to_f64;
use crate::version::{FileMeta, LevelId, Run, SstId};

pub mod grouping;
pub mod pick;
pub mod rules;
#[cfg(test)]
mod tests;

pub use grouping::{Group, Grouping};
pub use pick::RunPick;

/// What the rules may know of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RunFact<'a> {
    /// Size in bytes.
    pub bytes: u64,
    /// Whether no running job reads a file of it.
    pub idle: bool,
    /// Its order in its level: in L0, the number of the newest flush in it.
    pub order: u64,
    /// A number that stays with the run: its first file's. Seeds what is random in the system itself.
    pub seed: SstId,
    /// When the newest data came to the level, in milliseconds since 1970; in L0 that is its flush, merges in L0 keep it.
    pub entered_ms: u64,
    /// When the oldest of its files was written, in milliseconds since 1970.
    pub created_ms: u64,
    /// Smallest key.
    pub first: &'a [u8],
    /// Largest key.
    pub last: &'a [u8],
    /// The share of the tree's key range that its files cover, above 0, at most 1; keys count as numbers.
    pub key_share: f64,
}

/// The facts of every run of the tree, newest first.
pub fn facts<'a>(view: &LsmView<'a>) -> Vec<RunFact<'a>> {
    let runs = || view.version.runs().map(|(_, run)| run);
    let space = KeySpace::of(runs());
    runs().map(|run| fact(view, run, &space)).collect()
}

/// The facts of the runs of a level, newest first.
pub fn level_facts<'a>(view: &LsmView<'a>, level: LevelId) -> Vec<RunFact<'a>> {
    let runs = &view.level(level).runs;
    let space = KeySpace::of(runs.iter());
    runs.iter().map(|run| fact(view, run, &space)).collect()
}

fn fact<'a>(view: &LsmView<'_>, run: &'a Run, space: &KeySpace<'a>) -> RunFact<'a> {
    let (first, last) = hull(run);
    let files = || run.files.iter();
    RunFact {
        bytes: run.bytes(),
        idle: !view.any_busy(&run.files),
        order: run.order.0,
        seed: run.files.first().map(|file| file.id).unwrap_or_default(),
        entered_ms: files().map(|file| file.entered_level_ms).max().unwrap_or_default(),
        created_ms: files().map(|file| file.created_ms).min().unwrap_or_default(),
        first,
        last,
        key_share: files().map(|file| space.share(&file.smallest, &file.largest)).sum::<f64>().clamp(1e-9, 1.0),
    }
}

fn hull(run: &Run) -> (&[u8], &[u8]) {
    match (run.files.first(), run.files.last()) {
        (Some(first), Some(last)) => (&first.smallest, &last.largest),
        _ => (&[], &[]),
    }
}

/// The range of all keys, to work out which share of it a file covers.
struct KeySpace<'a> {
    /// What all keys begin with.
    common: usize,
    first: &'a [u8],
    last: &'a [u8],
}

impl<'a> KeySpace<'a> {
    fn of(runs: impl Iterator<Item = &'a Run>) -> KeySpace<'a> {
        let hulls = runs.map(hull).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        let (first, last) = hulls.unwrap_or_default();
        let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        KeySpace { common, first, last }
    }

    /// The eight bytes behind the common ones, as a number: keys in between lie in between.
    fn position(&self, key: &[u8]) -> f64 {
        let rest = key.get(self.common..).unwrap_or_default().iter().copied();
        to_f64(rest.chain(std::iter::repeat(0)).take(8).fold(0, |n, byte| n << 8 | u64::from(byte)))
    }

    fn share(&self, first: &[u8], last: &[u8]) -> f64 {
        let whole = self.position(self.last) - self.position(self.first);
        if whole > 0.0 { (self.position(last) - self.position(first)) / whole } else { 1.0 }
    }
}

/// A job over the runs `taken`, positions among all runs of the tree, ascending and not empty.
///
/// The output stands in the level of the oldest input. What is newer goes down to it, so a run between two inputs comes along if it
/// overlaps a newer input; one pass from new to old finds all of them.
pub fn draft(view: &LsmView<'_>, taken: &[usize]) -> Option<Draft> {
    let (newest, oldest) = (*taken.first()?, *taken.last()?);
    let runs = view.version.runs().enumerate().skip(newest).take(oldest - newest + 1);
    let mut inputs: Vec<PlanInput> = Vec::new();
    let mut left_out = false;
    for (at, (level, run)) in runs {
        if taken.binary_search(&at).is_ok() || inputs.iter().any(|input| meet(&input.files, run)) {
            inputs.push(PlanInput { level, run: run.order, files: run.files.clone() });
        } else {
            left_out = true;
        }
    }
    let last = inputs.last()?.place();
    // The order says which flush is the newest in a run; an older input may rise to it only if it passes nothing.
    let newest = inputs.iter().find(|input| input.level == last.level).map_or(last, PlanInput::place);
    Some(Draft { output: if left_out { last } else { newest }, inputs })
}

/// Whether some key could be in a file of `files` and in `run`.
pub(super) fn meet(files: &[Arc<FileMeta>], run: &Run) -> bool {
    files.iter().any(|file| !run.overlapping(&file.smallest, &file.largest).is_empty())
}

/// The last resort, when the tree holds `excess` runs too many and no rule knows what to merge: neighbours in age that share no key
/// become one run without a merge; otherwise those with the fewest bytes are merged.
pub(super) fn relief(view: &LsmView<'_>, facts: &[RunFact<'_>], excess: usize) -> Option<Relief> {
    let runs: Vec<(LevelId, &Run)> = view.version.runs().collect();
    let idle = |at: usize| facts[at].idle;
    let apart = |at: &usize| idle(*at) && idle(*at + 1) && !meet(&runs[*at].1.files, runs[*at + 1].1);
    if let Some(at) = (0..runs.len().saturating_sub(1)).find(apart) {
        let (level, run) = runs[at];
        let input = PlanInput { level, run: run.order, files: run.files.clone() };
        let (level, run) = runs[at + 1];
        return Some(Relief::Join(Draft { inputs: vec![input], output: Place { level, run: run.order } }));
    }
    let widest = (excess + 1).clamp(2, 10);
    let window = (2..=widest).rev().find_map(|width| {
        let bytes = |at: usize| facts[at..at + width].iter().map(|fact| fact.bytes).sum::<u64>();
        let starts = 0..(facts.len() + 1).saturating_sub(width);
        let idle = starts.filter(|at| (*at..*at + width).all(idle));
        idle.min_by_key(|at| bytes(*at)).map(|at| (at..at + width).collect::<Vec<_>>())
    })?;
    draft(view, &window).map(Relief::Merge)
}

/// What [`relief`] found.
#[derive(Debug)]
pub(super) enum Relief {
    /// The input moves to the run that the output place names.
    Join(Draft),
    /// A merge of neighbours.
    Merge(Draft),
}

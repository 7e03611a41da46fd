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
//! | [`considered`] | what a picker had to choose from, for the record |
//!
//! Age is place here as everywhere ([`plan`](mod@super::plan)): a reader stops at the newest version that it meets. The published rules that
//! pick by size alone (Cassandra, Accumulo) may choose runs that are not neighbours in age. A rule answers what was published, and
//! [`draft`] takes along the runs between that overlap a newer one of the chosen. In the systems themselves every entry carries its own
//! timestamp, and a read asks all runs.
//!
//! Data in deeper levels, left by another strategy or by a manual compaction, is the older end of the same list.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;

use super::granularity::Draft;
use super::plan::{Place, PlanInput, behind};
use super::view::LsmView;
use crate::num::to_f64;
use crate::version::{FileMeta, LevelId, Run, SstId};

pub mod considered;
pub mod grouping;
pub mod pick;
pub mod rules;
#[cfg(test)]
mod tests;

pub use considered::Considered;
pub use grouping::{Group, Grouping};
pub use pick::RunPick;
pub(super) use pick::due;

/// Equal parts of the tree's key range at whose borders output files end (Cassandra's UCS). Keys count as numbers.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shards {
    /// The fewest shards, at least 1. Default 4.
    pub base: u32,
    /// Size of an output file, in bytes, that more shards are made for. Default 1073741824 (1 GiB).
    pub target_bytes: u64,
    /// From 0, where the number of shards alone grows with the data, to 1, where the size of files alone does. Default 0.333.
    pub growth: f64,
}

impl Default for Shards {
    fn default() -> Shards {
        Shards { base: 4, target_bytes: 1 << 30, growth: 0.333 }
    }
}

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
    let space = KeySpace::of(view.version.runs().map(|(_, run)| run));
    view.version.runs().map(|(level, run)| fact(view, level, run, Some(&space))).collect()
}

/// The same for rules that do not ask for the share of the keys, which takes longer than all the rest: it is 1 everywhere.
pub(super) fn facts_without_shares<'a>(view: &LsmView<'a>) -> Vec<RunFact<'a>> {
    view.version.runs().map(|(level, run)| fact(view, level, run, None)).collect()
}

/// The facts of the runs of a level, newest first.
pub fn level_facts<'a>(view: &LsmView<'a>, level: LevelId) -> Vec<RunFact<'a>> {
    view.level(level).runs.iter().map(|run| fact(view, level, run, None)).collect()
}

fn fact<'a>(view: &LsmView<'_>, level: LevelId, run: &'a Run, space: Option<&KeySpace<'a>>) -> RunFact<'a> {
    let (first, last) = hull(run);
    // One pass: of a large tree, each look at a file fetches it from memory.
    let (mut bytes, mut entered_ms, mut created_ms) = (0, 0, u64::MAX);
    for file in &run.files {
        bytes += file.bytes;
        entered_ms = file.entered_level_ms.max(entered_ms);
        created_ms = file.created_ms.min(created_ms);
    }
    let share = |space: &KeySpace<'_>| {
        let shares = run.files.iter().map(|file| space.share(&file.smallest, &file.largest));
        shares.sum::<f64>().clamp(1e-9, 1.0)
    };
    RunFact {
        bytes,
        idle: !view.any_busy(Place { level, run: run.order }, &run.files),
        order: run.order.0,
        seed: run.files.first().map(|file| file.id).unwrap_or_default(),
        entered_ms,
        created_ms,
        first,
        last,
        key_share: space.map_or(1.0, share),
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
    fn number(&self, key: &[u8]) -> u64 {
        let rest = key.get(self.common..).unwrap_or_default();
        let mut bytes = [0; 8];
        let len = rest.len().min(8);
        bytes[..len].copy_from_slice(&rest[..len]);
        u64::from_be_bytes(bytes)
    }

    /// The keys that part the range into `count` equal shards.
    fn borders(&self, count: u64) -> impl Iterator<Item = Bytes> {
        let (first, last) = (u128::from(self.number(self.first)), u128::from(self.number(self.last)));
        let number = move |n: u64| first + (last - first) * u128::from(n) / u128::from(count);
        let key =
            move |n| [&self.first[..self.common], &u64::try_from(number(n)).unwrap_or(u64::MAX).to_be_bytes()].concat();
        (1..count).map(move |n| Bytes::from(key(n)))
    }

    fn share(&self, first: &[u8], last: &[u8]) -> f64 {
        let whole = to_f64(self.number(self.last) - self.number(self.first));
        if whole > 0.0 { to_f64(self.number(last).saturating_sub(self.number(first))) / whole } else { 1.0 }
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
        if taken.binary_search(&at).is_ok() || inputs.iter().any(|input| meet(&input.files, &run.files)) {
            inputs.push(PlanInput { level, run: run.order, files: run.files.to_vec() });
        } else {
            left_out = true;
        }
    }
    let last = inputs.last()?.place();
    // The order says which flush is the newest in a run; an older input may rise to it only if it passes nothing.
    let newest = inputs.iter().find(|input| input.level == last.level).map_or(last, PlanInput::place);
    Some(Draft { output: if left_out { last } else { newest }, inputs })
}

/// If none of the runs shares keys with another, they become one without a merge: the newer ones go to the place of the oldest.
pub(super) fn joined(draft: &Draft) -> Option<Draft> {
    let meets =
        |(at, newer): (usize, &PlanInput)| draft.inputs[at + 1..].iter().any(|older| meet(&newer.files, &older.files));
    if draft.inputs.iter().enumerate().any(meets) {
        return None;
    }
    let (oldest, newer) = draft.inputs.split_last()?;
    Some(Draft { inputs: newer.to_vec(), output: oldest.place() })
}

/// The borders of shards at which the outputs of a job over `inputs` end, ascending; none outside of its keys.
pub(super) fn shard_borders(view: &LsmView<'_>, inputs: &[PlanInput], shards: &Shards) -> Vec<Bytes> {
    let space = KeySpace::of(view.version.runs().map(|(_, run)| run));
    let files = || inputs.iter().flat_map(|input| &input.files);
    let first = files().map(|file| &file.smallest).min();
    let last = files().map(|file| &file.largest).max();
    let (Some(first), Some(last)) = (first, last) else {
        return Vec::new();
    };
    let bytes = to_f64(files().map(|file| file.bytes).sum());
    let count = rules::shard_count(bytes / space.share(first, last).max(1e-9), shards);
    space.borders(count).filter(|border| first < border && border <= last).collect()
}

/// Whether some key could be in a file of `a` and in one of `b`, both of one run and in its order.
pub(super) fn meet(mut a: &[Arc<FileMeta>], mut b: &[Arc<FileMeta>]) -> bool {
    while let ([first, ..], [other, ..]) = (a, b) {
        if first.overlaps(&other.smallest, &other.largest) {
            return true;
        }
        // The one that ends before the other begins, and all behind it that do, meet nothing any more.
        match first.largest < other.smallest {
            true => a = behind(a, &other.smallest),
            false => b = behind(b, &first.smallest),
        }
    }
    false
}

/// The last resort, when the tree holds `excess` runs too many and no rule knows what to merge: neighbours in age that share no key
/// become one run without a merge; otherwise those with the fewest bytes are merged. With it, the windows that there were to choose from, by
/// their bytes; a join is the first that was found.
pub(super) fn relief(view: &LsmView<'_>, facts: &[RunFact<'_>], excess: usize) -> Option<(Relief, Vec<Considered>)> {
    let runs: Vec<(LevelId, &Run)> = view.version.runs().collect();
    let idle = |at: usize| facts[at].idle;
    let apart = |at: &usize| idle(*at) && idle(*at + 1) && !meet(&runs[*at].1.files, &runs[*at + 1].1.files);
    if let Some(at) = (0..runs.len().saturating_sub(1)).find(apart) {
        let (level, run) = runs[at];
        let input = PlanInput { level, run: run.order, files: run.files.to_vec() };
        let (level, run) = runs[at + 1];
        let join = Relief::Join(Draft { inputs: vec![input], output: Place { level, run: run.order } });
        return Some((join, vec![Considered { newest: at, runs: 2, scores: vec![0.0] }]));
    }
    let widest = (excess + 1).clamp(2, 10);
    let windows = (2..=widest).rev().find_map(|width| {
        let bytes = |at: usize| facts[at..at + width].iter().map(|fact| fact.bytes).sum::<u64>();
        let starts = 0..(facts.len() + 1).saturating_sub(width);
        let idle = starts.filter(|at| (*at..*at + width).all(idle));
        let windows = idle.map(|at| Considered { newest: at, runs: width, scores: vec![to_f64(bytes(at))] });
        let windows: Vec<_> = windows.collect();
        (!windows.is_empty()).then_some(windows)
    })?;
    let least = windows.iter().min_by(|a, b| a.scores[0].total_cmp(&b.scores[0]))?;
    let taken: Vec<usize> = (least.newest..least.newest + least.runs).collect();
    Some((Relief::Merge(draft(view, &taken)?), windows))
}

/// What [`relief`] found.
#[derive(Debug)]
pub(super) enum Relief {
    /// The input moves to the run that the output place names.
    Join(Draft),
    /// A merge of neighbours.
    Merge(Draft),
}

//! Guards: keys that divide a level, so that runs may overlap inside a division but no file reaches across two (FLSM; PebblesDB,
//! Raju, Kadekodi, Chidambaram, Abraham, SOSP 2017).
//!
//! ```text
//!         guard d          guard m                      guard d: from d to m; what is before the first guard is the sentinel's
//!  L1   a--c | d------k      | n------z                 a guard of L1 is a guard of L2, L3, ...
//!       b--c |   f--h        | m--------y               the third run in one guard makes it due
//!  L2   a-b  | d--f | g--k   | m--p | q---z             its merge is cut at the guards of L2, and nothing of L2 is read
//! ```
//!
//! **Which keys.** A key is a guard of level i if the low `guard_bits - i guard_bits_step` bits of its hash are all ones: a share of
//! all keys that grows from level to level. The hash is the filters' (XXH3), of which 32 bits count.
//!
//! **Known ones.** Nothing is recorded: a guard is known as long as some file of the tree begins with it. Every merge ends its files before
//! the guards of its level that it meets among its keys and before those that are known; so a guard that came down once begins a file
//! somewhere below, until it is deleted. A guard that becomes known later may lie within an older file. It divides nothing until that
//! file is compacted (PebblesDB: lazily committed guards).
//!
//! **Runs.** A level keeps sorted runs as every level does. The output of a merge falls, as a brick would, to the oldest run from which on
//! nothing newer overlaps it ([`place`]), so runs are as many as files overlap somewhere, but for guards that were compacted in the
//! meantime; what hangs in the air then falls without being rewritten, when the level holds more runs than it should
//! ([`settle`]).
//!
//! PebblesDB compacts all guards of a level that are due in one job, and counts files; here each guard is a job, and a run that was cut at
//! `file_bytes` counts once.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;

use super::granularity::Draft;
use super::plan::{Action, Place, Plan, PlanInput, behind};
use super::view::LsmView;
use crate::key;
use crate::num::{to_f64, to_u32};
use crate::version::{FileMeta, LevelId, Run, RunOrder};

/// The parameters of the layout `guarded`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Guarded {
    /// The runs of L0. Default 4, at least 2.
    pub l0_runs: u32,
    /// The levels, L0 included, from 2 to 31: guards of the last one are merged where they are. Default 7. A tree that is deeper already
    /// keeps its depth.
    pub levels: u8,
    /// A key is a guard of L0 if as many low bits of its hash are ones: one key in 2^bits. Default 27, at most 32. PebblesDB's default is for
    /// billions of keys; a store with fewer wants fewer bits, about so that a guard of the last level holds a full file or more:
    /// `log2(entries of a file) + (levels - 1) guard_bits_step`.
    pub guard_bits: u32,
    /// Bits fewer with each level. Default 2: four times as many guards. At least one bit must be left in the last level.
    pub guard_bits_step: u32,
    /// As many sorted runs a guard may hold, from L1 on; one more makes it due. Default 2, at least 1.
    pub max_guard_files: u32,
    /// Above the last level, too, guards are merged where they are as long as the last level holds more than as many times the bytes:
    /// what came down would only be rewritten with it soon. Default 25, at least 1.
    pub in_place_ratio: f64,
}

impl Default for Guarded {
    fn default() -> Guarded {
        Guarded { l0_runs: 4, levels: 7, guard_bits: 27, guard_bits_step: 2, max_guard_files: 2, in_place_ratio: 25.0 }
    }
}

impl Guarded {
    /// What TOML cannot express; the problem.
    pub(super) fn validate(&self) -> Result<(), String> {
        let Guarded { l0_runs, levels, guard_bits, guard_bits_step, max_guard_files, in_place_ratio } = self;
        let ensure = |holds: bool, what: String| if holds { Ok(()) } else { Err(what) };
        ensure(*l0_runs >= 2, format!("l0_runs = {l0_runs}: l0_runs is at least 2"))?;
        ensure((2..=31).contains(levels), format!("levels = {levels}: levels is from 2 to 31"))?;
        ensure((1..=32).contains(guard_bits), format!("guard_bits = {guard_bits}: guard_bits is from 1 to 32"))?;
        let lost = u64::from(*guard_bits_step) * u64::from(levels - 1);
        ensure(
            lost < u64::from(*guard_bits),
            format!(
                "guard_bits_step = {guard_bits_step}: with {levels} levels it takes {lost} of {guard_bits} bits, and at least one \
                 must be left in the last level"
            ),
        )?;
        ensure(*max_guard_files >= 1, format!("max_guard_files = {max_guard_files}: max_guard_files is at least 1"))?;
        let ratio = *in_place_ratio >= 1.0 && in_place_ratio.is_finite();
        ensure(ratio, format!("in_place_ratio = {in_place_ratio}: in_place_ratio is at least 1"))
    }

    /// Which keys are guards of a level.
    pub fn mask(&self, level: LevelId) -> GuardMask {
        let above_last = u32::from(level.0.min(self.levels.saturating_sub(1)));
        let bits = self.guard_bits.saturating_sub(above_last.saturating_mul(self.guard_bits_step)).clamp(1, 32);
        GuardMask(u32::MAX >> (32 - bits))
    }

    /// The level out of which nothing goes down.
    pub fn last_level(&self, view: &LsmView<'_>) -> LevelId {
        LevelId(self.levels.saturating_sub(1)).max(view.last_level())
    }

    /// Whether guards of a level are merged where they are instead of into the next one.
    pub fn is_in_place(&self, view: &LsmView<'_>, level: LevelId) -> bool {
        let last = self.last_level(view);
        let held = |level: LevelId| to_f64(view.level(level).bytes());
        let dwarfed = || held(last) > self.in_place_ratio * held(level);
        level >= last || (level.0 > 0 && level.parent() == last && dwarfed())
    }
}

/// Which keys are guards of a level: those of whose hash these bits are ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuardMask(u32);

impl GuardMask {
    /// Whether `key` is a guard.
    #[inline]
    pub fn is_guard(self, key: &[u8]) -> bool {
        let mask = u64::from(self.0);
        key::hash(key) & mask == mask
    }
}

/// The guards behind `first` up to `last` that some file of the tree begins with, ascending.
pub fn known(view: &LsmView<'_>, mask: GuardMask, first: &[u8], last: &[u8]) -> Vec<Bytes> {
    let begins = view.version.runs().flat_map(|(_, run)| {
        let from = run.files.partition_point(|file| file.smallest[..] <= *first);
        run.files[from..].iter().map(|file| &file.smallest).take_while(|key| key[..] <= *last)
    });
    let mut guards: Vec<Bytes> = begins.filter(|key| mask.is_guard(key)).cloned().collect();
    guards.sort_unstable();
    guards.dedup();
    guards
}

impl Plan {
    /// The same plan with an output that ends at guards, those that it will meet and those that are known; `mask` is that of its output
    /// level. Unchanged without a mask.
    #[must_use]
    pub fn cut_at_guards(mut self, view: &LsmView<'_>, mask: Option<GuardMask>) -> Plan {
        let Some(mask) = mask else { return self };
        let (first, last) = self.hull();
        let mut borders = known(view, mask, first, last);
        borders.append(&mut self.borders);
        borders.sort_unstable();
        borders.dedup();
        self.borders = borders;
        self.cut.guards = Some(mask);
        self
    }

    /// Whether `file` may stand where this plan puts it as it is: a guard that is known parts it from what comes behind.
    pub fn fits_guards(&self, file: &FileMeta) -> bool {
        let behind = self.borders.partition_point(|border| *border <= file.smallest);
        self.cut.guards.is_none() || self.borders.get(behind).is_none_or(|border| *border > file.largest)
    }
}

/// The files of a level between two guards that part them from all others, in all runs. Never empty.
#[derive(Clone, Debug)]
pub struct Column<'a> {
    /// By position of the run, the newest first; no run without files.
    parts: Vec<(usize, &'a [Arc<FileMeta>])>,
}

impl<'a> Column<'a> {
    /// The files, newest run first, ascending by key within a run.
    pub fn files(&self) -> impl Iterator<Item = &'a Arc<FileMeta>> {
        self.parts.iter().flat_map(|(_, files)| *files)
    }

    /// Bytes of the files.
    pub fn bytes(&self) -> u64 {
        self.files().map(|file| file.bytes).sum()
    }

    /// The first file in key order, the newest of several.
    pub fn first(&self) -> Option<&'a Arc<FileMeta>> {
        self.parts.iter().filter_map(|(_, files)| files.first()).min_by(|a, b| a.smallest.cmp(&b.smallest))
    }

    /// How many runs have files in it.
    pub fn runs(&self) -> u32 {
        to_u32(self.parts.len())
    }

    /// How many runs have files in it that no job is reading.
    pub fn idle_runs(&self, view: &LsmView<'_>) -> u32 {
        let is_idle = |files: &[Arc<FileMeta>]| files.iter().any(|file| !view.is_busy(file.id));
        to_u32(self.parts.iter().filter(|(_, files)| is_idle(files)).count())
    }

    /// The fewest reads that a file of it has seen: all came after the newest file did.
    pub fn straight_reads(&self, view: &LsmView<'_>) -> u64 {
        self.files().map(|file| view.reads_of(file.id).reads).min().unwrap_or(0)
    }

    fn inputs(&self, level: LevelId, runs: &[Run]) -> Vec<PlanInput> {
        let input = |(run, files): &(usize, &[Arc<FileMeta>])| PlanInput {
            level,
            run: runs[*run].order,
            files: files.to_vec(),
        };
        self.parts.iter().map(input).collect()
    }
}

/// The columns of a level, ascending by key. A guard within a file parts nothing: what it would part shares a column.
pub fn columns<'a>(view: &LsmView<'a>, mask: GuardMask, level: LevelId) -> Vec<Column<'a>> {
    let runs = &view.level(level).runs;
    let first = runs.iter().filter_map(|run| run.files.first()).map(|file| &file.smallest[..]).min();
    let last = runs.iter().filter_map(|run| run.files.last()).map(|file| &file.smallest[..]).max();
    let (Some(first), Some(last)) = (first, last) else {
        return Vec::new();
    };
    let mut columns = Vec::new();
    let mut add = |from: &[usize], to: &[usize]| {
        let parts = runs.iter().enumerate().map(|(at, run)| (at, &run.files[from[at]..to[at]]));
        let parts: Vec<_> = parts.filter(|(_, files)| !files.is_empty()).collect();
        columns.extend((!parts.is_empty()).then_some(Column { parts }));
    };
    // By run, where the column begins, and where the files begin that are not below the guard.
    let mut from = vec![0; runs.len()];
    let mut to = from.clone();
    for guard in known(view, mask, first, last) {
        let mut is_within = false;
        for (run, to) in runs.iter().zip(&mut to) {
            *to += begins_below(&run.files[*to..], &guard);
            is_within |= *to > 0 && run.files[*to - 1].largest >= guard;
        }
        if !is_within {
            add(&from, &to);
            from.clone_from(&to);
        }
    }
    let ends: Vec<usize> = runs.iter().map(|run| run.files.len()).collect();
    add(&from, &ends);
    columns
}

/// How many of `files` begin below `key`. Looks near the front first.
fn begins_below(files: &[Arc<FileMeta>], key: &[u8]) -> usize {
    let mut reach = 1;
    while files.get(reach - 1).is_some_and(|file| file.smallest[..] < *key) {
        reach *= 2;
    }
    let (from, to) = (reach / 2, (reach - 1).min(files.len()));
    from + files[from..to].partition_point(|file| file.smallest[..] < *key)
}

/// The inputs and the output place of a job on a column; none if it would change nothing.
///
/// Merged where it is, a column leaves out its oldest run if that holds more than 1.5 times the average of what the guard may hold
/// (PebblesDB rewrites large files of the last level rarely), as long as two runs remain.
pub fn draft(view: &LsmView<'_>, guarded: &Guarded, level: LevelId, column: &Column<'_>) -> Option<Draft> {
    let mut inputs = column.inputs(level, &view.level(level).runs);
    if !guarded.is_in_place(view, level) {
        let output = place(view, &inputs, level.parent());
        return Some(Draft { inputs, output });
    }
    let average = to_f64(column.bytes()) / f64::from(guarded.max_guard_files);
    let is_large = |input: &PlanInput| to_f64(input.files.iter().map(|file| file.bytes).sum()) > 1.5 * average;
    if guarded.max_guard_files > 1 && inputs.len() > 2 && inputs.last().is_some_and(is_large) {
        inputs.pop();
    }
    let output = inputs.last()?.place();
    (inputs.len() > 1).then_some(Draft { inputs, output })
}

/// Where in level `to` a job's output goes: to the oldest run that is there or coming such that neither it nor a newer one overlaps
/// `inputs`; above all of them if there is none.
pub fn place(view: &LsmView<'_>, inputs: &[PlanInput], to: LevelId) -> Place {
    let files = || inputs.iter().flat_map(|input| &input.files);
    let first = files().map(|file| &file.smallest[..]).min().unwrap_or_default();
    let last = files().map(|file| &file.largest[..]).max().unwrap_or_default();
    let mut met: BTreeMap<RunOrder, bool> = BTreeMap::new();
    for run in &view.level(to).runs {
        met.insert(run.order, !run.overlapping(first, last).is_empty());
    }
    for plan in view.running().iter().filter(|plan| plan.output.level == to && plan.action != Action::Drop) {
        let (other_first, other_last) = plan.hull();
        *met.entry(plan.output.run).or_default() |= first <= other_last && other_first <= last;
    }
    let own = inputs.iter().map(|input| input.run).max().unwrap_or_default();
    let above_all = met.keys().next_back().map_or(own, |newest| own.max(RunOrder(newest.0 + 1)));
    let free = met.into_iter().rev().take_while(|(_, is_met)| !is_met).last();
    Place { level: to, run: free.map_or(above_all, |(order, _)| order) }
}

/// What of a level can fall to an older run of it, without being rewritten: the files that come to the oldest run that anything
/// reaches. None if each file lies on one that it overlaps.
///
/// ```text
///  r3      [--]     [-]              [-]
///  r2             [-]       ->     [-]
///  r1   [----]  [----]          [----][--]  [----]
/// ```
pub fn settle(view: &LsmView<'_>, level: LevelId) -> Option<Draft> {
    let runs = &view.level(level).runs;
    // A job that is at work may write to this level, or take from it, or pass it.
    let is_still = |file: &FileMeta| {
        let met = |plan: &&Arc<Plan>| {
            let (first, last) = plan.hull();
            file.overlaps(first, last)
        };
        !view.is_busy(file.id) && !view.running().iter().any(|plan| met(&plan))
    };
    let mut falls: Vec<(usize, usize, &Arc<FileMeta>)> = Vec::new();
    for (from, run) in runs.iter().enumerate() {
        // Both ascend: what of the older runs ends before a file ends before the next one, too.
        let mut below: Vec<&[Arc<FileMeta>]> = runs[from + 1..].iter().map(|run| &run.files[..]).collect();
        for file in &run.files {
            let free = |rest: &mut &[Arc<FileMeta>]| {
                *rest = behind(rest, &file.smallest);
                rest.first().is_none_or(|other| other.smallest > file.largest)
            };
            let depth = below.iter_mut().map(free).take_while(|free| *free).count();
            if depth > 0 && is_still(file) {
                falls.push((from + depth, from, file));
            }
        }
    }
    let deepest = falls.iter().map(|(to, ..)| *to).max()?;
    let mut by_run: BTreeMap<usize, Vec<Arc<FileMeta>>> = BTreeMap::new();
    for (_, from, file) in falls.into_iter().filter(|(to, ..)| *to == deepest) {
        by_run.entry(from).or_default().push(Arc::clone(file));
    }
    let inputs = by_run.into_iter().map(|(run, files)| PlanInput { level, run: runs[run].order, files });
    Some(Draft { inputs: inputs.collect(), output: Place { level, run: runs[deepest].order } })
}

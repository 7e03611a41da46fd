//! What to do and why, as plain data. `laws.rs` holds every law that a plan must obey.
//!
//! # Age is place
//!
//! ```text
//!  newer   L0 run 9          a version of a key in a newer place is newer than one in an older place;
//!    |     L0 run 7          two files that share no key may stand in any order
//!    |     L1 run 4
//!  older   L2 run 4          run orders compare inside one level only
//! ```
//!
//! A [`Place`] is a level and a run order. A job takes files out of their places and puts what they hold into one other place, its
//! [output](Plan::output). It may do so only if nothing that overlaps a file stands on the file's way, up or down: then no
//! entry ever overtakes another version of its key. Dropping tombstones rests on the same order ([`Plan::older_files`]).
//!
//! The one run of a leveled level keeps its order for ever, files come and go. A new run of a tiered level gets an order above
//! all that are there. So no file is ever stamped anew, and an edit is "these out, those in".

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::guards::GuardMask;
use super::record::DecisionRecord;
use crate::version::{FileMeta, LevelId, Run, RunOrder, SstId, Version};

mod laws;

pub use laws::{Law, LawBroken};
pub(super) use laws::{behind, hides_nothing, only_dead_tombstones, places};

/// A sorted run's place in the tree. Ascending order is from newest to oldest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Place {
    /// The level.
    pub level: LevelId,
    /// The run's order in the level.
    pub run: RunOrder,
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Place) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Place {
    /// A smaller place is newer.
    fn cmp(&self, other: &Place) -> std::cmp::Ordering {
        self.level.cmp(&other.level).then(other.run.cmp(&self.run))
    }
}

impl Place {
    /// Whether data that goes from `from` to `to` passes this place or ends in it. Both directions; `from` itself is not
    /// on the way.
    fn on_way(self, from: Place, to: Place) -> bool {
        (from < self && self <= to) || (to <= self && self < from)
    }
}

/// Files of one run that a job consumes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanInput {
    /// The run's level.
    pub level: LevelId,
    /// The run's order.
    pub run: RunOrder,
    /// The files, ascending by key; not necessarily neighbours.
    pub files: Vec<Arc<FileMeta>>,
}

impl PlanInput {
    /// Where the files are.
    pub fn place(&self) -> Place {
        Place { level: self.level, run: self.run }
    }
}

/// What is done with the inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Read, merge, write anew.
    Merge,
    /// Only the tree changes: the files stand in the output place afterwards.
    Move,
    /// The files go away: they hold nothing but tombstones that hide nothing, or the oldest data of a keyspace that may lose it.
    Drop,
}

impl Action {
    /// Its name: `merge`, `move` or `drop`.
    pub fn name(self) -> &'static str {
        match self {
            Action::Merge => "merge",
            Action::Move => "move",
            Action::Drop => "drop",
        }
    }
}

/// Whether the planner may move files instead of rewriting them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Reuse {
    /// Files of the inputs' levels that can move go first, whichever they are (wei25).
    #[default]
    MovesFirst,
    /// The inputs are moved if all of them can be (LevelDB's trivial move).
    Picked,
    /// As [`Picked`](Reuse::Picked); besides, a merge of several runs links what it would only copy (VT-tree, X-Engine).
    Stitch(Stitch),
    /// Always rewrite.
    Never,
}

/// When a merge links a part of an input instead of copying it. A table that was linked in part is partly dead, and is kept on disk as long as a
/// part of it is alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stitch {
    /// Parts of fewer bytes are copied; above 0. Default: a thirty-second of an output file.
    pub min_bytes: Option<u64>,
    /// So much of a table may be dead, in percent, at most 99. A merge links nothing more of a table of which it has copied more; what is left of
    /// one that is more dead all the same is rewritten when nothing else is due. Default 50.
    pub max_dead_percent: u8,
}

impl Default for Stitch {
    fn default() -> Stitch {
        Stitch { min_bytes: None, max_dead_percent: 50 }
    }
}

impl Stitch {
    /// The smallest part that is linked to an output whose files have `file_bytes`.
    pub fn min_bytes(&self, file_bytes: u64) -> u64 {
        self.min_bytes.unwrap_or(file_bytes / 32).max(1)
    }

    /// Whether a table of `bytes` may go on with only `alive` bytes of it alive.
    pub fn may_live(bytes: u64, alive: u64, max_dead_percent: u64) -> bool {
        let dead = u128::from(bytes.saturating_sub(alive));
        dead * 100 <= u128::from(bytes) * u128::from(max_dead_percent)
    }
}

/// When what a merge has replaced leaves the tree, so that its space comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Release {
    /// All of it when the merge ends.
    #[default]
    AtEnd,
    /// While the merge runs: finished output files come into the tree, and the inputs lose the keys that these cover (SifrDB's early
    /// cleaning, ScyllaDB's incremental compaction).
    Progressive,
}

/// Where an output file ends; [`OutputCut`](crate::jobs::cut::OutputCut) applies it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutRule {
    /// At this size, in bytes.
    pub file_bytes: u64,
    /// From half of that size on, preferably at a file border of the level below the output (RocksDB's rule).
    pub align: bool,
    /// Before the file overlaps more than this in the level below the output, in bytes; 0 for no limit (LevelDB's rule).
    pub grandparent_bytes: u64,
    /// Before each of these keys (PebblesDB's rule); set by [`Plan::cut_at_guards`].
    pub guards: Option<GuardMask>,
}

/// One compaction, ready to be checked and done.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// What is consumed, newest place first, at most one input a run.
    pub inputs: Vec<PlanInput>,
    /// Where the result goes; the run may exist or not.
    pub output: Place,
    /// What is done.
    pub action: Action,
    /// Where output files end.
    pub cut: CutRule,
    /// Keys at which an output file ends in any case, ascending: none holds keys of both sides.
    pub borders: Vec<Bytes>,
    /// Whether the planner may move instead.
    pub reuse: Reuse,
    /// When what a merge has replaced leaves the tree.
    pub release: Release,
    /// The round-robin cursor of a level once this plan has started; kept in memory only.
    pub cursor: Option<(LevelId, Bytes)>,
    /// Why.
    pub record: DecisionRecord,
}

impl Plan {
    /// The input files, newest place first, ascending by key within a run.
    pub fn files(&self) -> impl Iterator<Item = &Arc<FileMeta>> {
        self.inputs.iter().flat_map(|input| &input.files)
    }

    /// Bytes of the input files.
    pub fn input_bytes(&self) -> u64 {
        self.files().map(|file| file.bytes).sum()
    }

    /// How this merge links what it would only copy; none if it rewrites everything. Files of one run are not merged with anything: who
    /// plans that wants them rewritten.
    pub fn stitch(&self) -> Option<Stitch> {
        match self.reuse {
            Reuse::Stitch(stitch) if self.action == Action::Merge && self.inputs.len() > 1 => Some(stitch),
            _ => None,
        }
    }

    /// Since when what this merge writes has been in its level, in milliseconds since 1970, if it never left it: since the newest input
    /// came there.
    pub fn stayed_since_ms(&self) -> Option<u64> {
        let stays = self.inputs.iter().all(|input| input.level == self.output.level);
        self.files().map(|file| file.entered_level_ms).max().filter(|_| stays)
    }

    /// Smallest and largest user key of the inputs; two empty keys without inputs.
    pub fn hull(&self) -> (&[u8], &[u8]) {
        let first = self.inputs.iter().filter_map(|input| input.files.first()).map(|file| &file.smallest[..]).min();
        let last = self.inputs.iter().filter_map(|input| input.files.last()).map(|file| &file.largest[..]).max();
        (first.unwrap_or_default(), last.unwrap_or_default())
    }

    /// What the job's [`VersionEdit`](crate::version::VersionEdit) removes.
    pub fn removed(&self) -> Vec<(LevelId, RunOrder, SstId)> {
        let removed =
            self.inputs.iter().flat_map(|input| input.files.iter().map(move |file| (input.level, input.run, file.id)));
        removed.collect()
    }

    /// What the edit of a [`Action::Move`] adds: the same files, new in their level since `now_ms`.
    pub fn moved(&self, now_ms: u64) -> Vec<(LevelId, RunOrder, Arc<FileMeta>)> {
        let renewed = |file: &Arc<FileMeta>| Arc::new(FileMeta { entered_level_ms: now_ms, ..(**file).clone() });
        self.files().map(|file| (self.output.level, self.output.run, renewed(file))).collect()
    }

    /// The files below the output level that overlap the inputs, ascending by key, for the output cut. Of a level with several
    /// runs the oldest, largest one counts.
    pub fn grandparents(&self, version: &Version) -> Vec<Arc<FileMeta>> {
        let (first, last) = self.hull();
        let below = version.levels.get(self.output.level.index() + 1).and_then(|level| level.runs.last());
        below.map_or_else(Vec::new, |run| run.overlapping(first, last).to_vec())
    }

    /// The files that could hold older versions of the inputs' keys than the output will, run by run: everything older than the
    /// output place that overlaps the inputs and is no input.
    pub fn older_files(&self, version: &Version) -> Vec<Vec<Arc<FileMeta>>> {
        let (first, last) = self.hull();
        let inputs: BTreeSet<SstId> = self.files().map(|file| file.id).collect();
        let overlapping = |run: &Run| {
            let files = run.overlapping(first, last).iter();
            files.filter(|file| !inputs.contains(&file.id)).cloned().collect::<Vec<_>>()
        };
        let older = places(version).filter(|(place, _)| *place > self.output);
        older.map(|(_, run)| overlapping(run)).filter(|files| !files.is_empty()).collect()
    }
}

impl fmt::Display for Plan {
    /// `merge 4 3 1 2 -> L1   rule 1, sorted-runs 2 >= 2`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action.name())?;
        for file in self.files() {
            write!(f, " {}", file.id.0)?;
        }
        if self.action != Action::Drop {
            write!(f, " -> L{}", self.output.level.0)?;
        }
        write!(f, "   {}", self.record)
    }
}

//! The first primitive: how many sorted runs each level may hold, and how many bytes (sarkar21 section 3.1.2).
//!
//! ```text
//!            leveling   one-leveling   tiering   l-leveling   hybrid [4, 2, 1]
//!   L0         1            4            T           T            4
//!   L1         1            1            T           T            2
//!   L2         1            1            T           T            1
//!   Lmax       1            1            T           1            1
//! ```
//!
//! A level limited to one run is *leveled*, the others are *tiered*. A leveled level that nevertheless holds several runs (L0 after
//! a flush, any level after a change of strategy) is brought to its shape by a rule that every strategy has, "layout": its newer
//! runs are merged into its oldest.
//!
//! # Two phases
//!
//! With `two_phase = true` a leveled level that is not the last has two parts (guo17 section IV-A, "two-phase compaction"):
//!
//! ```text
//!   L1   insertion part  [a-c][d-h]....          newer run: what comes from above is merged into it
//!        deletion part           [k-p][q-z]      older run: its files go down in key order, nothing is added
//!   L2   insertion part  [a-j]
//!        deletion part      [d-m][n-z]
//!   L3                   [a-d][e-j][k-r][s-z]    the last level: one run
//! ```
//!
//! A file that leaves the deletion part is merged with what it overlaps in the insertion part of the next level, and the deletion part there
//! is neither read nor rewritten. The insertion part grows from nothing to the full level in a round, so a file meets half a level
//! on average, and about half as much is written as without parts; a lookup asks 1.5 runs a level instead of one. Both parts together
//! hold what the level may hold: when the insertion part grows, the deletion part shrinks. When it is gone, the level is one sorted run, which
//! becomes the deletion part.
//!
//! Nobody remembers which run is which part. It follows from the tree: *the oldest run of a level that holds at least half of its capacity
//! is its deletion part*, all newer ones are its insertion part. In a running system a level is full, so the rule and guo17's marker agree; a level
//! that fills up for the first time begins its first round at half of its size instead of when it is full. A run that is
//! taken for the other part (when options change, or another strategy built the tree) costs a merge more or less and nothing else: which moves
//! are legal is a matter of age, and the older run stays the older one under either name.
//!
//! In a *guarded* level ([`guards`](super::guards)) the limit holds for each guard.

use serde::Deserialize;

use super::guards::Guarded;
use super::runs::Grouping;
use super::targets::Targets;
use super::view::LsmView;
use crate::num::to_f64;
use crate::version::{LevelId, Run};

/// How many sorted runs each level may hold.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Layout {
    /// Every level one run, L0 too: a flush is merged with what L0 holds. The textbook's leveling; L0 holds size ratio times a
    /// memtable.
    Leveling {
        /// Every level but the last has an insertion and a deletion part (guo17). Default false.
        #[serde(default)]
        two_phase: bool,
        /// Every merge takes two runs (luo19 section 2; bLSM). A newer run of a level joins the oldest one by one; the oldest goes down alone,
        /// when it is full itself; and while it is on its way, what comes into the level makes a new one, so that no level waits for
        /// the merges below it. Default false: all newer runs at once, a level goes down as a whole, and waits for its run to arrive.
        #[serde(default)]
        pairwise: bool,
    },
    /// Every level as many runs as the size ratio, the last one too.
    Tiering {},
    /// L0 several runs, the other levels one: RocksDB's and LevelDB's. L1 holds as much as L0.
    OneLeveling {
        /// The runs of L0. Default 4, at least 2.
        #[serde(default = "four")]
        l0_runs: u32,
        /// Every level but L0 and the last has an insertion and a deletion part (guo17). Default false.
        #[serde(default)]
        two_phase: bool,
    },
    /// The last level one run, the others as many as the size ratio: lazy leveling (Dostoevsky).
    LLeveling {},
    /// Runs level by level; the last entry holds for all deeper levels.
    Hybrid {
        /// The limits, L0 first; each at least 1.
        runs: Vec<u32>,
    },
    /// L0 several runs; the other levels several in each division of their keys, which grows from level to level, and whose files merges do
    /// not reach across (PebblesDB).
    Guarded(Guarded),
    /// One list of runs, newest to oldest, which nothing merges: the rules drop the oldest (RocksDB FIFO). Writers never wait for the number of
    /// runs, which is bounded by what the rules let the tree hold. Takes granularity `drop-oldest` only.
    Log {},
    /// One list of whole runs, newest to oldest; merges stay in the level of their oldest input, which is L0 unless another strategy or a
    /// manual compaction put data deeper. The rules see groups of runs instead of levels ([`runs`](super::runs)).
    Runs {
        /// Which runs count as one level.
        grouping: Grouping,
        /// The runs that the tree holds when all is well, at least 2. Writers stop at twice as many (luo19 section 4.2); and when there
        /// are more and no rule finds anything to merge, neighbours are merged, those with the fewest bytes, which the systems
        /// themselves leave to the operator. Default: as many as make a group due, for each power of that number (of 2, where groups go by
        /// size) between the memtable and the tree, at least 4; and those that the grouping leaves alone for good.
        expected_runs: Option<u32>,
    },
}

const fn four() -> u32 {
    4
}

impl Layout {
    /// How many runs the level may hold; at least 1. `ratios` are the capacity ratios from each level to the next.
    pub(super) fn run_limit(&self, view: &LsmView<'_>, ratios: &[u32], level: LevelId) -> u32 {
        let ratio = ratios.get(level.index()).copied().unwrap_or(2);
        match self {
            // Two parts are one level all the same.
            Layout::Leveling { .. } => 1,
            Layout::Tiering {} => ratio,
            Layout::OneLeveling { l0_runs, .. } => {
                if level.0 == 0 {
                    *l0_runs
                } else {
                    1
                }
            }
            // While there is only L0, the first leveled level is the one that its runs will go to.
            Layout::LLeveling {} => {
                if level >= view.last_level().max(LevelId(1)) {
                    1
                } else {
                    ratio
                }
            }
            Layout::Hybrid { runs } => runs.get(level.index()).or(runs.last()).copied().unwrap_or(1),
            Layout::Guarded(guarded) if level.0 == 0 => guarded.l0_runs,
            Layout::Guarded(guarded) => guarded.max_guard_files.saturating_add(1),
            Layout::Log {} => u32::MAX,
            Layout::Runs { expected_runs, .. } => expected_runs.unwrap_or(ratio).max(2),
        }
    }
}

/// A layout and the sizes that it works on: what the other primitives ask about levels.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// The tree.
    pub view: &'a LsmView<'a>,
    /// The layout.
    pub layout: &'a Layout,
    /// The capacity ratio of neighbouring levels, at least 2.
    pub ratio: u32,
    /// How much each level should hold.
    pub targets: Targets,
}

impl Shape<'_> {
    /// How many runs the level may hold; at least 1.
    pub fn run_limit(&self, level: LevelId) -> u32 {
        self.layout.run_limit(self.view, &self.targets.ratios, level)
    }

    /// Whether the level is limited to one run.
    pub fn is_leveled(&self, level: LevelId) -> bool {
        self.run_limit(level) == 1
    }

    /// Whether the level is to have an insertion and a deletion part.
    pub fn is_two_phase(&self, level: LevelId) -> bool {
        let has_parts = match self.layout {
            Layout::Leveling { two_phase, .. } => *two_phase,
            Layout::OneLeveling { two_phase, .. } => *two_phase && level.0 > 0,
            _ => false,
        };
        has_parts && level < self.view.last_level()
    }

    /// The run whose files go down and into which nothing is merged; none in a level that has no parts, or holds so little that all of it is
    /// the insertion part.
    pub fn deletion_part(&self, level: LevelId) -> Option<&Run> {
        if !self.is_two_phase(level) {
            return None;
        }
        let held = self.view.level(level);
        held.runs.last().filter(|_| 2.0 * to_f64(held.bytes()) >= self.capacity_bytes(level))
    }

    /// Whether every merge takes two runs.
    pub fn is_pairwise(&self) -> bool {
        matches!(self.layout, Layout::Leveling { pairwise: true, .. })
    }

    /// The runs that count for a level, newest first: with a pairwise layout those that are not on their way down, otherwise all.
    pub fn staying_runs(&self, level: LevelId) -> impl DoubleEndedIterator<Item = &Run> {
        let pairwise = self.is_pairwise();
        self.view.level(level).runs.iter().filter(move |run| !pairwise || !self.view.is_leaving(level, run))
    }

    /// Bytes that count when a level is measured against its capacity: with a pairwise layout those of its oldest run.
    pub fn filled_bytes(&self, level: LevelId) -> u64 {
        if self.is_pairwise() {
            return self.staying_runs(level).next_back().map_or(0, Run::bytes);
        }
        self.view.staying_bytes(level)
    }

    /// How many runs the level holds when nothing of it is due: its limit, and one more beside a deletion part.
    pub fn runs_at_rest(&self, level: LevelId) -> u32 {
        self.run_limit(level).saturating_add(self.deletion_part(level).is_some().into())
    }

    /// The layout's parameters, if it is the guarded one.
    pub fn guarded(&self) -> Option<&Guarded> {
        match self.layout {
            Layout::Guarded(guarded) => Some(guarded),
            _ => None,
        }
    }

    /// Where the level is compacted to: the next one, and from L0 the base, which dynamic targets put deeper.
    pub fn next_level(&self, level: LevelId) -> LevelId {
        if level.0 == 0 { self.targets.base } else { level.parent() }
    }

    /// Bytes that the level should hold at most. The deepest possible level has no limit.
    pub fn capacity_bytes(&self, level: LevelId) -> f64 {
        self.targets.bytes.get(level.index()).copied().unwrap_or(f64::INFINITY)
    }
}

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

use serde::Deserialize;

use super::runs::Grouping;
use super::view::{LsmView, MAX_LEVELS};
use crate::num::to_f64;
use crate::version::LevelId;

/// How many sorted runs each level may hold.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Layout {
    /// Every level one run, L0 too: a flush is merged with what L0 holds. The textbook's leveling; L0 holds size ratio times a
    /// memtable.
    Leveling {},
    /// Every level as many runs as the size ratio, the last one too.
    Tiering {},
    /// L0 several runs, the other levels one: RocksDB's and LevelDB's. L1 holds as much as L0.
    OneLeveling {
        /// The runs of L0. Default 4, at least 2.
        #[serde(default = "four")]
        l0_runs: u32,
    },
    /// The last level one run, the others as many as the size ratio: lazy leveling (Dostoevsky).
    LLeveling {},
    /// Runs level by level; the last entry holds for all deeper levels.
    Hybrid {
        /// The limits, L0 first; each at least 1.
        runs: Vec<u32>,
    },
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

/// A layout and the sizes that it works on: what the other primitives ask about levels.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// The tree.
    pub view: &'a LsmView<'a>,
    /// The layout.
    pub layout: &'a Layout,
    /// The capacity ratio of neighbouring levels, at least 2.
    pub ratio: u32,
    /// Capacity of L1 in memtables, if the strategy says it.
    pub level1_memtables: Option<f64>,
}

impl Shape<'_> {
    /// How many runs the level may hold; at least 1.
    pub fn run_limit(&self, level: LevelId) -> u32 {
        match self.layout {
            Layout::Leveling {} => 1,
            Layout::Tiering {} => self.ratio,
            Layout::OneLeveling { l0_runs } => {
                if level.0 == 0 {
                    *l0_runs
                } else {
                    1
                }
            }
            // While there is only L0, the first leveled level is the one that its runs will go to.
            Layout::LLeveling {} => {
                if level >= self.view.last_level().max(LevelId(1)) {
                    1
                } else {
                    self.ratio
                }
            }
            Layout::Hybrid { runs } => runs.get(level.index()).or(runs.last()).copied().unwrap_or(1),
            Layout::Runs { expected_runs, .. } => expected_runs.unwrap_or(self.ratio).max(2),
        }
    }

    /// Whether the level is limited to one run.
    pub fn is_leveled(&self, level: LevelId) -> bool {
        self.run_limit(level) == 1
    }

    /// Bytes that the level should hold at most. The deepest possible level has no limit.
    pub fn capacity_bytes(&self, level: LevelId) -> f64 {
        if level.0 + 1 >= MAX_LEVELS {
            return f64::INFINITY;
        }
        let memtable = to_f64(self.view.sizes.memtable_bytes.max(1));
        let ratio = f64::from(self.ratio);
        let l0_runs = match self.run_limit(LevelId(0)) {
            1 => ratio,
            runs => f64::from(runs),
        };
        if level.0 == 0 {
            return l0_runs * memtable;
        }
        let level1 = match (self.view.sizes.level1_bytes, self.level1_memtables) {
            (0, Some(memtables)) => memtables * memtable,
            (0, None) if matches!(self.layout, Layout::OneLeveling { .. }) => l0_runs * memtable,
            (0, None) => ratio * l0_runs * memtable,
            (bytes, _) => to_f64(bytes),
        };
        level1 * ratio.powi(i32::from(level.0) - 1)
    }
}

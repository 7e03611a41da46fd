//! How much each level should hold: what stands beside the layout.
//!
//! ```text
//! static               L1, then the size ratio from level to level
//! table                the levels as listed, then the size ratio
//! dynamic              from the last level up, so that it holds nine tenths (RocksDB)
//!     L0 -> L4   8M    base: the first level that L0 is compacted to; moves up as the tree grows
//!           L5  80M
//!           L6 800M    as large as it is
//! doubly-exponential   ratios grow towards L0: T, T^X, T^(X^2), ... from the last level up (LSM-Bush)
//! ```

use serde::Deserialize;

use super::layout::Layout;
use super::view::{LsmView, MAX_LEVELS};
use crate::num::to_f64;
use crate::version::LevelId;

/// How the capacities of the levels follow from each other.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum LevelTargets {
    /// L1 as the options, the strategy or the layout say; from there on each level holds the size ratio times the one above it.
    Static {},
    /// The last level is as large as it is, each level above it smaller by the size ratio, until that is no more than L1 would hold. That
    /// level is the base: L0 is compacted into it, the levels between stay empty (RocksDB's level_compaction_dynamic_level_bytes).
    Dynamic {
        /// The levels of the tree, L0 included, from 2 to 32: the first data goes to the last of them. Default 7.
        #[serde(default = "seven")]
        levels: u8,
    },
    /// The size ratio between the last level and the one above it; from there up each ratio is the one below it to the power of
    /// `exponent`. It holds for runs in tiered levels too (LSM-Bush; Dayan and Idreos 2019).
    DoublyExponential {
        /// From 1, where all ratios are equal, to 2. Default 2.
        #[serde(default = "two")]
        exponent: f64,
    },
    /// A list.
    Table {
        /// Capacities from L1 on, in memtables. Deeper levels go on by the size ratio. The keyspace's `level1_bytes` scales all of them.
        memtables: Vec<f64>,
    },
}

impl Default for LevelTargets {
    fn default() -> LevelTargets {
        LevelTargets::Static {}
    }
}

const fn seven() -> u8 {
    7
}

const fn two() -> f64 {
    2.0
}

const LEVELS: usize = MAX_LEVELS as usize;

/// No level is asked to hold more runs than this; a doubly exponential ratio would soon ask for more than there can be.
const MAX_RATIO: f64 = 1e6;

/// What the level targets come to in a tree.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Targets {
    /// By level, how many bytes it should hold at most.
    pub bytes: [f64; LEVELS],
    /// By level, the capacity ratio to the next one.
    pub ratios: [u32; LEVELS],
    /// Where L0 is compacted to.
    pub base: LevelId,
    /// By level, the bytes above it that have no place where they are and will come down soon; only dynamic targets look ahead so.
    pub incoming: Option<[f64; LEVELS]>,
}

/// What the targets are worked out from.
#[derive(Clone, Copy, Debug)]
pub struct Basis<'a> {
    /// The tree.
    pub view: &'a LsmView<'a>,
    /// The layout.
    pub layout: &'a Layout,
    /// The capacity ratio of neighbouring levels, at least 2.
    pub ratio: u32,
    /// Capacity of L1 in memtables, if the strategy says it.
    pub level1_memtables: Option<f64>,
}

impl Targets {
    /// How urgent a level with this score is among the others. With dynamic targets RocksDB's scale: what is full counts ten times, the bytes
    /// about to arrive are added to a full level's capacity, and L0 is compared with the base by bytes too.
    pub fn urgency(&self, view: &LsmView<'_>, level: LevelId, score: f64) -> f64 {
        const FULL: f64 = 10.0;
        let Some(incoming) = &self.incoming else {
            return score;
        };
        if level.0 > 0 {
            let target = self.bytes[level.index()];
            return if score < 1.0 { score } else { FULL * score * target / (target + incoming[level.index()]) };
        }
        let bytes = to_f64(view.idle_files(level).map(|file| file.bytes).sum());
        let base = self.bytes[self.base.index()].min(to_f64(u64::MAX));
        let by_bytes = if bytes > base { bytes / base.max(to_f64(view.level(self.base).bytes())) } else { 0.0 };
        let score = score.max(by_bytes);
        if score > 1.0 { FULL * score } else { score }
    }
}

impl LevelTargets {
    /// The targets in a tree.
    pub fn targets(&self, basis: &Basis<'_>) -> Targets {
        let ratios = self.ratios(basis);
        let memtable = to_f64(basis.view.sizes.memtable_bytes.max(1));
        let l0_runs = match basis.layout.run_limit(basis.view, &ratios, LevelId(0)) {
            1 => f64::from(basis.ratio),
            runs => f64::from(runs),
        };
        let table = match self {
            LevelTargets::Table { memtables } => &memtables[..],
            _ => &[],
        };
        let level1 = match (basis.view.sizes.level1_bytes, basis.level1_memtables) {
            (0, _) if !table.is_empty() => table[0] * memtable,
            (0, Some(memtables)) => memtables * memtable,
            (0, None) if matches!(basis.layout, Layout::OneLeveling { .. }) => l0_runs * memtable,
            (0, None) => f64::from(basis.ratio) * l0_runs * memtable,
            (bytes, _) => to_f64(bytes),
        };
        let mut bytes = [0.0; LEVELS];
        bytes[0] = l0_runs * memtable;
        bytes[1] = level1;
        for level in 2..LEVELS {
            bytes[level] = match table.get(level - 1) {
                Some(memtables) => level1 * memtables / table[0],
                None => bytes[level - 1] * f64::from(ratios[level - 1]),
            };
        }
        bytes[LEVELS - 1] = f64::INFINITY;
        if let Layout::Guarded(guarded) = basis.layout {
            bytes[guarded.last_level(basis.view).index()..].fill(f64::INFINITY);
        }
        let targets = Targets { bytes, ratios, base: LevelId(1), incoming: None };
        match self {
            LevelTargets::Dynamic { levels } => dynamic(basis, *levels, targets),
            _ => targets,
        }
    }

    fn ratios(&self, basis: &Basis<'_>) -> [u32; LEVELS] {
        let LevelTargets::DoublyExponential { exponent } = self else {
            return [basis.ratio; LEVELS];
        };
        let mut ratios = [basis.ratio; LEVELS];
        let mut ratio = f64::from(basis.ratio);
        for level in (0..basis.view.last_level().index().max(1)).rev() {
            ratios[level] = whole(ratio);
            ratio = ratio.powf(*exponent).min(MAX_RATIO);
        }
        ratios
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded by MAX_RATIO, at least 2")]
fn whole(ratio: f64) -> u32 {
    ratio.round() as u32
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a capacity, not negative; what is too large saturates"
)]
fn whole_bytes(bytes: f64) -> u64 {
    bytes as u64
}

/// RocksDB's dynamic level sizes. All divisions round down, as there.
fn dynamic(basis: &Basis<'_>, levels: u8, fixed: Targets) -> Targets {
    let view = basis.view;
    let ratio = u64::from(basis.ratio);
    let last = usize::from(levels.saturating_sub(1)).max(view.last_level().index());
    let held: Vec<u64> = (0..=last).map(|level| view.level(level_id(level)).bytes()).collect();
    let most = whole_bytes(fixed.bytes[1]);
    let least = most / ratio;
    let (base, base_bytes) = match (1..=last).find(|level| held[*level] > 0) {
        None => (last, most),
        Some(first) => {
            let largest = held[1..].iter().copied().max().unwrap_or(0);
            let mut target = (first..last).fold(largest, |target, _| target / ratio);
            let mut base = first;
            if target <= least {
                target = least + 1;
            } else {
                while base > 1 && target > most {
                    base -= 1;
                    target /= ratio;
                }
            }
            (base, target.min(most))
        }
    };
    let mut targets = Targets { base: level_id(base), ..fixed };
    let mut target = base_bytes;
    for level in 1..LEVELS {
        targets.bytes[level] = if level < base { 0.0 } else { to_f64(target.max(most)) };
        if level >= base {
            target = target.saturating_mul(ratio);
        }
    }
    // Nothing is compacted out of the last level.
    for level in last..LEVELS {
        targets.bytes[level] = f64::INFINITY;
    }
    let mut incoming = [0.0; LEVELS];
    let mut coming = to_f64(held[0]);
    for level in 1..=last {
        incoming[level] = coming;
        coming += (to_f64(held[level]) - targets.bytes[level]).max(0.0);
    }
    targets.incoming = Some(incoming);
    targets
}

fn level_id(level: usize) -> LevelId {
    LevelId(u8::try_from(level).unwrap_or(MAX_LEVELS - 1))
}

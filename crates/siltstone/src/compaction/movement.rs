//! The fourth primitive: which file of a level moves (sarkar21 section 3.1.4).
//!
//! A movement choice gives each candidate a score; the smallest goes first. A list of choices breaks ties from left to right, and what is
//! still equal after the last is decided by the strategy's `tie_break`: the left-most or right-most file in key order. That
//! the tie-break is said aloud matters: effects of it have been credited to picking.

use serde::Deserialize;

use super::trigger::density;
use super::view::LsmView;
use crate::num::{to_f64, to_u64};
use crate::version::{FileMeta, LevelId, Run};

/// Which file moves first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Movement {
    /// The next one in key order after the last that was taken, around and around (LevelDB's cursor; the cursor is in the view).
    RoundRobin,
    /// The fewest bytes of the next level overlapped, per byte of the file (sarkar21's LO+1).
    LeastOverlapParent,
    /// The fewest bytes overlapped in the level after the next, per byte of the file, and nothing else (the code of sarkar21's LO+2:
    /// the two readings differ). Falls back to the next level where the tree ends before.
    LeastOverlapGrandparent,
    /// The fewest bytes of the next level overlapped, per *compensated* byte: a file with more tombstones than other entries counts
    /// as larger (RocksDB's kMinOverlappingRatio).
    MinOverlapRatio,
    /// The one whose last read was the longest ago; never read counts as longest. Real reads, not sequence numbers.
    Coldest,
    /// The one that was created first.
    Oldest,
    /// The largest share of tombstones.
    TombstoneDensity,
    /// The one with the oldest tombstone; files without tombstones come last.
    ExpiredTombstones,
    /// The most bytes.
    Largest,
}

/// The scores of `candidates`, which ascend by smallest key; smaller goes first.
pub fn scores(movement: Movement, view: &LsmView<'_>, level: LevelId, candidates: &[&FileMeta]) -> Vec<f64> {
    let each = |score: &dyn Fn(&FileMeta) -> f64| candidates.iter().map(|file| score(file)).collect();
    match movement {
        Movement::RoundRobin => round_robin(view.cursor(level), candidates),
        Movement::LeastOverlapParent => overlap_per(view, level.parent(), candidates, |file| file.bytes),
        Movement::LeastOverlapGrandparent => {
            let grandparent = level.parent().parent();
            let below = if grandparent <= view.last_level() { grandparent } else { level.parent() };
            overlap_per(view, below, candidates, |file| file.bytes)
        }
        Movement::MinOverlapRatio => overlap_per(view, level.parent(), candidates, compensated_bytes),
        Movement::Coldest => each(&|file| to_f64(view.reads_of(file.id).last_read_ms)),
        Movement::Oldest => each(&|file| to_f64(file.created_ms)),
        Movement::TombstoneDensity => each(&|file| -density(file)),
        Movement::ExpiredTombstones => each(&|file| file.oldest_tombstone_ms.map_or(f64::INFINITY, to_f64)),
        Movement::Largest => each(&|file| -to_f64(file.bytes)),
    }
}

/// Ranks: the candidates behind the cursor first, each half in key order.
fn round_robin(cursor: &[u8], candidates: &[&FileMeta]) -> Vec<f64> {
    let behind = |file: &FileMeta| cursor.is_empty() || file.largest[..] > *cursor;
    let ahead = to_u64(candidates.len());
    let rank = |(n, file): (u64, &&FileMeta)| to_f64(if behind(file) { n } else { n + ahead });
    (0u64..).zip(candidates).map(rank).collect()
}

/// RocksDB's compensation: beyond half of the entries, a tombstone counts as two average records.
fn compensated_bytes(file: &FileMeta) -> u64 {
    let surplus = (2 * file.tombstones).saturating_sub(file.entries);
    file.bytes + 2 * surplus * (file.bytes / file.entries.max(1))
}

fn overlap_per(
    view: &LsmView<'_>,
    below: LevelId,
    candidates: &[&FileMeta],
    bytes: impl Fn(&FileMeta) -> u64,
) -> Vec<f64> {
    let mut overlaps = vec![0u64; candidates.len()];
    for run in &view.level(below).runs {
        add_overlaps(run, candidates, &mut overlaps);
    }
    let ratio = |(overlap, file): (u64, &&FileMeta)| to_f64(overlap) / to_f64(bytes(file).max(1));
    overlaps.into_iter().zip(candidates).map(ratio).collect()
}

/// Adds to each candidate the bytes that it overlaps in `run`. Both ascend, so one pass over both does it; candidates of several runs
/// may overlap each other, so the pass goes back as far as the candidate before began.
fn add_overlaps(run: &Run, candidates: &[&FileMeta], overlaps: &mut [u64]) {
    let mut from = 0;
    for (candidate, overlap) in candidates.iter().zip(overlaps) {
        while run.files.get(from).is_some_and(|file| file.largest < candidate.smallest) {
            from += 1;
        }
        let overlapped = run.files[from..].iter().take_while(|file| file.smallest <= candidate.largest);
        *overlap += overlapped.map(|file| file.bytes).sum::<u64>();
    }
}

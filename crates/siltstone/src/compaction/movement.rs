//! The fourth primitive: which file of a level moves (sarkar21 section 3.1.4).
//!
//! A movement choice gives each candidate a score; the smallest goes first. A list of choices breaks ties from left to right, and what is
//! still equal after the last is decided by the strategy's `tie_break`: the left-most or right-most file in key order, the one with the most
//! expensive successor, or dice. That the tie-break is said aloud matters: effects of it have been credited to picking.

use serde::Deserialize;

use super::layout::Shape;
use super::trigger::density;
use super::view::LsmView;
use crate::num::{to_f64, to_u64};
use crate::version::{FileMeta, LevelId, Run};

pub mod refined;
pub mod window;

/// Which file moves first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Movement {
    /// The next one in key order after the last that was taken, around and around (LevelDB's cursor; the cursor is in the view).
    RoundRobin,
    /// Any, by dice: a hash of the strategy's `seed`, the candidates and the file. Equal trees throw equal dice.
    Random,
    /// The fewest bytes of the next level overlapped, per byte of the file (sarkar21's LO+1).
    LeastOverlapParent,
    /// The fewest bytes overlapped in the level after the next, per byte of the file, and nothing else (the code of sarkar21's LO+2:
    /// the two readings differ). Falls back to the next level where the tree ends before.
    LeastOverlapGrandparent,
    /// The fewest *files* of the next level overlapped (choose-best: luo19 section 2, after Thonangi and Yang). With files of equal
    /// sizes it agrees with `least-overlap-parent`.
    ChooseBest,
    /// The fewest bytes of the next level overlapped, per *compensated* byte: a file with more tombstones than other entries counts
    /// as larger (RocksDB's kMinOverlappingRatio).
    MinOverlapRatio,
    /// Of the files within 5 % of the smallest `min-overlap-ratio`, the one before the most expensive neighbour, whose borders then
    /// shift (RefinedMOR, wei25, as described); see [`refined`].
    RefinedMor,
    /// Of the files within 5 % of the smallest `min-overlap-ratio`, the right-most: what the released code of RefinedMOR does.
    RefinedMorRightmost,
    /// The neighbouring files that take the most bytes of the level along for each byte of the next one (HyperLevelDB); see [`window`].
    /// Takes granularity `files` with a budget.
    MaxRatioWindow,
    /// The one whose last read was the longest ago; never read counts as longest. Real reads, not sequence numbers.
    Coldest,
    /// The one that was created first.
    Oldest,
    /// The smallest smallest sequence number (RocksDB's kOldestSmallestSeqFirst; "Old" in the code of sarkar21).
    OldestSmallestSeq,
    /// The smallest largest sequence number (RocksDB's kOldestLargestSeqFirst; "Cold" in the code of sarkar21, which counts no reads).
    OldestLargestSeq,
    /// The largest share of tombstones.
    TombstoneDensity,
    /// The most compensated bytes: where more than half of a file's entries are tombstones, each one beyond the half counts as two average
    /// records (RocksDB's kByCompensatedSize; "TSD" in the code of sarkar21, where with few deletes it is `largest`).
    CompensatedSize,
    /// The one with the oldest tombstone; among those as old, the one with more tombstones; files without tombstones come last, all alike,
    /// so that the next choice of the list decides among them.
    ExpiredTombstones,
    /// The most bytes.
    Largest,
}

/// What a movement chooses for.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The tree and its layout.
    pub shape: &'a Shape<'a>,
    /// The level whose files are the candidates.
    pub level: LevelId,
    /// The strategy's seed.
    pub seed: u64,
    /// What a window of files and what it overlaps may hold together, in bytes.
    pub window_bytes: u64,
}

impl<'a> Choice<'a> {
    fn view(&self) -> &'a LsmView<'a> {
        self.shape.view
    }

    /// The level that the candidates go to.
    fn below(&self) -> LevelId {
        self.shape.next_level(self.level)
    }
}

/// The scores of `candidates`, which ascend by smallest key; smaller goes first.
pub fn scores(movement: Movement, choice: &Choice<'_>, candidates: &[&FileMeta]) -> Vec<f64> {
    let view = choice.view();
    let each = |score: &dyn Fn(&FileMeta) -> f64| candidates.iter().map(|file| score(file)).collect();
    match movement {
        Movement::RoundRobin => round_robin(cursor(choice), candidates),
        Movement::Random => dice(choice.seed, candidates),
        Movement::LeastOverlapParent => overlap_per(view, choice.below(), candidates, |file| file.bytes),
        Movement::LeastOverlapGrandparent => {
            let grandparent = choice.below().parent();
            let below = if grandparent <= view.last_level() { grandparent } else { choice.below() };
            overlap_per(view, below, candidates, |file| file.bytes)
        }
        Movement::ChooseBest => overlapped_files(view, choice.below(), candidates),
        Movement::MinOverlapRatio => overlap_per(view, choice.below(), candidates, compensated_bytes),
        Movement::RefinedMor => refined::scores(choice, candidates, refined::Among::LargestSuccessor),
        Movement::RefinedMorRightmost => refined::scores(choice, candidates, refined::Among::RightMost),
        Movement::MaxRatioWindow => window::scores(choice, candidates),
        Movement::Coldest => each(&|file| to_f64(view.reads_of(file.id).last_read_ms)),
        Movement::Oldest => each(&|file| to_f64(file.created_ms)),
        Movement::OldestSmallestSeq => each(&|file| to_f64(file.min_seq.0)),
        Movement::OldestLargestSeq => each(&|file| to_f64(file.max_seq.0)),
        Movement::TombstoneDensity => each(&|file| -density(file)),
        Movement::CompensatedSize => each(&|file| -to_f64(compensated_bytes(file))),
        Movement::ExpiredTombstones => each(&|file| file.oldest_tombstone_ms.map_or(f64::INFINITY, to_f64)),
        Movement::Largest => each(&|file| -to_f64(file.bytes)),
    }
}

/// What decides between candidates to which `movement` gives equal scores, before the next choice of the list does; none for most.
pub fn finer_scores(movement: Movement, choice: &Choice<'_>, candidates: &[&FileMeta]) -> Option<Vec<f64>> {
    match movement {
        Movement::ExpiredTombstones => Some(candidates.iter().map(|file| -to_f64(file.tombstones)).collect()),
        Movement::MaxRatioWindow => Some(window::sizes(choice, candidates)),
        _ => None,
    }
}

/// The key after which round-robin goes on; empty for the start.
pub(super) fn cursor<'a>(choice: &Choice<'a>) -> &'a [u8] {
    // A deletion part loses its files from the left: its first one is the next, a reopened store forgets nothing.
    if choice.shape.is_two_phase(choice.level) { &[] } else { choice.view().cursor(choice.level) }
}

/// Ranks: the candidates behind the cursor first, each half in key order.
fn round_robin(cursor: &[u8], candidates: &[&FileMeta]) -> Vec<f64> {
    let behind = |file: &FileMeta| cursor.is_empty() || file.largest[..] > *cursor;
    let ahead = to_u64(candidates.len());
    let rank = |(n, file): (u64, &&FileMeta)| to_f64(if behind(file) { n } else { n + ahead });
    (0u64..).zip(candidates).map(rank).collect()
}

/// Numbers below 2^53 that look random. The candidates' ids are mixed in, so that whenever one of them is gone the dice are thrown anew:
/// with one number a file for its whole life, files with large numbers would stay behind for ever.
pub fn dice(seed: u64, candidates: &[&FileMeta]) -> Vec<f64> {
    let thrown = candidates.iter().fold(mix(seed), |all, file| mix(all ^ file.id.0));
    candidates.iter().map(|file| to_f64(mix(thrown ^ mix(file.id.0)) >> 11)).collect()
}

/// The finalizer of splitmix64 (Steele, Lea, Flood): each bit of the input changes about half of the output.
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// RocksDB's compensation: beyond half of the entries, a tombstone counts as two average records.
pub fn compensated_bytes(file: &FileMeta) -> u64 {
    let surplus = (2 * file.tombstones).saturating_sub(file.entries);
    file.bytes + 2 * surplus * (file.bytes / file.entries.max(1))
}

fn overlap_per(
    view: &LsmView<'_>,
    below: LevelId,
    candidates: &[&FileMeta],
    bytes: impl Fn(&FileMeta) -> u64,
) -> Vec<f64> {
    let ratio = |(overlap, file): (u64, &&FileMeta)| to_f64(overlap) / to_f64(bytes(file).max(1));
    overlapped(view, below, candidates, |file| file.bytes).into_iter().zip(candidates).map(ratio).collect()
}

fn overlapped_files(view: &LsmView<'_>, below: LevelId, candidates: &[&FileMeta]) -> Vec<f64> {
    overlapped(view, below, candidates, |_| 1).into_iter().map(to_f64).collect()
}

/// For each candidate, the sum of `of` over the files of `below` that it overlaps.
fn overlapped(view: &LsmView<'_>, below: LevelId, candidates: &[&FileMeta], of: impl Fn(&FileMeta) -> u64) -> Vec<u64> {
    let mut overlaps = vec![0u64; candidates.len()];
    for run in &view.level(below).runs {
        add_overlaps(run, candidates, &of, &mut overlaps);
    }
    overlaps
}

/// Adds to each candidate what it overlaps in `run`. Both ascend, so one pass over both does it; candidates of several runs
/// may overlap each other, so the pass goes back as far as the candidate before began.
fn add_overlaps(run: &Run, candidates: &[&FileMeta], of: impl Fn(&FileMeta) -> u64, overlaps: &mut [u64]) {
    let mut from = 0;
    for (candidate, overlap) in candidates.iter().zip(overlaps) {
        while run.files.get(from).is_some_and(|file| file.largest < candidate.smallest) {
            from += 1;
        }
        let overlapped = run.files[from..].iter().take_while(|file| file.smallest <= candidate.largest);
        *overlap += overlapped.map(|file| of(file)).sum::<u64>();
    }
}

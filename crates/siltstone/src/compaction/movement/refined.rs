//! RefinedMOR (wei25): among files that cost nearly the same, take the one whose going helps its neighbour.
//!
//! ```text
//! m = the smallest overlap ratio; 0: that file, it moves for free
//! C = the files with a ratio of at most 1.05 m
//!     the level's last file, if it is in C: it has no neighbour to help
//!     else the one whose successor has the largest ratio
//! ```
//!
//! When a file goes, the borders of its successor's overlap shift; the more expensive the successor is, the more there is to gain.
//!
//! The released code compares a negative number as an unsigned one and so always takes the right-most file of C
//! ([`Among::RightMost`]). It also rounds the bound down and compares strictly, so that C can be empty when m is small. Here ratios
//! are compared exactly, as fractions, and C always holds the smallest.

use super::{Choice, compensated_bytes, overlapped};
use crate::num::to_f64;
use crate::version::FileMeta;

/// Which file of C is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Among {
    /// The one whose successor has the largest ratio.
    LargestSuccessor,
    /// The last in key order.
    RightMost,
}

/// Bytes overlapped per compensated byte of a file, as a fraction.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    overlap: u128,
    bytes: u128,
}

impl Ratio {
    fn new(overlap: u64, file: &FileMeta) -> Ratio {
        Ratio { overlap: overlap.into(), bytes: compensated_bytes(file).max(1).into() }
    }

    /// Whether this is at most `percent` hundredths of `other`.
    fn is_within(self, percent: u128, other: Ratio) -> bool {
        self.overlap * other.bytes * 100 <= percent * other.overlap * self.bytes
    }

    #[expect(clippy::cast_precision_loss, reason = "for display and for comparing successors, as the original does")]
    fn value(self) -> f64 {
        self.overlap as f64 / self.bytes as f64
    }
}

/// Files within this percentage of the smallest ratio are in C.
const PERCENT: u128 = 105;

/// Scores: files of C have negative ones, the others their overlap ratio.
pub fn scores(choice: &Choice<'_>, candidates: &[&FileMeta], among: Among) -> Vec<f64> {
    let overlaps = overlapped(choice.view(), choice.below(), candidates, |file| file.bytes);
    let ratios: Vec<Ratio> =
        overlaps.iter().zip(candidates).map(|(overlap, file)| Ratio::new(*overlap, file)).collect();
    let smallest =
        ratios.iter().copied().reduce(|least, ratio| if ratio.is_within(100, least) { ratio } else { least });
    let smallest = smallest.filter(|ratio| ratio.overlap > 0);
    let score = |(n, ratio): (u64, &Ratio)| match smallest {
        Some(smallest) if ratio.is_within(PERCENT, smallest) => match among {
            Among::RightMost => -to_f64(n + 1),
            Among::LargestSuccessor => -1.0 - successor_ratio(choice, candidates[crate::num::to_usize(n)]),
        },
        _ => ratio.value(),
    };
    (0u64..).zip(&ratios).map(score).collect()
}

/// The overlap ratio of the file after `file` in its run; infinite for the last one.
pub fn successor_ratio(choice: &Choice<'_>, file: &FileMeta) -> f64 {
    let runs = &choice.view().level(choice.level).runs;
    let successor = runs.iter().find_map(|run| {
        let at = run.files.partition_point(|other| other.smallest < file.smallest);
        run.files.get(at).filter(|other| other.id == file.id).map(|_| run.files.get(at + 1))
    });
    let Some(Some(successor)) = successor else {
        return f64::INFINITY;
    };
    let below = &choice.view().level(choice.below()).runs;
    let met = below.iter().flat_map(|run| run.overlapping(&successor.smallest, &successor.largest));
    Ratio::new(met.map(|file| file.bytes).sum(), successor).value()
}

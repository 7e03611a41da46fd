//! One merge at a time, the oldest, to its end (luo19 section 5.1.3).
//!
//! What stores with one merging thread do. A large merge keeps all others waiting, so runs gather meanwhile: luo19 measures long stalls. No
//! merge starves: each becomes the oldest.

use super::{MergeProgress, Share, Why, first_by};

/// The shares; see [`Scheduler::next`](super::Scheduler::next).
pub fn next(jobs: &[MergeProgress], shares: &mut [Share]) {
    first_by(jobs, 1, shares, |job| job.job, Why::Older);
}

//! All merges step and share the bandwidth evenly (luo19 section 5.1.3).
//!
//! All levels progress at the same rate, so what is written in the long run can be merged in the long run: the scheduler to measure the
//! maximum with. No merge starves.

use super::{MergeProgress, Share, Why};

/// The shares; see [`Scheduler::next`](super::Scheduler::next).
pub fn next(jobs: &[MergeProgress], shares: &mut [Share]) {
    for (job, share) in jobs.iter().zip(shares) {
        *share = if job.held { Share::none(Why::Held) } else { Share::FULL };
    }
}

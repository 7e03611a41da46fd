//! The merges with the least left get all the bandwidth (luo19 section 5.1.5).
//!
//! Of a set of merges that each take away the same number of runs, ending the smallest first leaves the fewest runs at every moment (luo19
//! theorem 2). Where they take away different numbers, what counts is how many bytes must be read for each run that goes
//! (Smith's rule); with equal numbers both orders are the same. A merge that takes away no run, as the merge of one file into the next
//! level does, comes after those that do, the smallest first.
//!
//! A smaller merge that arrives goes first from the next step on. So a large one can starve as long as smaller ones keep coming, which
//! they do only while more is written than can be merged: nothing is promised then, and a measurement under such a load reports a
//! throughput that does not last (luo19 section 5.1.5). Measure with `fair`.

use serde::{Deserialize, Serialize};

use super::{MergeProgress, Share, Why, first_by};

/// Parameters of `greedy`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Greedy {
    /// How many merges step at once: as many as it takes to fill the bandwidth. Default 0: one for each merging thread.
    pub width: u32,
}

impl Greedy {
    pub(super) fn validate(&self) -> Result<(), String> {
        if self.width <= 64 { Ok(()) } else { Err(format!("width = {}: from 0 (one a thread) to 64", self.width)) }
    }

    /// The shares; see [`Scheduler::next`](super::Scheduler::next).
    pub fn next(&self, jobs: &[MergeProgress], lanes: u32, shares: &mut [Share]) {
        let width = if self.width == 0 { lanes } else { self.width };
        first_by(jobs, width, shares, cost, Why::Smaller);
    }
}

/// Bytes left for each run that goes away, in 256ths; those that take none away last.
fn cost(job: &MergeProgress) -> (bool, u128) {
    (job.fewer_runs == 0, u128::from(job.left_bytes) * 256 / u128::from(job.fewer_runs.max(1)))
}

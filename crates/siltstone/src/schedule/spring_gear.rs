//! Gears keep the merges of neighbouring levels in step (bLSM section 4).
//!
//! A merge into a level fills it; a merge out of the level empties it. The first may be as far as the second: when the level is full, the
//! room for its next filling must be there. So a merge that is ahead of the one that makes room for it is slowed down, in proportion to
//! how far it is ahead, and stops at [`slack_permille`](SpringGear::slack_permille). Gears are for merges of whole levels: a merge of
//! some files of a level empties nothing, and nobody waits for it. The spring above L0 is the write control: writers
//! are slowed down gradually between the low and the high water of the memory for memtables.
//!
//! The deepest merge of a tree always steps, so all of them come to their end: none starves.

use serde::{Deserialize, Serialize};

use super::{FULL, MergeProgress, Share, Why};

/// Parameters of `spring-gear`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpringGear {
    /// How far a merge may be ahead before it stops, in thousandths of the level. Default 100; at least 1, at most 1000.
    pub slack_permille: u32,
}

impl Default for SpringGear {
    fn default() -> SpringGear {
        SpringGear { slack_permille: 100 }
    }
}

impl SpringGear {
    pub(super) fn validate(&self) -> Result<(), String> {
        match self.slack_permille {
            1..=1000 => Ok(()),
            slack => Err(format!("slack_permille = {slack}: from 1 to 1000")),
        }
    }

    /// The shares; see [`Scheduler::next`](super::Scheduler::next).
    pub fn next(&self, jobs: &[MergeProgress], shares: &mut [Share]) {
        for (job, share) in jobs.iter().zip(shares.iter_mut()) {
            // Of several merges out of the level the one that is least far counts. For one that is held nobody waits.
            let makes_room =
                |other: &&MergeProgress| other.from_level == job.to_level && other.room_bytes > 0 && !other.held;
            let below = jobs
                .iter()
                .filter(|other| other.tree == job.tree)
                .filter(makes_room)
                .min_by_key(|other| (other.done_permille(), other.job));
            *share = match below {
                _ if job.held => Share::none(Why::Held),
                Some(below) if !job.urgent => self.geared(job, below),
                _ => Share::FULL,
            };
        }
    }

    fn geared(&self, job: &MergeProgress, below: &MergeProgress) -> Share {
        // A level is as full as when it was last emptied when it holds as many bytes as leave it now.
        let here = u128::from(job.stays_bytes) + u128::from(job.adds_bytes) * u128::from(job.done_permille()) / 1000;
        let filled = u64::try_from(here * 1000 / u128::from(below.room_bytes)).unwrap_or(u64::MAX);
        let ahead = filled.saturating_sub(below.done_permille());
        let slack = u64::from(self.slack_permille);
        if ahead >= slack {
            return Share::none(Why::Room(below.job));
        }
        let weight = u64::from(FULL) * (slack - ahead) / slack;
        Share { weight: u32::try_from(weight).unwrap_or(FULL).max(1), why: Why::Steps }
    }
}

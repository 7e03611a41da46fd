//! Work that writers wait for goes first; the rest gets the bandwidth that users leave (SILK, sections 3 and 4).
//!
//! Flushes have a thread of their own and never wait. Merges out of L0 come next, as writers stop when L0 is full. Merges below preempt
//! nobody, and step at a rate that follows the load of the foreground: what the device gives less what users take, looked at every
//! [`sample_ms`](Silk::sample_ms), and changed only when it moves by more than [`hysteresis_percent`](Silk::hysteresis_percent).
//!
//! A merge below L0 starves while merges out of L0 keep all lanes busy; its rate never falls below
//! [`least_bytes_per_s`](Silk::least_bytes_per_s).

use serde::{Deserialize, Serialize};

use super::{MergeProgress, Share, Why, first_by};

/// Parameters of `silk`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Silk {
    /// What the device gives, in bytes a second. Default 0: unknown, so that merges below L0 are not slowed down.
    pub device_bytes_per_s: u64,
    /// The rate that merges below L0 have in any case, in bytes a second, all together. Default 1 MiB a second.
    pub least_bytes_per_s: u64,
    /// How often the load of the foreground is looked at, in milliseconds. Default 10, SILK's.
    pub sample_ms: u32,
    /// The rate changes only when it moves by more than this, in percent of what the device gives. Default 5: SILK's 10 MB of 200.
    pub hysteresis_percent: u32,
}

impl Default for Silk {
    fn default() -> Silk {
        Silk { device_bytes_per_s: 0, least_bytes_per_s: 1 << 20, sample_ms: 10, hysteresis_percent: 5 }
    }
}

impl Silk {
    pub(super) fn validate(&self) -> Result<(), String> {
        let check = |holds: bool, what: String| if holds { Ok(()) } else { Err(what) };
        check((1..=60_000).contains(&self.sample_ms), format!("sample_ms = {}: from 1 to 60000", self.sample_ms))?;
        check(
            self.hysteresis_percent <= 100,
            format!("hysteresis_percent = {}: from 0 to 100", self.hysteresis_percent),
        )?;
        check(
            self.least_bytes_per_s > 0,
            "least_bytes_per_s = 0: at least 1, or merges below L0 would never end".to_owned(),
        )
    }

    /// The shares; see [`Scheduler::next`](super::Scheduler::next).
    pub fn next(&self, jobs: &[MergeProgress], lanes: u32, shares: &mut [Share]) {
        first_by(jobs, lanes, shares, |job| (is_deep(job), job.class, job.from_level), Why::FirstClass);
    }

    /// The rate of merges below L0, all together, when users move `foreground` bytes a second and the rate before was `before`; 0 is
    /// no limit.
    pub fn rate(&self, before: u64, foreground: u64) -> u64 {
        if self.device_bytes_per_s == 0 {
            return 0;
        }
        let left = self.device_bytes_per_s.saturating_sub(foreground).max(self.least_bytes_per_s);
        let step = self.device_bytes_per_s / 100 * u64::from(self.hysteresis_percent);
        if before != 0 && left.abs_diff(before) <= step { before } else { left }
    }
}

/// Whether a merge is one of those that get what the foreground leaves.
pub fn is_deep(job: &MergeProgress) -> bool {
    job.from_level > 0 && !job.urgent
}

//! Which entries of a merge live on. The one place where versions and tombstones are dropped.
//!
//! # Snapshots cut time into stripes
//!
//! ```text
//!   seq   1   2   3   4   5   6   7   8   9
//!             ^               ^                snapshots at 2 and 6
//!         stripe 0    stripe 1      stripe 2
//! ```
//!
//! All readers, those at a snapshot and those at now, see of one stripe only the newest version of a key. So
//!
//! - a version is dropped when a newer one of its key lies in the same stripe;
//! - a tombstone is dropped when it lies in stripe 0, so that every reader who could see an older version sees the
//!   tombstone instead, **and** no older version can exist outside the merge ([`OlderRuns`]). The older versions inside the
//!   merge are in stripe 0 as well and go with it.
//!
//! A snapshot at sequence number 0 is a snapshot: the list decides, no number stands for "none".
//! Sequence numbers are never rewritten (row 26).

use std::ops::AddAssign;

use crate::compaction::Plan;
use crate::key::{SeqNo, Trailer};
use crate::planted::{self, Bug};
use crate::version::{Files, Version};

/// Tells for ascending keys whether an older run, one that takes no part in the merge, could hold the key.
#[derive(Debug)]
pub struct OlderRuns {
    runs: Vec<OlderRun>,
}

#[derive(Debug)]
struct OlderRun {
    files: Files,
    /// Every file before it ends below the keys that are still to come.
    next: usize,
}

impl OlderRuns {
    /// What is older than the output of `plan`, in the version that the plan was made for.
    pub fn below(plan: &Plan, version: &Version) -> OlderRuns {
        OlderRuns::new(plan.older_files(version).into_iter().map(Files::from).collect())
    }

    /// From the files of each older run, ascending by key.
    pub fn new(runs: Vec<Files>) -> OlderRuns {
        let runs = runs.into_iter().filter(|files| !files.is_empty());
        OlderRuns { runs: runs.map(|files| OlderRun { files, next: 0 }).collect() }
    }

    /// Every run of the tree is older: what a flush passes.
    pub fn everything(version: &Version) -> OlderRuns {
        OlderRuns::new(version.runs().map(|(_, run)| run.files.clone()).collect())
    }

    /// Whether one older file's key range holds all keys from `first` to `last`. As with [`may_hold`](Self::may_hold) keys must ascend.
    fn may_hold_all(&mut self, first: &[u8], last: &[u8]) -> bool {
        self.may_hold(first)
            && self.runs.iter().any(|run| {
                let rest = run.files.get(run.next..).unwrap_or_default();
                let file = rest.iter().find(|file| file.largest[..] >= *first);
                file.is_some_and(|file| file.smallest[..] <= *first && *last <= file.largest[..])
            })
    }

    /// Whether some older file's key range holds `key`. Keys must ascend from call to call; then a merge's calls together
    /// take time in proportion to the files.
    fn may_hold(&mut self, key: &[u8]) -> bool {
        self.runs.iter_mut().any(|run| {
            while run.files.get(run.next).is_some_and(|file| file.largest[..] < *key) {
                run.next += 1;
            }
            run.files.get(run.next).is_some_and(|file| file.smallest[..] <= *key)
        })
    }
}

/// What becomes of one entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fate {
    /// Whether it is written to the output.
    pub keep: bool,
    /// Whether it is kept and its user key's first version that is: only before such an entry may an output file end.
    pub first_of_key: bool,
}

/// What a merge kept and dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SurvivorCounts {
    /// Entries kept, tombstones included.
    pub kept: u64,
    /// Entries, tombstones included, that a newer version of their key hides from everyone.
    pub dropped_versions: u64,
    /// Tombstones that had nothing left to hide.
    pub dropped_tombstones: u64,
}

impl AddAssign for SurvivorCounts {
    fn add_assign(&mut self, other: SurvivorCounts) {
        self.kept += other.kept;
        self.dropped_versions += other.dropped_versions;
        self.dropped_tombstones += other.dropped_tombstones;
    }
}

/// Judges the entries of a merge one after the other, in internal order. Allocates nothing per entry.
#[derive(Debug)]
pub struct Survivor {
    /// Ascending, no duplicates.
    snapshots: Vec<SeqNo>,
    older: OlderRuns,
    /// The user key of the entry before.
    key: Vec<u8>,
    /// The stripe of the entry before; none before the first entry.
    stripe: Option<usize>,
    /// Whether a version of `key` was kept.
    kept: bool,
    counts: SurvivorCounts,
}

impl Survivor {
    /// For a merge under these snapshots (in any order) above these older runs. Snapshots that are taken later see all of
    /// the merge's entries or newer ones, so they need not be known.
    pub fn new(mut snapshots: Vec<SeqNo>, older: OlderRuns) -> Survivor {
        snapshots.sort_unstable();
        snapshots.dedup();
        if planted::active(Bug::SnapshotIgnored) {
            snapshots.pop();
        }
        Survivor { snapshots, older, key: Vec::new(), stripe: None, kept: false, counts: SurvivorCounts::default() }
    }

    /// The fate of the next entry. Entries come in internal order: keys ascending, versions of a key newest first.
    pub fn judge(&mut self, key: &[u8], trailer: Trailer) -> Fate {
        let stripe = self.stripe_of(trailer.seq());
        let same_key = self.stripe.is_some() && self.key == key;
        debug_assert!(self.stripe.is_none() || self.key[..] <= *key, "keys must ascend");
        let hidden = same_key && self.stripe == Some(stripe);
        if !same_key {
            self.key.clear();
            self.key.extend_from_slice(key);
            self.kept = false;
        }
        self.stripe = Some(stripe);
        if hidden {
            self.counts.dropped_versions += 1;
            return Fate { keep: false, first_of_key: false };
        }
        if trailer.is_delete()
            && stripe == 0
            && (!self.older.may_hold(key) || planted::active(Bug::TombstoneDroppedEarly))
        {
            self.counts.dropped_tombstones += 1;
            return Fate { keep: false, first_of_key: false };
        }
        let first_of_key = !self.kept;
        self.kept = true;
        self.counts.kept += 1;
        Fate { keep: true, first_of_key }
    }

    /// Whether `key` is another one than that of the entry judged last.
    pub fn is_new_key(&self, key: &[u8]) -> bool {
        self.stripe.is_none() || self.key != key
    }

    /// Whether every tombstone with a key from `first` to `last` and a sequence number from `min_seq` on would be kept. Errs on the side of
    /// no. `first` is not below the keys judged before.
    pub fn keeps_tombstones(&mut self, first: &[u8], last: &[u8], min_seq: SeqNo) -> bool {
        self.snapshots.first().is_some_and(|oldest| min_seq > *oldest) || self.older.may_hold_all(first, last)
    }

    /// Notes that as many entries went to the output unjudged.
    pub fn passed(&mut self, entries: u64) {
        self.counts.kept += entries;
    }

    /// What was kept and dropped so far.
    pub fn counts(&self) -> SurvivorCounts {
        self.counts
    }

    /// The number of snapshots that do not see `seq`: equal for two entries that no snapshot tells apart.
    #[inline]
    fn stripe_of(&self, seq: SeqNo) -> usize {
        match self.snapshots.last() {
            None => 0,
            Some(newest) if seq > *newest => self.snapshots.len(),
            Some(_) => self.snapshots.partition_point(|snapshot| *snapshot < seq),
        }
    }
}

#[cfg(test)]
mod tests;

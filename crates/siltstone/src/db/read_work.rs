//! What reads pay for the number of sorted runs. Strategies weigh it against a merge (the trigger `read-cost`).
//!
//! Readers count nothing for it that they do not count anyway. Now and then one of them looks whether it is time to ask the planner.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::core::{Core, KeyspaceCore};
use super::stats::ReadStats;
use crate::compaction::{CompactionPolicy, LsmView, Place};
use crate::num::to_u64;

/// Reads of one kind between two looks.
const GETS_A_LOOK: u64 = 1024;
const RANGES_A_LOOK: u64 = 64;

/// What a run costs a read, in bytes that a merge takes through in the same time: a point lookup asks its filter; a range finds its place in it, and
/// each step has one more record to compare. Measured in memory; where blocks come from a disk, a run costs more.
const GET_BYTES: u64 = 32;
const RANGE_BYTES: u64 = 512;

/// Since when the runs of a keyspace have been read, and when the planner is to be asked what it makes of that.
pub(crate) struct ReadWork {
    /// What had been read when a run was seen first.
    came: Mutex<BTreeMap<Place, Reads>>,
    /// From how much work on each run of the tree the planner is to be asked; counted from the opening of the keyspace.
    ask_at: AtomicU64,
    /// The runs of the tree at that time.
    runs: AtomicU64,
}

impl Default for ReadWork {
    fn default() -> ReadWork {
        ReadWork { came: Mutex::default(), ask_at: AtomicU64::new(u64::MAX), runs: AtomicU64::new(1) }
    }
}

/// Reads since the keyspace was opened.
#[derive(Clone, Copy)]
struct Reads {
    /// Runs that point lookups have asked.
    asked: u64,
    ranges: u64,
}

impl Reads {
    fn until_now(stats: &ReadStats) -> Reads {
        Reads { asked: stats.filter_checks.get(), ranges: stats.ranges.get() }
    }

    fn since(self, then: Reads) -> Reads {
        Reads { asked: self.asked.saturating_sub(then.asked), ranges: self.ranges.saturating_sub(then.ranges) }
    }

    /// What one of `runs` runs has cost. Which of them a lookup has asked is not known, a range comes to all.
    fn work_on_one_of(self, runs: u64) -> u64 {
        self.asked.saturating_mul(GET_BYTES) / runs.max(1) + self.ranges.saturating_mul(RANGE_BYTES)
    }
}

impl ReadWork {
    /// Whether the planner is to be asked; says so once.
    fn is_due(&self, stats: &ReadStats) -> bool {
        let at = self.ask_at.load(Relaxed);
        at != u64::MAX
            && Reads::until_now(stats).work_on_one_of(self.runs.load(Relaxed)) >= at
            && self.ask_at.swap(u64::MAX, Relaxed) != u64::MAX
    }
}

impl KeyspaceCore {
    /// What reads have paid for each run of `view` ([`LsmView::read_work`]), if the policy weighs it there.
    pub(crate) fn paid_by_reads(
        &self,
        policy: &dyn CompactionPolicy,
        view: &LsmView<'_>,
    ) -> Option<BTreeMap<Place, u64>> {
        policy.next_read_work(view)?;
        let now = Reads::until_now(&self.reads);
        let runs = to_u64(view.version.run_count());
        let mut came = self.read_work.came.lock();
        let places = view.version.runs().map(|(level, run)| Place { level, run: run.order });
        *came = places.map(|place| (place, came.get(&place).copied().unwrap_or(now))).collect();
        Some(came.iter().map(|(place, then)| (*place, now.since(*then).work_on_one_of(runs))).collect())
    }

    /// Notes when the planner is to be asked again because of what is read.
    pub(crate) fn await_reads(&self, policy: &dyn CompactionPolicy, view: &LsmView<'_>) {
        let runs = to_u64(view.version.run_count());
        let at = |more| Reads::until_now(&self.reads).work_on_one_of(runs).saturating_add(more);
        self.read_work.runs.store(runs, Relaxed);
        self.read_work.ask_at.store(policy.next_read_work(view).map_or(u64::MAX, at), Relaxed);
    }
}

impl Core {
    /// Counts a point lookup.
    #[inline]
    pub(crate) fn count_get(&self, keyspace: &KeyspaceCore) {
        if keyspace.reads.gets.add(1).is_multiple_of(GETS_A_LOOK) {
            self.weigh_reads(keyspace);
        }
    }

    /// Counts a range that was opened.
    #[inline]
    pub(crate) fn count_range(&self, keyspace: &KeyspaceCore) {
        if keyspace.reads.ranges.add(1).is_multiple_of(RANGES_A_LOOK) {
            self.weigh_reads(keyspace);
        }
    }

    #[cold]
    fn weigh_reads(&self, keyspace: &KeyspaceCore) {
        if keyspace.read_work.is_due(&keyspace.reads) {
            self.wake_compactions();
        }
    }
}

//! Deletes with a date: what a keyspace's `delete_by` asks of any strategy.
//!
//! ```text
//!  age of a tombstone   0 ---- D/8 ------------------- 3/4 D ------ 7/8 D ---- D
//!                       memtable  wherever the          due: when    urgent:
//!                       at most   strategy takes it     nothing      before
//!                                                       else is      all else
//! ```
//!
//! A due file goes down, level by level, with what shares its keys on the way, until nothing older is below it; there it is
//! rewritten without its tombstones. Lethe's way (sarkar21 section 3.3: a share of the time for each level) is a trigger of its own,
//! `tombstone-ttl`, for strategies that want to spread the work; this is the backstop that holds for every strategy and every tree.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::CompactionPolicy;
use super::plan::{Action, Place, Plan, PlanInput, Reuse, hides_nothing, places};
use super::planner::{ManualRequest, cheapest, go_down, join_runs};
use super::record::{DecisionRecord, Reason};
use super::view::LsmView;
use crate::num::to_f64;
use crate::version::{FileMeta, Version};

/// Files tried before the rest waits for running jobs to end.
const MAX_TRIED: usize = 32;

/// The times at which a tombstone must have come so far, by its age in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    by_ms: u64,
}

/// How pressing a tombstone is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Urgency {
    /// It is taken down when nothing else is to be done.
    Due,
    /// It is taken down before all else.
    Urgent,
}

impl Deadline {
    /// For the option `delete_by`.
    pub fn new(delete_by: Duration) -> Deadline {
        Deadline { by_ms: u64::try_from(delete_by.as_millis()).unwrap_or(u64::MAX) }
    }

    /// The age at which a tombstone is to be gone.
    pub fn by_ms(self) -> u64 {
        self.by_ms
    }

    /// The age at which it is to have left the memtable.
    pub fn memtable_ms(self) -> u64 {
        self.by_ms / 8
    }

    /// The age at which the planner takes care of it.
    pub fn at_ms(self, urgency: Urgency) -> u64 {
        match urgency {
            Urgency::Due => self.by_ms / 4 * 3,
            Urgency::Urgent => self.by_ms / 8 * 7,
        }
    }

    /// The wall time, in milliseconds, at which the next file of `version` becomes due; in the past if one is.
    pub fn next_ms(self, version: &Version) -> Option<u64> {
        let oldest = version.files().filter_map(|(_, _, file)| file.oldest_tombstone_ms).min()?;
        Some(oldest.saturating_add(self.at_ms(Urgency::Due)))
    }

    /// The wall time, in milliseconds, from which a job that has these files must not wait; none if they hold no tombstone.
    pub fn urgent_from_ms<'a>(self, files: impl Iterator<Item = &'a Arc<FileMeta>>) -> Option<u64> {
        let oldest = files.filter_map(|file| file.oldest_tombstone_ms).min()?;
        Some(oldest.saturating_add(self.at_ms(Urgency::Urgent)))
    }

    /// The next step for the oldest tombstone of that urgency that no running job and no snapshot holds up.
    pub fn plan(self, policy: &dyn CompactionPolicy, view: &LsmView<'_>, urgency: Urgency) -> Option<Plan> {
        let threshold_ms = self.at_ms(urgency);
        let age = |file: &FileMeta| view.now_ms.saturating_sub(file.oldest_tombstone_ms.unwrap_or(view.now_ms));
        let in_order = places(view.version).flat_map(|(place, run)| run.files.iter().map(move |file| (place, file)));
        let mut due: Vec<(Place, &Arc<FileMeta>)> =
            in_order.filter(|(_, file)| age(file) >= threshold_ms && !view.is_busy(file.id)).collect();
        // Stable: of equal ages the one with the longest way comes first.
        due.sort_by_key(|(_, file)| std::cmp::Reverse(age(file)));
        due.iter().take(MAX_TRIED).find_map(|(place, file)| {
            let (inputs, output) = step(policy, view, *place, file)?;
            let bytes = inputs.iter().flat_map(|input| &input.files).map(|file| file.bytes).sum();
            let (value, threshold) = (to_f64(age(file)) / 1e3, to_f64(threshold_ms) / 1e3);
            let record = DecisionRecord::new(Reason::Deadline, "delete-by", value, threshold);
            let plan = Plan {
                inputs,
                output,
                action: Action::Merge,
                cut: policy.cut(view),
                reuse: Reuse::Picked,
                cursor: None,
                release: policy.release(),
                borders: Vec::new(),
                record: DecisionRecord { read_bytes: bytes, write_bytes: bytes, ..record },
            };
            let plan = plan.cut_at_guards(view, policy.guards(output.level));
            plan.check(view).is_ok().then(|| cheapest(policy, view, plan))
        })
    }
}

/// The next step of a file's tombstones on their way out; none if a snapshot needs them.
fn step(
    policy: &dyn CompactionPolicy,
    view: &LsmView<'_>,
    place: Place,
    file: &Arc<FileMeta>,
) -> Option<(Vec<PlanInput>, Place)> {
    if hides_nothing(view, place, file, &BTreeSet::new()) {
        let alone = PlanInput { level: place.level, run: place.run, files: vec![Arc::clone(file)] };
        return view.visible_to_all_snapshots(file).then(|| (vec![alone], place));
    }
    let request = ManualRequest { first: Some(file.smallest.clone()), last: Some(file.largest.clone()) };
    if place.level < view.last_level() {
        return Some(go_down(policy, view, &request, place.level));
    }
    Some(join_runs(view, &request, place.level))
}

//! The merge that was most due goes first (LevelDB; luo19 section 6.1).
//!
//! A merge's score is its trigger's value over the threshold: of L0 the number of runs over the number at which they are merged, of a
//! deeper level its bytes over its capacity. It is taken when the merge is chosen. No merge starves as long as scores grow with what
//! waits, but a merge that was chosen with a low score waits for all that come with a higher one.
//!
//! LevelDB merges all of L0 at once. When writes come faster than merges, L0 holds up to the number of runs at which writers stop, so
//! that more of L1 is taken for each merge and levels grow beyond their capacity: a test reports a throughput that does not last.
//! With `exact_l0` a merge takes exactly as many of the oldest runs of L0 as the level is allowed to hold (luo19 section 6.2).

use serde::{Deserialize, Serialize};

use super::{MergeProgress, Share, Why, first_by};
use crate::compaction::{Action, CompactionPolicy, LsmView, Plan};
use crate::num::to_usize;
use crate::version::LevelId;

/// Parameters of `score`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Score {
    /// A merge out of a tiered L0 takes exactly the number of runs at which it is due, the oldest. Default false: all of them.
    pub exact_l0: bool,
}

impl Score {
    /// The shares; see [`Scheduler::next`](super::Scheduler::next).
    pub fn next(&self, jobs: &[MergeProgress], lanes: u32, shares: &mut [Share]) {
        first_by(jobs, lanes, shares, |job| std::cmp::Reverse(job.score_permille), Why::MoreDue);
    }
}

/// `plan` with exactly as many runs of L0 as the level may hold, the oldest, if it takes more of them into a deeper level. What it takes
/// of the deeper level stays as it is: the runs of L0 mostly cover the same keys.
pub(super) fn exact_l0(policy: &dyn CompactionPolicy, view: &LsmView<'_>, plan: Plan) -> Plan {
    let l0 = LevelId(0);
    let limit = to_usize(u64::from(policy.run_limit(view, l0)));
    // Inputs stand newest first, so those of L0 come first.
    let surplus = plan.inputs.iter().filter(|input| input.level == l0).count().saturating_sub(limit);
    if surplus == 0 || limit < 2 || plan.action != Action::Merge || plan.output.level == l0 {
        return plan;
    }
    let mut exact = plan.clone();
    let dropped = exact.inputs.drain(..surplus).flat_map(|input| input.files).map(|file| file.bytes).sum::<u64>();
    exact.record.read_bytes = exact.record.read_bytes.saturating_sub(dropped);
    exact.record.write_bytes = exact.record.write_bytes.saturating_sub(dropped);
    if exact.check(view).is_ok() { exact } else { plan }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::{Sizes, Strategy, planner};
    use crate::schedule::Scheduler;
    use crate::version::text::parse;

    #[test]
    fn a_merge_takes_exactly_the_oldest_runs_that_are_due() {
        let version =
            parse("L0 7:a-z:1K\nL0 6:a-z:1K\nL0 5:a-z:1K\nL0 4:a-z:1K\nL0 3:a-z:1K\nL0 2:a-z:1K\nL1 1:a-z:4K\n")
                .unwrap();
        let sizes = Sizes { memtable_bytes: 1 << 10, file_bytes: 1 << 20, size_ratio: 0, level1_bytes: 0 };
        let view = LsmView::new(&version, sizes);
        let strategy = Strategy::named("1-lvl").expect("a preset");
        let plan = planner::plan(&strategy, &view).unwrap().unwrap();
        let runs = |plan: &Plan| plan.inputs.iter().map(|input| (input.level.0, input.run.0)).collect::<Vec<_>>();
        assert_eq!(runs(&plan), [(0, 7), (0, 6), (0, 5), (0, 4), (0, 3), (0, 2), (1, 1)]);
        let shaped = |scheduler: &str| Scheduler::from_text(scheduler).unwrap().shape(&strategy, &view, plan.clone());
        assert_eq!(shaped("score"), plan);
        let exact = shaped("{ kind = \"score\", exact_l0 = true }");
        assert_eq!(runs(&exact), [(0, 5), (0, 4), (0, 3), (0, 2), (1, 1)]);
        assert_eq!(plan.record.read_bytes - exact.record.read_bytes, 2 << 10);
    }
}

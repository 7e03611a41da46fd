//! Compaction decides here, on metadata alone: no file, clock, thread or random number.
//!
//! ```text
//! LsmView --policy.pick--> Plan --planner: moves first, laws checked--> Job (crate::jobs) --> VersionEdit
//! ```
//!
//! | module | |
//! | --- | --- |
//! | [`view`] | what a policy may see |
//! | [`strategy`] | layout and rules, parsed from TOML; the one policy that we ship |
//! | [`layout`], [`trigger`], [`granularity`], [`movement`] | the four primitives (sarkar21), pure functions |
//! | [`guards`] | keys that divide levels with overlapping runs |
//! | [`oldest`] | dropping the oldest data of a keyspace that may lose it |
//! | [`targets`] | how much each level should hold |
//! | [`filters`] | how many filter bits a new run gets |
//! | [`runs`] | grouping, and the published rules that merge whole runs |
//! | [`mod@plan`], [`record`] | what to do, and why; [`Plan::check`] holds every law |
//! | [`appraisal`] | how every rule stands, whether it fires or not |
//! | [`decision`] | a compaction from its choice to its end: what it should cost, what it did cost |
//! | [`planner`] | policy and manual requests to checked plans |
//! | [`deadline`] | deletes with a date, whatever the strategy |
//! | [`space`] | how much a merge takes for a time, and smaller merges |
//! | [`conformance`] | the suite that any policy can be run through |

pub mod appraisal;
pub mod conformance;
pub mod deadline;
pub mod decision;
pub mod filters;
pub mod granularity;
pub mod guards;
pub mod layout;
pub mod movement;
pub mod oldest;
pub mod plan;
pub mod planner;
pub mod record;
pub mod runs;
pub mod space;
pub mod strategy;
pub mod targets;
pub mod trigger;
pub mod view;

pub use appraisal::{Appraisal, Verdict};
pub use decision::{Decision, DecisionInput, Ended, Ending};
pub use guards::GuardMask;
pub use plan::{Action, CutRule, Law, LawBroken, Place, Plan, PlanInput, Release, Reuse, Stitch};
pub use planner::{ManualRequest, ManualStep, plan, plan_manual};
pub use record::{Candidate, DecisionRecord, Reason};
pub use strategy::{Preset, Strategy, strategies};
pub use view::{LsmView, MAX_LEVELS, ReadCounters, Sizes};

use crate::version::LevelId;

/// Decides what is compacted next.
///
/// A policy is a pure function: equal views give equal plans. It accepts every legal tree, whoever built it. What it returns is
/// checked ([`Plan::check`]); an illegal plan is refused by the law's name. [`conformance::run`] tests a policy.
pub trait CompactionPolicy: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// What to compact next, or none if the tree is as it should be or everything due is blocked by running jobs.
    fn pick(&self, view: &LsmView<'_>) -> Option<Plan>;

    /// How many sorted runs `level` holds before they are due to be merged; 1 makes the level leveled. At least 1.
    fn run_limit(&self, view: &LsmView<'_>, level: LevelId) -> u32;

    /// How many sorted runs a tree of this size holds when all is well; writers stop at twice as many (luo19 section 4.2), or later
    /// where L0 gathers runs ([`Global`](crate::schedule::constraint::Global)).
    fn expected_runs(&self, view: &LsmView<'_>) -> u32 {
        sum_of_limits(self, view)
    }

    /// How many of these stand in `level`: what a local constraint is twice of. Most layouts merge a level when it has as many runs as it may.
    fn expected_runs_in(&self, view: &LsmView<'_>, level: LevelId) -> u32 {
        self.run_limit(view, level)
    }

    /// The wall time after the view's, in milliseconds, from which it may want something that it does not want now although nothing
    /// else changes; none if time alone changes nothing. An idle store asks again then.
    fn next_time_ms(&self, _view: &LsmView<'_>) -> Option<u64> {
        None
    }

    /// Whether it looks at [`LsmView::reads_of`]. Only then are reads counted by file, which costs readers a shared counter each.
    fn counts_reads(&self) -> bool {
        false
    }

    /// How much more reads have to pay for each run (in the unit of [`LsmView::read_work`]) until it may want something that it does not want
    /// now; none if reads change nothing. The store asks again then.
    fn next_read_work(&self, _view: &LsmView<'_>) -> Option<u64> {
        None
    }

    /// Whether its plans drop data that was not deleted: the oldest of the keyspace. Then it is refused for a keyspace without the option
    /// [`may_lose_oldest`](crate::KeyspaceOptions::may_lose_oldest).
    fn loses_oldest(&self) -> bool {
        false
    }

    /// Filter bits per key of files that a flush or a merge is about to write. Default: the option, everywhere.
    fn filter_bits(&self, _view: &LsmView<'_>, new: &filters::NewFiles<'_>) -> f64 {
        new.option_bits
    }

    /// How every rule stands, on every level on which it looks, the most important first: for people, who want to know why something is
    /// compacted or why nothing is. A policy that has no rules to show returns nothing. A pure function of the view, too.
    fn explain(&self, view: &LsmView<'_>) -> Vec<Appraisal> {
        let _ = view;
        Vec::new()
    }

    /// When what manual compactions, and those for deletes with a date, have replaced leaves the tree.
    fn release(&self) -> Release {
        Release::AtEnd
    }

    /// Where the files of manual compactions end.
    fn cut(&self, view: &LsmView<'_>) -> CutRule {
        CutRule { file_bytes: view.sizes.file_bytes, align: false, grandparent_bytes: 0, guards: None }
    }

    /// Which keys begin a file of `level`, wherever they stand in a merge's output. Default: none.
    fn guards(&self, level: LevelId) -> Option<GuardMask> {
        let _ = level;
        None
    }
}

fn sum_of_limits<P: CompactionPolicy + ?Sized>(policy: &P, view: &LsmView<'_>) -> u32 {
    let last = view.last_level().max(LevelId(1));
    (0..=last.0).map(|level| policy.run_limit(view, LevelId(level))).fold(0, u32::saturating_add)
}

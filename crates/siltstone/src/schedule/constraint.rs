//! The component constraint: how many sorted runs a tree may hold before writers are slowed and stopped (luo19 section 4.2).
//!
//! Every run makes reads dearer, and runs gather when writes come faster than merges. A global limit of twice the number that the layout
//! expects leaves merges room to work with and still bounds reads. Where L0 gathers runs above levels that do not, it may hold eight times as
//! many as it gathers: a merge takes several, those stay until it ends, while others come, and while L1 passes on what it cannot hold no
//! merge takes runs away at all. (RocksDB merges L0 from 4 runs on and stops writers at 36.)
//!
//! A local limit bounds each level: writers stop when L0 is full, and a merge
//! that would bring one run too many to a level waits until there is room. The time that merges take varies, for leveling most, and
//! only a global limit evens that out, so luo19 finds much longer stalls with local ones.
//!
//! Between the expected number and the limit [`RunLimits::debt`] lets the [write control](super::write_control) slow writes down
//! gradually, so that none of them waits long.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::compaction::view::MAX_LEVELS;
use crate::compaction::{CompactionPolicy, LsmView, Plan, Sizes};
use crate::kind;
use crate::num::{to_u64, to_usize};
use crate::version::{LevelId, Version};

/// How many sorted runs there may be. In options a word, or a table: `constraint = { kind = "local", per_level = 2 }`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Constraint {
    /// In all levels together.
    Global(Global),
    /// In each level.
    Local(Local),
}

/// Parameters of `global`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Global {
    /// Writers stop at this many runs. Default 0: twice the number that the layout expects (luo19: 2L, 2TL), but at least 4; L0 counts
    /// four times as much if it gathers more runs than the level below it.
    pub max_runs: u32,
}

/// Parameters of `local`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Local {
    /// Runs of a level at which whoever brings it more waits. Default 0: twice the number at which the level is merged (luo19: 2
    /// for leveling, 2T for tiering).
    pub per_level: u32,
}

impl Default for Constraint {
    fn default() -> Constraint {
        Constraint::Global(Global::default())
    }
}

impl Constraint {
    /// The least that can be asked for: with less, writers would stop for runs that nobody merges.
    pub fn least(&self, policy: &dyn CompactionPolicy, sizes: Sizes) -> u32 {
        let empty = Version::default();
        let view = LsmView::new(&empty, sizes);
        match self {
            Constraint::Global(_) => policy.expected_runs(&view).max(1).saturating_add(1),
            Constraint::Local(_) => {
                let limits = (0..MAX_LEVELS).map(|level| policy.expected_runs_in(&view, LevelId(level)));
                limits.max().unwrap_or(1).saturating_add(1)
            }
        }
    }

    /// What is wrong with it for a tree that is to be laid out by `policy`.
    ///
    /// # Errors
    /// `InvalidArgument` for a limit below the least, with both.
    pub fn check(&self, policy: &dyn CompactionPolicy, sizes: Sizes) -> crate::Result<()> {
        let (name, limit) = match self {
            Constraint::Global(global) => ("max_runs", global.max_runs),
            Constraint::Local(local) => ("per_level", local.per_level),
        };
        let least = self.least(policy, sizes);
        if limit == 0 || limit >= least {
            return Ok(());
        }
        Err(crate::Error::invalid(format!(
            "constraint: {name} = {limit} is less than strategy {} works with: at least {least}, or 0 for twice what it expects",
            policy.name()
        )))
    }

    /// The limits for a tree under a policy. An option below what the policy's triggers wait for, in a tree that has grown deeper or was
    /// given another strategy, is raised to one more than that: otherwise writers would stop for runs that nobody merges.
    pub fn limits(&self, policy: &dyn CompactionPolicy, view: &LsmView<'_>) -> RunLimits {
        match self {
            Constraint::Global(global) => run_limits(policy, view, global.max_runs),
            Constraint::Local(_) => {
                let expected = policy.expected_runs_in(view, LevelId(0)).max(1);
                RunLimits { expected, slowdown_runs: expected, stop_runs: self.of_level(policy, view, LevelId(0)) }
            }
        }
    }

    /// The runs that count against the limits, those on disk.
    pub fn counted(&self, version: &Version) -> u64 {
        match self {
            Constraint::Global(_) => to_u64(version.run_count()),
            Constraint::Local(_) => version.levels.first().map_or(0, |level| to_u64(level.runs.len())),
        }
    }

    /// Whether a merge or move has to wait: it would bring a level one run more than it may hold. Runs that are being merged away
    /// count until they are gone.
    pub fn blocks(&self, policy: &dyn CompactionPolicy, view: &LsmView<'_>, plan: &Plan) -> bool {
        if let Constraint::Global(_) = self {
            return false;
        }
        let to = plan.output.level;
        let there = view.level(to);
        let adds = |other: &Plan| {
            other.output.level == to
                && there.run(other.output.run).is_none()
                && !other.inputs.iter().any(|input| input.level == to)
        };
        let coming = view.running().iter().filter(|running| adds(running)).count();
        adds(plan) && there.runs.len() + coming >= to_usize(u64::from(self.of_level(policy, view, to)))
    }

    fn of_level(&self, policy: &dyn CompactionPolicy, view: &LsmView<'_>, level: LevelId) -> u32 {
        let due = policy.expected_runs_in(view, level).max(1);
        match self {
            Constraint::Local(Local { per_level: limit @ 1.. }) => (*limit).max(due.saturating_add(1)),
            _ => due.saturating_mul(2),
        }
    }
}

/// The run counts at which writers feel the merges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunLimits {
    /// The runs that a tree of this size holds when all is well.
    pub expected: u32,
    /// Above this many, writes slow down.
    pub slowdown_runs: u32,
    /// At this many, writers stop.
    pub stop_runs: u32,
}

/// The limits for a tree under a policy; `max_runs` is the option of that name, 0 for what the layout bears.
///
/// A `max_runs` below what the policy's triggers wait for is raised to one more than that: otherwise writers would stop for runs
/// that nobody merges.
pub fn run_limits(policy: &dyn CompactionPolicy, view: &LsmView<'_>, max_runs: u32) -> RunLimits {
    let expected = policy.expected_runs(view).max(1);
    let stop_runs = match max_runs {
        0 => {
            let (l0, l1) = (policy.run_limit(view, LevelId(0)), policy.run_limit(view, LevelId(1)));
            let gathered = if l0 > l1 { l0 } else { 0 };
            expected.saturating_add(gathered.saturating_mul(3)).saturating_mul(2).max(4)
        }
        runs => runs.max(expected.saturating_add(1)),
    };
    // At once: the price of a write rises slowly at first, and a writer is far faster than the merges behind it.
    let slowdown_runs = expected;
    RunLimits { expected, slowdown_runs, stop_runs }
}

impl RunLimits {
    /// What `runs` sorted runs owe, from 0 (no more than expected) to 1 (writers stop). Runs that are partly merged count in part.
    pub fn debt(&self, runs: f64) -> f64 {
        let (slow, stop) = (f64::from(self.slowdown_runs), f64::from(self.stop_runs));
        ((runs - slow) / (stop - slow).max(1.0)).clamp(0.0, 1.0)
    }
}

/// The derived form: always a table.
struct AsTable<'a>(&'a Constraint);

impl Serialize for AsTable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Constraint::serialize(self.0, serializer)
    }
}

impl Serialize for Constraint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Constraint::Global(Global { max_runs: 0 }) => serializer.serialize_str("global"),
            Constraint::Local(Local { per_level: 0 }) => serializer.serialize_str("local"),
            _ => AsTable(self).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Constraint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Constraint, D::Error> {
        kind::read(deserializer, Constraint::deserialize, |read| toml::Value::try_from(AsTable(read)))
    }
}

impl fmt::Display for Constraint {
    /// As options spell it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        kind::write(f, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::Strategy;
    use crate::version::RunOrder;
    use crate::version::text::parse;

    const SIZES: Sizes = Sizes { memtable_bytes: 1 << 10, file_bytes: 1 << 10, size_ratio: 0, level1_bytes: 0 };

    #[test]
    fn the_limit_is_twice_what_the_layout_expects_and_eight_times_what_l0_gathers() {
        let version = parse("L0 3:a-z:1K\nL1 2:a-z:1K\nL2 1:a-z:1K\n").unwrap();
        let limits = |name: &str, max_runs| {
            run_limits(&Strategy::named(name).unwrap(), &LsmView::new(&version, SIZES), max_runs)
        };
        assert_eq!(limits("one-leveling", 0), RunLimits { expected: 34, slowdown_runs: 34, stop_runs: 260 });
        assert_eq!(limits("tiering", 0).stop_runs, 60);
        assert_eq!(limits("leveling", 0).stop_runs, 6);
        assert_eq!(limits("one-leveling", 36).stop_runs, 36);
        assert_eq!(limits("one-leveling", 2).stop_runs, 35, "merges wait for 32 runs of L0 beside L1 and L2");
    }

    #[test]
    fn debt_grows_towards_the_stop_and_sinks_with_the_runs() {
        let limits = RunLimits { expected: 6, slowdown_runs: 8, stop_runs: 12 };
        let debts: Vec<f64> = [0.0, 8.0, 9.0, 10.5, 12.0, 20.0, 8.0].map(|runs| limits.debt(runs)).to_vec();
        assert_eq!(debts, [0.0, 0.0, 0.25, 0.625, 1.0, 1.0, 0.0]);
    }

    #[test]
    fn a_local_constraint_bounds_each_level_and_blocks_what_would_overfill_one() {
        let text: String = (10..16).map(|run| format!("L1 {run}:a-z:1K\n")).collect();
        let version = parse(&format!("L0 90:a-z:1K\nL0 80:a-z:1K\nL0 70:a-z:1K\n{text}L2 1:a-z:9K\n")).unwrap();
        let tiering = Strategy::named("tiering").unwrap();
        let sizes = Sizes { size_ratio: 3, ..SIZES };
        let view = LsmView::new(&version, sizes);
        let local = |per_level| Constraint::Local(Local { per_level });
        assert_eq!(local(0).limits(&tiering, &view), RunLimits { expected: 3, slowdown_runs: 3, stop_runs: 6 });
        assert_eq!((local(0).counted(&version), Constraint::default().counted(&version)), (3, 10));
        let plan = crate::compaction::planner::plan(&tiering, &view).unwrap().unwrap();
        let up = plan.inputs[0].level == LevelId(0);
        let into_l1 = if up {
            plan
        } else {
            Plan {
                output: crate::compaction::Place { level: LevelId(1), run: RunOrder(99) },
                inputs: Vec::new(),
                ..plan
            }
        };
        assert!(local(0).blocks(&tiering, &view, &into_l1), "six runs of L1, and two times three is the limit");
        assert!(
            !local(7).blocks(&tiering, &view, &into_l1) && !Constraint::default().blocks(&tiering, &view, &into_l1)
        );
    }

    #[test]
    fn limits_that_a_layout_cannot_work_with_are_refused() {
        let check = |constraint: Constraint, name: &str| constraint.check(&Strategy::named(name).unwrap(), SIZES);
        let global = |max_runs| Constraint::Global(Global { max_runs });
        assert!(check(global(0), "tiering").is_ok() && check(global(34), "one-leveling").is_ok());
        let refused = check(global(33), "one-leveling").unwrap_err().to_string();
        assert!(refused.contains("max_runs = 33") && refused.contains("at least 34"), "{refused}");
        let refused = check(Constraint::Local(Local { per_level: 10 }), "tiering").unwrap_err().to_string();
        assert!(refused.contains("per_level = 10") && refused.contains("at least 11"), "{refused}");
    }
}

//! How a strategy with the layout `runs` decides: rules are measured on groups of runs instead of levels.

use super::super::granularity::{Draft, Granularity, RunPick};
use super::super::layout::{Layout, Shape};
use super::super::runs::pick::Setting;
use super::super::runs::{self, Considered, Group, Grouping, RunFact, Shards, rules};
use super::super::trigger::{Measure, Trigger};
use super::super::view::LsmView;
use super::{Levels, Rule, Strategy};
use crate::num::{to_f64, to_u32, to_u64, to_usize};
use crate::version::LevelId;

/// The tree as its runs.
pub(super) struct Runs<'a> {
    facts: Vec<RunFact<'a>>,
    groups: Vec<Group>,
}

/// What a rule fires on.
#[derive(Debug)]
pub(super) enum Target {
    /// A group; the rule's picker chooses among its runs.
    Group(Group),
    /// These runs, positions in the tree, ascending.
    Taken(Vec<usize>),
}

impl<'a> Runs<'a> {
    /// None with another layout.
    pub(super) fn of(shape: &Shape<'a>) -> Option<Runs<'a>> {
        let Layout::Runs { grouping, .. } = shape.layout else {
            return None;
        };
        let facts = facts(shape.view, grouping);
        let groups = grouping.groups(&facts, shape.view.sizes.memtable_bytes);
        Some(Runs { facts, groups })
    }

    /// What a rule about whole runs measures, with the number that stands for a level and whether it fires.
    pub(super) fn measured(&self, shape: &Shape<'_>, rule: &Rule) -> Vec<(u8, Target, Measure, bool)> {
        let firing = |(number, target, measure)| (number, target, measure, true);
        match &rule.trigger {
            Trigger::SpaceAmplification { percent, min_runs } => {
                let enough = self.facts.len() >= to_usize((*min_runs).into());
                let found = rules::space_amplification(&self.facts).filter(|_| enough);
                let measure = |value| Measure { value, threshold: f64::from(*percent) };
                let fires = found.filter(|(_, value)| measure(*value).fires());
                let fires = fires.map(|(span, value)| (0, Target::Taken(span.collect()), measure(value)));
                fires.into_iter().map(firing).collect()
            }
            Trigger::Periodic { age, jitter_percent } => {
                let fires = self.periodic(shape.view, age.as_secs_f64(), *jitter_percent);
                fires.into_iter().map(firing).collect()
            }
            Trigger::TierAmplification { percent } => self.two_largest(*percent).into_iter().map(firing).collect(),
            Trigger::SortedRuns { .. } => {
                let standing = self.groups_of(rule).map(|group| (group, self.runs_due(shape, rule, group)));
                let measured = standing.map(|(group, measure)| {
                    let fires = measure.value >= 2.0 && measure.fires();
                    (group.number, Target::Group(group.clone()), measure, fires)
                });
                measured.collect()
            }
            Trigger::LevelSaturation { .. }
            | Trigger::TombstoneDensity { .. }
            | Trigger::FileStaleness { .. }
            | Trigger::TombstoneTtl { .. }
            | Trigger::ReadAmplification { .. }
            | Trigger::ReadCost { .. }
            | Trigger::TombstoneShare { .. }
            | Trigger::TotalSize { .. }
            | Trigger::DataTtl { .. }
            | Trigger::Idle { .. }
            | Trigger::GuardBytes { .. }
            | Trigger::GuardReads { .. } => Vec::new(),
        }
    }

    fn groups_of<'b>(&'b self, rule: &'b Rule) -> impl Iterator<Item = &'b Group> {
        self.groups.iter().filter(|group| self.applies(&rule.levels, group))
    }

    /// How many runs a group holds, and how many make it due.
    fn runs_due(&self, shape: &Shape<'_>, rule: &Rule, group: &Group) -> Measure {
        let threshold = f64::from(due_runs(shape, &rule.trigger, group.due));
        // RocksDB asks whether the tree has enough runs, busy ones too, before it looks for idle ones.
        let any = matches!(rule.granularity, Granularity::SortedRuns { pick: RunPick::SimilarSize { .. } });
        let idle = || group.runs.iter().filter(|at| any || self.facts[**at].idle).count();
        let value = group.overlapping.unwrap_or_else(idle);
        Measure { value: to_f64(to_u64(value)), threshold }
    }

    /// How a rule that counts runs stands in each group, whether it fires or not.
    pub(super) fn standing(&self, shape: &Shape<'_>, rule: &Rule) -> Vec<(u8, Measure)> {
        match rule.trigger {
            Trigger::SortedRuns { .. } => {
                self.groups_of(rule).map(|group| (group.number, self.runs_due(shape, rule, group))).collect()
            }
            _ => Vec::new(),
        }
    }

    fn applies(&self, levels: &Levels, group: &Group) -> bool {
        match levels {
            Levels::All | Levels::Tiered => true,
            Levels::Leveled => false,
            Levels::Last => self.groups.last().is_some_and(|last| last.number == group.number),
            Levels::These(numbers) => numbers.contains(&group.number),
        }
    }

    /// The next wall time, in milliseconds, at which time alone makes a rule fire.
    pub(super) fn next_time_ms(&self, strategy: &Strategy, view: &LsmView<'_>) -> Option<u64> {
        let created_ms = self.facts.iter().map(|fact| fact.created_ms).min()?;
        let periodic = strategy.rules.iter().filter_map(|rule| match &rule.trigger {
            Trigger::Periodic { age, jitter_percent } => {
                let age_s = self.scattered(age.as_secs_f64(), *jitter_percent)?;
                Some(created_ms.saturating_add(to_ms(age_s)))
            }
            _ => None,
        });
        let dense = strategy.rules.iter().filter_map(|rule| match &rule.trigger {
            Trigger::TombstoneDensity { min_age, .. } if !min_age.is_zero() => {
                let min_age_ms = u64::try_from(min_age.as_millis()).unwrap_or(u64::MAX);
                let ripe = view.version.files().map(|(_, _, file)| file.created_ms.saturating_add(min_age_ms));
                ripe.filter(|ms| *ms > view.now_ms).min()
            }
            _ => None,
        });
        periodic.chain(dense).filter(|ms| *ms > view.now_ms).min()
    }

    /// `age_s`, from `jitter_percent` less to as much more.
    fn scattered(&self, age_s: f64, jitter_percent: u32) -> Option<f64> {
        let seed = self.facts.last()?.seed.0;
        let steps = u64::from(2 * jitter_percent + 1);
        let jitter = to_f64(rules::scatter(seed, steps)) - f64::from(jitter_percent);
        Some(age_s * (1.0 + jitter / 100.0))
    }

    fn periodic(&self, view: &LsmView<'_>, age_s: f64, jitter_percent: u32) -> Option<(u8, Target, Measure)> {
        let start = self.facts.iter().position(|fact| fact.idle)?;
        // Of what would be merged. A newer run that another merge has may be older by date, and no merge of these makes it younger.
        let created = self.facts[start..].iter().map(|fact| fact.created_ms).min()?;
        let threshold = self.scattered(age_s, jitter_percent)?;
        let measure = Measure { value: to_f64(view.now_ms.saturating_sub(created)) / 1000.0, threshold };
        let idle = self.facts[start..].iter().all(|fact| fact.idle);
        // One run without tombstones has nothing to gain.
        let gains = self.facts.len() - start >= 2 || view.version.files().any(|(_, _, file)| file.tombstones > 0);
        (idle && gains && measure.fires()).then(|| (0, Target::Taken((start..self.facts.len()).collect()), measure))
    }

    fn two_largest(&self, percent: u32) -> Option<(u8, Target, Measure)> {
        let bytes = |group: &Group| group.runs.iter().map(|at| self.facts[*at].bytes).sum::<u64>();
        let mut groups: Vec<&Group> = self.groups.iter().collect();
        groups.sort_by_key(|group| std::cmp::Reverse(bytes(group)));
        let [largest, second, ..] = groups[..] else {
            return None;
        };
        let value = 100.0 * to_f64(bytes(second)) / to_f64(bytes(largest).max(1));
        let measure = Measure { value, threshold: f64::from(percent) };
        let mut taken = [&largest.runs[..], &second.runs[..]].concat();
        taken.sort_unstable();
        measure.fires().then_some((largest.number, Target::Taken(taken), measure))
    }

    /// How many runs the tree holds too many, those that running jobs consume not counted.
    pub(super) fn excess(&self, strategy: &Strategy, shape: &Shape<'_>) -> Option<(usize, Measure)> {
        let idle = self.facts.iter().filter(|fact| fact.idle).count();
        let expected = to_usize(strategy.expected_of(shape, &self.facts).unwrap_or(u32::MAX).into());
        let runs = idle + shape.view.running().len();
        let measure = Measure { value: to_f64(to_u64(runs)), threshold: to_f64(to_u64(expected + 1)) };
        measure.fires().then(|| (runs - expected, measure))
    }

    /// What the last resort does about `excess` runs too many.
    pub(super) fn relief(&self, view: &LsmView<'_>, excess: usize) -> Option<(runs::Relief, Vec<Considered>)> {
        runs::relief(view, &self.facts, excess)
    }

    /// The complete inputs of a job for what a rule fires on.
    pub(super) fn draft(&self, shape: &Shape<'_>, target: &Target, pick: &RunPick, trigger: &Trigger) -> Option<Draft> {
        let view = shape.view;
        let group = match target {
            Target::Taken(taken) => return runs::draft(view, taken),
            Target::Group(group) => group,
        };
        let (own, setting) = self.setting(shape, group, trigger);
        let taken: Vec<usize> = pick.choose(&own, setting)?.into_iter().map(|at| group.runs[at]).collect();
        runs::draft(view, &taken)
    }

    /// What a picker knows of a group.
    fn setting(&self, shape: &Shape<'_>, group: &Group, trigger: &Trigger) -> (Vec<RunFact<'a>>, Setting) {
        let setting = Setting {
            memtable_bytes: shape.view.sizes.memtable_bytes,
            due_runs: to_usize(due_runs(shape, trigger, group.due).into()),
            newest_group: group.number == 0,
        };
        (group.runs.iter().map(|at| self.facts[*at]).collect(), setting)
    }

    /// What the picker had to choose from in a group, if it chooses within one, and which of it was taken; positions among all runs.
    pub(super) fn considered(
        &self,
        shape: &Shape<'_>,
        group: &Group,
        pick: &RunPick,
        trigger: &Trigger,
    ) -> Vec<(Considered, bool)> {
        let (own, setting) = self.setting(shape, group, trigger);
        let windows = considered(pick, &own, setting).into_iter();
        windows.map(|(window, taken)| (Considered { newest: group.runs[window.newest], ..window }, taken)).collect()
    }
}

impl Target {
    /// The position of the newest run, and how many runs it is.
    pub(super) fn extent(&self) -> Option<(usize, usize)> {
        let runs = match self {
            Target::Group(group) => &group.runs,
            Target::Taken(runs) => runs,
        };
        Some((*runs.first()?, runs.len()))
    }
}

/// The same for a physical level.
pub(super) fn considered_within_level(
    shape: &Shape<'_>,
    level: LevelId,
    pick: &RunPick,
    trigger: &Trigger,
) -> Vec<(Considered, bool)> {
    let (facts, setting) = level_setting(shape, level, trigger);
    let above: usize = shape.view.version.levels.iter().take(level.index()).map(|level| level.runs.len()).sum();
    let windows = considered(pick, &facts, setting).into_iter();
    windows.map(|(window, taken)| (Considered { newest: above + window.newest, ..window }, taken)).collect()
}

fn considered(pick: &RunPick, runs: &[RunFact<'_>], setting: Setting) -> Vec<(Considered, bool)> {
    let considered = pick.considered(runs, setting);
    let taken = pick.choose(runs, setting).and_then(|chosen| runs::considered::chosen(&considered, &chosen));
    considered.into_iter().enumerate().map(|(n, window)| (window, Some(n) == taken)).collect()
}

fn level_setting<'a>(shape: &Shape<'a>, level: LevelId, trigger: &Trigger) -> (Vec<RunFact<'a>>, Setting) {
    let setting = Setting {
        memtable_bytes: shape.view.sizes.memtable_bytes,
        due_runs: due_in_level(shape, level, trigger),
        newest_group: level.0 == 0,
    };
    (runs::level_facts(shape.view, level), setting)
}

fn facts<'a>(view: &LsmView<'a>, grouping: &Grouping) -> Vec<RunFact<'a>> {
    match grouping {
        Grouping::Density { .. } => runs::facts(view),
        _ => runs::facts_without_shares(view),
    }
}

/// The runs of one physical level that a picker other than `all` merges within it.
pub(super) fn within_level(shape: &Shape<'_>, level: LevelId, pick: &RunPick, trigger: &Trigger) -> Option<Draft> {
    let view = shape.view;
    let (facts, setting) = level_setting(shape, level, trigger);
    let above: usize = view.version.levels.iter().take(level.index()).map(|level| level.runs.len()).sum();
    let taken: Vec<usize> = pick.choose(&facts, setting)?.into_iter().map(|at| above + at).collect();
    runs::draft(view, &taken)
}

/// How many runs of a physical level make a rule fire.
pub(super) fn due_in_level(shape: &Shape<'_>, level: LevelId, trigger: &Trigger) -> usize {
    to_usize(due_runs(shape, trigger, Some(shape.run_limit(level))).into())
}

/// How many runs of a group make a rule fire; `own` is what the group says.
fn due_runs(shape: &Shape<'_>, trigger: &Trigger, own: Option<u32>) -> u32 {
    let asked = match trigger {
        Trigger::SortedRuns { runs } => *runs,
        _ => None,
    };
    asked.or(own).unwrap_or(shape.ratio)
}

impl Strategy {
    /// The runs that a tree holds when all is well; none with another layout.
    pub(super) fn expected(&self, shape: &Shape<'_>) -> Option<u32> {
        let Layout::Runs { grouping, .. } = &self.layout else {
            return None;
        };
        self.expected_of(shape, &facts(shape.view, grouping))
    }

    /// The same, for who has the facts of the tree's runs.
    fn expected_of(&self, shape: &Shape<'_>, facts: &[RunFact<'_>]) -> Option<u32> {
        let Layout::Runs { grouping, expected_runs } = &self.layout else {
            return None;
        };
        let view = shape.view;
        let settled = to_u32(grouping.settled_runs(facts, view.sizes.memtable_bytes));
        let due = |rule: &Rule| match rule.trigger {
            Trigger::SortedRuns { runs } => runs.or_else(|| grouping.most_due()).or(Some(shape.ratio)),
            _ => None,
        };
        let estimate = || {
            let due = self.rules.iter().filter_map(due).max().unwrap_or(4).max(2);
            let step = u128::from(grouping.step().unwrap_or(due));
            let mut full = u128::from(view.sizes.memtable_bytes.max(1)) * step;
            let mut tiers = 1;
            let bytes: u64 = facts.iter().map(|fact| fact.bytes).sum();
            while full < u128::from(bytes) {
                full *= step;
                tiers += 1;
            }
            due.saturating_mul(tiers).max(4)
        };
        Some(settled.saturating_add(expected_runs.unwrap_or_else(estimate)))
    }
}

/// What TOML cannot express of a grouping; the problem.
pub(super) fn validate_grouping(grouping: &Grouping) -> Result<(), String> {
    match grouping {
        Grouping::SizeBuckets { low, high, .. } => {
            bounds(*low, *high).map_err(|problem| format!("size-buckets: {problem}"))
        }
        Grouping::Generations { ratio, max_memtables } if *ratio < 2 || *max_memtables == 0 => Err(format!(
            "generations: ratio = {ratio}, max_memtables = {max_memtables}: ratio is at least 2, max_memtables above 0"
        )),
        Grouping::Density { w } if w.is_empty() || w.iter().any(|w| !(-1000..=1000).contains(w)) => {
            Err(format!("density: w = {w:?}: w has at least one entry, each from -1000 to 1000"))
        }
        _ => Ok(()),
    }
}

fn bounds(low: f64, high: f64) -> Result<(), String> {
    match low > 0.0 && low < 1.0 && high > 1.0 && high.is_finite() {
        true => Ok(()),
        false => Err(format!("low = {low}, high = {high}: low is above 0 and below 1, high above 1")),
    }
}

/// What TOML cannot express of shards; the problem.
pub(super) fn validate_cut(strategy: &Strategy) -> Result<(), String> {
    let Some(Shards { base, target_bytes, growth }) = &strategy.cut.shards else {
        return Ok(());
    };
    if !matches!(strategy.layout, Layout::Runs { .. }) {
        return Err("cut: shards takes layout = { kind = \"runs\", ... }".to_owned());
    }
    match (1..=65536).contains(base) && *target_bytes > 0 && (0.0..=1.0).contains(growth) {
        true => Ok(()),
        false => Err(format!(
            "cut: shards: base = {base}, target_bytes = {target_bytes}, growth = {growth}: base is from 1 to 65536, target_bytes above 0, growth from 0 to 1"
        )),
    }
}

/// What TOML cannot express of a picker's parameters; the problem.
pub(super) fn validate_pick(pick: &RunPick) -> Result<(), String> {
    let ensure = |holds: bool, problem: String| if holds { Ok(()) } else { Err(problem) };
    let widths = |min: u32, max: u32| {
        let problem = format!("min_runs = {min}, max_runs = {max}: min_runs is at least 2, max_runs at least min_runs");
        ensure(min >= 2 && max >= min, problem)
    };
    let above_0 = |ratio: f64| ensure(ratio > 0.0 && ratio.is_finite(), format!("ratio = {ratio}: ratio is above 0"));
    let at_least_2 = |name: &str, n: u32| ensure(n >= 2, format!("{name} = {n}: {name} is at least 2"));
    let valid = match pick {
        RunPick::All {} => Ok(()),
        RunPick::Due { max_runs, .. } => max_runs.map_or(Ok(()), |max_runs| at_least_2("max_runs", max_runs)),
        RunPick::SimilarSize { min_runs, max_runs, .. } => widths(*min_runs, max_runs.unwrap_or(u32::MAX)),
        RunPick::Exploring { min_runs, max_runs, ratio, min_memtables, stuck_runs } => {
            let holds = (0.0..1e9).contains(min_memtables) && *stuck_runs > 0;
            let problem = format!(
                "min_memtables = {min_memtables}, stuck_runs = {stuck_runs}: min_memtables is at least 0, stuck_runs above 0"
            );
            widths(*min_runs, *max_runs).and(above_0(*ratio)).and(ensure(holds, problem))
        }
        RunPick::Smallest { max_runs } | RunPick::Oldest { max_runs } => at_least_2("max_runs", *max_runs),
        RunPick::SizeSorted { ratio, lowest_ratio, max_runs, .. } => {
            let holds = *lowest_ratio >= 1.0 && ratio >= lowest_ratio && *ratio <= 1000.0;
            let problem = format!(
                "ratio = {ratio}, lowest_ratio = {lowest_ratio}: lowest_ratio is at least 1, ratio at least lowest_ratio and at most 1000"
            );
            at_least_2("max_runs", *max_runs).and(ensure(holds, problem))
        }
        RunPick::SizeLevels { ratio, runs_per_level, jitter_percent } => {
            let holds = (2.0..=1000.0).contains(ratio) && *runs_per_level > 0 && *jitter_percent <= 100;
            let problem = format!(
                "ratio = {ratio}, runs_per_level = {runs_per_level}, jitter_percent = {jitter_percent}: ratio is from 2 to 1000, runs_per_level above 0, jitter_percent at most 100"
            );
            ensure(holds, problem)
        }
        RunPick::Suffix { min_runs, max_runs, ratio } => widths(*min_runs, *max_runs).and(above_0(*ratio)),
        RunPick::Prefix { max_bytes, tolerance, ratio } => at_least_2("tolerance", *tolerance)
            .and(above_0(*ratio))
            .and(ensure(*max_bytes > 0, "max_bytes = 0: max_bytes is above 0".to_owned())),
        RunPick::Binomial { runs } => at_least_2("runs", *runs),
        RunPick::TimeWindow { min_runs, max_runs, low, high, .. } => {
            widths(*min_runs, *max_runs).and(bounds(*low, *high))
        }
    };
    valid.map_err(|problem| format!("pick = \"{}\": {problem}", pick.name()))
}

/// What TOML cannot express of a rule and a layout together; the problem.
pub(super) fn validate_rule(layout: &Layout, rule: &Rule) -> Result<(), String> {
    let Layout::Runs { grouping, .. } = layout else {
        return match (&rule.trigger, &rule.granularity) {
            (_, Granularity::RunSlices { .. }) if *layout != (Layout::Tiering {}) => {
                Err("granularity run-slices takes layout = { kind = \"tiering\" }".to_owned())
            }
            (Trigger::SortedRuns { .. }, Granularity::RunSlices { files }) if *files > 0 => Ok(()),
            (_, Granularity::RunSlices { files }) => Err(format!(
                "granularity run-slices with files = {files}: files is at least 1, and the trigger is sorted-runs"
            )),
            (Trigger::Periodic { .. } | Trigger::TierAmplification { .. }, _) => Err(format!(
                "trigger {} looks at all runs of the tree: it takes layout = {{ kind = \"runs\", ... }}",
                rule.trigger.name()
            )),
            (_, Granularity::SortedRuns { pick: pick @ RunPick::TimeWindow { .. } }) => Err(format!(
                "pick = \"{}\" takes layout = {{ kind = \"runs\", grouping = {{ kind = \"time-windows\" }} }}",
                pick.name()
            )),
            _ => Ok(()),
        };
    };
    let problem = match (&rule.trigger, &rule.granularity) {
        (_, Granularity::DropOldest {}) => None,
        (Trigger::TombstoneDensity { .. }, Granularity::File {} | Granularity::Files { .. }) => None,
        (
            _,
            Granularity::Level {}
            | Granularity::Guard {}
            | Granularity::RunSlices { .. }
            | Granularity::File {}
            | Granularity::Files { .. },
        ) => Some(
            "layout runs merges whole runs: it takes granularity sorted-runs, or file with the trigger tombstone-density",
        ),
        (Trigger::Idle { .. }, _) => Some(
            "trigger idle brings data down to the last level, and layout runs has no levels: take a layout with levels",
        ),
        (Trigger::LevelSaturation { .. } | Trigger::TombstoneDensity { .. } | Trigger::FileStaleness { .. }, _) => {
            Some(
                "layout runs has no level capacities: with granularity sorted-runs it takes the triggers sorted-runs, space-amplification, periodic and tier-amplification",
            )
        }
        (Trigger::Periodic { jitter_percent, .. }, _) if *jitter_percent > 99 => {
            Some("periodic: jitter_percent is at most 99")
        }
        (Trigger::TierAmplification { percent: 0 }, _) => Some("tier-amplification: percent is above 0"),
        (Trigger::TierAmplification { .. }, _)
            if !matches!(grouping, Grouping::SizeBuckets { .. } | Grouping::Density { .. }) =>
        {
            Some("tier-amplification compares groups by size: it takes grouping size-buckets or density")
        }
        (Trigger::Periodic { .. } | Trigger::TierAmplification { .. }, _) if rule.levels != Levels::All => {
            Some("this trigger looks at the whole tree: it takes levels = \"all\"")
        }
        (_, _) if rule.levels == Levels::Leveled => Some("layout runs has no leveled groups"),
        (_, Granularity::SortedRuns { pick }) => pick_and_grouping(pick, grouping),
    };
    problem.map_or(Ok(()), |problem| Err(problem.to_owned()))
}

/// Rules that look at neighbours in age make sense only where a group holds neighbours.
fn pick_and_grouping(pick: &RunPick, grouping: &Grouping) -> Option<&'static str> {
    let in_time = matches!(grouping, Grouping::TimeOrder {} | Grouping::Generations { .. });
    match pick {
        RunPick::All {} | RunPick::Due { .. } | RunPick::Smallest { .. } | RunPick::Oldest { .. } => None,
        RunPick::TimeWindow { .. } if matches!(grouping, Grouping::TimeWindows { .. }) => None,
        RunPick::TimeWindow { .. } => Some("pick = \"time-window\" takes grouping time-windows"),
        RunPick::Binomial { .. } | RunPick::SizeLevels { .. } | RunPick::SizeSorted { .. }
            if !matches!(grouping, Grouping::TimeOrder {}) =>
        {
            Some("this pick looks at all runs of the tree: it takes grouping time-order")
        }
        _ if in_time => None,
        _ => Some("this pick looks at neighbours in age: it takes grouping time-order or generations"),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn to_ms(seconds: f64) -> u64 {
    (seconds * 1000.0).ceil() as u64
}

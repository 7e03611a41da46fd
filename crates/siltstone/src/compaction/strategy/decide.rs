//! How a strategy decides.
//!
//! Each rule is measured on each of its levels, and the layout's own rule on each leveled level with several runs. What fires is
//! ordered by `priority`. The first firing from which a legal plan can be made wins. If running jobs block a firing, the files that
//! it waits for are held back from the firings behind it; otherwise small jobs further down could starve a large one for ever.

use std::collections::BTreeSet;
use std::sync::Arc;

use self::ranked::Ranked;
use super::super::CompactionPolicy;
use super::super::appraisal::Appraisal;
use super::super::filters::NewFiles;
use super::super::granularity::{self, Draft, Granularity, RunPick};
use super::super::guards::GuardMask;
use super::super::layout::{Layout, Shape};
use super::super::movement::{self, Choice, Movement};
use super::super::oldest::{self, Dropping};
use super::super::plan::{Action, CutRule, Place, Plan, PlanInput, Release, Reuse};
use super::super::planner;
use super::super::record::{Candidate, DecisionRecord, MAX_CANDIDATES, Reason};
use super::super::runs::{self, Relief, shard_borders};
use super::super::targets::Basis;
use super::super::trigger::{Measure, Trigger, rewrites_in_place};
use super::super::view::{LsmView, MAX_LEVELS};
use super::whole_runs::{self, Runs, Target};
use super::{Levels, Priority, Rule, Strategy};
use crate::num::{to_f64, to_u64, to_usize};
use crate::version::{FileMeta, LevelId};

mod explain;
mod guard;
mod ranked;
mod shown;
mod stitched;

/// A rule, or the layout, that fires on a level.
struct Firing<'a> {
    /// The rule with its position from 0; none for the layout.
    rule: Option<(usize, &'a Rule)>,
    level: LevelId,
    /// What it fires on, if that is not a level.
    target: Option<Target>,
    measure: Measure,
    /// How urgent it is.
    score: f64,
}

impl Firing<'_> {
    fn position(&self) -> usize {
        self.rule.map_or(usize::MAX, |(position, _)| position)
    }

    fn record(&self) -> DecisionRecord {
        let Measure { value, threshold } = self.measure;
        match self.rule {
            Some((n, rule)) => DecisionRecord::new(Reason::Rule(n + 1), rule.trigger.name(), value, threshold),
            None => DecisionRecord::new(Reason::Layout, explain::LAYOUT, value, threshold),
        }
    }
}

/// All measurements of a tree.
struct Measured<'a> {
    /// What fires, the most important first.
    firing: Vec<Firing<'a>>,
    /// What does not.
    quiet: Vec<Firing<'a>>,
}

/// What became of a firing.
enum Attempt {
    Plan(Box<Plan>),
    /// Running jobs are in the way; these are the inputs that it waits for.
    Blocked(Vec<PlanInput>),
    Nothing,
}

/// Files that are held back for more important firings that wait.
#[derive(Default)]
struct Held(Vec<PlanInput>);

impl Held {
    /// Whether some file of `plan` is held back. Both sides ascend by key in each run.
    fn meets(&self, plan: &Plan) -> bool {
        let shared = |input: &PlanInput| {
            let there = self.0.iter().filter(|held| held.place() == input.place());
            there.into_iter().any(|held| share_a_file(&held.files, &input.files))
        };
        plan.inputs.iter().any(shared)
    }
}

/// Whether some file is in both of `a` and `b`, which are files of one run.
fn share_a_file(mut a: &[Arc<FileMeta>], mut b: &[Arc<FileMeta>]) -> bool {
    while let ([first, ..], [other, ..]) = (a, b) {
        if first.id == other.id {
            return true;
        }
        // What begins first cannot be in the other list before the place where that list has come to.
        let skip =
            |files: &[Arc<FileMeta>], to: &FileMeta| files.partition_point(|file| file.smallest < to.smallest).max(1);
        match first.smallest < other.smallest {
            true => a = &a[skip(a, other)..],
            false => b = &b[skip(b, first)..],
        }
    }
    false
}

/// How many of the best candidates are tried before a level waits: each one tried costs a check.
const MAX_TRIED: usize = 32;

impl CompactionPolicy for Strategy {
    fn name(&self) -> &str {
        &self.name
    }

    fn pick(&self, view: &LsmView<'_>) -> Option<Plan> {
        let shape = self.shape(view);
        let runs = Runs::of(&shape);
        if let Some(plan) = self.free_move(&shape) {
            return Some(plan);
        }
        let mut held = Held::default();
        let measured = self.measured(&shape, runs.as_ref());
        for (at, firing) in measured.firing.iter().enumerate() {
            match self.attempt(&shape, runs.as_ref(), firing, &held) {
                Attempt::Plan(mut plan) => {
                    if plan.record.candidates.is_empty() {
                        self.show_runs(&shape, runs.as_ref(), &measured, at, &mut plan.record);
                    }
                    return Some(*plan);
                }
                Attempt::Blocked(files) => {
                    if let Some(plan) = self.instead_within_l0(&shape, firing, &held) {
                        return Some(plan);
                    }
                    held.0.extend(files);
                }
                Attempt::Nothing => {}
            }
        }
        let relief = runs.as_ref().and_then(|runs| self.relieve(&shape, runs, &held));
        relief.or_else(|| self.rewrite_dead(&shape, &held))
    }

    fn explain(&self, view: &LsmView<'_>) -> Vec<Appraisal> {
        self.appraise(view)
    }

    fn run_limit(&self, view: &LsmView<'_>, level: LevelId) -> u32 {
        let shape = self.shape(view);
        let limit = shape.run_limit(level);
        let own = self.rules.iter().filter_map(|rule| match rule.trigger {
            Trigger::SortedRuns { runs } if limit > 1 && applies(rule, &shape, level) => Some(runs.unwrap_or(limit)),
            _ => None,
        });
        own.min().unwrap_or(limit)
    }

    fn expected_runs(&self, view: &LsmView<'_>) -> u32 {
        let shape = self.shape(view);
        if let Some(expected) = self.expected(&shape) {
            return expected;
        }
        // The levels between L0 and the base hold nothing.
        let base = shape.targets.base;
        let levels = std::iter::once(LevelId(0)).chain((base.0..=view.last_level().max(base).0).map(LevelId));
        // Both parts of a level, whether it has them now or not: writers should not feel where a round begins.
        let parts = |level| u32::from(shape.is_two_phase(level));
        levels.map(|level| self.run_limit(view, level).saturating_add(parts(level))).fold(0, u32::saturating_add)
    }

    fn expected_runs_in(&self, view: &LsmView<'_>, level: LevelId) -> u32 {
        // A layout that groups runs itself may have all of them in one level.
        self.expected(&self.shape(view)).unwrap_or(0).max(self.run_limit(view, level))
    }

    fn next_time_ms(&self, view: &LsmView<'_>) -> Option<u64> {
        let timed = |rule: &&Rule| rule.trigger.is_timed();
        let shape = self.shape(view);
        if let Some(runs) = Runs::of(&shape) {
            let drops = self.rules.iter().filter(|rule| rule.trigger.is_about_oldest());
            let drops = drops.filter_map(|rule| rule.trigger.next_time_ms(&shape, view.last_level()));
            return drops.chain(runs.next_time_ms(self, view)).min();
        }
        if !self.rules.iter().any(|rule| timed(&rule)) {
            return None;
        }
        let times = self.rules.iter().filter(timed).flat_map(|rule| {
            let levels = view.levels().filter(|level| applies(rule, &shape, *level));
            levels.filter_map(|level| rule.trigger.next_time_ms(&shape, level)).collect::<Vec<_>>()
        });
        times.min()
    }

    fn counts_reads(&self) -> bool {
        let asks = |rule: &Rule| {
            rule.movement.contains(&Movement::Coldest)
                || matches!(rule.trigger, Trigger::ReadAmplification { .. } | Trigger::GuardReads { .. })
        };
        self.rules.iter().any(asks)
    }

    fn next_read_work(&self, view: &LsmView<'_>) -> Option<u64> {
        let mut rules = self.rules.iter().filter(|rule| matches!(rule.trigger, Trigger::ReadCost { .. })).peekable();
        rules.peek()?;
        let shape = self.shape(view);
        let next = |rule: &Rule| {
            let levels = view.levels().filter(|level| applies(rule, &shape, *level));
            levels.filter_map(|level| rule.trigger.next_read_work(&shape, level)).min()
        };
        rules.filter_map(next).min()
    }

    fn loses_oldest(&self) -> bool {
        self.rules.iter().any(|rule| rule.granularity == Granularity::DropOldest {})
    }

    fn filter_bits(&self, view: &LsmView<'_>, new: &NewFiles<'_>) -> f64 {
        self.filter_bits.bits(&self.shape(view), new)
    }

    fn release(&self) -> Release {
        self.release
    }

    fn cut(&self, view: &LsmView<'_>) -> CutRule {
        self.cut_of(view)
    }

    fn guards(&self, level: LevelId) -> Option<GuardMask> {
        match &self.layout {
            Layout::Guarded(guarded) => Some(guarded.mask(level)),
            _ => None,
        }
    }
}

fn applies(rule: &Rule, shape: &Shape<'_>, level: LevelId) -> bool {
    match &rule.levels {
        Levels::All => true,
        Levels::Tiered => !shape.is_leveled(level),
        Levels::Leveled => shape.is_leveled(level),
        Levels::Last => level == shape.view.last_level(),
        Levels::These(levels) => levels.contains(&level.0),
    }
}

impl Strategy {
    fn shape<'a>(&'a self, view: &'a LsmView<'a>) -> Shape<'a> {
        let ratio = if view.sizes.size_ratio == 0 { self.size_ratio } else { view.sizes.size_ratio };
        let basis = Basis { view, layout: &self.layout, ratio: ratio.max(2), level1_memtables: self.level1_memtables };
        Shape { view, layout: &self.layout, ratio: basis.ratio, targets: self.level_targets.targets(&basis) }
    }

    fn cut_of(&self, view: &LsmView<'_>) -> CutRule {
        let file_bytes = self.cut.file_bytes.unwrap_or(view.sizes.file_bytes);
        CutRule {
            file_bytes,
            align: self.cut.align,
            grandparent_bytes: file_bytes.saturating_mul(u64::from(self.cut.grandparent_files)),
            guards: None,
        }
    }

    /// What moves before all rules, because it costs nothing.
    fn free_move(&self, shape: &Shape<'_>) -> Option<Plan> {
        self.placed_flush(shape).or_else(|| self.settled(shape))
    }

    /// Everything that fires, the most important first.
    fn firings<'a>(&'a self, shape: &Shape<'_>, runs: Option<&Runs<'_>>) -> Vec<Firing<'a>> {
        self.measured(shape, runs).firing
    }

    /// Every rule on every level or group on which it looks.
    fn measured<'a>(&'a self, shape: &Shape<'_>, runs: Option<&Runs<'_>>) -> Measured<'a> {
        let view = shape.view;
        let mut firings = Vec::new();
        let mut quiet = Vec::new();
        for (n, rule) in self.rules.iter().enumerate() {
            if let (Some(runs), Granularity::SortedRuns { .. }) = (runs, &rule.granularity) {
                for (number, target, measure, fires) in runs.measured(shape, rule) {
                    let firing = Firing {
                        rule: Some((n, rule)),
                        level: LevelId(number),
                        target: Some(target),
                        measure,
                        score: measure.score(),
                    };
                    if fires { firings.push(firing) } else { quiet.push(firing) }
                }
                continue;
            }
            let levels = view.levels().filter(|level| applies(rule, shape, *level));
            let levels = levels.filter(|level| !rule.trigger.is_tree_wide() || *level == view.last_level());
            for level in levels.filter(|level| level.0 + 1 < MAX_LEVELS) {
                let Some(measure) = rule.trigger.measure(shape, level) else { continue };
                let fires = measure.fires();
                let score = if fires { rule.trigger.urgency(shape, level, measure) } else { measure.score() };
                let firing = Firing { rule: Some((n, rule)), level, target: None, measure, score };
                if fires { firings.push(firing) } else { quiet.push(firing) }
            }
        }
        for level in view.levels().filter(|level| shape.is_leveled(*level)) {
            let measure = runs_too_many(shape, level);
            if measure.fires() {
                // The score is the runs too many: one more than allowed is just due, so that a full level goes first.
                let score = measure.value - measure.threshold + 1.0;
                firings.push(Firing { rule: None, level, target: None, measure, score });
            }
        }
        let score = |a: &Firing<'_>, b: &Firing<'_>| b.score.total_cmp(&a.score);
        let rule = |a: &Firing<'_>, b: &Firing<'_>| a.position().cmp(&b.position());
        let level = |a: &Firing<'_>, b: &Firing<'_>| a.level.cmp(&b.level);
        let firing: BTreeSet<LevelId> = firings.iter().map(|firing| firing.level).collect();
        let crowded = |a: &Firing<'_>| firing.contains(&shape.next_level(a.level));
        firings.sort_by(|a, b| match self.priority {
            Priority::HighestScore => score(a, b).then(rule(a, b)).then(level(a, b)),
            Priority::RuleOrder => rule(a, b).then(score(a, b)).then(level(a, b)),
            Priority::ShallowestFirst => level(a, b).then(rule(a, b)),
            Priority::DeepestFirst => level(b, a).then(rule(a, b)),
            Priority::RoomBelow => crowded(a).cmp(&crowded(b)).then(level(a, b)).then(rule(a, b)),
        });
        if shape.is_pairwise() {
            // A full run goes down before another one joins it.
            firings.sort_by_key(|firing| firing.rule.is_none());
        }
        if runs.is_some() && self.priority != Priority::RuleOrder {
            // A level does not compare with a group: single files come when no group has anything.
            firings.sort_by_key(|firing| firing.target.is_none());
        }
        if self.priority != Priority::RuleOrder {
            let is_read = |rule: &Rule| matches!(rule.trigger, Trigger::GuardReads { .. });
            firings.sort_by_key(|firing| firing.rule.is_some_and(|(_, rule)| is_read(rule)));
        }
        Measured { firing: firings, quiet }
    }

    /// More runs than expected and no rule that knows what to do: see [`Layout::Runs`](super::super::layout::Layout::Runs).
    fn relieve(&self, shape: &Shape<'_>, runs: &Runs<'_>, held: &Held) -> Option<Plan> {
        let (excess, measure) = runs.excess(self, shape)?;
        let (relief, considered) = runs.relief(shape.view, excess)?;
        let (draft, action) = match relief {
            Relief::Join(draft) => (draft, Action::Move),
            Relief::Merge(draft) => (draft, Action::Merge),
        };
        let firing = Firing { rule: None, level: LevelId(0), target: None, measure, score: measure.score() };
        let mut plan = Plan { action, ..self.finish(shape, &firing, draft) };
        shown::excess(shape, &considered, &mut plan);
        is_free(shape.view, &plan, held).then_some(plan)
    }

    fn attempt(&self, shape: &Shape<'_>, runs: Option<&Runs<'_>>, firing: &Firing<'_>, held: &Held) -> Attempt {
        let view = shape.view;
        let level = firing.level;
        let Some((_, rule)) = firing.rule else {
            return self.one_draft(shape, firing, held, granularity::into_oldest_run(shape, level));
        };
        if let (Some(runs), Some(target), Granularity::SortedRuns { pick }) = (runs, &firing.target, &rule.granularity)
        {
            let draft = runs.draft(shape, target, pick, &rule.trigger);
            return self.one_draft(shape, firing, held, draft);
        }
        let draft = match &rule.granularity {
            Granularity::File {} | Granularity::Files { .. } => {
                return self.best_file(shape, firing, rule, held);
            }
            Granularity::Guard {} => return self.best_guard(shape, firing, rule, held),
            Granularity::DropOldest {} => return self.drop_oldest(view, firing, rule, held),
            _ if rule.trigger.is_tree_wide() => granularity::whole_tree(view),
            Granularity::Level {} => {
                let level_or_run = match shape.is_pairwise() {
                    true => granularity::oldest_staying_run(shape, level),
                    false => granularity::all_runs(view, level),
                };
                Some(granularity::down(shape, level_or_run, shape.next_level(level), true))
            }
            Granularity::SortedRuns { pick: RunPick::All {} } => Some(match rule.trigger {
                Trigger::Idle { met_ratio: Some(ratio), .. } => granularity::all_through(shape, level, ratio),
                _ => granularity::all_down(shape, level),
            }),
            Granularity::SortedRuns { pick: RunPick::Due { max_runs, max_left } } => {
                let due = whole_runs::due_in_level(shape, level, &rule.trigger);
                let due = runs::due(due, view.level(level).runs.len(), *max_runs, *max_left);
                let due = granularity::oldest_runs(view, level, due);
                Some(granularity::down(shape, due, shape.next_level(level), false))
                    .filter(|draft| !draft.inputs.is_empty())
            }
            Granularity::RunSlices { files } => {
                let bytes = view.sizes.file_bytes.saturating_mul(u64::from(*files));
                let count = whole_runs::due_in_level(shape, level, &rule.trigger);
                granularity::slice_down(shape, level, count, bytes)
            }
            Granularity::SortedRuns { pick } => {
                let draft = whole_runs::within_level(shape, level, pick, &rule.trigger);
                // Who counts runs may mean them to be rewritten; at rest only what reads pay counts.
                let at_rest = draft.as_ref().filter(|_| matches!(rule.trigger, Trigger::Idle { .. }));
                if let Some(plan) = at_rest.and_then(|draft| self.join(shape, firing, draft, held)) {
                    return Attempt::Plan(Box::new(plan));
                }
                draft
            }
        };
        self.one_draft(shape, firing, held, draft)
    }

    fn one_draft(&self, shape: &Shape<'_>, firing: &Firing<'_>, held: &Held, draft: Option<Draft>) -> Attempt {
        let Some(draft) = draft else {
            return Attempt::Nothing;
        };
        let plan = self.finish(shape, firing, draft);
        match is_free(shape.view, &plan, held) {
            true => Attempt::Plan(Box::new(plan)),
            false => Attempt::Blocked(plan.inputs),
        }
    }

    /// The runs of `draft` become one in the place of the oldest, if they share no key. Asked for what is free before the laws are: where the
    /// oldest has a file between those of the newer ones, these may move there but not be merged.
    fn join(&self, shape: &Shape<'_>, firing: &Firing<'_>, draft: &Draft, held: &Held) -> Option<Plan> {
        let plan = self.finish(shape, firing, runs::joined(draft)?);
        let plan = planner::cheapest(self, shape.view, plan);
        is_free(shape.view, &plan, held).then_some(plan)
    }

    fn finish(&self, shape: &Shape<'_>, firing: &Firing<'_>, draft: Draft) -> Plan {
        let mut record = firing.record();
        record.read_bytes = draft.files().map(|file| file.bytes).sum();
        record.write_bytes = record.read_bytes;
        let about_files = firing.rule.is_some_and(|(_, rule)| rule.trigger.wants_files());
        let borders = match (firing.rule, &self.cut.shards) {
            (_, Some(shards)) => shard_borders(shape.view, &draft.inputs, shards),
            (Some((_, Rule { granularity: Granularity::RunSlices { .. }, .. })), None) => {
                granularity::slice_borders(shape.view, &draft)
            }
            _ if self.expand.contiguous_files > 0 => {
                granularity::cursor_border(shape.view, &draft).into_iter().collect()
            }
            _ => Vec::new(),
        };
        let plan = Plan {
            inputs: draft.inputs,
            output: draft.output,
            action: Action::Merge,
            cut: self.cut_of(shape.view),
            // Other files of the level are none of a single file's business.
            reuse: if about_files && self.reuse == Reuse::MovesFirst { Reuse::Picked } else { self.reuse },
            borders,
            cursor: None,
            release: self.release,
            record,
        };
        let guards = self.guards(plan.output.level);
        plan.cut_at_guards(shape.view, guards)
    }

    /// The oldest files go, as many as the rule's trigger says.
    fn drop_oldest(&self, view: &LsmView<'_>, firing: &Firing<'_>, rule: &Rule, held: &Held) -> Attempt {
        let (going, staying) = match oldest::drop_for(view, &rule.trigger) {
            Dropping::Files(going, staying) => (going, staying),
            Dropping::Busy => return Attempt::Blocked(Vec::new()),
            Dropping::Nothing => return Attempt::Nothing,
        };
        let inputs = oldest::inputs(&going);
        let Some(output) = inputs.first().map(PlanInput::place) else {
            return Attempt::Nothing;
        };
        let mut record = firing.record();
        record.candidates = oldest::shown(&going, &staying);
        record.candidates_total = view.version.files().count();
        let plan = Plan {
            inputs,
            output,
            action: Action::Drop,
            cut: self.cut_of(view),
            borders: Vec::new(),
            reuse: Reuse::Never,
            release: Release::AtEnd,
            cursor: None,
            record,
        };
        // Legal by construction, but in a keyspace that may lose nothing; there the law says so.
        match held.meets(&plan) {
            false => Attempt::Plan(Box::new(plan)),
            true => Attempt::Blocked(plan.inputs),
        }
    }

    /// The move of what was flushed last to the deepest level that it may be placed in.
    fn placed_flush(&self, shape: &Shape<'_>) -> Option<Plan> {
        let view = shape.view;
        let run = view.newest_run(LevelId(0)).filter(|_| self.flush_placement > 0)?;
        let newest = view.version.runs().filter_map(|(_, run)| run.files.newest()).max();
        let is_flushed = run.files.iter().any(|file| Some(file.id) == newest);
        let own = Place { level: LevelId(0), run: run.order };
        // Tombstones that hide nothing would be carried down for ever.
        if !is_flushed || run.files.iter().any(|file| rewrites_in_place(shape, own, file)) {
            return None;
        }
        let cut = self.cut_of(view);
        let to = |level: LevelId| {
            let inputs = vec![PlanInput { level: LevelId(0), run: run.order, files: run.files.to_vec() }];
            let draft = granularity::down(shape, inputs, level, false);
            let record = DecisionRecord::new(Reason::Layout, "flush-placement", f64::from(level.0), 1.0);
            let plan = Plan {
                inputs: draft.inputs,
                output: draft.output,
                action: Action::Move,
                cut,
                reuse: Reuse::Picked,
                cursor: None,
                release: Release::AtEnd,
                borders: Vec::new(),
                record,
            };
            let plan = plan.cut_at_guards(view, self.guards(level));
            let met = run.files.iter().flat_map(|file| {
                let below = view.level(level.parent()).runs.iter();
                below.flat_map(|run| run.overlapping(&file.smallest, &file.largest))
            });
            let little = cut.grandparent_bytes == 0 || met.map(|file| file.bytes).sum::<u64>() <= cut.grandparent_bytes;
            let fits = plan.files().all(|file| plan.fits_guards(file));
            (plan.inputs.len() == 1 && little && fits && plan.check(view).is_ok()).then_some(plan)
        };
        (1..=self.flush_placement).map(LevelId).map_while(to).last()
    }

    /// A merge within L0, if the strategy has them, when a running job is in the way of what `firing` wanted of L0.
    fn instead_within_l0(&self, shape: &Shape<'_>, firing: &Firing<'_>, held: &Held) -> Option<Plan> {
        let intra = self.intra_l0.as_ref()?;
        let view = shape.view;
        let due = shape.run_limit(LevelId(0)).saturating_add(intra.extra_runs);
        let runs = view.level(LevelId(0)).runs.len();
        if firing.level.0 > 0 || firing.rule.is_none() || to_u64(runs) < u64::from(due) {
            return None;
        }
        let max_bytes = match self.cut_of(view).grandparent_bytes {
            0 => u64::MAX,
            bytes => bytes,
        };
        let draft = granularity::within_l0(view, to_usize(intra.min_runs.into()), max_bytes)?;
        let mut plan = self.finish(shape, firing, draft);
        plan.record.trigger = "blocked below L0, sorted-runs".to_owned();
        (plan.record.value, plan.record.threshold) = (to_f64(to_u64(runs)), f64::from(due));
        is_free(view, &plan, held).then_some(plan)
    }

    /// The best file, by the rule's movement, from which a legal plan can be made.
    fn best_file(&self, shape: &Shape<'_>, firing: &Firing<'_>, rule: &Rule, held: &Held) -> Attempt {
        let view = shape.view;
        let level = firing.level;
        let choice = Choice { shape, level, seed: self.seed, window_bytes: self.window_bytes(view, rule) };
        let ranked = Ranked::new(self, rule, &choice);
        let mut blocked: Option<Vec<PlanInput>> = None;
        for (place, pick) in ranked.best.iter().copied().enumerate() {
            let round_robin = rule.movement.contains(&Movement::RoundRobin);
            let taken = if rule.movement.contains(&Movement::MaxRatioWindow) {
                movement::window::files(&choice, pick.run, pick.at)
            } else if self.expand.contiguous_files > 0 && round_robin && shape.is_leveled(level) {
                let max_bytes = view.sizes.file_bytes.saturating_mul(u64::from(self.expand.contiguous_files));
                granularity::contiguous(shape, pick, max_bytes)
            } else {
                granularity::neighbours(pick, &rule.granularity)
            };
            let own = Place { level, run: pick.run.order };
            let in_place =
                rule.trigger.wants_tombstones_gone() && rewrites_in_place(shape, own, &pick.run.files[pick.at]);
            let draft = if in_place {
                let file = Arc::clone(&pick.run.files[pick.at]);
                Draft { inputs: vec![PlanInput { level, run: own.run, files: vec![file] }], output: own }
            } else {
                let expand_bytes = view.sizes.file_bytes.saturating_mul(u64::from(self.expand.files));
                granularity::files_down(shape, level, own.run, taken, expand_bytes)
            };
            let lends = shape.is_leveled(level) && !in_place;
            let lent = granularity::with_starved(view, &draft, if lends { self.expand.starved_files } else { 0 });
            let lent = lent.map(|draft| self.finish(shape, firing, draft)).filter(|plan| is_free(view, plan, held));
            let mut plan = lent.unwrap_or_else(|| self.finish(shape, firing, draft));
            if !is_free(view, &plan, held) {
                blocked.get_or_insert(plan.inputs);
                continue;
            }
            if round_robin {
                let last =
                    plan.inputs.iter().filter(|input| input.level == level).filter_map(|input| input.files.last());
                plan.cursor = last.map(|file| file.largest.clone()).max().map(|key| (level, key));
            }
            plan.record.candidates_total = ranked.total;
            plan.record.candidates = shown(&ranked, place);
            return Attempt::Plan(Box::new(plan));
        }
        blocked.map_or(Attempt::Nothing, Attempt::Blocked)
    }

    /// The bytes that a window of files may come to.
    fn window_bytes(&self, view: &LsmView<'_>, rule: &Rule) -> u64 {
        match rule.granularity {
            Granularity::Files { window_files: Some(files), .. } => view.sizes.file_bytes.saturating_mul(files.into()),
            _ => 0,
        }
    }
}

fn is_free(view: &LsmView<'_>, plan: &Plan, held: &Held) -> bool {
    !held.meets(plan) && plan.check(view).is_ok()
}

/// How many runs a leveled level holds, and how many are too many for the layout.
fn runs_too_many(shape: &Shape<'_>, level: LevelId) -> Measure {
    let runs = to_f64(to_u64(shape.staying_runs(level).count()));
    Measure { value: runs, threshold: f64::from(shape.runs_at_rest(level)) + 1.0 }
}

/// The record's candidates: the chosen first, then the best of the others. A function of its own, so that `benches/records.rs` can count it.
#[inline(never)]
fn shown(ranked: &Ranked<'_>, chosen: usize) -> Vec<Candidate> {
    let candidate = |place: usize| Candidate {
        file: ranked.best[place].file().id,
        runs: 0,
        scores: ranked.scores.iter().map(|scores| scores[place]).collect(),
        chosen: place == chosen,
        // Whatever ranks before the chosen one was tried and could not be taken.
        blocked: place < chosen,
    };
    let others = (0..ranked.best.len().min(MAX_CANDIDATES)).filter(|place| *place != chosen);
    std::iter::once(chosen).chain(others).take(MAX_CANDIDATES).map(candidate).collect()
}

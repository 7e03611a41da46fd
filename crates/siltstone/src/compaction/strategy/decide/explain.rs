//! How every rule stands: the same measurements as for a decision, those that do not fire included.

use super::super::super::appraisal::{Appraisal, Verdict, blockers};
use super::super::super::layout::Shape;
use super::super::super::record::Reason;
use super::super::super::view::{LsmView, MAX_LEVELS};
use super::super::Strategy;
use super::{Attempt, Firing, Granularity, Held, Runs, applies, runs_too_many};

impl Strategy {
    pub(super) fn appraise(&self, view: &LsmView<'_>) -> Vec<Appraisal> {
        let shape = self.shape(view);
        let runs = Runs::of(&shape);
        let mut appraisals = self.firing_ones(&shape, runs.as_ref());
        let quiet = self.quiet_ones(&shape, runs.as_ref(), &appraisals);
        appraisals.extend(quiet);
        appraisals
    }

    /// What fires, in the order in which it is tried.
    fn firing_ones(&self, shape: &Shape<'_>, runs: Option<&Runs<'_>>) -> Vec<Appraisal> {
        let mut held = Held::default();
        let mut found = false;
        let mut appraisals = Vec::new();
        if let Some(plan) = self.free_move(shape) {
            found = true;
            appraisals.push(Appraisal {
                reason: plan.record.reason,
                trigger: plan.record.trigger,
                level: plan.inputs.first().map(|input| input.level.0),
                value: Some(plan.record.value),
                threshold: Some(plan.record.threshold),
                verdict: Verdict::Next,
            });
        }
        for firing in self.firings(shape, runs) {
            let appraisal = |trigger: &str, verdict| Appraisal {
                reason: reason(&firing),
                trigger: trigger.to_owned(),
                level: Some(firing.level.0),
                value: Some(firing.measure.value),
                threshold: Some(firing.measure.threshold),
                verdict,
            };
            let verdict = match self.attempt(shape, runs, &firing, &held) {
                Attempt::Plan(_) if found => Verdict::Later,
                Attempt::Plan(_) => {
                    found = true;
                    Verdict::Next
                }
                Attempt::Blocked(files) => {
                    if !found && self.instead_within_l0(shape, &firing, &held).is_some() {
                        found = true;
                        appraisals.push(appraisal(INTRA_L0, Verdict::Next));
                    }
                    held.0.extend(files);
                    Verdict::Blocked(self.in_the_way(shape, &firing))
                }
                Attempt::Nothing => self.nothing(shape, &firing),
            };
            appraisals.push(appraisal(trigger(&firing), verdict));
        }
        if let Some((_, measure)) = runs.and_then(|runs| runs.excess(self, shape)) {
            let can = runs.and_then(|runs| self.relieve(shape, runs, &held)).is_some();
            appraisals.push(Appraisal {
                reason: Reason::Layout,
                trigger: LAYOUT.to_owned(),
                level: None,
                value: Some(measure.value),
                threshold: Some(measure.threshold),
                verdict: match (found, can) {
                    (true, _) => Verdict::Later,
                    (false, true) => Verdict::Next,
                    (false, false) => Verdict::Nothing,
                },
            });
        }
        if let Some(plan) = self.rewrite_dead(shape, &held) {
            let next = appraisals.iter().any(|appraisal| matches!(appraisal.verdict, Verdict::Next));
            appraisals.push(Appraisal {
                reason: Reason::Layout,
                trigger: plan.record.trigger,
                level: Some(plan.output.level.0),
                value: Some(plan.record.value),
                threshold: Some(plan.record.threshold),
                verdict: if next { Verdict::Later } else { Verdict::Next },
            });
        }
        appraisals
    }

    /// What the firing would do if nothing ran, and who is in the way of that.
    fn in_the_way(&self, shape: &Shape<'_>, firing: &Firing<'_>) -> Vec<usize> {
        let idle = shape.view.clone().with_running(&[]);
        let shape_of_idle = self.shape(&idle);
        // A group is made of idle runs: when nothing runs it is another one.
        let runs = Runs::of(&shape_of_idle);
        let same = |other: &Firing<'_>| other.position() == firing.position() && other.level == firing.level;
        let others = self.firings(&shape_of_idle, runs.as_ref());
        let firing = others.iter().find(|other| same(other)).unwrap_or(firing);
        match self.attempt(&shape_of_idle, runs.as_ref(), firing, &Held::default()) {
            Attempt::Plan(plan) => blockers(shape.view, &plan),
            Attempt::Blocked(_) | Attempt::Nothing => Vec::new(),
        }
    }

    /// A firing without candidates: busy files are no candidates, so it may be that it waits.
    fn nothing(&self, shape: &Shape<'_>, firing: &Firing<'_>) -> Verdict {
        match self.in_the_way(shape, firing) {
            jobs if jobs.is_empty() => Verdict::Nothing,
            jobs => Verdict::Blocked(jobs),
        }
    }

    /// What does not fire: by rule, then by level.
    fn quiet_ones(&self, shape: &Shape<'_>, runs: Option<&Runs<'_>>, firing: &[Appraisal]) -> Vec<Appraisal> {
        let view = shape.view;
        let mut quiet = Vec::new();
        for (n, rule) in self.rules.iter().enumerate() {
            let reason = Reason::Rule(n + 1);
            let fires = |level: Option<u8>| {
                firing.iter().any(|other| other.reason == reason && (level.is_none() || other.level == level))
            };
            let appraisal = |level, value, threshold| Appraisal {
                reason: reason.clone(),
                trigger: rule.trigger.name().to_owned(),
                level,
                value,
                threshold,
                verdict: Verdict::Quiet,
            };
            if let (Some(runs), Granularity::SortedRuns { .. }) = (runs, &rule.granularity) {
                let groups = runs.standing(shape, rule);
                let groups = groups.into_iter().filter(|(number, _)| !fires(Some(*number)));
                let before = quiet.len();
                quiet
                    .extend(groups.map(|(number, measure)| {
                        appraisal(Some(number), Some(measure.value), Some(measure.threshold))
                    }));
                if quiet.len() == before && !fires(None) {
                    quiet.push(appraisal(None, None, None));
                }
                continue;
            }
            let levels = view.levels().filter(|level| applies(rule, shape, *level));
            let levels = levels.filter(|level| !rule.trigger.is_tree_wide() || *level == view.last_level());
            let measures = levels
                .filter(|level| level.0 + 1 < MAX_LEVELS && !fires(Some(level.0)))
                .filter_map(|level| Some((level, rule.trigger.measure(shape, level)?)));
            let before = quiet.len();
            quiet.extend(
                measures.map(|(level, measure)| appraisal(Some(level.0), Some(measure.value), Some(measure.threshold))),
            );
            if quiet.len() == before && !fires(None) {
                quiet.push(appraisal(None, None, None));
            }
        }
        let leveled = view.levels().filter(|level| shape.is_leveled(*level));
        let measures =
            leveled.map(|level| (level, runs_too_many(shape, level))).filter(|(_, measure)| !measure.fires());
        quiet.extend(measures.map(|(level, measure)| Appraisal {
            reason: Reason::Layout,
            trigger: LAYOUT.to_owned(),
            level: Some(level.0),
            value: Some(measure.value),
            threshold: Some(measure.threshold),
            verdict: Verdict::Quiet,
        }));
        quiet
    }
}

/// The name of the layout's own trigger.
pub(super) const LAYOUT: &str = "runs";
/// What RocksDB does while the way down is blocked.
const INTRA_L0: &str = "intra-l0";

fn reason(firing: &Firing<'_>) -> Reason {
    firing.rule.map_or(Reason::Layout, |(n, _)| Reason::Rule(n + 1))
}

fn trigger(firing: &Firing<'_>) -> &'static str {
    firing.rule.map_or(LAYOUT, |(_, rule)| rule.trigger.name())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::compaction::{CompactionPolicy, Sizes, plan};
    use crate::version::text::parse;

    const SIZES: Sizes = Sizes { memtable_bytes: 10 << 10, file_bytes: 10 << 10, size_ratio: 0, level1_bytes: 0 };

    #[test]
    fn who_waits_and_for_whom() {
        let policy = Strategy::named("one-leveling").unwrap();
        let flushed: String = (1..=32).rev().map(|n| format!("L0 {n}:a-z:10K\n")).collect();
        let before = parse(&format!("{flushed}L1 33:a-z:120K\n")).expect("a tree as text");
        let first = Arc::new(plan(&policy, &LsmView::new(&before, SIZES)).unwrap().unwrap());
        // While it runs, 32 more flushes.
        let more: String = (41..=72).rev().map(|n| format!("L0 order={n} {n}:a-z:10K\n")).collect();
        let text = crate::version::text::print(&before);
        let after = parse(&format!("{more}{text}")).unwrap();
        let running = [first];
        let view = LsmView::new(&after, SIZES).with_running(&running);
        let stands: Vec<_> = policy
            .explain(&view)
            .into_iter()
            .map(|a| match (a.level, a.value, a.threshold) {
                (Some(level), Some(value), Some(threshold)) => {
                    format!("{} L{level} {value:?}/{threshold:?} {:?}", a.trigger, a.verdict)
                }
                _ => format!("{} {:?}", a.trigger, a.verdict),
            })
            .collect();
        let expected = [
            "sorted-runs L0 32.0/32.0 Blocked([0])",
            "level-saturation L1 0.75/1.0 Quiet",
            "read-cost L0 0.0/450560.0 Quiet",
            "tombstone-share Quiet",
            "tombstone-share Quiet",
            "idle L0 0.0/10.0 Quiet",
            "idle L0 0.0/10.0 Quiet",
            "runs L1 1.0/2.0 Quiet",
        ];
        assert_eq!(stands, expected);
        assert!(policy.pick(&view).is_none());
        let idle = LsmView::new(&after, SIZES);
        let verdicts: Vec<_> = policy.explain(&idle).into_iter().map(|a| a.verdict).collect();
        assert_eq!(verdicts[0], Verdict::Next);
        assert!(verdicts[1..].iter().all(|verdict| !matches!(verdict, Verdict::Next | Verdict::Blocked(_))));
        assert!(policy.pick(&idle).is_some());
    }
}

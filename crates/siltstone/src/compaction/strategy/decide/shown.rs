//! What a record shows of a choice among whole runs: where a picker has several windows of a group to choose from, those; otherwise the groups or
//! levels on which the rule looks, those that do not fire included.

use super::super::super::granularity::Granularity;
use super::super::super::layout::Shape;
use super::super::super::plan::Plan;
use super::super::super::record::{Candidate, DecisionRecord, MAX_CANDIDATES};
use super::super::super::runs::Considered;
use super::super::whole_runs::{Target, considered_within_level};
use super::super::{Priority, Strategy};
use super::{Firing, Measured, Runs};
use crate::num::to_u64;
use crate::version::{Run, SstId};

impl Strategy {
    /// Adds the candidates of a plan that was made from what fires at position `at`. Counted by `benches/records.rs`.
    #[inline(never)]
    pub(super) fn show_runs(
        &self,
        shape: &Shape<'_>,
        runs: Option<&Runs<'_>>,
        measured: &Measured<'_>,
        at: usize,
        record: &mut DecisionRecord,
    ) {
        let firing = &measured.firing[at];
        let windows = windows(shape, runs, firing);
        if !windows.is_empty() {
            let candidates = windows.into_iter().map(|(window, chosen)| candidate(shape, window, chosen, false));
            return show(record, candidates.flatten().collect());
        }
        let same = |other: &Firing<'_>| other.position() == firing.position();
        let fires = measured.firing.iter().enumerate().filter(|(_, other)| same(other));
        // Whatever stands before it was tried, and had to wait.
        let fires = fires.map(|(n, other)| (self.rank_of(shape, measured, other, true), other, n == at, n < at));
        let quiet = measured.quiet.iter().filter(|other| same(other));
        let quiet = quiet.map(|other| (self.rank_of(shape, measured, other, false), other, false, false));
        let groups = fires.chain(quiet).filter_map(|(scores, other, chosen, blocked)| {
            let (newest, count) = extent(shape, other)?;
            candidate(shape, Considered { newest, runs: count, scores }, chosen, blocked)
        });
        show(record, groups.collect());
    }

    /// What `priority` compares: smaller goes first; infinite for what does not fire, where the trigger's value has no part in it.
    fn rank_of(&self, shape: &Shape<'_>, measured: &Measured<'_>, other: &Firing<'_>, fires: bool) -> Vec<f64> {
        let level = f64::from(other.level.0);
        let first = match self.priority {
            Priority::HighestScore | Priority::RuleOrder => return vec![-other.score],
            _ if !fires => f64::INFINITY,
            Priority::ShallowestFirst => level,
            Priority::DeepestFirst => -level,
            Priority::RoomBelow => {
                let crowded = measured.firing.iter().any(|firing| firing.level == shape.next_level(other.level));
                level + if crowded { f64::from(u8::MAX) + 1.0 } else { 0.0 }
            }
        };
        vec![first, -other.score]
    }
}

/// The windows among which the rule's picker chooses; none if it takes what its group gives.
fn windows(shape: &Shape<'_>, runs: Option<&Runs<'_>>, firing: &Firing<'_>) -> Vec<(Considered, bool)> {
    let Some((_, rule)) = firing.rule else { return Vec::new() };
    match (&rule.granularity, runs, &firing.target) {
        (Granularity::SortedRuns { pick }, Some(runs), Some(Target::Group(group))) => {
            runs.considered(shape, group, pick, &rule.trigger)
        }
        (Granularity::SortedRuns { pick }, None, None) if !rule.trigger.is_tree_wide() => {
            considered_within_level(shape, firing.level, pick, &rule.trigger)
        }
        _ => Vec::new(),
    }
}

/// The position of the newest run of what was measured, among all runs of the tree, and how many runs it is.
fn extent(shape: &Shape<'_>, firing: &Firing<'_>) -> Option<(usize, usize)> {
    if let Some(target) = &firing.target {
        return target.extent();
    }
    let levels = &shape.view.version.levels;
    if firing.rule.is_some_and(|(_, rule)| rule.trigger.is_tree_wide()) {
        return Some((0, shape.view.version.run_count()));
    }
    let above = levels.iter().take(firing.level.index()).map(|level| level.runs.len()).sum();
    Some((above, levels.get(firing.level.index())?.runs.len()))
}

/// Adds the windows among which the last resort chose; the plan's inputs say which it took.
pub(super) fn excess(shape: &Shape<'_>, windows: &[Considered], plan: &mut Plan) {
    let first = plan.inputs.first().and_then(|input| input.files.first()).map(|file| file.id);
    let candidates = windows.iter().cloned().filter_map(|window| {
        let own = candidate(shape, window, false, false)?;
        Some(Candidate { chosen: Some(own.file) == first, ..own })
    });
    let candidates = candidates.collect();
    show(&mut plan.record, candidates);
}

fn candidate(shape: &Shape<'_>, window: Considered, chosen: bool, blocked: bool) -> Option<Candidate> {
    let (_, run) = shape.view.version.runs().nth(window.newest)?;
    let runs = u32::try_from(to_u64(window.runs)).unwrap_or(u32::MAX);
    Some(Candidate { file: first_file(run)?, runs, scores: window.scores, chosen, blocked })
}

fn first_file(run: &Run) -> Option<SstId> {
    run.files.first().map(|file| file.id)
}

/// The chosen first, then the best of the others.
fn show(record: &mut DecisionRecord, mut candidates: Vec<Candidate>) {
    candidates.sort_by(|a, b| {
        let scores = a.scores.iter().zip(&b.scores).map(|(a, b)| a.total_cmp(b));
        b.chosen
            .cmp(&a.chosen)
            .then(scores.into_iter().find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal))
    });
    record.candidates_total = candidates.len();
    candidates.truncate(MAX_CANDIDATES);
    record.candidates = candidates;
}

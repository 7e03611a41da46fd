//! How a strategy decides in a level that guards divide: which guard is compacted, and what falls to an older run for free.

use std::sync::Arc;

use super::super::super::guards::{self, Column};
use super::super::super::layout::Shape;
use super::super::super::plan::{Action, Plan, PlanInput, Reuse};
use super::super::super::record::{Candidate, DecisionRecord, MAX_CANDIDATES, Reason};
use super::super::{Rule, Strategy};
use super::{Attempt, Firing, Held, MAX_TRIED, explain, is_free};
use crate::num::{to_f64, to_u64};
use crate::version::{LevelId, SstId};

/// A guard that makes a rule fire.
struct Due<'a> {
    value: f64,
    bytes: u64,
    column: &'a Column<'a>,
}

impl Strategy {
    /// A job on the guard that makes the rule fire most and from which a legal plan can be made.
    pub(super) fn best_guard(&self, shape: &Shape<'_>, firing: &Firing<'_>, rule: &Rule, held: &Held) -> Attempt {
        let Some(guarded) = shape.guarded() else {
            return Attempt::Nothing;
        };
        let (view, level) = (shape.view, firing.level);
        let columns = guards::columns(view, guarded.mask(level), level);
        let due = due(shape, firing, rule, &columns);
        let mut blocked: Option<Vec<PlanInput>> = None;
        for (place, best) in due.iter().enumerate().take(MAX_TRIED) {
            let Some(draft) = guards::draft(view, guarded, level, best.column) else { continue };
            let mut plan = self.finish(shape, firing, draft);
            if !is_free(view, &plan, held) {
                blocked.get_or_insert_with(|| plan.inputs.clone());
                continue;
            }
            if rule.trigger.is_by_guard(shape, level) {
                plan.record.value = best.value;
            }
            plan.record.candidates_total = due.len();
            plan.record.candidates = shown(&due, place);
            return Attempt::Plan(Box::new(plan));
        }
        blocked.map_or(Attempt::Nothing, Attempt::Blocked)
    }

    /// Where a guarded level holds as many runs as make it due: what can fall to an older run, so that the level's runs are no more than
    /// those of some guard.
    pub(super) fn settled(&self, shape: &Shape<'_>) -> Option<Plan> {
        let view = shape.view;
        shape.guarded()?;
        let runs = |level: LevelId| to_u64(view.level(level).runs.len());
        let crowded = |level: &LevelId| level.0 > 0 && runs(*level) >= u64::from(shape.run_limit(*level));
        view.levels().filter(crowded).find_map(|level| {
            let (value, threshold) = (to_f64(runs(level)), f64::from(shape.run_limit(level)));
            let draft = guards::settle(view, level)?;
            let fall = |inputs: Vec<PlanInput>| Plan {
                inputs,
                output: draft.output,
                action: Action::Move,
                cut: self.cut_of(view),
                borders: Vec::new(),
                reuse: Reuse::Picked,
                cursor: None,
                release: self.release,
                record: DecisionRecord::new(Reason::Layout, explain::LAYOUT, value, threshold),
            };
            // Together they span more than each does, which a running job may be in the way of.
            let each = draft.inputs.iter().flat_map(|input| input.files.iter().map(move |file| (input, file)));
            let each =
                each.take(MAX_TRIED).map(|(input, file)| vec![PlanInput { files: vec![Arc::clone(file)], ..*input }]);
            std::iter::once(draft.inputs.clone()).chain(each).map(fall).find(|plan| plan.check(view).is_ok())
        })
    }
}

/// The guards that make a rule fire, the most important first.
fn due<'a>(shape: &Shape<'_>, firing: &Firing<'_>, rule: &Rule, columns: &'a [Column<'a>]) -> Vec<Due<'a>> {
    let by_guard = rule.trigger.is_by_guard(shape, firing.level);
    let each = columns.iter().filter_map(|column| {
        let value = rule.trigger.of_guard(shape, firing.level, column)?;
        let is_due = !by_guard || value >= firing.measure.threshold;
        is_due.then(|| Due { value, bytes: column.bytes(), column })
    });
    let mut due: Vec<Due<'a>> = each.collect();
    // Stable: of equal ones the left-most.
    due.sort_by(|a, b| b.value.total_cmp(&a.value).then(b.bytes.cmp(&a.bytes)));
    due
}

/// The record's candidates, each named by the first file of its guard: the chosen one first, then the best of the others.
fn shown(due: &[Due<'_>], chosen: usize) -> Vec<Candidate> {
    let candidate = |place: usize| Candidate {
        file: due[place].column.first().map_or(SstId(0), |file| file.id),
        runs: 0,
        scores: vec![-due[place].value, -to_f64(due[place].bytes)],
        chosen: place == chosen,
        blocked: place < chosen,
    };
    let others = (0..due.len().min(MAX_CANDIDATES)).filter(|place| *place != chosen);
    std::iter::once(chosen).chain(others).take(MAX_CANDIDATES).map(candidate).collect()
}

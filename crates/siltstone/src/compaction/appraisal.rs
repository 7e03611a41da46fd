//! How every rule of a policy stands: what is due, what waits for whom, and why nothing is due if nothing is.
//!
//! ```text
//! LsmView --policy.explain--> [Appraisal], the most important first
//! ```

use std::sync::Arc;

use serde::Serialize;

use super::plan::Plan;
use super::record::Reason;
use super::view::LsmView;

/// A rule on a level, measured.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Appraisal {
    /// The rule, or the layout.
    pub reason: Reason,
    /// The trigger's name.
    pub trigger: String,
    /// The level, or the number of the group of runs; none for a rule that has nothing to measure on any.
    pub level: Option<u8>,
    /// What the trigger measured; none if there was nothing to measure.
    pub value: Option<f64>,
    /// Where it fires.
    pub threshold: Option<f64>,
    /// What follows.
    pub verdict: Verdict,
}

/// What follows from a measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The value is below the threshold, or there is nothing to measure.
    Quiet,
    /// It fires and is what is done next.
    Next,
    /// It fires; something more important goes first.
    Later,
    /// It fires and must wait for these running jobs, given by their positions in [`LsmView::running`]. None of them alone is in the way
    /// if the list is empty: files that it needs are held back for a more important firing that waits.
    Blocked(Vec<usize>),
    /// It fires, but no legal compaction follows from it now.
    Nothing,
}

impl Appraisal {
    /// Value / threshold; below 1 while it is quiet.
    pub fn score(&self) -> f64 {
        match (self.value, self.threshold) {
            (Some(value), Some(threshold)) => value / threshold,
            _ => 0.0,
        }
    }
}

/// Which of the running jobs are each in the way of `plan`, which is legal when nothing runs: their positions.
pub(super) fn blockers(view: &LsmView<'_>, plan: &Plan) -> Vec<usize> {
    let alone = |at: &usize| {
        let running: &[Arc<Plan>] = std::slice::from_ref(&view.running()[*at]);
        plan.check(&view.clone().with_running(running)).is_err()
    };
    (0..view.running().len()).filter(alone).collect()
}

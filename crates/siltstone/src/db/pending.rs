//! What would be compacted next, and why nothing is if nothing is: the planner asked, nothing begun.

use std::sync::Arc;

use serde::Serialize;

use super::core::{Core, KeyspaceCore};
use super::schedule::MergeState;
use crate::compaction::appraisal::{Appraisal, Verdict};
use crate::compaction::decision::{Decision, predict_ns};
use crate::compaction::view::{LsmView, Sizes};
use crate::compaction::{Action, Plan, planner};
use crate::error::Result;

/// What is to be compacted in a keyspace, now.
///
/// Of a store that another process has open, or that was opened read-only, it is what a writer would begin with when it opens the store:
/// no jobs, no snapshots, round-robin from the start, the log replayed but nothing of it flushed.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Pending {
    /// The policy.
    pub strategy: String,
    /// What is done next; its job has no number yet.
    pub next: Option<Decision>,
    /// What the policy wanted to do next, and which law forbids it.
    pub refused: Option<String>,
    /// The rules, measured: those that fire first, in the order in which they are tried. Empty for a policy that does not explain itself.
    pub rules: Vec<PendingRule>,
    /// The compactions at work.
    pub running: Vec<Decision>,
    /// The store's merge scheduler, as options spell it.
    pub scheduler: String,
    /// How far these compactions are, and why each steps or waits.
    pub merges: Vec<MergeState>,
}

/// A rule on a level.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct PendingRule {
    /// The measurement.
    #[serde(flatten)]
    pub appraisal: Appraisal,
    /// The jobs that it waits for.
    pub waits_for: Vec<u64>,
}

impl Core {
    pub(crate) fn pending(&self, keyspace: &KeyspaceCore) -> Result<Pending> {
        let jobs = self.compaction.lock().jobs_of(keyspace.id);
        let version = Arc::clone(&keyspace.view.load().tree.version);
        let now_ms = self.now_ms();
        let (oldest, newest) = self.snapshot_ends();
        let view = LsmView::new(&version, Sizes::from(&keyspace.options))
            .with_running(&jobs.plans)
            .with_busy(jobs.made)
            .with_cursors(&jobs.cursors)
            .with_snapshots(oldest, newest)
            .with_losses(keyspace.may_lose_oldest())
            .with_last_write(keyspace.last_write_ms(now_ms))
            .at(now_ms);
        let (name, planned, appraisals) = keyspace.ask(|policy| {
            let paid = keyspace.paid_by_reads(policy, &view);
            let view = view.clone().with_read_work(paid.as_ref());
            (policy.name().to_owned(), planner::next(policy, &view), policy.explain(&view))
        })?;
        let (next, refused) = match planned {
            Ok(plan) => (plan.map(|plan| self.foreseen(keyspace, &plan, &name)), None),
            Err(broken) => (None, Some(broken.to_string())),
        };
        let rule = |appraisal: Appraisal| {
            let waits_for = match &appraisal.verdict {
                Verdict::Blocked(at) => at.iter().filter_map(|at| jobs.decisions.get(*at)).map(|job| job.job).collect(),
                _ => Vec::new(),
            };
            PendingRule { appraisal, waits_for }
        };
        let merges = self.merge_states().into_iter().filter(|merge| merge.keyspace == keyspace.id).collect();
        Ok(Pending {
            scheduler: self.scheduler().to_string(),
            merges,
            strategy: name,
            next,
            refused,
            rules: appraisals.into_iter().map(rule).collect(),
            running: jobs.decisions.iter().map(|decision| Decision::clone(decision)).collect(),
        })
    }

    /// The record of a plan whose job has not begun.
    pub(super) fn foreseen(&self, keyspace: &KeyspaceCore, plan: &Plan, strategy: &str) -> Decision {
        let decision = Decision::new(plan, keyspace.id, strategy);
        let bytes = decision.record.read_bytes + decision.record.write_bytes;
        let before = keyspace.decisions.lock();
        let predicted_ns = match plan.action {
            Action::Merge => predict_ns(before.iter().map(|decision| &**decision), bytes),
            Action::Move | Action::Drop => None,
        };
        Decision { started_ms: self.now_ms(), predicted_ns, ..decision }
    }
}

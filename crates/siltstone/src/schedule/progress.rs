//! What a scheduler may know of a merge, from the plan and the tree that it was made for.

use super::{MergeProgress, WorkClass};
use crate::compaction::plan::Plan;
use crate::compaction::record::{DecisionRecord, Reason};
use crate::compaction::view::LsmView;
use crate::num::{to_u64, to_usize};

impl MergeProgress {
    /// The merge `job` of the tree numbered `tree`, which `plan` asks for in `view`, before its first step.
    pub fn begin(job: u64, tree: u32, plan: &Plan, view: &LsmView<'_>) -> MergeProgress {
        let record = &plan.record;
        let to = plan.output.level;
        let from = plan.inputs.iter().map(|input| input.level).min().unwrap_or(to);
        let bytes_of = |level| {
            let inputs = plan.inputs.iter().filter(move |input| input.level == level);
            inputs.flat_map(|input| &input.files).map(|file| file.bytes).sum::<u64>()
        };
        let input_bytes = plan.input_bytes();
        let leaves = if from < to { bytes_of(from) } else { 0 };
        MergeProgress {
            job,
            tree,
            from_level: from.0,
            to_level: to.0,
            class: WorkClass::of(record),
            input_bytes,
            left_bytes: input_bytes,
            fewer_runs: fewer_runs(plan, view),
            score_permille: permille(if record.threshold > 0.0 { record.value / record.threshold } else { 1.0 }),
            room_bytes: if leaves == view.level(from).bytes() { leaves } else { 0 },
            stays_bytes: view.staying_bytes(to).saturating_sub(bytes_of(to)),
            adds_bytes: input_bytes,
            urgent: false,
            held: false,
        }
    }
}

/// How many sorted runs the tree has less when the plan is done.
fn fewer_runs(plan: &Plan, view: &LsmView<'_>) -> u32 {
    let whole = plan
        .inputs
        .iter()
        .filter(|input| view.level(input.level).run(input.run).is_some_and(|run| run.files.len() == input.files.len()));
    let output_stays = view.level(plan.output.level).run(plan.output.run).is_some()
        && !whole.clone().any(|input| input.place() == plan.output);
    let gone = whole.count().saturating_sub(to_usize(u64::from(!output_stays)));
    u32::try_from(to_u64(gone)).unwrap_or(u32::MAX)
}

impl WorkClass {
    /// What a merge is for, by the reason that it was chosen for.
    pub fn of(record: &DecisionRecord) -> WorkClass {
        match &record.reason {
            Reason::Manual => WorkClass::Cosmetic,
            Reason::Deadline => WorkClass::Deadline,
            Reason::Layout | Reason::Policy(_) => WorkClass::StallPreventing,
            Reason::Rule(_) => match &record.trigger[..] {
                "tombstone-ttl" => WorkClass::Deadline,
                "space-amplification" | "tombstone-density" | "file-staleness" | "read-amplification" => {
                    WorkClass::SpaceReclaiming
                }
                "idle" => WorkClass::Cosmetic,
                _ => WorkClass::StallPreventing,
            },
        }
    }
}

/// Thousandths.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative; what is too large saturates"
)]
fn permille(share: f64) -> u64 {
    (share.clamp(0.0, 1e9) * 1e3) as u64
}

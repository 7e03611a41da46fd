//! A compaction policy of one's own: the conformance suite, then a store that runs under it.
//!
//! ```sh
//! cargo run --example my_policy -p siltstone
//! ```
//!
//! The policy keeps a queue: runs gather in L0 until there are eight, then the oldest ones are merged into L1 until few are left, so that the newest
//! data, which is overwritten soonest, is not merged too early. L1 and below are left to whatever fits: one run a level, each ten
//! times the one above.

#![expect(clippy::disallowed_macros, reason = "a program talks")]

use std::process::ExitCode;
use std::sync::Arc;

use siltstone::compaction::{
    Action, CompactionPolicy, CutRule, DecisionRecord, LsmView, Place, Plan, PlanInput, Reason, Release, Reuse,
    conformance,
};
use siltstone::version::{LevelId, Run};
use siltstone::{Db, Env, Options, Policies};

/// Keeps the newest runs of L0 back.
struct Patient {
    /// At so many runs of L0 the oldest are merged.
    most: usize,
    /// So many of the newest stay.
    keep: usize,
}

impl Patient {
    /// What a level below L0 holds before it is merged into the next: ten times the level above, L1 as much as L0.
    fn capacity_bytes(&self, view: &LsmView<'_>, level: LevelId) -> u64 {
        let l0 = self.most as u64 * view.sizes.memtable_bytes;
        l0.saturating_mul(10u64.saturating_pow(u32::from(level.0) - 1))
    }

    /// `runs` of `level` and what they overlap in the level below, merged into that.
    fn down(&self, view: &LsmView<'_>, level: LevelId, runs: &[Run], record: DecisionRecord) -> Plan {
        let mut inputs: Vec<_> =
            runs.iter().map(|run| PlanInput { level, run: run.order, files: run.files.to_vec() }).collect();
        let first = runs.iter().filter_map(|run| run.files.first()).map(|file| &file.smallest).min();
        let last = runs.iter().filter_map(|run| run.files.last()).map(|file| &file.largest).max();
        let below = view.newest_run(level.parent());
        // The one run below keeps its order for ever; the first one takes that of its newest input.
        let order = below.map(|run| run.order).or(runs.iter().map(|run| run.order).max()).unwrap_or_default();
        if let (Some(below), Some(first), Some(last)) = (below, first, last) {
            let files = below.overlapping(first, last).to_vec();
            if !files.is_empty() {
                inputs.push(PlanInput { level: level.parent(), run: below.order, files });
            }
        }
        let bytes = inputs.iter().flat_map(|input| &input.files).map(|file| file.bytes).sum();
        Plan {
            inputs,
            output: Place { level: level.parent(), run: order },
            action: Action::Merge,
            cut: self.cut(view),
            reuse: Reuse::Picked,
            cursor: None,
            release: Release::AtEnd,
            borders: Vec::new(),
            record: DecisionRecord { read_bytes: bytes, write_bytes: bytes, ..record },
        }
    }

    /// Everything that is due, the deepest level first: it makes room for those above.
    fn due(&self, view: &LsmView<'_>) -> Vec<Plan> {
        let mut plans = Vec::new();
        let levels: Vec<LevelId> = view.levels().filter(|level| level.0 > 0).collect();
        for level in levels.into_iter().rev() {
            let runs = &view.level(level).runs;
            let (bytes, capacity) = (view.staying_bytes(level), self.capacity_bytes(view, level));
            // After a change of strategy a level may hold several runs: all of them go down, and one comes out.
            if bytes > capacity || runs.len() > 1 {
                let reason = Reason::Policy("a full level".to_owned());
                #[expect(clippy::cast_precision_loss, reason = "for people")]
                let record = DecisionRecord::new(reason, "bytes", bytes as f64, capacity as f64);
                plans.push(self.down(view, level, runs, record));
            }
        }
        let l0 = &view.level(LevelId(0)).runs;
        if l0.len() >= self.most {
            let reason = Reason::Policy("patience is over".to_owned());
            #[expect(clippy::cast_precision_loss, reason = "small counts")]
            let record = DecisionRecord::new(reason, "runs", l0.len() as f64, self.most as f64);
            plans.push(self.down(view, LevelId(0), &l0[self.keep..], record));
        }
        plans
    }
}

impl CompactionPolicy for Patient {
    fn name(&self) -> &str {
        "patient"
    }

    fn pick(&self, view: &LsmView<'_>) -> Option<Plan> {
        // What a running job is in the way of waits: the check says so, by the name of the law.
        self.due(view).into_iter().find(|plan| plan.check(view).is_ok())
    }

    fn run_limit(&self, _: &LsmView<'_>, level: LevelId) -> u32 {
        if level.0 == 0 { u32::try_from(self.most).unwrap_or(u32::MAX) } else { 1 }
    }

    fn cut(&self, view: &LsmView<'_>) -> CutRule {
        let file_bytes = view.sizes.file_bytes;
        CutRule { file_bytes, align: true, grandparent_bytes: 10 * file_bytes, guards: None }
    }
}

const PATIENT: Patient = Patient { most: 8, keep: 2 };

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    // A policy that fails this would be refused by the store, or stop it. It belongs into the policy's tests.
    let report = conformance::run(&PATIENT, 1, 40)?;
    println!("conformance: {} merges and {} moves, no law broken", report.merges, report.moves);

    let folder = std::env::temp_dir().join(format!("siltstone-my-policy-{}", std::process::id()));
    let env = Env { policies: Policies::new().with("patient", PATIENT), ..Env::default() };
    let mut options = Options::default();
    options.keyspace.strategy = "policy:patient".to_owned();
    options.keyspace.memtable_bytes = 64 << 10;
    options.keyspace.file_bytes = 64 << 10;
    let db = Db::open_with(&folder, options, env)?;
    let keyspace = db.default_keyspace();
    for n in 0..50_000u64 {
        keyspace.put(format!("key-{:05}", n * 7919 % 20_000), n.to_string())?;
    }
    db.flush()?;
    db.wait_idle()?;
    println!("{} compactions; the last ones:", db.stats().compactions);
    let decisions: Vec<Arc<_>> = keyspace.decisions();
    for decision in decisions.iter().rev().take(5).rev() {
        println!("  job {}: {}", decision.job, decision.record);
    }
    db.close()?;
    // A store that it steers can be looked at without it, and not written to.
    #[expect(clippy::disallowed_methods, reason = "an example cleans up after itself")]
    {
        assert!(Db::open_read_only(&folder, Options::default()).is_ok());
        println!("without the policy: {}", Db::open(&folder, Options::default()).err().ok_or("opened")?);
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conforms() {
        conformance::run(&PATIENT, 7, 100).expect("the policy obeys every law, and ends");
    }
}

//! A compaction from its choice to its end: why it was chosen, what it should cost, what it did cost.
//!
//! A [`Decision`] is plain data, made once for each job and never per entry. The store keeps the last ones of each keyspace
//! ([`Keyspace::decisions`](crate::Keyspace::decisions)), hands them to the event listener and writes them to a small file, from which
//! `siltstone explain` reads them after the store was closed.

use std::fmt;

use serde::Serialize;

use super::plan::{Action, Plan};
use super::record::DecisionRecord;
use crate::num::{to_f64, to_u64};
use crate::version::KeyspaceId;

/// How many file numbers of an input are kept; the others are only counted.
pub const MAX_INPUT_FILES: usize = 16;

/// Throughput is predicted from this many of the last merges: few enough to follow a change of load, enough to even out single ones.
const PREDICT_FROM: usize = 16;

/// One compaction and why.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Decision {
    /// The job's number, unique in the store as long as its record is kept.
    pub job: u64,
    /// Whose.
    #[serde(skip)]
    pub keyspace: KeyspaceId,
    /// The policy that decided.
    pub strategy: String,
    /// Wall time when it was chosen, in milliseconds since 1970.
    pub started_ms: u64,
    /// Merged, moved or dropped.
    pub action: Action,
    /// The shallowest level that it reads.
    pub from_level: u8,
    /// The level that it writes.
    pub to_level: u8,
    /// The order of the run there.
    pub to_run: u64,
    /// What it reads, newest place first.
    pub inputs: Vec<DecisionInput>,
    /// Why, and the bytes that it should cost.
    #[serde(flatten)]
    pub record: DecisionRecord,
    /// How long it should take, in nanoseconds: its bytes over the throughput of this keyspace's last merges. None before the first.
    pub predicted_ns: Option<u64>,
    /// What became of it; none while it runs.
    pub ended: Option<Ended>,
}

/// Files of one run that a compaction reads.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DecisionInput {
    /// The level.
    pub level: u8,
    /// The run's order.
    pub run: u64,
    /// How many files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their numbers, at most [`MAX_INPUT_FILES`].
    pub ids: Vec<u64>,
}

/// How a compaction ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// It took effect.
    Done,
    /// It was stopped, and why.
    Cancelled(String),
    /// It failed, and of what. The store tries again.
    Failed(String),
}

/// What a compaction did. Times are nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Ended {
    /// How.
    pub ending: Ending,
    /// Bytes read; 0 for a move or a drop.
    pub bytes_read: u64,
    /// Bytes written; of a job that was not done, those that were thrown away.
    pub bytes_written: u64,
    /// Bytes of its inputs, about, that are linked to its output: neither read nor written.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes_linked: u64,
    /// Files that came to the output run.
    pub files_out: u64,
    /// Records read.
    pub entries_read: u64,
    /// Records written.
    pub entries_written: u64,
    /// Versions that no one could see any more, dropped.
    pub dropped_versions: u64,
    /// Tombstones that had nothing left to hide, dropped.
    pub dropped_tombstones: u64,
    /// From picking to the manifest's update. What is left of it beside `cpu_ns` and `io_ns` is waiting, if one lane did all: for bandwidth,
    /// for a turn, for the manifest.
    pub took_ns: u64,
    /// Steps of the job without their file calls, of all lanes together.
    pub cpu_ns: u64,
    /// File calls of the job: reading, writing and syncing tables; of all lanes together.
    pub io_ns: u64,
    /// In how many spans of keys it was merged, so that as many lanes could share it.
    #[serde(skip_serializing_if = "is_one")]
    pub spans: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_one(n: &u64) -> bool {
    *n == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Default for Ended {
    /// Done, at no cost.
    fn default() -> Ended {
        Ended {
            ending: Ending::Done,
            bytes_read: 0,
            bytes_written: 0,
            bytes_linked: 0,
            files_out: 0,
            entries_read: 0,
            entries_written: 0,
            dropped_versions: 0,
            dropped_tombstones: 0,
            took_ns: 0,
            cpu_ns: 0,
            io_ns: 0,
            spans: 1,
        }
    }
}

impl Decision {
    /// The decision for `plan` of policy `strategy`; its job has not ended.
    pub fn new(plan: &Plan, keyspace: KeyspaceId, strategy: &str) -> Decision {
        let inputs = plan.inputs.iter().map(|input| DecisionInput {
            level: input.level.0,
            run: input.run.0,
            files: to_u64(input.files.len()),
            bytes: input.files.iter().map(|file| file.bytes).sum(),
            ids: input.files.iter().take(MAX_INPUT_FILES).map(|file| file.id.0).collect(),
        });
        Decision {
            job: 0,
            keyspace,
            strategy: strategy.to_owned(),
            started_ms: 0,
            action: plan.action,
            from_level: plan.inputs.first().map_or(plan.output.level.0, |input| input.level.0),
            to_level: plan.output.level.0,
            to_run: plan.output.run.0,
            inputs: inputs.collect(),
            record: plan.record.clone(),
            predicted_ns: None,
            ended: None,
        }
    }

    /// Bytes of the input files.
    pub fn input_bytes(&self) -> u64 {
        self.inputs.iter().map(|input| input.bytes).sum()
    }

    /// Number of input files.
    pub fn input_files(&self) -> u64 {
        self.inputs.iter().map(|input| input.files).sum()
    }

    /// Whether it reads from `level` or writes to it.
    pub fn touches(&self, level: u8) -> bool {
        self.to_level == level || self.inputs.iter().any(|input| input.level == level)
    }

    /// Whether it was a merge that took effect.
    pub fn is_merge_done(&self) -> bool {
        self.action == Action::Merge && self.ended.as_ref().is_some_and(|ended| ended.ending == Ending::Done)
    }
}

impl fmt::Display for Decision {
    /// As the plan's: `merge 4 3 1 2 -> L1   rule 1, sorted-runs 2 >= 2`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action.name())?;
        for input in &self.inputs {
            input.ids.iter().try_for_each(|id| write!(f, " {id}"))?;
            let more = input.files.saturating_sub(to_u64(input.ids.len()));
            if more > 0 {
                write!(f, " (and {more} more)")?;
            }
        }
        if self.action != Action::Drop {
            write!(f, " -> L{}", self.to_level)?;
        }
        write!(f, "   {}", self.record)
    }
}

/// How long it should take to read and write `bytes` together, in nanoseconds, going by what the last merges of `before`, newest last, moved in
/// which time. None if there were none, or if they took no time (in a simulation without a modelled device).
pub fn predict_ns<'a>(before: impl DoubleEndedIterator<Item = &'a Decision>, bytes: u64) -> Option<u64> {
    let merges =
        before.rev().filter(|decision| decision.is_merge_done()).filter_map(|decision| decision.ended.as_ref());
    let (moved, took) = merges.take(PREDICT_FROM).fold((0u64, 0u64), |(moved, took), ended| {
        (moved + ended.bytes_read + ended.bytes_written, took + ended.took_ns)
    });
    (moved > 0 && took > 0).then(|| whole(to_f64(bytes) * to_f64(took) / to_f64(moved)))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a positive time; beyond 584 years it saturates"
)]
fn whole(ns: f64) -> u64 {
    ns as u64
}

#[cfg(test)]
mod tests;

//! Runs: a question in, a results folder out. Contract: docs/design/0008-workloads-and-runs.md.
//!
//! ```text
//! Question --tasks--> Task --run_trial--> trials/NAME/ --gather--> rows.jsonl, rows.csv
//!
//! question  what is asked: of a run, of a trial
//! folder    the results folder: by one rename, never half of it
//! task      a task in, the folder of a trial out
//! trial     one store: phases, settling, the figures of what is there
//! stage     what a phase does, and where a client's operations come from
//! drive     a phase in real time on threads, or in virtual time in turns
//! client    what each kind of operation does to a store
//! tally, gauge, series   what became of the operations, what was looked at meanwhile, over time
//! totals, merges, row    the figures
//! machine   what the machine was and how quiet
//! all, rows all trials of a question, and their rows together
//! ```
//!
//! In the simulated world everything but `machine.json` follows from the task, bit for bit: on any machine, however many trials run beside it,
//! and whether the run was interrupted.

mod all;
mod client;
mod drive;
mod folder;
mod gauge;
mod kind;
mod machine;
mod merges;
mod question;
mod row;
mod rows;
mod series;
mod stage;
mod tally;
mod task;
#[cfg(test)]
mod tests;
mod totals;
mod trial;

pub use all::{RunProgress, is_cancelled, run_all};
pub use folder::{Results, read_question};
pub use question::{FORMAT, Named, Place, Question, SimDevice, Task, trials};
pub use row::{DEFINITIONS, KindRow, LevelRow, PhaseRow, Row};
pub use stage::load_bytes;
pub use task::run_trial;
pub use trial::Progress;

pub(crate) use question::trial_name;
pub(crate) use stage::{Crew, Operations, Stage};
pub(crate) use trial::Trial;

fn stopped() -> siltstone::Error {
    siltstone::Error::new(siltstone::ErrorKind::Cancelled, "the run was interrupted")
}

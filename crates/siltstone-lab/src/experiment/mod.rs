//! Published studies as data: what was run, what was claimed, and whether it holds here.
//!
//! ```text
//! experiments/luo19/*.toml --spec--> runs (one store each, in virtual time) --measures--> claims --> a table of verdicts
//! ```
//!
//! An [`Experiment`] is a file: the sizes of the original, the runs, and the claims as comparisons of measures. A *scale* divides
//! records, memory, files and bandwidth together, so that the tree keeps its levels and time keeps its axis. A claim that does not
//! hold is a result: it is reported as it came out, never repaired.

mod claim;
mod run;
mod spec;

pub use claim::{Finding, Verdict, judge};
pub use run::{Measures, RunResult, run_all};
pub use spec::{Claim, Experiment, LoadKind, RunSpec, Setup, Sweep, study};

/// The studies that are built in.
pub const STUDIES: [&str; 1] = ["luo19"];

//! `compare`: the same input into one store per strategy, then updates, deletes, reads and a full scan; the figures side by side.
//!
//! What makes strategies differ is the *shape* of the tree: the number of flushes, the size ratio, files against memtable. On a
//! small input with default sizes nothing would ever be merged, so [`Scale`] shrinks memtable and files with the input, to about
//! 160 flushes, the base run of sarkar21 (section 4.3; `reference` of the figures: 10 M records of 128 bytes, 8 MiB of memory).
//!
//! Every strategy sees the same operations in the same order, and at the end all stores must hold the same records: the scan
//! folds them into a fingerprint, and a difference is an error, never a row in a table.

mod run;
mod scale;
mod source;
mod survey;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde::Serialize;
use siltstone::{Error, ErrorKind, Options, Result};

use crate::metrics::LatencySummary;
use crate::strategy::Chosen;

pub use scale::{Fixed, Scale};
pub use source::{Generated, Record, Records, Source};
pub use survey::Survey;

/// What to compare and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The strategies, one store each, in this order.
    pub strategies: Vec<Chosen>,
    /// Options of every store; strategy and scaled sizes are put in.
    pub options: Options,
    /// Which sizes the user chose: they are not scaled.
    pub fixed: Fixed,
    /// Lookups of keys that exist; half as many of keys that do not. `None`: one for every five records, at most 200,000.
    pub reads: Option<u64>,
    /// Updates, as a share of the records.
    pub update_share: f64,
    /// Deletes, as a share of the records, at most 0.5. Of an input whose keys are sampled, at most half of the sample is deleted.
    pub delete_share: f64,
    /// Where the folder with the stores is made.
    pub dir: PathBuf,
    /// Decides which keys are updated, deleted and read.
    pub seed: u64,
}

/// The most deletes for each record: what is read afterwards should be there.
pub const MOST_DELETES: f64 = 0.5;

/// What is going on, for whoever shows progress.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The strategy, or "input" during the survey.
    pub strategy: &'a str,
    /// `survey`, `load`, `update`, `delete`, `settle`, `read`, `scan`.
    pub phase: &'a str,
    /// Operations done in this phase.
    pub done: u64,
    /// Operations that the phase will do, where known.
    pub total: Option<u64>,
}

/// Told about progress; answers false to end the comparison.
pub trait Observer {
    /// Called at the start of each phase and every thousand operations or so.
    fn step(&mut self, step: Step<'_>) -> bool;
}

/// All figures of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// What was loaded.
    pub input: String,
    /// Its size and shape.
    pub survey: Survey,
    /// The sizes that were used, and why.
    pub scale: Scale,
    /// Updates made after the load.
    pub updates: u64,
    /// Deletes made after the updates.
    pub deletes: u64,
    /// Lookups of existing keys.
    pub reads: u64,
    /// Lookups of missing keys.
    pub missing_reads: u64,
    /// The seed of the choices.
    pub seed: u64,
    /// One row a strategy; fewer if the comparison was ended before all were done.
    pub rows: Vec<Row>,
}

/// The figures of one strategy. Definitions: [`DEFINITIONS`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub strategy: String,
    /// Bytes of flushes and compactions written, per byte of keys and values that the user wrote.
    pub write_amplification: f64,
    /// Bytes written to the log, per byte that the user wrote. Not in `write_amplification`.
    pub log_write_amplification: f64,
    /// Blocks that lookups looked into, per lookup that found its key.
    pub read_amplification: f64,
    /// Blocks that lookups had to fetch from files, per lookup.
    pub disk_reads_per_get: f64,
    /// Sorted runs whose filter was asked, per lookup.
    pub runs_probed_per_get: f64,
    /// Bytes of keys and values in the tree that no reader can see, per byte that one can. 0 is perfect.
    pub space_amplification: f64,
    /// Records loaded a second, until the last one was acknowledged.
    pub load_ops_per_s: f64,
    /// The same in 10^6 bytes of keys and values.
    pub load_mb_per_s: f64,
    /// Seconds of the load.
    pub load_s: f64,
    /// Updates a second.
    pub update_ops_per_s: f64,
    /// Deletes a second.
    pub delete_ops_per_s: f64,
    /// Seconds that flushes and compactions went on after the last write: the debt that the writes left.
    pub settle_s: f64,
    /// Lookups of existing keys a second.
    pub read_ops_per_s: f64,
    /// Lookups of missing keys a second.
    pub missing_read_ops_per_s: f64,
    /// Records of a full scan a second.
    pub scan_ops_per_s: f64,
    /// Latency of every put and delete.
    pub write_latency: LatencySummary,
    /// Latency of the lookups of existing keys.
    pub read_latency: LatencySummary,
    /// Sorted runs at the end.
    pub runs: u64,
    /// Files at the end.
    pub files: u64,
    /// Bytes of the files at the end.
    pub disk_bytes: u64,
    /// Records at the end.
    pub live_records: u64,
    /// Bytes of their keys and values.
    pub live_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Compactions that rewrote data.
    pub compactions: u64,
    /// Compactions that only moved a file to another level.
    pub trivial_moves: u64,
    /// Bytes that compactions read.
    pub compaction_bytes_read: u64,
    /// Bytes that compactions wrote.
    pub compaction_bytes_written: u64,
    /// Seconds that writers waited for flushes and compactions.
    pub stall_s: f64,
    /// Processor seconds of the process for this strategy: all threads, reading the input included.
    pub cpu_s: f64,
    /// Lookups of existing keys that found one (a file may hold a key twice, and one of the two was deleted).
    pub reads_found: u64,
    /// The tree at the end: for each level, from L0, the bytes of its runs, newest first.
    pub tree: Vec<Vec<u64>>,
    /// A hash over all records at the end, equal for all strategies.
    pub fingerprint: u64,
}

/// What the figures mean: name and definition, for a legend.
pub const DEFINITIONS: [(&str, &str); 8] = [
    (
        "WA",
        "write amplification: bytes that flushes and compactions wrote / bytes of keys and values that were put or deleted (the log not counted)",
    ),
    (
        "RA",
        "read amplification: data blocks that lookups looked into, cached or not / lookups that found their key (sarkar21 section 4.2: pages read / pages ideally read); lookups of missing keys add blocks, too",
    ),
    (
        "SA",
        "space amplification: bytes of overwritten and deleted records still in the tree / bytes of live records (sarkar21 section 4.2); 0 is perfect",
    ),
    ("load", "records put per second until the last one was acknowledged, in file order, one thread"),
    ("read", "lookups of existing keys per second, after everything settled"),
    ("write latency", "of every put, update and delete, stalls included, closed loop"),
    (
        "runs, disk, compactions",
        "sorted runs and bytes of files at the end; compactions that rewrote data (trivial moves not counted)",
    ),
    (
        "CPU",
        "processor seconds of the whole process for this strategy, background threads and reading the input included",
    ),
];

/// Runs the comparison.
///
/// The stores live one after the other in a temporary folder in `plan.dir`, which is removed in any case.
///
/// # Errors
/// An error of the source or of a store; `Cancelled` when the observer said so before the first strategy was done, later the
/// comparison lacks the others; `Corruption` when two strategies end with different records.
pub fn compare(source: &dyn Source, plan: &Plan, observer: &mut dyn Observer) -> anyhow::Result<Comparison> {
    let input = survey::survey(source, plan.seed, observer)?;
    let survey = input.survey;
    anyhow::ensure!(survey.records > 0, "the input holds no records: there is nothing to compare");
    anyhow::ensure!(
        (0.0..=MOST_DELETES).contains(&plan.delete_share),
        "deletes for each record: found {}, expected a number from 0 to {MOST_DELETES}",
        plan.delete_share
    );
    let share = |share: f64| crate::num::floor(crate::num::float(survey.records) * share);
    let reads = plan.reads.unwrap_or_else(|| (survey.records / 5).clamp(1, 200_000));
    let scale = Scale::new(&plan.options, plan.fixed, survey.bytes());
    let mut comparison = Comparison {
        input: source.describe(),
        survey,
        updates: share(plan.update_share),
        // Each of another key, and something must be left to read.
        deletes: share(plan.delete_share).min(input.keys.len() / 2),
        reads,
        missing_reads: reads / 2,
        seed: plan.seed,
        scale,
        rows: Vec::new(),
    };
    for strategy in &plan.strategies {
        match run::run_strategy(source, &input, plan, &comparison, strategy, observer) {
            Err(error) if is_cancelled(&error) && !comparison.rows.is_empty() => break,
            row => comparison.rows.push(row?),
        }
        check_same(&comparison.rows, &plan.strategies)?;
    }
    Ok(comparison)
}

/// Strategies that drop the oldest data end with fewer records, and are compared with none.
fn check_same(rows: &[Row], strategies: &[Chosen]) -> Result<()> {
    let keeps = rows.iter().zip(strategies).filter(|(_, chosen)| !chosen.loses_oldest()).map(|(row, _)| row);
    let first = keeps.clone().next();
    for (first, row) in first.into_iter().flat_map(|first| keeps.clone().map(move |row| (first, row))) {
        if (row.fingerprint, row.live_records) != (first.fingerprint, first.live_records) {
            let what = format!(
                "strategies {:?} and {:?} end with different records ({} and {}): please report this as a bug",
                first.strategy, row.strategy, first.live_records, row.live_records
            );
            return Err(Error::new(ErrorKind::Corruption, what));
        }
    }
    Ok(())
}

fn is_cancelled(error: &anyhow::Error) -> bool {
    error.downcast_ref().map(Error::kind) == Some(ErrorKind::Cancelled)
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the comparison was interrupted")
}

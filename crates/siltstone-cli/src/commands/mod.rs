//! The commands, one module each.

mod args;
mod bench;
mod checkpoint;
mod compact;
mod compare;
mod delete;
mod explain;
mod export;
mod get;
mod import;
mod inspect;
mod put;
mod report;
mod reproduce;
mod run;
mod scan;
mod stats;
mod strategies;
mod strategy;
mod trace;
mod trial;
mod two_phase;
mod verify;

use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use siltstone::{Db, Durability};

use crate::interrupt::Interrupt;

/// The commit that this build is made from, empty where that is not known.
const COMMIT: &str = env!("SILTSTONE_COMMIT");

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print the value of a key
    Get(get::Get),
    /// Store a record
    Put(put::Put),
    /// Remove a key
    Delete(delete::Delete),
    /// List records in key order
    Scan(scan::Scan),
    /// Load records from a file
    Import(import::Import),
    /// Write all records to a file, in key order
    Export(export::Export),
    /// Print what the store counts
    Stats(stats::Stats),
    /// Draw the tree: levels, runs, files, sizes, key ranges
    Inspect(inspect::Inspect),
    /// Check every checksum and every law of the tree
    Verify(verify::Verify),
    /// Copy the store by hard links
    Checkpoint(checkpoint::Checkpoint),
    /// Merge a range, or everything, to the last level
    Compact(compact::Compact),
    /// Tell why it compacted what it did, or what it would compact next
    Explain(explain::Explain),
    /// List the compaction strategies
    Strategies(strategies::Strategies),
    /// Show, change or try out the strategy of a store
    Strategy(strategy::Strategy),
    /// Run db_bench's basic workloads
    Bench(bench::Bench),
    /// Measure how many writes a store bears for long, without stalls
    TwoPhase(two_phase::TwoPhaseCommand),
    /// Make the page of a results folder
    Report(report::Report),
    /// Run a published study again and say which of its claims hold
    Reproduce(reproduce::Reproduce),
    /// Compare compaction strategies on your data
    Compare(compare::Compare),
    /// Record what a store is asked for; show it, do it again, describe it as a workload
    Trace(trace::Trace),
    /// Run a workload under compaction strategies, and keep what came of it in a folder
    Run(run::Run),
    /// Run one trial of a run: one file in, one results folder out
    Trial(trial::Trial),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        match self {
            Command::Get(command) => command.run(),
            Command::Put(command) => command.run(),
            Command::Delete(command) => command.run(),
            Command::Scan(command) => command.run(interrupt),
            Command::Import(command) => command.run(interrupt),
            Command::Export(command) => command.run(interrupt),
            Command::Stats(command) => command.run(interrupt),
            Command::Inspect(command) => command.run(interrupt),
            Command::Verify(command) => command.run(interrupt),
            Command::Checkpoint(command) => command.run(interrupt),
            Command::Compact(command) => command.run(interrupt),
            Command::Explain(command) => command.run(),
            Command::Strategies(command) => command.run(),
            Command::Strategy(command) => command.run(interrupt),
            Command::Bench(command) => command.run(interrupt),
            Command::TwoPhase(command) => command.run(interrupt),
            Command::Report(command) => command.run(),
            Command::Reproduce(command) => command.run(interrupt),
            Command::Compare(command) => command.run(interrupt),
            Command::Trace(command) => command.run(interrupt),
            Command::Run(command) => command.run(interrupt),
            Command::Trial(command) => command.run(interrupt),
        }
    }
}

/// When a write is safe from what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum DurabilityArg {
    /// No log: lost when the process dies before the next flush
    None,
    /// Survives a killed process
    Buffered,
    /// Survives a power failure
    Sync,
}

impl DurabilityArg {
    /// Keeps what was written to the store, which is closed next: closing does not flush, so what is in no log would be lost every time.
    fn keep(self, db: &Db) -> siltstone::Result<()> {
        if self != DurabilityArg::None {
            return Ok(());
        }
        // If a trace is recorded: the flush is nothing that the store was asked for.
        let _ = db.stop_trace();
        db.flush()
    }
}

impl From<DurabilityArg> for Durability {
    fn from(arg: DurabilityArg) -> Durability {
        match arg {
            DurabilityArg::None => Durability::None,
            DurabilityArg::Buffered => Durability::Buffered,
            DurabilityArg::Sync => Durability::Sync,
        }
    }
}

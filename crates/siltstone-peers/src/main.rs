//! Siltstone beside RocksDB, LevelDB, fjall, Pebble and redb: the same operations, the same budgets, taking turns.
//!
//! Every engine and repetition has a process of its own, so that memory, CPU time and written bytes are its own too, and the
//! repetitions of the engines alternate, so that a machine which slows down slows all of them down. The README says what is equal
//! and what cannot be.
//!
//! ```text
//! Args -- a process for each engine and repetition (host) --> Job -- run, spec, steady --> rows -- report --> tables
//! ```

mod args;
mod compare;
mod drive;
mod engines;
mod goals;
mod host;
mod keys;
mod latency;
mod memory;
mod process;
mod report;
mod row;
mod run;
mod spec;
mod specs;
mod steady;
mod store;
mod table;
mod workload;
mod ycsb;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};

use args::Load;
use compare::Compare;
use engines::Engine;
use run::Job;
use specs::Specs;
use table::Grid;
use workload::Workload;

/// Compares key-value stores side by side.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Inner>,
    #[command(flatten)]
    compare: Compare,
}

#[derive(Subcommand)]
enum Inner {
    /// Run workload specs, the same that `siltstone run` runs, on each engine
    Specs(Specs),
    /// Fill the whole table of our goals: sizes of values, compression, sizes of the cache, all workloads
    Table(Grid),
    /// Run one workload of one engine in this process, for a profiler to watch: `put` leaves a store in the folder, the others need it
    Profile {
        /// What to do
        what: What,
        /// The engine
        #[arg(long, default_value = "siltstone")]
        engine: Engine,
        #[command(flatten)]
        load: Load,
    },
    /// Overwrite at nearly the most that each engine can do, for long, and see whether writes flow or stall
    Steady(Steady),
    /// One engine and repetition; what the comparison starts
    #[command(hide = true)]
    Child { engine: Engine, dir: PathBuf, job: String },
    /// One engine and repetition of a spec
    #[command(hide = true)]
    SpecChild { engine: Engine, dir: PathBuf, job: String },
    /// One engine under a steady load
    #[command(hide = true)]
    SteadyChild { engine: Engine, dir: PathBuf, job: String },
}

/// What `profile` does.
#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// fillseq
    Fillseq,
    /// fillrandom, and keeps the store
    Put,
    /// readrandom on the store that `put` left
    Get,
    /// readmissing on it
    Missing,
    /// seekrandom on it
    Seek,
    /// overwrite on it
    Overwrite,
}

#[derive(Args)]
struct Steady {
    /// The engines, one after the other
    #[arg(long, value_delimiter = ',', default_values = ["siltstone", "rocksdb"])]
    engines: Vec<Engine>,
    /// The load as a share of what the engine does in a closed loop, above 0 and below 1
    #[arg(long, default_value_t = 0.95)]
    utilization: f64,
    /// Writes a second instead, the same for all engines; nothing is tested then
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "utilization")]
    rate: Option<u64>,
    /// Seconds of the closed loop that count
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    testing: u64,
    /// Seconds of the open loop that count
    #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u64).range(1..))]
    running: u64,
    /// Seconds before either that do not: a tree that has just settled takes as long to get to its usual shape
    #[arg(long, default_value_t = 60)]
    warm_up: u64,
    /// Write settings and outcomes to this file
    #[arg(long)]
    json: Option<PathBuf>,
    #[command(flatten)]
    load: Load,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    match cli.command {
        None => compare::run(&cli.compare),
        Some(Inner::Specs(args)) => specs::run(&args),
        Some(Inner::Table(args)) => table::run(&args),
        Some(Inner::Steady(args)) => steadily(&args),
        Some(Inner::Profile { what, engine, load }) => profile(what, engine, &load),
        Some(Inner::Child { engine, dir, job }) => {
            println!("{}", serde_json::to_string(&engine.run(&serde_json::from_str(&job)?, &dir)?)?);
            Ok(())
        }
        Some(Inner::SpecChild { engine, dir, job }) => {
            println!("{}", serde_json::to_string(&engine.spec(&serde_json::from_str(&job)?, &dir)?)?);
            Ok(())
        }
        Some(Inner::SteadyChild { engine, dir, job }) => {
            println!("{}", serde_json::to_string(&engine.steady(&serde_json::from_str(&job)?, &dir)?)?);
            Ok(())
        }
    }
}

/// A steady load on each engine.
fn steadily(args: &Steady) -> Result<()> {
    ensure!(
        args.utilization > 0.0 && args.utilization < 1.0,
        "--utilization is {}; it is a share of the maximum, above 0 and below 1",
        args.utilization
    );
    args.load.setting.check(&args.engines)?;
    let load = args.load.job(Vec::new())?;
    let job = steady::Job {
        budget: load.budget,
        num: load.num,
        value_bytes: load.value_bytes,
        testing_s: args.testing,
        running_s: args.running,
        warm_up_s: args.warm_up,
        permille: permille(args.utilization),
        rate: args.rate,
        seed: load.seed,
    };
    let host = args.load.common.host()?;
    let mut outcomes: Vec<steady::Outcome> = Vec::new();
    for &engine in &args.engines {
        eprintln!("-- {}", engine.name());
        outcomes.push(host.child("steady-child", engine, &job)?);
    }
    println!("{}", steady::table(&outcomes));
    host::write_json(args.json.as_deref(), serde_json::json!({"job": job, "outcomes": outcomes}))
}

fn profile(what: What, engine: Engine, load: &Load) -> Result<()> {
    let workload = match what {
        What::Fillseq => Workload::FillSeq,
        What::Put => Workload::FillRandom,
        What::Get => Workload::ReadRandom,
        What::Missing => Workload::ReadMissing,
        What::Seek => Workload::SeekRandom,
        What::Overwrite => Workload::Overwrite,
    };
    load.setting.check(&[engine])?;
    let dir = load.common.dir.join(engine.name());
    if matches!(what, What::Put | What::Fillseq) {
        host::remove(&dir)?;
    }
    let job = Job { filled: true, ..load.job(vec![workload])? };
    let rows = engine.run(&job, &dir)?;
    println!("{}", report::table(&report::summarize(&rows, &[engine])));
    for row in &rows {
        println!("{}", row.statistics);
    }
    Ok(())
}

/// A count as a fraction can be made of it; exact below 2^53.
#[expect(clippy::as_conversions, reason = "no standard conversion exists; counts here are far below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

/// A count that fits.
fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// A share in thousandths.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "no standard conversion exists; the share lies between 0 and 1"
)]
fn permille(share: f64) -> u64 {
    (share * 1000.0).round() as u64
}

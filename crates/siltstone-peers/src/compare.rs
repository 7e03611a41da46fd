//! The comparison: `db_bench`'s workloads, and YCSB's, of all engines in turn.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

use crate::args::Load;
use crate::engines::Engine;
use crate::host::Host;
use crate::row::{Row, agree};
use crate::run::Job;
use crate::ycsb::{self, Choice};
use crate::{goals, host, report, spec};

#[derive(Args)]
pub(crate) struct Compare {
    /// The engines, in the order in which they take turns
    #[arg(long, value_delimiter = ',', default_values = ["siltstone", "rocksdb", "leveldb", "fjall"])]
    engines: Vec<Engine>,
    /// The workloads; all of them, or with --sync those that write
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<Choice>,
    /// Repetitions; medians are shown
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    reps: u64,
    /// Write settings, raw rows and medians to this file
    #[arg(long)]
    json: Option<PathBuf>,
    #[command(flatten)]
    load: Load,
}

/// Runs everything and shows it.
///
/// # Errors
/// What an engine's process says, and engines that find different records.
pub(crate) fn run(args: &Compare) -> Result<()> {
    args.load.setting.check(&args.engines)?;
    let choices = Choice::sorted(&args.workloads, args.load.common.sync);
    let is_ycsb = choices.iter().any(|choice| matches!(choice, Choice::Ycsb(_)));
    ensure!(!is_ycsb || args.load.num() >= 100, "YCSB needs 100 records");
    let job = args.load.job(Choice::benches(&choices))?;
    let repetitions = interleave(&args.engines, &choices, args.reps, &job, &args.load.common.host()?)?;
    let lines = report::summarize(&repetitions.concat(), &args.engines);
    println!("{}\n\n{}", report::table(&lines), report::overview(&lines, &args.engines));
    let is_beyond_memory = args.load.common.is_beyond_memory(job.num * job.record_bytes());
    println!("\n{}", goals::overview(&lines, job.value_bytes, is_beyond_memory));
    let document = serde_json::json!({"job": job, "repetitions": repetitions, "medians": lines});
    host::write_json(args.json.as_deref(), document)
}

/// The rows of each repetition: the engines take turns, each with `job` and then, in a process of its own, YCSB with the same numbers.
///
/// # Errors
/// What an engine's process says, and engines that find different records.
pub(crate) fn interleave(
    engines: &[Engine],
    choices: &[Choice],
    reps: u64,
    job: &Job,
    host: &Host,
) -> Result<Vec<Vec<Row>>> {
    let mut repetitions = Vec::new();
    for repetition in 0..reps {
        let job = Job { seed: job.seed + repetition, ..job.clone() };
        let chained = ycsb::chain(choices, &job)?;
        let mut rows: Vec<Row> = Vec::new();
        for &engine in engines {
            eprintln!("-- repetition {} of {reps}, {}", repetition + 1, engine.name());
            if !job.workloads.is_empty() {
                rows.extend(host.child::<Vec<Row>>("child", engine, &job)?);
            }
            if let Some(chained) = &chained {
                let job = spec::Job { budget: job.budget.clone(), spec: chained.text().to_owned() };
                rows.extend(host.child::<Vec<Row>>("spec-child", engine, &job)?);
            }
        }
        agree(&rows)?;
        repetitions.push(rows);
    }
    Ok(repetitions)
}

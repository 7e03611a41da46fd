//! Workload specs, the same that `siltstone run` runs, on all engines in turn.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use siltstone_lab::run::load_bytes;
use siltstone_lab::workload::Spec;

use crate::args::{Common, Setting};
use crate::engines::Engine;
use crate::row::{Row, agree};
use crate::{host, report, spec};

#[derive(Args)]
pub(crate) struct Specs {
    /// The workloads: names of shipped specs, or paths of files (./mine.toml)
    #[arg(default_values = ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e", "ycsb-f"])]
    specs: Vec<String>,
    /// The engines, in the order in which they take turns
    #[arg(long, value_delimiter = ',', default_values = ["siltstone", "rocksdb", "leveldb", "fjall"])]
    engines: Vec<Engine>,
    /// Repetitions; medians are shown. Each has a seed of its own: the spec's, and one more each time
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    reps: u64,
    /// A setting of all the specs, as `workload.records=1000000` or `workload.phase.run.operations=500000`; can be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Write settings, raw rows and medians to this file
    #[arg(long)]
    json: Option<PathBuf>,
    #[command(flatten)]
    setting: Setting,
    #[command(flatten)]
    common: Common,
}

/// Runs everything and shows it.
///
/// # Errors
/// A spec that cannot be compared, what an engine's process says, and engines that find different records.
pub(crate) fn run(args: &Specs) -> Result<()> {
    args.setting.check(&args.engines)?;
    let settings = args.set.iter().map(|given| setting(given)).collect::<Result<Vec<_>>>()?;
    let choose = |name: &String| Spec::choose(name, &settings);
    let specs = args.specs.iter().map(choose).collect::<Result<Vec<Spec>>>()?;
    // All of them first: nobody wants to be told after an hour.
    specs.iter().try_for_each(spec::check)?;

    let host = args.common.host()?;
    let mut repetitions: Vec<Vec<Row>> = Vec::new();
    for repetition in 0..args.reps {
        let mut rows: Vec<Row> = Vec::new();
        for (n, spec) in specs.iter().enumerate() {
            for &engine in &args.engines {
                let (at, of) = (repetition + 1, args.reps);
                eprintln!(
                    "-- repetition {at} of {of}, {} ({} of {}), {}",
                    spec.name,
                    n + 1,
                    specs.len(),
                    engine.name()
                );
                rows.extend(host.child::<Vec<Row>>("spec-child", engine, &job(args, spec, repetition)?)?);
            }
        }
        agree(&rows)?;
        repetitions.push(rows);
    }
    let lines = report::summarize(&repetitions.concat(), &args.engines);
    println!("{}\n\n{}", report::table(&lines), report::overview(&lines, &args.engines));
    let jobs = specs.iter().map(|spec| job(args, spec, 0)).collect::<Result<Vec<_>>>()?;
    let document = serde_json::json!({"jobs": jobs, "repetitions": repetitions, "medians": lines});
    host::write_json(args.json.as_deref(), document)
}

fn job(args: &Specs, spec: &Spec, repetition: u64) -> Result<spec::Job> {
    let spec = seeded(spec, repetition)?;
    Ok(spec::Job { budget: args.setting.budget(&args.common, load_bytes(&spec)?)?, spec: spec.text().to_owned() })
}

/// `spec` with the seed of a repetition.
fn seeded(spec: &Spec, repetition: u64) -> Result<Spec> {
    let mut table: toml::Table = spec.text().parse()?;
    table.insert("seed".to_owned(), i64::try_from(spec.seed + repetition).context("a seed below 2^63")?.into());
    Spec::parse(&table.to_string(), &spec.name)
}

/// The name within the spec, and the value: TOML, else a text without quotes, as `siltstone run --set` reads it.
fn setting(given: &str) -> Result<(String, toml::Value)> {
    let usage = || format!("--set {given}: expected workload.NAME=VALUE, for example --set workload.records=1000000");
    let (name, value) = given.split_once('=').with_context(usage)?;
    let name = name.trim().strip_prefix("workload.").with_context(usage)?;
    let value = value.trim();
    let parsed = format!("value = {value}").parse::<toml::Table>().ok().and_then(|mut table| table.remove("value"));
    Ok((name.to_owned(), parsed.unwrap_or_else(|| value.into())))
}

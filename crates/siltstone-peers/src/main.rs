//! Siltstone beside RocksDB, LevelDB, fjall and redb: the same operations, the same budgets, taking turns.
//!
//! Every engine and repetition has a process of its own, so that memory, CPU time and written bytes are its own too, and the
//! repetitions of the engines alternate, so that a machine which slows down slows all of them down. The README says what is equal
//! and what cannot be.

mod engines;
mod keys;
mod latency;
mod process;
mod report;
mod run;
mod steady;
mod store;
mod workload;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;

use engines::Engine;
use run::{Job, Row};
use store::Budget;
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
struct Compare {
    /// The engines, in the order in which they take turns
    #[arg(long, value_delimiter = ',', default_values = ["siltstone", "rocksdb", "leveldb", "fjall"])]
    engines: Vec<Engine>,
    /// The workloads; all of them, or with --sync those that write
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// Repetitions; medians are shown
    #[arg(long, default_value_t = 3)]
    reps: u64,
    /// Write settings, raw rows and medians to this file
    #[arg(long)]
    json: Option<PathBuf>,
    #[command(flatten)]
    load: Load,
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
    /// Seconds before either that do not
    #[arg(long, default_value_t = 20)]
    warm_up: u64,
    /// Write settings and outcomes to this file
    #[arg(long)]
    json: Option<PathBuf>,
    #[command(flatten)]
    load: Load,
}

#[derive(Args)]
struct Load {
    /// Keys in the store [default: 5000000, with --sync 50000]
    #[arg(long)]
    num: Option<u64>,
    /// Operations of a workload that reads
    #[arg(long, default_value_t = 500_000)]
    reads: u64,
    /// Seconds after which a workload that reads stops
    #[arg(long, default_value_t = 5.0)]
    cap: f64,
    /// Folder for the stores, on the disk that is to be measured; what lies in its subfolders `ENGINE` is removed
    #[arg(long, default_value = "target/peers-stores")]
    dir: PathBuf,
    /// Make every write durable before it returns
    #[arg(long)]
    sync: bool,
    /// Block cache, MiB
    #[arg(long, default_value_t = 256)]
    cache: usize,
    /// Memtable, MiB
    #[arg(long, default_value_t = 64)]
    memtable: usize,
    /// Background threads
    #[arg(long, default_value_t = 2)]
    threads: u8,
    /// Fixes keys and values
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Options of Siltstone that replace the budget's, as TOML: 'compaction_threads = 2'
    #[arg(long, default_value = "")]
    siltstone_options: String,
}

impl Load {
    fn job(&self, workloads: Vec<Workload>) -> Job {
        Job {
            budget: Budget {
                memtable_bytes: self.memtable << 20,
                cache_bytes: self.cache << 20,
                block_bytes: 4096,
                filter_bits_per_key: 10,
                threads: self.threads,
                sync: self.sync,
                siltstone_options: self.siltstone_options.clone(),
            },
            workloads,
            num: self.num.unwrap_or(if self.sync { 50_000 } else { 5_000_000 }),
            reads: self.reads,
            cap_s: self.cap,
            seed: self.seed,
            filled: false,
        }
    }
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    match cli.command {
        None => compare(&cli.compare),
        Some(Inner::Child { engine, dir, job }) => {
            let rows = engine.run(&serde_json::from_str(&job)?, &dir)?;
            println!("{}", serde_json::to_string(&rows)?);
            Ok(())
        }
        Some(Inner::SteadyChild { engine, dir, job }) => {
            println!("{}", serde_json::to_string(&engine.steady(&serde_json::from_str(&job)?, &dir)?)?);
            Ok(())
        }
        Some(Inner::Steady(args)) => steadily(&args),
        Some(Inner::Profile { what, engine, load }) => profile(what, engine, &load),
    }
}

/// Runs everything and shows it.
fn compare(args: &Compare) -> Result<()> {
    ensure!(args.reps > 0 && !args.engines.is_empty(), "at least one engine and one repetition");
    let mut workloads = args.workloads.clone();
    if workloads.is_empty() {
        workloads.extend(Workload::ALL.iter().filter(|workload| workload.writes() || !args.load.sync));
    }
    workloads.sort();
    workloads.dedup();
    let mut job = args.load.job(workloads);
    ensure!(job.num > 0, "at least one key");

    let mut repetitions: Vec<(u64, Vec<Row>)> = Vec::new();
    for repetition in 0..args.reps {
        job.seed = args.load.seed + repetition;
        for &engine in &args.engines {
            eprintln!("-- repetition {} of {}, {}", repetition + 1, args.reps, engine.name());
            repetitions.push((repetition, in_child("child", engine, &job, &args.load.dir)?));
        }
    }
    let rows: Vec<Row> = repetitions.iter().flat_map(|(_, rows)| rows.clone()).collect();
    let lines = report::summarize(&rows, &args.engines);
    println!("{}\n\n{}", report::table(&lines), report::overview(&lines, &args.engines));
    if let Some(path) = &args.json {
        let document = serde_json::json!({
            "machine": machine(),
            "versions": versions(),
            "job": job,
            "repetitions": repetitions.iter().map(|(n, rows)| serde_json::json!({"repetition": n, "rows": rows})).collect::<Vec<_>>(),
            "medians": lines,
        });
        let text = serde_json::to_string_pretty(&document)?;
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// A steady load on each engine.
fn steadily(args: &Steady) -> Result<()> {
    ensure!(
        args.utilization > 0.0 && args.utilization < 1.0,
        "--utilization is {}; it is a share of the maximum, above 0 and below 1",
        args.utilization
    );
    let load = args.load.job(Vec::new());
    ensure!(load.num > 0, "at least one key");
    let job = steady::Job {
        budget: load.budget,
        num: load.num,
        testing_s: args.testing,
        running_s: args.running,
        warm_up_s: args.warm_up,
        permille: permille(args.utilization),
        rate: args.rate,
        seed: load.seed,
    };
    let mut outcomes: Vec<steady::Outcome> = Vec::new();
    for &engine in &args.engines {
        eprintln!("-- {}", engine.name());
        outcomes.push(in_child("steady-child", engine, &job, &args.load.dir)?);
    }
    println!("{}", steady::table(&outcomes));
    if let Some(path) = &args.json {
        let document = serde_json::json!({
            "machine": machine(), "versions": versions(), "job": job, "outcomes": outcomes,
        });
        let text = serde_json::to_string_pretty(&document)?;
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Runs `job` in a process of its own, from an empty folder and with nothing left to write back, and removes the folder.
fn in_child<T: DeserializeOwned>(command: &str, engine: Engine, job: &impl Serialize, dir: &Path) -> Result<T> {
    let dir = dir.join(engine.name());
    remove(&dir)?;
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    Command::new("sync").status().context("running sync")?;
    let child = Command::new(std::env::current_exe()?)
        .args([command, engine.name()])
        .arg(&dir)
        .arg(serde_json::to_string(job)?)
        .stderr(Stdio::inherit())
        .output()
        .context("starting a process for the engine")?;
    if !child.status.success() {
        bail!("{}: the process ended with {}", engine.name(), child.status);
    }
    remove(&dir)?;
    serde_json::from_slice(&child.stdout).context("reading what the engine's process printed")
}

fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("removing {}", dir.display()))
        }
        _ => Ok(()),
    }
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
    let dir = load.dir.join(engine.name());
    if matches!(what, What::Put | What::Fillseq) {
        remove(&dir)?;
    }
    let job = Job { filled: true, ..load.job(vec![workload]) };
    let rows = engine.run(&job, &dir)?;
    println!("{}", report::table(&report::summarize(&rows, &[engine])));
    for row in &rows {
        println!("{}", row.statistics);
    }
    Ok(())
}

/// The engines' versions, as the lock file has them.
fn versions() -> BTreeMap<String, String> {
    let lines: Vec<&str> = include_str!("../Cargo.lock").lines().collect();
    let named = |pair: &[&str]| {
        let name = pair[0].strip_prefix("name = ")?.trim_matches('"');
        let version = pair[1].strip_prefix("version = ")?.trim_matches('"');
        let wanted = ["siltstone", "rocksdb", "librocksdb-sys", "fjall", "lsm-tree", "redb"];
        wanted.contains(&name).then(|| (name.to_owned(), version.to_owned()))
    };
    lines.windows(2).filter_map(named).collect()
}

/// Where this ran: kernel, processor, cores, memory, and the commit of the working folder.
fn machine() -> BTreeMap<&'static str, String> {
    let line = |path: &str, prefix: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let found = text.lines().find_map(|line| line.strip_prefix(prefix));
        found.unwrap_or_default().trim_matches([' ', '\t', ':']).to_owned()
    };
    let commit = Command::new("git").args(["rev-parse", "HEAD"]).output();
    let commit = commit.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    BTreeMap::from([
        ("kernel", line("/proc/version", "")),
        ("processor", line("/proc/cpuinfo", "model name")),
        ("cores", cores.to_string()),
        ("memory", line("/proc/meminfo", "MemTotal:")),
        ("commit", commit),
    ])
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

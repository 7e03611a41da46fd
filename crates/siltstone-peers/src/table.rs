//! The whole table: the comparison once for each size of values, compression and size of the cache, beside what is to be reached.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::args::{CacheShare, Common, Load, Setting};
use crate::compare::interleave;
use crate::engines::Engine;
use crate::goals;
use crate::host;
use crate::report::{self, Line};
use crate::row::Row;
use crate::run::Job;
use crate::store::Compression;
use crate::ycsb::Choice;

#[derive(Args)]
pub(crate) struct Grid {
    /// The engines, in the order in which they take turns; those that cannot compress as a part of the table wants are left out there
    #[arg(long, value_delimiter = ',', default_values = ["siltstone", "rocksdb", "leveldb", "fjall"])]
    engines: Vec<Engine>,
    /// The workloads; all of them if none is named
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<Choice>,
    /// Bytes of a value
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1024], value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    value_bytes: Vec<u32>,
    /// Compression of data blocks
    #[arg(long, value_delimiter = ',', default_values = ["none", "lz4"])]
    compression: Vec<Compression>,
    /// Block cache as a share of the bytes of all keys and values
    #[arg(long, value_delimiter = ',', default_values = ["all", "third", "fiftieth"])]
    cache_share: Vec<CacheShare>,
    /// Records in a store [default: 5000000, with values of 512 bytes or more 1000000; with --quick 200000 and 40000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(100..))]
    num: Option<u64>,
    /// Stores of so many times as many records: `1,10` measures both
    #[arg(long, value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u64).range(1..=1000))]
    times: Vec<u64>,
    /// Operations of a workload that reads; a fifth of them of ycsb-e [default: 500000, with --quick 50000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    reads: Option<u64>,
    /// Repetitions; medians are shown [default: 5, with --quick 1]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    reps: Option<u64>,
    /// A first impression in minutes: small stores, which say little about large ones
    #[arg(long)]
    quick: bool,
    /// Fixes keys and values
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write settings, raw rows and medians to this file, anew after each part of the table
    #[arg(long)]
    json: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// One part of the table.
#[derive(Serialize)]
struct Part {
    value_bytes: u32,
    compression: Compression,
    cache_share: CacheShare,
    /// Those that can compress so.
    engines: Vec<Engine>,
    job: Job,
    repetitions: Vec<Vec<Row>>,
    medians: Vec<Line>,
}

/// Runs everything and shows it, part by part.
///
/// # Errors
/// What an engine's process says, and engines that find different records.
pub(crate) fn run(args: &Grid) -> Result<()> {
    let choices = Choice::sorted(&args.workloads, args.common.sync);
    let mut parts = Vec::new();
    for &times in &args.times {
        for &value_bytes in &args.value_bytes {
            for &compression in &args.compression {
                for &cache_share in &args.cache_share {
                    parts.push(args.part(times, value_bytes, compression, cache_share, &choices)?);
                }
            }
        }
    }
    let reps = args.reps.unwrap_or(if args.quick { 1 } else { 5 });
    let host = args.common.host()?;
    let start = Instant::now();
    let all = parts.len();
    for n in 0..all {
        let part = &mut parts[n];
        eprintln!("== part {} of {all}: {}{}", n + 1, part.title(), left(start, n, all));
        part.repetitions = interleave(&part.engines, &choices, reps, &part.job, &host)?;
        part.medians = report::summarize(&part.repetitions.concat(), &part.engines);
        part.show(args);
        host::write_json(args.json.as_deref(), serde_json::json!({"parts": parts[..=n]}))?;
    }
    Ok(())
}

/// How long the rest takes, if it goes on like this.
fn left(start: Instant, done: usize, all: usize) -> String {
    if done == 0 {
        return String::new();
    }
    let of_one = start.elapsed().as_secs_f64() / crate::float(crate::count(done));
    format!(", about {:.0} minutes left", of_one * crate::float(crate::count(all - done)) / 60.0)
}

impl Grid {
    fn part(
        &self,
        times: u64,
        value_bytes: u32,
        compression: Compression,
        cache_share: CacheShare,
        choices: &[Choice],
    ) -> Result<Part> {
        let num = self.num.unwrap_or(match (self.quick, goals::is_large(usize::try_from(value_bytes)?)) {
            (false, false) => 5_000_000,
            (false, true) => 1_000_000,
            (true, false) => 200_000,
            (true, true) => 40_000,
        });
        let load = Load {
            num: Some(num.saturating_mul(times)),
            value_bytes,
            reads: self.reads.unwrap_or(if self.quick { 50_000 } else { 500_000 }),
            cap: None,
            seed: self.seed,
            setting: Setting { cache: 0, cache_share: Some(cache_share), compression },
            common: self.common.clone(),
        };
        let engines: Vec<Engine> =
            self.engines.iter().copied().filter(|engine| engine.check(compression).is_ok()).collect();
        ensure!(!engines.is_empty(), "no engine of this build can compress with {compression:?}");
        let job = load.job(Choice::benches(choices))?;
        Ok(Part { value_bytes, compression, cache_share, engines, job, repetitions: Vec::new(), medians: Vec::new() })
    }
}

impl Part {
    fn title(&self) -> String {
        let compression = if self.compression == Compression::None { "uncompressed" } else { "LZ4" };
        format!(
            "{} records, values of {} bytes, {compression}, cache {} ({} MiB)",
            self.job.num,
            self.value_bytes,
            self.cache_share.name(),
            self.job.budget.cache_bytes >> 20
        )
    }

    fn show(&self, args: &Grid) {
        println!("## {}\n", self.title());
        for engine in args.engines.iter().filter(|engine| !self.engines.contains(engine)) {
            let why = engine.check(self.compression).expect_err("it was left out for it");
            println!("Without {}: {why}.\n", engine.name());
        }
        let is_beyond_memory = args.common.is_beyond_memory(self.job.num * self.job.record_bytes());
        println!("{}\n", report::table(&self.medians));
        println!("{}\n", goals::overview(&self.medians, self.job.value_bytes, is_beyond_memory));
    }
}

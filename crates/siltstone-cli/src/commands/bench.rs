//! `bench [STORE]`

mod peers;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::Args;
use siltstone::{Db, ErrorKind, Keyspace, Options};
use siltstone_lab::load::{PhaseResult, run_phase};
use siltstone_lab::report::{duration_ns, number};
use siltstone_lab::workload::{BASIC, Phase, Workload, basic};

use super::args::Telling;
use crate::failure::Interrupted;
use crate::interrupt::Interrupt;
use crate::output::text_table;
use crate::progress::{Meter, line};
use crate::store::OptionArgs;

/// Bytes of a key, unless asked for otherwise.
const KEY_BYTES: u32 = 16;
/// Keyspaces of this name are emptied and filled by the bench.
const KEYSPACE: &str = "siltstone-bench";

/// Run db_bench's basic workloads and print throughput and latencies.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone bench
  siltstone bench --num 5000000 --workloads fillrandom,readrandom
  siltstone bench --set keyspace.strategy=tiering --set cache_bytes=256MiB --json
  siltstone bench --peers rocksdb,leveldb,fjall --num 5000000

Workloads: fillseq fillrandom overwrite readrandom readmissing readseq seekrandom readwhilewriting deleterandom, run \
in the order given. fillseq and fillrandom start from nothing; the others work on what is there. Keys are drawn \
uniformly, values compress to about half. One thread, closed loop. Between workloads, background work is waited for. \
Without STORE, a temporary folder is used and removed; in a STORE, only the keyspace siltstone-bench is touched.

With --peers the program siltstone-peers runs its own form of these workloads, and YCSB A to F, on Siltstone and the \
stores named, by turns and with equal budgets; a column for each. It is found in a checkout where it was built \
(crates/siltstone-peers), beside siltstone, or in PATH.")]
pub(crate) struct Bench {
    /// Folder of the store; it may hold data, which is not touched
    store: Option<PathBuf>,
    /// Different keys, and operations of each workload
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000_000))]
    num: u64,
    /// Operations of the reading workloads, where it shall not be --num
    #[arg(long, value_name = "N")]
    reads: Option<u64>,
    /// Bytes of a value
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1 << 30))]
    value_bytes: u32,
    /// Bytes of a key
    #[arg(long, default_value_t = KEY_BYTES, value_parser = clap::value_parser!(u32).range(12..=1024))]
    key_bytes: u32,
    /// What to run, separated by commas
    #[arg(long, value_delimiter = ',', default_values = BASIC)]
    workloads: Vec<String>,
    /// Decides every random choice
    #[arg(long, default_value_t = 301)]
    seed: u64,
    /// Other stores beside Siltstone, separated by commas: rocksdb, leveldb, fjall, redb
    #[arg(long, value_delimiter = ',', value_name = "STORES")]
    peers: Vec<String>,
    /// Repetitions beside other stores; medians are shown
    #[arg(long, default_value_t = 3, requires = "peers", value_parser = clap::value_parser!(u64).range(1..))]
    reps: u64,
    #[command(flatten)]
    options: OptionArgs,
    #[command(flatten)]
    telling: Telling,
}

impl Bench {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        if !self.peers.is_empty() {
            return self.run_beside_peers(interrupt);
        }
        let workload = self.workload()?;
        let (options, given) = self.options.read()?;
        // Lives until the end of this function: its folder goes then, upon errors too.
        let temporary;
        let path = match &self.store {
            Some(path) => path.clone(),
            None => {
                temporary = temporary_folder()?;
                temporary.path().join("store")
            }
        };
        let db = Db::open(&path, options.clone())?;
        let rows = self.run_phases(&db, &options, given.contains_key("keyspace"), &workload, interrupt)?;
        db.close()?;
        if !rows.is_empty() {
            self.telling.print(&rows[..], text)?;
        }
        let (done, all) = (rows.len(), workload.phases.len());
        ensure!(done == all, Interrupted::leaving(format!("{done} of {all} workloads are finished")));
        Ok(ExitCode::SUCCESS)
    }

    fn workload(&self) -> anyhow::Result<Workload> {
        let mut phases = Vec::new();
        for name in &self.workloads {
            let reads = !matches!(name.as_str(), "fillseq" | "fillrandom" | "overwrite" | "deleterandom");
            let count = if reads { self.reads.unwrap_or(self.num) } else { self.num };
            match basic(name, count) {
                Some(phase) => phases.push(phase),
                None => bail!("there is no workload {name:?}: choose from {}", BASIC.join(",")),
            }
        }
        Ok(Workload {
            seed: self.seed,
            records: self.num,
            key_bytes: self.key_bytes,
            value_bytes: self.value_bytes,
            phases,
        })
    }

    /// The workloads that were finished: all of them, unless the command was told to end. `is_given`: the keyspace's options are the user's.
    fn run_phases(
        &self,
        db: &Db,
        options: &Options,
        is_given: bool,
        workload: &Workload,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Vec<PhaseResult>> {
        if !self.telling.quiet {
            let (key, value) = (workload.key_bytes, workload.value_bytes);
            line(&format!("bench: {} keys of {key} bytes, values of {value}, seed {}", self.num, self.seed));
        }
        let mut rows = Vec::new();
        for phase in &workload.phases {
            let keyspace = keyspace(db, options, is_given, phase)?;
            let mut meter = Meter::new(&phase.name, "operations", Some(phase.count), self.telling.quiet);
            let row = run_phase(db, &keyspace, workload, phase, &mut |done| {
                meter.update(done, 0, done);
                !interrupt.is_set()
            });
            meter.clear();
            match row {
                Err(error) if error.kind() == ErrorKind::Cancelled => break,
                row => rows.push(row?),
            }
            // What one workload leaves to do must not slow the next one.
            db.wait_idle()?;
        }
        Ok(rows)
    }
}

fn temporary_folder() -> anyhow::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("siltstone-bench-").tempdir().context("cannot make a temporary folder")
}

/// The keyspace to work on, empty if the phase wants it so.
fn keyspace(db: &Db, options: &Options, is_given: bool, phase: &Phase) -> anyhow::Result<Keyspace> {
    match db.keyspace(KEYSPACE) {
        Ok(_) if phase.fresh => db.drop_keyspace(KEYSPACE)?,
        Ok(keyspace) => {
            ensure!(
                !is_given || keyspace.options() == options.keyspace,
                "keyspace {KEYSPACE} keeps the options that it was made with: begin with fillseq or fillrandom, which make it anew, or leave --set keyspace... out"
            );
            return Ok(keyspace);
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    Ok(db.create_keyspace(KEYSPACE, options.keyspace.clone())?)
}

fn text(rows: &[PhaseResult]) -> String {
    let titles = ["workload", "ops/s", "MB/s", "p50", "p99", "p99.9", "max", "found", "CPU s"];
    let row = |row: &PhaseResult| {
        let time = |ns| duration_ns(ns).into();
        vec![
            row.workload.clone().into(),
            number(row.ops_per_s).into(),
            format!("{:.1}", row.mb_per_s).into(),
            time(row.latency.p50_ns),
            time(row.latency.p99_ns),
            time(row.latency.p999_ns),
            time(row.latency.max_ns),
            row.found.to_string().into(),
            format!("{:.1}", row.cpu_s).into(),
        ]
    };
    text_table(&titles, &rows.iter().map(row).collect::<Vec<_>>())
}

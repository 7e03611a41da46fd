//! What decision records and scheduling cost: the instructions of the code that makes and keeps records, and of the code that decides which
//! merge steps, per hundred of the compaction lane's.
//!
//! `cargo bench -p siltstone --bench records [-- STRATEGY...]`. A simulated store is loaded under valgrind's callgrind, once for each strategy and
//! size of memtable; wall time is far too noisy for a hundredth. Counted as records: choosing the candidates to show, the decision before
//! the job, and after it the decision with its costs, the metrics, the ring and the file `DECISIONS`. Instructions of the simulated files are taken out of
//! the total, so that it holds merging alone: no disk makes the records look cheaper. Fails above one percent.
#![expect(clippy::disallowed_macros, clippy::disallowed_methods, reason = "it measures, reads a profile and prints")]
#![expect(clippy::unwrap_used, reason = "a program for developers")]

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use siltstone::io::sim::{SimClock, SimExecutor, SimFs};
use siltstone::io::{Clock, Executor, Fs, Rng};
use siltstone::{Db, Env, KeyspaceOptions, Options, Policies};

/// A file level by level, whole levels of runs, runs by size.
const STRATEGIES: [&str; 4] = ["one-leveling", "leveldb", "tiering", "rocksdb-universal"];
/// Sizes of memtables and files, in KiB: tiny jobs, and an ordinary size for small stores. The default, 16 MiB, has jobs that are larger still.
const MEMTABLE_KIB: [u64; 2] = [256, 2048];
/// What is written, in memtables.
const MEMTABLES: u64 = 24;
const VALUE_BYTES: usize = 100;
const LIMIT_PERCENT: f64 = 1.0;

/// The functions that belong to records; none calls another.
const RECORDS: [&str; 4] = ["::decide", "::tell_ended", "::decide::shown", "::show_runs"];

fn load(strategy: &str, memtable_bytes: u64) {
    let clock = SimClock::new();
    let fs = SimFs::new(&clock, 1);
    let executor = SimExecutor::new(&clock, 1);
    let env = Env {
        fs: Arc::new(fs) as Arc<dyn Fs>,
        clock: clock as Arc<dyn Clock>,
        rng: Rng::new(1),
        executor: Arc::new(executor) as Arc<dyn Executor>,
        // No default: the real clock reads what valgrind hides.
        listener: None,
        policies: Policies::new(),
        read_only: false,
    };
    let mut options = Options { write_memory_bytes: 8 * memtable_bytes, compaction_threads: 2, ..Options::default() };
    options.log.segment_bytes = memtable_bytes;
    options.keyspace = KeyspaceOptions {
        strategy: strategy.to_owned(),
        memtable_bytes,
        file_bytes: memtable_bytes,
        size_ratio: 4,
        ..KeyspaceOptions::default()
    };
    let db = Db::open_with("/store", options, env).unwrap();
    let keyspace = db.default_keyspace();
    let mut rng = Rng::new(7);
    let records = MEMTABLES * memtable_bytes / (VALUE_BYTES as u64 + 16);
    for _ in 0..records {
        let key = rng.below(records / 2).to_be_bytes();
        keyspace.put(key, [key[7]; VALUE_BYTES]).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
}

/// What a profile of callgrind says of a compaction lane: by function its own instructions, and all calls with theirs.
#[derive(Default)]
struct Profile {
    own: BTreeMap<String, u64>,
    /// Caller, callee, instructions of the calls with all that they call.
    calls: Vec<(String, String, u64)>,
}

impl Profile {
    /// Reads the text format: `fn=(7) name` once, `fn=(7)` afterwards; `calls=` stands before the line with the cost of the calls.
    fn parse(text: &str) -> Option<Profile> {
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        let mut resolve = |word: &str| -> Option<String> {
            let (id, name) = word.split_once(')')?;
            if !name.is_empty() {
                names.insert(id.to_owned(), name.trim_start().to_owned());
            }
            names.get(id).cloned()
        };
        let mut profile = Profile::default();
        let (mut function, mut callee, mut is_call) = (String::new(), String::new(), false);
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("fn=") {
                function = resolve(name)?;
            } else if let Some(name) = line.strip_prefix("cfn=") {
                callee = resolve(name)?;
            } else if line.starts_with("calls=") {
                is_call = true;
            } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
                let cost = line.split_whitespace().nth(1).and_then(|cost| cost.parse::<u64>().ok()).unwrap_or(0);
                match is_call {
                    true => profile.calls.push((function.clone(), callee.clone(), cost)),
                    false => *profile.own.entry(function.clone()).or_default() += cost,
                }
                is_call = false;
            }
        }
        Some(profile)
    }

    /// Instructions of all calls of functions whose name ends so, from elsewhere.
    fn of(&self, is_it: impl Fn(&str) -> bool) -> u64 {
        self.calls.iter().filter(|(from, to, _)| is_it(to) && !is_it(from)).map(|(_, _, cost)| cost).sum()
    }
}

/// Instructions.
struct Counted {
    records: u64,
    /// Of deciding which merge steps.
    scheduling: u64,
    /// Of the compaction lanes, without the simulated files.
    lanes: u64,
}

fn count(strategy: &str, memtable_kib: u64) -> Result<Counted, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("profile");
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--collect-atstart=no", "--toggle-collect=*::compaction_step"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe()?)
        .args(["counted", strategy, &memtable_kib.to_string()])
        .status()?;
    if !status.success() {
        return Err(format!("valgrind: {status}").into());
    }
    let profile = Profile::parse(&std::fs::read_to_string(&out)?).ok_or("a profile that cannot be read")?;
    for name in &RECORDS[..2] {
        assert!(profile.calls.iter().any(|(_, to, _)| to.ends_with(name)), "{name} is not called by its name");
    }
    let records = profile.of(|name| RECORDS.iter().any(|record| name.ends_with(record)));
    for name in ["::choose", "::put_back"] {
        let is_it = |to: &str| is_scheduling(to) && to.contains(name);
        assert!(profile.calls.iter().any(|(_, to, _)| is_it(to)), "{name} is not called by its name");
    }
    let scheduling = profile.of(is_scheduling);
    let lanes: u64 = profile.own.values().sum();
    // Calls of the simulated executor hold the lane itself.
    let is_file = |name: &str| name.contains("siltstone::io::sim::") && !name.contains("executor");
    let files = profile.of(is_file);
    Ok(Counted { records, scheduling, lanes: lanes.checked_sub(files).ok_or("calls of files cost more than all")? })
}

/// What decides which merge steps: all of the set of merges under way.
fn is_scheduling(name: &str) -> bool {
    name.contains("MergeSet")
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if let [mode, strategy, memtable_kib] = &words[..]
        && mode == "counted"
    {
        load(strategy, memtable_kib.parse::<u64>().unwrap() << 10);
        return ExitCode::SUCCESS;
    }
    let names: Vec<&str> =
        if words.is_empty() { STRATEGIES.to_vec() } else { words.iter().map(String::as_str).collect() };
    println!(
        "{:<20} {:>12} {:>14} {:>14} {:>8} {:>14} {:>8}",
        "strategy", "memtable KiB", "compaction", "records", "percent", "scheduling", "percent"
    );
    let mut worst = 0.0f64;
    for name in names {
        for memtable_kib in MEMTABLE_KIB {
            match count(name, memtable_kib) {
                Ok(Counted { records, scheduling, lanes }) => {
                    let [of_records, of_scheduling] = [records, scheduling].map(|n| 100.0 * n as f64 / lanes as f64);
                    println!(
                        "{name:<20} {memtable_kib:>12} {lanes:>14} {records:>14} {of_records:>8.3} {scheduling:>14} {of_scheduling:>8.3}"
                    );
                    worst = worst.max(of_records).max(of_scheduling);
                }
                Err(error) => {
                    println!("cannot count instructions: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    println!("at most {worst:.2} %, allowed {LIMIT_PERCENT} %");
    if worst < LIMIT_PERCENT { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

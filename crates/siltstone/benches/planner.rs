//! How long a decision takes on large trees, and how that grows.
//!
//! `cargo bench -p siltstone --bench planner [-- STRATEGY...]`. Each preset gets trees of its own shape with 100 to 100 000 files, in which the level
//! above the last is due, once idle and once while two jobs run. Times are the thread's processor time, medians of many decisions. Fails
//! if a decision on 10 000 files takes more than a millisecond.
//!
//! `cargo bench -p siltstone --bench planner -- growth [STRATEGY...]` counts instructions instead (valgrind's callgrind; one decision each, so every
//! run gives the same numbers) on a tree of 10 000 files and on one with ten times as many in every run, and capacities to match, so that both decide
//! about the same levels. Fails if ten times the files take more than twelve times the instructions, and more than two hundred for each file: where a
//! running job is in the way in the large tree only, a deeper level is looked at, with its files.
#![expect(clippy::disallowed_macros, reason = "it measures and prints")]
#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a program for developers")]

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use bytes::Bytes;
use siltstone::compaction::{CompactionPolicy, LsmView, Plan, Sizes, Strategy, plan, strategies};
use siltstone::io::Rng;
use siltstone::key::SeqNo;
use siltstone::version::{FileMeta, Level, LevelId, Run, RunOrder, SstId, Version};

const MIB: u64 = 1 << 20;
const LIMIT_NS: u64 = 1_000_000;
/// The sizes between which growth is measured, in files.
const SMALL: u64 = 10_000;
const LARGE: u64 = 100_000;
/// What growth may come to. Beyond the factor of ten: a binary search that is a little longer, sorted lists of ids.
const LIMIT_GROWTH: f64 = 12.0;
/// Instructions for each file that are no growth in any case: a few passes over all of them.
const PASSES: u64 = 200;

fn cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(t.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap()
}

struct Builder {
    rng: Rng,
    id: u64,
    order: u64,
}

impl Builder {
    /// A run of `files` files over the whole key space, with random borders and sizes around `bytes`.
    fn run(&mut self, files: u64, bytes: u64) -> Run {
        let mut borders: Vec<u64> = (0..2 * files).map(|_| self.rng.next_u64()).collect();
        borders.sort_unstable();
        borders.dedup();
        self.order -= 1;
        let file = |pair: &[u64]| {
            self.id += 1;
            let bytes = self.rng.between(bytes / 2, bytes);
            let tombstones = if self.rng.one_in(10) { bytes >> 12 } else { 0 };
            Arc::new(FileMeta {
                id: SstId(self.id),
                bytes,
                entries: bytes >> 7,
                tombstones,
                range_tombstones: 0,
                raw_bytes: bytes,
                smallest: Bytes::copy_from_slice(&pair[0].to_be_bytes()),
                largest: Bytes::copy_from_slice(&pair[1].to_be_bytes()),
                min_seq: SeqNo(1),
                // The newest is built first.
                max_seq: SeqNo((1 << 40) - self.id),
                created_ms: self.id,
                oldest_tombstone_ms: (tombstones > 0).then_some(self.id),
                entered_level_ms: self.id,
                whole: None,
            })
        };
        Run { order: RunOrder(self.order), files: borders.chunks_exact(2).map(file).collect() }
    }
}

/// How many runs, and files in each, a tree of about `files` files has by level: from the last level up, each a tenth of the one below but the
/// one above the last, which holds twice as much and is due; as many runs as the policy allows.
fn shape(policy: &Strategy, files: u64) -> Vec<(u64, u64)> {
    let mut sizes = vec![files * 8 / 10, files * 16 / 100];
    while sizes[sizes.len() - 1] > 40 {
        sizes.push((sizes[sizes.len() - 1] / if sizes.len() == 2 { 20 } else { 10 }).max(4));
    }
    sizes.reverse();
    // The shape of the levels is that of an empty tree with so many levels.
    let mut builder = Builder { rng: Rng::new(files), id: 0, order: 1 << 40 };
    let sketch = Version {
        levels: sizes.iter().map(|_| Level { runs: vec![builder.run(1, MIB)], buffer: Vec::new() }).collect(),
    };
    let view = LsmView::new(&sketch, SIZES);
    let level = |(n, files): (usize, &u64)| {
        let runs = u64::from(policy.run_limit(&view, LevelId(n as u8))).min(*files);
        (runs, (files / runs).max(1))
    };
    sizes.iter().enumerate().map(level).collect()
}

/// A tree of that shape: by level, how many runs and how many files in each.
fn tree(shape: &[(u64, u64)]) -> Version {
    let mut builder = Builder { rng: Rng::new(1), id: 0, order: 1 << 40 };
    let mut level = |(runs, files): &(u64, u64)| Level {
        runs: (0..*runs).map(|_| builder.run(*files, 2 * MIB)).collect(),
        buffer: Vec::new(),
    };
    Version { levels: shape.iter().map(&mut level).collect() }
}

const SIZES: Sizes = Sizes { memtable_bytes: MIB, file_bytes: 2 * MIB, size_ratio: 10, level1_bytes: 0 };

fn median_ns(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The median time of a decision, with a view made anew each time, as the store does.
fn decide(policy: &Strategy, version: &Version, running: &[Arc<Plan>]) -> (u64, Option<Plan>) {
    let mut picked = None;
    let mut times: Vec<u64> = Vec::new();
    // Slow ones are not repeated for long.
    while times.len() < 101 && times.iter().sum::<u64>() < 200_000_000 {
        let began = cpu_ns();
        let view = LsmView::new(version, SIZES).with_running(running).at(1 << 40).with_losses(policy.loses_oldest());
        picked = plan(policy, &view).unwrap();
        times.push(cpu_ns() - began);
    }
    (median_ns(times), picked)
}

/// One decision; callgrind counts what happens in here.
#[inline(never)]
fn decide_once(policy: &Strategy, view: &LsmView<'_>) -> Option<Plan> {
    plan(policy, view).unwrap()
}

/// What runs under callgrind: for each policy a decision on the small tree, idle and busy, and the same on the large one.
fn counted(policies: &[Strategy]) {
    let mut trees: BTreeMap<Vec<(u64, u64)>, Version> = BTreeMap::new();
    for policy in policies {
        for times in [1, LARGE / SMALL] {
            let shape = shape(policy, SMALL).into_iter().map(|(runs, files)| (runs, times * files)).collect();
            let version = trees.entry(shape).or_insert_with_key(|shape| tree(shape));
            let sizes = Sizes { memtable_bytes: times * SIZES.memtable_bytes, ..SIZES };
            let view = LsmView::new(version, sizes).at(1 << 40).with_losses(policy.loses_oldest());
            let first = decide_once(policy, &view);
            let mut running: Vec<Arc<Plan>> = first.into_iter().map(Arc::new).collect();
            let second = plan(policy, &view.clone().with_running(&running)).unwrap();
            running.extend(second.map(Arc::new));
            decide_once(policy, &view.with_running(&running));
        }
    }
}

/// The instructions of each call of [`decide_once`] in `counted`.
#[expect(clippy::disallowed_methods, reason = "it reads what valgrind has written")]
fn count(policies: &[Strategy]) -> Result<Vec<u64>, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("calls");
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--collect-atstart=no"])
        .args(["--toggle-collect=planner::decide_once", "--dump-after=planner::decide_once"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe()?)
        .arg("counted")
        .args(policies.iter().map(|policy| &policy.name))
        .status()?;
    if !status.success() {
        return Err(format!("valgrind: {status}").into());
    }
    let calls = (1..=4 * policies.len()).map(|n| {
        let text = std::fs::read_to_string(format!("{}.{n}", out.display()))?;
        let total = text.lines().find_map(|line| line.strip_prefix("totals: ")).ok_or("a profile without totals")?;
        Ok(total.trim().parse()?)
    });
    calls.collect()
}

fn growth(policies: &[Strategy]) -> ExitCode {
    let calls = match count(policies) {
        Ok(calls) => calls,
        Err(error) => {
            println!("cannot count instructions: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("instructions of a decision on {SMALL} and {LARGE} files");
    println!("{:<22} {:>10} {:>10} {:>6}   {:>10} {:>10} {:>6}", "strategy", "idle", "", "times", "busy", "", "times");
    let mut worst = (0.0, String::new());
    for (policy, calls) in policies.iter().zip(calls.chunks_exact(4)) {
        let times = |small: u64, large: u64| large as f64 / small as f64;
        let (idle, busy) = (times(calls[0], calls[2]), times(calls[1], calls[3]));
        println!(
            "{:<22} {:>10} {:>10} {idle:>6.1}   {:>10} {:>10} {busy:>6.1}",
            policy.name, calls[0], calls[2], calls[1], calls[3]
        );
        for (growth, large) in [(idle, calls[2]), (busy, calls[3])] {
            if growth > worst.0 && (growth <= LIMIT_GROWTH || large > PASSES * LARGE) {
                worst = (growth, policy.name.clone());
            }
        }
    }
    println!("fastest growth: {:.1} times ({}), allowed {LIMIT_GROWTH}", worst.0, worst.1);
    if worst.0 > LIMIT_GROWTH { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let (mode, names) = match words.split_first() {
        Some((mode, names)) if mode == "growth" || mode == "counted" => (&mode[..], names),
        _ => ("time", &words[..]),
    };
    let wanted = strategies().iter().filter(|p| names.is_empty() || names.iter().any(|name| name == p.name));
    let policies: Vec<Strategy> = wanted.map(|preset| Strategy::named(preset.name).unwrap()).collect();
    match mode {
        "growth" => growth(&policies),
        "counted" => {
            counted(&policies);
            ExitCode::SUCCESS
        }
        _ => time(&policies),
    }
}

fn time(policies: &[Strategy]) -> ExitCode {
    let mut worst = (0, String::new());
    println!("{:<28} {:>8} {:>8} {:>8}   what", "strategy", "files", "idle us", "busy us");
    for policy in policies {
        for files in [100, 1000, SMALL, LARGE] {
            let version = tree(&shape(policy, files));
            let (idle, first) = decide(policy, &version, &[]);
            let mut running: Vec<Arc<Plan>> = first.iter().cloned().map(Arc::new).collect();
            let second = decide(policy, &version, &running).1;
            running.extend(second.map(Arc::new));
            let (busy, _) = decide(policy, &version, &running);
            let what = first.map_or_else(
                || "nothing due".to_owned(),
                |plan| format!("{} files, {}", plan.files().count(), plan.record),
            );
            println!("{:<28} {files:>8} {:>8} {:>8}   {what}", policy.name, idle / 1000, busy / 1000);
            if files == SMALL && idle.max(busy) > worst.0 {
                worst = (idle.max(busy), policy.name.clone());
            }
        }
    }
    println!("slowest decision on {SMALL} files: {} us ({})", worst.0 / 1000, worst.1);
    if worst.0 > LIMIT_NS { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

//! How long a decision takes on large trees, and how that grows.
//!
//! `cargo bench -p siltstone --bench planner [-- STRATEGY...]`. Each preset gets trees of its own shape with 100 to 100 000 files, in which the level
//! above the last is due, once idle and once while two jobs run. Times are the thread's processor time, medians of many decisions. Fails
//! if a decision on 10 000 files takes more than a millisecond.
#![expect(clippy::disallowed_macros, reason = "it measures and prints")]
#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a program for developers")]

use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;
use siltstone::compaction::{CompactionPolicy, LsmView, Plan, Sizes, Strategy, plan, strategies};
use siltstone::io::Rng;
use siltstone::key::SeqNo;
use siltstone::version::{FileMeta, Level, LevelId, Run, RunOrder, SstId, Version};

const MIB: u64 = 1 << 20;
const LIMIT_NS: u64 = 1_000_000;

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
                max_seq: SeqNo(self.id),
                created_ms: self.id,
                oldest_tombstone_ms: (tombstones > 0).then_some(self.id),
                entered_level_ms: self.id,
                whole: None,
            })
        };
        Run { order: RunOrder(self.order), files: borders.chunks_exact(2).map(file).collect() }
    }
}

/// A tree of about `files` files: from the last level up, each a tenth of the one below, as many runs as the policy allows, and one more
/// than full where `due`.
fn tree(policy: &Strategy, files: u64) -> Version {
    let mut builder = Builder { rng: Rng::new(files), id: 0, order: 1 << 40 };
    let mut sizes = vec![files * 9 / 10];
    while sizes[0] > 40 {
        let above = sizes[0] / 10;
        sizes.insert(0, above.max(4));
    }
    // The shape of the levels is that of an empty tree with so many levels.
    let sketch = Version {
        levels: sizes.iter().map(|_| Level { runs: vec![builder.run(1, MIB)], buffer: Vec::new() }).collect(),
    };
    let view = LsmView::new(&sketch, SIZES);
    let level = |(n, files): (usize, &u64)| {
        let runs = u64::from(policy.run_limit(&view, LevelId(n as u8))).min(*files);
        Level { runs: (0..runs).map(|_| builder.run((files / runs).max(1), 2 * MIB)).collect(), buffer: Vec::new() }
    };
    Version { levels: sizes.iter().enumerate().map(level).collect() }
}

const SIZES: Sizes = Sizes { memtable_bytes: 2 * MIB, file_bytes: 2 * MIB, size_ratio: 10, level1_bytes: 0 };

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
        let view = LsmView::new(version, SIZES).with_running(running).at(1 << 40);
        picked = plan(policy, &view).unwrap();
        times.push(cpu_ns() - began);
    }
    (median_ns(times), picked)
}

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let mut worst = (0, String::new());
    println!("{:<28} {:>8} {:>8} {:>8}   what", "strategy", "files", "idle us", "busy us");
    for preset in strategies().iter().filter(|p| wanted.is_empty() || wanted.iter().any(|name| name == p.name)) {
        let policy = Strategy::named(preset.name).unwrap();
        for files in [100, 1000, 10_000, 100_000] {
            let version = tree(&policy, files);
            let (idle, first) = decide(&policy, &version, &[]);
            let mut running: Vec<Arc<Plan>> = first.iter().cloned().map(Arc::new).collect();
            let second = decide(&policy, &version, &running).1;
            running.extend(second.map(Arc::new));
            let (busy, _) = decide(&policy, &version, &running);
            let what = first.map_or_else(
                || "nothing due".to_owned(),
                |plan| format!("{} files, {}", plan.files().count(), plan.record),
            );
            println!("{:<28} {files:>8} {:>8} {:>8}   {what}", preset.name, idle / 1000, busy / 1000);
            if files == 10_000 && idle.max(busy) > worst.0 {
                worst = (idle.max(busy), preset.name.to_owned());
            }
        }
    }
    println!("slowest decision on 10000 files: {} us ({})", worst.0 / 1000, worst.1);
    if worst.0 > LIMIT_NS { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

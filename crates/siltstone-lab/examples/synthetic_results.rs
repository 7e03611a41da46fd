//! Writes a results folder of any size without running anything, to try the report page with:
//!
//! ```text
//! cargo run -p siltstone-lab --example synthetic_results -- FOLDER COMPACTIONS
//! ```
//!
//! Two strategies share the compactions. The trees are those of a toy: a memtable is a file over all keys, four of them are merged into
//! L1, and a level that is full gives a file to the next one. The fields are those of docs/design/0008-workloads-and-runs.md.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use siltstone::io::Rng;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, compactions] = &arguments[..] else {
        eprintln!("usage: synthetic_results FOLDER COMPACTIONS");
        std::process::exit(2);
    };
    write(Path::new(folder), compactions.parse().expect("COMPACTIONS is a number"))
}

const STRATEGIES: [&str; 2] = ["toy-leveling", "toy-lazy"];
const FILE_BYTES: u64 = 2 << 20;
/// The keys are numbers below this.
const KEYS: u64 = 1 << 32;

/// Writes the folder.
pub(crate) fn write(folder: &Path, compactions: usize) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let strategies =
        STRATEGIES.map(|name| json!({ "name": name, "text": format!("name = \"{name}\"\nsize_ratio = 8\n") }));
    let run = json!({ "format": 1, "name": "synthetic", "spec": "", "strategies": strategies, "world": "sim", "repeat": 1,
        "options": "", "generator_version": 1, "siltstone_version": "0.1.0", "commit": null });
    fs::write(folder.join("run.json"), run.to_string())?;
    let mut rows = String::new();
    for (n, name) in (0u64..).zip(STRATEGIES) {
        let trial = folder.join("trials").join(format!("{name}-1"));
        fs::create_dir_all(&trial)?;
        let mut toy = Toy::new(name, 1 + n, 4 + 4 * n);
        while toy.compactions < compactions / STRATEGIES.len() {
            toy.flush();
        }
        fs::write(trial.join("tree.jsonl"), toy.tree)?;
        fs::write(trial.join("compactions.jsonl"), toy.lines)?;
        fs::write(trial.join("windows.jsonl"), windows(toy.at_s, n))?;
        fs::write(trial.join("machine.json"), machine(n).to_string())?;
        let row = row(name, toy.at_s, n, &toy.levels);
        fs::write(trial.join("row.json"), row.to_string())?;
        rows += &format!("{row}\n");
    }
    fs::File::create(folder.join("rows.jsonl"))?.write_all(rows.as_bytes())
}

#[derive(Clone)]
struct File {
    id: u64,
    run: u64,
    low: u64,
    high: u64,
}

struct Toy {
    name: &'static str,
    rng: Rng,
    /// Runs of L0 at which they are merged.
    trigger: u64,
    levels: Vec<Vec<File>>,
    at_s: f64,
    next: u64,
    job: u64,
    compactions: usize,
    tree: String,
    lines: String,
}

impl Toy {
    fn new(name: &'static str, seed: u64, trigger: u64) -> Toy {
        let (levels, tree, lines) = (vec![Vec::new(); 5], String::new(), String::new());
        Toy { name, rng: Rng::new(seed), trigger, levels, at_s: 0.0, next: 1, job: 0, compactions: 0, tree, lines }
    }

    fn file(&mut self, low: u64, high: u64, run: u64) -> File {
        self.next += 1;
        File { id: self.next, run, low, high }
    }

    fn flush(&mut self) {
        self.at_s += 0.05 + self.rng.unit() * 0.1;
        let (low, high, run) = (self.rng.below(KEYS / 100), KEYS - self.rng.below(KEYS / 100), self.next);
        let file = self.file(low, high, run);
        self.change(&[], &[(0, file.clone())], Value::Null);
        self.levels[0].insert(0, file);
        let flush = json!({ "at_s": self.at_s, "took_s": 0.01, "keyspace": "default", "kind": "flush", "from_level": null,
            "to_level": 0, "bytes_read": 0, "bytes_written": FILE_BYTES, "decision": null });
        self.lines += &format!("{flush}\n");
        if self.levels[0].len() as u64 >= self.trigger {
            let inputs = std::mem::take(&mut self.levels[0]);
            self.merge(0, &inputs);
        }
        for level in 1..self.levels.len() - 1 {
            let most = 8usize.pow(u32::try_from(level).expect("few levels"));
            while self.levels[level].len() > most {
                let at = usize::try_from(self.rng.below(self.levels[level].len() as u64)).expect("fits");
                let file = self.levels[level].remove(at);
                self.merge(level, &[file]);
            }
        }
    }

    /// Merges files of `level` with what they overlap in the next one.
    fn merge(&mut self, level: usize, inputs: &[File]) {
        let low = inputs.iter().map(|file| file.low).min().expect("files");
        let high = inputs.iter().map(|file| file.high).max().expect("files");
        let (overlapped, kept): (Vec<File>, Vec<File>) = std::mem::take(&mut self.levels[level + 1])
            .into_iter()
            .partition(|file| file.low <= high && low <= file.high);
        self.levels[level + 1] = kept;
        let low = overlapped.iter().map(|file| file.low).min().unwrap_or(low).min(low);
        let high = overlapped.iter().map(|file| file.high).max().unwrap_or(high).max(high);
        // The last level overwrites most of what comes.
        let more = if level + 2 == self.levels.len() && self.rng.below(10) > 0 { 0 } else { inputs.len() };
        let count = (overlapped.len() + more).max(1) as u64;
        let width = ((high - low) / count).max(2);
        let outputs: Vec<File> = (0..count)
            .map(|n| {
                let begin = low + n * width;
                let end = if n + 1 == count { high } else { begin + width - 1 - self.rng.below(width / 8 + 1) };
                self.file(begin, end.max(begin), 1)
            })
            .collect();
        self.job += 1;
        self.compactions += 1;
        self.at_s += 0.002;
        let removed: Vec<&File> = inputs.iter().chain(&overlapped).collect();
        let added: Vec<(usize, File)> = outputs.iter().map(|file| (level + 1, file.clone())).collect();
        self.change(&removed, &added, self.job.into());
        self.record(level, inputs, removed.len() as u64, outputs.len() as u64);
        self.levels[level + 1].extend(outputs);
        self.levels[level + 1].sort_by_key(|file| file.low);
    }

    fn change(&mut self, removed: &[&File], added: &[(usize, File)], cause: Value) {
        let added: Vec<Value> = added
            .iter()
            .map(|(level, file)| {
                json!({ "id": file.id, "level": level, "run": file.run, "bytes": FILE_BYTES - file.id * 7919 % 300_000 * u64::from(!cause.is_null()),
                    "entries": 16_000 + file.id * 31 % 900, "tombstones": file.id * 17 % 4_000,
                    "smallest": hex(file.low), "largest": hex(file.high) })
            })
            .collect();
        let removed: Vec<u64> = removed.iter().map(|file| file.id).collect();
        let line =
            json!({ "at_s": self.at_s, "keyspace": "default", "removed": removed, "added": added, "cause": cause });
        self.tree += &format!("{line}\n");
    }

    fn record(&mut self, level: usize, inputs: &[File], read: u64, written: u64) {
        let candidates: Vec<Value> = (0..16u64)
            .map(|n| {
                let (score, file) = (self.rng.unit() * 12.0, inputs[0].id + n * 3);
                json!({ "file": file, "runs": 0, "scores": [score, f64::INFINITY], "chosen": n == 0, "blocked": n == 9 })
            })
            .collect();
        let decision = json!({ "job": self.job, "strategy": self.name, "started_ms": 0, "action": "merge", "from_level": level,
            "to_level": level + 1, "to_run": 1, "inputs": [], "reason": { "rule": level.min(1) + 1 },
            "trigger": if level == 0 { "sorted-runs" } else { "level-saturation" }, "value": 1.0 + self.rng.unit(), "threshold": 1.0,
            "candidates": candidates, "candidates_total": 16 + 8 * level, "read_bytes": read * FILE_BYTES, "write_bytes": read * FILE_BYTES,
            "predicted_ns": 80_000_000, "ended": { "ending": "done", "dropped_versions": self.job * 97 % 5000, "dropped_tombstones": 3 } });
        let line = json!({ "at_s": self.at_s, "took_s": 0.02 + self.rng.unit(), "keyspace": "default", "kind": "merge", "from_level": level,
            "to_level": level + 1, "bytes_read": read * FILE_BYTES, "bytes_written": written * FILE_BYTES, "decision": decision });
        self.lines += &format!("{line}\n");
    }
}

fn machine(n: u64) -> Value {
    let noise = |load: f64, cpu: u64| json!({ "load_average": load, "probes": { "cpu_ns": cpu, "memory_ns": 91.5, "disk_sync_ns": 410_000 } });
    json!({ "format": 1, "cpu": "A processor of no make", "cores": 2, "memory_bytes": 8_u64 << 30, "system": "linux x86_64 6.1.0", "build": "release",
        "began_unix_s": 1_700_000_000 + 600 * n, "wall_s": 580.0, "before": noise(0.1, 1_250_000), "after": noise(1.0, 1_260_000 + 400_000 * n) })
}

fn hex(key: u64) -> String {
    format!("user{key:012}").bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn windows(end_s: f64, n: u64) -> String {
    let mut rng = Rng::new(50 + n);
    let mut lines = String::new();
    for i in 0..2_400u32 {
        let at_s = end_s * f64::from(i) / 2_400.0;
        let rate = 400 + rng.below(120) - if i % 97 < 4 { 300 } else { 0 };
        let line = json!({ "at_s": at_s, "length_s": end_s / 2_400.0, "phase": if i < 1_200 { "load" } else { "run" },
            "operations": { "insert": rate, "read": rate / 2 * u64::from(i >= 1_200) },
            "longest_ns": { "insert": 90_000 + rng.below(9_000_000), "read": 40_000 + rng.below(400_000) },
            "queued": 0, "runs": 4 + rng.below(5 + 4 * n), "debt_bytes": rng.below(64 << 20), "tree_bytes": u64::from(i) << 20,
            "cache_hits": 900 + rng.below(90), "cache_misses": rng.below(200), "stall_s": 0.0, "cpu_s": null, "memory_bytes": null });
        lines += &format!("{line}\n");
    }
    lines
}

fn row(name: &str, end_s: f64, n: u64, levels: &[Vec<File>]) -> Value {
    let latency = |p50: u64| json!({ "count": 500_000, "mean_ns": p50 * 2, "p50_ns": p50, "p90_ns": p50 * 3, "p99_ns": p50 * 9, "p999_ns": p50 * 80, "max_ns": p50 * 900 });
    let kind =
        |p50: u64| json!({ "count": 500_000, "found": 400_000, "latency": latency(p50), "processing": latency(p50) });
    let levels: Vec<Value> = (0u64..)
        .zip(levels)
        .map(|(level, files)| {
            let bytes = files.len() as u64 * FILE_BYTES;
            let runs = if level == 0 { vec![FILE_BYTES; files.len()] } else { vec![bytes] };
            json!({ "level": level, "runs": runs, "files": files.len(), "entries": bytes / 128, "tombstones": bytes / 2048 })
        })
        .collect();
    json!({ "format": 1, "workload": "synthetic", "strategy": name, "repetition": 1, "seed": 1, "world": "sim", "generator_version": 1,
        "elapsed_s": end_s, "operations": 1_000_000, "ops_per_s": 1e6 / end_s, "write_amplification": 9.4 - 3.1 * n as f64,
        "read_amplification": 1.2 + 0.7 * n as f64, "space_amplification": 0.11 + 0.2 * n as f64, "log_write_amplification": 1.1,
        "disk_reads_per_get": 0.4, "runs_probed_per_get": 1.2 + n as f64, "cache_hit_ratio": 0.93, "flushes": 160, "compactions": 5000,
        "compaction_latency": latency(9_000_000), "tombstones": 12, "runs": 7, "files": 31, "disk_bytes": 1_u64 << 30, "settle_s": 0.4,
        "stall_s": 0.0, "cpu_s": null, "memory_bytes": null, "fingerprint": "0123456789abcdef",
        "phases": [ { "name": "load", "elapsed_s": end_s / 2.0, "operations": 500_000, "ops_per_s": 9000.0, "kinds": { "insert": kind(4_000 + 900 * n) } },
                    { "name": "run", "elapsed_s": end_s / 2.0, "operations": 500_000, "ops_per_s": 12000.0, "kinds": { "read": kind(7_000 - 600 * n), "update": kind(4_400) } } ],
        "levels": levels })
}

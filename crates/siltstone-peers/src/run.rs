//! Runs workloads against one engine, in this process, and measures.
//!
//! Every operation is timed, with one reading of the clock each: the end of one is the start of the next. That costs each engine the same
//! 30 ns, and what the harness itself does (drawing a key, copying what was read) is within the figure, the same for all.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::engines::Engine;
use crate::keys::{self, KEY_BYTES, Rng, Shuffle, VALUE_BYTES, Values};
use crate::latency::Histogram;
use crate::process::{self, Usage};
use crate::store::{Budget, Sink, Store};
use crate::workload::Workload;

/// Entries that `seekrandom` reads after the first.
const NEXTS: usize = 50;
/// Puts a second beside `readwhilewriting`.
const WRITER_OPS_PER_S: u64 = 50_000;
const TENTH_NS: u64 = 100_000_000;

/// What one process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// What the engine may use.
    pub(crate) budget: Budget,
    /// The workloads, ascending.
    pub(crate) workloads: Vec<Workload>,
    /// Keys in the store.
    pub(crate) num: u64,
    /// Operations of a workload that reads.
    pub(crate) reads: u64,
    /// Seconds after which a workload that reads stops.
    pub(crate) cap_s: f64,
    /// Fixes keys and values; another one for each repetition.
    pub(crate) seed: u64,
    /// Use the store that an earlier run left in the folder, rather than fill one.
    pub(crate) filled: bool,
}

/// What one workload came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) engine: Engine,
    pub(crate) workload: Workload,
    /// Operations finished.
    pub(crate) ops: u64,
    /// Keys found, or entries read by scans.
    pub(crate) found: u64,
    pub(crate) elapsed_s: f64,
    /// Thousands of operations a second.
    pub(crate) kops: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    /// The slowest tenth of a second as a share of the average one; none when the workload took less than two of them.
    pub(crate) slowest_tenth: Option<f64>,
    /// `kops` when flushing and finishing the compactions counts as well; none for reads.
    pub(crate) settled_kops: Option<f64>,
    /// Bytes made dirty until settled, log included, over bytes put; none where nothing is put.
    pub(crate) write_amp: Option<f64>,
    /// Bytes made dirty until settled.
    pub(crate) written_bytes: u64,
    /// Bytes that the store takes on disk once settled.
    pub(crate) disk_bytes: u64,
    /// CPU seconds of all threads until settled.
    pub(crate) cpu_s: f64,
    /// Peak of resident memory, mapped files included.
    pub(crate) peak_rss_bytes: u64,
    /// Of that, what is no file: memory that the engine has taken, at the end.
    pub(crate) anon_bytes: u64,
    /// What the engine itself has counted since it was opened.
    pub(crate) statistics: serde_json::Value,
    /// The thread that writes beside `readwhilewriting`.
    pub(crate) writer: Option<Writer>,
}

/// What the writer beside `readwhilewriting` got done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Writer {
    pub(crate) kops: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

/// Runs `job` with engine `S`, which is called `engine`, in the folder `dir`. Leaves the last store there.
///
/// # Errors
/// What the engine says, and answers that cannot be right.
pub(crate) fn run<S: Store>(engine: Engine, job: &Job, dir: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut filled: Option<S> = None;
    for &workload in &job.workloads {
        let row = if workload == Workload::FillSeq {
            let path = dir.join("seq");
            let store = open::<S>(&path, job)?;
            let row = measure(engine, &store, workload, job, &path)?;
            drop(store);
            fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
            row
        } else {
            let path = dir.join("random");
            let store = match &mut filled {
                Some(store) => store,
                none => none.insert(open_filled(engine, workload, job, &path)?),
            };
            measure(engine, store, workload, job, &path)?
        };
        eprintln!("{:<10} {:<17} {:>9.1} kops/s", engine.name(), workload.name(), row.kops);
        rows.push(row);
    }
    Ok(rows)
}

fn open<S: Store>(path: &Path, job: &Job) -> Result<S> {
    fs::create_dir_all(path).with_context(|| format!("creating {}", path.display()))?;
    S::open(path, &job.budget)
}

/// The store for all workloads but `fillseq`; filled if the first of them wants that and no earlier one did it.
fn open_filled<S: Store>(engine: Engine, first: Workload, job: &Job, path: &Path) -> Result<S> {
    let store = open(path, job)?;
    if first.needs_filled() && !job.filled {
        measure(engine, &store, Workload::FillRandom, job, path)?;
    }
    Ok(store)
}

fn measure<S: Store>(engine: Engine, store: &S, workload: Workload, job: &Job, path: &Path) -> Result<Row> {
    process::reset_peak_rss();
    let before = Usage::now()?;
    let start = Instant::now();
    let (drive, writer) = perform(store, workload, job)?;
    let settled = if writer.is_some() || workload.writes() { store.settle()? } else { start + drive.elapsed };
    let after = Usage::now()?;

    if matches!(workload, Workload::ReadRandom | Workload::ReadWhileWriting) {
        ensure!(drive.found == drive.ops, "{}: {} of {} keys found", engine.name(), drive.found, drive.ops);
    }
    if workload == Workload::ReadMissing {
        ensure!(drive.found == 0, "{}: {} keys found that were never put", engine.name(), drive.found);
    }
    let kops = |elapsed: Duration| crate::float(drive.ops) / elapsed.as_secs_f64() / 1000.0;
    let written_bytes = after.written_bytes - before.written_bytes;
    let put_bytes = drive.ops * u64::try_from(KEY_BYTES + VALUE_BYTES).expect("small");
    let puts = workload.writes() && workload != Workload::DeleteRandom;
    Ok(Row {
        engine,
        workload,
        ops: drive.ops,
        found: drive.found,
        elapsed_s: drive.elapsed.as_secs_f64(),
        kops: kops(drive.elapsed),
        p50_us: drive.latencies.quantile_us(0.5),
        p99_us: drive.latencies.quantile_us(0.99),
        p999_us: drive.latencies.quantile_us(0.999),
        max_us: drive.latencies.max_us(),
        slowest_tenth: drive.slowest_tenth(),
        settled_kops: workload.writes().then(|| kops((settled - start).max(drive.elapsed))),
        write_amp: puts.then(|| crate::float(written_bytes) / crate::float(put_bytes)),
        written_bytes,
        disk_bytes: process::disk_bytes(path),
        cpu_s: after.cpu_s - before.cpu_s,
        peak_rss_bytes: process::peak_rss_bytes(),
        anon_bytes: process::anon_bytes(),
        statistics: store.statistics(),
        writer,
    })
}

/// Performs the operations of `workload`.
fn perform<S: Store>(store: &S, workload: Workload, job: &Job) -> Result<(Drive, Option<Writer>)> {
    let cap = if workload.writes() && !job.budget.sync { Duration::MAX } else { Duration::from_secs_f64(job.cap_s) };
    // A stream of its own, lest a workload find in the cache just the keys that the one before it drew.
    let seed = job.seed.wrapping_mul(0x100).wrapping_add(workload.number());
    let mut rng = Rng::new(seed);
    let mut values = Values::new(seed);
    let mut sink = Sink::new();
    let num = job.num;
    let drive = match workload {
        Workload::FillSeq => drive(num, cap, |i| store.put(&keys::key(i), values.next()).map(|()| 0))?,
        Workload::FillRandom => {
            let order = Shuffle::new(num, seed);
            drive(num, cap, |i| store.put(&keys::key(order.at(i)), values.next()).map(|()| 0))?
        }
        Workload::Overwrite => drive(num, cap, |_| store.put(&keys::key(rng.below(num)), values.next()).map(|()| 0))?,
        Workload::DeleteRandom => drive(num, cap, |_| store.delete(&keys::key(rng.below(num))).map(|()| 0))?,
        Workload::ReadRandom => {
            drive(job.reads, cap, |_| store.get(&keys::key(rng.below(num)), &mut sink).map(u64::from))?
        }
        Workload::ReadMissing => {
            drive(job.reads, cap, |_| store.get(&keys::missing_key(rng.below(num)), &mut sink).map(u64::from))?
        }
        Workload::SeekRandom => drive(job.reads, cap, |_| {
            let entries = store.scan(&keys::key(rng.below(num)), NEXTS, &mut sink)?;
            Ok(u64::try_from(entries).expect("at most 51"))
        })?,
        Workload::ReadWhileWriting => {
            let done = AtomicBool::new(false);
            return thread::scope(|scope| {
                let writer = scope.spawn(|| write_steadily(store, job, &done));
                let read = drive(job.reads, cap, |_| store.get(&keys::key(rng.below(num)), &mut sink).map(u64::from));
                done.store(true, Ordering::Relaxed);
                let writer = writer.join().expect("the writer does not panic")?;
                Ok((read?, Some(writer)))
            });
        }
    };
    Ok((drive, None))
}

/// Puts at a fixed rate until told that it is enough. What is late is caught up with: a stall does not make the load lighter.
fn write_steadily<S: Store>(store: &S, job: &Job, done: &AtomicBool) -> Result<Writer> {
    // Other keys than the reader's.
    let mut rng = Rng::new(!job.seed);
    let mut values = Values::new(!job.seed);
    let mut latencies = Histogram::new();
    let start = Instant::now();
    let mut puts = 0;
    while !done.load(Ordering::Relaxed) {
        if puts >= nanos(start.elapsed()) / (1_000_000_000 / WRITER_OPS_PER_S) {
            thread::sleep(Duration::from_micros(200));
            continue;
        }
        let begin = Instant::now();
        store.put(&keys::key(rng.below(job.num)), values.next())?;
        latencies.record(nanos(begin.elapsed()));
        puts += 1;
    }
    Ok(Writer {
        kops: crate::float(puts) / start.elapsed().as_secs_f64() / 1000.0,
        p99_us: latencies.quantile_us(0.99),
        max_us: latencies.max_us(),
    })
}

/// The measured part of a workload.
struct Drive {
    ops: u64,
    found: u64,
    elapsed: Duration,
    latencies: Histogram,
    /// Operations that ended in each full tenth of a second.
    tenths: Vec<u64>,
}

impl Drive {
    fn slowest_tenth(&self) -> Option<f64> {
        let average = crate::float(self.ops) / (self.elapsed.as_secs_f64() * 10.0);
        let slowest = self.tenths.iter().min().filter(|_| self.tenths.len() >= 2)?;
        Some(crate::float(*slowest) / average)
    }
}

/// Calls `op` `count` times, or until `cap` has passed, and times each call.
fn drive(count: u64, cap: Duration, mut op: impl FnMut(u64) -> Result<u64>) -> Result<Drive> {
    let cap_ns = nanos(cap);
    let mut latencies = Histogram::new();
    let mut tenths = Vec::with_capacity(4096);
    let (mut found, mut ops, mut ops_of_full_tenths) = (0, 0, 0);
    let mut next_tenth_ns = TENTH_NS;
    let start = Instant::now();
    let mut last_ns = 0;
    while ops < count && last_ns < cap_ns {
        found += op(ops)?;
        let now_ns = nanos(start.elapsed());
        latencies.record(now_ns - last_ns);
        last_ns = now_ns;
        while now_ns >= next_tenth_ns {
            tenths.push(ops - ops_of_full_tenths);
            ops_of_full_tenths = ops;
            next_tenth_ns += TENTH_NS;
        }
        ops += 1;
    }
    Ok(Drive { ops, found, elapsed: Duration::from_nanos(last_ns), latencies, tenths })
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

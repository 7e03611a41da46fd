//! Runs the workloads of `db_bench` against one engine, in this process, and measures.
//!
//! Every operation is timed, with one reading of the clock each: the end of one is the start of the next. That costs each engine the same
//! 30 ns, and what the harness itself does (drawing a key, 58 ns of it in `fillrandom`; copying what was read) is within the figure, the same for
//! all.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::drive::{Drive, drive, nanos};
use crate::engines::Engine;
use crate::keys::{self, KEY_BYTES, Rng, Shuffle, Values};
use crate::latency::Histogram;
use crate::row::{Fingerprint, Meter, Row, Work, Writer};
use crate::store::{Budget, Sink, Store};
use crate::workload::Workload;

/// Entries that `seekrandom` reads after the first.
const NEXTS: usize = 50;
/// Puts a second beside `readwhilewriting`.
const WRITER_OPS_PER_S: u64 = 50_000;

/// What one process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// What the engine may use.
    pub(crate) budget: Budget,
    /// The workloads, ascending.
    pub(crate) workloads: Vec<Workload>,
    /// Keys in the store.
    pub(crate) num: u64,
    /// Bytes of a value.
    pub(crate) value_bytes: usize,
    /// Operations of a workload that reads.
    pub(crate) reads: u64,
    /// Seconds after which a workload that reads stops, and with durable writes any.
    pub(crate) cap_s: f64,
    /// Fixes keys and values; another one for each repetition.
    pub(crate) seed: u64,
    /// Use the store that an earlier run left in the folder, rather than fill one.
    pub(crate) filled: bool,
}

impl Job {
    /// Bytes of a record.
    pub(crate) fn record_bytes(&self) -> u64 {
        crate::count(KEY_BYTES + self.value_bytes)
    }
}

/// Runs `job` with engine `S`, which is called `engine`, in the folder `dir`. Leaves the last store there.
///
/// # Errors
/// What the engine says, and answers that cannot be right.
pub(crate) fn run<S: Store>(engine: Engine, job: &Job, dir: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut filled: Option<S> = None;
    let mut is_whole = true;
    for &workload in &job.workloads {
        let row = if workload == Workload::FillSeq {
            let path = dir.join("seq");
            let store = open::<S>(&path, job)?;
            let row = measure(engine, &store, workload, job, &path, true)?;
            drop(store);
            fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
            row
        } else {
            let path = dir.join("random");
            let store = match &mut filled {
                Some(store) => store,
                none => {
                    ensure!(
                        path.exists() || !(job.filled && workload.needs_filled()),
                        "no store in {}: `siltstone-peers profile put` leaves one there",
                        path.display()
                    );
                    let store = open::<S>(&path, job)?;
                    if workload.needs_filled() && !job.filled {
                        let fill = measure(engine, &store, Workload::FillRandom, job, &path, true)?;
                        is_whole = fill.ops == job.num;
                    }
                    none.insert(store)
                }
            };
            let row = measure(engine, store, workload, job, &path, is_whole)?;
            // With --sync the time limit ends what writes as well, and then what is in the store hangs on the engine's speed.
            is_whole &= !workload.writes() || row.ops == job.num;
            row
        };
        rows.push(row);
    }
    // A profile is of its workload alone.
    if let (Some(store), Some(last), false) = (&filled, rows.last_mut(), job.filled) {
        last.note_contents(contents(store, job, is_whole)?, is_whole);
    }
    Ok(rows)
}

/// What the workloads left behind, checked against what they must have; `is_whole` says that those that write came to their end.
fn contents<S: Store>(store: &S, job: &Job, is_whole: bool) -> Result<Fingerprint> {
    let contents = Fingerprint::of_contents(store)?;
    ensure!(
        contents.bytes == contents.found * job.record_bytes(),
        "{} records with {} bytes, of {} bytes each",
        contents.found,
        contents.bytes,
        job.record_bytes()
    );
    let has_all = is_whole && !job.workloads.contains(&Workload::DeleteRandom);
    ensure!(!has_all || contents.found == job.num, "{} of {} records are left", contents.found, job.num);
    // How often the writer beside the reader got to put is not the same for all.
    let is_fixed = !job.workloads.contains(&Workload::ReadWhileWriting);
    Ok(Fingerprint { sum: contents.sum.filter(|_| is_fixed), ..contents })
}

fn open<S: Store>(path: &Path, job: &Job) -> Result<S> {
    fs::create_dir_all(path).with_context(|| format!("creating {}", path.display()))?;
    S::open(path, &job.budget)
}

/// Measures a workload on a store that `is_whole` if those before it came to their end.
fn measure<S: Store>(
    engine: Engine,
    store: &S,
    workload: Workload,
    job: &Job,
    path: &Path,
    is_whole: bool,
) -> Result<Row> {
    let meter = Meter::start()?;
    let Performed { drive, print, writer } = perform(store, workload, job)?;
    let ended = Instant::now();
    let settled = if writer.is_some() || workload.writes() { store.settle()? } else { ended };
    if workload.finds_all() && is_whole {
        ensure!(drive.found == drive.ops, "{}: {} of {} keys found", engine.name(), drive.found, drive.ops);
    }
    if workload == Workload::ReadMissing {
        ensure!(drive.found == 0, "{}: {} keys found that were never put", engine.name(), drive.found);
    }
    let puts = workload.writes() && workload != Workload::DeleteRandom;
    let work = Work {
        engine,
        workload: workload.name().to_owned(),
        writes: workload.writes(),
        put_bytes: if puts { drive.ops * job.record_bytes() } else { 0 },
        live_bytes: (workload != Workload::DeleteRandom && !job.budget.sync).then(|| job.num * job.record_bytes()),
    };
    let row = meter.row(work, &drive, [ended, settled], store, path)?;
    Ok(Row { fingerprint: print.filter(|_| is_whole), writer, ..row })
}

/// What the operations of a workload came to.
struct Performed {
    drive: Drive,
    print: Option<Fingerprint>,
    writer: Option<Writer>,
}

/// Performs the operations of `workload`.
fn perform<S: Store>(store: &S, workload: Workload, job: &Job) -> Result<Performed> {
    let cap = if workload.writes() && !job.budget.sync { Duration::MAX } else { Duration::from_secs_f64(job.cap_s) };
    // A stream of its own, lest a workload find in the cache just the keys that the one before it drew.
    let seed = job.seed.wrapping_mul(0x100).wrapping_add(workload.number());
    let mut rng = Rng::new(seed);
    let mut values = Values::new(seed, job.value_bytes);
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
        Workload::ReadRandom => read(store, job, cap, &mut rng, &mut sink)?,
        Workload::ReadMissing => {
            drive(job.reads, cap, |_| store.get(&keys::missing_key(rng.below(num)), &mut sink).map(u64::from))?
        }
        Workload::SeekRandom => drive(job.reads, cap, |_| {
            let entries = store.scan(&keys::key(rng.below(num)), NEXTS, &mut sink)?;
            Ok(crate::count(entries))
        })?,
        Workload::ReadRandom2 => {
            let drive = thread::scope(|scope| {
                let other = scope.spawn(|| read(store, job, cap, &mut Rng::new(!seed), &mut Sink::new()));
                let mut drive = read(store, job, cap, &mut rng, &mut sink)?;
                drive.merge(&other.join().expect("a reader does not panic")?);
                anyhow::Ok(drive)
            })?;
            return Ok(Performed { drive, print: None, writer: None });
        }
        Workload::ReadWhileWriting => {
            let done = AtomicBool::new(false);
            return thread::scope(|scope| {
                let writer = scope.spawn(|| write_steadily(store, job, &done));
                let read = read(store, job, cap, &mut rng, &mut sink);
                done.store(true, Ordering::Relaxed);
                let writer = writer.join().expect("the writer does not panic")?;
                Ok(Performed { drive: read?, print: None, writer: Some(writer) })
            });
        }
    };
    let wanted = if workload.writes() { num } else { job.reads };
    let print = (drive.ops == wanted).then(|| Fingerprint::new(drive.found, &sink));
    Ok(Performed { drive, print, writer: None })
}

/// Gets keys that are there, uniformly.
fn read<S: Store>(store: &S, job: &Job, cap: Duration, rng: &mut Rng, sink: &mut Sink) -> Result<Drive> {
    drive(job.reads, cap, |_| store.get(&keys::key(rng.below(job.num)), sink).map(u64::from))
}

/// Puts at a fixed rate until told that it is enough. What is late is caught up with: a stall does not make the load lighter.
fn write_steadily<S: Store>(store: &S, job: &Job, done: &AtomicBool) -> Result<Writer> {
    // Other keys than the reader's.
    let mut rng = Rng::new(!job.seed);
    let mut values = Values::new(!job.seed, job.value_bytes);
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
        puts,
        kops: crate::float(puts) / start.elapsed().as_secs_f64() / 1000.0,
        p99_us: latencies.quantile_us(0.99),
        max_us: latencies.max_us(),
    })
}

#[cfg(all(test, feature = "siltstone"))]
mod tests {
    use super::*;
    use crate::engines::siltstone::Siltstone;
    use crate::row::agree;

    fn durably(num: u64, cap_s: f64) -> Vec<Row> {
        use Workload::{DeleteRandom, FillRandom, Overwrite, ReadRandom, SeekRandom};
        let job = Job {
            budget: Budget { sync: true, ..Budget::small() },
            workloads: vec![FillRandom, ReadRandom, SeekRandom, Overwrite, DeleteRandom],
            num,
            value_bytes: 100,
            reads: 100,
            cap_s,
            seed: 1,
            filled: false,
        };
        let dir = tempfile::tempdir().expect("a temporary folder");
        run::<Siltstone>(Engine::Siltstone, &job, dir.path()).expect("it runs")
    }

    /// Two engines with `--sync` ended in "the engines disagree", since the slower one had put fewer records when its time was over.
    #[test]
    fn what_a_time_limit_ended_is_not_compared() {
        let slow = durably(10_000_000, 0.01);
        // However slow the machine is now, a limit that is long enough lets more records in.
        let longer = (1..).map(|times| durably(10_000_000, 0.05 * f64::from(times)));
        let fast = longer.into_iter().find(|fast| slow[0].ops != fast[0].ops).expect("endless");
        assert!(slow[4].contents.is_none() && slow[4].space_amp.is_some());
        agree(&[slow, fast].concat()).expect("neither is wrong");
        let whole = durably(50, 60.0);
        assert!(whole.iter().all(|row| row.fingerprint.is_some()));
        assert!(whole[4].contents.is_some_and(|contents| contents.found > 0 && contents.sum.is_some()));
    }
}

//! Nearly as much as an engine can do, for long: whether writes flow or stall (luo19 section 3).
//!
//! An engine is filled and then overwritten in a closed loop, which tells its maximum. Then come the same writes in an open loop, at a
//! share of that maximum: each is due at a time, whether or not the engine keeps up, and its latency counts from then. So a stall is
//! charged to every write that it delays.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use siltstone_lab::load::{self, Arrivals, DiskWorld, LoadResult, Rate, Spacing};

use crate::engines::Engine;
use crate::keys::{self, KEY_BYTES, Rng, Shuffle, Values};
use crate::process::Usage;
use crate::store::{Budget, Store};

const SECOND_NS: u64 = 1_000_000_000;

/// What one engine is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// What it may use.
    pub(crate) budget: Budget,
    /// Keys in the store.
    pub(crate) num: u64,
    /// Bytes of a value.
    pub(crate) value_bytes: usize,
    /// Seconds of the closed loop, without its warm-up.
    pub(crate) testing_s: u64,
    /// Seconds of the open loop, without its warm-up.
    pub(crate) running_s: u64,
    /// Seconds at the start of each that do not count.
    pub(crate) warm_up_s: u64,
    /// The load as a share of the maximum, in thousandths.
    pub(crate) permille: u64,
    /// Writes a second instead of a share.
    pub(crate) rate: Option<u64>,
    /// Fixes keys and values.
    pub(crate) seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) engine: Engine,
    /// Writes a second of the closed loop; none if a rate was given.
    pub(crate) maximum_per_s: Option<f64>,
    /// Writes a second that were due in the open loop.
    pub(crate) due_per_s: f64,
    /// Writes a second that it did.
    pub(crate) done_per_s: f64,
    /// Writes that were due and had not begun at its end.
    pub(crate) queued_at_end: u64,
    /// Seconds in which no write ended.
    pub(crate) empty_seconds: u64,
    /// The fewest writes that ended in a second, as a share of those that were due.
    pub(crate) slowest_second: f64,
    /// From when a write was due to its end.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_ms: f64,
    /// The longest that a write took itself.
    pub(crate) longest_call_ms: f64,
    /// Bytes that compactions had to move, the median of each quarter of the open loop; none if the engine does not say.
    pub(crate) debt_bytes: Option<[u64; 4]>,
    /// Bytes made dirty over bytes put, log included, in the open loop.
    pub(crate) write_amp: f64,
    /// Seconds of CPU a million writes, all threads.
    pub(crate) cpu_s_per_million: f64,
    /// Writes that ended in each second, and the longest latency in milliseconds, warm-up included.
    pub(crate) seconds: Vec<(u64, f64)>,
    /// Bytes that compactions had to move, once a second; none if the engine does not say.
    pub(crate) debts: Vec<u64>,
    /// For how many milliseconds writers were held back until then; none if the engine does not say.
    pub(crate) held_ms: Vec<f64>,
}

/// Runs `job` with engine `S`, which is called `engine`, in the folder `dir`. Leaves the store there.
///
/// # Errors
/// What the engine says.
pub(crate) fn run<S: Store>(engine: Engine, job: &Job, dir: &Path) -> Result<Outcome> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let store = S::open(dir, &job.budget)?;
    let mut values = Values::new(job.seed, job.value_bytes);
    let order = Shuffle::new(job.num, job.seed);
    for n in 0..job.num {
        store.put(&keys::key(order.at(n)), values.next())?;
    }
    store.settle()?;

    let world = DiskWorld::new(Some(dir))?;
    let mut rng = Rng::new(job.seed);
    let mut put = || store.put(&keys::key(rng.below(job.num)), values.next());
    let mut drive = |arrivals: Arrivals, counted_s: u64| -> Result<LoadResult> {
        let load = load::Load {
            arrivals,
            run_ns: (job.warm_up_s + counted_s) * SECOND_NS,
            warm_up_ns: job.warm_up_s * SECOND_NS,
            window_ns: SECOND_NS,
            seed: job.seed,
        };
        let mut error = None;
        let mut operation = || {
            put().map_err(|cause: anyhow::Error| {
                let what = cause.to_string();
                error = Some(cause);
                siltstone::Error::new(siltstone::ErrorKind::Io, what)
            })
        };
        let result = load::drive(&world, &load, &mut operation, &mut || 0, &mut |_| true);
        match error {
            Some(error) => Err(error),
            None => Ok(result?),
        }
    };
    let maximum = match job.rate {
        Some(_) => None,
        None => {
            let closed = drive(Arrivals::Closed, job.testing_s)?;
            eprintln!("{:<10} {:>9.1} kops/s in the closed loop", engine.name(), closed.ops_per_s / 1000.0);
            Some(Rate::over(closed.operations, job.testing_s * SECOND_NS))
        }
    };
    let share = || maximum.unwrap_or_default().times(job.permille, 1000);
    let rate = job.rate.map_or_else(share, Rate::per_second);
    store.settle()?;

    let done = AtomicBool::new(false);
    let before = Usage::now()?;
    let (open, watched) = thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&store, &done));
        let open = drive(Arrivals::steady(rate, Spacing::Constant), job.running_s);
        done.store(true, Ordering::Relaxed);
        (open, watcher.join().expect("the watcher does not panic"))
    });
    let (open, after) = (open?, Usage::now()?);
    Ok(outcome(engine, job, maximum.map(Rate::as_f64), rate.as_f64(), &open, watched, [before, after]))
}

/// What an engine says of itself, once a second.
#[derive(Default)]
struct Watched {
    debts: Vec<u64>,
    held: Vec<Duration>,
}

fn watch<S: Store>(store: &S, done: &AtomicBool) -> Watched {
    let mut watched = Watched::default();
    while !done.load(Ordering::Relaxed) {
        watched.debts.extend(store.debt_bytes());
        watched.held.extend(store.held());
        thread::sleep(Duration::from_secs(1));
    }
    watched
}

fn outcome(
    engine: Engine,
    job: &Job,
    maximum_per_s: Option<f64>,
    due_per_s: f64,
    open: &LoadResult,
    Watched { debts, held }: Watched,
    [before, after]: [Usage; 2],
) -> Outcome {
    let counted = open.windows.iter().skip(usize::try_from(job.warm_up_s).unwrap_or(0));
    let fewest = counted.clone().map(|window| window.operations).min().unwrap_or(0);
    let all: u64 = open.windows.iter().map(|window| window.operations).sum();
    let ms = |ns: u64| crate::float(ns) / 1e6;
    let put_bytes = all * crate::count(KEY_BYTES + job.value_bytes);
    let quarter = |n: usize| middle(&debts[debts.len() * (n - 1) / 4..debts.len() * n / 4]);
    Outcome {
        engine,
        maximum_per_s,
        due_per_s,
        done_per_s: open.ops_per_s,
        queued_at_end: open.queued_at_end,
        empty_seconds: crate::count(counted.filter(|window| window.operations == 0).count()),
        slowest_second: crate::float(fewest) / due_per_s,
        p50_us: ms(open.latency.p50_ns) * 1000.0,
        p99_us: ms(open.latency.p99_ns) * 1000.0,
        p999_us: ms(open.latency.p999_ns) * 1000.0,
        max_ms: ms(open.latency.max_ns),
        longest_call_ms: ms(open.processing.max_ns),
        debt_bytes: (debts.len() >= 4).then(|| [1, 2, 3, 4].map(quarter)),
        write_amp: crate::float(after.written_bytes - before.written_bytes) / crate::float(put_bytes.max(1)),
        cpu_s_per_million: (after.cpu_s - before.cpu_s) * 1e6 / crate::float(all.max(1)),
        seconds: open.windows.iter().map(|window| (window.operations, ms(window.longest_ns))).collect(),
        debts,
        held_ms: held.into_iter().map(|held| held.as_secs_f64() * 1000.0).collect(),
    }
}

/// The median, of an even number the mean of the middle two; 0 of none.
fn middle(values: &[u64]) -> u64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    let at = |n: usize| values.get(n).copied().unwrap_or(0);
    at(values.len().saturating_sub(1) / 2).midpoint(at(values.len() / 2))
}

/// The outcomes side by side.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut table = Table::new();
    #[rustfmt::skip]
    table.load_style(presets::ASCII_MARKDOWN).set_header([
        "engine", "maximum kops/s", "due", "done", "queued", "empty s", "slowest s", "p50 us", "p99 us", "p99.9 us", "max ms",
        "longest call ms", "debt MiB by quarters", "write amp", "CPU s / M",
    ]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let maybe = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.1}"));
    let mib = |bytes: u64| (bytes >> 20).to_string();
    for row in outcomes {
        table.add_row(vec![
            row.engine.name().to_owned(),
            maybe(row.maximum_per_s.map(|ops| ops / 1000.0)),
            format!("{:.1}", row.due_per_s / 1000.0),
            format!("{:.1}", row.done_per_s / 1000.0),
            row.queued_at_end.to_string(),
            row.empty_seconds.to_string(),
            format!("{:.2}", row.slowest_second),
            format!("{:.1}", row.p50_us),
            format!("{:.1}", row.p99_us),
            format!("{:.1}", row.p999_us),
            format!("{:.2}", row.max_ms),
            format!("{:.2}", row.longest_call_ms),
            row.debt_bytes.map_or("-".to_owned(), |quarters| quarters.map(mib).join(" ")),
            format!("{:.2}", row.write_amp),
            format!("{:.2}", row.cpu_s_per_million),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of an even number it was the upper one.
    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(
            [middle(&[]), middle(&[7]), middle(&[1, 9]), middle(&[9, 1, 2, 4]), middle(&[3, 1, 9])],
            [0, 7, 5, 3, 3]
        );
    }
}

//! How near dry runs come: for every ordered pair of strategies, what `plan_switch` predicts against what the switch then takes.
//!
//! For each strategy one store is loaded, updated and brought to rest on a simulated disk; each other strategy is set on a copy of it. Bytes
//! are those that merges read and wrote, space is that of the table files, looked at after every step of a lane. Sizes are scaled
//! down: what counts is memtables in the data (160, as `siltstone compare` has them) and the strategies' own size ratios.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use siltstone::io::Rng;
use siltstone::io::sim::SimFs;
use siltstone::{Durability, KeyspaceOptions, Options, SwitchPlan};

use super::Budget;
use crate::config::strategies_for;
use crate::ops::number;
use crate::pool::{Pool, Report};
use crate::store::{Check, Machine, Violation, broken};

/// Memtables that the data fills.
const MEMTABLES: u64 = 160;
/// Bytes of a key.
const KEY_BYTES: u64 = 16;
/// The goal: half of the pairs are nearer than this.
const MOST_PERMILLE: u64 = 200;

/// Predicted and actual figures of a pair.
struct Pair {
    from: String,
    to: String,
    plan: SwitchPlan,
    moved: u64,
    peak: u64,
}

/// What a strategy that is given by name or as its text is called.
fn named(strategy: &str) -> String {
    siltstone::compaction::Strategy::resolve(strategy).map_or_else(|_| strategy.to_owned(), |strategy| strategy.name)
}

/// What differs between a prediction and what came, per thousand of the larger one.
fn error(predicted: u64, actual: u64) -> u64 {
    predicted.abs_diff(actual) * 1000 / predicted.max(actual).max(1)
}

impl Pair {
    fn bytes_error(&self) -> u64 {
        error(self.plan.read_bytes + self.plan.write_bytes, self.moved)
    }

    fn peak_error(&self) -> u64 {
        error(self.plan.peak_extra_bytes, self.peak)
    }
}

/// The stores.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// About.
    pub bytes: u64,
    /// Of a record, key and value; at least 24.
    pub record_bytes: u64,
}

/// Measures all ordered pairs on stores of that size; prints a line for each.
pub fn run(budget: &Budget, size: Size, only: Option<&str>) -> Report {
    let Size { bytes, record_bytes } = size;
    // One task is a store and all switches from it.
    let pool = budget.pool("forecast").with_patience(Duration::from_secs(120 + bytes / record_bytes / 200));
    let names = strategies_for(bytes / record_bytes);
    let froms: Vec<&String> = names.iter().filter(|name| only.is_none_or(|only| only == named(name))).collect();
    let pairs: Mutex<Vec<Pair>> = Mutex::default();
    let from = |task: u64| froms[usize::try_from(task).unwrap_or(0)].clone();
    let replay = |task| {
        format!(
            "forecast --base {} --bytes {bytes} --record-bytes {record_bytes} --from {}",
            budget.base,
            named(&from(task))
        )
    };
    pool.run(froms.len() as u64, replay, |task| {
        let measured = measure(&from(task), &names, budget.base, size, &pool)?;
        pairs.lock().unwrap_or_else(PoisonError::into_inner).extend(measured);
        Ok(())
    });
    let mut pairs = pairs.into_inner().unwrap_or_else(PoisonError::into_inner);
    pairs.sort_by_key(Pair::bytes_error);
    for pair in &pairs {
        println!(
            "{:>16} -> {:<16} moved {:>9} of {:>9} ({:>3} permille)   peak {:>9} of {:>9} ({:>3} permille)",
            named(&pair.from),
            named(&pair.to),
            pair.plan.read_bytes + pair.plan.write_bytes,
            pair.moved,
            pair.bytes_error(),
            pair.plan.peak_extra_bytes,
            pair.peak,
            pair.peak_error()
        );
    }
    let of_bytes = median(pairs.iter().map(Pair::bytes_error));
    let of_peak = median(pairs.iter().map(Pair::peak_error));
    // Pairs that take nothing at all are easily predicted.
    let costly = || pairs.iter().filter(|pair| pair.moved > 0 || pair.plan.merges > 0);
    pool.count("pairs", pairs.len() as u64);
    pool.count("pairs_that_merge", costly().count() as u64);
    pool.count("median_bytes_error_permille", of_bytes);
    pool.count("median_peak_error_permille", of_peak);
    pool.count("median_bytes_error_permille_of_those_that_merge", median(costly().map(Pair::bytes_error)));
    pool.count("median_peak_error_permille_of_those_that_merge", median(costly().map(Pair::peak_error)));
    if of_bytes.max(of_peak) > MOST_PERMILLE {
        pool.fail(
            &format!("the median errors are {of_bytes} permille of the bytes and {of_peak} of the peak, {MOST_PERMILLE} is the goal"),
            &format!("forecast --base {} --bytes {bytes} --record-bytes {record_bytes}", budget.base),
        );
    }
    pool.finish()
}

/// The median, of an even number the mean of the middle two; 0 of none.
fn median(errors: impl Iterator<Item = u64>) -> u64 {
    let mut errors: Vec<u64> = errors.collect();
    errors.sort_unstable();
    let at = |n: usize| errors.get(n).copied().unwrap_or(0);
    at(errors.len().saturating_sub(1) / 2).midpoint(at(errors.len() / 2))
}

fn options(strategy: &str, bytes: u64) -> Options {
    let memtable_bytes = (bytes / MEMTABLES).max(8 << 10);
    let keyspace = KeyspaceOptions {
        memtable_bytes,
        file_bytes: memtable_bytes,
        strategy: strategy.to_owned(),
        ..KeyspaceOptions::default()
    };
    let mut options =
        Options { write_memory_bytes: memtable_bytes * 8, cache_bytes: 1 << 20, keyspace, ..Options::default() };
    options.log.segment_bytes = memtable_bytes.max(8 << 10);
    options
}

fn measure(from: &str, names: &[String], base: u64, size: Size, pool: &Pool) -> Check<Vec<Pair>> {
    let loaded = load(from, base, size)?;
    let others = names.iter().filter(|name| *name != from);
    others
        .map(|to| {
            let pair = switch(from, to, loaded.clone_image(), base, size.bytes)
                .map_err(|violation| Violation(format!("{from} -> {to}: {}", violation.0)));
            pool.count("switches", 1);
            pair
        })
        .collect()
}

fn told(error: siltstone::Error) -> Violation {
    Violation(format!("{error:?}"))
}

/// A store under `strategy`, loaded in random order, a half of it written again, a twentieth deleted, at rest.
fn load(strategy: &str, base: u64, size: Size) -> Check<SimFs> {
    let machine = Machine::new(base);
    let db = machine.open(&options(strategy, size.bytes), base, None).map_err(told)?;
    let keyspace = db.default_keyspace();
    let mut rng = Rng::new(base).split("forecast");
    let records = size.bytes / size.record_bytes;
    let key = |n: u64| format!("user{n:012}");
    let mut value = vec![b'v'; usize::try_from(size.record_bytes - KEY_BYTES).unwrap_or(100)];
    for n in 0..records * 3 / 2 {
        // Every key once, in an order that is as good as random; then any.
        let number = if n < records { n * 7_368_787 % records } else { rng.below(records) };
        value[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
        keyspace.put_with(key(number), &value, Durability::Buffered).map_err(told)?;
        if n > records && n % 10 == 0 {
            keyspace.delete(key(rng.below(records))).map_err(told)?;
        }
        if n % 16 == 0 {
            machine.executor.step_random();
        }
    }
    db.flush().map_err(told)?;
    db.wait_idle().map_err(told)?;
    db.close().map_err(told)?;
    Ok(machine.fs.clone_image())
}

fn table_bytes(machine: &Machine) -> u64 {
    let is_table = |path: &std::path::Path| path.extension().is_some_and(|ending| ending == "sst");
    machine.fs.files().into_iter().filter(|(path, _)| is_table(path)).map(|(_, bytes)| bytes).sum()
}

fn switch(from: &str, to: &str, disk: SimFs, base: u64, bytes: u64) -> Check<Pair> {
    let machine = Machine::with_disk(disk, base ^ u64::from(number(to.len() as u64)));
    let db = machine.open(&options(from, bytes), base, None).map_err(told)?;
    let keyspace = db.default_keyspace();
    db.wait_idle().map_err(told)?;
    let start = db.stats();
    let start_bytes = table_bytes(&machine);
    let plan = keyspace.plan_switch(to).map_err(told)?;
    keyspace.set_strategy(to).map_err(told)?;
    let mut most = start_bytes;
    while machine.executor.step_random() {
        most = most.max(table_bytes(&machine));
    }
    db.wait_idle().map_err(told)?;
    let end = db.stats();
    let moved = |stats: &siltstone::Stats| stats.compaction_bytes_read + stats.compaction_bytes_written;
    if !keyspace.switch_progress().map_err(told)?.is_done {
        return broken("a store at rest has not converged");
    }
    let pair = Pair {
        from: from.to_owned(),
        to: to.to_owned(),
        plan,
        moved: moved(&end) - moved(&start),
        peak: most - start_bytes,
    };
    db.close().map_err(told)?;
    Ok(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of an even number, as ordered pairs always are, it was the upper one.
    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let of = |errors: &[u64]| median(errors.iter().copied());
        assert_eq!([of(&[]), of(&[7]), of(&[1, 9]), of(&[9, 1, 2, 4]), of(&[3, 1, 9])], [0, 7, 5, 3, 3]);
    }
}

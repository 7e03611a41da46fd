//! One strategy: load, update, delete, settle, read, scan, and the figures of each.

use std::collections::BTreeMap;
use std::time::Instant;

use siltstone::io::Rng;
use siltstone::{Db, Keyspace, Stats, key};

use super::survey::Input;
use super::{Comparison, Observer, Plan, Row, Source, Step, cancelled};
use crate::metrics::{Latencies, cpu_seconds};
use crate::num::{count, per_second, ratio};
use crate::strategy::Chosen;
use crate::workload::Permutation;

const TICK: u64 = 1 << 10;

/// Runs one strategy in a folder of its own, which is removed at the end, and upon errors.
pub(super) fn run_strategy(
    source: &dyn Source,
    input: &Input,
    plan: &Plan,
    comparison: &Comparison,
    strategy: &Chosen,
    observer: &mut dyn Observer,
) -> anyhow::Result<Row> {
    let folder = tempfile::Builder::new().prefix("siltstone-compare-").tempdir_in(&plan.dir)?;
    let options = comparison.scale.apply(&plan.options, &strategy.option);
    let cpu_before = cpu_seconds();
    let db = Db::open(folder.path().join("store"), options)?;
    let mut bench = Bench {
        keyspace: db.default_keyspace(),
        db,
        input,
        rng: Rng::new(plan.seed).split("operations"),
        observer,
        row: Row { strategy: strategy.name.clone(), ..Row::default() },
        writes: Latencies::new(),
        user_bytes: 0,
    };
    bench.load(source)?;
    bench.update(comparison.updates)?;
    bench.delete(comparison.deletes)?;
    bench.settle()?;
    let tree_bytes = bench.draw_tree();
    bench.read(comparison.reads, comparison.missing_reads)?;
    bench.scan(tree_bytes)?;
    let Bench { db, mut row, writes, .. } = bench;
    row.write_latency = writes.summary();
    db.close()?;
    row.cpu_s = cpu_seconds() - cpu_before;
    folder.close()?;
    Ok(row)
}

struct Bench<'a> {
    db: Db,
    keyspace: Keyspace,
    input: &'a Input,
    rng: Rng,
    observer: &'a mut dyn Observer,
    row: Row,
    writes: Latencies,
    /// Bytes of keys and values put or deleted.
    user_bytes: u64,
}

impl Bench<'_> {
    fn step(&mut self, phase: &str, done: u64, total: Option<u64>) -> anyhow::Result<()> {
        let go_on = self.observer.step(Step { strategy: &self.row.strategy, phase, done, total });
        if go_on { Ok(()) } else { Err(cancelled().into()) }
    }

    /// Puts the whole input, in its order.
    fn load(&mut self, source: &dyn Source) -> anyhow::Result<()> {
        let total = self.input.survey.records;
        self.step("load", 0, Some(total))?;
        let mut records = source.open()?;
        let start = Instant::now();
        let mut done = 0u64;
        while let Some((key, value)) = records.next()? {
            let before = Instant::now();
            self.keyspace.put(key, value)?;
            self.writes.record_since(before);
            self.user_bytes += count(key.len() + value.len());
            done += 1;
            if done.is_multiple_of(TICK) {
                self.step("load", done, Some(total))?;
            }
        }
        let row = &mut self.row;
        row.load_s = start.elapsed().as_secs_f64();
        row.load_ops_per_s = per_second(done, row.load_s);
        row.load_mb_per_s = per_second(self.user_bytes, row.load_s) / 1e6;
        Ok(())
    }

    /// Overwrites random keys with random values of the input.
    fn update(&mut self, updates: u64) -> anyhow::Result<()> {
        self.step("update", 0, Some(updates))?;
        let input = self.input;
        let start = Instant::now();
        for done in 1..=updates {
            let key = input.keys.get(self.rng.below(input.keys.len()));
            let value = input.values.get(self.rng.below(input.values.len()));
            let before = Instant::now();
            self.keyspace.put(key, value)?;
            self.writes.record_since(before);
            self.user_bytes += count(key.len() + value.len());
            if done.is_multiple_of(TICK) {
                self.step("update", done, Some(updates))?;
            }
        }
        self.row.update_ops_per_s = per_second(updates, start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Deletes the last keys of the sample, in random order. Reads leave them out.
    fn delete(&mut self, deletes: u64) -> anyhow::Result<()> {
        let keys = self.input.keys.len();
        let deletes = deletes.min(keys / 2);
        self.step("delete", 0, Some(deletes))?;
        if deletes == 0 {
            return Ok(());
        }
        let order = Permutation::new(keys, &mut self.rng.split("deletes"));
        let start = Instant::now();
        for done in 1..=deletes {
            let key = self.input.keys.get(order.apply(done - 1));
            let before = Instant::now();
            self.keyspace.delete(key)?;
            self.writes.record_since(before);
            self.user_bytes += count(key.len());
            if done.is_multiple_of(TICK) {
                self.step("delete", done, Some(deletes))?;
            }
        }
        self.row.delete_ops_per_s = per_second(deletes, start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Flushes, waits until no compaction is due, and takes the figures of the writes.
    fn settle(&mut self) -> anyhow::Result<()> {
        self.step("settle", 0, None)?;
        let start = Instant::now();
        self.db.flush()?;
        self.db.wait_idle()?;
        let stats = self.db.stats();
        let row = &mut self.row;
        row.settle_s = start.elapsed().as_secs_f64();
        row.write_amplification = ratio(stats.flush_bytes + stats.compaction_bytes_written, self.user_bytes);
        row.log_write_amplification = ratio(stats.log_bytes, self.user_bytes);
        row.flushes = stats.flushes;
        row.compactions = stats.compactions;
        row.trivial_moves = stats.trivial_moves;
        row.compaction_bytes_read = stats.compaction_bytes_read;
        row.compaction_bytes_written = stats.compaction_bytes_written;
        row.stall_s = crate::num::float(stats.stall_ns) / 1e9;
        Ok(())
    }

    /// Notes the shape of the tree and returns the bytes of all records in it, dead ones included.
    fn draw_tree(&mut self) -> u64 {
        let tree = self.keyspace.tree();
        let files = || tree.levels.iter().flat_map(|level| &level.runs).flat_map(|run| &run.files);
        let row = &mut self.row;
        row.tree = tree
            .levels
            .iter()
            .map(|level| level.runs.iter().map(|run| run.files.iter().map(|file| file.bytes).sum()).collect())
            .collect();
        row.runs = tree.levels.iter().map(|level| count(level.runs.len())).sum();
        row.files = count(files().count());
        let tables: BTreeMap<_, _> = files().map(|file| (file.table(), file.table_bytes())).collect();
        row.disk_bytes = tables.values().sum();
        files().map(|file| file.raw_bytes).sum()
    }

    fn read(&mut self, reads: u64, missing_reads: u64) -> anyhow::Result<()> {
        self.step("read", 0, Some(reads + missing_reads))?;
        let keys = self.input.keys.len();
        let before = self.db.stats();
        let mut latencies = Latencies::new();
        let mut found = 0u64;
        let start = Instant::now();
        let mut last = start;
        for done in 1..=reads {
            let key = self.input.keys.get(self.rng.below(keys));
            found += u64::from(self.keyspace.get(key)?.is_some());
            last = latencies.record_since(last);
            if done.is_multiple_of(TICK) {
                self.step("read", done, Some(reads + missing_reads))?;
            }
        }
        self.row.read_ops_per_s = per_second(reads, start.elapsed().as_secs_f64());
        self.row.read_latency = latencies.summary();
        self.row.reads_found = found;

        let start = Instant::now();
        let mut missing = Vec::new();
        for done in 1..=missing_reads {
            // The successor of an existing key: among the keys that exist, so no file's key range excludes it.
            missing.clear();
            missing.extend_from_slice(self.input.keys.get(self.rng.below(keys)));
            missing.truncate(siltstone::key::MAX_KEY_BYTES - 1);
            missing.push(0);
            found += u64::from(self.keyspace.get(&missing)?.is_some());
            if done.is_multiple_of(TICK) {
                self.step("read", reads + done, Some(reads + missing_reads))?;
            }
        }
        self.row.missing_read_ops_per_s = per_second(missing_reads, start.elapsed().as_secs_f64());
        self.read_figures(&before, reads + missing_reads, found);
        Ok(())
    }

    fn read_figures(&mut self, before: &Stats, lookups: u64, found: u64) {
        let now = self.db.stats();
        let cached = now.cache_hits - before.cache_hits;
        let fetched = now.cache_misses - before.cache_misses;
        let probed = now.filter_checks - before.filter_checks;
        self.row.read_amplification = ratio(cached + fetched, found);
        self.row.disk_reads_per_get = ratio(fetched, lookups);
        self.row.runs_probed_per_get = ratio(probed, lookups);
    }

    /// Reads everything in key order: throughput, live bytes, and the fingerprint.
    fn scan(&mut self, tree_bytes: u64) -> anyhow::Result<()> {
        self.step("scan", 0, None)?;
        let start = Instant::now();
        let mut range = self.keyspace.range::<&[u8]>(..)?;
        let (mut records, mut bytes, mut fingerprint) = (0u64, 0, 0u64);
        while range.advance()? {
            let (key, value) = (range.key(), range.value());
            records += 1;
            bytes += count(key.len() + value.len());
            fingerprint = fingerprint.rotate_left(5) ^ key::hash(key).wrapping_add(key::hash(value).rotate_left(1));
            if records.is_multiple_of(TICK) {
                self.step("scan", records, None)?;
            }
        }
        let row = &mut self.row;
        row.scan_ops_per_s = per_second(records, start.elapsed().as_secs_f64());
        row.live_records = records;
        row.live_bytes = bytes;
        row.fingerprint = fingerprint;
        row.space_amplification = ratio(tree_bytes.saturating_sub(bytes), bytes);
        Ok(())
    }
}

//! The figures of a trial: `row.json`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use siltstone::key;
use siltstone::{Db, Keyspace};

use super::totals::Totals;
use crate::metrics::LatencySummary;
use crate::num::{count, float, ratio};

/// The figures of a trial. What they mean: [`DEFINITIONS`], and docs/design/0008-workloads-and-runs.md.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// [`FORMAT`](super::FORMAT).
    pub format: u32,
    /// The workload's name.
    pub workload: String,
    /// The strategy's name.
    pub strategy: String,
    /// From 1.
    pub repetition: u32,
    /// Decided every random choice.
    pub seed: u64,
    /// `disk` or `sim`.
    pub world: String,
    /// Of the generator.
    pub generator_version: u32,
    /// Seconds of the phases that count, without settling.
    pub elapsed_s: f64,
    /// Operations in them.
    pub operations: u64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// Bytes that flushes and merges wrote, per byte of keys and values that was put or deleted.
    pub write_amplification: f64,
    /// Data blocks that point lookups looked into, per lookup that found its key.
    pub read_amplification: f64,
    /// Bytes of keys and values in the tree that no reader can see, per byte that one can.
    pub space_amplification: f64,
    /// Bytes written to the log, per byte that was put or deleted.
    pub log_write_amplification: f64,
    /// Data blocks that point lookups fetched from files, per lookup: blocks looked into, times the share that the cache missed.
    pub disk_reads_per_get: f64,
    /// Sorted runs whose filter was asked, per point lookup.
    pub runs_probed_per_get: f64,
    /// Of all block reads, the share that the cache answered.
    pub cache_hit_ratio: f64,
    /// Flushes.
    pub flushes: u64,
    /// Merges.
    pub compactions: u64,
    /// Files that changed their level without being rewritten.
    pub trivial_moves: u64,
    /// Bytes that merges read.
    pub compaction_bytes_read: u64,
    /// Bytes that merges wrote.
    pub compaction_bytes_written: u64,
    /// Of merges, from picking to the manifest's update.
    pub compaction_latency: LatencySummary,
    /// Seconds of that in computing.
    pub compaction_cpu_s: f64,
    /// Seconds of that in file calls.
    pub compaction_io_s: f64,
    /// Tombstones in the tree at the end.
    pub tombstones: u64,
    /// How long the oldest of them has been there, in seconds; 0 without tombstones.
    pub oldest_tombstone_s: f64,
    /// Sorted runs at the end.
    pub runs: u64,
    /// Files at the end.
    pub files: u64,
    /// Bytes of the files at the end.
    pub disk_bytes: u64,
    /// Records at the end.
    pub live_records: u64,
    /// Bytes of their keys and values.
    pub live_bytes: u64,
    /// Seconds that flushes and merges went on after phases that count, until nothing was due.
    pub settle_s: f64,
    /// Seconds that writers waited for flushes and merges.
    pub stall_s: f64,
    /// Processor seconds of the process; none of a simulated trial.
    pub cpu_s: Option<f64>,
    /// The most memory that the process had; none of a simulated trial.
    pub memory_bytes: Option<u64>,
    /// A hash over all records at the end.
    pub fingerprint: String,
    /// Seconds that it took to read them all.
    #[serde(skip)]
    pub scan_s: f64,
    /// The phases that count, in order.
    pub phases: Vec<PhaseRow>,
    /// The tree at the end, from L0; levels of several keyspaces together.
    pub levels: Vec<LevelRow>,
}

/// What a phase did.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PhaseRow {
    /// Its name.
    pub name: String,
    /// Seconds.
    pub elapsed_s: f64,
    /// Operations.
    pub operations: u64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// By kind of operation, those of the phase's own clients.
    pub kinds: BTreeMap<String, KindRow>,
    /// The same of the clients beside them, which are in no other figure but the windows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub beside: BTreeMap<String, KindRow>,
}

/// What became of the operations of one kind.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct KindRow {
    /// How many.
    pub count: u64,
    /// Records that they found or read.
    pub found: u64,
    /// From the intended start to the end.
    pub latency: LatencySummary,
    /// From the real start to the end.
    pub processing: LatencySummary,
}

/// A level at the end.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LevelRow {
    /// Its number.
    pub level: u8,
    /// Bytes of its runs, newest first.
    pub runs: Vec<u64>,
    /// Files.
    pub files: u64,
    /// Records, all versions and tombstones.
    pub entries: u64,
    /// Tombstones.
    pub tombstones: u64,
}

/// What the short names in tables mean.
pub const DEFINITIONS: [(&str, &str); 6] = [
    (
        "WA",
        "write amplification: bytes that flushes and merges wrote / bytes of keys and values put or deleted (the log not counted)",
    ),
    (
        "RA",
        "read amplification: data blocks that point lookups looked into, cached or not / lookups that found their key (sarkar21 section 4.2)",
    ),
    (
        "SA",
        "space amplification: bytes of overwritten and deleted records in the tree / bytes of live records (sarkar21 section 4.2)",
    ),
    ("cache", "share of block reads that the block cache answered"),
    ("settle", "time until nothing was left to flush or merge, after the phases: the debt that they left"),
    ("stalled", "time that writers waited for flushes and merges"),
];

impl Row {
    /// Puts the figures of `counted` in.
    pub(super) fn count(&mut self, counted: &Totals) {
        self.write_amplification = ratio(counted.flush_bytes + counted.compaction_bytes_written, counted.user_bytes);
        self.log_write_amplification = ratio(counted.log_bytes, counted.user_bytes);
        self.read_amplification = ratio(counted.pages(), counted.get_hits);
        self.runs_probed_per_get = ratio(counted.runs_probed, counted.gets);
        let blocks = counted.cache_hits + counted.cache_misses;
        self.cache_hit_ratio = ratio(counted.cache_hits, blocks);
        self.disk_reads_per_get = ratio(counted.pages(), counted.gets) * ratio(counted.cache_misses, blocks);
        self.flushes = counted.flushes;
        self.compactions = counted.compactions;
        self.trivial_moves = counted.trivial_moves;
        self.compaction_bytes_read = counted.compaction_bytes_read;
        self.compaction_bytes_written = counted.compaction_bytes_written;
        self.stall_s = float(counted.stall_ns) / 1e9;
    }

    /// Notes the shape of the trees and returns the bytes of all records in them, dead ones included.
    pub(super) fn draw(&mut self, keyspaces: &[Keyspace]) -> u64 {
        let mut raw_bytes = 0;
        for keyspace in keyspaces {
            let (tree, stats) = (keyspace.tree(), keyspace.stats());
            let files = || tree.levels.iter().flat_map(|level| &level.runs).flat_map(|run| &run.files);
            raw_bytes += files().map(|file| file.raw_bytes).sum::<u64>();
            self.files += count(files().count());
            let tables: BTreeMap<_, _> = files().map(|file| (file.table(), file.table_bytes())).collect();
            self.disk_bytes += tables.values().sum::<u64>();
            self.tombstones += files().map(|file| file.tombstones).sum::<u64>();
            self.oldest_tombstone_s = self.oldest_tombstone_s.max(float(stats.oldest_tombstone_age_ms) / 1e3);
            for level in &tree.levels {
                let number = level.level;
                if self.levels.iter().all(|known| known.level != number) {
                    self.levels.push(LevelRow { level: number, ..LevelRow::default() });
                    self.levels.sort_by_key(|level| level.level);
                }
                let Some(row) = self.levels.iter_mut().find(|known| known.level == number) else { continue };
                row.runs.extend(level.runs.iter().map(|run| run.files.iter().map(|file| file.bytes).sum::<u64>()));
                let files = || level.runs.iter().flat_map(|run| &run.files);
                row.files += count(files().count());
                row.entries += files().map(|file| file.entries).sum::<u64>();
                row.tombstones += files().map(|file| file.tombstones).sum::<u64>();
                self.runs += count(level.runs.len());
            }
        }
        raw_bytes
    }

    /// Reads all records: how many there are, their bytes, the fingerprint. `go_on` is asked now and then.
    pub(super) fn scan(
        &mut self,
        keyspaces: &[Keyspace],
        raw_bytes: u64,
        go_on: &dyn Fn() -> bool,
    ) -> siltstone::Result<()> {
        let mut fingerprint = 0u64;
        for keyspace in keyspaces {
            let mut range = keyspace.range::<&[u8]>(..)?;
            while range.advance()? {
                let (key, value) = (range.key(), range.value());
                self.live_records += 1;
                self.live_bytes += count(key.len() + value.len());
                fingerprint = fingerprint.rotate_left(5) ^ key::hash(key).wrapping_add(key::hash(value).rotate_left(1));
                if self.live_records.is_multiple_of(1 << 12) && !go_on() {
                    return Err(super::stopped());
                }
            }
        }
        self.fingerprint = format!("{fingerprint:016x}");
        self.space_amplification = ratio(raw_bytes.saturating_sub(self.live_bytes), self.live_bytes);
        Ok(())
    }
}

/// The keyspaces of a store, by name.
pub(super) fn keyspaces(db: &Db) -> siltstone::Result<Vec<Keyspace>> {
    let names: BTreeSet<String> = db.list_keyspaces().into_iter().collect();
    names.iter().map(|name| db.keyspace(name)).collect()
}

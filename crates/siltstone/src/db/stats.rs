//! Counters, cheap enough for the hot path, and the plain data that users read them as.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use serde::Serialize;

use super::core::KeyspaceCore;
use crate::num::to_u64;
use crate::version::Level;

const STRIPES: usize = 16;

/// A counter that many threads add to without sharing a cache line (up to 16 threads; more share lines pairwise).
#[derive(Default)]
pub(crate) struct Counter([Stripe; STRIPES]);

#[derive(Default)]
#[repr(align(64))]
struct Stripe(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0[stripe()].0.fetch_add(n, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.load(Relaxed)).sum()
    }
}

/// This thread's stripe. Which one it is affects speed only, never a result.
#[inline]
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = const { Cell::new(usize::MAX) });
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Relaxed) % STRIPES);
        }
        mine.get()
    })
}

/// A counter that is added to rarely, or under a lock.
#[derive(Default)]
pub(crate) struct Rare(AtomicU64);

impl Rare {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident: $kind:ident),* $(,)?) => {
        /// What the store counts while it runs.
        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: $kind,)* }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.get(),)* ..Stats::default() }
            }
        }

        /// Statistics since the store was opened, and its size now. Sizes are bytes, times nanoseconds.
        #[derive(Clone, Default, Debug, PartialEq, Serialize)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// Block reads that the cache answered.
            pub cache_hits: u64,
            /// Block reads that went to a file.
            pub cache_misses: u64,
            /// Bytes that the cache holds, pinned filters and indexes included.
            pub cache_used_bytes: u64,
            /// Tables that are open.
            pub open_tables: u64,
            /// Bytes of all log segments that are kept.
            pub log_kept_bytes: u64,
            /// Bytes of all memtables, immutable ones included.
            pub memtable_bytes: u64,
            /// Snapshots that are held.
            pub snapshots: u64,
            /// The newest sequence number that readers see.
            pub last_seq: u64,
            /// Sorted runs of all keyspaces, on disk.
            pub runs: u64,
            /// Files of all keyspaces.
            pub files: u64,
            /// Bytes of these files.
            pub disk_bytes: u64,
            /// The keyspaces, by name.
            pub keyspaces: Vec<KeyspaceStats>,
        }
    };
}

counters! {
    /// Records put.
    puts: Rare,
    /// Records deleted.
    deletes: Rare,
    /// Bytes of keys and values that users wrote.
    user_bytes_written: Rare,
    /// Bytes appended to the log.
    log_bytes: Rare,
    /// Log syncs that users waited for (concurrent writers share one).
    log_syncs: Rare,
    /// Point lookups.
    gets: Counter,
    /// Point lookups that found a value.
    get_hits: Counter,
    /// Point lookups that a memtable answered.
    memtable_hits: Counter,
    /// Sorted runs (files) whose filter was asked.
    filter_checks: Counter,
    /// Filter answers "not here", which spared a block.
    filter_negatives: Counter,
    /// Filter answers "maybe" where the key was not there.
    filter_false_positives: Counter,
    /// Iterators opened.
    ranges: Counter,
    /// Flushes that took effect.
    flushes: Rare,
    /// Bytes that flushes wrote.
    flush_bytes: Rare,
    /// Merges that took effect.
    compactions: Rare,
    /// Files that changed their level without being rewritten.
    trivial_moves: Rare,
    /// Bytes that merges read.
    compaction_bytes_read: Rare,
    /// Bytes that merges wrote.
    compaction_bytes_written: Rare,
    /// Records that merges read.
    compaction_entries_read: Rare,
    /// Records that merges wrote.
    compaction_entries_written: Rare,
    /// Old versions that merges dropped.
    dropped_versions: Rare,
    /// Tombstones that merges dropped.
    dropped_tombstones: Rare,
    /// Time spent in flush steps.
    flush_ns: Rare,
    /// Time spent in merge steps.
    compaction_ns: Rare,
    /// Times a writer met a limit and waited.
    stalls: Rare,
    /// How long writers waited at limits.
    stall_ns: Rare,
    /// How long writers were slowed down before they met a limit.
    pace_ns: Rare,
    /// Background work that failed and was put off.
    background_errors: Rare,
    /// Files ingested.
    ingested_files: Rare,
    /// Files of earlier runs of the store that no version named, removed at open.
    orphans_removed: Rare,
    /// Log records replayed at open.
    replayed_records: Rare,
    /// Whether recovery ended at a torn tail of the log (1) or not (0).
    torn_tails: Rare,
    /// Compactions that were cancelled.
    cancelled: Rare,
    /// Plans of policies that broke a law of the tree and were refused.
    refused_plans: Rare,
}

/// Statistics of one keyspace.
#[derive(Clone, Default, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct KeyspaceStats {
    /// Its name.
    pub name: String,
    /// The strategy's name.
    pub strategy: String,
    /// Sorted runs on disk.
    pub runs: u64,
    /// Files.
    pub files: u64,
    /// Bytes of the files.
    pub disk_bytes: u64,
    /// Bytes of keys and values in the files, all versions.
    pub raw_bytes: u64,
    /// Records in the files, all versions and tombstones.
    pub entries: u64,
    /// Tombstones in the files.
    pub tombstones: u64,
    /// Bytes of its memtables.
    pub memtable_bytes: u64,
    /// Memtables that wait for their flush.
    pub immutables: u64,
    /// By level, L0 first.
    pub levels: Vec<LevelStats>,
}

/// Statistics of one level.
#[derive(Clone, Default, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LevelStats {
    /// Sorted runs.
    pub runs: u64,
    /// Files.
    pub files: u64,
    /// Bytes.
    pub bytes: u64,
    /// Records.
    pub entries: u64,
    /// Tombstones among them.
    pub tombstones: u64,
}

impl LevelStats {
    pub(crate) fn of(level: &Level) -> LevelStats {
        let mut stats = LevelStats { runs: to_u64(level.runs.len()), ..LevelStats::default() };
        for file in level.files() {
            stats.files += 1;
            stats.bytes += file.bytes;
            stats.entries += file.entries;
            stats.tombstones += file.tombstones;
        }
        stats
    }
}

/// The size of a keyspace now.
pub(crate) fn of_keyspace(keyspace: &KeyspaceCore) -> KeyspaceStats {
    let view = keyspace.view.load();
    let slots = std::iter::once(&view.memtable).chain(&view.immutables);
    let mut stats = KeyspaceStats {
        name: keyspace.name.clone(),
        strategy: keyspace.steering.load().policy.name().to_owned(),
        memtable_bytes: slots.map(|slot| slot.table.bytes()).sum(),
        immutables: to_u64(view.immutables.len()),
        ..KeyspaceStats::default()
    };
    for level in &view.tree.version.levels {
        let of_level = LevelStats::of(level);
        stats.raw_bytes += level.files().map(|file| file.raw_bytes).sum::<u64>();
        stats.runs += of_level.runs;
        stats.files += of_level.files;
        stats.disk_bytes += of_level.bytes;
        stats.entries += of_level.entries;
        stats.tombstones += of_level.tombstones;
        stats.levels.push(of_level);
    }
    stats
}

//! Counters, cheap enough for the hot path, and the plain data that users read them as.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use serde::Serialize;

use super::core::KeyspaceCore;
use super::metrics::{ByReason, MergeLatency, Metrics, ReasonStats, RunsSample, latency, ratio};
use crate::num::to_u64;
use crate::version::{Level, Version};

pub(crate) const STRIPES: usize = 16;

/// A counter that many threads add to without sharing a cache line (up to 16 threads; more share lines pairwise).
#[derive(Default)]
pub(crate) struct Counter([Stripe; STRIPES]);

#[derive(Default)]
#[repr(align(64))]
struct Stripe(AtomicU64);

impl Counter {
    /// Says what this thread's part of it was before.
    #[inline]
    pub(crate) fn add(&self, n: u64) -> u64 {
        self.0[stripe()].0.fetch_add(n, Relaxed)
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.load(Relaxed)).sum()
    }
}

/// This thread's stripe. Which one it is affects speed only, never a result.
#[inline]
pub(crate) fn stripe() -> usize {
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

/// A counter that is added to under the writer lock only. An atomic addition would wait until everything that the write has stored before
/// is in the cache; it can wait for that in the background.
#[derive(Default)]
pub(crate) struct Guarded(AtomicU64);

impl Guarded {
    /// Called under the writer lock.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed) + n, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// How long writers of a keyspace have waited.
#[derive(Default)]
pub(crate) struct WriteWaits {
    pub(crate) stalls: Rare,
    pub(crate) stall_ns: Rare,
    pub(crate) pace_ns: Rare,
}

/// What reads of a keyspace count. The store's figures are the sums.
#[derive(Default)]
pub(crate) struct ReadStats {
    pub(crate) gets: Counter,
    pub(crate) get_hits: Counter,
    pub(crate) memtable_hits: Counter,
    pub(crate) filter_checks: Counter,
    pub(crate) filter_negatives: Counter,
    pub(crate) filter_false_positives: Counter,
    pub(crate) ranges: Counter,
}

impl Counters {
    /// Takes over what a keyspace has counted that is dropped.
    pub(crate) fn inherit(&self, reads: &ReadStats) {
        self.gets.add(reads.gets.get());
        self.get_hits.add(reads.get_hits.get());
        self.memtable_hits.add(reads.memtable_hits.get());
        self.filter_checks.add(reads.filter_checks.get());
        self.filter_negatives.add(reads.filter_negatives.get());
        self.filter_false_positives.add(reads.filter_false_positives.get());
        self.ranges.add(reads.ranges.get());
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
            /// Bytes of files that merges have replaced and that are kept for some seconds, to be written over.
            pub spare_bytes: u64,
            /// The merge scheduler, as options spell it.
            pub scheduler: String,
            /// Merges that have begun and not ended; those that the scheduler lets wait included.
            pub merges: u64,
            /// Of these, those that wait.
            pub merges_waiting: u64,
            /// Bytes that background work owes now: full memtables that wait for their flush, and what merges under way have still to
            /// read. For all that the strategy will want because of what is there, see
            /// [`switch_progress`](crate::Keyspace::switch_progress).
            pub debt_bytes: u64,
            /// How long that takes if nothing more is written, in seconds, by the speed of flushes and merges since the store was opened; none
            /// before the first.
            pub debt_seconds: Option<f64>,
            /// Bytes of keys and values a second that flushes and merges can take for ever, by what they took since the store was opened; none
            /// before the first flush. It follows the load: wait until merges have reached the deepest level.
            pub sustainable_write_bytes_per_s: Option<f64>,
            /// The keyspaces, by name.
            pub keyspaces: Vec<KeyspaceStats>,
        }
    };
}

counters! {
    /// Records put.
    puts: Guarded,
    /// Records deleted.
    deletes: Guarded,
    /// Bytes of keys and values that users wrote.
    user_bytes_written: Guarded,
    /// Bytes appended to the log.
    log_bytes: Guarded,
    /// Log syncs that users waited for (concurrent writers share one).
    log_syncs: Rare,
    /// Point lookups.
    gets: Rare,
    /// Point lookups that found a value.
    get_hits: Rare,
    /// Point lookups that a memtable answered.
    memtable_hits: Rare,
    /// Sorted runs (files) whose filter was asked.
    filter_checks: Rare,
    /// Filter answers "not here", which spared a block.
    filter_negatives: Rare,
    /// Filter answers "maybe" where the key was not there.
    filter_false_positives: Rare,
    /// Iterators opened.
    ranges: Rare,
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
    /// Bytes that merges linked to their output instead of reading and writing them.
    compaction_bytes_linked: Rare,
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
    /// Bytes of memtables that were flushed, keys and values.
    flushed_user_bytes: Rare,
    /// Bytes of input that merges have stepped through, those of jobs that came to nothing included.
    compaction_bytes_stepped: Rare,
    /// Merge steps.
    merge_steps: Rare,
    /// Time spent on deciding which merge steps.
    schedule_ns: Rare,
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
    /// Files that are slices of their tables: merges have released or linked a part. Those of one table share it.
    pub slices: u64,
    /// Bytes of their tables.
    pub disk_bytes: u64,
    /// Bytes of dead keys, about, among them: no file has that part of a table any more.
    pub dead_bytes: u64,
    /// Bytes of keys and values in the files, all versions.
    pub raw_bytes: u64,
    /// Records in the files, all versions and tombstones.
    pub entries: u64,
    /// Tombstones in the files; an estimate where files are slices.
    pub tombstones: u64,
    /// Bytes of its memtables.
    pub memtable_bytes: u64,
    /// Memtables that wait for their flush.
    pub immutables: u64,
    /// How writes wait for merges, as options spell it.
    pub write_control: String,
    /// Runs at which writers are slowed down, where the write control does that.
    pub slow_runs: u64,
    /// Runs at which they stop: in all levels together, or of L0 if the constraint is local.
    pub stop_runs: u64,
    /// Times a writer met a limit and waited.
    pub stalls: u64,
    /// How long writers waited at limits.
    pub stall_ns: u64,
    /// How long writers were slowed down before they met a limit.
    pub pace_ns: u64,
    /// Bytes that background work owes now: see [`Stats::debt_bytes`].
    pub debt_bytes: u64,
    /// How long that takes if it has all lanes, in seconds; none if it was never measured.
    pub debt_seconds: Option<f64>,
    /// Point lookups.
    pub gets: u64,
    /// Point lookups that found a value.
    pub get_hits: u64,
    /// Point lookups that a memtable answered.
    pub memtable_hits: u64,
    /// Sorted runs (files) whose filter was asked.
    pub filter_checks: u64,
    /// Filter answers "not here", which spared a block.
    pub filter_negatives: u64,
    /// Filter answers "maybe" where the key was not there.
    pub filter_false_positives: u64,
    /// Iterators opened.
    pub ranges: u64,
    /// Read amplification in files: files asked for each point lookup.
    pub files_per_get: f64,
    /// Read amplification in pages: data blocks looked into for each point lookup, from the cache or from disk. One is ideal for a key that is
    /// there, none for one that is not.
    pub pages_per_get: f64,
    /// Bytes of keys and values that came to disk: of memtables that were flushed, and ingested.
    pub ingested_bytes: u64,
    /// Bytes that flushes and ingestion wrote.
    pub flush_bytes: u64,
    /// Bytes that merges read, those of jobs that came to nothing included.
    pub merge_bytes_read: u64,
    /// Bytes that merges wrote, those of jobs that came to nothing included.
    pub merge_bytes_written: u64,
    /// Bytes that merges linked to their output instead of reading and writing them.
    pub merge_bytes_linked: u64,
    /// Write amplification: what flushes and merges wrote over what was ingested. 0 before the first flush.
    pub write_amplification: f64,
    /// The same for merges alone.
    pub merge_write_amplification: f64,
    /// Space amplification as RocksDB's universal compaction has it: bytes of all runs but the oldest, per hundred bytes of the oldest. For
    /// sarkar21's, see [`Keyspace::space_amplification`](crate::Keyspace::space_amplification).
    pub space_amplification_percent: f64,
    /// How long the oldest tombstone in a file has been there, in milliseconds; 0 without tombstones.
    pub oldest_tombstone_age_ms: u64,
    /// The most bytes that unfinished merges took at once beside what is alive: output that is not in the tree yet, and what of files
    /// released in part is dead.
    pub temporary_bytes_peak: u64,
    /// What was dropped since the store was opened that was not deleted: the oldest data of a keyspace that may lose it.
    pub lost_files: u64,
    /// Records in these files, all versions and tombstones.
    pub lost_records: u64,
    /// Their bytes.
    pub lost_bytes: u64,
    /// The largest sequence number among the lost: everything younger is there. 0 if nothing was lost.
    pub lost_up_to: u64,
    /// What jobs did since the store was opened, by reason.
    pub reasons: Vec<ReasonStats>,
    /// The same over the decisions that are kept, those of earlier openings included.
    pub kept_reasons: Vec<ReasonStats>,
    /// How long merges took, over the decisions that are kept.
    pub latency: MergeLatency,
    /// Sorted runs over time since the store was opened: at most 256 samples, taken when a tree is installed.
    pub runs_over_time: Vec<RunsSample>,
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
    /// Bytes, those of dead keys not counted.
    pub bytes: u64,
    /// Bytes of dead keys, about, in tables of which files are slices. A table with slices on several levels counts on the first of them.
    pub dead_bytes: u64,
    /// Records.
    pub entries: u64,
    /// Tombstones among them.
    pub tombstones: u64,
    /// How long the oldest tombstone has been in a file, in milliseconds; 0 without tombstones.
    pub oldest_tombstone_age_ms: u64,
    /// Jobs into this level since the store was opened.
    pub jobs: u64,
    /// Bytes that merges into this level read.
    pub bytes_read: u64,
    /// Bytes that merges into this level wrote.
    pub bytes_written: u64,
    /// Files that came without being rewritten.
    pub moved_files: u64,
    /// Their bytes.
    pub moved_bytes: u64,
}

impl LevelStats {
    /// The levels of a tree.
    pub(crate) fn of_all(version: &Version) -> Vec<LevelStats> {
        let levels = version.levels.iter().zip(version.dead_bytes());
        levels.map(|(level, dead_bytes)| LevelStats { dead_bytes, ..LevelStats::of(level) }).collect()
    }

    /// Without what is dead: for that one has to look at the whole tree.
    fn of(level: &Level) -> LevelStats {
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

/// A keyspace at wall time `now_ms`.
pub(crate) fn of_keyspace(keyspace: &KeyspaceCore, now_ms: u64) -> KeyspaceStats {
    let view = keyspace.view.load();
    let slots = std::iter::once(&view.memtable).chain(&view.immutables);
    let mut stats = KeyspaceStats {
        name: keyspace.name.clone(),
        strategy: keyspace.steering.load().policy.name().to_owned(),
        memtable_bytes: slots.map(|slot| slot.table.bytes()).sum(),
        immutables: to_u64(view.immutables.len()),
        write_control: keyspace.options.write_control.to_string(),
        slow_runs: keyspace.slow_runs.load(Relaxed),
        stop_runs: keyspace.stop_runs.load(Relaxed),
        stalls: keyspace.waits.stalls.get(),
        stall_ns: keyspace.waits.stall_ns.get(),
        pace_ns: keyspace.waits.pace_ns.get(),
        ..KeyspaceStats::default()
    };
    let version = &view.tree.version;
    for (level, of_level) in version.levels.iter().zip(LevelStats::of_all(version)) {
        let of_level = LevelStats { oldest_tombstone_age_ms: tombstone_age_ms(level, now_ms), ..of_level };
        stats.oldest_tombstone_age_ms = stats.oldest_tombstone_age_ms.max(of_level.oldest_tombstone_age_ms);
        stats.raw_bytes += level.files().map(|file| file.raw_bytes).sum::<u64>();
        stats.runs += of_level.runs;
        stats.files += of_level.files;
        stats.slices += to_u64(level.files().filter(|file| file.whole.is_some()).count());
        stats.disk_bytes += of_level.bytes + of_level.dead_bytes;
        stats.dead_bytes += of_level.dead_bytes;
        stats.entries += of_level.entries;
        stats.tombstones += of_level.tombstones;
        stats.levels.push(of_level);
    }
    if let Some((_, oldest)) = view.tree.version.runs().last() {
        stats.space_amplification_percent =
            100.0 * ratio(stats.disk_bytes.saturating_sub(oldest.bytes()), oldest.bytes());
    }
    stats.add_reads(&keyspace.reads);
    {
        let kept = keyspace.decisions.lock();
        let decisions = || kept.iter().map(|decision| &**decision);
        stats.latency = latency(decisions());
        let mut reasons = ByReason::default();
        decisions().for_each(|decision| reasons.add(decision));
        stats.kept_reasons = reasons.read();
    }
    stats.add_work(&keyspace.metrics.lock());
    stats
}

fn tombstone_age_ms(level: &Level, now_ms: u64) -> u64 {
    let oldest = level.files().filter_map(|file| file.oldest_tombstone_ms).min();
    oldest.map_or(0, |oldest| now_ms.saturating_sub(oldest))
}

impl KeyspaceStats {
    fn add_reads(&mut self, reads: &ReadStats) {
        self.gets = reads.gets.get();
        self.get_hits = reads.get_hits.get();
        self.memtable_hits = reads.memtable_hits.get();
        self.filter_checks = reads.filter_checks.get();
        self.filter_negatives = reads.filter_negatives.get();
        self.filter_false_positives = reads.filter_false_positives.get();
        self.ranges = reads.ranges.get();
        self.files_per_get = ratio(self.filter_checks, self.gets);
        self.pages_per_get = ratio(self.filter_checks.saturating_sub(self.filter_negatives), self.gets);
    }

    fn add_work(&mut self, metrics: &Metrics) {
        self.ingested_bytes = metrics.ingested_bytes;
        self.flush_bytes = metrics.flush_bytes;
        self.merge_bytes_read = metrics.merge_bytes_read;
        self.merge_bytes_written = metrics.merge_bytes_written;
        self.merge_bytes_linked = metrics.merge_bytes_linked;
        self.write_amplification = ratio(metrics.flush_bytes + metrics.merge_bytes_written, metrics.ingested_bytes);
        self.merge_write_amplification = ratio(metrics.merge_bytes_written, metrics.ingested_bytes);
        self.temporary_bytes_peak = metrics.temporary_bytes_peak;
        self.lost_files = metrics.lost.files;
        self.lost_records = metrics.lost.records;
        self.lost_bytes = metrics.lost.bytes;
        self.lost_up_to = metrics.lost.newest.0;
        self.reasons = metrics.by_reason.read();
        self.runs_over_time = metrics.runs_over_time();
        // A level that is empty now may have been worked on.
        let levels = self.levels.len().max(metrics.levels.len());
        self.levels.resize(levels, LevelStats::default());
        for (level, work) in self.levels.iter_mut().zip(&metrics.levels) {
            level.jobs = work.jobs;
            level.bytes_read = work.bytes_read;
            level.bytes_written = work.bytes_written;
            level.moved_files = work.moved_files;
            level.moved_bytes = work.moved_bytes;
        }
    }
}

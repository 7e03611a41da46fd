//! The second primitive: when a level is compacted (sarkar21 section 3.1.1).
//!
//! A trigger measures one level. It fires when the value reaches the threshold; value / threshold is the score by which levels
//! are compared.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::granularity;
use super::guards::{self, Column};
use super::layout::{Layout, Shape};
use super::oldest;
use super::plan::{Place, hides_nothing};
use super::view::{LsmView, MAX_LEVELS, Sizes};
use crate::num::{to_f64, to_u64};
use crate::version::{FileMeta, LevelId, Run};

/// When a level is compacted.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Trigger {
    /// The level holds more than its share. Value: its bytes, those that running jobs take away not counted, divided by its
    /// capacity; or its files divided by `files`.
    LevelSaturation {
        /// The share of the capacity at which the level is full. Default 1.
        #[serde(default = "one")]
        full_at: f64,
        /// Count files instead: as many fill the level. Default: bytes count.
        files: Option<u32>,
    },
    /// The level holds many runs. Value: its runs that no running job consumes wholly. With the layout `guarded` they are, from L1 on, as
    /// many as some guard holds, once those that lie on nothing have fallen.
    SortedRuns {
        /// As many runs fire. Default: the layout's limit.
        runs: Option<u32>,
    },
    /// The tree holds much that the oldest run may hold already. Value: the bytes of all other runs per hundred of the
    /// oldest (RocksDB universal). It looks at the whole tree and merges all of it into the oldest run.
    SpaceAmplification {
        /// Percent. Default 200.
        #[serde(default = "two_hundred")]
        percent: u32,
        /// Only with at least as many runs in the tree. Default 2.
        #[serde(default = "two")]
        min_runs: u32,
    },
    /// The oldest data of the tree was written long ago (RocksDB's periodic compaction, HBase's major compaction). Value: the age of
    /// the oldest file, in seconds, in a tree with several runs or with tombstones. It merges all runs from the newest idle
    /// one on; with the layout `runs` only.
    Periodic {
        /// How old, as "90s", "15m", "12h" or "30d".
        #[serde(deserialize_with = "crate::options::age::deserialize")]
        age: Duration,
        /// The age differs from tree to tree by up to so many percent, either way; the oldest file's number decides. Default 0, at most
        /// 99 (HBase: 50).
        #[serde(default)]
        jitter_percent: u32,
    },
    /// The second largest group is large beside the largest (ScyllaDB's ICS: the space amplification goal, minus 1). Value: its bytes per
    /// hundred of the largest. It merges both groups; with the layout `runs` only, and with a grouping by size or density.
    TierAmplification {
        /// Percent.
        percent: u32,
    },
    /// A file holds many tombstones. Value: the largest share of tombstones among the entries of a file, of those files from which
    /// compaction could free something now: they can go down, or nothing older is below them and all snapshots see them.
    TombstoneDensity {
        /// The share, above 0, at most 1. Default 0.5.
        #[serde(default = "half")]
        share: f64,
        /// Only files that were written as long ago, as "90s", "15m", "12h" or "30d". Default: any.
        #[serde(default, deserialize_with = "crate::options::age::deserialize")]
        min_age: Duration,
    },
    /// A file has stayed in its level for long. Value: the longest stay, in seconds; the tree's last level is left alone.
    FileStaleness {
        /// How long, as "90s", "15m", "12h" or "30d".
        #[serde(deserialize_with = "crate::options::age::deserialize")]
        age: Duration,
    },
    /// A file holds a tombstone that should have gone further down by now. Each level above the last has a share of `ttl`, larger by the size
    /// ratio from level to level, and the shares are worked out anew as the tree gets deeper; a file has expired in a level when its
    /// oldest tombstone is older than the shares down to that level together (Lethe; Sarkar et al. 2020). So none grows older than
    /// `ttl` and the time that its compactions take. Value: the largest age divided by what is allowed. In the last level, and where
    /// nothing older is below, the file is rewritten in place once all snapshots see its tombstones.
    TombstoneTtl {
        /// How old a tombstone may get, as "90s", "15m", "12h" or "30d".
        #[serde(deserialize_with = "crate::options::age::deserialize")]
        ttl: Duration,
    },
    /// Point lookups ask a file in vain (LevelDB's seek compaction). Value: the lookups that found nothing in a file, divided by its
    /// budget; the tree's last level is left alone. Comes after everything that is about sizes, however large the value is.
    ReadAmplification {
        /// One read in vain is allowed for so many bytes of the file. Default 16384, at least 1.
        #[serde(default = "sixteen_kib")]
        bytes_per_read: u64,
        /// At least so many are allowed. Default 100, at least 1.
        #[serde(default = "hundred")]
        min_reads: u64,
    },
    /// Reads have paid as much for the runs of a level as it would have cost to merge them away: at worst twice what the best moment for the merge
    /// would have cost (the ski rental argument, of one who does not know how much will be read). Value: what was paid, by
    /// [`LsmView::read_work`](super::LsmView), in bytes. Threshold: the level's bytes and those that it overlaps in a leveled next level. Comes after
    /// everything that is about sizes. On tiered levels, with granularity `sorted-runs`.
    ReadCost {
        /// How much of the cost of the merge must have been paid, above 0. Default 1.
        #[serde(default = "one")]
        share: f64,
    },
    /// The tree holds many tombstones. Value: tombstones above the last level for each other entry of the tree; each hides one at most, so it bounds
    /// how much of what the tree takes was deleted. It fires in the level whose tombstones free most, for each byte that a merge with the next level moves, as if
    /// those below were spread evenly. Comes after everything that is about sizes. Not while a snapshot keeps what was deleted.
    TombstoneShare {
        /// As many fire, above 0. Default a quarter.
        #[serde(default = "quarter")]
        share: f64,
    },
    /// The tree holds much, whatever it is (RocksDB FIFO's max_table_files_size). Value: its bytes. It looks at the whole tree, and takes
    /// granularity `drop-oldest`: afterwards the tree holds less than the limit, and at least the limit less one file.
    TotalSize {
        /// The limit, in memtables, above 0. Default 16: RocksDB's 1 GiB with its memtables of 64 MiB.
        memtables: Option<f64>,
        /// The limit in bytes, at least 1, whatever the memtable is.
        bytes: Option<u64>,
    },
    /// The oldest file of the tree was written long ago (RocksDB FIFO's ttl). Value: its age in seconds. It looks at the whole tree, and takes
    /// granularity `drop-oldest`: every file goes that holds nothing younger, in the order of age. A file is as old as the flush or the merge
    /// that wrote it, so data may stay longer, by the time it was in a memtable or until it was merged, and never shorter.
    DataTtl {
        /// How old data may get, as "90s", "15m", "12h" or "30d".
        #[serde(deserialize_with = "crate::options::age::deserialize")]
        ttl: Duration,
    },
    /// Nothing is being written, so there is time (guo17 section VI, "aggressive compaction"): what stands above the last level goes down, level by
    /// level, until the last one holds everything that was flushed; an L0 of several runs goes down even if it is all there is; the memtable stays
    /// where it is. Value: seconds since the last
    /// write, `after` at most. Comes after everything else. A write is not timed; the store looks whether there was one when it decides anyway, and when it
    /// was to fire. So it fires between `after` and twice as long after the last write, and at once if somebody waits for rest
    /// ([`Db::wait_idle`](crate::Db::wait_idle)). With a granularity that merges runs within a level, these become fewer instead.
    Idle {
        /// For how long nothing was written, as "10s", "15m", "12h" or "30d".
        #[serde(deserialize_with = "crate::options::age::deserialize")]
        after: Duration,
        /// Only where the level's runs meet at most so many times their bytes in the next level; and then they go on at once, through the levels
        /// behind it, as long as all that they meet comes to no more (Pebble merges three levels in one where that writes less). Above 0; takes
        /// granularity `sorted-runs`. Default: whatever they meet, level by level.
        met_ratio: Option<f64>,
    },
    /// A guard holds many bytes. Value: the bytes of the largest one that a compaction can make smaller, divided by the cap of its level; as
    /// long as the level as a whole holds less, those of the level. From L1 on, with the layout `guarded` only.
    GuardBytes {
        /// The caps, in memtables, from L1 on; the last holds for all deeper levels. Default: PebblesDB's with 4 MiB memtables, 128, 256, 512,
        /// 512, 1024 and 2048 MiB.
        #[serde(default = "guard_memtables")]
        memtables: Vec<f64>,
    },
    /// A guard of several runs is read again and again, and nothing is written to it. Value: the reads since its newest file came, of the
    /// guard with the most, those of which a job takes files not counted; as long as no two files of the level have seen enough, the second
    /// most reads of a file. Comes after everything that is about sizes, but where rules go in order. From L1 on, with the layout
    /// `guarded` only.
    GuardReads {
        /// As many fire. Default 10, at least 1 (PebblesDB counts the seeks of the whole store).
        #[serde(default = "ten")]
        reads: u64,
    },
}

/// Of `total-size`.
const DEFAULT_MEMTABLES: f64 = 16.0;

const fn ten() -> u64 {
    10
}

fn guard_memtables() -> Vec<f64> {
    vec![32.0, 64.0, 128.0, 128.0, 256.0, 512.0]
}

const fn sixteen_kib() -> u64 {
    16 << 10
}

const fn hundred() -> u64 {
    100
}

const fn one() -> f64 {
    1.0
}

const fn half() -> f64 {
    0.5
}

const fn quarter() -> f64 {
    0.25
}

const fn two_hundred() -> u32 {
    200
}

const fn two() -> u32 {
    2
}

/// What a trigger measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measure {
    /// The value.
    pub value: f64,
    /// Where the trigger fires.
    pub threshold: f64,
}

impl Measure {
    /// Whether the trigger fires.
    pub fn fires(self) -> bool {
        self.value >= self.threshold
    }

    /// How urgent it is: at least 1 when it fires.
    pub fn score(self) -> f64 {
        self.value / self.threshold
    }
}

impl Trigger {
    /// The name in strategy files and records.
    pub fn name(&self) -> &'static str {
        match self {
            Trigger::LevelSaturation { .. } => "level-saturation",
            Trigger::SortedRuns { .. } => "sorted-runs",
            Trigger::SpaceAmplification { .. } => "space-amplification",
            Trigger::Periodic { .. } => "periodic",
            Trigger::TierAmplification { .. } => "tier-amplification",
            Trigger::TombstoneDensity { .. } => "tombstone-density",
            Trigger::FileStaleness { .. } => "file-staleness",
            Trigger::TombstoneTtl { .. } => "tombstone-ttl",
            Trigger::ReadAmplification { .. } => "read-amplification",
            Trigger::ReadCost { .. } => "read-cost",
            Trigger::TombstoneShare { .. } => "tombstone-share",
            Trigger::TotalSize { .. } => "total-size",
            Trigger::DataTtl { .. } => "data-ttl",
            Trigger::Idle { .. } => "idle",
            Trigger::GuardBytes { .. } => "guard-bytes",
            Trigger::GuardReads { .. } => "guard-reads",
        }
    }

    /// Whether it looks at the whole tree instead of one level.
    pub fn is_tree_wide(&self) -> bool {
        matches!(
            self,
            Trigger::SpaceAmplification { .. }
                | Trigger::Periodic { .. }
                | Trigger::TierAmplification { .. }
                | Trigger::TotalSize { .. }
                | Trigger::DataTtl { .. }
        )
    }

    /// Whether it is about data that may be lost.
    pub fn is_about_oldest(&self) -> bool {
        matches!(self, Trigger::TotalSize { .. } | Trigger::DataTtl { .. })
    }

    /// The bytes at which `total-size` fires; no limit for others.
    pub fn limit_bytes(&self, sizes: Sizes) -> u64 {
        match self {
            Trigger::TotalSize { bytes: Some(bytes), .. } => *bytes,
            Trigger::TotalSize { memtables, .. } => {
                whole(memtables.unwrap_or(DEFAULT_MEMTABLES) * to_f64(sizes.memtable_bytes)).max(1)
            }
            _ => u64::MAX,
        }
    }

    /// Whether single files make it fire, so that only those may be taken.
    pub fn wants_files(&self) -> bool {
        matches!(
            self,
            Trigger::TombstoneDensity { .. }
                | Trigger::FileStaleness { .. }
                | Trigger::TombstoneTtl { .. }
                | Trigger::ReadAmplification { .. }
        )
    }

    /// Whether it is about tombstones, so that a file may be rewritten where it is to be rid of them.
    pub fn wants_tombstones_gone(&self) -> bool {
        matches!(self, Trigger::TombstoneDensity { .. } | Trigger::TombstoneTtl { .. })
    }

    /// How urgent what it measured in a level is, for [`Priority::HighestScore`](super::strategy::Priority): the measure's score but for
    ///
    /// - dynamic level targets, where full levels are compared with what is about to come down to them counted in, times ten (RocksDB);
    /// - data that is dropped, which goes before all else;
    /// - tombstones that have expired, which go before all sizes, the shallowest level first;
    /// - reads (LevelDB, PebblesDB) and what deletes have left, which come after all sizes, and idleness, which comes after those.
    pub fn urgency(&self, shape: &Shape<'_>, level: LevelId, measure: Measure) -> f64 {
        match self {
            Trigger::LevelSaturation { files: None, .. } | Trigger::SortedRuns { .. } => {
                shape.targets.urgency(shape.view, level, measure.score())
            }
            // Dropping costs nothing, and what goes need not be merged.
            Trigger::TotalSize { .. } | Trigger::DataTtl { .. } => 1e12,
            Trigger::TombstoneTtl { .. } => 1e9 * f64::from(MAX_LEVELS - level.0.min(MAX_LEVELS - 1)),
            Trigger::ReadAmplification { .. }
            | Trigger::ReadCost { .. }
            | Trigger::TombstoneShare { .. }
            | Trigger::GuardReads { .. } => 1.0 - 1.0 / (1.0 + measure.score()),
            // The upper levels first: what comes down from them goes on with the rest.
            Trigger::Idle { .. } => -f64::from(level.0),
            _ => measure.score(),
        }
    }

    /// Measures a level; none where the trigger has nothing to measure.
    pub fn measure(&self, shape: &Shape<'_>, level: LevelId) -> Option<Measure> {
        let view = shape.view;
        match self {
            Trigger::LevelSaturation { full_at, files: None } => {
                let value = to_f64(shape.filled_bytes(level)) / shape.capacity_bytes(level);
                Some(Measure { value, threshold: *full_at })
            }
            Trigger::LevelSaturation { full_at, files: Some(files) } => {
                let idle = view.idle_files(level).count();
                let value = to_f64(to_u64(idle)) / f64::from(*files);
                (level.0 + 1 < MAX_LEVELS).then_some(Measure { value, threshold: *full_at })
            }
            Trigger::SortedRuns { runs } => {
                let staying = view.level(level).runs.iter().filter(|run| !view.is_consumed(level, run));
                let value = to_f64(to_u64(staying.count()));
                let threshold = f64::from(runs.unwrap_or_else(|| shape.run_limit(level)));
                // One run alone has nothing to be merged with.
                Some(Measure { value, threshold }).filter(|_| value >= 2.0)
            }
            Trigger::SpaceAmplification { percent, min_runs } => {
                let (_, oldest) = view.version.runs().last().filter(|_| view.runs() >= (*min_runs).max(2))?;
                let oldest = oldest.bytes();
                let others = view.version.bytes().saturating_sub(oldest);
                Some(Measure { value: 100.0 * to_f64(others) / to_f64(oldest.max(1)), threshold: f64::from(*percent) })
            }
            // About groups of runs; a strategy with the layout `runs` measures them itself.
            Trigger::Periodic { .. } | Trigger::TierAmplification { .. } => None,
            Trigger::GuardBytes { .. } | Trigger::GuardReads { .. } if !self.is_by_guard(shape, level) => None,
            Trigger::GuardReads { .. } if view.level(level).runs.len() < 2 => None,
            Trigger::GuardBytes { memtables } => {
                let level_value = to_f64(view.level(level).bytes()) / guard_cap(view, memtables, level);
                let value = if level_value < 1.0 { level_value } else { self.most_of_guards(shape, level)? };
                Some(Measure { value, threshold: 1.0 })
            }
            Trigger::GuardReads { reads } => {
                let second = second_most_reads(view, level);
                let value = if second < *reads { to_f64(second) } else { self.most_of_guards(shape, level)? };
                Some(Measure { value, threshold: to_f64(*reads) })
            }
            Trigger::TombstoneDensity { share, .. } => {
                let dense = self.wanted(shape, level).map(density).max_by(f64::total_cmp)?;
                Some(Measure { value: dense, threshold: *share })
            }
            Trigger::FileStaleness { age } => {
                let entered = self.wanted(shape, level).map(|file| file.entered_level_ms).min()?;
                let value = to_f64(view.now_ms.saturating_sub(entered)) / 1000.0;
                Some(Measure { value, threshold: age.as_secs_f64() })
            }
            Trigger::TombstoneTtl { ttl } => {
                let allowed_ms = allowed_age_ms(shape, *ttl, level);
                let oldest = self.wanted(shape, level).filter_map(|file| file.oldest_tombstone_ms).min()?;
                Some(Measure { value: to_f64(view.now_ms.saturating_sub(oldest)) / allowed_ms, threshold: 1.0 })
            }
            Trigger::ReadAmplification { .. } if view.is_unread() => None,
            Trigger::ReadAmplification { bytes_per_read, min_reads } => {
                let used = |file: &FileMeta| {
                    let budget = read_budget(file, *bytes_per_read, *min_reads);
                    to_f64(view.reads_of(file.id).empty_reads) / to_f64(budget)
                };
                let value = self.wanted(shape, level).map(used).max_by(f64::total_cmp)?;
                Some(Measure { value, threshold: 1.0 })
            }
            Trigger::ReadCost { share } => {
                let merge = Merging::of(shape, level)?;
                Some(Measure { value: to_f64(merge.paid), threshold: share * to_f64(merge.bytes) })
            }
            Trigger::TombstoneShare { share } => {
                let freeing = || view.levels().filter_map(|level| Some((freed_for_moved(shape, level)?, level)));
                let (_, best) = freeing().max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))?;
                let value = || tombstone_share(view, freeing().map(|(_, level)| level));
                (level == best).then(|| Measure { value: value(), threshold: *share })
            }
            Trigger::TotalSize { .. } => {
                let threshold = to_f64(self.limit_bytes(view.sizes));
                Some(Measure { value: to_f64(view.version.bytes()), threshold })
            }
            Trigger::DataTtl { ttl } => {
                let written = oldest::first(view)?.file.created_ms;
                let value = to_f64(view.now_ms.saturating_sub(written)) / 1000.0;
                Some(Measure { value, threshold: ttl.as_secs_f64() })
            }
            Trigger::Idle { after, met_ratio } => {
                let threshold = after.as_secs_f64();
                let value = (to_f64(view.idle_ms()) / 1000.0).min(threshold);
                // What it meets is looked up at rest alone, not at each decision of a store that is written to.
                let meets_little = |ratio| granularity::all_down(shape, level).meets_at_most(level, ratio);
                let is_worth = value < threshold || met_ratio.is_none_or(meets_little);
                (has_work_at_rest(view, level) && is_worth).then_some(Measure { value, threshold })
            }
        }
    }

    /// Whether it measures the guards of the level one by one.
    pub fn is_by_guard(&self, shape: &Shape<'_>, level: LevelId) -> bool {
        let by_guard =
            matches!(self, Trigger::SortedRuns { .. } | Trigger::GuardBytes { .. } | Trigger::GuardReads { .. });
        by_guard && level.0 > 0 && shape.guarded().is_some()
    }

    fn most_of_guards(&self, shape: &Shape<'_>, level: LevelId) -> Option<f64> {
        let guarded = shape.guarded()?;
        let columns = guards::columns(shape.view, guarded.mask(level), level);
        columns.iter().filter_map(|column| self.of_guard(shape, level, column)).max_by(f64::total_cmp)
    }

    /// What it measures in one guard of a level: where guards are not measured one by one, the guard's bytes. None if compacting the guard
    /// alone would not lower the value.
    pub fn of_guard(&self, shape: &Shape<'_>, level: LevelId, column: &Column<'_>) -> Option<f64> {
        let (view, guarded) = (shape.view, shape.guarded()?);
        let shrinks = || !guarded.is_in_place(view, level) || column.runs() > 1;
        match self {
            Trigger::SortedRuns { .. } => Some(f64::from(column.idle_runs(view))),
            Trigger::GuardBytes { memtables } => {
                shrinks().then(|| to_f64(column.bytes()) / guard_cap(view, memtables, level))
            }
            Trigger::GuardReads { .. } => {
                let idle = column.files().all(|file| !view.is_busy(file.id));
                (column.runs() > 1 && idle).then(|| to_f64(column.straight_reads(view)))
            }
            _ => shrinks().then(|| to_f64(column.bytes())),
        }
    }

    /// Whether time alone makes it fire.
    pub fn is_timed(&self) -> bool {
        matches!(
            self,
            Trigger::FileStaleness { .. }
                | Trigger::TombstoneTtl { .. }
                | Trigger::DataTtl { .. }
                | Trigger::Idle { .. }
        )
    }

    /// The next wall time, in milliseconds, at which time alone makes it fire in a level where it does not fire now.
    pub fn next_time_ms(&self, shape: &Shape<'_>, level: LevelId) -> Option<u64> {
        let view = shape.view;
        let files = || view.level(level).files();
        let times: Vec<u64> = match self {
            Trigger::FileStaleness { age } if level < view.last_level() => {
                let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
                files().map(|file| file.entered_level_ms.saturating_add(age_ms)).collect()
            }
            Trigger::TombstoneTtl { ttl } => {
                // A file expires when it is older than allowed, not as old.
                let allowed_ms = whole(allowed_age_ms(shape, *ttl, level)).saturating_add(1);
                files().filter_map(|file| Some(file.oldest_tombstone_ms?.saturating_add(allowed_ms))).collect()
            }
            Trigger::DataTtl { ttl } if level == view.last_level() => oldest::first(view)
                .map(|aged| aged.file.created_ms.saturating_add(oldest::to_ms(*ttl)))
                .into_iter()
                .collect(),
            Trigger::Idle { after, .. } if has_work_at_rest(view, level) => {
                let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                view.last_write_ms.map(|ms| ms.saturating_add(after_ms)).into_iter().collect()
            }
            _ => Vec::new(),
        };
        times.into_iter().filter(|ms| *ms > view.now_ms).min()
    }

    /// How much more reads must pay for each run of a level until it fires where it does not fire now.
    pub fn next_read_work(&self, shape: &Shape<'_>, level: LevelId) -> Option<u64> {
        let Trigger::ReadCost { share } = self else { return None };
        let merge = Merging::of(shape, level)?;
        let left = share * to_f64(merge.bytes) - to_f64(merge.paid);
        (left > 0.0).then(|| whole(left / to_f64(merge.spared)).saturating_add(1))
    }

    fn wanted<'a>(&'a self, shape: &'a Shape<'a>, level: LevelId) -> impl Iterator<Item = &'a FileMeta> {
        let runs = shape.view.level(level).runs.iter();
        runs.flat_map(move |run| {
            let place = Place { level, run: run.order };
            run.files.iter().map(|file| &**file).filter(move |file| self.wants(shape, place, file))
        })
    }

    /// Whether a compaction for this trigger may take the file. True of all files where the level as a whole fires.
    pub fn wants(&self, shape: &Shape<'_>, place: Place, file: &FileMeta) -> bool {
        let view = shape.view;
        match self {
            Trigger::TombstoneDensity { share, min_age } => {
                density(file) >= *share
                    && !view.is_busy(file.id)
                    && u128::from(view.now_ms.saturating_sub(file.created_ms)) >= min_age.as_millis()
                    && frees_something(shape, place, file)
            }
            Trigger::TombstoneTtl { ttl } => {
                let age = file.oldest_tombstone_ms.map_or(0, |oldest| view.now_ms.saturating_sub(oldest));
                file.tombstones > 0
                    && to_f64(age) > allowed_age_ms(shape, *ttl, place.level)
                    && !view.is_busy(file.id)
                    && frees_something(shape, place, file)
            }
            Trigger::ReadAmplification { bytes_per_read, min_reads } => {
                place.level < view.last_level()
                    && view.reads_of(file.id).empty_reads >= read_budget(file, *bytes_per_read, *min_reads)
                    && !view.is_busy(file.id)
            }
            Trigger::FileStaleness { age } => {
                let stay = u128::from(view.now_ms.saturating_sub(file.entered_level_ms));
                place.level < view.last_level() && stay >= age.as_millis() && !view.is_busy(file.id)
            }
            _ => true,
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn whole(ms: f64) -> u64 {
    ms as u64
}

/// A merge of all runs of a level that running jobs do not take away.
struct Merging {
    /// What it takes through: the runs, and what they overlap in the next level if that is leveled.
    bytes: u64,
    /// How many runs fewer there are afterwards.
    spared: u64,
    /// What reads have paid for as many runs of the level.
    paid: u64,
}

impl Merging {
    /// None if there would be as many runs as before.
    fn of(shape: &Shape<'_>, level: LevelId) -> Option<Merging> {
        let view = shape.view;
        let idle = || view.level(level).runs.iter().filter(|run| !view.is_consumed(level, run));
        let runs = to_u64(idle().count());
        let next = shape.next_level(level);
        let met = view.newest_run(next).filter(|_| shape.is_leveled(next));
        let spared = runs.checked_sub(u64::from(met.is_none())).filter(|spared| *spared > 0)?;
        let first = idle().filter_map(|run| run.files.first()).map(|file| &file.smallest).min()?;
        let last = idle().filter_map(|run| run.files.last()).map(|file| &file.largest).max()?;
        let met_bytes: u64 = met.map_or(0, |run| run.overlapping(first, last).iter().map(|file| file.bytes).sum());
        let work = |run: &Run| view.read_work?.get(&Place { level, run: run.order }).copied();
        let paid = idle().filter_map(work).fold(0, u64::saturating_add);
        Some(Merging {
            bytes: (idle().map(Run::bytes).sum::<u64>() + met_bytes).max(1),
            spared,
            paid: paid / runs * spared,
        })
    }
}

/// Whether a level stands above the last one, or is an L0 of several runs with nothing below it.
fn has_work_at_rest(view: &LsmView<'_>, level: LevelId) -> bool {
    level < view.last_level() || (level.0 == 0 && view.level(level).runs.len() > 1)
}

/// The tombstones of some levels for each entry of the tree that is none.
fn tombstone_share(view: &LsmView<'_>, levels: impl Iterator<Item = LevelId>) -> f64 {
    let tombstones = |run: &Run| run.files.tombstones();
    let some: u64 = levels.flat_map(|level| &view.level(level).runs).map(tombstones).sum();
    let others = view.version.runs().map(|(_, run)| run.files.entries().saturating_sub(tombstones(run))).sum::<u64>();
    to_f64(some) / to_f64(others.max(1))
}

/// Bytes that the tombstones of a level free in the next one that holds anything, for each byte that a merge of the two moves. None where they
/// free nothing.
fn freed_for_moved(shape: &Shape<'_>, level: LevelId) -> Option<f64> {
    let view = shape.view;
    let below = || view.levels().filter(|below| *below > level);
    let idle = || view.level(level).runs.iter().filter(|run| !view.is_consumed(level, run));
    let tombstones: u64 = idle().map(|run| run.files.tombstones()).sum();
    let met = below().find_map(|next| Some((next, view.newest_run(next)?)));
    let (_, met) = met.filter(|(next, _)| shape.is_leveled(*next) && tombstones > 0)?;
    let is_visible = |file: &Arc<FileMeta>| view.visible_to_all_snapshots(file);
    if view.oldest_snapshot.is_some() && !idle().flat_map(|run| &run.files).all(is_visible) {
        return None;
    }
    let older: u64 = below().flat_map(|below| &view.level(below).runs).map(|run| run.files.entries()).sum();
    // Each frees one entry at most.
    let share_of_older = (to_f64(tombstones) / to_f64(older.max(1))).min(1.0);
    let moved = idle().map(Run::bytes).sum::<u64>() + met.bytes();
    Some(share_of_older * to_f64(met.bytes()) / to_f64(moved.max(1)))
}

/// Bytes that a guard of `level`, not L0, may hold.
fn guard_cap(view: &LsmView<'_>, memtables: &[f64], level: LevelId) -> f64 {
    let memtables = memtables.get(level.index().saturating_sub(1)).or(memtables.last()).copied();
    memtables.map_or(f64::INFINITY, |memtables| memtables * to_f64(view.sizes.memtable_bytes.max(1)))
}

/// The second most reads of a file of the level: no guard with several files can have seen more since the last one came.
fn second_most_reads(view: &LsmView<'_>, level: LevelId) -> u64 {
    let (mut most, mut second) = (0, 0);
    for reads in view.level(level).files().map(|file| view.reads_of(file.id).reads) {
        if reads > most {
            (most, second) = (reads, most);
        } else {
            second = second.max(reads);
        }
    }
    second
}

/// Tombstones per entry.
pub fn density(file: &FileMeta) -> f64 {
    to_f64(file.tombstones) / to_f64(file.entries.max(1))
}

/// How old a tombstone may be in `level`, in milliseconds. With n levels above the last one and ratio T, level j has the share
/// `ttl T^j (T - 1) / (T^n - 1)`, so the shares down to level i come to `ttl (T^(i+1) - 1) / (T^n - 1)`, and all of them to `ttl`.
pub fn allowed_age_ms(shape: &Shape<'_>, ttl: Duration, level: LevelId) -> f64 {
    let ttl_ms = ttl.as_secs_f64() * 1000.0;
    let above_last = shape.view.last_level().0;
    if level.0 + 1 >= above_last {
        return ttl_ms;
    }
    let power = |levels: u8| f64::from(shape.ratio).powi(i32::from(levels)) - 1.0;
    ttl_ms * power(level.0 + 1) / power(above_last)
}

/// How many lookups may ask a file in vain.
fn read_budget(file: &FileMeta, bytes_per_read: u64, min_reads: u64) -> u64 {
    (file.bytes / bytes_per_read.max(1)).max(min_reads).max(1)
}

/// Whether compacting `file` for its tombstones gets it nearer to being rid of them.
fn frees_something(shape: &Shape<'_>, place: Place, file: &FileMeta) -> bool {
    match rewrites_in_place(shape, place, file) {
        true => shape.view.visible_to_all_snapshots(file),
        // Whole runs stay in their level.
        false => place.level < shape.view.last_level() && !matches!(shape.layout, Layout::Runs { .. }),
    }
}

/// Whether the tombstones of `file` can be dropped by rewriting it where it is: nothing older is below.
pub(super) fn rewrites_in_place(shape: &Shape<'_>, place: Place, file: &FileMeta) -> bool {
    file.tombstones > 0 && hides_nothing(shape.view, place, file, &BTreeSet::new())
}

//! Which runs count as one level. Triggers measure groups, and a rule's picker chooses among the runs of one.
//!
//! Groups have numbers as levels have: `priority` compares them, and `levels` in a rule names them. Layouts other than `runs` group by
//! physical level.

use std::time::Duration;

use serde::Deserialize;

use super::RunFact;
use crate::num::{to_f64, to_u64, to_usize};

/// Which runs count as one level.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Grouping {
    /// All runs of the tree, newest to oldest, in one group (RocksDB universal, HBase, AsterixDB).
    TimeOrder {},
    /// Runs of like size, wherever they stand: in ascending order of size, a run joins a bucket while its size is within `low` and `high`
    /// times the bucket's average so far; all runs below `min_bytes` share one bucket. Group 0 has the smallest. Only idle runs count.
    /// Source: Cassandra's STCS; ScyllaDB's ICS with other factors.
    SizeBuckets {
        /// At least this much of the average. Default 0.5.
        #[serde(default = "half")]
        low: f64,
        /// At most this much of the average. Default 1.5.
        #[serde(default = "one_and_a_half")]
        high: f64,
        /// Bytes. Default 52428800 (50 MiB).
        #[serde(default = "fifty_mib")]
        min_bytes: u64,
    },
    /// Runs whose newest data was flushed in the same window of time. Group 0 is the newest window that holds data. Only idle runs count.
    /// Source: Cassandra's TWCS.
    TimeWindows {
        /// The length of a window, as "90s", "15m", "12h" or "30d". Default "1d".
        #[serde(default = "day", deserialize_with = "crate::options::age::deserialize")]
        window: Duration,
    },
    /// Neighbours in age of one generation. WiredTiger counts how often data was merged; here the size tells: generation n holds runs of
    /// less than `ratio`^(n+1) memtables. Group 0 is the newest.
    Generations {
        /// How many chunks of a generation one merge makes into one of the next. Default 7.
        #[serde(default = "seven")]
        ratio: u32,
        /// Larger runs, in memtables, are not merged any more. Default 512.
        #[serde(default = "five_hundred_twelve")]
        max_memtables: u32,
    },
    /// Levels by density, the bytes of a run per share of the tree's key range that it covers, and in each level the sets of runs that overlap,
    /// directly or through others. Level n ends at the memtable's size times the fan-outs of levels 0 to n. Only idle runs count.
    ///
    /// A set counts as many runs as overlap at one key. A scaling parameter w sets a level's fan-out and how many runs make it due: 2 + w and as many for w >= 0 (tiered); 2 - w and two
    /// runs for w < 0 (leveled). Source: Cassandra's UCS.
    Density {
        /// The scaling parameters, level 0 first; the last holds for all deeper levels. From -1000 to 1000.
        w: Vec<i32>,
    },
}

const fn half() -> f64 {
    0.5
}

const fn one_and_a_half() -> f64 {
    1.5
}

const fn fifty_mib() -> u64 {
    50 << 20
}

const fn day() -> Duration {
    Duration::from_secs(86_400)
}

const fn seven() -> u32 {
    7
}

const fn five_hundred_twelve() -> u32 {
    512
}

/// Runs that count as one level.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its number.
    pub number: u8,
    /// Positions among all runs of the tree, ascending: newest first.
    pub runs: Vec<usize>,
    /// How many runs make it due, if the grouping says it.
    pub due: Option<u32>,
    /// How many runs count for that, if not all: those that overlap at one key.
    pub overlapping: Option<usize>,
}

impl Grouping {
    /// The groups of a tree, by number. `facts` are all its runs, newest first.
    pub fn groups(&self, facts: &[RunFact<'_>], memtable_bytes: u64) -> Vec<Group> {
        let memtable_bytes = memtable_bytes.max(1);
        let lists = match self {
            Grouping::TimeOrder {} => vec![(0..facts.len()).collect()],
            Grouping::SizeBuckets { low, high, min_bytes } => size_buckets(facts, *low, *high, *min_bytes),
            Grouping::TimeWindows { window } => time_windows(facts, *window),
            Grouping::Generations { ratio, max_memtables } => {
                generations(facts, *ratio, u64::from(*max_memtables).saturating_mul(memtable_bytes), memtable_bytes)
            }
            Grouping::Density { w } => return overlap_sets(facts, w, memtable_bytes),
        };
        let numbered = (0..).zip(lists).filter(|(_, runs): &(usize, Vec<usize>)| !runs.is_empty());
        numbered.map(|(n, runs)| Group { number: number(n), runs, due: None, overlapping: None }).collect()
    }

    /// The most runs that make some group due, if the grouping says it.
    pub fn most_due(&self) -> Option<u32> {
        match self {
            Grouping::Density { w } => w.iter().map(|w| fan_out(*w).1).max(),
            _ => None,
        }
    }

    /// How much larger the runs of a group are than those of the next smaller one, at least, if the grouping says it.
    pub fn step(&self) -> Option<u32> {
        match self {
            // From the average of a full bucket to the first run that the bucket does not take.
            Grouping::SizeBuckets { .. } | Grouping::TimeWindows { .. } => Some(2),
            _ => None,
        }
    }

    /// Runs that the rules leave alone for good, so that they do not count as too many: one for each closed window, and those that are too
    /// large.
    pub fn settled_runs(&self, facts: &[RunFact<'_>], memtable_bytes: u64) -> usize {
        match self {
            Grouping::TimeOrder {} | Grouping::SizeBuckets { .. } | Grouping::Density { .. } => 0,
            Grouping::TimeWindows { window } => {
                let mut windows: Vec<u128> = facts.iter().map(|fact| window_of(fact, *window)).collect();
                windows.sort_unstable();
                windows.dedup();
                windows.len().saturating_sub(1)
            }
            Grouping::Generations { max_memtables, .. } => {
                let max_bytes = u64::from(*max_memtables).saturating_mul(memtable_bytes.max(1));
                facts.iter().filter(|fact| fact.bytes > max_bytes).count()
            }
        }
    }
}

/// Levels are compared as one byte; what lies beyond is the same to `priority`.
fn number(n: usize) -> u8 {
    u8::try_from(n).unwrap_or(u8::MAX - 1)
}

pub(super) fn size_buckets(facts: &[RunFact<'_>], low: f64, high: f64, min_bytes: u64) -> Vec<Vec<usize>> {
    let mut by_size: Vec<usize> = (0..facts.len()).filter(|at| facts[*at].idle).collect();
    by_size.sort_by_key(|at| facts[*at].bytes);
    let mut buckets: Vec<(u64, Vec<usize>)> = Vec::new();
    for at in by_size {
        let bytes = facts[at].bytes;
        // Sizes ascend: what the last bucket does not take, no earlier one does.
        let fits = |average: u64| {
            let (size, average_bytes) = (to_f64(bytes), to_f64(average));
            (size > low * average_bytes && size < high * average_bytes) || (bytes < min_bytes && average < min_bytes)
        };
        match buckets.last_mut().filter(|(average, _)| fits(*average)) {
            Some((average, runs)) => {
                let count = u128::from(to_u64(runs.len()));
                let total = u128::from(*average) * count + u128::from(bytes);
                *average = u64::try_from(total / (count + 1)).unwrap_or(u64::MAX);
                runs.push(at);
            }
            None => buckets.push((bytes, vec![at])),
        }
    }
    let sorted = |(_, mut runs): (u64, Vec<usize>)| {
        runs.sort_unstable();
        runs
    };
    buckets.into_iter().map(sorted).collect()
}

fn window_of(fact: &RunFact<'_>, window: Duration) -> u128 {
    u128::from(fact.entered_ms) / window.as_millis().max(1)
}

fn time_windows(facts: &[RunFact<'_>], window: Duration) -> Vec<Vec<usize>> {
    let mut windows: std::collections::BTreeMap<u128, Vec<usize>> = std::collections::BTreeMap::new();
    for (at, fact) in facts.iter().enumerate() {
        let runs = windows.entry(window_of(fact, window)).or_default();
        if fact.idle {
            runs.push(at);
        }
    }
    // A window whose runs are all busy keeps its number.
    windows.into_values().rev().collect()
}

/// The generation of a run of `bytes`; none of one that is too large to be merged.
fn generation(bytes: u64, ratio: u32, max_bytes: u64, memtable_bytes: u64) -> Option<u32> {
    let mut generation = 0;
    let mut end = u128::from(memtable_bytes) * u128::from(ratio.max(2));
    while u128::from(bytes) >= end {
        end *= u128::from(ratio.max(2));
        generation += 1;
    }
    (bytes <= max_bytes).then_some(generation)
}

fn generations(facts: &[RunFact<'_>], ratio: u32, max_bytes: u64, memtable_bytes: u64) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut before = None;
    for (at, fact) in facts.iter().enumerate() {
        let now = generation(fact.bytes, ratio, max_bytes, memtable_bytes).filter(|_| fact.idle);
        match groups.last_mut() {
            Some(group) if now.is_some() && now == before => group.push(at),
            _ if now.is_some() => groups.push(vec![at]),
            _ => {}
        }
        before = now;
    }
    groups
}

/// Fan-out, and how many overlapping runs make a level due.
fn fan_out(w: i32) -> (u32, u32) {
    match u32::try_from(w) {
        Ok(w) => (w + 2, w + 2),
        Err(_) => (w.unsigned_abs() + 2, 2),
    }
}

/// The density level of each run.
pub(super) fn density_level(fact: &RunFact<'_>, w: &[i32], memtable_bytes: u64) -> usize {
    let density = to_f64(fact.bytes) / fact.key_share;
    let mut end = to_f64(memtable_bytes);
    let mut level = 0;
    loop {
        let w = w.get(level).or(w.last()).copied().unwrap_or(2);
        end *= f64::from(fan_out(w).0);
        if density < end || level >= to_usize(250) {
            return level;
        }
        level += 1;
    }
}

fn overlap_sets(facts: &[RunFact<'_>], w: &[i32], memtable_bytes: u64) -> Vec<Group> {
    let mut levels: Vec<Vec<usize>> = Vec::new();
    for (at, fact) in facts.iter().enumerate().filter(|(_, fact)| fact.idle) {
        let level = density_level(fact, w, memtable_bytes);
        levels.resize(levels.len().max(level + 1), Vec::new());
        levels[level].push(at);
    }
    let mut groups = Vec::new();
    for (level, mut runs) in levels.into_iter().enumerate() {
        let due = Some(fan_out(w.get(level).or(w.last()).copied().unwrap_or(2)).1);
        // By first key, a run belongs to the set before it as long as it begins before that one's end.
        runs.sort_by(|a, b| facts[*a].first.cmp(facts[*b].first).then(a.cmp(b)));
        let mut end: Option<&[u8]> = None;
        for at in runs {
            match (end, groups.last_mut()) {
                (Some(last), Some(Group { runs, .. })) if facts[at].first <= last => runs.push(at),
                _ => groups.push(Group { number: number(level), runs: vec![at], due, overlapping: None }),
            }
            end = Some(end.map_or(facts[at].last, |last| last.max(facts[at].last)));
        }
    }
    for group in &mut groups {
        group.runs.sort_unstable();
        // As many as anywhere overlap where some run begins.
        let at_start = |at: &usize| {
            let key = facts[*at].first;
            group.runs.iter().filter(|other| facts[**other].first <= key && key <= facts[**other].last).count()
        };
        group.overlapping = group.runs.iter().map(at_start).max();
    }
    groups
}

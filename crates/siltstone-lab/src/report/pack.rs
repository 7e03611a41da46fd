//! The history of a tree in little room.
//!
//! - A file is one row of numbers, from the change with which it came (`born`) to the one with which it went (`died`): the tree after any
//!   change is found by one pass over the rows, with nothing to be played back.
//! - Keys become positions: the rank of a boundary among all boundaries, on at most [`POSITIONS`] places. What did not overlap does not
//!   overlap on the page; two keys may share a place where there are more keys than a picture has points.
//! - What grows is written as differences, a column each, texts once.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Serialize;

use super::decisions::{Compaction, PackedDecisions};
use super::joined::{Joined, join};
use crate::num::{count, float, floor, index};
use crate::recorder::AddedFile;

/// Places on the axis of keys, at most.
const POSITIONS: u64 = 10_000;
/// Keys that are written out, at most.
const LABELS: usize = 400;

/// A change of a tree.
pub(super) struct Change {
    pub(super) at_s: f64,
    pub(super) removed: Vec<u64>,
    pub(super) added: Vec<AddedFile>,
    pub(super) cause: Option<u64>,
}

/// One keyspace's tree over time.
#[derive(Serialize)]
pub(super) struct PackedTree {
    keyspace: String,
    /// Microseconds of each change since the one before.
    at: Vec<i64>,
    /// The compaction that did it, counted from 1 in the list of compactions; 0 if none is known.
    by: Vec<usize>,
    files: Files,
    /// How many places the axis of keys has.
    positions: u64,
    /// A place and the key there in hex.
    keys: Vec<(u64, String)>,
    compactions: PackedDecisions,
    /// How many changes of the tree are one here, at most.
    joined: usize,
    /// Flushes and compactions that are not among `compactions`.
    left_out: usize,
}

/// Columns; see [`PackedTree`]. `id`, `run`, `low` and `born` are differences to the row before, `high` to `low`.
#[derive(Default, Serialize)]
struct Files {
    id: Vec<i64>,
    level: Vec<u8>,
    run: Vec<i64>,
    bytes: Vec<u64>,
    entries: Vec<u64>,
    tombstones: Vec<u64>,
    low: Vec<i64>,
    high: Vec<i64>,
    born: Vec<i64>,
    /// How many changes it lived; 0 if it is there in the end.
    lived: Vec<usize>,
}

impl PackedTree {
    /// With up to `at_once` changes taken as one.
    ///
    /// # Errors
    /// If a change takes out what is not there: says which.
    pub(super) fn new(
        keyspace: &str,
        changes: &[Change],
        compactions: &[Compaction],
        candidates: usize,
        at_once: usize,
    ) -> anyhow::Result<PackedTree> {
        check(changes)?;
        let by = causes(changes, compactions);
        let (changes, compactions, left_out) = join(changes, &by, compactions, at_once);
        let places = Places::new(&changes);
        let mut alive: HashMap<u64, usize> = HashMap::new();
        let mut files: Vec<(&AddedFile, usize, usize)> = Vec::new();
        for (n, change) in changes.iter().enumerate() {
            for file in change.removed.iter().filter_map(|id| alive.remove(id)) {
                files[file].2 = n - files[file].1;
            }
            for file in &change.added {
                alive.insert(file.id, files.len());
                files.push((file, n, 0));
            }
        }
        let mut columns = Files::default();
        let mut last = [Delta(0); 4];
        for (file, born, lived) in files {
            let (low, high) = (places.of(&file.smallest), places.of(&file.largest));
            columns.id.push(last[0].to(file.id));
            columns.level.push(file.level);
            columns.run.push(last[1].to(file.run));
            columns.bytes.push(file.bytes);
            columns.entries.push(file.entries);
            columns.tombstones.push(file.tombstones);
            columns.low.push(last[2].to(low));
            columns.high.push(Delta(signed(low)).to(high));
            columns.born.push(last[3].to(count(born)));
            columns.lived.push(lived);
        }
        let mut time = Delta(0);
        let at = changes.iter().map(|change| time.to(micros(change.at_s))).collect();
        Ok(PackedTree {
            keyspace: keyspace.to_owned(),
            at,
            by: changes.iter().map(|change| change.by.map_or(0, |n| n + 1)).collect(),
            files: columns,
            positions: places.positions,
            keys: places.labels(),
            compactions: PackedDecisions::new(&compactions, candidates),
            joined: at_once,
            left_out,
        })
    }
}

impl PackedTree {
    /// Flushes and compactions that are not on the page.
    pub(super) fn left_out(&self) -> usize {
        self.left_out
    }
}

/// Finds a change that no tree can have made.
fn check(changes: &[Change]) -> anyhow::Result<()> {
    let mut alive = HashSet::new();
    for (n, change) in (1..).zip(changes) {
        for id in &change.removed {
            anyhow::ensure!(alive.remove(id), "change {n} takes out file {id}, which is not there");
        }
        for AddedFile { id, .. } in &change.added {
            anyhow::ensure!(alive.insert(*id), "change {n} adds file {id}, which is there");
        }
    }
    Ok(())
}

/// The compaction that did each change. A flush bears no job: it is known by the size of what it wrote.
fn causes(changes: &[Change], compactions: &[Compaction]) -> Vec<Option<usize>> {
    let jobs: BTreeMap<u64, usize> =
        compactions.iter().enumerate().filter_map(|(n, compaction)| Some((compaction.job()?, n))).collect();
    let mut flushes = compactions.iter().enumerate().filter(|(_, compaction)| compaction.is_flush()).peekable();
    let of = |change: &Change| match change.cause {
        Some(job) => jobs.get(&job).copied(),
        None => {
            let first = change.added.first()?;
            flushes.next_if(|(_, flush)| flush.bytes_written == first.bytes).map(|(n, _)| n)
        }
    };
    changes.iter().map(of).collect()
}

/// Where keys are on the axis.
struct Places<'a> {
    keys: Vec<&'a str>,
    positions: u64,
}

impl<'a> Places<'a> {
    fn new(changes: &[Joined<'a>]) -> Places<'a> {
        let files = changes.iter().flat_map(|change| &change.added);
        // Hex of keys sorts as the keys do.
        let keys: BTreeSet<&str> = files.flat_map(|file| [&file.smallest[..], &file.largest]).collect();
        let keys: Vec<&str> = keys.into_iter().collect();
        Places { positions: count(keys.len()).clamp(2, POSITIONS), keys }
    }

    fn place(&self, rank: usize) -> u64 {
        let last = count(self.keys.len().saturating_sub(1)).max(1);
        floor(float(count(rank)) * float(self.positions - 1) / float(last))
    }

    fn of(&self, key: &str) -> u64 {
        self.place(self.keys.partition_point(|other| *other < key))
    }

    /// Some of the keys, evenly.
    fn labels(&self) -> Vec<(u64, String)> {
        let step = self.keys.len().div_ceil(LABELS).max(1);
        self.keys.iter().enumerate().step_by(step).map(|(n, key)| (self.place(n), (*key).to_owned())).collect()
    }
}

/// Makes differences of what grows.
#[derive(Clone, Copy)]
pub(super) struct Delta(pub(super) i64);

impl Delta {
    pub(super) fn to(&mut self, next: u64) -> i64 {
        let next = signed(next);
        std::mem::replace(&mut self.0, next).wrapping_sub(next).wrapping_neg()
    }
}

/// Numbers here are ids, places and times: far below where it would wrap.
fn signed(n: u64) -> i64 {
    n.cast_signed()
}

pub(super) fn micros(seconds: f64) -> u64 {
    floor((seconds * 1e6).round())
}

/// Four significant digits: what a page shows, and no more.
pub(super) fn short(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let digits = 3.0 - x.abs().log10().floor();
    let power = 10f64.powf(digits.clamp(-300.0, 300.0));
    let rounded = (x * power).round() / power;
    // Dividing may leave a tail of digits behind.
    format!("{rounded:.3e}").parse().unwrap_or(rounded)
}

/// How many candidates each decision may keep, so that the page stays small: `total` decisions are on it.
pub(super) fn candidates_kept(total: usize) -> usize {
    index(60_000 / count(total.max(1))).clamp(2, 16)
}

//! The shape of a keyspace's tree at one moment, how it changes, and how both are kept on disk.
//!
//! A [`Version`] is immutable and shared by `Arc`; a [`VersionEdit`] says how to get from one to the next. The
//! [`Manifest`] keeps the edits, the [`superblock`] says which manifest counts and how much of it.
//!
//! ```text
//! Outcome of a job -> VersionEdit -> Manifest::commit (durable) -> new Version published
//! ```
//!
//! [`Version::check`] holds every law of the tree that metadata alone can show; [`text`] draws trees for tests and people.

mod codec;
pub mod edit;
mod files;
pub mod manifest;
pub mod meta;
mod state;
pub mod superblock;
pub mod text;

pub use edit::{Removed, VersionEdit};
pub use files::Files;
pub use manifest::{Manifest, ManifestOptions};
pub use meta::{FileMeta, KeyspaceId, Level, LevelId, ReadCounters, Run, RunOrder, SstId, Whole};
pub use state::{KeyspaceState, MAX_KEYSPACE_NAME_BYTES, ManifestEdit, StoreState};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::Result;

/// Whether whole-structure checks run: in debug builds and in the simulation's. The cheap ones always run.
pub const INVARIANTS: bool = cfg!(debug_assertions);

/// The levels of a keyspace at one moment.
///
/// Kept in one canonical form, so that equal trees are equal values: no empty run, no empty level at the end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Version {
    /// L0 first.
    pub levels: Vec<Level>,
}

impl Version {
    /// A tree without files.
    pub fn empty() -> Version {
        Version::default()
    }

    /// The level, if the tree reaches that deep.
    pub fn level(&self, level: LevelId) -> Option<&Level> {
        self.levels.get(level.index())
    }

    /// Every run with its level, newest first within a level, L0 first: the order in which a reader asks them.
    pub fn runs(&self) -> impl DoubleEndedIterator<Item = (LevelId, &Run)> {
        (0..=u8::MAX).zip(&self.levels).flat_map(|(n, level)| level.runs.iter().map(move |run| (LevelId(n), run)))
    }

    /// Every file with its level and run, in the order of [`runs`](Self::runs), then by key.
    pub fn files(&self) -> impl Iterator<Item = (LevelId, RunOrder, &Arc<FileMeta>)> {
        self.runs().flat_map(|(level, run)| run.files.iter().map(move |file| (level, run.order, file)))
    }

    /// Where file `id` is.
    pub fn find(&self, id: SstId) -> Option<(LevelId, RunOrder, &Arc<FileMeta>)> {
        self.files().find(|(_, _, file)| file.id == id)
    }

    /// Size of all files in bytes, compaction buffers not counted.
    pub fn bytes(&self) -> u64 {
        self.levels.iter().map(Level::bytes).sum()
    }

    /// The files that are slices of a table, in the order of [`files`](Self::files). Costs a look at every run where none is.
    fn slices(&self) -> impl Iterator<Item = (LevelId, &Arc<FileMeta>)> {
        let runs = self.runs().filter(|(_, run)| run.files.has_slices());
        let files = runs.flat_map(|(level, run)| run.files.iter().map(move |file| (level, file)));
        files.filter(|(_, file)| file.whole.is_some())
    }

    /// Bytes of tables that no file has, about, by level. A table with slices on several levels counts where the newest of them is.
    pub fn dead_bytes(&self) -> Vec<u64> {
        let mut tables: BTreeMap<SstId, (LevelId, u64, u64)> = BTreeMap::new();
        for (level, file) in self.slices() {
            let (_, _, alive) = tables.entry(file.table()).or_insert((level, file.table_bytes(), 0));
            *alive += file.bytes;
        }
        let mut dead = vec![0; self.levels.len()];
        for (level, bytes, alive) in tables.into_values() {
            dead[level.index()] += bytes.saturating_sub(alive);
        }
        dead
    }

    /// The tables of which files are slices, with the bytes of each that files have, about; nearly always none.
    pub fn sliced(&self) -> BTreeMap<SstId, u64> {
        let mut tables = BTreeMap::new();
        for (_, file) in self.slices() {
            *tables.entry(file.table()).or_insert(0) += file.bytes;
        }
        tables
    }

    /// How many sorted runs a point lookup may have to ask.
    pub fn run_count(&self) -> usize {
        self.levels.iter().map(|level| level.runs.len()).sum()
    }

    /// The tree after `edit`; this one stays as it is.
    ///
    /// # Errors
    /// `InvalidArgument` if the edit removes a file that is not where it says, or leads to a tree that breaks a law. The
    /// manifest's reader turns that into `Corruption`.
    pub fn apply(&self, edit: &VersionEdit) -> Result<Version> {
        edit::apply(self, edit)
    }

    /// Checks every law of the tree that metadata can show:
    ///
    /// - no empty run, no empty level at the end; run orders strictly descend within a level;
    /// - files of a run ascend and share no user key;
    /// - of each file: smallest key <= largest, smallest sequence number <= largest, it has entries and bytes, no more
    ///   tombstones than entries, and an oldest tombstone only if there is one;
    /// - a slice lies inside its table and is smaller; slices of one table say the same of it and share no key, and no file is all of it;
    /// - no file is in the tree twice.
    ///
    /// That a newer run holds the newer version of each key cannot be seen here: runs of equal age ranges may interleave
    /// legally. The compaction-equivalence check of the simulation covers it.
    ///
    /// # Errors
    /// The law that is broken, and where.
    pub fn check(&self) -> std::result::Result<(), String> {
        let mut ids = BTreeSet::new();
        for (n, level) in self.levels.iter().enumerate() {
            for runs in [&level.runs, &level.buffer] {
                check_runs(runs).map_err(|law| format!("L{n}: {law}"))?;
                for file in runs.iter().flat_map(|run| &run.files) {
                    if !ids.insert(file.id) {
                        return Err(format!("L{n}: file {} is in the tree twice", file.id.0));
                    }
                }
            }
        }
        self.check_tables()?;
        match self.levels.last() {
            Some(level) if level.runs.is_empty() && level.buffer.is_empty() => {
                Err(format!("L{} is empty and the last", self.levels.len() - 1))
            }
            _ => Ok(()),
        }
    }
}

impl Version {
    fn check_tables(&self) -> std::result::Result<(), String> {
        let mut slices: BTreeMap<SstId, Vec<&FileMeta>> = BTreeMap::new();
        for (_, file) in self.slices() {
            slices.entry(file.table()).or_default().push(file);
        }
        if slices.is_empty() {
            return Ok(());
        }
        for (table, files) in &mut slices {
            files.sort_by(|a, b| a.smallest.cmp(&b.smallest));
            for pair in files.windows(2) {
                if pair[0].whole != pair[1].whole || pair[0].largest >= pair[1].smallest {
                    let (a, b) = (pair[0].id.0, pair[1].id.0);
                    return Err(format!("files {a} and {b} are slices of table {} and do not agree on it", table.0));
                }
            }
        }
        match self.files().find(|(_, _, file)| file.whole.is_none() && slices.contains_key(&file.id)) {
            Some((_, _, file)) => Err(format!("file {} is all of a table that has slices", file.id.0)),
            None => Ok(()),
        }
    }
}

fn check_runs(runs: &[Run]) -> std::result::Result<(), String> {
    for pair in runs.windows(2) {
        if pair[0].order <= pair[1].order {
            return Err(format!("run {} stands before run {}", pair[0].order.0, pair[1].order.0));
        }
    }
    runs.iter().try_for_each(|run| check_run(run).map_err(|law| format!("run {}: {law}", run.order.0)))
}

/// The laws of one run.
pub(crate) fn check_run(run: &Run) -> std::result::Result<(), String> {
    if run.files.is_empty() {
        return Err("has no file".to_owned());
    }
    check_files(&run.files)
}

/// The laws of one run, when all that an edit has put into it begins in `first..=last` and it kept them before: what the edit left alone
/// keeps them still. Checked even when [`INVARIANTS`] is off.
fn check_run_around(run: &Run, first: &[u8], last: &[u8]) -> std::result::Result<(), String> {
    let part = run.files.beginning_in(first, last);
    check_files(&run.files[part.start.saturating_sub(1)..run.files.len().min(part.end + 1)])
}

fn check_files(files: &[Arc<FileMeta>]) -> std::result::Result<(), String> {
    for pair in files.windows(2) {
        if pair[0].largest >= pair[1].smallest {
            return Err(format!("files {} and {} are out of order or overlap", pair[0].id.0, pair[1].id.0));
        }
    }
    files.iter().try_for_each(|file| check_file(file).map_err(|law| format!("file {}: {law}", file.id.0)))
}

fn check_file(file: &FileMeta) -> std::result::Result<(), String> {
    let holds = [
        (file.smallest <= file.largest, "its smallest key is above its largest"),
        (file.min_seq <= file.max_seq, "its smallest sequence number is above its largest"),
        (file.entries > 0 && file.bytes > 0, "it is empty"),
        (file.tombstones <= file.entries, "it has more tombstones than entries"),
        (
            file.oldest_tombstone_ms.is_none() || file.tombstones + file.range_tombstones > 0,
            "it dates a tombstone that it does not have",
        ),
        (file.whole.as_ref().is_none_or(|whole| is_slice_of(file, whole)), "it is no slice of its table"),
    ];
    match holds.iter().find(|(holds, _)| !holds) {
        Some((_, law)) => Err((*law).to_owned()),
        None => Ok(()),
    }
}

fn is_slice_of(file: &FileMeta, whole: &Whole) -> bool {
    let inside = whole.smallest <= file.smallest && file.largest <= whole.largest;
    let proper = whole.smallest < file.smallest || file.largest < whole.largest;
    inside
        && proper
        && file.bytes <= whole.bytes
        && file.entries <= whole.entries
        && file.raw_bytes <= whole.raw_bytes
        && whole.tombstones <= whole.entries
        // Dates and decisions about deletes rest on these.
        && (file.tombstones == 0) == (whole.tombstones == 0)
        && (file.tombstones == file.entries) == (whole.tombstones == whole.entries)
}

#[cfg(test)]
mod tests;

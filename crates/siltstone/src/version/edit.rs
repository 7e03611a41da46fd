//! How one [`Version`] becomes the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::{FileMeta, Files, INVARIANTS, Level, LevelId, Run, RunOrder, SstId, Version, check_run_around};
use crate::error::{Error, Result};

/// A file that an edit takes out of a level and run.
pub type Removed = (LevelId, RunOrder, SstId);

/// A change of a tree: what a flush or a compaction did. Removals happen before additions, so a file that is removed in one
/// place and added in another (the same number) moves.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VersionEdit {
    /// Files taken out, with where they were.
    pub removed: Vec<Removed>,
    /// Files put in, with where they go.
    pub added: Vec<(LevelId, RunOrder, Arc<FileMeta>)>,
}

impl VersionEdit {
    /// Whether the edit changes nothing.
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty()
    }

    /// The edit that makes `version` out of an empty tree: a snapshot.
    pub fn of(version: &Version) -> VersionEdit {
        let added = version.files().map(|(level, order, file)| (level, order, Arc::clone(file))).collect();
        VersionEdit { removed: Vec::new(), added }
    }
}

/// The next version, checked.
pub(super) fn apply(version: &Version, edit: &VersionEdit) -> Result<Version> {
    let next = apply_checked(version, edit)?;
    if INVARIANTS {
        next.check().map_err(broken)?;
    }
    Ok(next)
}

/// The same without a look at the whole tree: only runs that the edit names are copied, and looked at only around what it puts there.
pub(super) fn apply_checked(version: &Version, edit: &VersionEdit) -> Result<Version> {
    let mut next = version.clone();
    change(&mut next, edit)?;
    check_added(&next, edit).map_err(broken)?;
    check_new_files_are_new(version, edit)?;
    Ok(next)
}

pub(super) fn broken(law: String) -> Error {
    Error::invalid(format!("version edit leads to a broken tree: {law}"))
}

/// The laws of the runs of `next` that `edit` has put files into.
fn check_added(next: &Version, edit: &VersionEdit) -> std::result::Result<(), String> {
    let mut keys: BTreeMap<(LevelId, RunOrder), (&Bytes, &Bytes)> = BTreeMap::new();
    for (level, order, file) in &edit.added {
        let (first, last) = keys.entry((*level, *order)).or_insert((&file.smallest, &file.smallest));
        (*first, *last) = ((*first).min(&file.smallest), (*last).max(&file.smallest));
    }
    for ((level, order), (first, last)) in keys {
        let run = next.levels[level.index()].run(order);
        run.map_or(Ok(()), |run| check_run_around(run, first, last))
            .map_err(|law| format!("L{}: run {}: {law}", level.0, order.0))?;
    }
    Ok(())
}

/// Changes `version` in place, and does not look whether it is a tree still: who reads a manifest checks the last one only, since each
/// check takes as long as the tree is large.
pub(super) fn change(version: &mut Version, edit: &VersionEdit) -> Result<()> {
    let levels = &mut version.levels;
    let depth = edit.added.iter().map(|(level, _, _)| level.index() + 1).max().unwrap_or(0);
    if levels.len() < depth {
        levels.resize_with(depth, Level::default);
    }
    let mut removals: BTreeMap<(LevelId, RunOrder), BTreeSet<SstId>> = BTreeMap::new();
    for (level, order, id) in &edit.removed {
        if !removals.entry((*level, *order)).or_default().insert(*id) {
            return Err(Error::invalid(format!("version edit removes file {} twice", id.0)));
        }
    }
    let mut additions: BTreeMap<(LevelId, RunOrder), Vec<Arc<FileMeta>>> = BTreeMap::new();
    for (level, order, file) in &edit.added {
        additions.entry((*level, *order)).or_default().push(Arc::clone(file));
    }
    for ((level, order), ids) in &removals {
        remove(levels, *level, *order, ids)?;
    }
    for ((level, order), files) in additions {
        add(&mut levels[level.index()], order, files);
    }
    for level in levels.iter_mut() {
        level.runs.retain(|run| !run.files.is_empty());
    }
    while levels.last().is_some_and(|level| level.runs.is_empty() && level.buffer.is_empty()) {
        levels.pop();
    }
    Ok(())
}

fn remove(levels: &mut [Level], level: LevelId, order: RunOrder, ids: &BTreeSet<SstId>) -> Result<()> {
    let run = levels.get_mut(level.index()).and_then(|level| {
        let at = level.position(order).ok()?;
        level.runs.get_mut(at)
    });
    if run.map_or(0, |run| run.files.remove(ids)) == ids.len() {
        return Ok(());
    }
    let ids: Vec<String> = ids.iter().map(|id| id.0.to_string()).collect();
    let place = format!("L{} run {}", level.0, order.0);
    Err(Error::invalid(format!(
        "version edit removes {} from {place}, which does not hold all of them",
        ids.join(", ")
    )))
}

fn add(level: &mut Level, order: RunOrder, files: Vec<Arc<FileMeta>>) {
    let at = level.position(order).unwrap_or_else(|at| {
        level.runs.insert(at, Run { order, files: Files::default() });
        at
    });
    level.runs[at].files.add(files);
}

/// No number is added twice, nor one that the tree still holds elsewhere.
fn check_new_files_are_new(before: &Version, edit: &VersionEdit) -> Result<()> {
    let mut added = BTreeSet::new();
    for (_, _, file) in &edit.added {
        if !added.insert(file.id) {
            return Err(Error::invalid(format!("version edit adds file {} twice", file.id.0)));
        }
    }
    for (_, _, id) in &edit.removed {
        added.remove(id);
    }
    let known = before.runs().find_map(|(_, run)| run.files.positions(&added).next().map(|at| run.files[at].id));
    match known {
        Some(id) => Err(Error::invalid(format!("version edit adds file {}, which is in the tree", id.0))),
        None => Ok(()),
    }
}

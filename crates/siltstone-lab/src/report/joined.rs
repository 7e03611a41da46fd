//! A tree's history with successive changes taken as one, for a page that would grow too large with all of them.
//!
//! A joined change leads from the tree before its first to the tree after its last: a file that came and went in between is not in it. Of what
//! made it, the compaction or flush that wrote most is named; the others are counted.

use std::collections::BTreeMap;

use super::decisions::Compaction;
use super::pack::Change;
use crate::recorder::AddedFile;

/// One change of a page's tree.
pub(super) struct Joined<'a> {
    pub(super) at_s: f64,
    pub(super) removed: Vec<u64>,
    pub(super) added: Vec<&'a AddedFile>,
    /// The place of what made it among the compactions that are kept.
    pub(super) by: Option<usize>,
}

/// A history in which up to `at_once` changes are one: changes, the compactions that they name, and how many others there were.
pub(super) fn join<'a>(
    changes: &'a [Change],
    by: &[Option<usize>],
    compactions: &'a [Compaction],
    at_once: usize,
) -> (Vec<Joined<'a>>, Vec<&'a Compaction>, usize) {
    let mut joined: Vec<Joined<'a>> =
        changes.chunks(at_once).zip(by.chunks(at_once)).map(|(changes, by)| one(changes, by, compactions)).collect();
    let mut is_kept = vec![at_once == 1; compactions.len()];
    joined.iter().filter_map(|change| change.by).for_each(|by| is_kept[by] = true);
    let mut kept = Vec::new();
    let mut place = vec![0; compactions.len()];
    for (n, compaction) in compactions.iter().enumerate().filter(|(n, _)| is_kept[*n]) {
        place[n] = kept.len();
        kept.push(compaction);
    }
    joined.iter_mut().for_each(|change| change.by = change.by.map(|by| place[by]));
    let left_out = compactions.len() - kept.len();
    (joined, kept, left_out)
}

fn one<'a>(changes: &'a [Change], by: &[Option<usize>], compactions: &[Compaction]) -> Joined<'a> {
    let mut removed = Vec::new();
    let mut added: BTreeMap<u64, &AddedFile> = BTreeMap::new();
    for change in changes {
        removed.extend(change.removed.iter().filter(|id| added.remove(id).is_none()));
        added.extend(change.added.iter().map(|file| (file.id, file)));
    }
    let most = by.iter().flatten().copied().max_by_key(|by| compactions[*by].bytes_written);
    let at_s = changes.last().map_or(0.0, |change| change.at_s);
    Joined { at_s, removed, added: added.into_values().collect(), by: most }
}

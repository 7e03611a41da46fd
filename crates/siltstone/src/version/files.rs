//! The files of a run, and what is asked of all of them at once.
//!
//! A run can have ten thousand files, and nearly every edit leaves nearly all runs as they are. So a list is shared by all versions that
//! have it, and copied when an edit changes it while another version still has it. Sums are kept rather than counted, and the numbers stand
//! in a column of their own: to look through them touches no metadata.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use super::{FileMeta, SstId};

/// Files, ascending by key: a slice of them that is cheap to clone.
#[derive(Clone, Default)]
pub struct Files(Arc<Columns>);

#[derive(Clone, Default)]
struct Columns {
    files: Vec<Arc<FileMeta>>,
    /// The number of each.
    ids: Vec<SstId>,
    /// Together, modulo 2^64: a damaged manifest may say anything.
    bytes: u64,
    entries: u64,
    tombstones: u64,
    /// Those that are slices of a table.
    slices: usize,
}

impl Columns {
    /// A copy that grows by `more` files without being moved, and by a few besides: what an edit removes and what it adds come one after
    /// the other.
    fn with_room(&self, more: usize) -> Columns {
        let room = self.files.len() + self.files.len() / 64 + more;
        let mut copy = Columns { files: Vec::with_capacity(room), ids: Vec::with_capacity(room), ..*self };
        copy.files.extend_from_slice(&self.files);
        copy.ids.extend_from_slice(&self.ids);
        copy
    }
}

impl Files {
    /// Size of all of them in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Entries of all of them.
    pub fn entries(&self) -> u64 {
        self.0.entries
    }

    /// Those that are tombstones.
    pub fn tombstones(&self) -> u64 {
        self.0.tombstones
    }

    /// Whether one of them is a slice of a table.
    pub fn has_slices(&self) -> bool {
        self.0.slices > 0
    }

    /// Whether both are the same list, not only equal ones.
    pub(crate) fn is_same(&self, other: &Files) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The number of each.
    pub(crate) fn ids(&self) -> &[SstId] {
        &self.0.ids
    }

    /// The largest number among them; none without files.
    pub(crate) fn newest(&self) -> Option<SstId> {
        self.0.ids.iter().max().copied()
    }

    /// Where the files with these numbers stand, ascending.
    pub(crate) fn positions(&self, ids: &BTreeSet<SstId>) -> impl DoubleEndedIterator<Item = usize> {
        // A search in the set for one number in ten: the others have the last bits of none of `ids`.
        let bit = |id: SstId| 1u128 << (id.0 % 128);
        let bits = ids.iter().fold(0, |bits, id| bits | bit(*id));
        let among = move |id: &SstId| bits & bit(*id) != 0 && ids.contains(id);
        self.0.ids.iter().enumerate().filter(move |(_, id)| among(id)).map(|(at, _)| at)
    }

    /// Takes out the files with these numbers, and says how many there were.
    pub(super) fn remove(&mut self, ids: &BTreeSet<SstId>) -> usize {
        let part = {
            let mut going = self.positions(ids);
            let Some(first) = going.next() else { return 0 };
            first..going.next_back().unwrap_or(first) + 1
        };
        let stay: Vec<Arc<FileMeta>> =
            self[part.clone()].iter().filter(|file| !ids.contains(&file.id)).cloned().collect();
        let removed = part.len() - stay.len();
        self.replace(part, stay);
        removed
    }

    /// Puts `added` where their keys say. Files that begin with the same key ascend by number.
    pub(super) fn add(&mut self, mut added: Vec<Arc<FileMeta>>) {
        // Only the part of the run that they come into is put in order: mostly they come into one place, where others have gone.
        let keys = || added.iter().map(|file| &file.smallest);
        let (Some(first), Some(last)) = (keys().min(), keys().max()) else { return };
        let part = self.beginning_in(first, last);
        added.extend_from_slice(&self[part.clone()]);
        added.sort_by(|a, b| a.smallest.cmp(&b.smallest).then_with(|| a.id.cmp(&b.id)));
        self.replace(part, added);
    }

    /// The positions of the files that begin in `first..=last`.
    pub(super) fn beginning_in(&self, first: &[u8], last: &[u8]) -> Range<usize> {
        let begin = self.partition_point(|file| file.smallest[..] < *first);
        begin..begin + self[begin..].partition_point(|file| file.smallest[..] <= *last)
    }

    fn replace(&mut self, part: Range<usize>, by: Vec<Arc<FileMeta>>) {
        let columns = match Arc::get_mut(&mut self.0) {
            Some(columns) => columns,
            None => {
                self.0 = Arc::new(self.0.with_room(by.len()));
                Arc::make_mut(&mut self.0)
            }
        };
        for file in &columns.files[part.clone()] {
            columns.bytes = columns.bytes.wrapping_sub(file.bytes);
            columns.entries = columns.entries.wrapping_sub(file.entries);
            columns.tombstones = columns.tombstones.wrapping_sub(file.tombstones);
            columns.slices -= usize::from(file.whole.is_some());
        }
        for file in &by {
            columns.bytes = columns.bytes.wrapping_add(file.bytes);
            columns.entries = columns.entries.wrapping_add(file.entries);
            columns.tombstones = columns.tombstones.wrapping_add(file.tombstones);
            columns.slices += usize::from(file.whole.is_some());
        }
        columns.ids.splice(part.clone(), by.iter().map(|file| file.id));
        columns.files.splice(part, by);
    }
}

impl Deref for Files {
    type Target = [Arc<FileMeta>];

    fn deref(&self) -> &[Arc<FileMeta>] {
        &self.0.files
    }
}

impl From<Vec<Arc<FileMeta>>> for Files {
    fn from(files: Vec<Arc<FileMeta>>) -> Files {
        let mut all = Files::default();
        all.replace(0..0, files);
        all
    }
}

impl FromIterator<Arc<FileMeta>> for Files {
    fn from_iter<I: IntoIterator<Item = Arc<FileMeta>>>(files: I) -> Files {
        Vec::from_iter(files).into()
    }
}

impl<'a> IntoIterator for &'a Files {
    type Item = &'a Arc<FileMeta>;
    type IntoIter = std::slice::Iter<'a, Arc<FileMeta>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl PartialEq for Files {
    fn eq(&self, other: &Files) -> bool {
        self.is_same(other) || self[..] == other[..]
    }
}

impl Eq for Files {}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

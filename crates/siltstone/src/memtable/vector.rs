//! A memtable that only appends, and sorts when it is read: for loads in nearly ascending order that are not read meanwhile.
//!
//! The offsets of records are in two lists under one lock: a sorted one, shared with the cursors that read it, and those added
//! since. A read merges the second into the first before it looks; readers hold the lock for that only.
#![expect(unsafe_code, reason = "records are borrowed from the arena by offset")]

use std::sync::Arc;

use parking_lot::Mutex;

use super::arena::{Arena, Offset};
use crate::key::{Entry, Trailer, compare};

/// The offsets of a sorted-vector memtable's records.
#[derive(Default)]
pub(super) struct Vector {
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    sorted: Arc<Vec<Offset>>,
    added: Vec<Offset>,
}

impl Vector {
    /// Adds a record of the arena.
    pub(super) fn insert(&self, offset: Offset) {
        self.lists.lock().added.push(offset);
    }

    /// All records so far, in internal order.
    pub(super) fn sorted(&self, arena: &Arena) -> Arc<Vec<Offset>> {
        let mut lists = self.lists.lock();
        if !lists.added.is_empty() {
            let added = std::mem::take(&mut lists.added);
            // A cursor may hold the list: then this copies it.
            let sorted = Arc::make_mut(&mut lists.sorted);
            sorted.extend(added);
            // The standard sort finds the runs that are in order already, so this is a merge.
            sorted.sort_by(|&a, &b| {
                let (a, b) = (entry(arena, a), entry(arena, b));
                compare(a.key, a.trailer, b.key, b.trailer)
            });
        }
        Arc::clone(&lists.sorted)
    }

    /// The first version of `key` at or after `trailer`.
    pub(super) fn get<'a>(&self, arena: &'a Arena, key: &[u8], trailer: Trailer) -> Option<Entry<'a>> {
        let sorted = self.sorted(arena);
        let at = lower_bound(arena, &sorted, key, trailer);
        sorted.get(at).map(|&offset| entry(arena, offset)).filter(|found| found.key == key)
    }
}

/// How many of the sorted records are before `(key, trailer)`.
pub(super) fn lower_bound(arena: &Arena, sorted: &[Offset], key: &[u8], trailer: Trailer) -> usize {
    sorted.partition_point(|&offset| {
        let entry = entry(arena, offset);
        compare(entry.key, entry.trailer, key, trailer).is_lt()
    })
}

/// The record at an offset that came out of the lists.
#[inline]
pub(super) fn entry(arena: &Arena, offset: Offset) -> Entry<'_> {
    // SAFETY: only offsets of whole records enter the lists, and the lock publishes them.
    unsafe { arena.record(offset) }
}

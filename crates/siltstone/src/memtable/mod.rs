//! Memtables: the newest entries, in memory and in order, until a flush writes them to a file.
//!
//! One writer inserts while any number of readers look; what is published is never lost to them and never changes. Two kinds
//! share the arena, the filter and the counts of this file: [`MemtableKind::Tree`], the default, and
//! [`MemtableKind::SortedVector`]. Kinds are told apart by an enum, not a trait object: it costs one predictable branch.
//!
//! ```text
//! MemtableWriter --insert--> arena (records) --offset--> tree or vector
//!                      \---> filter                        |
//!                                          Memtable: get, cursor
//! ```

mod arena;
mod filter;
mod node;
mod search;
mod seqlock;
mod tree;
mod vector;

pub use arena::ArenaPool;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;
use crate::iter::{Approach, Cursor, Target};
use crate::key::{self, Entry, MAX_KEY_BYTES, MAX_VALUE_BYTES, SeqNo, Trailer};
use crate::num::to_u64;
use crate::options::MemtableKind;
use arena::{Arena, Bump, Offset, Words};
use node::Probe;

/// A memtable as readers see it. It lives as long as somebody holds it.
pub struct Memtable {
    index: Index,
    arena: Arena,
    filter: Words,
    full_bytes: u64,
    stats: Stats,
}

enum Index {
    Tree(tree::Tree),
    Vector(vector::Vector),
}

/// The one that inserts. There is one per memtable, and it cannot be cloned.
pub struct MemtableWriter {
    table: Arc<Memtable>,
    bump: Bump,
    tree: Option<tree::TreeWriter>,
}

/// Written by the writer after each insert, on a line of its own so that readers of the tree do not wait for it.
#[repr(align(64))]
#[derive(Default)]
struct Stats {
    bytes: AtomicU64,
    entries: AtomicU64,
    tombstones: AtomicU64,
    raw_bytes: AtomicU64,
    /// The complement of the smallest sequence number, so that it starts at nothing like the others.
    min_seq_inverted: AtomicU64,
    max_seq: AtomicU64,
}

/// A new memtable that is to be flushed at `full_bytes`. It may grow beyond (to 32 GiB), a little slower.
pub fn new(kind: MemtableKind, full_bytes: u64) -> (MemtableWriter, Arc<Memtable>) {
    new_in(kind, full_bytes, &Arc::default())
}

/// As [`new`], with memory of earlier memtables if `pool` has some.
pub fn new_in(kind: MemtableKind, full_bytes: u64, pool: &Arc<ArenaPool>) -> (MemtableWriter, Arc<Memtable>) {
    let words = filter::words(full_bytes);
    // Nodes begin at lines. Writers overshoot by a batch, and a tree's nodes are allocated before they fill.
    let (expected, slack) = (full_bytes + full_bytes / 64 + to_u64(words) * 8, full_bytes / 8 + 2048);
    let (arena, mut bump) = arena::new(expected, slack, pool);
    let filter = bump.words(&arena, words);
    let (index, tree) = match kind {
        MemtableKind::Tree => {
            let (tree, writer) = tree::new(&arena, &mut bump);
            (Index::Tree(tree), Some(writer))
        }
        MemtableKind::SortedVector => (Index::Vector(vector::Vector::default()), None),
    };
    let stats = Stats::default();
    stats.bytes.store(bump.used(), Ordering::Relaxed);
    let table = Arc::new(Memtable { index, arena, filter, full_bytes, stats });
    (MemtableWriter { table: Arc::clone(&table), bump, tree }, table)
}

impl MemtableWriter {
    /// Adds a version of `key`. Readers see it at once; it is the caller's business which sequence number they read at.
    ///
    /// # Panics
    /// If key or value are longer than a store accepts, or the memtable grows beyond 32 GiB. In debug builds, if this version
    /// is there already.
    #[inline]
    pub fn insert(&mut self, key: &[u8], trailer: Trailer, value: &[u8]) {
        assert!(key.len() <= MAX_KEY_BYTES && value.len() <= MAX_VALUE_BYTES, "checked where the write began");
        let table = &*self.table;
        let write = |bump: &mut Bump| {
            filter::insert(table.arena.words(&table.filter), key::hash(key));
            bump.record(&table.arena, key, trailer, value)
        };
        match (&table.index, &mut self.tree) {
            (Index::Tree(tree), Some(writer)) => {
                writer.insert(tree, &table.arena, &mut self.bump, &Probe::new(key, trailer), write);
            }
            (Index::Vector(vector), _) => vector.insert(write(&mut self.bump)),
            (Index::Tree(_), None) => unreachable!("a tree has its writer"),
        }
        table.stats.count(key, trailer, value, self.bump.used());
    }

    /// Nobody writes: gives back memory that the writer will not come to soon. A memtable without entries keeps next to none.
    pub fn rest(&self) {
        let ahead = if self.table.is_empty() { 0 } else { self.table.arena.ahead(self.bump.used()) };
        self.bump.give_back(&self.table.arena, ahead);
    }

    /// The table that this writer fills.
    pub fn table(&self) -> &Arc<Memtable> {
        &self.table
    }
}

impl Stats {
    #[inline]
    fn count(&self, key: &[u8], trailer: Trailer, value: &[u8], bytes: u64) {
        let add = |counter: &AtomicU64, n: u64| counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        add(&self.tombstones, u64::from(trailer.is_delete()));
        add(&self.raw_bytes, to_u64(key.len() + value.len()));
        let seq = trailer.seq().0;
        let raise = |counter: &AtomicU64, to: u64| {
            counter.store(counter.load(Ordering::Relaxed).max(to), Ordering::Relaxed);
        };
        raise(&self.max_seq, seq);
        raise(&self.min_seq_inverted, !seq);
        // Last, and published: whoever sees an entry counted sees it everywhere.
        self.entries.store(self.entries.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

impl Memtable {
    /// The newest version of `key` that a read at `seq` may see, with its value; a tombstone is returned as such.
    pub fn get(&self, key: &[u8], seq: SeqNo) -> Option<(Trailer, &[u8])> {
        self.get_hashed(key, key::hash(key), seq)
    }

    /// [`Memtable::get`] with `hash`, the [`key::hash`] of `key`, computed before.
    #[inline]
    pub fn get_hashed(&self, key: &[u8], hash: u64, seq: SeqNo) -> Option<(Trailer, &[u8])> {
        if !filter::may_contain(self.arena.words(&self.filter), hash) {
            return None;
        }
        let trailer = Trailer::seek(seq);
        let found = match &self.index {
            Index::Tree(tree) => tree.get(&self.arena, key, trailer),
            Index::Vector(vector) => vector.get(&self.arena, key, trailer),
        };
        found.map(|entry| (entry.trailer, entry.value))
    }

    /// The bytes at which it is to be flushed.
    pub fn full_bytes(&self) -> u64 {
        self.full_bytes
    }

    /// The memory that records and index take, in bytes. Never falls.
    pub fn bytes(&self) -> u64 {
        self.stats.bytes.load(Ordering::Relaxed)
    }

    /// Makes memory ready for the writer before he comes to it, and for the next memtable if this one fills `fast`; one that nobody writes to takes
    /// none. Returns whether it did anything. Called by one thread.
    pub fn prepare(&self, fast: bool) -> bool {
        !self.is_empty() && self.arena.prepare(self.bytes(), fast)
    }

    /// The number of entries: versions, not keys.
    pub fn entries(&self) -> u64 {
        self.stats.entries.load(Ordering::Acquire)
    }

    /// The number of tombstones among the entries.
    pub fn tombstones(&self) -> u64 {
        self.stats.tombstones.load(Ordering::Relaxed)
    }

    /// The bytes of keys and values.
    pub fn raw_bytes(&self) -> u64 {
        self.stats.raw_bytes.load(Ordering::Relaxed)
    }

    /// The smallest sequence number of an entry; [`SeqNo::MAX`] when there is none.
    pub fn min_seq(&self) -> SeqNo {
        SeqNo::MAX.min(SeqNo(!self.stats.min_seq_inverted.load(Ordering::Relaxed)))
    }

    /// The largest sequence number of an entry; [`SeqNo::ZERO`] when there is none.
    pub fn max_seq(&self) -> SeqNo {
        SeqNo(self.stats.max_seq.load(Ordering::Relaxed))
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries() == 0
    }

    /// A cursor over the entries. It finds every entry that was inserted before it was made, and may find later ones.
    pub fn cursor(self: &Arc<Self>) -> MemtableCursor {
        let place = match &self.index {
            Index::Tree(_) => Place::Tree(tree::TreeCursor::new()),
            Index::Vector(_) => Place::Vector { sorted: Arc::default(), at: 0 },
        };
        MemtableCursor { table: Arc::clone(self), place }
    }
}

/// A position in a memtable; it keeps the memtable alive.
pub struct MemtableCursor {
    table: Arc<Memtable>,
    place: Place,
}

#[expect(clippy::large_enum_variant, reason = "a cursor is made once a scan, and its leaf is read at every step")]
enum Place {
    Tree(tree::TreeCursor),
    Vector { sorted: Arc<Vec<Offset>>, at: usize },
}

impl MemtableCursor {
    #[inline]
    fn offset(&self) -> Option<Offset> {
        match &self.place {
            Place::Tree(cursor) => cursor.offset(),
            Place::Vector { sorted, at } => sorted.get(*at).copied(),
        }
    }

    /// Moves the position: one way for a tree, one for a sorted list.
    fn go(
        &mut self,
        in_tree: impl FnOnce(&mut tree::TreeCursor, &tree::Tree, &Arena),
        in_list: impl FnOnce(&[Offset], &Arena) -> usize,
    ) {
        let table = &*self.table;
        match (&mut self.place, &table.index) {
            (Place::Tree(cursor), Index::Tree(tree)) => in_tree(cursor, tree, &table.arena),
            (Place::Vector { sorted, at }, Index::Vector(vector)) => {
                *sorted = vector.sorted(&table.arena);
                *at = in_list(sorted, &table.arena);
            }
            _ => unreachable!("a cursor is of its table's kind"),
        }
    }
}

impl Cursor for MemtableCursor {
    fn seek_first(&mut self) -> Result<()> {
        self.go(|cursor, tree, arena| cursor.seek_first(tree, arena), |_, _| 0);
        Ok(())
    }

    fn seek_last(&mut self) -> Result<()> {
        // One before the first wraps to no entry.
        self.go(|cursor, tree, arena| cursor.seek_last(tree, arena), |sorted, _| sorted.len().wrapping_sub(1));
        Ok(())
    }

    fn seek(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        self.go(
            |cursor, tree, arena| cursor.seek(tree, arena, &Probe::new(key, trailer)),
            |sorted, arena| vector::lower_bound(arena, sorted, key, trailer),
        );
        Ok(())
    }

    fn seek_before(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        self.go(
            |cursor, tree, arena| cursor.seek_before(tree, arena, &Probe::new(key, trailer)),
            |sorted, arena| vector::lower_bound(arena, sorted, key, trailer).wrapping_sub(1),
        );
        Ok(())
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        debug_assert!(self.entry().is_some(), "next needs an entry");
        let table = &*self.table;
        match (&mut self.place, &table.index) {
            (Place::Tree(cursor), Index::Tree(tree)) => cursor.next(tree, &table.arena),
            (Place::Vector { at, .. }, _) => *at += 1,
            _ => unreachable!("a cursor is of its table's kind"),
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        let Some(offset) = self.offset() else {
            debug_assert!(false, "prev needs an entry");
            return Ok(());
        };
        let table = &*self.table;
        match (&mut self.place, &table.index) {
            (Place::Tree(cursor), Index::Tree(tree)) => {
                let here = Probe::of(vector::entry(&table.arena, offset));
                cursor.prev(tree, &table.arena, &here);
            }
            (Place::Vector { at, .. }, _) => *at = at.wrapping_sub(1),
            _ => unreachable!("a cursor is of its table's kind"),
        }
        Ok(())
    }

    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        self.offset().map(|offset| vector::entry(&self.table.arena, offset))
    }

    fn approach(&mut self, step: Approach, target: Target<'_>) {
        if step == Approach::Block
            && let Index::Tree(tree) = &self.table.index
        {
            tree.prefetch(&self.table.arena, target.key);
        }
    }
}

#[cfg(test)]
mod tests;

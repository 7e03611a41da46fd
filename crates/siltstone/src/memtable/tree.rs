//! The default memtable: a B+-tree of 1 KiB nodes ([`super::node`]) over records in an arena. One writer, readers without locks.
//!
//! An insert into 64 MiB costs a fifth of a skip list's, which takes a cache miss at each of its 8 to 12 steps: here the inner
//! levels stay in the processor's cache and a leaf's lines are fetched together (docs/design/0002).
//!
//! Readers walk down optimistically: they note a node's version, read, and check the version before they follow what they
//! read. They check a parent once more after they have noted the child's version, so a split between the two shows. The writer
//! marks every node that a split touches before it changes the first of them. Nodes are never freed or reused.
#![expect(unsafe_code, reason = "nodes and records are found by offset; see arena")]

use std::sync::atomic::{AtomicU32, Ordering};

use super::arena::{Arena, Bump, Offset};
use super::node::{Found, LEAF_MAX, NODE_BYTES, Node, Probe};
use super::search::Search;
use crate::key::{Entry, Trailer};
use crate::num::to_u8;

/// The readable side.
pub(super) struct Tree {
    root: AtomicU32,
    /// The leftmost leaf: the first node ever made, since splits move entries to the right.
    first: Offset,
    search: Search,
}

/// What the one writer remembers.
pub(super) struct TreeWriter {
    /// The rightmost leaf, and the largest entry: ascending loads append there without a walk.
    last_leaf: Offset,
    last_record: Offset,
    last_head: u128,
}

/// A leaf as it was at one moment.
struct At<'a> {
    leaf: Node<'a>,
    version: u64,
    found: Found,
}

/// An empty tree.
pub(super) fn new(arena: &Arena, bump: &mut Bump) -> (Tree, TreeWriter) {
    let first = bump.node(arena, NODE_BYTES);
    let tree = Tree { root: AtomicU32::new(first), first, search: Search::detect() };
    tree.node(arena, first).init(0, 0);
    (tree, TreeWriter { last_leaf: first, last_record: 0, last_head: 0 })
}

impl Tree {
    /// The node at an offset that the writer knows, or that a reader has validated.
    #[inline]
    fn node<'a>(&self, arena: &'a Arena, offset: Offset) -> Node<'a> {
        // SAFETY: only offsets of nodes are stored as root, child or next, and all callers have them from there: the root
        // through an acquire, the others from a node whose version they checked after reading.
        unsafe { Node::at(arena, offset) }
    }

    /// The first version of `key` at or after `trailer`.
    #[inline]
    pub(super) fn get<'a>(&self, arena: &'a Arena, key: &[u8], trailer: Trailer) -> Option<Entry<'a>> {
        let probe = Probe::new(key, trailer);
        loop {
            let at = self.find(arena, &probe);
            let meta = at.leaf.meta();
            let offset = if at.found.at < meta.count() {
                if !at.found.tie {
                    if at.leaf.validate(at.version) {
                        return None;
                    }
                    continue;
                }
                at.leaf.offset(at.found.at, 0)
            } else {
                // Older versions of the key may begin the next leaf.
                let next = meta.next();
                if !at.leaf.validate(at.version) {
                    continue;
                }
                if next == 0 {
                    return None;
                }
                match self.first_of(arena, next) {
                    Some(offset) => offset,
                    None => continue,
                }
            };
            if !at.leaf.validate(at.version) {
                continue;
            }
            // SAFETY: validated after it was read.
            let entry = unsafe { arena.record(offset) };
            return (entry.key == key).then_some(entry);
        }
    }

    /// The first record of a leaf that is not the first one, and so never empty.
    fn first_of(&self, arena: &Arena, leaf: Offset) -> Option<Offset> {
        let leaf = self.node(arena, leaf);
        let version = leaf.read_begin();
        let offset = leaf.offset(0, 0);
        leaf.validate(version).then_some(offset)
    }

    /// The leaf where the first entry at or after the probe is, or ends.
    #[inline]
    fn find<'a>(&self, arena: &'a Arena, probe: &Probe<'_>) -> At<'a> {
        self.walk(arena, |node, version| node.lower_bound(probe, arena, self.search, || node.validate(version)))
    }

    /// Walks down: `choose` says which child to take, and the place in the leaf; `None` makes the walk start again.
    #[inline]
    fn walk<'a>(&self, arena: &'a Arena, choose: impl Fn(Node<'a>, u64) -> Option<Found>) -> At<'a> {
        loop {
            if let Some(at) = self.try_walk(arena, &choose) {
                return at;
            }
        }
    }

    #[inline]
    fn try_walk<'a>(&self, arena: &'a Arena, choose: &impl Fn(Node<'a>, u64) -> Option<Found>) -> Option<At<'a>> {
        let root = self.root.load(Ordering::Acquire);
        let mut node = self.node(arena, root);
        let mut version = node.read_begin();
        // The version may be that of after a split, and the root then the left half only.
        if self.root.load(Ordering::Acquire) != root {
            return None;
        }
        loop {
            let level = node.meta().level();
            if level == 0 {
                return Some(At { leaf: node, version, found: choose(node, version)? });
            }
            let child = node.child(choose(node, version)?.at);
            if !node.validate(version) {
                return None;
            }
            let child = self.node(arena, child);
            if level == 1 {
                child.prefetch();
            }
            let child_version = child.read_begin();
            if !node.validate(version) {
                return None;
            }
            (node, version) = (child, child_version);
        }
    }

    /// Starts fetching the leaf of `key`.
    pub(super) fn prefetch(&self, arena: &Arena, key: &[u8]) {
        let probe = Probe::new(key, Trailer(u64::MAX));
        let root = self.root.load(Ordering::Acquire);
        let mut node = self.node(arena, root);
        loop {
            let version = node.read_begin();
            let level = node.meta().level();
            if level == 0 {
                return;
            }
            let Some(found) = node.lower_bound(&probe, arena, self.search, || node.validate(version)) else {
                return;
            };
            let child = node.child(found.at);
            if !node.validate(version) {
                return;
            }
            node = self.node(arena, child);
            if level == 1 {
                return node.prefetch();
            }
        }
    }
}

impl TreeWriter {
    /// Inserts a record. `write` appends it to the arena: called when the leaf it goes to is already being fetched.
    #[inline]
    pub(super) fn insert(
        &mut self,
        tree: &Tree,
        arena: &Arena,
        bump: &mut Bump,
        probe: &Probe<'_>,
        write: impl FnOnce(&mut Bump) -> Offset,
    ) {
        if self.is_last(arena, probe) {
            let record = write(bump);
            self.append(tree, arena, bump, probe, record);
            return;
        }
        let (mut parent, mut leaf) = self.descend(tree, arena, bump, probe);
        let record = write(bump);
        if leaf.meta().is_full() {
            leaf = self.split_full(tree, arena, bump, &mut parent, leaf, probe);
        }
        self.put(tree, arena, leaf, probe, record);
    }

    fn is_last(&self, arena: &Arena, probe: &Probe<'_>) -> bool {
        if probe.head() != self.last_head || self.last_record == 0 {
            return probe.head() >= self.last_head;
        }
        // SAFETY: the writer inserted it.
        let last = unsafe { arena.record(self.last_record) };
        crate::key::compare(last.key, last.trailer, probe.key, probe.trailer).is_lt()
    }

    fn append(&mut self, tree: &Tree, arena: &Arena, bump: &mut Bump, probe: &Probe<'_>, record: Offset) {
        let leaf = tree.node(arena, self.last_leaf);
        let count = leaf.meta().count();
        if count < LEAF_MAX {
            leaf.write_begin();
            leaf.insert(arena, count, probe, (record, 0), usize::MAX);
            leaf.write_end();
        } else {
            self.append_leaf(tree, arena, bump, probe, record);
        }
        self.last_record = record;
        self.last_head = probe.head();
    }

    /// A new rightmost leaf: the full one stays full.
    fn append_leaf(&mut self, tree: &Tree, arena: &Arena, bump: &mut Bump, probe: &Probe<'_>, record: Offset) {
        // SAFETY: the writer inserted it.
        let last = unsafe { arena.record(self.last_record) };
        let (parent, leaf) = self.descend(tree, arena, bump, probe);
        let right = self.fresh(tree, arena, bump, 0, 0);
        // The next keys will probably share with this one what it shares with the one before.
        tree.node(arena, right).insert(arena, 0, probe, (record, 0), probe.common_bytes(last.key));
        let (parent, new_root) = self.parent_of(tree, arena, bump, parent);
        parent.0.write_begin();
        leaf.write_begin();
        leaf.set_next(right);
        parent.0.insert(arena, parent.1, probe, (record, right), usize::MAX);
        publish_root(tree, new_root);
        leaf.write_end();
        parent.0.write_end();
        self.last_leaf = right;
    }

    /// Walks down to the leaf for the probe. Full inner nodes on the way are split, so the parent has room for one more.
    #[inline]
    fn descend<'a>(
        &mut self,
        tree: &Tree,
        arena: &'a Arena,
        bump: &mut Bump,
        probe: &Probe<'_>,
    ) -> (Option<(Node<'a>, usize)>, Node<'a>) {
        let mut parent: Option<(Node<'a>, usize)> = None;
        let mut node = tree.node(arena, tree.root.load(Ordering::Relaxed));
        let mut level = node.meta().level();
        while level > 0 {
            if node.meta().is_full() {
                node = self.split_full(tree, arena, bump, &mut parent, node, probe);
            }
            let at = place(tree, arena, node, probe).at;
            parent = Some((node, at));
            node = tree.node(arena, node.child(at));
            level -= 1;
            if level == 0 {
                node.prefetch();
            }
        }
        (parent, node)
    }

    /// Splits a full node and returns the half that the probe belongs to, with `parent` naming it.
    #[cold]
    fn split_full<'a>(
        &mut self,
        tree: &Tree,
        arena: &'a Arena,
        bump: &mut Bump,
        parent: &mut Option<(Node<'a>, usize)>,
        left: Node<'a>,
        probe: &Probe<'_>,
    ) -> Node<'a> {
        let meta = left.meta();
        let (count, level) = (meta.count(), meta.level());
        // At the right edge of an inner node keep it nearly full, as ascending loads want it.
        let keep = if level > 0 && place(tree, arena, left, probe).at == count { count - 1 } else { count / 2 };
        let moved = if level > 0 { keep + 1 } else { keep };
        let right_at = self.fresh(tree, arena, bump, level, meta.next());
        let right = tree.node(arena, right_at);
        right.copy_from(left, moved, count, &left.tighten(moved, count, arena));
        let kept = left.tighten(0, keep, arena);
        let separator = left.offset(keep, level);
        // SAFETY: the writer inserted it.
        let first = Probe::of(unsafe { arena.record(separator) });
        let ((above, at), new_root) = self.parent_of(tree, arena, bump, *parent);

        above.write_begin();
        left.write_begin();
        left.keep(keep, &kept);
        if level == 0 {
            left.set_next(right_at);
        }
        above.insert(arena, at, &first, (separator, right_at), usize::MAX);
        publish_root(tree, new_root);
        left.write_end();
        above.write_end();

        if level == 0 && meta.next() == 0 {
            self.last_leaf = right_at;
        }
        let goes_right = crate::key::compare(first.key, first.trailer, probe.key, probe.trailer).is_lt();
        *parent = Some((above, at + usize::from(goes_right)));
        if goes_right { right } else { left }
    }

    /// The given parent, or a new root (also returned) above the old one.
    fn parent_of<'a>(
        &self,
        tree: &Tree,
        arena: &'a Arena,
        bump: &mut Bump,
        parent: Option<(Node<'a>, usize)>,
    ) -> ((Node<'a>, usize), Option<Offset>) {
        if let Some(parent) = parent {
            return (parent, None);
        }
        let old = tree.root.load(Ordering::Relaxed);
        let level = tree.node(arena, old).meta().level() + 1;
        let root = self.fresh(tree, arena, bump, level, 0);
        let node = tree.node(arena, root);
        node.set_first_child(old);
        ((node, 0), Some(root))
    }

    fn fresh(&self, tree: &Tree, arena: &Arena, bump: &mut Bump, level: u8, next: Offset) -> Offset {
        let offset = bump.node(arena, NODE_BYTES);
        tree.node(arena, offset).init(level, next);
        offset
    }

    #[inline]
    fn put(&mut self, tree: &Tree, arena: &Arena, leaf: Node<'_>, probe: &Probe<'_>, record: Offset) {
        let found = place(tree, arena, leaf, probe);
        debug_assert!(!self.is_there(arena, leaf, found, probe), "inserted twice: {:?}", probe.trailer);
        leaf.write_begin();
        leaf.insert(arena, found.at, probe, (record, 0), usize::MAX);
        leaf.write_end();
    }

    fn is_there(&self, arena: &Arena, leaf: Node<'_>, found: Found, probe: &Probe<'_>) -> bool {
        // SAFETY: the writer inserted it.
        let at = |at| unsafe { arena.record(leaf.offset(at, 0)) };
        found.tie && (at(found.at).key, at(found.at).trailer) == (probe.key, probe.trailer)
    }
}

/// While the old root is marked as changing: whoever sees its halves sees the new root.
fn publish_root(tree: &Tree, new_root: Option<Offset>) {
    if let Some(root) = new_root {
        tree.root.store(root, Ordering::Release);
    }
}

/// Where the writer finds the probe: nobody races with it.
#[inline]
fn place(tree: &Tree, arena: &Arena, node: Node<'_>, probe: &Probe<'_>) -> Found {
    node.lower_bound(probe, arena, tree.search, || true).expect("the writer's own reads are valid")
}

/// A position in a tree: a copy of one leaf's offsets, and which of them.
///
/// The copy was whole at one moment, so moving inside it asks nobody. What is inserted into the leaf later is not seen until
/// the cursor comes back to it, which readers cannot tell from an insert that came too late.
pub(super) struct TreeCursor {
    offsets: [Offset; LEAF_MAX],
    count: u8,
    at: u8,
    /// Up to where records have been fetched.
    fetched: u8,
    next: Offset,
}

impl TreeCursor {
    pub(super) fn new() -> TreeCursor {
        TreeCursor { offsets: [0; LEAF_MAX], count: 0, at: 0, fetched: 0, next: 0 }
    }

    /// The record at the position.
    #[inline]
    pub(super) fn offset(&self) -> Option<Offset> {
        (self.at < self.count).then(|| self.offsets[usize::from(self.at)])
    }

    pub(super) fn seek_first(&mut self, tree: &Tree, arena: &Arena) {
        self.enter(tree, arena, tree.first);
    }

    pub(super) fn seek_last(&mut self, tree: &Tree, arena: &Arena) {
        loop {
            let at = tree.walk(arena, |node, _| Some(Found { at: node.meta().count(), tie: false }));
            if self.copy(&at) {
                // One past the last wraps to no entry when there is none.
                self.at = self.count.wrapping_sub(1);
                return;
            }
        }
    }

    pub(super) fn seek(&mut self, tree: &Tree, arena: &Arena, probe: &Probe<'_>) {
        self.load(tree, arena, probe);
        if self.at == self.count && self.next != 0 {
            self.enter(tree, arena, self.next);
        }
    }

    pub(super) fn seek_before(&mut self, tree: &Tree, arena: &Arena, probe: &Probe<'_>) {
        // The leaf that a search ends in begins with an entry before the probe, unless it is the first leaf.
        self.load(tree, arena, probe);
        self.step_back();
    }

    #[inline]
    pub(super) fn next(&mut self, tree: &Tree, arena: &Arena) {
        self.at += 1;
        // After a seek, which fetches few, two a step.
        self.fetch(arena, 2);
        if self.at + AHEAD == self.count && self.next != 0 {
            tree.node(arena, self.next).prefetch();
        }
        if self.at == self.count && self.next != 0 {
            self.enter(tree, arena, self.next);
        }
    }

    /// Moves back; `probe` is the entry at the position.
    pub(super) fn prev(&mut self, tree: &Tree, arena: &Arena, probe: &Probe<'_>) {
        if self.at == 0 {
            return self.seek_before(tree, arena, probe);
        }
        self.step_back();
        if let Some(ahead) = self.at.checked_sub(AHEAD) {
            arena.prefetch(self.offsets[usize::from(ahead)]);
        }
    }

    fn step_back(&mut self) {
        if self.at == 0 {
            self.count = 0;
            self.next = 0;
        } else {
            self.at -= 1;
        }
    }

    /// Copies the leaf of the probe.
    fn load(&mut self, tree: &Tree, arena: &Arena, probe: &Probe<'_>) {
        while !self.copy(&tree.find(arena, probe)) {}
        self.fetch(arena, FIRST);
    }

    /// Starts fetching the next `most` records of those that are not yet, as far as they come soon.
    #[inline]
    fn fetch(&mut self, arena: &Arena, most: u8) {
        let to = self.count.min(self.at + AHEAD).min(self.fetched + most);
        while self.fetched < to {
            arena.prefetch(self.offsets[usize::from(self.fetched)]);
            self.fetched += 1;
        }
    }

    /// Copies a leaf, at its first entry.
    fn enter(&mut self, tree: &Tree, arena: &Arena, leaf: Offset) {
        let leaf = tree.node(arena, leaf);
        loop {
            let version = leaf.read_begin();
            if self.copy(&At { leaf, version, found: Found { at: 0, tie: false } }) {
                return self.fetch(arena, AHEAD);
            }
        }
    }

    fn copy(&mut self, at: &At<'_>) -> bool {
        let meta = at.leaf.meta();
        let count = meta.count();
        for (index, offset) in self.offsets[..count].iter_mut().enumerate() {
            *offset = at.leaf.offset(index, 0);
        }
        if !at.leaf.validate(at.version) {
            return false;
        }
        self.count = to_u8(count);
        self.at = to_u8(at.found.at);
        self.fetched = self.at;
        self.next = meta.next();
        true
    }
}

/// How many records ahead a scan fetches, and a seek.
const AHEAD: u8 = 16;
const FIRST: u8 = 4;

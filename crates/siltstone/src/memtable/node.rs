//! A node of the memtable's tree: 1 KiB, of which a search touches two or three cache lines besides the prefixes.
//!
//! ```text
//! byte 0    version    even: at rest, odd: being changed (see `seqlock`)
//!      8    meta       entries u16, skip u8, level u8, next leaf u32
//!     16    common     the first 16 of the `skip` bytes (at most 255) that all keys of the node share, zero-padded, big-endian
//!     32    prefixes   u64 each: the 8 bytes of the key after the common ones, big-endian, zero-padded; unused ones are u64::MAX
//!           offsets    u32 each: the record
//!           children   u32 each, in inner nodes, one more than entries
//! ```
//!
//! A leaf holds 80 entries, an inner node 56: multiples of the eight prefixes that one AVX-512 compare takes. Without the common
//! bytes, decimal keys (`user000123`) would have equal prefixes throughout and every compare would read a record. Of longer common
//! bytes the rest is in the key of entry 0, which is then read as well. Inner node entry `i` is the first record of child `i + 1`.
//!
//! All fields are relaxed atomics, so a reader may look at a node that is being changed: it gets numbers that it must throw away
//! unless the version says that they belong together. Counts and levels are always within bounds, whatever a reader sees.
#![expect(unsafe_code, reason = "nodes are raw arena memory; fields are found by address")]

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::arena::{Arena, Offset};
use super::search::Search;
use super::seqlock;
use crate::key::{Trailer, compare, head};
use crate::num::{to_u8, to_u32, to_u64, to_usize};
use crate::sst::simd::prefetch_address;

/// The size of a node.
pub(super) const NODE_BYTES: usize = 1024;
/// Entries of a leaf.
pub(super) const LEAF_MAX: usize = 80;
/// Entries of an inner node.
pub(super) const INNER_MAX: usize = 56;
/// The most bytes that a node's keys can have in common as far as it knows.
const SKIP_MAX: usize = 255;
/// How many of them it holds itself.
const COMMON_MAX: usize = 16;
const PREFIXES_AT: usize = 32;
/// A search for more common bytes reads records: worth it only when it gains so many.
const WORTHWHILE: usize = 3;

const _: () = assert!(PREFIXES_AT + LEAF_MAX * 12 <= NODE_BYTES);
const _: () = assert!(PREFIXES_AT + INNER_MAX * 16 + 4 <= NODE_BYTES);

/// What is looked for: a key, a trailer, and the key's first 16 bytes as a number.
#[derive(Clone, Copy)]
pub(super) struct Probe<'k> {
    pub(super) key: &'k [u8],
    pub(super) trailer: Trailer,
    head: u128,
}

impl<'k> Probe<'k> {
    #[inline]
    pub(super) fn new(key: &'k [u8], trailer: Trailer) -> Probe<'k> {
        Probe { key, trailer, head: head(key) }
    }

    /// The 8 bytes after the first `skip`, zero-padded.
    #[inline]
    fn prefix(&self, skip: usize) -> u64 {
        if let Some(Some(bytes)) = self.key.get(skip..).map(<[u8]>::first_chunk::<8>) {
            return u64::from_be_bytes(*bytes);
        }
        let mut padded = [0; 8];
        let rest = self.key.get(skip..).unwrap_or_default();
        padded[..rest.len()].copy_from_slice(rest);
        u64::from_be_bytes(padded)
    }

    /// How many of the first bytes that a node can skip two keys share.
    pub(super) fn common_bytes(&self, other: &[u8]) -> usize {
        self.key.iter().zip(other).take(SKIP_MAX).take_while(|(a, b)| a == b).count()
    }
}

/// The high `bytes` bytes of a 128-bit number.
#[inline]
fn mask(bytes: usize) -> u128 {
    u128::MAX.checked_shl(to_u32(8 * (COMMON_MAX - bytes.min(COMMON_MAX)))).unwrap_or(0)
}

/// A node's second word.
#[derive(Clone, Copy)]
pub(super) struct Meta(u64);

impl Meta {
    fn new(count: usize, skip: usize, level: u8, next: Offset) -> Meta {
        Meta(to_u64(count) | to_u64(skip) << 16 | u64::from(level) << 24 | u64::from(next) << 32)
    }

    /// Entries.
    #[inline]
    pub(super) fn count(self) -> usize {
        to_usize(self.0 & 0xffff)
    }

    #[inline]
    fn skip(self) -> usize {
        to_usize(self.0 >> 16 & 0xff)
    }

    /// 0 for a leaf.
    #[inline]
    pub(super) fn level(self) -> u8 {
        to_u8(to_usize(self.0 >> 24 & 0xff))
    }

    /// The leaf to the right; 0 for the last one.
    #[inline]
    pub(super) fn next(self) -> Offset {
        to_u32(to_usize(self.0 >> 32))
    }

    /// Whether nothing more fits.
    #[inline]
    pub(super) fn is_full(self) -> bool {
        self.count() == capacity(self.level())
    }

    fn with_count(self, count: usize) -> Meta {
        Meta(self.0 & !0xffff | to_u64(count))
    }

    fn with_skip(self, skip: usize) -> Meta {
        Meta(self.0 & !0xff_0000 | to_u64(skip) << 16)
    }

    fn with_next(self, next: Offset) -> Meta {
        Meta(self.0 & 0xffff_ffff | u64::from(next) << 32)
    }
}

fn capacity(level: u8) -> usize {
    if level == 0 { LEAF_MAX } else { INNER_MAX }
}

/// A place in a node: before the entry `at`.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// How many entries are before the probe.
    pub(super) at: usize,
    /// Whether the prefix of entry `at` is the probe's: if not, its key is not either.
    pub(super) tie: bool,
}

/// A node in an arena.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    base: *mut u8,
    arena: PhantomData<&'a Arena>,
}

impl<'a> Node<'a> {
    /// The node at `offset`.
    ///
    /// # Safety
    /// `offset` came from [`Bump::node`](super::arena::Bump::node) of this arena for [`NODE_BYTES`], with happens-before.
    #[inline]
    pub(super) unsafe fn at(arena: &'a Arena, offset: Offset) -> Node<'a> {
        Node { base: arena.address(offset), arena: PhantomData }
    }

    /// Starts fetching the whole node: its lines arrive together instead of one after the other.
    #[inline]
    pub(super) fn prefetch(self) {
        for line in 0..NODE_BYTES / 64 {
            prefetch_address(self.base.wrapping_add(line * 64));
        }
    }

    #[inline(always)]
    fn word(self, byte: usize) -> &'a AtomicU64 {
        debug_assert!(byte.is_multiple_of(8) && byte + 8 <= NODE_BYTES);
        // SAFETY: nodes are 1 KiB of zero-initialised arena memory aligned to 64, which lives for 'a. This byte position is only
        // ever accessed as this type of atomic, since a node keeps its level.
        unsafe { &*self.base.add(byte).cast::<AtomicU64>() }
    }

    #[inline(always)]
    fn half(self, byte: usize) -> &'a AtomicU32 {
        debug_assert!(byte.is_multiple_of(4) && byte + 4 <= NODE_BYTES);
        // SAFETY: as in `word`.
        unsafe { &*self.base.add(byte).cast::<AtomicU32>() }
    }

    #[inline(always)]
    fn prefix_word(self, at: usize) -> &'a AtomicU64 {
        self.word(PREFIXES_AT + 8 * at)
    }

    #[inline(always)]
    fn offset_word(self, at: usize, level: u8) -> &'a AtomicU32 {
        self.half(PREFIXES_AT + 8 * capacity(level) + 4 * at)
    }

    #[inline(always)]
    fn child_word(self, at: usize) -> &'a AtomicU32 {
        self.half(PREFIXES_AT + 12 * INNER_MAX + 4 * at)
    }

    /// Waits for a moment of rest; see [`seqlock::read_begin`].
    #[inline]
    pub(super) fn read_begin(self) -> u64 {
        seqlock::read_begin(self.word(0))
    }

    /// Whether the node is still as it was at `version`.
    #[inline]
    pub(super) fn validate(self, version: u64) -> bool {
        seqlock::validate(self.word(0), version)
    }

    /// Before the writer changes the node.
    #[inline]
    pub(super) fn write_begin(self) {
        seqlock::write_begin(self.word(0));
    }

    /// After the writer has changed the node.
    #[inline]
    pub(super) fn write_end(self) {
        seqlock::write_end(self.word(0));
    }

    /// Counts, level and next leaf.
    #[inline]
    pub(super) fn meta(self) -> Meta {
        Meta(self.word(8).load(Relaxed))
    }

    fn set_meta(self, meta: Meta) {
        self.word(8).store(meta.0, Relaxed);
    }

    #[inline]
    fn common(self) -> u128 {
        let high = self.word(16).load(Relaxed);
        let low = self.word(24).load(Relaxed);
        u128::from(high) << 64 | u128::from(low)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
    fn set_common(self, common: u128) {
        self.word(16).store((common >> 64) as u64, Relaxed);
        self.word(24).store(common as u64, Relaxed);
    }

    #[inline]
    fn prefix(self, at: usize) -> u64 {
        self.prefix_word(at).load(Relaxed)
    }

    /// The record of entry `at`.
    #[inline]
    pub(super) fn offset(self, at: usize, level: u8) -> Offset {
        self.offset_word(at, level).load(Relaxed)
    }

    /// Child `at`, at most as many as there are entries.
    #[inline]
    pub(super) fn child(self, at: usize) -> Offset {
        self.child_word(at).load(Relaxed)
    }

    /// How many entries are before the probe. `valid` says whether what was read so far may be used; `None` if it may not (the
    /// caller starts again). The answer itself must be validated by the caller as well.
    #[inline]
    pub(super) fn lower_bound(
        self,
        probe: &Probe<'_>,
        arena: &Arena,
        search: Search,
        valid: impl Fn() -> bool,
    ) -> Option<Found> {
        let meta = self.meta();
        let (count, skip) = (meta.count(), meta.skip());
        if skip > 0 {
            let (ours, common) = (probe.head & mask(skip), self.common());
            if ours != common {
                return Some(Found { at: if ours < common { 0 } else { count }, tie: false });
            }
            if skip > COMMON_MAX && count > 0 {
                let first = self.offset(0, meta.level());
                if !valid() {
                    return None;
                }
                // SAFETY: the version was valid after the offset was read, so a writer's release published it.
                let first = unsafe { arena.record(first) }.key;
                let ours = &probe.key[..skip.min(probe.key.len())];
                match ours.cmp(&first[..skip.min(first.len())]) {
                    Ordering::Equal => {}
                    order => {
                        return Some(Found { at: if order.is_lt() { 0 } else { count }, tie: false });
                    }
                }
            } else if probe.key.len() < skip {
                return Some(Found { at: 0, tie: false });
            }
        }
        let prefix = probe.prefix(skip);
        let prefixes = self.base.wrapping_add(PREFIXES_AT).cast::<u64>();
        // SAFETY: the prefixes of a node; `count` is at most the capacity, a multiple of 8.
        let first = unsafe { search.count_below(prefixes, count, prefix) }.min(count);
        if first == count || self.prefix(first) != prefix {
            return Some(Found { at: first, tie: false });
        }
        // Equal prefixes: the records decide.
        let mut low = first;
        let mut high = first + 1;
        while high < count && self.prefix(high) == prefix {
            high += 1;
        }
        let end = high;
        while low < high {
            let middle = low.midpoint(high);
            let offset = self.offset(middle, meta.level());
            if !valid() {
                return None;
            }
            // SAFETY: the version was valid after the offset was read, so a writer's release published it.
            let entry = unsafe { arena.record(offset) };
            if compare(entry.key, entry.trailer, probe.key, probe.trailer).is_lt() {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(Found { at: low, tie: low < end })
    }

    /// Makes fresh memory a node. Nobody else knows it yet.
    pub(super) fn init(self, level: u8, next: Offset) {
        self.set_meta(Meta::new(0, 0, level, next));
        self.clear_prefixes(0, level);
    }

    /// Unused prefixes are the largest number, so that a search need not mask them.
    fn clear_prefixes(self, from: usize, level: u8) {
        for at in from..capacity(level) {
            self.prefix_word(at).store(u64::MAX, Relaxed);
        }
    }

    /// The leftmost child of an inner node.
    pub(super) fn set_first_child(self, child: Offset) {
        self.child_word(0).store(child, Relaxed);
    }

    /// The leaf to the right.
    pub(super) fn set_next(self, next: Offset) {
        self.set_meta(self.meta().with_next(next));
    }

    /// Puts an entry before entry `at`, with the child to its right in an inner node. The writer has begun a change of this
    /// node, which is not full. The first entry of a node believes in up to `hint` common bytes.
    #[inline]
    pub(super) fn insert(
        self,
        arena: &Arena,
        at: usize,
        probe: &Probe<'_>,
        (offset, right): (Offset, Offset),
        hint: usize,
    ) {
        let meta = self.meta();
        let (count, level) = (meta.count(), meta.level());
        debug_assert!(at <= count && !meta.is_full());
        let skip = self.agree(arena, probe, meta, hint);
        for from in (at..count).rev() {
            self.prefix_word(from + 1).store(self.prefix(from), Relaxed);
        }
        for from in (at..count).rev() {
            self.offset_word(from + 1, level).store(self.offset(from, level), Relaxed);
        }
        if level > 0 {
            for from in (at + 1..=count).rev() {
                self.child_word(from + 1).store(self.child(from), Relaxed);
            }
            self.child_word(at + 1).store(right, Relaxed);
        }
        self.prefix_word(at).store(probe.prefix(skip), Relaxed);
        self.offset_word(at, level).store(offset, Relaxed);
        self.set_meta(meta.with_count(count + 1).with_skip(skip));
    }

    /// Gives up common bytes that the new key does not share, and returns how many are left. Only their first key is read for
    /// it: the bytes that move into the prefixes are the common ones.
    #[inline]
    fn agree(self, arena: &Arena, probe: &Probe<'_>, meta: Meta, hint: usize) -> usize {
        let (count, skip) = (meta.count(), meta.skip());
        if count == 0 {
            let skip = hint.min(SKIP_MAX).min(probe.key.len());
            self.set_common(probe.head & mask(skip));
            return skip;
        }
        let inline = (self.common() ^ probe.head) & mask(skip) == 0 && probe.key.len() >= skip;
        if inline && skip <= COMMON_MAX {
            return skip;
        }
        // SAFETY: the writer inserted it.
        let first = unsafe { arena.record(self.offset(0, meta.level())) };
        let shared = probe.common_bytes(first.key).min(skip);
        if shared < skip {
            self.shorten(&Probe::of(first), skip, shared, count);
        }
        shared
    }

    /// Moves the bytes from `new` to `old` of `first` back into the prefixes.
    #[cold]
    fn shorten(self, first: &Probe<'_>, old: usize, new: usize, count: usize) {
        let moved_bits = to_u32(8 * (old - new).min(8));
        let moved = first.prefix(new) & !u64::MAX.checked_shr(moved_bits).unwrap_or(0);
        for at in 0..count {
            let behind = self.prefix(at).checked_shr(moved_bits).unwrap_or(0);
            self.prefix_word(at).store(moved | behind, Relaxed);
        }
        self.set_common(first.head & mask(new));
    }

    /// Looks for more common bytes in entries `from..to` than the node knows: what a half of it will start with after a split.
    pub(super) fn tighten(self, from: usize, to: usize, arena: &Arena) -> Prefixes {
        let meta = self.meta();
        let (level, skip) = (meta.level(), meta.skip());
        let mut found = Prefixes { skip, common: self.common(), prefixes: [u64::MAX; LEAF_MAX] };
        for (prefix, at) in found.prefixes.iter_mut().zip(from..to) {
            *prefix = self.prefix(at);
        }
        if from == to {
            return found;
        }
        // SAFETY: the writer reads entries that it inserted.
        let entry = |at: usize| unsafe { arena.record(self.offset(at, level)) };
        let (first, last) = (Probe::of(entry(from)), Probe::of(entry(to - 1)));
        let common = last.common_bytes(first.key);
        if common < skip + WORTHWHILE {
            return found;
        }
        (from..to).for_each(|at| arena.prefetch_key(self.offset(at, level)));
        found.skip = common;
        found.common = first.head & mask(common);
        for (prefix, at) in found.prefixes.iter_mut().zip(from..to) {
            *prefix = Probe::of(entry(at)).prefix(common);
        }
        found
    }

    /// Fills fresh memory with entries `from..to` of `other`, a node of the same level, and their children.
    pub(super) fn copy_from(self, other: Node<'_>, from: usize, to: usize, prefixes: &Prefixes) {
        let level = self.meta().level();
        for (at, old) in (from..to).enumerate() {
            self.offset_word(at, level).store(other.offset(old, level), Relaxed);
        }
        if level > 0 {
            for (at, old) in (from..=to).enumerate() {
                self.child_word(at).store(other.child(old), Relaxed);
            }
        }
        self.keep(to - from, prefixes);
    }

    /// Keeps the first `count` entries, with the prefixes that [`Node::tighten`] found for them.
    pub(super) fn keep(self, count: usize, found: &Prefixes) {
        let meta = self.meta();
        self.set_common(found.common);
        for (at, prefix) in found.prefixes[..count].iter().enumerate() {
            self.prefix_word(at).store(*prefix, Relaxed);
        }
        self.clear_prefixes(count, meta.level());
        self.set_meta(meta.with_count(count).with_skip(found.skip));
    }
}

impl<'k> Probe<'k> {
    /// The probe that finds `entry`.
    pub(super) fn of(entry: crate::key::Entry<'k>) -> Probe<'k> {
        Probe::new(entry.key, entry.trailer)
    }

    /// The key's first 16 bytes.
    #[inline]
    pub(super) fn head(&self) -> u128 {
        self.head
    }
}

/// The common bytes and prefixes of some entries.
pub(super) struct Prefixes {
    skip: usize,
    common: u128,
    prefixes: [u64; LEAF_MAX],
}

//! Which of the keys that were inserted are there, compactly.
//!
//! Keys are counted by insertion: index 0, 1, 2, ... All from a low watermark on are there but for *holes*, one bit each, in pages that exist
//! only where there is a hole. So inserts alone, and a queue that deletes its oldest, take no memory; deletes at random take a bit for
//! every key between the watermark and the newest.

use std::collections::VecDeque;

#[cfg(test)]
use crate::num::count;
use crate::num::index;

/// Keys of a page.
const PAGE: u64 = 4096;
/// Pages of a block: counts of holes are kept for both, so that the n-th key is found in a few hundred steps.
const BLOCK: u64 = 256;
/// The most keys between the watermark and the newest that may have holes: 48 MiB of bits.
pub(super) const MOST_WITH_HOLES: u64 = (48 << 20) * 8;

#[derive(Clone, Debug)]
struct Page {
    bits: [u64; 64],
    holes: u64,
}

/// The keys that are there.
#[derive(Clone, Debug, Default)]
pub(super) struct Live {
    /// All below are gone.
    low: u64,
    /// How many were ever inserted.
    end: u64,
    /// Holes from `low` on.
    holes: u64,
    /// The watermark stays where it is, since any hole may become a key again.
    is_domain: bool,
    /// The first page's number, and the pages from there; those beyond the last hole may be left out.
    first_page: u64,
    pages: VecDeque<Option<Box<Page>>>,
    /// Holes of each block of pages, by the block's number less `first_page / BLOCK`.
    blocks: VecDeque<u64>,
}

impl Live {
    /// `n` keys, none of which is there.
    pub(super) fn empty_domain(n: u64) -> Live {
        let mut live = Live { end: n, is_domain: true, ..Live::default() };
        for at in 0..n {
            live.mark(at);
        }
        live
    }

    /// How many keys are there.
    #[inline]
    pub(super) fn len(&self) -> u64 {
        self.end - self.low - self.holes
    }

    /// The index of the first that may be there.
    #[inline]
    pub(super) fn low(&self) -> u64 {
        self.low
    }

    /// How many were ever inserted.
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Deleted keys that are remembered.
    #[inline]
    pub(super) fn holes(&self) -> u64 {
        self.holes
    }

    /// Whether the key is there.
    #[inline]
    pub(super) fn contains(&self, at: u64) -> bool {
        at >= self.low && at < self.end && (self.holes == 0 || !self.is_hole(at))
    }

    fn is_hole(&self, at: u64) -> bool {
        let page = self.pages.get(index(at / PAGE - self.first_page)).and_then(Option::as_deref);
        page.is_some_and(|page| page.bits[index(at % PAGE / 64)] >> (at % 64) & 1 == 1)
    }

    /// Inserts the next key and returns its index.
    #[inline]
    pub(super) fn insert(&mut self) -> u64 {
        self.end += 1;
        self.end - 1
    }

    /// Deletes a key that is there.
    pub(super) fn remove(&mut self, at: u64) {
        debug_assert!(self.contains(at), "key {at} is not there");
        if at == self.low && !self.is_domain {
            self.low += 1;
            self.raise();
        } else {
            self.mark(at);
        }
    }

    /// Makes a hole a key again.
    pub(super) fn revive(&mut self, at: u64) {
        debug_assert!(at >= self.low && self.is_hole(at), "key {at} was not deleted");
        self.unmark(at);
    }

    fn mark(&mut self, at: u64) {
        if self.pages.is_empty() {
            self.first_page = self.low / PAGE;
        }
        let page = index(at / PAGE - self.first_page);
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let block = index(at / PAGE / BLOCK - self.first_page / BLOCK);
        if block >= self.blocks.len() {
            self.blocks.resize(block + 1, 0);
        }
        let slot = self.pages[page].get_or_insert_with(|| Box::new(Page { bits: [0; 64], holes: 0 }));
        slot.bits[index(at % PAGE / 64)] |= 1 << (at % 64);
        slot.holes += 1;
        self.blocks[block] += 1;
        self.holes += 1;
    }

    fn unmark(&mut self, at: u64) {
        let block = index(at / PAGE / BLOCK - self.first_page / BLOCK);
        let slot = &mut self.pages[index(at / PAGE - self.first_page)];
        let page = slot.as_deref_mut().expect("a hole has a page");
        page.bits[index(at % PAGE / 64)] &= !(1 << (at % 64));
        page.holes -= 1;
        if page.holes == 0 {
            *slot = None;
        }
        self.blocks[block] -= 1;
        self.holes -= 1;
    }

    /// Moves the watermark over holes, and drops the pages below it.
    fn raise(&mut self) {
        while self.holes > 0 && self.is_hole(self.low) {
            self.unmark(self.low);
            self.low += 1;
        }
        if self.holes == 0 {
            self.pages.clear();
            self.blocks.clear();
            return;
        }
        while self.first_page < self.low / PAGE {
            self.pages.pop_front();
            self.first_page += 1;
            if self.first_page.is_multiple_of(BLOCK) {
                self.blocks.pop_front();
            }
        }
    }

    /// The index of the key that is there with as many before it.
    ///
    /// # Panics
    /// If there are not as many.
    pub(super) fn select(&self, rank: u64) -> u64 {
        assert!(rank < self.len(), "rank {rank} of {}", self.len());
        if self.holes == 0 {
            return self.low + rank;
        }
        self.find(rank, self.low, |length, holes| length - holes, |word| !word)
    }

    /// The index of the hole that has as many before it.
    ///
    /// # Panics
    /// If there are not as many.
    pub(super) fn select_hole(&self, rank: u64) -> u64 {
        assert!(rank < self.holes, "hole {rank} of {}", self.holes);
        self.find(rank, self.low, |_, holes| holes, |word| word)
    }

    /// Walks blocks, then pages, then words. `of` tells how many of what is looked for are in a stretch of a length with so many holes; `bits` shows
    /// them in a word of holes.
    fn find(&self, rank: u64, from: u64, of: impl Fn(u64, u64) -> u64, bits: impl Fn(u64) -> u64) -> u64 {
        let mut left = rank;
        let mut at = from;
        loop {
            let (page, block) = (at / PAGE, at / PAGE / BLOCK);
            if at == from || at.is_multiple_of(PAGE * BLOCK) {
                let end = (block + 1) * BLOCK * PAGE;
                let holes = self.blocks.get(index(block - self.first_page / BLOCK)).copied().unwrap_or(0);
                let inside = of(end - at, holes);
                if left >= inside {
                    (left, at) = (left - inside, end);
                    continue;
                }
            }
            let holes = self.pages.get(index(page - self.first_page)).and_then(Option::as_deref);
            let end = (page + 1) * PAGE;
            let inside = of(end - at, holes.map_or(0, |page| page.holes));
            if left >= inside {
                (left, at) = (left - inside, end);
                continue;
            }
            let word = |n: u64| holes.map_or(0, |page| page.bits[index(n)]);
            loop {
                let mut bits = bits(word(at % PAGE / 64)) & (u64::MAX << (at % 64));
                let inside = u64::from(bits.count_ones());
                if left >= inside {
                    (left, at) = (left - inside, (at / 64 + 1) * 64);
                    continue;
                }
                for _ in 0..left {
                    bits &= bits - 1;
                }
                return at / 64 * 64 + u64::from(bits.trailing_zeros());
            }
        }
    }

    /// Bytes of memory that it takes.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> u64 {
        let pages = count(self.pages.iter().flatten().count());
        pages * count(size_of::<Page>()) + count(self.pages.len()) * 8 + count(self.blocks.len()) * 8
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use siltstone::io::Rng;

    use super::*;

    #[test]
    fn like_a_set() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let start = if seed % 2 == 0 { 0 } else { 3 * PAGE };
            let mut live = Live::empty_domain(start);
            live.is_domain = seed % 4 == 0;
            let mut set = BTreeSet::new();
            for _ in 0..30_000 {
                match rng.below(if seed % 3 == 0 { 4 } else { 5 }) {
                    0 | 1 => {
                        let at = live.insert();
                        set.insert(at);
                    }
                    2 if !set.is_empty() => {
                        let at = live.select(rng.below(live.len()));
                        assert!(set.remove(&at));
                        live.remove(at);
                    }
                    3 if live.holes() > 0 => {
                        let at = live.select_hole(rng.below(live.holes()));
                        assert!(set.insert(at), "{at}");
                        live.revive(at);
                    }
                    4 if !set.is_empty() => {
                        let at = live.select(0);
                        assert_eq!(set.pop_first(), Some(at));
                        live.remove(at);
                    }
                    _ => {}
                }
                assert_eq!(live.len(), count(set.len()));
            }
            let found: Vec<u64> = (0..live.len()).map(|rank| live.select(rank)).collect();
            assert!(found.iter().eq(&set));
            assert!((0..live.end() + 10).all(|at| live.contains(at) == set.contains(&at)));
        }
    }

    #[test]
    fn a_queue_takes_no_memory() {
        let mut live = Live::default();
        for _ in 0..1000 {
            live.insert();
        }
        for _ in 0..1_000_000 {
            live.insert();
            live.remove(live.select(0));
        }
        assert_eq!((live.len(), live.memory_bytes()), (1000, 0));
    }
}

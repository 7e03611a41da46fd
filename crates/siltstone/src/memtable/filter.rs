//! A Bloom filter of one cache line a key, in front of a memtable: 30 ns instead of a tree walk when the key is not there.
//!
//! A key sets one bit in each of the eight words of its line. At 10 bits a key about 1 % of absent keys pass. The filter does
//! not grow: a memtable with more entries than expected only lets more absent keys pass.

use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = 8;
const BITS_PER_KEY: u64 = 10;
/// What an entry is assumed to take when a filter is sized.
const ENTRY_BYTES: u64 = 100;
/// Any odd number with well-mixed bits: spreads 32 bits of the hash over the eight bit positions.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The words that a filter for a memtable of `capacity_bytes` needs.
pub(super) fn words(capacity_bytes: u64) -> usize {
    let bits = capacity_bytes / ENTRY_BYTES * BITS_PER_KEY;
    let lines = bits.div_ceil(512).clamp(1, 1 << 20);
    crate::num::to_usize(lines) * WORDS
}

/// The words as lines: a filter lies in memory that somebody else owns.
fn line(words: &[AtomicU64], hash: u64) -> &[AtomicU64; WORDS] {
    let (lines, _) = words.as_chunks::<WORDS>();
    // The high half of the hash picks the line, the low half the bits.
    let at = ((hash >> 32) * crate::num::to_u64(lines.len())) >> 32;
    &lines[crate::num::to_usize(at)]
}

#[inline]
fn bits(hash: u64) -> [u64; WORDS] {
    let spread = (hash & 0xffff_ffff).wrapping_mul(SPREAD) >> 16;
    std::array::from_fn(|word| 1 << (spread >> (6 * word) & 63))
}

/// Adds a key. Only the one writer calls it: bits are set by a plain load and store.
#[inline]
pub(super) fn insert(words: &[AtomicU64], hash: u64) {
    for (word, bit) in line(words, hash).iter().zip(bits(hash)) {
        word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
    }
}

/// Whether a key with this hash may have been added. A reader that learnt of a key through an acquire sees its bits.
#[inline]
pub(super) fn may_contain(words: &[AtomicU64], hash: u64) -> bool {
    let mut missing = 0;
    for (word, bit) in line(words, hash).iter().zip(bits(hash)) {
        missing |= bit & !word.load(Ordering::Relaxed);
    }
    missing == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_added_and_little_else() {
        let capacity = 1 << 20;
        let filter: Vec<AtomicU64> = (0..words(capacity)).map(|_| AtomicU64::new(0)).collect();
        let hash = |n: u64| crate::key::hash(&n.to_le_bytes());
        let keys = capacity / ENTRY_BYTES;
        (0..keys).for_each(|n| insert(&filter, hash(n)));
        assert!((0..keys).all(|n| may_contain(&filter, hash(n))));
        let passed = (keys..11 * keys).filter(|&n| may_contain(&filter, hash(n))).count();
        assert!(passed * 100 < 2 * 10 * crate::num::to_usize(keys), "{passed} of {} absent keys passed", 10 * keys);
    }
}

//! Counting the prefixes below one: the inner loop of every search in the memtable's tree.
//!
//! Prefixes are sorted, so the count is the position. With AVX-512 or AVX2 all of them are compared, eight or four at once: that
//! needs no branch on the data, and the cache lines of a cold leaf are fetched together. Elsewhere a binary search does.
//!
//! The words may be changed by the writer meanwhile, so they must be read atomically. Rust has no atomic vector load; inline
//! assembly stands for the relaxed loads of its aligned eight-byte lanes, which is what the instruction does.
#![expect(unsafe_code, reason = "vector loads of words that another thread may write")]

use std::sync::atomic::{AtomicU64, Ordering};

/// How this machine counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Search {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl Search {
    /// The fastest that this processor has.
    pub(super) fn detect() -> Search {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx512f") && has!("avx512dq") && has!("popcnt") {
                return Search::Avx512;
            }
            if has!("avx2") && has!("popcnt") {
                return Search::Avx2;
            }
        }
        Search::Portable
    }

    /// How many of the `count` sorted numbers at `words` are below `limit`.
    ///
    /// # Safety
    /// At `words`, aligned to 8, lie `count` rounded up to a multiple of 8 numbers that are accessed as `AtomicU64` only; those
    /// from `count` on are `u64::MAX` (if a racing writer makes this untrue, the answer is wrong, but at most the rounded count).
    #[inline]
    pub(super) unsafe fn count_below(self, words: *const u64, count: usize, limit: u64) -> usize {
        if count == 0 {
            return 0;
        }
        match self {
            // SAFETY: passed on; `detect` saw the features.
            #[cfg(target_arch = "x86_64")]
            Search::Avx512 => unsafe { avx512(words, count, limit) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Search::Avx2 => unsafe { avx2(words, count, limit) },
            Search::Portable => {
                // SAFETY: the caller says that `count` atomics lie there.
                let words = unsafe { std::slice::from_raw_parts(words.cast::<AtomicU64>(), count) };
                portable(words, limit)
            }
        }
    }
}

/// Binary search, without a branch on the data.
fn portable(words: &[AtomicU64], limit: u64) -> usize {
    let mut base = 0;
    let mut len = words.len();
    while len > 1 {
        let half = len / 2;
        base += if words[base + half - 1].load(Ordering::Relaxed) < limit { half } else { 0 };
        len -= half;
    }
    base + usize::from(words[base].load(Ordering::Relaxed) < limit)
}

/// # Safety
/// As [`Search::count_below`], `count` is not 0, and the processor has AVX-512 F and DQ.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn avx512(words: *const u64, count: usize, limit: u64) -> usize {
    let total: u64;
    // SAFETY: reads `count` rounded up to 8 words, which the caller vouches for; zmm16 and above need no vzeroupper.
    unsafe {
        std::arch::asm!(
            "vpbroadcastq zmm16, {limit}",
            "2:",
            "vpcmpuq k1, zmm16, zmmword ptr [{at}], 6",
            "kmovb {mask:e}, k1",
            "popcnt {mask:e}, {mask:e}",
            "add {total}, {mask}",
            "add {at}, 64",
            "sub {left}, 8",
            "ja 2b",
            limit = in(reg) limit,
            at = inout(reg) words => _,
            left = inout(reg) count => _,
            mask = out(reg) _,
            total = inout(reg) 0u64 => total,
            out("xmm16") _,
            out("k1") _,
            options(nostack, readonly),
        );
    }
    crate::num::to_usize(total)
}

/// # Safety
/// As [`Search::count_below`], `count` is not 0, and the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn avx2(words: *const u64, count: usize, limit: u64) -> usize {
    let total: u64;
    // AVX2 compares signed numbers only: with the sign bit of both flipped, the order is the unsigned one.
    // SAFETY: reads `count` rounded up to 4 words, which the caller vouches for. vzeroupper clears the upper halves of all
    // vector registers, hence the list.
    unsafe {
        std::arch::asm!(
            "vmovq xmm0, {limit}",
            "vmovq xmm1, {sign}",
            "vpbroadcastq ymm0, xmm0",
            "vpbroadcastq ymm1, xmm1",
            "vpxor ymm0, ymm0, ymm1",
            "2:",
            "vpxor ymm2, ymm1, ymmword ptr [{at}]",
            "vpcmpgtq ymm2, ymm0, ymm2",
            "vmovmskpd {mask:e}, ymm2",
            "popcnt {mask:e}, {mask:e}",
            "add {total}, {mask}",
            "add {at}, 32",
            "sub {left}, 4",
            "ja 2b",
            "vzeroupper",
            limit = in(reg) limit,
            sign = in(reg) 1u64 << 63,
            at = inout(reg) words => _,
            left = inout(reg) count => _,
            mask = out(reg) _,
            total = inout(reg) 0u64 => total,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack, readonly),
        );
    }
    crate::num::to_usize(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Rng;

    /// Every way to count gives what a plain count gives, on numbers that differ in the first and in the last bits.
    #[test]
    fn all_ways_agree() {
        let mut rng = Rng::new(7);
        for round in 0..4000 {
            let count = to_usize(rng.below(81));
            let shift = rng.below(60);
            let mut words: Vec<u64> = (0..count).map(|_| rng.next_u64() >> shift).collect();
            words.sort_unstable();
            let limit = if rng.one_in(2) || count == 0 {
                rng.next_u64() >> shift
            } else {
                words[to_usize(rng.below(count as u64))]
            };
            let expected = words.iter().filter(|&&word| word < limit).count();
            let mut padded: Vec<AtomicU64> = words.into_iter().map(AtomicU64::new).collect();
            padded.resize_with(count.next_multiple_of(8), || AtomicU64::new(u64::MAX));
            let mut ways = vec![Search::Portable];
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            {
                if Search::detect() == Search::Avx512 {
                    ways.push(Search::Avx512);
                }
                if is_x86_feature_detected!("avx2") {
                    ways.push(Search::Avx2);
                }
            }
            for way in ways {
                // SAFETY: `padded` is as the function wants it.
                let got = unsafe { way.count_below(padded.as_ptr().cast(), count, limit) };
                assert_eq!(got, expected, "{way:?} in round {round}");
            }
        }
    }

    use crate::num::to_usize;
}

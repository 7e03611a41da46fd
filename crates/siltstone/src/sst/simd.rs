//! The searches that wide instructions make cheap, chosen at run time, each with a portable form that is tested as its equal.
//!
//! - [`count_below`]: how many of a block's ordered 2-byte key heads are below one. 31 heads of a 4 KiB block are one AVX-512
//!   compare.
//! - [`descend`]: the lower bound in a tree of 8-byte prefixes, eight of them a cache line and a level.
//! - [`prefetch`], [`prefetch_for_writing`], [`prefetch_for_appending`]: ask for a cache line and wait for nothing.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64 as arch;
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicU8, Ordering};

/// Eight ordered prefixes: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u64; 8]);

/// Heads counted at once; more are halved first.
const WINDOW: usize = 64;

/// How many of the heads (little-endian u16 in ascending order, two bytes each) are below `head`. An odd last byte is ignored.
#[inline]
pub(crate) fn count_below(heads: &[u8], head: u16) -> usize {
    let mut below = 0;
    let mut rest = heads;
    while rest.len() > 2 * WINDOW {
        // All of `rest` before `middle` is below `head` or all of it from there on is not.
        let middle = rest.len() / 4;
        if u16::from_le_bytes([rest[2 * middle - 2], rest[2 * middle - 1]]) < head {
            below += middle;
            rest = &rest[2 * middle..];
        } else {
            rest = &rest[..2 * middle];
        }
    }
    #[cfg(target_arch = "x86_64")]
    if widest() == AVX512 {
        // SAFETY: `ask` has found all instructions to be there.
        return below + unsafe { count_below_avx512(rest, head) };
    }
    below + count_below_portable(rest, head)
}

/// What [`widest`] answers: nothing beyond what each processor has, AVX2 with `popcnt`, or all that any function here uses.
#[cfg(target_arch = "x86_64")]
const PORTABLE: u8 = 1;
#[cfg(target_arch = "x86_64")]
const AVX2: u8 = 2;
#[cfg(target_arch = "x86_64")]
const AVX512: u8 = 3;

/// The widest instructions that may be used. Kept in one place, since asking for each of those that a function uses takes 30 instructions a get.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn widest() -> u8 {
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    #[cold]
    fn ask() -> u8 {
        use std::arch::is_x86_feature_detected as has;
        let widest = if !has!("popcnt") || !has!("avx2") {
            PORTABLE
        } else if has!("avx512f") && has!("avx512bw") && has!("bmi2") {
            AVX512
        } else {
            AVX2
        };
        KNOWN.store(widest, Ordering::Relaxed);
        widest
    }
    match KNOWN.load(Ordering::Relaxed) {
        0 => ask(),
        widest => widest,
    }
}

/// [`count_below`] for up to [`WINDOW`] heads without special instructions.
#[inline]
fn count_below_portable(heads: &[u8], head: u16) -> usize {
    let mut n = 0u16;
    for pair in heads.chunks_exact(2) {
        n += u16::from(u16::from_le_bytes([pair[0], pair[1]]) < head);
    }
    usize::from(n)
}

/// [`count_below`], 32 heads a step.
///
/// # Safety
/// The processor has AVX-512 F and BW, BMI2 and `popcnt`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512bw,avx512f,bmi2,popcnt")]
#[expect(clippy::cast_possible_wrap, reason = "a bit pattern")]
unsafe fn count_below_avx512(heads: &[u8], head: u16) -> usize {
    let wanted = arch::_mm512_set1_epi16(head as i16);
    let mut n = 0;
    let mut rest = heads;
    while rest.len() >= 2 {
        let lanes = (rest.len() / 2).min(32);
        let mask = u32::MAX >> (32 - lanes);
        // SAFETY: the mask lets through only lanes that lie within `rest`; masked lanes are not accessed.
        let some = unsafe { arch::_mm512_maskz_loadu_epi16(mask, rest.as_ptr().cast()) };
        n += arch::_mm512_mask_cmplt_epu16_mask(mask, some, wanted).count_ones() as usize;
        rest = &rest[2 * lanes..];
    }
    n
}

/// The index, among the lowest level's prefixes, of the first that is at least `wanted`, which must not exceed the largest one.
/// `levels` holds where each level of `lines` begins, the root first; see [`Fences`](super::index::Fences).
#[inline]
pub(crate) fn descend(lines: &[Line], levels: &[u32], wanted: u64) -> usize {
    #[cfg(target_arch = "x86_64")]
    match widest() {
        // SAFETY: `ask` has found all instructions to be there.
        AVX512 => return unsafe { descend_avx512(lines, levels, wanted) },
        // SAFETY: as above.
        AVX2 => return unsafe { descend_avx2(lines, levels, wanted) },
        _ => {}
    }
    descend_portable(lines, levels, wanted)
}

fn descend_portable(lines: &[Line], levels: &[u32], wanted: u64) -> usize {
    let mut group = 0;
    for &start in levels {
        let line = &lines[start as usize + group];
        let below: u64 = line.0.iter().map(|&prefix| u64::from(prefix < wanted)).sum();
        group = group * 8 + crate::num::to_usize(below);
    }
    group
}

/// # Safety
/// The processor has AVX-512 F and `popcnt`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,popcnt")]
#[expect(clippy::cast_possible_wrap, reason = "a bit pattern")]
unsafe fn descend_avx512(lines: &[Line], levels: &[u32], wanted: u64) -> usize {
    let wanted = arch::_mm512_set1_epi64(wanted as i64);
    let mut group = 0;
    for &start in levels {
        let line = &lines[start as usize + group];
        // SAFETY: a `Line` is 64 bytes, aligned to 64.
        let prefixes = unsafe { arch::_mm512_load_si512(std::ptr::from_ref(line).cast()) };
        group = group * 8 + arch::_mm512_cmplt_epu64_mask(prefixes, wanted).count_ones() as usize;
    }
    group
}

/// # Safety
/// The processor has AVX2 and `popcnt`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,popcnt")]
#[expect(clippy::cast_possible_wrap, reason = "a bit pattern")]
unsafe fn descend_avx2(lines: &[Line], levels: &[u32], wanted: u64) -> usize {
    // AVX2 compares signed numbers only: with the top bit flipped they order as the unsigned ones do.
    let flip = arch::_mm256_set1_epi64x(i64::MIN);
    let wanted = arch::_mm256_xor_si256(arch::_mm256_set1_epi64x(wanted as i64), flip);
    let mut group = 0;
    for &start in levels {
        let line: *const arch::__m256i = std::ptr::from_ref(&lines[start as usize + group]).cast();
        // SAFETY: a `Line` is two of these, aligned to 64.
        let (low, high) = unsafe { (arch::_mm256_load_si256(line), arch::_mm256_load_si256(line.add(1))) };
        let low = arch::_mm256_cmpgt_epi64(wanted, arch::_mm256_xor_si256(low, flip));
        let high = arch::_mm256_cmpgt_epi64(wanted, arch::_mm256_xor_si256(high, flip));
        let low = arch::_mm256_movemask_pd(arch::_mm256_castsi256_pd(low)).count_ones();
        let high = arch::_mm256_movemask_pd(arch::_mm256_castsi256_pd(high)).count_ones();
        group = group * 8 + (low + high) as usize;
    }
    group
}

/// Asks for the cache line that holds `bytes[at]`, and for nothing if there is none.
#[inline(always)]
pub(crate) fn prefetch(bytes: &[u8], at: usize) {
    if let Some(byte) = bytes.get(at) {
        prefetch_address(byte);
    }
}

/// Asks for the cache line at an address, whatever is there.
#[inline(always)]
pub(crate) fn prefetch_address<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint: it reads nothing and never faults, whatever the address. SSE is part of every x86-64.
    unsafe {
        arch::_mm_prefetch::<{ arch::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for the cache line at an address, whatever is there, to be written to: no other core keeps it.
#[inline(always)]
pub(crate) fn prefetch_for_writing<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint: it changes nothing and never faults, whatever the address. Every x86-64 processor knows it or does nothing at it.
    unsafe {
        // The compiler's own form is that of reading, unless it may rely on newer processors.
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for the lines that whoever appends small records, and is at `end`, comes to soon. A store to a line that is not in the cache takes no
/// time until a locked instruction waits for it, and a lock that is released is one.
#[inline(always)]
pub(crate) fn prefetch_for_appending(end: *const u8) {
    const AHEAD: usize = 192;
    prefetch_for_writing(end.wrapping_add(AHEAD));
    prefetch_for_writing(end.wrapping_add(AHEAD + 64));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Rng;

    #[test]
    fn every_form_of_count_below_agrees() {
        let mut rng = Rng::new(7);
        for round in 0..3000u64 {
            let n = usize::try_from(rng.below(if round % 10 == 0 { 2000 } else { 80 })).unwrap();
            let spread = [2, 50, 1 << 16][usize::try_from(rng.below(3)).unwrap()];
            let base = rng.below(65536 - spread + 1);
            let mut heads: Vec<u16> = (0..n).map(|_| u16::try_from(base + rng.below(spread)).unwrap()).collect();
            heads.sort_unstable();
            let bytes: Vec<u8> = heads.iter().flat_map(|h| h.to_le_bytes()).collect();
            let some = heads.get(n / 2).copied().unwrap_or(0);
            for wanted in [0, 1, some, some.saturating_add(1), u16::MAX, u16::try_from(rng.below(65536)).unwrap()] {
                let expected = heads.iter().filter(|&&h| h < wanted).count();
                assert_eq!(count_below(&bytes, wanted), expected);
                assert_eq!(count_below_portable(&bytes, wanted), expected);
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("avx512bw") {
                    // SAFETY: just detected.
                    assert_eq!(unsafe { count_below_avx512(&bytes, wanted) }, expected);
                }
            }
        }
    }

    #[test]
    fn every_form_of_descend_agrees() {
        let mut rng = Rng::new(8);
        for _ in 0..300 {
            let n = usize::try_from(rng.between(1, 700)).unwrap();
            let mask = [3, 0xffff, u64::MAX][usize::try_from(rng.below(3)).unwrap()];
            let mut heads: Vec<u64> = (0..n).map(|_| rng.next_u64() & mask).collect();
            if rng.one_in(3) {
                heads.push(u64::MAX);
            }
            heads.sort_unstable();
            let (lines, levels) = crate::sst::index::build_tree(&heads);
            let largest = heads[heads.len() - 1];
            for _ in 0..50 {
                let wanted = if rng.one_in(2) {
                    rng.next_u64() & mask
                } else {
                    heads[usize::try_from(rng.below(n as u64)).unwrap()]
                };
                if wanted > largest {
                    continue;
                }
                let expected = heads.partition_point(|&h| h < wanted);
                assert_eq!(descend(&lines, &levels, wanted), expected);
                assert_eq!(descend_portable(&lines, &levels, wanted), expected);
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: just detected.
                    assert_eq!(unsafe { descend_avx2(&lines, &levels, wanted) }, expected);
                }
            }
        }
    }
}

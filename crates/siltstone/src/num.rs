//! The integer conversions that the formats need, each in one named place.
//!
//! Siltstone runs on 64-bit targets only (the log maps segments and the tree counts bytes in `u64`), so `u64` and `usize` hold
//! the same values. Lengths from disk are checked against a bound *before* they reach one of these.

const _: () = assert!(usize::BITS == 64, "siltstone needs a 64-bit target");

/// A count or length as an index. Lossless on the 64-bit targets we support.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "usize is 64 bits wide, asserted above")]
pub(crate) const fn to_usize(n: u64) -> usize {
    n as usize
}

/// The number in the name of a file. One so large that counting on from it could overflow is in the name of a file that is not ours.
pub(crate) fn file_number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number| *number < 1 << 62)
}

/// A length in memory as the `u64` that formats and metadata use.
#[inline(always)]
pub(crate) const fn to_u64(n: usize) -> u64 {
    n as u64
}

/// The low 32 bits of `n`; the caller knows that nothing is lost, debug builds check it.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "checked in debug builds; callers bound the value")]
pub(crate) const fn to_u32(n: usize) -> u32 {
    debug_assert!(n <= u32::MAX as usize);
    n as u32
}

/// The low 16 bits of `n`; the caller knows that nothing is lost, debug builds check it.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "checked in debug builds; callers bound the value")]
pub(crate) const fn to_u16(n: usize) -> u16 {
    debug_assert!(n <= u16::MAX as usize);
    n as u16
}

/// The low 8 bits of `n`; the caller knows that nothing is lost, debug builds check it.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "checked in debug builds; callers bound the value")]
pub(crate) const fn to_u8(n: usize) -> u8 {
    debug_assert!(n <= u8::MAX as usize);
    n as u8
}

/// A count as a float, for scores and ratios: exact up to 2^53, which no count of bytes or files of a store exceeds.
#[inline(always)]
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
pub(crate) const fn to_f64(n: u64) -> f64 {
    n as f64
}

//! The filter: a blocked Bloom filter in which a key sets bits of one 64-byte line only, so that a test is one cache miss.
//!
//! The upper half of the key's hash chooses the line, the lower half the bits: nine bits of `h`, `h` times an odd constant,
//! and so on. Bits per key may be fractional: the number of lines is `keys * bits / 512`, rounded up. False positives at 10
//! bits are about 1 %, a fifth more than a flat Bloom filter's.

use crate::cache::shelf::{Kept, Shelf};
use crate::num::{to_u32, to_u64, to_usize};
use crate::sst::simd;

/// The number of this kind of filter in the format.
const KIND_BLOCKED_BLOOM: u8 = 1;
/// After the lines: kind and probes.
const TAIL_BYTES: usize = 2;
const LINE_BYTES: usize = 64;
const MAX_PROBES: u8 = 24;

/// One that begins where a line of the processor's cache does.
#[repr(C, align(64))]
struct Line([u8; LINE_BYTES]);

/// A filter in memory; without lines it lets everything through.
pub(crate) struct Filter {
    lines: Kept<Line>,
    count: u32,
    probes: u8,
}

#[inline(always)]
fn line_of(hash: u64, count: u32) -> usize {
    to_usize(((hash >> 32) * u64::from(count)) >> 32).min((count as usize).wrapping_sub(1))
}

/// Calls `with(byte, mask)` for each bit of the key until it says false.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lower half of the hash")]
fn probe(hash: u64, probes: u8, mut with: impl FnMut(usize, u8) -> bool) -> bool {
    let mut h = hash as u32;
    for _ in 0..probes {
        h = h.wrapping_mul(0x9e37_79b9);
        let bit = (h >> 23) as usize;
        if !with(bit / 8, 1 << (bit % 8)) {
            return false;
        }
    }
    true
}

impl Filter {
    /// The filter that lets everything through.
    pub(crate) fn none() -> Filter {
        Filter { lines: Kept::new(Vec::new(), None), count: 0, probes: 0 }
    }

    /// The filter of a block that was read (without its trailer), on the shelf if there is one. None if it is damaged.
    pub(crate) fn parse(block: &[u8], shelf: Option<&Shelf>) -> Option<Filter> {
        let (lines, &[kind, probes]) = block.split_last_chunk::<TAIL_BYTES>()?;
        let (lines, rest) = lines.as_chunks::<LINE_BYTES>();
        let count = u32::try_from(lines.len()).ok()?;
        let fits = kind == KIND_BLOCKED_BLOOM && (1..=MAX_PROBES).contains(&probes) && rest.is_empty() && count > 0;
        let lines = || lines.iter().map(|line| Line(*line)).collect();
        fits.then(|| Filter { lines: Kept::new(lines(), shelf), count, probes })
    }

    /// False if no key with this hash was added.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        if self.count == 0 {
            return true;
        }
        let Some(Line(line)) = self.lines.get(line_of(hash, self.count)) else {
            return true;
        };
        probe(hash, self.probes, |byte, mask| line[byte] & mask != 0)
    }

    /// Starts fetching the line that [`may_contain`](Self::may_contain) will touch.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        if let Some(line) = self.lines.get(line_of(hash, self.count)) {
            simd::prefetch_address(line);
        }
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        to_u64(size_of_val(&self.lines[..]))
    }
}

/// The number of probes for a number of bits per key: 0.6 times, a little below a flat filter's ln 2, since the bits of a
/// line are unevenly used.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to a small range")]
fn probes_for(bits_per_key: f64) -> u8 {
    (bits_per_key * 0.6).round().clamp(1.0, f64::from(MAX_PROBES)) as u8
}

/// The share of absent keys that a filter of many keys lets through: a line holds a Poisson-distributed number of them.
pub(crate) fn expected_rate(bits_per_key: f64) -> f64 {
    if bits_per_key <= 0.0 {
        return 1.0;
    }
    const BITS: f64 = (8 * LINE_BYTES) as f64;
    let mean = BITS / bits_per_key;
    let probes = f64::from(probes_for(bits_per_key));
    let most = (mean + 12.0 * mean.sqrt() + 12.0).ceil();
    let (mut keys, mut ln_likelihood, mut rate) = (0.0f64, -mean, 0.0);
    while keys <= most {
        let unset = (probes * keys * (-1.0 / BITS).ln_1p()).exp();
        rate += ln_likelihood.exp() * (1.0 - unset).powf(probes);
        keys += 1.0;
        ln_likelihood += (mean / keys).ln();
    }
    rate
}

/// Appends a filter block over `hashes` to `out`, and nothing if there are no bits or no keys.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a rounded count, clamped"
)]
pub(crate) fn write(hashes: &[u64], bits_per_key: f64, out: &mut Vec<u8>) -> bool {
    if bits_per_key <= 0.0 || hashes.is_empty() {
        return false;
    }
    let wanted = (hashes.len() as f64 * bits_per_key / 512.0).ceil().clamp(1.0, f64::from(u32::MAX >> 6));
    let count = to_u32(wanted as usize);
    let probes = probes_for(bits_per_key);
    let start = out.len();
    out.resize(start + count as usize * LINE_BYTES, 0);
    let lines = &mut out[start..];
    // Lines are fetched ahead: a filter is larger than the cache nearest to the core.
    const AHEAD: usize = 8;
    for (i, &hash) in hashes.iter().enumerate() {
        if let Some(&later) = hashes.get(i + AHEAD) {
            simd::prefetch(lines, line_of(later, count) * LINE_BYTES);
        }
        let at = line_of(hash, count) * LINE_BYTES;
        let line = &mut lines[at..at + LINE_BYTES];
        probe(hash, probes, |byte, mask| {
            line[byte] |= mask;
            true
        });
    }
    out.extend_from_slice(&[KIND_BLOCKED_BLOOM, probes]);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(hashes: &[u64], bits: f64) -> Filter {
        let mut out = Vec::new();
        assert!(write(hashes, bits, &mut out));
        Filter::parse(&out, None).expect("what was just written")
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "counts")]
    fn every_key_is_found_and_few_others_are() {
        let hash = |i: u32| crate::key::hash(&i.to_be_bytes());
        // (bits per key, highest share of false positives in thousandths)
        for (bits, most) in [(2.5, 330), (10.0, 13), (15.5, 3), (30.0, 1)] {
            let hashes: Vec<u64> = (0..20_000).map(hash).collect();
            let filter = build(&hashes, bits);
            assert!(hashes.iter().all(|&h| filter.may_contain(h)));
            let wrong = (20_000..120_000).filter(|&i| filter.may_contain(hash(i))).count();
            assert!(wrong <= most * 100, "{bits} bits: {wrong} of 100000");
            let (found, expected) = (wrong as f64, expected_rate(bits) * 100_000.0);
            let deviation = 4.0 * expected.sqrt() + 0.05 * expected;
            assert!((found - expected).abs() <= deviation, "{bits} bits: {found}, expected {expected}");
        }
    }

    #[test]
    fn no_bits_let_everything_through() {
        assert!(!write(&[1, 2], 0.0, &mut Vec::new()));
        let none = Filter::none();
        none.prefetch(5);
        assert!(none.may_contain(5));
        let one = build(&[7], 0.1);
        one.prefetch(u64::MAX);
        assert!(one.may_contain(7));
    }
}

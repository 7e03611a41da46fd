//! Integers and byte strings in formats: varints, and a reader that never reads past the end.

use crate::num::{to_u64, to_usize};

/// The longest varint of 64 bits.
pub(crate) const MAX_VARINT: usize = 10;

/// Bytes that `n` takes as a varint.
#[inline]
pub(crate) const fn varint_len(n: u64) -> usize {
    // One byte for each seven bits, at least one.
    (64 - (n | 1).leading_zeros() as usize).div_ceil(7)
}

/// Writes `n` as a varint (seven bits a byte, low ones first, the top bit says that more follow) to the front of `out` and
/// returns its length.
///
/// # Panics
/// If `out` is too short.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "seven bits are kept")]
pub(crate) fn write_varint(out: &mut [u8], mut n: u64) -> usize {
    let mut at = 0;
    while n >= 0x80 {
        out[at] = (n as u8 & 0x7f) | 0x80;
        n >>= 7;
        at += 1;
    }
    out[at] = n as u8;
    at + 1
}

/// Appends `n` as a varint.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the low byte is what is wanted")]
pub(crate) fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Reads a varint of at most 32 bits at `*at`, before `end`; overlong forms are refused. Moves `*at` past it.
#[inline(always)]
pub(crate) fn varint32(bytes: &[u8], at: &mut usize) -> Option<u32> {
    let first = *bytes.get(*at)?;
    if first < 0x80 {
        *at += 1;
        return Some(u32::from(first));
    }
    let second = *bytes.get(*at + 1)?;
    if second < 0x80 && second != 0 {
        *at += 2;
        return Some(u32::from(first & 0x7f) | u32::from(second) << 7);
    }
    u32::try_from(varint64(bytes, at)?).ok()
}

/// Reads a varint at `*at`; overlong forms are refused. Moves `*at` past it.
pub(crate) fn varint64(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut n = 0u64;
    for i in 0..10 {
        let byte = *bytes.get(*at + i)?;
        if i == 9 && byte > 1 {
            return None;
        }
        n |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            if byte == 0 && i > 0 {
                return None;
            }
            *at += i + 1;
            return Some(n);
        }
    }
    None
}

/// Appends a length as a varint, then the bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, to_u64(bytes.len()));
    out.extend_from_slice(bytes);
}

/// Takes values off the front of hostile bytes. `None` says that they are not there.
#[derive(Clone, Debug)]
pub(crate) struct Taker<'a> {
    rest: &'a [u8],
}

impl<'a> Taker<'a> {
    /// Takes from `bytes`.
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Taker<'a> {
        Taker { rest: bytes }
    }

    /// What is left.
    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether nothing is left.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `n` bytes.
    #[inline]
    pub(crate) fn take(&mut self, n: u64) -> Option<&'a [u8]> {
        if n > to_u64(self.rest.len()) {
            return None;
        }
        let (taken, rest) = self.rest.split_at(to_usize(n));
        self.rest = rest;
        Some(taken)
    }

    /// The next `N` bytes.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    /// A byte.
    #[inline]
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Four bytes, little-endian.
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes, little-endian.
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A varint in its shortest form; a longer one is refused, so that each value has one encoding.
    #[inline]
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut at = 0;
        let n = varint64(self.rest, &mut at)?;
        self.rest = &self.rest[at..];
        Some(n)
    }

    /// A varint that fits 32 bits.
    #[inline]
    pub(crate) fn varint32(&mut self) -> Option<u32> {
        self.varint().and_then(|n| u32::try_from(n).ok())
    }

    /// A length as a varint, then that many bytes.
    #[inline]
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let n = self.varint()?;
        self.take(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Rng;

    #[test]
    fn varints_come_back_and_have_one_form() {
        let mut rng = Rng::new(1);
        for n in (0..64).flat_map(|bits| [1u64 << bits, (1 << bits) - 1]).chain((0..1000).map(|_| rng.next_u64())) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, n);
            assert_eq!(bytes.len(), varint_len(n), "{n}");
            assert_eq!(Taker::new(&bytes).varint(), Some(n));
            let mut at = 0;
            assert_eq!(varint32(&bytes, &mut at), u32::try_from(n).ok(), "{n}");
            for cut in 0..bytes.len() {
                assert_eq!(Taker::new(&bytes[..cut]).varint(), None, "{n} cut to {cut} bytes");
                assert_eq!(varint32(&bytes[..cut], &mut 0), None, "{n} cut to {cut} bytes");
            }
        }
        assert_eq!(Taker::new(&[0x80, 0]).varint(), None);
        assert_eq!(varint32(&[0x80, 0], &mut 0), None);
        assert_eq!(Taker::new(&[0xff; 11]).varint(), None);
        assert_eq!(Taker::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).varint(), None);
    }

    #[test]
    fn a_taker_never_reads_past_the_end() {
        let mut taker = Taker::new(&[3, 1, 2]);
        assert_eq!(taker.bytes(), None);
        let mut taker = Taker::new(&[2, 1, 2, 9]);
        assert_eq!(taker.bytes(), Some(&[1u8, 2][..]));
        assert_eq!((taker.u32(), taker.rest()), (None, &[9u8][..]));
    }
}

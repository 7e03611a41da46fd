//! Integers of fixed length, and the frame that every block has on disk: payload, compression tag, CRC-32C.

use crate::num::to_u64;
use crate::planted::{self, Bug};

/// Bytes after each block on disk: one of compression tag, four of CRC-32C over the payload and the tag.
pub(crate) const TRAILER_BYTES: usize = 5;

/// No block is longer, before or after compression: one entry of the largest key and value, and room for its frame.
pub(crate) const MAX_BLOCK_BYTES: u64 = to_u64(crate::key::MAX_VALUE_BYTES + 2 * crate::key::MAX_KEY_BYTES + 4096);

/// Where a block lies in its file, its trailer not counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct BlockHandle {
    /// First byte.
    pub(crate) offset: u64,
    /// Bytes as stored, without the trailer. At most [`MAX_BLOCK_BYTES`] for data blocks.
    pub(crate) len: u64,
}

impl BlockHandle {
    /// The offset after the block's trailer, if it can be represented.
    pub(crate) fn end(self) -> Option<u64> {
        self.offset.checked_add(self.len)?.checked_add(to_u64(TRAILER_BYTES))
    }
}

/// CRC-32C. Not inlined: each copy brings some dozens of kibibytes of code for all kinds of processors.
#[inline(never)]
pub(crate) fn crc(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The little-endian integer at `at`.
#[inline(always)]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

/// The little-endian integer at `at`.
#[inline(always)]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

/// The length of what `a` and `b` begin with alike.
#[inline]
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let max = a.len().min(b.len());
    let mut at = 0;
    while at + 8 <= max {
        let (Some(x), Some(y)) = (u64_at(a, at), u64_at(b, at)) else {
            break;
        };
        if x != y {
            return at + ((x ^ y).trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while at < max && a[at] == b[at] {
        at += 1;
    }
    at
}

/// The payload and the compression tag of a block as stored with its trailer, if the checksum holds.
#[inline]
pub(crate) fn check_frame(stored: &[u8]) -> Option<(&[u8], u8)> {
    let split = stored.len().checked_sub(4)?;
    let (covered, sum) = stored.split_at_checked(split)?;
    let sum = u32::from_le_bytes(*sum.first_chunk()?);
    let (&tag, payload) = covered.split_last()?;
    (crc(covered) == sum || planted::active(Bug::ChecksumIgnored)).then_some((payload, tag))
}

/// Appends tag and checksum to the block that begins at `start` of `out`.
pub(crate) fn seal_frame(out: &mut Vec<u8>, start: usize, tag: u8) {
    out.push(tag);
    let sum = crc(&out[start..]);
    out.extend_from_slice(&sum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_prefix_agrees_with_a_plain_loop() {
        let mut rng = crate::io::Rng::new(1);
        for _ in 0..2000 {
            let mut make = || {
                let len = usize::try_from(rng.below(40)).unwrap();
                (0..len).map(|_| u8::from(rng.one_in(12))).collect::<Vec<u8>>()
            };
            let (a, b) = (make(), make());
            let plain = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
            assert_eq!(common_prefix(&a, &b), plain);
        }
    }
}

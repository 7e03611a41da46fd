//! Keys as the tree sees them: a user key, then the newest version first.
//!
//! An *internal key* is `(user key, trailer)`. The [`Trailer`] packs the sequence number and the [`Kind`] of the record in one
//! integer, as LevelDB does, so versions of one user key compare by one integer compare. Internal order: user key ascending
//! (bytes), then trailer **descending**.

use std::cmp::Ordering;

/// The longest key that a store accepts, in bytes.
pub const MAX_KEY_BYTES: usize = 64 << 10;
/// The longest value that a store accepts, in bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// The position of a write in the one order of all writes of a store. 56 bits: at ten million writes a second, 228 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, serde::Serialize, serde::Deserialize)]
pub struct SeqNo(pub u64);

impl SeqNo {
    /// Before every write.
    pub const ZERO: SeqNo = SeqNo(0);
    /// After every write: a read at `MAX` sees all.
    pub const MAX: SeqNo = SeqNo((1 << 56) - 1);
}

/// What a record says of its key. The numbers are part of every format; an unknown one is [`Corruption`](crate::ErrorKind::Corruption).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// The key is gone: a tombstone.
    Delete = 0,
    /// The key has a value.
    Put = 1,
    /// Reserved: the keys of a range are gone.
    RangeDelete = 2,
    /// Reserved: the value is to be combined with the older one.
    Merge = 3,
}

impl Kind {
    /// The kind with number `n`, if there is one that this version writes.
    pub fn from_u8(n: u8) -> Option<Kind> {
        match n {
            0 => Some(Kind::Delete),
            1 => Some(Kind::Put),
            _ => None,
        }
    }
}

/// Sequence number and kind in one integer: `seq << 8 | kind`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Trailer(pub u64);

impl Trailer {
    /// Packs a sequence number and a kind.
    #[inline]
    pub const fn new(seq: SeqNo, kind: Kind) -> Trailer {
        Trailer(seq.0 << 8 | kind as u64)
    }

    /// The first trailer, in internal order, that a read at `seq` may see: pass it to a seek.
    #[inline]
    pub const fn seek(seq: SeqNo) -> Trailer {
        Trailer(seq.0 << 8 | 0xff)
    }

    /// The sequence number.
    #[inline]
    pub const fn seq(self) -> SeqNo {
        SeqNo(self.0 >> 8)
    }

    /// The kind's number. Decoders have checked it with [`Trailer::checked`] already.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low byte is what is wanted")]
    pub const fn kind_u8(self) -> u8 {
        self.0 as u8
    }

    /// Whether the record is a tombstone.
    #[inline]
    pub const fn is_delete(self) -> bool {
        self.kind_u8() == Kind::Delete as u8
    }

    /// The trailer, if its kind is one that this version knows: what decoders call on bytes from disk.
    #[inline]
    pub fn checked(raw: u64) -> Option<Trailer> {
        Kind::from_u8(Trailer(raw).kind_u8()).map(|_| Trailer(raw))
    }
}

/// One record, borrowed from where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The user key.
    pub key: &'a [u8],
    /// Sequence number and kind.
    pub trailer: Trailer,
    /// The value; empty for a tombstone.
    pub value: &'a [u8],
}

/// Internal order: user key ascending, then newest first.
#[inline]
pub fn compare(a_key: &[u8], a: Trailer, b_key: &[u8], b: Trailer) -> Ordering {
    a_key.cmp(b_key).then_with(|| b.cmp(&a))
}

/// The first 16 bytes of `key` as a big-endian integer, zero-padded: two different heads order as their keys do. Equal heads
/// decide nothing (a short key and the same key followed by zeros have one head). Merges compare these inline.
#[inline]
pub fn head(key: &[u8]) -> u128 {
    if let Some(first) = key.first_chunk::<16>() {
        return u128::from_be_bytes(*first);
    }
    let mut padded = [0u8; 16];
    padded[..key.len()].copy_from_slice(key);
    u128::from_be_bytes(padded)
}

/// The hash that filters and shards use: XXH3-64 with seed 0, part of the SST format.
#[inline]
pub fn hash(key: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_first_and_seek_lands_before_what_it_may_see() {
        let at = |seq, kind| Trailer::new(SeqNo(seq), kind);
        assert_eq!(compare(b"a", at(2, Kind::Put), b"a", at(1, Kind::Put)), Ordering::Less);
        assert_eq!(compare(b"a", at(1, Kind::Put), b"b", at(9, Kind::Put)), Ordering::Less);
        assert_eq!(compare(b"a", Trailer::seek(SeqNo(2)), b"a", at(2, Kind::Put)), Ordering::Less);
        assert_eq!(compare(b"a", Trailer::seek(SeqNo(2)), b"a", at(3, Kind::Delete)), Ordering::Greater);
    }

    #[test]
    fn heads_order_as_keys_do() {
        let keys: [&[u8]; 6] = [b"", b"a", b"a\0", b"ab", b"abcdefghijklmnop", b"b"];
        for pair in keys.windows(2) {
            assert!(head(pair[0]) <= head(pair[1]));
        }
    }
}

//! The first page of a segment. Each part is in a sector of its own, so that a torn write hurts one part only, and has a checksum
//! of its own that continues the identity's: a part of another segment never validates.

use super::{SegmentId, Tail};
use crate::codec::Taker;
use crate::frame::crc32c;

/// The header's size: records begin here.
pub(super) const PAGE: usize = 4096;
/// The same as an offset.
pub(super) const FIRST_RECORD: u64 = 4096;
/// Where the two watermarks are. One is in front of the identity, so that whoever zeroes the file from some offset on destroys
/// either the identity or not the mark of a closed log.
pub(super) const MARK_AT: [usize; 2] = [0, 1536];
/// Where the identity is.
pub(super) const IDENTITY_AT: usize = 512;
/// Where the link is.
pub(super) const LINK_AT: usize = 1024;
/// The format that this version writes, and the newest that it reads.
pub(super) const FORMAT: u32 = 1;

const MAGIC: [u8; 8] = *b"SiltLog\n";
const IDENTITY: usize = 60;
const LINK: usize = 44;
const MARK: usize = 28;

/// What a segment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    pub(super) store_id: u128,
    pub(super) segment: SegmentId,
    /// The size of the file.
    pub(super) bytes: u64,
    /// A random number of the session that made it.
    pub(super) nonce: u64,
}

/// Where history was before this segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Link {
    pub(super) before: Tail,
    /// Up to where the segment before was known to be synced.
    pub(super) synced_to: u64,
    /// Whether a recovery made this link: the end before it was decided then, and is durable.
    pub(super) decided: bool,
    /// The wall time at which the segment came into use, in milliseconds since 1970: none of its records is older.
    pub(super) began_ms: u64,
}

/// What is known to be durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Mark {
    /// Counts the marks of the segment, from 1; the slot is its lowest bit.
    pub(super) generation: u64,
    /// All bytes below were synced.
    pub(super) synced_to: u64,
    /// Where the records end, if the log was closed here; else 0.
    pub(super) end: u64,
}

/// A part as it was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part<T> {
    /// Never written.
    Absent,
    /// Not what was written.
    Damaged,
    /// As written.
    Valid(T),
}

/// Why an identity is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BadIdentity {
    /// Written by a newer version, of this format.
    Newer(u32),
    /// Not what was written.
    Damaged,
}

impl Identity {
    /// The page of a fresh segment, and the seed of its checksums.
    pub(super) fn encode(&self) -> ([u8; PAGE], u32) {
        let mut page = [0; PAGE];
        let mut bytes = Vec::with_capacity(IDENTITY);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.store_id.to_le_bytes());
        for n in [self.segment.0, self.bytes, self.nonce] {
            bytes.extend_from_slice(&n.to_le_bytes());
        }
        let seed = append_crc(&mut bytes, 0);
        page[IDENTITY_AT..IDENTITY_AT + IDENTITY].copy_from_slice(&bytes);
        (page, seed)
    }

    /// The identity in a page, and the seed of the segment's checksums.
    pub(super) fn decode(page: &[u8; PAGE]) -> Result<(Identity, u32), BadIdentity> {
        let (bytes, seed) = check_crc(&page[IDENTITY_AT..IDENTITY_AT + IDENTITY], 0).ok_or(BadIdentity::Damaged)?;
        let mut taker = Taker::new(bytes);
        let magic = taker.array::<8>().ok_or(BadIdentity::Damaged)?;
        let format = taker.u32().ok_or(BadIdentity::Damaged)?;
        if magic != MAGIC {
            return Err(BadIdentity::Damaged);
        }
        if format != FORMAT {
            return Err(BadIdentity::Newer(format));
        }
        let mut identity = || {
            let _reserved = taker.u32()?;
            Some(Identity {
                store_id: u128::from_le_bytes(taker.array()?),
                segment: SegmentId(taker.u64()?),
                bytes: taker.u64()?,
                nonce: taker.u64()?,
            })
        };
        identity().map(|identity| (identity, seed)).ok_or(BadIdentity::Damaged)
    }
}

impl Link {
    pub(super) fn encode(&self, seed: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LINK);
        bytes.extend_from_slice(&self.before.segment.0.to_le_bytes());
        bytes.extend_from_slice(&self.before.len.to_le_bytes());
        bytes.extend_from_slice(&self.synced_to.to_le_bytes());
        bytes.extend_from_slice(&self.before.chain.to_le_bytes());
        // Bit 0 says that there is a link at all: the first one of a store is otherwise zeros.
        bytes.extend_from_slice(&(1 | u32::from(self.decided) << 1).to_le_bytes());
        bytes.extend_from_slice(&self.began_ms.to_le_bytes());
        append_crc(&mut bytes, seed);
        bytes
    }

    pub(super) fn decode(page: &[u8; PAGE], seed: u32) -> Part<Link> {
        part(&page[LINK_AT..LINK_AT + LINK], seed, |taker| {
            let (segment, len, synced_to) = (SegmentId(taker.u64()?), taker.u64()?, taker.u64()?);
            let before = Tail { segment, len, chain: taker.u32()? };
            Some(Link { before, synced_to, decided: taker.u32()? & 2 != 0, began_ms: taker.u64()? })
        })
    }
}

impl Mark {
    /// The bytes of the mark; they belong in slot [`slot`](Self::slot).
    pub(super) fn encode(&self, seed: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MARK);
        for n in [self.generation, self.synced_to, self.end] {
            bytes.extend_from_slice(&n.to_le_bytes());
        }
        append_crc(&mut bytes, seed);
        bytes
    }

    /// Where in the page it belongs.
    pub(super) fn slot(&self) -> usize {
        MARK_AT[usize::from(self.generation % 2 == 1)]
    }

    /// The newest mark of a page; all zeros if there is none.
    pub(super) fn newest(page: &[u8; PAGE], seed: u32) -> Mark {
        let mark = |at: usize| match Self::decode(&page[at..at + MARK], seed) {
            Part::Valid(mark) => mark,
            // A slot may be torn by a crash; then the other one counts.
            Part::Absent | Part::Damaged => Mark::default(),
        };
        let (a, b) = (mark(MARK_AT[0]), mark(MARK_AT[1]));
        if a.generation > b.generation { a } else { b }
    }

    /// Where in a page a mark is that is not as it was written.
    pub(super) fn damaged(page: &[u8; PAGE], seed: u32) -> Option<usize> {
        MARK_AT.into_iter().find(|at| Self::decode(&page[*at..at + MARK], seed) == Part::Damaged)
    }

    fn decode(bytes: &[u8], seed: u32) -> Part<Mark> {
        part(bytes, seed, |taker| Some(Mark { generation: taker.u64()?, synced_to: taker.u64()?, end: taker.u64()? }))
    }
}

fn part<'a, T>(bytes: &'a [u8], seed: u32, decode: impl FnOnce(&mut Taker<'a>) -> Option<T>) -> Part<T> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Part::Absent;
    }
    let value = check_crc(bytes, seed).and_then(|(bytes, _)| decode(&mut Taker::new(bytes)));
    value.map_or(Part::Damaged, Part::Valid)
}

/// Appends the checksum of `bytes` and returns it.
fn append_crc(bytes: &mut Vec<u8>, seed: u32) -> u32 {
    let crc = crc32c(seed, bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    crc
}

/// What stands before a valid checksum, and the checksum.
fn check_crc(bytes: &[u8], seed: u32) -> Option<(&[u8], u32)> {
    let (bytes, crc) = bytes.split_last_chunk::<4>()?;
    let crc = u32::from_le_bytes(*crc);
    (crc32c(seed, bytes) == crc).then_some((bytes, crc))
}

//! An operation of a trace, and its bytes.

use std::ops::Bound;

use bytes::Bytes;

use crate::codec::{Taker, put_bytes, put_varint};
use crate::db::Durability;
use crate::num::to_u64;
use crate::version::KeyspaceId;

/// What was asked of the store. Lengths are bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Op {
    /// A put or a delete.
    Write(Write, Durability),
    /// Writes that happened together.
    Batch(Vec<Write>, Durability),
    /// A point lookup.
    Get {
        /// Where.
        keyspace: KeyspaceId,
        /// Of what.
        key: Bytes,
        /// The length of the value that it found.
        found: Option<u32>,
    },
    /// Several point lookups in one call.
    MultiGet {
        /// Where.
        keyspace: KeyspaceId,
        /// Of what, and the lengths of the values found.
        keys: Vec<(Bytes, Option<u32>)>,
    },
    /// A range, recorded when it was dropped.
    Range {
        /// Where.
        keyspace: KeyspaceId,
        /// Its lower bound.
        lower: Bound<Bytes>,
        /// Its upper bound.
        upper: Bound<Bytes>,
        /// Records read from its front.
        forward: u64,
        /// Records read from its back.
        backward: u64,
        /// How long it was open, in nanoseconds.
        open_ns: u64,
    },
    /// A flush of one keyspace, or of all.
    Flush {
        /// Of which.
        keyspace: Option<KeyspaceId>,
    },
    /// A compaction that a user asked for.
    Compact {
        /// Where.
        keyspace: KeyspaceId,
        /// From here.
        lower: Bound<Bytes>,
        /// To here.
        upper: Bound<Bytes>,
    },
    /// A keyspace and its name: one that was there when the trace began, or a new one.
    Keyspace {
        /// Its number in what follows.
        id: KeyspaceId,
        /// Its name.
        name: String,
    },
    /// A keyspace was dropped.
    DropKeyspace {
        /// Which.
        id: KeyspaceId,
    },
    /// Operations are missing here: they came faster than the trace could be written.
    Lost {
        /// How many.
        operations: u64,
    },
    /// Sorted records were taken in. Their keys are not in the trace.
    Ingest {
        /// Where.
        keyspace: KeyspaceId,
        /// How many.
        records: u64,
    },
    /// All keys of a range are deleted. The engine has no such call; traces made of text have it.
    DeleteRange {
        /// Where.
        keyspace: KeyspaceId,
        /// The first key.
        lower: Bytes,
        /// The first key behind.
        upper: Bytes,
    },
}

/// A put or a delete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// Where.
    pub keyspace: KeyspaceId,
    /// Of what.
    pub key: Bytes,
    /// The length of the value; none for a delete.
    pub value_len: Option<u32>,
}

/// An operation and when it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Nanoseconds since the trace began; never less than that of the record before. A write has the time at which it took effect, a
    /// read the time of its end.
    pub at_ns: u64,
    /// What.
    pub op: Op,
}

pub(super) const PUT: u8 = 1;
pub(super) const DELETE: u8 = 2;
const BATCH: u8 = 3;
pub(super) const GET: u8 = 4;
const MULTI_GET: u8 = 5;
const RANGE: u8 = 6;
const FLUSH: u8 = 7;
const COMPACT: u8 = 8;
const KEYSPACE: u8 = 9;
const DROP_KEYSPACE: u8 = 10;
const LOST: u8 = 11;
const INGEST: u8 = 12;
const DELETE_RANGE: u8 = 13;
/// The kind is in these bits; the others are the durability of a write.
const KIND: u8 = 0x3f;

/// The durability as the top bits of a kind.
#[inline]
pub(super) const fn durability_bits(durability: Durability) -> u8 {
    match durability {
        Durability::Buffered => 0,
        Durability::Sync => 0x40,
        Durability::None => 0x80,
    }
}

/// A length that was found, as a number.
#[inline]
pub(super) fn outcome(found: Option<u32>) -> u64 {
    found.map_or(0, |length| u64::from(length) + 1)
}

impl Op {
    /// Whether it is a note about the store or the trace, and no operation.
    pub fn is_mark(&self) -> bool {
        matches!(self, Op::Keyspace { .. } | Op::DropKeyspace { .. } | Op::Lost { .. })
    }

    /// Appends the operation, from its kind on.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Op::Write(write, durability) => write.encode(durability_bits(*durability), out),
            Op::Batch(writes, durability) => {
                put_batch_head(out, to_u64(writes.len()), *durability);
                writes.iter().for_each(|write| write.encode(0, out));
            }
            Op::Get { keyspace, key, found } => {
                put_head(out, GET, *keyspace);
                put_lookup(out, key, *found);
            }
            Op::MultiGet { keyspace, keys } => {
                put_multi_get_head(out, *keyspace, to_u64(keys.len()));
                keys.iter().for_each(|(key, found)| put_lookup(out, key, *found));
            }
            Op::Range { keyspace, lower, upper, forward, backward, open_ns } => {
                put_head(out, RANGE, *keyspace);
                [*forward, *backward, *open_ns].into_iter().for_each(|n| put_varint(out, n));
                put_bounds(out, lower, upper);
            }
            Op::Flush { keyspace } => {
                out.push(FLUSH);
                put_varint(out, keyspace.map_or(0, |id| u64::from(id.0) + 1));
            }
            Op::Compact { keyspace, lower, upper } => {
                put_head(out, COMPACT, *keyspace);
                put_bounds(out, lower, upper);
            }
            Op::Keyspace { id, name } => {
                put_head(out, KEYSPACE, *id);
                put_bytes(out, name.as_bytes());
            }
            Op::DropKeyspace { id } => put_head(out, DROP_KEYSPACE, *id),
            Op::Lost { operations } => {
                out.push(LOST);
                put_varint(out, *operations);
            }
            Op::Ingest { keyspace, records } => {
                put_head(out, INGEST, *keyspace);
                put_varint(out, *records);
            }
            Op::DeleteRange { keyspace, lower, upper } => {
                put_head(out, DELETE_RANGE, *keyspace);
                put_bytes(out, lower);
                put_bytes(out, upper);
            }
        }
    }

    /// Takes an operation off the front of `from`, which is a part of `block`. `None` if it is not one.
    pub(super) fn decode(from: &mut Taker<'_>, block: &Bytes) -> Option<Op> {
        let byte = from.u8()?;
        let durability = match byte & !KIND {
            0 => Durability::Buffered,
            0x40 => Durability::Sync,
            0x80 => Durability::None,
            _ => return None,
        };
        let kind = byte & KIND;
        if durability != Durability::Buffered && !matches!(kind, PUT | DELETE | BATCH) {
            return None;
        }
        Some(match kind {
            PUT | DELETE => Op::Write(Write::decode(kind, from, block)?, durability),
            BATCH => {
                let count = count(from)?;
                let mut writes = Vec::with_capacity(count);
                for _ in 0..count {
                    let kind = from.u8()?;
                    writes.push(Write::decode(kind, from, block)?);
                }
                Op::Batch(writes, durability)
            }
            GET => {
                let keyspace = keyspace(from)?;
                let (key, found) = lookup(from, block)?;
                Op::Get { keyspace, key, found }
            }
            MULTI_GET => {
                let keyspace = keyspace(from)?;
                let count = count(from)?;
                let mut keys = Vec::with_capacity(count);
                for _ in 0..count {
                    keys.push(lookup(from, block)?);
                }
                Op::MultiGet { keyspace, keys }
            }
            RANGE => {
                let keyspace = keyspace(from)?;
                let (forward, backward, open_ns) = (from.varint()?, from.varint()?, from.varint()?);
                let (lower, upper) = bounds(from, block)?;
                Op::Range { keyspace, lower, upper, forward, backward, open_ns }
            }
            FLUSH => Op::Flush {
                keyspace: match from.varint()? {
                    0 => None,
                    id => Some(KeyspaceId(u32::try_from(id - 1).ok()?)),
                },
            },
            COMPACT => {
                let keyspace = keyspace(from)?;
                let (lower, upper) = bounds(from, block)?;
                Op::Compact { keyspace, lower, upper }
            }
            KEYSPACE => {
                let id = keyspace(from)?;
                let name = std::str::from_utf8(from.bytes()?).ok()?;
                Op::Keyspace { id, name: name.to_owned() }
            }
            DROP_KEYSPACE => Op::DropKeyspace { id: keyspace(from)? },
            LOST => Op::Lost { operations: from.varint()? },
            INGEST => Op::Ingest { keyspace: keyspace(from)?, records: from.varint()? },
            DELETE_RANGE => Op::DeleteRange {
                keyspace: keyspace(from)?,
                lower: block.slice_ref(from.bytes()?),
                upper: block.slice_ref(from.bytes()?),
            },
            _ => return None,
        })
    }

    /// Replaces every key by what `change` makes of it.
    pub(super) fn map_keys(&mut self, change: &mut dyn FnMut(&mut Bytes)) {
        let mut bound = |bound: &mut Bound<Bytes>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => change(key),
            Bound::Unbounded => {}
        };
        match self {
            Op::Range { lower, upper, .. } | Op::Compact { lower, upper, .. } => {
                bound(lower);
                bound(upper);
            }
            Op::Write(write, _) => change(&mut write.key),
            Op::Batch(writes, _) => writes.iter_mut().for_each(|write| change(&mut write.key)),
            Op::Get { key, .. } => change(key),
            Op::MultiGet { keys, .. } => keys.iter_mut().for_each(|(key, _)| change(key)),
            Op::DeleteRange { lower, upper, .. } => {
                change(lower);
                change(upper);
            }
            Op::Flush { .. } | Op::Keyspace { .. } | Op::DropKeyspace { .. } | Op::Lost { .. } | Op::Ingest { .. } => {}
        }
    }
}

impl Write {
    fn encode(&self, durability_bits: u8, out: &mut Vec<u8>) {
        put_write(out, durability_bits, self.keyspace, &self.key, self.value_len);
    }

    fn decode(kind: u8, from: &mut Taker<'_>, block: &Bytes) -> Option<Write> {
        let keyspace = keyspace(from)?;
        let key_len = from.varint()?;
        let value_len = match kind {
            PUT => Some(from.varint32()?),
            DELETE => None,
            _ => return None,
        };
        Some(Write { keyspace, key: block.slice_ref(from.take(key_len)?), value_len })
    }
}

/// Appends a put or a delete.
pub(super) fn put_write(out: &mut Vec<u8>, bits: u8, keyspace: KeyspaceId, key: &[u8], value_len: Option<u32>) {
    put_head(out, bits | if value_len.is_some() { PUT } else { DELETE }, keyspace);
    put_varint(out, to_u64(key.len()));
    if let Some(length) = value_len {
        put_varint(out, u64::from(length));
    }
    out.extend_from_slice(key);
}

pub(super) fn put_batch_head(out: &mut Vec<u8>, count: u64, durability: Durability) {
    out.push(BATCH | durability_bits(durability));
    put_varint(out, count);
}

pub(super) fn put_multi_get_head(out: &mut Vec<u8>, keyspace: KeyspaceId, count: u64) {
    put_head(out, MULTI_GET, keyspace);
    put_varint(out, count);
}

/// Appends a key and what was found.
pub(super) fn put_lookup(out: &mut Vec<u8>, key: &[u8], found: Option<u32>) {
    put_varint(out, to_u64(key.len()));
    put_varint(out, outcome(found));
    out.extend_from_slice(key);
}

pub(super) fn put_head(out: &mut Vec<u8>, kind: u8, keyspace: KeyspaceId) {
    out.push(kind);
    put_varint(out, u64::from(keyspace.0));
}

fn put_bounds(out: &mut Vec<u8>, lower: &Bound<Bytes>, upper: &Bound<Bytes>) {
    let tag = |bound: &Bound<Bytes>| match bound {
        Bound::Unbounded => 0u8,
        Bound::Included(_) => 1,
        Bound::Excluded(_) => 2,
    };
    out.push(tag(lower) | tag(upper) << 2);
    for bound in [lower, upper] {
        if let Bound::Included(key) | Bound::Excluded(key) = bound {
            put_bytes(out, key);
        }
    }
}

fn bounds(from: &mut Taker<'_>, block: &Bytes) -> Option<(Bound<Bytes>, Bound<Bytes>)> {
    let tags = from.u8()?;
    let mut bound = |tag: u8| {
        Some(match tag {
            0 => Bound::Unbounded,
            1 => Bound::Included(block.slice_ref(from.bytes()?)),
            2 => Bound::Excluded(block.slice_ref(from.bytes()?)),
            _ => return None,
        })
    };
    Some((bound(tags & 3)?, bound(tags >> 2)?))
}

fn keyspace(from: &mut Taker<'_>) -> Option<KeyspaceId> {
    from.varint32().map(KeyspaceId)
}

/// A count of things of at least two bytes each: no more than the bytes that are left can hold, so hostile ones cost no memory.
fn count(from: &mut Taker<'_>) -> Option<usize> {
    let count = from.varint()?;
    (count <= to_u64(from.rest().len()) / 2).then(|| crate::num::to_usize(count))
}

fn lookup(from: &mut Taker<'_>, block: &Bytes) -> Option<(Bytes, Option<u32>)> {
    let key_len = from.varint()?;
    let found = match from.varint()? {
        0 => None,
        length => Some(u32::try_from(length - 1).ok()?),
    };
    Some((block.slice_ref(from.take(key_len)?), found))
}

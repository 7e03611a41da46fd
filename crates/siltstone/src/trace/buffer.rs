//! Where records are gathered until the trace's lane takes them: the only part of tracing that an operation waits for.
//!
//! The lane reads what was written on another core, and its memory is used again. So each line that a record comes to is in the other
//! core's cache, and getting it back takes longer than the record itself: it is asked for a few records before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::file::BLOCK_HEADER;
use super::op::{
    DELETE, GET, Op, PUT, durability_bits, outcome, put_batch_head, put_lookup, put_multi_get_head, put_write,
};
use crate::batch::Batch;
use crate::codec::{MAX_VARINT, write_varint};
use crate::db::Durability;
use crate::io::Clock;
use crate::key::Kind;
use crate::num::{to_u32, to_u64, to_usize};
use crate::sst::simd::prefetch_for_writing;
use crate::version::KeyspaceId;

/// A reading of the clock takes longer than the rest of a record. Where writes follow one another within this time, on average, so many of
/// them share one.
const QUICK_NS: u64 = 2_000;
const SHARED: u8 = 31;
/// What stands in front of a key: time, kind, keyspace, two lengths.
const MOST_HEAD: usize = 4 * MAX_VARINT + 1;
/// The most bytes of a record of the common kind.
const SHORT: usize = 40;
/// Memory grows by so much at least.
const GROWTH: usize = 64 << 10;
/// How far ahead a line is asked for.
const AHEAD: usize = 192;
/// Batches with more bytes of keys do not keep the memory in which they were encoded.
const MOST_SCRATCH: usize = 1 << 20;

/// Records in order of time. Those who write to it take turns.
pub(crate) struct Buffer {
    clock: Arc<dyn Clock>,
    reads: Arc<Reads>,
    /// Room for the header of a block, then records up to `end`, then room for more, which holds anything.
    bytes: Vec<u8>,
    end: usize,
    limit: usize,
    /// Where records are encoded whose length is not known before.
    scratch: Vec<u8>,
    /// The time of the first record, and of the last one.
    base_ns: u64,
    last_ns: u64,
    records: u32,
    /// Of these, records that are no operation.
    marks: u32,
    lost: u64,
    /// When the clock was read last, how many records have that time, and how many more may have it.
    read_ns: u64,
    readers: u8,
    share: u8,
}

/// Whether reads are recorded beside writes: then each write reads the clock, since two records of one thread must not change places.
///
/// Buffers are taken in rounds, and a record in a buffer that was taken has no time before that of the round. So writes may share a
/// time once a whole round has passed without a read.
pub(crate) struct Reads {
    round: AtomicU64,
    /// The round of the last read.
    last: AtomicU64,
}

impl Reads {
    /// None yet.
    pub(super) fn none() -> Reads {
        Reads { round: AtomicU64::new(2), last: AtomicU64::new(0) }
    }

    /// A round begins.
    pub(super) fn next_round(&self) {
        self.round.fetch_add(1, Ordering::Relaxed);
    }

    /// There is a read.
    #[inline]
    pub(super) fn note(&self) {
        let round = self.round.load(Ordering::Relaxed);
        if self.last.load(Ordering::Relaxed) != round {
            self.last.store(round, Ordering::Relaxed);
        }
    }

    #[inline]
    fn are_over(&self) -> bool {
        self.last.load(Ordering::Relaxed) + 1 < self.round.load(Ordering::Relaxed)
    }
}

/// What a buffer held.
pub(crate) struct Chunk {
    /// Room for the header of a block, then records up to `end`.
    pub(super) bytes: Vec<u8>,
    pub(super) end: usize,
    /// The time of the first record, and of the last one.
    pub(super) base_ns: u64,
    pub(super) last_ns: u64,
    pub(super) records: u32,
    pub(super) marks: u32,
    pub(super) lost: u64,
}

impl Buffer {
    pub(crate) fn new(clock: Arc<dyn Clock>, reads: Arc<Reads>, limit: usize) -> Buffer {
        let now_ns = clock.mono_ns();
        Buffer {
            clock,
            reads,
            bytes: Vec::new(),
            end: BLOCK_HEADER,
            limit,
            scratch: Vec::new(),
            base_ns: now_ns,
            last_ns: now_ns,
            records: 0,
            marks: 0,
            lost: 0,
            read_ns: now_ns,
            readers: 1,
            share: 0,
        }
    }

    /// Gives out what it holds, and goes on in `memory`, whatever that holds. The next record reads the clock.
    pub(crate) fn take(&mut self, memory: Vec<u8>) -> Chunk {
        let bytes = std::mem::replace(&mut self.bytes, memory);
        let end = std::mem::replace(&mut self.end, BLOCK_HEADER);
        self.share = 0;
        let [records, marks] = [&mut self.records, &mut self.marks].map(std::mem::take);
        let lost = std::mem::take(&mut self.lost);
        Chunk { bytes, end, base_ns: self.base_ns, last_ns: self.last_ns, records, marks, lost }
    }

    /// Whether there is nothing to take.
    pub(super) fn is_empty(&self) -> bool {
        self.records == 0 && self.lost == 0
    }

    /// Records a write.
    #[inline]
    pub(crate) fn write(&mut self, kind: Kind, keyspace: KeyspaceId, key: &[u8], value: &[u8], durability: Durability) {
        let bits = durability_bits(durability);
        match kind {
            Kind::Delete => self.one(bits | DELETE, keyspace, key, None),
            _ if self.short_put(bits | PUT, keyspace, key, value.len()) => {}
            _ => self.one(bits | PUT, keyspace, key, Some(to_u64(value.len()))),
        }
    }

    /// Records a put as [`one`](Self::one) would, if it is of the common kind: small numbers, a key of 8 to 32 bytes, a time that is shared. Says
    /// whether it is.
    #[inline(always)]
    fn short_put(&mut self, kind: u8, keyspace: KeyspaceId, key: &[u8], value_len: usize) -> bool {
        let is_short = (8..=32).contains(&key.len()) && keyspace.0 < 0x80 && value_len < 0x4000;
        if !is_short || self.share == 0 || !self.reads.are_over() {
            return false;
        }
        let Some(out) = self.bytes.get_mut(self.end..).and_then(<[u8]>::first_chunk_mut::<SHORT>) else { return false };
        // A zero for the time, four numbers of a byte, of which the last may have a second one. The word goes on behind them: the key covers
        // that, since it has at least 8 bytes.
        let (low, high) = (to_u64(value_len & 0x7f), to_u64(value_len >> 7));
        let has_high = u64::from(high > 0);
        let number = low | has_high << 7 | high << 8;
        let head = u64::from(kind) << 8 | u64::from(keyspace.0) << 16 | to_u64(key.len()) << 24 | number << 32;
        out[..8].copy_from_slice(&head.to_le_bytes());
        let at = 5 + to_usize(has_high);
        let out = &mut out[at..at + key.len()];
        if key.len() <= 16 {
            copy_ends::<8>(out, key);
        } else {
            copy_ends::<16>(out, key);
        }
        self.end += at + key.len();
        self.records += 1;
        self.share -= 1;
        self.readers += 1;
        prefetch_for_writing(self.bytes.as_ptr().wrapping_add(self.end + AHEAD));
        true
    }

    /// Records a batch.
    pub(crate) fn batch(&mut self, batch: &Batch, durability: Durability) {
        self.encoded(|out| {
            put_batch_head(out, u64::from(batch.count()), durability);
            for record in batch.records() {
                let value_len = (record.kind != Kind::Delete).then(|| to_u32(record.value.len()));
                put_write(out, 0, record.keyspace, record.key, value_len);
            }
        });
    }

    /// Records a point lookup.
    pub(super) fn get(&mut self, keyspace: KeyspaceId, key: &[u8], found: Option<u32>) {
        self.one(GET, keyspace, key, Some(outcome(found)));
    }

    /// Records several point lookups of one call.
    pub(super) fn multi_get(&mut self, keyspace: KeyspaceId, keys: &[(&[u8], Option<u32>)]) {
        self.encoded(|out| {
            put_multi_get_head(out, keyspace, to_u64(keys.len()));
            keys.iter().for_each(|(key, found)| put_lookup(out, key, *found));
        });
    }

    /// Records anything else.
    pub(crate) fn other(&mut self, op: &Op) {
        if self.encoded(|out| op.encode(out)) {
            self.marks += u32::from(op.is_mark());
        }
    }

    /// Records an operation on one key: kind, keyspace, length of the key, another number, the key.
    #[inline]
    fn one(&mut self, kind: u8, keyspace: KeyspaceId, key: &[u8], number: Option<u64>) {
        let Some(delta_ns) = self.begin(key.len()) else { return };
        let out = &mut self.bytes[self.end..][..MOST_HEAD + key.len()];
        let mut at = write_varint(out, delta_ns);
        out[at] = kind;
        at += 1;
        at += write_varint(&mut out[at..], u64::from(keyspace.0));
        at += write_varint(&mut out[at..], to_u64(key.len()));
        if let Some(number) = number {
            at += write_varint(&mut out[at..], number);
        }
        out[at..at + key.len()].copy_from_slice(key);
        self.end += at + key.len();
        prefetch_for_writing(self.bytes.as_ptr().wrapping_add(self.end + AHEAD));
    }

    /// Records what `encode` writes from its kind on; says whether there was room.
    fn encoded(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut scratch = std::mem::take(&mut self.scratch);
        encode(&mut scratch);
        let begun = self.begin(scratch.len());
        if let Some(delta_ns) = begun {
            self.end += write_varint(&mut self.bytes[self.end..], delta_ns);
            self.bytes[self.end..self.end + scratch.len()].copy_from_slice(&scratch);
            self.end += scratch.len();
        }
        if scratch.capacity() <= MOST_SCRATCH {
            scratch.clear();
            self.scratch = scratch;
        }
        begun.is_some()
    }

    /// Begins a record of at most `MOST_HEAD` and `bytes`; its time after the record before. None if there is no room.
    #[inline]
    fn begin(&mut self, bytes: usize) -> Option<u64> {
        let end = self.end + MOST_HEAD + bytes;
        if end > self.bytes.len() && !self.grow(end) {
            self.lost += 1;
            return None;
        }
        let now_ns = if self.share > 0 { self.share_time() } else { self.read_time() };
        if self.records == 0 {
            (self.base_ns, self.last_ns) = (now_ns, now_ns);
        }
        self.records += 1;
        Some(now_ns - std::mem::replace(&mut self.last_ns, now_ns))
    }

    /// Makes room up to `end`; says whether there may be as much.
    #[cold]
    fn grow(&mut self, end: usize) -> bool {
        if end > self.limit {
            return false;
        }
        self.bytes.resize((2 * self.bytes.len()).max(end + GROWTH).min(self.limit), 0);
        true
    }

    #[inline]
    fn share_time(&mut self) -> u64 {
        if !self.reads.are_over() {
            return self.read_time();
        }
        self.share -= 1;
        self.readers += 1;
        self.last_ns
    }

    fn read_time(&mut self) -> u64 {
        let now_ns = self.clock.mono_ns().max(self.last_ns);
        let quick = now_ns - self.read_ns < QUICK_NS * u64::from(self.readers);
        (self.read_ns, self.readers) = (now_ns, 1);
        self.share = if quick && self.reads.are_over() { SHARED } else { 0 };
        now_ns
    }
}

/// Copies all of `from`, which has `N` to `2 * N` bytes, in two pieces whose sizes the compiler knows.
#[inline(always)]
fn copy_ends<const N: usize>(to: &mut [u8], from: &[u8]) {
    let ends = |bytes: &[u8]| bytes.first_chunk::<N>().copied().zip(bytes.last_chunk::<N>().copied());
    if let Some((first, last)) = ends(from) {
        to[..N].copy_from_slice(&first);
        let at = to.len() - N;
        to[at..].copy_from_slice(&last);
    }
}

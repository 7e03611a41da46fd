//! Where records are gathered until the trace's lane takes them: the only part of tracing that an operation waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::op::{DELETE, Op, PUT, durability_bits, put_batch_head, put_lookup, put_multi_get_head, put_write};
use crate::batch::Batch;
use crate::codec::{MAX_VARINT, put_varint, write_varint};
use crate::db::Durability;
use crate::io::Clock;
use crate::key::Kind;
use crate::num::{to_u32, to_u64};
use crate::version::KeyspaceId;

/// A reading of the clock takes longer than the rest of a record. Where writes follow one another within this time, on average, so many of
/// them share one.
const QUICK_NS: u64 = 2_000;
const SHARED: u8 = 15;

/// Records in order of time. Those who write to it take turns.
pub(crate) struct Buffer {
    clock: Arc<dyn Clock>,
    reads: Arc<Reads>,
    bytes: Vec<u8>,
    limit: usize,
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
    pub(super) bytes: Vec<u8>,
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
            limit,
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

    /// Gives out what it holds, and goes on in `empty`. The next record reads the clock.
    pub(crate) fn take(&mut self, empty: Vec<u8>) -> Chunk {
        let bytes = std::mem::replace(&mut self.bytes, empty);
        self.share = 0;
        let [records, marks] = [&mut self.records, &mut self.marks].map(std::mem::take);
        let lost = std::mem::take(&mut self.lost);
        Chunk { bytes, base_ns: self.base_ns, last_ns: self.last_ns, records, marks, lost }
    }

    /// Whether there is nothing to take.
    pub(super) fn is_empty(&self) -> bool {
        self.records == 0 && self.lost == 0
    }

    /// Records a write.
    #[inline]
    pub(crate) fn write(&mut self, kind: Kind, keyspace: KeyspaceId, key: &[u8], value: &[u8], durability: Durability) {
        let Some(delta_ns) = self.begin(key.len()) else { return };
        // In one piece: time, kind, keyspace, lengths.
        let mut head = [0; 4 * MAX_VARINT + 1];
        let mut at = write_varint(&mut head, delta_ns);
        head[at] = durability_bits(durability) | if kind == Kind::Delete { DELETE } else { PUT };
        at += 1;
        at += write_varint(&mut head[at..], u64::from(keyspace.0));
        at += write_varint(&mut head[at..], to_u64(key.len()));
        if kind != Kind::Delete {
            at += write_varint(&mut head[at..], to_u64(value.len()));
        }
        self.bytes.extend_from_slice(&head[..at]);
        self.bytes.extend_from_slice(key);
    }

    /// Records a batch.
    pub(crate) fn batch(&mut self, batch: &Batch, durability: Durability) {
        let Some(delta_ns) = self.begin(batch.records().map(|record| record.key.len() + 16).sum()) else { return };
        put_varint(&mut self.bytes, delta_ns);
        put_batch_head(&mut self.bytes, u64::from(batch.count()), durability);
        for record in batch.records() {
            let value_len = (record.kind != Kind::Delete).then(|| to_u32(record.value.len()));
            put_write(&mut self.bytes, 0, record.keyspace, record.key, value_len);
        }
    }

    /// Records a point lookup.
    pub(super) fn get(&mut self, keyspace: KeyspaceId, key: &[u8], found: Option<u32>) {
        let Some(delta_ns) = self.begin(key.len()) else { return };
        put_varint(&mut self.bytes, delta_ns);
        super::op::put_head(&mut self.bytes, super::op::GET, keyspace);
        put_lookup(&mut self.bytes, key, found);
    }

    /// Records several point lookups of one call.
    pub(super) fn multi_get(&mut self, keyspace: KeyspaceId, keys: &[(&[u8], Option<u32>)]) {
        let Some(delta_ns) = self.begin(keys.iter().map(|(key, _)| key.len() + 16).sum()) else { return };
        put_varint(&mut self.bytes, delta_ns);
        put_multi_get_head(&mut self.bytes, keyspace, to_u64(keys.len()));
        keys.iter().for_each(|(key, found)| put_lookup(&mut self.bytes, key, *found));
    }

    /// Records anything else.
    pub(crate) fn other(&mut self, op: &Op) {
        let Some(delta_ns) = self.begin(0) else { return };
        self.marks += u32::from(op.is_mark());
        put_varint(&mut self.bytes, delta_ns);
        op.encode(&mut self.bytes);
    }

    /// Begins a record with about `bytes` of keys; its time after the record before. None if there is no room.
    #[inline]
    fn begin(&mut self, bytes: usize) -> Option<u64> {
        if self.bytes.len() + bytes > self.limit {
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

//! What stands in a frame of the log: one record, or a batch that is applied whole or not at all.
//!
//! ```text
//! body    = type u8 | first sequence number, 7 bytes | rest
//! rest    = record                       type 1: one record
//!         | count varint | record*       type 2: a batch; record i has sequence number first + i
//! record  = kind u8 | keyspace varint | key length varint | key | value length varint | value
//! ```

use super::{LogPos, SegmentId};
use crate::codec::{MAX_VARINT, Taker, put_bytes, put_varint, varint_len, write_varint};
use crate::key::{Kind, MAX_KEY_BYTES, MAX_VALUE_BYTES, SeqNo};
use crate::num::{to_u64, to_usize};
use crate::version::KeyspaceId;

/// Type and first sequence number.
pub(super) const BODY_HEADER: usize = 8;
const ONE: u8 = 1;
const BATCH: u8 = 2;

/// One record of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogRecord<'a> {
    /// What it says of the key.
    pub kind: Kind,
    /// The keyspace that it belongs to.
    pub keyspace: KeyspaceId,
    /// The user key.
    pub key: &'a [u8],
    /// The value; empty for a tombstone.
    pub value: &'a [u8],
}

/// Appends a record to the payload of a batch.
pub fn encode_record(payload: &mut Vec<u8>, keyspace: KeyspaceId, kind: Kind, key: &[u8], value: &[u8]) {
    payload.push(kind as u8);
    put_varint(payload, u64::from(keyspace.0));
    put_bytes(payload, key);
    put_bytes(payload, value);
}

/// Bytes that a record takes.
#[inline]
pub(super) fn record_len(record: &LogRecord<'_>) -> usize {
    let (key, value) = (record.key.len(), record.value.len());
    1 + varint_len(u64::from(record.keyspace.0)) + varint_len(to_u64(key)) + key + varint_len(to_u64(value)) + value
}

/// Writes the body of a frame with one record to `out`, which is exactly as long as it.
#[inline]
pub(super) fn write_one(out: &mut [u8], seq: SeqNo, record: &LogRecord<'_>) {
    write_header(out, ONE, seq);
    let mut at = BODY_HEADER;
    out[at] = record.kind as u8;
    at += 1;
    at += write_varint(&mut out[at..], u64::from(record.keyspace.0));
    for part in [record.key, record.value] {
        at += write_varint(&mut out[at..], to_u64(part.len()));
        out[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    debug_assert_eq!(at, out.len());
}

/// Bytes of a frame's body for a batch.
#[inline]
pub(super) fn batch_len(count: u32, payload: &[u8]) -> usize {
    BODY_HEADER + varint_len(u64::from(count)) + payload.len()
}

/// Writes the body of a frame with a batch to `out`, which is exactly as long as it.
#[inline]
pub(super) fn write_batch(out: &mut [u8], first: SeqNo, count: u32, payload: &[u8]) {
    write_header(out, BATCH, first);
    let at = BODY_HEADER + write_varint(&mut out[BODY_HEADER..], u64::from(count));
    out[at..].copy_from_slice(payload);
}

#[inline]
fn write_header(out: &mut [u8], kind: u8, seq: SeqNo) {
    debug_assert!(seq <= SeqNo::MAX);
    // The type is the low byte, so one store writes both.
    out[..BODY_HEADER].copy_from_slice(&(seq.0 << 8 | u64::from(kind)).to_le_bytes());
}

/// The records of one frame, checked already: iterating cannot fail.
#[derive(Clone, Debug)]
pub struct RecordIter<'a> {
    rest: Taker<'a>,
    left: u32,
    end: LogPos,
    began_ms: u64,
}

/// Why a body is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BadBody {
    /// A newer version wrote it.
    Unknown(&'static str),
    /// It is not what any version writes.
    Malformed(&'static str),
}

impl<'a> RecordIter<'a> {
    /// The records of a batch's payload: `count` of them, and not a byte more.
    ///
    /// # Errors
    /// What is wrong with the payload.
    pub fn of_payload(count: u32, payload: &'a [u8]) -> std::result::Result<RecordIter<'a>, &'static str> {
        let rest = Taker::new(payload);
        let mut walk = rest.clone();
        // Each record takes four bytes at least, so a false count ends soon.
        for _ in 0..count {
            take_record(&mut walk).ok_or("a record of a batch is malformed")?;
        }
        if !walk.is_empty() {
            return Err("bytes after the last record of a batch");
        }
        let end = LogPos { segment: SegmentId(0), offset: 0 };
        Ok(RecordIter { rest, left: count, end, began_ms: 0 })
    }

    /// The first sequence number and the records of a frame's body.
    pub(super) fn of_body(
        body: &'a [u8],
        end: LogPos,
        began_ms: u64,
    ) -> std::result::Result<(SeqNo, RecordIter<'a>), BadBody> {
        let mut rest = Taker::new(body);
        let header = rest.u64().ok_or(BadBody::Malformed("a record without a header"))?;
        let first = SeqNo(header >> 8);
        let count = match header.to_le_bytes()[0] {
            ONE => 1,
            BATCH => rest.varint32().ok_or(BadBody::Malformed("a batch without a count"))?,
            _ => return Err(BadBody::Unknown("a record of an unknown type")),
        };
        if count == 0 || first.0 + u64::from(count - 1) > SeqNo::MAX.0 {
            return Err(BadBody::Malformed("a batch with an impossible count"));
        }
        let records = RecordIter::of_payload(count, rest.rest()).map_err(BadBody::Malformed)?;
        Ok((first, RecordIter { end, began_ms, ..records }))
    }

    /// How many records are left.
    pub fn count_left(&self) -> u32 {
        self.left
    }

    /// Where the frame ends in the log; zeros for a payload that is not from a log. Its segment must be kept until the records
    /// are in an SST.
    pub fn end(&self) -> LogPos {
        self.end
    }

    /// The wall time, in milliseconds since 1970, before which none of the records was written; 0 for a payload that is not from a
    /// log.
    pub fn began_ms(&self) -> u64 {
        self.began_ms
    }
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = LogRecord<'a>;

    #[inline]
    fn next(&mut self) -> Option<LogRecord<'a>> {
        self.left = self.left.checked_sub(1)?;
        let record = take_record(&mut self.rest);
        debug_assert!(record.is_some(), "a checked payload");
        record
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = to_usize(u64::from(self.left));
        (left, Some(left))
    }
}

#[inline]
fn take_record<'a>(bytes: &mut Taker<'a>) -> Option<LogRecord<'a>> {
    let kind = Kind::from_u8(bytes.u8()?)?;
    let keyspace = KeyspaceId(bytes.varint32()?);
    let key = bytes.bytes()?;
    let value = bytes.bytes()?;
    let fits = key.len() <= MAX_KEY_BYTES && value.len() <= MAX_VALUE_BYTES;
    fits.then_some(LogRecord { kind, keyspace, key, value })
}

const _: () = assert!(
    BODY_HEADER + 1 + 3 * MAX_VARINT + MAX_KEY_BYTES + MAX_VALUE_BYTES <= crate::frame::MAX_BODY,
    "the largest record fits a frame"
);

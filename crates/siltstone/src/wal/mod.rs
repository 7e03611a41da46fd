//! The write-ahead log: every acknowledged write, in order, until its memtable is in an SST.
//!
//! # How it works
//!
//! The log is a row of segments, `NNNNNN.log`, each mapped into memory and allocated in full. Writing a record is one copy into
//! that memory: what is there survives the death of the process, and [`LogShared::sync_to`] makes it survive a power loss.
//! The next segment is prepared by a background lane ([`LogShared::prepare`]), so that a put makes no system call.
//!
//! ```text
//! segment = header page (4096 bytes) | frame* | zeros
//! header  = watermark | identity | link | watermark          each part in a disk sector of its own
//! ```
//!
//! - A **frame** ([`crate::frame`]) is checksummed in a chain: it is valid only behind exactly the frames that were before it.
//! - The **identity** (store, segment number, size) is durable before the segment has its name, so a damaged one is always
//!   damage, never the trace of a crash.
//! - The **link**, written when the segment comes into use, names the segment and offset where history was before. Replay follows
//!   links, not numbers: a segment that was prepared and never used has none, and a recovery that ended at a hole links
//!   its first new segment to that very place, so the hole is decided once and for all.
//! - A **watermark** says up to where the segment was synced. Damage below it is [`Corruption`](crate::ErrorKind::Corruption);
//!   damage above it is a torn tail, which ends recovery quietly. Two slots, written in turn, so one is always whole.
//!
//! # What replay promises
//!
//! It hands out a prefix of what was appended, which contains everything that was synced. A hole ends it, always: segment k+1 is
//! never replayed behind a torn segment k. Older segments are synced before newer ones, so if anything in k+1 was
//! synced, a hole in k is damage and not a torn tail.
//!
//! Byte tables: `docs/format/wal.md`.

mod header;
mod record;
mod replay;
mod shared;
mod writer;

pub use record::{LogRecord, RecordIter, encode_record};
pub(crate) use replay::damaged_mark;
pub use replay::{ReplaySummary, replay};
pub use shared::LogShared;
pub use writer::{LogConfig, LogWriter};

use crate::io::{IoClass, IoCtx};
use crate::num::file_number;

/// The number of a segment, from 1; never used twice in a store. 0 is before every segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SegmentId(pub u64);

/// A place in the log: the end of a record. Orders as the records do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogPos {
    /// The segment.
    pub segment: SegmentId,
    /// The offset in its file.
    pub offset: u64,
}

/// The tag of the log's own I/O.
const CTX: IoCtx = IoCtx::foreground(IoClass::Log);

impl SegmentId {
    /// The name of its file.
    pub fn file_name(self) -> String {
        format!("{:06}.log", self.0)
    }

    /// The segment whose file has this name.
    pub fn from_file_name(name: &str) -> Option<SegmentId> {
        let id = SegmentId(file_number(name.strip_suffix(".log")?)?);
        (id.0 > 0 && id.file_name() == name).then_some(id)
    }

    /// The name of its file before its header is durable.
    pub(crate) fn temporary_name(self) -> String {
        format!("{:06}.log.tmp", self.0)
    }
}

/// Where a history ends: what the link of the next segment says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tail {
    /// The segment; 0 if there is none.
    segment: SegmentId,
    /// Where its valid frames end.
    len: u64,
    /// The last checksum of the chain.
    chain: u32,
}

#[cfg(test)]
mod tests;

//! Traces: what was asked of a store, operation by operation, as a file.
//!
//! ```text
//! writers (under the writer lock) --> buffer --.
//! readers --> a buffer for each 16th of them ---+--> lane "trace", every 10 ms: in order of time, hashed --> blocks of a file
//! ```
//!
//! Keys and the lengths of values are recorded, never a value. [`Db::start_trace`](crate::Db::start_trace) begins one,
//! [`TraceReader`] reads it, [`TraceWriter`] makes one of operations that come from elsewhere. The format is
//! `docs/format/trace.md`.
//!
//! A trace never stops its store: what does not fit the buffers is counted as lost, and an error ends the trace alone.

mod buffer;
mod file;
mod hash;
mod op;
mod reader;
mod recorder;

pub use crate::db::TraceRequest;
pub use file::{TraceHeader, TraceWriter};
pub use hash::KeyHash;
pub use op::{Op, Record, Write};
pub use reader::{TraceEnd, TraceReader};

pub(crate) use buffer::Buffer;
pub(crate) use recorder::{RangeTrace, Recorder, Round, Target};

use std::path::PathBuf;

use crate::error::Error;

/// How a trace is recorded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TraceOptions {
    /// Write hashes instead of keys. Default: the keys themselves.
    pub hash_keys: Option<KeyHash>,
    /// End the trace when its file has this many bytes; 0 for no limit. Default 0.
    pub max_bytes: u64,
}

/// What came of a trace.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TraceSummary {
    /// Its file; none if nothing was done while it was asked for by a request in the store's folder.
    pub path: Option<PathBuf>,
    /// Operations in the file; a batch is one.
    pub operations: u64,
    /// Operations that did not fit the buffers and are missing.
    pub lost: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Whether it ended by itself because of [`TraceOptions::max_bytes`].
    pub is_full: bool,
    /// Why it ended before it was stopped, if it failed.
    pub error: Option<Error>,
}

#[cfg(test)]
mod tests;

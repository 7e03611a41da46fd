//! Where operations come from: a trace or a text, told apart by how the file begins.

use std::io::Read;
use std::path::Path;

use anyhow::Context;
use bytes::Bytes;
use serde::Serialize;
use siltstone::io::RealFs;
use siltstone::trace::{Op, TraceEnd, TraceHeader, TraceReader};

use super::text::TextReader;

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Nanoseconds since the first one could have been; 0 in a text.
    pub at_ns: u64,
    /// What.
    pub op: Op,
    /// The value of a put, which only a text has.
    pub value: Option<Bytes>,
}

/// What an operation is, for counting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "each is named after the operation")]
pub enum Kind {
    Put,
    Delete,
    Batch,
    Get,
    MultiGet,
    Range,
    Flush,
    Compact,
    DeleteRange,
    Ingest,
}

impl Kind {
    /// The kind of an operation; none for a note.
    pub fn of(op: &Op) -> Option<Kind> {
        Some(match op {
            Op::Write(write, _) if write.value_len.is_some() => Kind::Put,
            Op::Write(..) => Kind::Delete,
            Op::Batch(..) => Kind::Batch,
            Op::Get { .. } => Kind::Get,
            Op::MultiGet { .. } => Kind::MultiGet,
            Op::Range { .. } => Kind::Range,
            Op::Flush { .. } => Kind::Flush,
            Op::Compact { .. } => Kind::Compact,
            Op::DeleteRange { .. } => Kind::DeleteRange,
            Op::Ingest { .. } => Kind::Ingest,
            _ => return None,
        })
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Put => "put",
            Kind::Delete => "delete",
            Kind::Batch => "batch",
            Kind::Get => "get",
            Kind::MultiGet => "multi-get",
            Kind::Range => "range",
            Kind::Flush => "flush",
            Kind::Compact => "compact",
            Kind::DeleteRange => "delete-range",
            Kind::Ingest => "ingest",
        }
    }
}

/// A file of operations.
pub enum Source {
    /// A trace.
    Trace(Box<TraceReader>),
    /// A text.
    Text(Box<TextReader>),
}

impl Source {
    /// Opens a file of either kind. What does not begin as a trace is read as text.
    ///
    /// # Errors
    /// If it cannot be opened, or its header is damaged.
    pub fn open(path: &Path) -> anyhow::Result<Source> {
        let mut begin = Vec::new();
        let file = std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        file.take(8).read_to_end(&mut begin).with_context(|| format!("cannot read {}", path.display()))?;
        if begin == b"SiltTrc\n" {
            return Ok(Source::Trace(Box::new(TraceReader::open(&RealFs, path)?)));
        }
        Ok(Source::Text(Box::new(TextReader::open(path)?)))
    }

    /// The next operation or note; none at the end.
    ///
    /// # Errors
    /// Damage, with its offset; a line that is none, with file, line and what it should be.
    pub fn step(&mut self) -> anyhow::Result<Option<Step>> {
        match self {
            Source::Trace(reader) => {
                Ok(reader.record()?.map(|record| Step { at_ns: record.at_ns, op: record.op, value: None }))
            }
            Source::Text(reader) => reader.step(),
        }
    }

    /// What stands in front of a trace; for a text, that there are no times.
    pub fn header(&self) -> TraceHeader {
        match self {
            Source::Trace(reader) => *reader.header(),
            Source::Text(_) => TraceHeader { is_untimed: true, ..TraceHeader::default() },
        }
    }

    /// How it ended; none before the end, and for a text.
    pub fn end(&self) -> Option<TraceEnd> {
        match self {
            Source::Trace(reader) => reader.end(),
            Source::Text(_) => None,
        }
    }

    /// Bytes of the file, and how many of them are read.
    pub fn progress(&self) -> (u64, u64) {
        match self {
            Source::Trace(reader) => reader.progress(),
            Source::Text(reader) => reader.progress(),
        }
    }
}

//! The text of the K-V workload generator: one operation a line.
//!
//! ```text
//! I key value    insert               Q key         point query
//! U key value    update               S start end   range query: start <= key < end
//! D key          point delete         R start end   range delete: start <= key < end
//! ```
//!
//! Keys have no blanks; a value is what is left of its line. Neither is told what it is made of, so bytes that a line cannot hold are refused when a
//! trace is written as text.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use siltstone::Durability;
use siltstone::trace::{Op, Write};
use siltstone::version::KeyspaceId;

use super::Step;
use crate::num::count;

const DEFAULT: KeyspaceId = KeyspaceId(0);
/// A longer line is none: keys have at most 64 KiB, values a few MiB.
const MAX_LINE: u64 = 64 << 20;

/// Reads operations from text.
pub struct TextReader {
    path: PathBuf,
    file: BufReader<File>,
    bytes: u64,
    read: u64,
    line: u64,
    buffer: Vec<u8>,
}

impl TextReader {
    /// Opens a text.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path) -> Result<TextReader> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let bytes = file.metadata().map_or(0, |data| data.len());
        let file = BufReader::with_capacity(256 << 10, file);
        Ok(TextReader { path: path.to_path_buf(), file, bytes, read: 0, line: 0, buffer: Vec::new() })
    }

    /// The next operation; empty lines are passed over.
    ///
    /// # Errors
    /// File, line and what would be allowed, for a line that is no operation.
    pub fn step(&mut self) -> Result<Option<Step>> {
        loop {
            self.buffer.clear();
            let mut line = (&mut self.file).take(MAX_LINE);
            let read = line.read_until(b'\n', &mut self.buffer);
            let read = read.with_context(|| format!("cannot read {}", self.path.display()))?;
            if read == 0 {
                return Ok(None);
            }
            self.read += count(read);
            self.line += 1;
            let line = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if !line.is_empty() {
                let what = || format!("{}:{}", self.path.display(), self.line);
                return parse(line).map(Some).with_context(what);
            }
        }
    }

    /// Bytes of the file, and how many of them are read.
    pub fn progress(&self) -> (u64, u64) {
        (self.bytes, self.read)
    }
}

fn parse(line: &[u8]) -> Result<Step> {
    let (kind, rest) = line.split_first().context("an empty line")?;
    let Some(rest) = rest.strip_prefix(b" ") else { return wrong(line, "a letter, a blank, a key") };
    let word = |bytes: &[u8]| {
        if bytes.is_empty() || bytes.contains(&b' ') || bytes.contains(&b'\t') {
            None
        } else {
            Some(Bytes::copy_from_slice(bytes))
        }
    };
    let two = || {
        let blank = rest.iter().position(|byte| *byte == b' ')?;
        Some((word(&rest[..blank])?, &rest[blank + 1..]))
    };
    let write = |key, value_len| Op::Write(Write { keyspace: DEFAULT, key, value_len }, Durability::default());
    let step = |op| Ok(Step { at_ns: 0, op, value: None });
    match kind {
        b'I' | b'U' => {
            let Some((key, value)) = two() else { return wrong(line, "`I key value` or `U key value`") };
            let length = u32::try_from(value.len()).context("a value of 4 GiB and more")?;
            Ok(Step { at_ns: 0, op: write(key, Some(length)), value: Some(Bytes::copy_from_slice(value)) })
        }
        b'D' => match word(rest) {
            Some(key) => step(write(key, None)),
            None => wrong(line, "`D key`"),
        },
        b'Q' => match word(rest) {
            Some(key) => step(Op::Get { keyspace: DEFAULT, key, found: None }),
            None => wrong(line, "`Q key`"),
        },
        b'S' | b'R' => {
            let bounds = two().and_then(|(lower, upper)| Some((lower, word(upper)?)));
            let Some((lower, upper)) = bounds else { return wrong(line, "`S start end` or `R start end`") };
            if *kind == b'R' {
                return step(Op::DeleteRange { keyspace: DEFAULT, lower, upper });
            }
            let (lower, upper) = (Bound::Included(lower), Bound::Excluded(upper));
            step(Op::Range { keyspace: DEFAULT, lower, upper, forward: u64::MAX, backward: 0, open_ns: 0 })
        }
        _ => wrong(line, "a line that begins with I, U, D, R, Q or S"),
    }
}

/// What stands there and what should.
fn wrong<T>(line: &[u8], expected: &str) -> Result<T> {
    let mut shown = String::from_utf8_lossy(&line[..line.len().min(60)]).into_owned();
    if line.len() > 60 {
        shown.push_str("...");
    }
    bail!(
        "{shown:?} is no operation: expected {expected}. Operations: I key value, U key value, D key, R start end, Q key, S start end"
    )
}

/// Writes operations as text.
pub struct TextWriter<W> {
    out: W,
}

impl<W: std::io::Write> TextWriter<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> TextWriter<W> {
        TextWriter { out }
    }

    /// An `I` or a `U` line, with a value of letters.
    ///
    /// # Errors
    /// If the key does not fit a line, or the text cannot be written; likewise for the others.
    pub fn put(&mut self, is_new: bool, key: &[u8], value: &[u8]) -> Result<()> {
        let kind = if is_new { b"I " } else { b"U " };
        self.line(kind, key, &[b" ", value])
    }

    /// A `D` line.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.line(b"D ", key, &[])
    }

    /// A `Q` line.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn get(&mut self, key: &[u8]) -> Result<()> {
        self.line(b"Q ", key, &[])
    }

    /// An `S` or an `R` line.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn range(&mut self, is_delete: bool, lower: &[u8], upper: &[u8]) -> Result<()> {
        check(upper)?;
        self.line(if is_delete { b"R " } else { b"S " }, lower, &[b" ", upper])
    }

    /// Everything is on its way.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self) -> Result<()> {
        self.out.flush().context("cannot write the text")
    }

    fn line(&mut self, kind: &[u8], key: &[u8], rest: &[&[u8]]) -> Result<()> {
        check(key)?;
        let parts = [kind, key].into_iter().chain(rest.iter().copied()).chain([&b"\n"[..]]);
        for part in parts {
            self.out.write_all(part).context("cannot write the text")?;
        }
        Ok(())
    }
}

/// A key of text has neither blanks nor ends of lines, nor is it empty.
fn check(key: &[u8]) -> Result<()> {
    if key.is_empty() || key.iter().any(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')) {
        bail!(
            "the key {:?} does not fit the text, whose keys have at least one byte and no blanks or ends of lines; --hex writes keys as hexadecimal digits",
            String::from_utf8_lossy(key)
        );
    }
    Ok(())
}

//! TSV: the first column is the key, the rest of the line the value, byte for byte.

use std::io::{self, BufRead, Write};

use anyhow::bail;
use siltstone::key::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

use super::lines::Lines;
use super::{Next, RecordReader, RecordWriter, too_long};
use crate::output::visible;

pub(super) struct Reader<R> {
    lines: Lines<R>,
    tab: usize,
}

impl<R: BufRead> Reader<R> {
    pub(super) fn new(input: R) -> Reader<R> {
        Reader { lines: Lines::new(input, MAX_KEY_BYTES + 1 + MAX_VALUE_BYTES), tab: 0 }
    }
}

impl<R: BufRead + Send> RecordReader for Reader<R> {
    fn next(&mut self) -> io::Result<Next> {
        let next = self.lines.next()?;
        if next != Next::Record {
            return Ok(next);
        }
        let line = self.lines.line();
        let Some(tab) = line.iter().position(|byte| *byte == b'\t') else {
            return Ok(Next::Bad(format!("no tab between key and value: {}", visible(line, 60))));
        };
        self.tab = tab;
        Ok(too_long(self.key(), self.value()).map_or(Next::Record, Next::Bad))
    }

    fn key(&self) -> &[u8] {
        &self.lines.line()[..self.tab]
    }

    fn value(&self) -> &[u8] {
        &self.lines.line()[self.tab + 1..]
    }

    fn line(&self) -> u64 {
        self.lines.number()
    }
}

pub(super) struct Writer<W>(W);

impl<W: Write> Writer<W> {
    pub(super) fn new(output: W) -> Writer<W> {
        Writer(output)
    }
}

impl<W: Write> RecordWriter<W> for Writer<W> {
    fn write(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        let broken = if key.iter().any(|byte| matches!(byte, b'\t' | b'\n')) {
            Some("key holds a tab or line feed")
        } else {
            value.contains(&b'\n').then_some("value holds a line feed")
        };
        if let Some(broken) = broken {
            bail!("TSV cannot hold the record {}: its {broken}; export as --format jsonl or csv", visible(key, 60));
        }
        self.0.write_all(key)?;
        self.0.write_all(b"\t")?;
        self.0.write_all(value)?;
        Ok(self.0.write_all(b"\n")?)
    }

    fn finish(self: Box<Self>) -> anyhow::Result<W> {
        Ok(self.0)
    }
}

//! JSON lines: an object in each line, with `key` or `key_hex`, and `value` or `value_hex`. Blank lines are skipped.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use siltstone::key::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

use super::lines::Lines;
use super::{Next, RecordReader, RecordWriter, too_long};
use crate::output::{from_hex, hex};

/// JSON may write a byte as `\u0000`.
const MOST_BYTES: usize = 6 * (MAX_KEY_BYTES + MAX_VALUE_BYTES) + (1 << 10);

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A record as JSON. Exactly one of each pair is there.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_hex: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value_hex: Option<String>,
}

pub(super) struct Reader<R> {
    lines: Lines<R>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<R: BufRead> Reader<R> {
    pub(super) fn new(input: R) -> Reader<R> {
        Reader { lines: Lines::new(input, MOST_BYTES), key: Vec::new(), value: Vec::new() }
    }

    /// The line, without the byte order mark that some programs begin a file with.
    fn text(&self) -> &[u8] {
        let line = self.lines.line();
        if self.lines.number() == 1 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line }
    }

    fn parse(&mut self) -> Result<(), String> {
        // The column is of use, the line is always 1 and would mislead.
        let line: Line =
            serde_json::from_slice(self.text()).map_err(|error| error.to_string().replace("line 1 ", ""))?;
        self.key = bytes("key", line.key, line.key_hex)?;
        self.value = bytes("value", line.value, line.value_hex)?;
        too_long(&self.key, &self.value).map_or(Ok(()), Err)
    }
}

fn bytes(name: &str, text: Option<String>, hex: Option<String>) -> Result<Vec<u8>, String> {
    match (text, hex) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(hex)) => from_hex(&hex).ok_or_else(|| format!("{name}_hex is not hexadecimal")),
        (None, None) => Err(format!("neither {name} nor {name}_hex")),
        (Some(_), Some(_)) => Err(format!("both {name} and {name}_hex")),
    }
}

impl<R: BufRead + Send> RecordReader for Reader<R> {
    fn next(&mut self) -> io::Result<Next> {
        loop {
            let next = self.lines.next()?;
            if next != Next::Record {
                return Ok(next);
            }
            if !self.text().iter().all(u8::is_ascii_whitespace) {
                return Ok(self.parse().map_or_else(Next::Bad, |()| Next::Record));
            }
        }
    }

    fn key(&self) -> &[u8] {
        &self.key
    }

    fn value(&self) -> &[u8] {
        &self.value
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
        write_field(&mut self.0, "{\"key", key)?;
        write_field(&mut self.0, ",\"value", value)?;
        Ok(self.0.write_all(b"}\n")?)
    }

    fn finish(self: Box<Self>) -> anyhow::Result<W> {
        Ok(self.0)
    }
}

/// Writes a line that holds a key alone.
pub(crate) fn write_key(output: &mut impl Write, key: &[u8]) -> anyhow::Result<()> {
    write_field(output, "{\"key", key)?;
    Ok(output.write_all(b"}\n")?)
}

/// `start` is the field's name with what comes before it.
fn write_field(output: &mut impl Write, start: &str, bytes: &[u8]) -> anyhow::Result<()> {
    output.write_all(start.as_bytes())?;
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            output.write_all(b"\":")?;
            serde_json::to_writer(output, text).map_err(io::Error::from)?;
        }
        Err(_) => write!(output, "_hex\":\"{}\"", hex(bytes))?,
    }
    Ok(())
}

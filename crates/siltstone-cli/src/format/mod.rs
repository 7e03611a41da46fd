//! Records in files: TSV, CSV, JSON lines, plain or compressed, read and written as streams.
//!
//! ```text
//! file or standard stream -> counted -> gunzip / unzstd -> lines or CSV -> (key, value)
//! ```
//!
//! | format | a record | any bytes? |
//! | --- | --- | --- |
//! | TSV | key, tab, value, line feed; no escapes, so what goes in comes out byte for byte | no tab or line feed in keys, no line feed in values |
//! | CSV | two columns, quoted where needed | yes, though only UTF-8 is portable |
//! | JSON lines | `{"key":"...","value":"..."}`, `key_hex` and `value_hex` for bytes that are no UTF-8 | yes |

mod csv;
mod files;
mod json_lines;
mod lines;
mod tsv;

#[cfg(test)]
mod tests;

use std::io::{self, BufRead, Write};

use anyhow::{bail, ensure};
use clap::ValueEnum;
use siltstone::key::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

pub(crate) use files::{Export, Import, Place, open_import};
pub(crate) use json_lines::write_key;

/// How records are written down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    /// Key, tab, value, line feed; byte for byte
    Tsv,
    /// Two columns: key, value
    Csv,
    /// {"key":"...","value":"..."} in each line; key_hex and value_hex hold bytes that are no UTF-8
    Jsonl,
}

/// How the bytes of a file are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Codec {
    Plain,
    Gzip,
    Zstd,
}

impl Format {
    /// The format and codec that the ending of a file name asks for; the format may be absent.
    pub(crate) fn of_name(name: &str) -> (Option<Format>, Codec) {
        let lower = name.to_ascii_lowercase();
        let (stem, codec) = match lower.rsplit_once('.') {
            Some((stem, "gz")) => (stem, Codec::Gzip),
            Some((stem, "zst" | "zstd")) => (stem, Codec::Zstd),
            _ => (lower.as_str(), Codec::Plain),
        };
        let format = match stem.rsplit_once('.').map(|(_, ending)| ending) {
            Some("tsv") => Some(Format::Tsv),
            Some("csv") => Some(Format::Csv),
            Some("jsonl" | "ndjson") => Some(Format::Jsonl),
            _ => None,
        };
        (format, codec)
    }

    /// A reader of records in this format. `header`: the first CSV record is none.
    pub(crate) fn reader<'a>(self, input: Box<dyn BufRead + Send + 'a>, header: bool) -> Box<dyn RecordReader + 'a> {
        match self {
            Format::Tsv => Box::new(tsv::Reader::new(input)),
            Format::Csv => Box::new(csv::Reader::new(input, header)),
            Format::Jsonl => Box::new(json_lines::Reader::new(input)),
        }
    }

    /// A writer of records in this format. `header`: CSV starts with a line of column names.
    pub(crate) fn writer<'a, W: Write + 'a>(
        self,
        output: W,
        header: bool,
    ) -> anyhow::Result<Box<dyn RecordWriter<W> + 'a>> {
        Ok(match self {
            Format::Tsv => Box::new(tsv::Writer::new(output)),
            Format::Csv => Box::new(csv::Writer::new(output, header)?),
            Format::Jsonl => Box::new(json_lines::Writer::new(output)),
        })
    }
}

/// What [`RecordReader::next`] found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// A record: `key` and `value` are its.
    Record,
    /// A line that is no record, and why.
    Bad(String),
    /// The end.
    End,
}

/// A stream of records.
pub(crate) trait RecordReader: Send {
    /// Goes to the next record. After a bad line it can be called again.
    fn next(&mut self) -> io::Result<Next>;
    /// The key of the record.
    fn key(&self) -> &[u8];
    /// Its value.
    fn value(&self) -> &[u8];
    /// The line where the record, or the bad line, begins; the first line is 1.
    fn line(&self) -> u64;
}

/// A sink of records.
pub(crate) trait RecordWriter<W> {
    /// Writes one record, or nothing of it when the format cannot hold it.
    fn write(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()>;
    /// Hands the output back after all was written to it.
    fn finish(self: Box<Self>) -> anyhow::Result<W>;
}

/// Why a store would refuse the record, if it would.
pub(crate) fn too_long(key: &[u8], value: &[u8]) -> Option<String> {
    if key.len() > MAX_KEY_BYTES {
        return Some(format!("a key of {} bytes; keys have at most {MAX_KEY_BYTES}", key.len()));
    }
    (value.len() > MAX_VALUE_BYTES)
        .then(|| format!("a value of {} bytes; values have at most {MAX_VALUE_BYTES}", value.len()))
}

/// Refuses to ignore `--header`.
fn check_header(format: Format, header: bool) -> anyhow::Result<()> {
    ensure!(!header || format == Format::Csv, "--header is for CSV: leave it out, or give --format csv");
    Ok(())
}

/// The format for `name`, or what to do about not knowing it.
pub(crate) fn format_for(chosen: Option<Format>, name: &str) -> anyhow::Result<Format> {
    match chosen.or(Format::of_name(name).0) {
        Some(format) => Ok(format),
        None => bail!(
            "cannot tell the format of {name} by its ending (.tsv .csv .jsonl .ndjson, then .gz or .zst): give --format"
        ),
    }
}

//! CSV: two columns, key and value; quoting by the `csv` crate (RFC 4180). Fields are bytes, not necessarily UTF-8.

use std::io::{self, BufRead, Read, Write};

use csv::ByteRecord;
use siltstone::key::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

use super::{Next, RecordReader, RecordWriter, too_long};

/// A record may take this much input: every byte of the largest one may be a doubled quote.
const MOST_BYTES: usize = 2 * (MAX_KEY_BYTES + MAX_VALUE_BYTES) + (1 << 20);

pub(super) struct Reader<R> {
    input: csv::Reader<Feed<R>>,
    record: ByteRecord,
    has_header: bool,
    line: u64,
}

impl<R: BufRead> Reader<R> {
    pub(super) fn new(input: R, header: bool) -> Reader<R> {
        // The header is read as a record: an open quote in it has to show as well.
        let input = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(Feed::new(input));
        Reader { input, record: ByteRecord::new(), has_header: header, line: 0 }
    }

    /// Reads what comes next, header or record. Returns whether there was anything, and whether a quote is left open.
    fn read(&mut self) -> io::Result<(bool, bool)> {
        self.input.get_mut().begin_record();
        // Byte records never fail to decode, and flexible ones never for their length: only input errors remain.
        let is_any = self.input.read_byte_record(&mut self.record).map_err(io_error)?;
        let feed = self.input.get_ref();
        if is_any {
            self.line = feed.record_line();
        }
        Ok((is_any, is_any && feed.is_over))
    }
}

impl<R: BufRead + Send> RecordReader for Reader<R> {
    fn next(&mut self) -> io::Result<Next> {
        if self.record.as_slice().len() > 1 << 20 {
            self.record = ByteRecord::new();
        }
        let mut read = self.read()?;
        if std::mem::take(&mut self.has_header) && read == (true, false) {
            read = self.read()?;
        }
        Ok(match (read, self.record.len()) {
            ((false, _), _) => Next::End,
            ((true, true), _) => {
                Next::Bad("a quote is left open; what comes after it is taken for one field".to_owned())
            }
            (_, 2) => too_long(self.key(), self.value()).map_or(Next::Record, Next::Bad),
            (_, 1) => Next::Bad("1 column; expected 2, key and value".to_owned()),
            (_, n) => Next::Bad(format!("{n} columns; expected 2, key and value (quote a field that holds a comma)")),
        })
    }

    fn key(&self) -> &[u8] {
        self.record.get(0).unwrap_or_default()
    }

    fn value(&self) -> &[u8] {
        self.record.get(1).unwrap_or_default()
    }

    fn line(&self) -> u64 {
        self.line
    }
}

/// Gives the input to the parser line by line, and with that knows what the parser does not tell: where a record begins (the parser takes
/// blank lines, and the line feed of an end of line of two bytes, for the begin of the next record), and whether a quote is left open.
struct Feed<R> {
    input: R,
    /// The line that was given last, or a part of it, from 1.
    line: u64,
    begins_line: bool,
    /// The line where the record begins, once it was given.
    record_line: Option<u64>,
    /// Bytes given for the record.
    record_bytes: usize,
    /// All of the input was given, and a line feed after it. That ends any record but one within quotes.
    is_ended: bool,
    /// The parser wanted more than that. It has nothing for it, or an open quote.
    is_over: bool,
}

impl<R> Feed<R> {
    fn new(input: R) -> Feed<R> {
        Feed { input, line: 0, begins_line: true, record_line: None, record_bytes: 0, is_ended: false, is_over: false }
    }

    fn begin_record(&mut self) {
        self.record_line = None;
        self.record_bytes = 0;
    }

    /// The line where the record begins. If nothing had to be given for it, it was in the last one, behind a carriage return.
    fn record_line(&self) -> u64 {
        self.record_line.unwrap_or(self.line)
    }

    fn end(&mut self, buffer: &mut [u8]) -> usize {
        self.is_over = std::mem::replace(&mut self.is_ended, true);
        match buffer.first_mut() {
            Some(first) if !self.is_over => {
                *first = b'\n';
                1
            }
            _ => 0,
        }
    }
}

impl<R: BufRead> Read for Feed<R> {
    /// Gives a line, or a part of a long one. Fails when one record takes too much: an open quote would swallow the file into memory.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.record_bytes > MOST_BYTES {
            let what = "a record longer than any key and value: is a quote left open?";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        // A terminal that has said that this is the end is not asked again.
        let input = if self.is_ended { &[] } else { self.input.fill_buf()? };
        if input.is_empty() {
            return Ok(self.end(buffer));
        }
        let most = &input[..input.len().min(buffer.len())];
        let line = most.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
        buffer[..line.len()].copy_from_slice(line);
        self.line += u64::from(self.begins_line);
        self.begins_line = line.ends_with(b"\n");
        if self.record_line.is_none() && line.iter().any(|byte| !matches!(byte, b'\r' | b'\n')) {
            self.record_line = Some(self.line);
        }
        let given = line.len();
        self.record_bytes += given;
        self.input.consume(given);
        Ok(given)
    }
}

/// The input's or output's own error: a closed pipe must be known as one.
fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, format!("{other:?}")),
    }
}

pub(super) struct Writer<W: Write>(csv::Writer<W>);

impl<W: Write> Writer<W> {
    pub(super) fn new(output: W, header: bool) -> anyhow::Result<Writer<W>> {
        let mut writer = csv::WriterBuilder::new().from_writer(output);
        if header {
            writer.write_record(["key", "value"]).map_err(io_error)?;
        }
        Ok(Writer(writer))
    }
}

impl<W: Write> RecordWriter<W> for Writer<W> {
    fn write(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        Ok(self.0.write_record([key, value]).map_err(io_error)?)
    }

    fn finish(self: Box<Self>) -> anyhow::Result<W> {
        Ok(self.0.into_inner().map_err(|error| error.into_error())?)
    }
}

//! CSV: two columns, key and value; quoting by the `csv` crate (RFC 4180). Fields are bytes, not necessarily UTF-8.

use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use csv::ByteRecord;
use siltstone::key::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

use super::{Next, RecordReader, RecordWriter, too_long};

/// A record may take this much input: every byte of the largest one may be a doubled quote.
const MOST_BYTES: usize = 2 * (MAX_KEY_BYTES + MAX_VALUE_BYTES) + (1 << 20);

pub(super) struct Reader<R> {
    input: csv::Reader<Bounded<R>>,
    record: ByteRecord,
    since_record: Arc<AtomicUsize>,
    line: u64,
}

impl<R: BufRead> Reader<R> {
    pub(super) fn new(input: R, header: bool) -> Reader<R> {
        let since_record = Arc::new(AtomicUsize::new(0));
        let bounded = Bounded { input, since_record: Arc::clone(&since_record) };
        let input = csv::ReaderBuilder::new().has_headers(header).flexible(true).from_reader(bounded);
        Reader { input, record: ByteRecord::new(), since_record, line: 0 }
    }
}

impl<R: BufRead + Send> RecordReader for Reader<R> {
    fn next(&mut self) -> io::Result<Next> {
        self.since_record.store(0, Ordering::Relaxed);
        if self.record.as_slice().len() > 1 << 20 {
            self.record = ByteRecord::new();
        }
        // Byte records never fail to decode, and flexible ones never for their length: only input errors remain.
        if !self.input.read_byte_record(&mut self.record).map_err(io_error)? {
            return Ok(Next::End);
        }
        self.line = self.record.position().map_or(0, csv::Position::line);
        Ok(match self.record.len() {
            2 => too_long(self.key(), self.value()).map_or(Next::Record, Next::Bad),
            1 => Next::Bad("1 column; expected 2, key and value".to_owned()),
            n => Next::Bad(format!("{n} columns; expected 2, key and value (quote a field that holds a comma)")),
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

/// Fails when one record takes too much input: an open quote would swallow the file into memory.
struct Bounded<R> {
    input: R,
    since_record: Arc<AtomicUsize>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.since_record.load(Ordering::Relaxed) > MOST_BYTES {
            let what = "a record longer than any key and value: is a quote left open?";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let read = self.input.read(buffer)?;
        self.since_record.fetch_add(read, Ordering::Relaxed);
        Ok(read)
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

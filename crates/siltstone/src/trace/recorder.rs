//! One trace being recorded: the buffers of readers, and what puts everything in order and into the file.

use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::buffer::{Chunk, Reads};
use super::file::{BLOCK_BYTES, BLOCK_HEADER};
use super::op::{Op, Record};
use super::{Buffer, TraceHeader, TraceOptions, TraceSummary, TraceWriter};
use crate::codec::Taker;
use crate::db::stripe;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Clock, Fs};
use crate::num::to_u64;
use crate::version::KeyspaceId;

/// The most memory of the writers' buffer, and of each of the readers': a third of a second at two million writes a second, a thirtieth at five million reads.
const WRITER_BYTES: usize = 16 << 20;
const READER_BYTES: usize = 4 << 20;
const READERS: usize = crate::db::STRIPES;
/// What was recorded is in the file after this time, however little it is.
const BLOCK_NS: u64 = 1_000_000_000;

/// A trace being recorded.
pub(crate) struct Recorder {
    start_ns: u64,
    clock: Arc<dyn Clock>,
    fs: Arc<dyn Fs>,
    options: TraceOptions,
    reads: Arc<Reads>,
    readers: [Reader; READERS],
    sink: Mutex<Sink>,
}

#[repr(align(128))]
struct Reader(Mutex<Buffer>);

/// Which file.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// This one, from the start.
    File(PathBuf),
    /// This one, or it with the first number that is free, as soon as there is an operation.
    Numbered(PathBuf),
}

/// What is on its way to the file.
struct Sink {
    target: Target,
    writer: Option<TraceWriter>,
    /// Records of the trace's start, or later than the last round.
    later: Vec<Source>,
    /// Memory of chunks, to be used again.
    spare: Vec<Vec<u8>>,
    /// When a block was written last.
    wrote_ns: u64,
    summary: TraceSummary,
    ended: bool,
}

/// A chunk that is read record by record.
struct Source {
    bytes: Bytes,
    at: usize,
    left: u32,
    /// The time of the next record.
    next_ns: u64,
    lost: u64,
}

/// What became of a round.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Round {
    /// The trace goes on.
    On,
    /// It is full or has failed: stop recording.
    Ended,
}

impl Recorder {
    /// A trace that begins now.
    pub(crate) fn begin(
        fs: Arc<dyn Fs>,
        clock: Arc<dyn Clock>,
        target: Target,
        options: TraceOptions,
    ) -> Result<Recorder> {
        let start_ns = clock.mono_ns();
        let reads = Arc::new(Reads::none());
        let reader = |_| Reader(Mutex::new(Buffer::new(Arc::clone(&clock), Arc::clone(&reads), READER_BYTES)));
        let summary = TraceSummary { path: None, operations: 0, lost: 0, bytes: 0, is_full: false, error: None };
        let mut sink = Sink {
            target,
            writer: None,
            later: Vec::new(),
            spare: Vec::new(),
            wrote_ns: start_ns,
            summary,
            ended: false,
        };
        let header = header(&*clock, &options);
        if let Target::File(path) = &sink.target {
            sink.writer = Some(TraceWriter::create(&fs, path, &header)?);
            sink.summary.path = Some(path.clone());
        }
        let readers = std::array::from_fn(reader);
        Ok(Recorder { start_ns, readers, sink: Mutex::new(sink), clock, fs, options, reads })
    }

    /// Notes the keyspaces that are there, before anything else. They alone make no file.
    pub(crate) fn name<'a>(&self, keyspaces: impl Iterator<Item = (KeyspaceId, &'a str)>) {
        let mut names = self.writer_buffer();
        keyspaces.for_each(|(id, name)| names.other(&Op::Keyspace { id, name: name.to_owned() }));
        self.sink.lock().later.push(Source::new(names.take(Vec::new()), self.start_ns));
    }

    /// The buffer for writers, who hold the writer lock.
    pub(crate) fn writer_buffer(&self) -> Buffer {
        Buffer::new(Arc::clone(&self.clock), Arc::clone(&self.reads), WRITER_BYTES)
    }

    /// The file that was asked for.
    pub(crate) fn target(&self) -> PathBuf {
        match &self.sink.lock().target {
            Target::File(path) | Target::Numbered(path) => path.clone(),
        }
    }

    /// Records a read, on the thread that did it.
    fn read(&self, record: impl FnOnce(&mut Buffer)) {
        self.reads.note();
        record(&mut self.readers[stripe()].0.lock());
    }

    /// Records a point lookup.
    pub(crate) fn get(&self, keyspace: KeyspaceId, key: &[u8], found: Option<u32>) {
        self.read(|buffer| buffer.get(keyspace, key, found));
    }

    /// Records several point lookups of one call.
    pub(crate) fn multi_get(&self, keyspace: KeyspaceId, keys: &[(&[u8], Option<u32>)]) {
        self.read(|buffer| buffer.multi_get(keyspace, keys));
    }

    /// A range that is opened now.
    pub(crate) fn range(
        self: &Arc<Self>,
        keyspace: KeyspaceId,
        lower: &Bound<Bytes>,
        upper: &Bound<Bytes>,
    ) -> RangeTrace {
        RangeTrace {
            recorder: Arc::clone(self),
            keyspace,
            bounds: (lower.clone(), upper.clone()),
            opened_ns: self.clock.mono_ns(),
            forward: 0,
            backward: 0,
        }
    }

    /// Takes what was recorded and puts it in order. `take_writer` gives out the writers' chunk and the time at which it was taken; none if
    /// there will be no other. With `last` everything goes to the file.
    ///
    /// Every record up to that time is there, since a record gets its time and its place under the same lock; later ones wait for
    /// the next round.
    pub(crate) fn round(&self, take_writer: impl FnOnce(Vec<u8>) -> Option<(Chunk, u64)>, last: bool) -> Round {
        let mut sink = self.sink.lock();
        if sink.ended {
            return Round::Ended;
        }
        self.reads.next_round();
        let memory = sink.spare.pop().unwrap_or_default();
        let Some((writer, until_ns)) = take_writer(memory) else { return Round::Ended };
        let until_ns = if last { u64::MAX } else { until_ns - self.start_ns };
        let mut chunks = Vec::new();
        for reader in &self.readers {
            let mut buffer = reader.0.lock();
            if !buffer.is_empty() {
                let memory = sink.spare.pop().unwrap_or_default();
                chunks.push(buffer.take(memory));
            }
        }
        let done = self.gather(&mut sink, writer, chunks, until_ns).and_then(|()| self.write(&mut sink, last));
        if let Err(error) = done {
            sink.fail(error);
        }
        if sink.ended { Round::Ended } else { Round::On }
    }

    fn gather(&self, sink: &mut Sink, mut writer: Chunk, chunks: Vec<Chunk>, until_ns: u64) -> Result<()> {
        if writer.is_empty() && chunks.is_empty() && sink.writer.is_none() {
            sink.spare.push(writer.bytes);
            return Ok(());
        }
        if sink.writer.is_none() {
            sink.writer = Some(self.create(&sink.target)?);
            sink.summary.path = sink.writer.as_ref().map(|writer| writer.path().to_path_buf());
        }
        let is_alone = chunks.is_empty() && sink.later.is_empty() && self.options.hash_keys.is_none();
        if is_alone && writer.lost == 0 && writer.marks == 0 && writer.end >= BLOCK_BYTES {
            // What a store does that is written to: the bytes are as they should be.
            let file = sink.writer.as_mut().expect("made above");
            let last_ns = writer.last_ns - self.start_ns;
            let block = &mut writer.bytes[..writer.end];
            file.push_block(writer.base_ns - self.start_ns, last_ns, writer.records, block)?;
            sink.keep(writer.bytes);
            return Ok(());
        }
        let mut sources = std::mem::take(&mut sink.later);
        sources.extend(std::iter::once(writer).chain(chunks).map(|chunk| Source::new(chunk, self.start_ns)));
        self.merge(sink, &mut sources, until_ns)?;
        for source in sources {
            if source.left > 0 {
                sink.later.push(source);
            } else if let Ok(bytes) = source.bytes.try_into_mut() {
                sink.keep(bytes.into());
            }
        }
        Ok(())
    }

    /// Appends the records of all sources up to `until_ns` by time; of equal times the first source goes first.
    fn merge(&self, sink: &mut Sink, sources: &mut [Source], until_ns: u64) -> Result<()> {
        let file = sink.writer.as_mut().expect("made before");
        loop {
            let due = |source: &&mut Source| source.left > 0 && source.next_ns <= until_ns;
            let Some(first) = sources.iter_mut().filter(due).min_by_key(|source| source.next_ns) else { break };
            let mut record = first.next();
            if let Some(hash) = &self.options.hash_keys {
                record.op.map_keys(&mut |key| *key = hash.hash(key));
            }
            file.push(&record)?;
        }
        for source in sources {
            let operations = std::mem::take(&mut source.lost);
            if operations > 0 {
                file.push(&Record { at_ns: 0, op: Op::Lost { operations } })?;
            }
        }
        Ok(())
    }

    /// Writes a block if it is time, and looks whether the file is full.
    fn write(&self, sink: &mut Sink, last: bool) -> Result<()> {
        let Some(file) = &mut sink.writer else { return Ok(()) };
        let now_ns = self.clock.mono_ns();
        let is_full = self.options.max_bytes > 0 && file.bytes() >= self.options.max_bytes;
        if now_ns - sink.wrote_ns >= BLOCK_NS {
            file.write_block()?;
            sink.wrote_ns = now_ns;
        }
        if is_full && !last {
            sink.summary.is_full = true;
            sink.finish()?;
        }
        Ok(())
    }

    fn create(&self, target: &Target) -> Result<TraceWriter> {
        let header = header(&*self.clock, &self.options);
        let path = match target {
            Target::File(path) => return TraceWriter::create(&self.fs, path, &header),
            Target::Numbered(path) => path,
        };
        for number in 1..10_000u32 {
            match TraceWriter::create(&self.fs, &numbered(path, number), &header) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => return made,
            }
        }
        Err(Error::new(ErrorKind::AlreadyExists, "ten thousand traces of this name are there already").at(path))
    }

    /// Ends the trace. Everything was taken by a last [`round`](Self::round) before.
    pub(crate) fn end(&self) -> TraceSummary {
        let mut sink = self.sink.lock();
        if !sink.ended
            && let Err(error) = sink.finish()
        {
            sink.fail(error);
        }
        sink.summary.clone()
    }

    /// Why it ended by itself, if it failed.
    pub(crate) fn error(&self) -> Option<Error> {
        self.sink.lock().summary.error.clone()
    }
}

/// `path`, then `path.2`, `path.3` and so on.
fn numbered(path: &Path, number: u32) -> PathBuf {
    if number == 1 {
        return path.to_path_buf();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

fn header(clock: &dyn Clock, options: &TraceOptions) -> TraceHeader {
    let hashed_beyond = options.hash_keys.as_ref().map(|hash| hash.keep_prefix);
    TraceHeader { began_ns: clock.wall_ns(), hashed_beyond, is_untimed: false }
}

impl Sink {
    /// Keeps memory for another chunk.
    fn keep(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < 4 {
            self.spare.push(bytes);
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.ended = true;
        self.later.clear();
        if let Some(file) = self.writer.take() {
            (self.summary.operations, self.summary.lost) = (file.operations(), file.lost());
            self.summary.bytes = file.bytes();
            self.summary.bytes = file.finish()?;
        }
        Ok(())
    }

    fn fail(&mut self, error: Error) {
        if let Some(file) = self.writer.take() {
            (self.summary.operations, self.summary.lost) = (file.operations(), file.lost());
            self.summary.bytes = file.bytes();
        }
        self.ended = true;
        self.later.clear();
        self.summary.error = Some(error);
    }
}

impl Chunk {
    fn is_empty(&self) -> bool {
        self.records == 0 && self.lost == 0
    }
}

impl Source {
    fn new(chunk: Chunk, start_ns: u64) -> Source {
        let mut source = Source {
            next_ns: chunk.base_ns.saturating_sub(start_ns),
            bytes: chunk.bytes.into(),
            at: BLOCK_HEADER,
            left: chunk.records,
            lost: chunk.lost,
        };
        // The first record's time is the base.
        source.skip_delta();
        source
    }

    /// The next record, which there is.
    fn next(&mut self) -> Record {
        let at_ns = self.next_ns;
        let mut taker = Taker::new(&self.bytes[self.at..]);
        let op = Op::decode(&mut taker, &self.bytes).expect("we encoded it");
        self.at = self.bytes.len() - taker.rest().len();
        self.left -= 1;
        self.skip_delta();
        Record { at_ns, op }
    }

    fn skip_delta(&mut self) {
        if self.left > 0 {
            let mut taker = Taker::new(&self.bytes[self.at..]);
            self.next_ns += taker.varint().expect("we encoded it");
            self.at = self.bytes.len() - taker.rest().len();
        }
    }
}

/// What is recorded of a range when it is dropped.
pub(crate) struct RangeTrace {
    recorder: Arc<Recorder>,
    keyspace: KeyspaceId,
    bounds: (Bound<Bytes>, Bound<Bytes>),
    opened_ns: u64,
    pub(crate) forward: u64,
    pub(crate) backward: u64,
}

impl Drop for RangeTrace {
    fn drop(&mut self) {
        let (lower, upper) = std::mem::replace(&mut self.bounds, (Bound::Unbounded, Bound::Unbounded));
        let op = Op::Range {
            keyspace: self.keyspace,
            lower,
            upper,
            forward: self.forward,
            backward: self.backward,
            open_ns: self.recorder.clock.mono_ns() - self.opened_ns,
        };
        self.recorder.read(|buffer| buffer.other(&op));
    }
}

const _: () = assert!(to_u64(BLOCK_BYTES) < to_u64(WRITER_BYTES));

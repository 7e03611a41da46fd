//! The one writer of the log: copies records into the memory of the current segment.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::header::{FIRST_RECORD, LINK_AT, Link, Mark};
use super::record::{BODY_HEADER, LogRecord, batch_len, record_len, write_batch, write_one};
use super::shared::{Fresh, Live};
use super::{CTX, LogPos, LogShared, ReplaySummary, Tail};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::{FRAME_HEADER, MAX_BODY, seal};
use crate::io::{Clock, CreateOptions, Fs, LogMemory, OpenOptions};
use crate::key::{Kind, MAX_KEY_BYTES, MAX_VALUE_BYTES, SeqNo};
use crate::num::{to_u64, to_usize};
use crate::planted::{self, Bug};
use crate::sst::simd::prefetch_for_appending;
use crate::version::KeyspaceId;

/// What a log is made of.
#[derive(Clone)]
pub struct LogConfig {
    /// The file system.
    pub fs: Arc<dyn Fs>,
    /// The folder of the store.
    pub dir: PathBuf,
    /// The store's id: a segment of another store is refused.
    pub store_id: u128,
    /// A random number of this session: part of each new segment's checksums, so that nothing an earlier session left on the
    /// disk can look like a record of this one.
    pub nonce: u64,
    /// Size of a segment in bytes.
    pub segment_bytes: u64,
    /// For the times at which segments come into use.
    pub clock: Arc<dyn Clock>,
}

/// The one writer of the log. Lives under the store's write lock.
///
/// Nothing is created before the first append, so a store can be opened and read on a full disk.
pub struct LogWriter {
    shared: Arc<LogShared>,
    current: Option<Current>,
    /// Where history ends, while no segment is in use.
    tail: Tail,
    closed: bool,
}

struct Current {
    memory: LogMemory,
    live: Arc<Live>,
    seed: u32,
    /// Where the next record goes.
    offset: u64,
    chain: u32,
    /// The last watermark that was written.
    mark: Mark,
    /// Behind the last record there is what an older segment held: a frame header of zeros says that there is no more.
    is_over: bool,
    /// Where the background is due to prepare the next segment.
    prepare_at: u64,
}

impl LogWriter {
    /// A writer that goes on where `history` ends, in new segments. First makes durable what replay has read: from here on the
    /// store relies on it.
    ///
    /// # Errors
    /// `Io` if the old segments cannot be synced.
    pub fn open(config: LogConfig, history: &ReplaySummary) -> Result<(LogWriter, Arc<LogShared>)> {
        for id in &history.unsynced {
            let (path, copy) = (config.dir.join(id.file_name()), config.dir.join(id.temporary_name()));
            match replace_by_copy(&*config.fs, &config.dir, &path, &copy) {
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    let _ = config.fs.remove_file(&copy, CTX);
                    let synced = config.fs.sync_file(&path, CTX);
                    synced.map_err(|source| Error::io(&path, "syncing a log segment that was read", source))?;
                }
                copied => copied?,
            }
        }
        if planted::active(Bug::RecoveryNotReentrant) {
            for (id, _) in &history.files {
                let _ = config.fs.remove_file(&config.dir.join(id.file_name()), CTX);
            }
        }
        for name in &history.leftovers {
            // They mean nothing, so it does not matter whether this succeeds.
            let _ = config.fs.remove_file(&config.dir.join(name), CTX);
        }
        let shared = Arc::new(LogShared::new(config, history));
        let writer = LogWriter { shared: Arc::clone(&shared), current: None, tail: history.tail, closed: false };
        Ok((writer, shared))
    }

    /// Appends one record.
    ///
    /// # Errors
    /// `NoSpace` or `Io` if a new segment is due and cannot be made: nothing was appended, a later append tries again.
    /// `Poisoned` after a failed sync, `Closed` after [`close`](Self::close), `InvalidArgument` for a key or value that is too
    /// long.
    #[inline]
    pub fn append_record(
        &mut self,
        seq: SeqNo,
        keyspace: KeyspaceId,
        kind: Kind,
        key: &[u8],
        value: &[u8],
    ) -> Result<LogPos> {
        if key.len() > MAX_KEY_BYTES || value.len() > MAX_VALUE_BYTES {
            return Err(Error::invalid("a key or value that is too long for the log"));
        }
        let record = LogRecord { kind, keyspace, key, value };
        let body = BODY_HEADER + record_len(&record);
        Ok(self.room(body)?.append(body, |out| write_one(out, seq, &record)))
    }

    /// Appends a value for a key: [`append_record`](Self::append_record) with [`Kind::Put`].
    ///
    /// # Errors
    /// As [`append_record`](Self::append_record).
    #[inline]
    pub fn append_put(&mut self, seq: SeqNo, keyspace: KeyspaceId, key: &[u8], value: &[u8]) -> Result<LogPos> {
        self.append_record(seq, keyspace, Kind::Put, key, value)
    }

    /// Appends a batch of `count` records, made with [`encode_record`](super::encode_record): recovery finds all of it or nothing.
    ///
    /// # Errors
    /// As [`append_record`](Self::append_record); `InvalidArgument` for an empty batch or one of 2 GiB.
    pub fn append_batch(&mut self, first: SeqNo, count: u32, payload: &[u8]) -> Result<LogPos> {
        if count == 0 || payload.len() > MAX_BODY - 64 {
            return Err(Error::invalid("a batch that is empty or takes 2 GiB"));
        }
        debug_assert!(super::RecordIter::of_payload(count, payload).is_ok());
        let body = batch_len(count, payload);
        Ok(self.room(body)?.append(body, |out| write_batch(out, first, count, payload)))
    }

    /// The segment to append to, with room for a body.
    #[inline]
    fn room(&mut self, body: usize) -> Result<&mut Current> {
        let frame = to_u64(FRAME_HEADER + body);
        let fits = self.current.as_ref().is_some_and(|current| current.offset + frame <= current.live.bytes);
        if !fits || self.shared.is_poisoned() {
            self.roll(frame)?;
        }
        let current = self.current.as_mut().expect("there is a segment after a roll");
        let synced_to = current.live.synced_to.load(Ordering::Relaxed);
        if synced_to > current.mark.synced_to {
            current.write_mark(synced_to, 0);
        }
        Ok(current)
    }

    #[cold]
    fn roll(&mut self, frame: u64) -> Result<()> {
        if self.closed {
            return Err(Error::new(ErrorKind::Closed, "the log is closed"));
        }
        if self.shared.is_poisoned() {
            return Err(self.shared.poison_error());
        }
        let fresh = match self.current {
            Some(_) => self.shared.take_fresh(frame)?,
            None => self.shared.create_first(frame)?,
        };
        self.go_on_in(fresh);
        Ok(())
    }

    /// Leaves a long segment for a short one, so that a log that nobody writes to takes little of the disk. Call it when nothing of the log is
    /// needed. Returns whether there was a long one.
    ///
    /// # Errors
    /// As [`append_record`](Self::append_record): nothing has changed then.
    pub fn rest(&mut self) -> Result<bool> {
        let is_long = self.current.as_ref().is_some_and(|current| current.live.bytes > self.shared.short_bytes());
        if !is_long || self.shared.is_poisoned() {
            return Ok(false);
        }
        let fresh = self.shared.create_resting()?;
        self.go_on_in(fresh);
        Ok(true)
    }

    fn go_on_in(&mut self, fresh: Fresh) {
        let Fresh { memory, live, seed, is_over } = fresh;
        let link = self.end_segment();
        let (live, offset) = (Arc::new(live), FIRST_RECORD);
        let prepare_at = self.shared.prepare_at(live.bytes);
        let mut current =
            Current { memory, live, seed, offset, chain: seed, mark: Mark::default(), is_over, prepare_at };
        current.write_header(LINK_AT, &link.encode(seed));
        self.shared.begin(&current.live);
        self.current = Some(current);
    }

    /// Leaves the current segment, if there is one, and says how the next one links to it.
    fn end_segment(&mut self) -> Link {
        let began_ms = self.shared.config.clock.wall_ns() / 1_000_000;
        match self.current.take() {
            Some(Current { memory, live, offset, chain, .. }) => {
                self.shared.retire(memory);
                self.tail = Tail { segment: live.id, len: offset, chain };
                Link { before: self.tail, synced_to: live.synced_to.load(Ordering::Relaxed), decided: false, began_ms }
            }
            // The first segment of a session: everything before it was synced when the log was opened.
            None => Link { before: self.tail, synced_to: self.tail.len, decided: true, began_ms },
        }
    }

    /// Whether the background should call [`LogShared::prepare`]: true once for each segment, when it is half full, or a short one hardly used.
    #[inline]
    pub fn is_prepare_due(&mut self) -> bool {
        match &mut self.current {
            Some(current) if current.offset >= current.prepare_at => {
                current.prepare_at = u64::MAX;
                true
            }
            _ => false,
        }
    }

    /// Where the last record ends. Its segment may serve as the floor of a log that holds nothing that is needed.
    pub fn end(&self) -> LogPos {
        match &self.current {
            Some(current) => LogPos { segment: current.live.id, offset: current.offset },
            None => LogPos { segment: self.tail.segment, offset: self.tail.len },
        }
    }

    /// Syncs the log and marks its end, so that the next open can tell whether anything is missing. Later appends fail with
    /// `Closed`. Does nothing the second time.
    ///
    /// # Errors
    /// `Poisoned` if a sync fails or has failed: the log is closed all the same.
    pub fn close(&mut self) -> Result<()> {
        self.closed = true;
        self.shared.discard_prepared();
        let end = self.end();
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        self.tail = Tail { segment: end.segment, len: end.offset, chain: current.chain };
        self.shared.sync_to(end)?;
        // Both slots, so that the end stands even when one of them is damaged later. Their old contents are still needed if a
        // crash comes before the records are synced, which is why this is a second sync.
        current.write_mark(end.offset, end.offset);
        current.write_mark(end.offset, end.offset);
        self.shared.sync_header(&current.live)
    }
}

/// Puts a durable copy in a segment's place. Syncing the segment is not enough: if a sync of it failed in the session before,
/// what replay has read may be in memory only, and no further sync writes it. Only a full disk leaves no
/// choice.
fn replace_by_copy(fs: &dyn Fs, dir: &Path, path: &Path, copy: &Path) -> Result<()> {
    // A leftover of an earlier attempt, most often absent.
    let _ = fs.remove_file(copy, CTX);
    let fail = |doing: &'static str| move |source| Error::io(path, doing, source);
    let from = fs.open(path, OpenOptions::default(), CTX).map_err(fail("opening a log segment"))?;
    let mut to = fs.create(copy, CreateOptions::default(), CTX).map_err(fail("copying a log segment"))?;
    let mut buf = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < from.bytes() {
        let len = to_usize((from.bytes() - offset).min(1 << 20));
        from.read_exact_at(&mut buf[..len], offset, CTX).map_err(fail("reading a log segment"))?;
        to.append(&buf[..len], CTX).map_err(fail("copying a log segment"))?;
        offset += to_u64(len);
    }
    to.sync(CTX).map_err(fail("syncing the copy of a log segment"))?;
    fs.rename(copy, path, CTX).map_err(fail("replacing a log segment by its copy"))?;
    fs.sync_dir(dir, CTX).map_err(fail("syncing the folder of the log"))
}

impl Current {
    #[inline]
    fn append(&mut self, body: usize, write: impl FnOnce(&mut [u8])) -> LogPos {
        let at = to_usize(self.offset);
        let frame = &mut self.memory.bytes_mut()[at..at + FRAME_HEADER + body];
        write(&mut frame[FRAME_HEADER..]);
        prefetch_for_appending(frame.as_ptr_range().end);
        self.chain = seal(frame, self.chain);
        self.live.file.written(self.offset, frame, CTX);
        self.offset += to_u64(frame.len());
        if self.is_over {
            self.write_end();
        }
        self.live.written.store(self.offset, Ordering::Release);
        LogPos { segment: self.live.id, offset: self.offset }
    }

    /// Zeros where the next frame begins, so that the end of the records is one, and no torn record.
    #[inline]
    fn write_end(&mut self) {
        let at = to_usize(self.offset);
        let bytes = self.memory.bytes_mut();
        let end = bytes.len().min(at + FRAME_HEADER);
        bytes[at..end].fill(0);
        self.live.file.written(self.offset, &[0; FRAME_HEADER][..end - at], CTX);
    }

    #[cold]
    fn write_mark(&mut self, synced_to: u64, end: u64) {
        self.mark = Mark { generation: self.mark.generation + 1, synced_to, end };
        self.write_header(self.mark.slot(), &self.mark.encode(self.seed));
    }

    fn write_header(&mut self, at: usize, part: &[u8]) {
        self.memory.bytes_mut()[at..at + part.len()].copy_from_slice(part);
        self.live.file.written(to_u64(at), part, CTX);
    }
}

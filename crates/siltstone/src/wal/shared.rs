//! What the writer shares with everyone else: syncing, preparing segments, removing old ones.
//!
//! Locks, in the order in which they may be taken: `next` (a segment being created; I/O happens under it, only the writer and the
//! log's lane take it, the writer only when nothing is prepared) or `removing` (likewise, never both), then `state`, `prepared`, `spares`,
//! `retired` (never held across I/O).

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use super::header::{FIRST_RECORD, Identity, PAGE};
use super::{CTX, LogConfig, LogPos, ReplaySummary, SegmentId};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::FRAME_HEADER;
use crate::io::{LogFile, LogMemory, LogSegment};
use crate::planted::{self, Bug};

/// The half of the log that any thread may use.
pub struct LogShared {
    pub(super) config: LogConfig,
    state: Mutex<State>,
    /// A sync ended.
    synced: Condvar,
    poisoned: AtomicBool,
    /// The number of the segment that is made next.
    next: Mutex<SegmentId>,
    /// Segments that are made, in the order in which they are to be used.
    prepared: Mutex<VecDeque<Fresh>>,
    /// When the present segment came into use.
    begun_ns: AtomicU64,
    /// The segment before was full within [`FAST_NS`].
    is_fast: AtomicBool,
    /// Segments that are not needed any more and whose files the next ones are written over.
    spares: Mutex<Vec<SegmentId>>,
    /// One thread at a time removes segments.
    removing: Mutex<()>,
    /// Memory of segments that are full: giving it back takes milliseconds, which no writer should spend.
    retired: Mutex<Vec<LogMemory>>,
}

/// A segment in use, as the writer and the syncing threads see it.
pub(super) struct Live {
    pub(super) id: SegmentId,
    pub(super) bytes: u64,
    pub(super) file: Arc<dyn LogFile>,
    /// Where the last whole record ends. The writer stores, everyone reads.
    pub(super) written: AtomicU64,
    /// Up to where it is known to be durable. The syncing thread stores, the writer reads.
    pub(super) synced_to: AtomicU64,
    /// Up to where its memory was made ready, or is about to be, or was passed over because the writer had come further. The log's lane alone changes it.
    ready_to: AtomicU64,
}

/// A segment that was made and is not in use yet.
pub(super) struct Fresh {
    pub(super) memory: LogMemory,
    pub(super) live: Live,
    pub(super) seed: u32,
    /// Behind its first record there is what an older segment held, not zeros.
    pub(super) is_over: bool,
}

struct State {
    /// Every segment that still has a file, ascending.
    kept: VecDeque<Kept>,
    /// A thread is syncing: wait for it.
    syncing: bool,
    /// Everything up to here is durable.
    synced: LogPos,
    /// Why the log is poisoned.
    poison: Option<String>,
}

struct Kept {
    id: SegmentId,
    /// Of a segment from before this session.
    bytes: u64,
    live: Option<Arc<Live>>,
}

/// Making a segment takes two syncs, which a busy disk delays by as much as this. Where segments fill faster, several are made ahead.
const FAST_NS: u64 = 1_000_000_000;
/// So many then.
const AHEAD: usize = 4;
/// And so many files of old segments are kept then to be written over: new blocks and pages cost more than what is written to them.
const SPARES: usize = 4;
/// The first segment of a session, and that of a log at rest, is shorter than others by so much: little of it may be used, and the first write
/// waits until it is made.
const SHORT_SHARE: u64 = 4;
/// So much of a segment's memory is made ready with one call. The system holds a processor meanwhile, and what every mapping of the process
/// needs, and writers wait for both: 16 MiB in one go took 10 to 80 ms.
const READY_BYTES: u64 = 1 << 20;
/// A short segment is followed by a long one as soon as so much of it is used: it lasts too short to make one while its last half fills.
const SHORT_USED_SHARE: u64 = 64;

impl LogShared {
    pub(super) fn new(config: LogConfig, history: &ReplaySummary) -> LogShared {
        let kept = history.files.iter().map(|&(id, bytes)| Kept { id, bytes, live: None }).collect();
        let synced = LogPos { segment: history.tail.segment, offset: history.tail.len };
        let state = State { kept, syncing: false, synced, poison: None };
        LogShared {
            config,
            state: Mutex::new(state),
            synced: Condvar::new(),
            poisoned: AtomicBool::new(false),
            next: Mutex::new(SegmentId(history.highest.0 + 1)),
            prepared: Mutex::default(),
            spares: Mutex::default(),
            begun_ns: AtomicU64::new(0),
            is_fast: AtomicBool::new(false),
            removing: Mutex::default(),
            retired: Mutex::default(),
        }
    }

    /// Makes every record up to `pos` durable. Callers share syncs: one thread syncs for all that wait. Older segments are
    /// synced before newer ones, each in full.
    ///
    /// # Errors
    /// `Poisoned` if a sync fails or has failed before; from then on nothing is appended and nothing is synced again, because
    /// the system may have thrown the bytes away and call the next sync a success.
    pub fn sync_to(&self, pos: LogPos) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            if let Some(why) = &state.poison {
                return Err(Error::new(ErrorKind::Poisoned, why.clone()));
            }
            if state.synced >= pos {
                return Ok(());
            }
            if !state.syncing {
                break;
            }
            self.synced.wait(&mut state);
        }
        state.syncing = true;
        // A segment is behind its successor in this list only when its last record is in place, so each but the last is
        // synced to its end.
        let mut live: Vec<Arc<Live>> = state.kept.iter().filter_map(|kept| kept.live.clone()).collect();
        if planted::active(Bug::OlderLogNotSynced) {
            live.drain(..live.len().saturating_sub(1));
        }
        drop(state);
        let result = live.iter().try_fold(LogPos::default(), |_, live| self.sync_live(live));
        let mut state = self.state.lock();
        state.syncing = false;
        match &result {
            Ok(reached) => state.synced = state.synced.max(*reached),
            Err(error) => self.poison(&mut state, error),
        }
        self.synced.notify_all();
        match state.poison.clone() {
            Some(why) => Err(Error::new(ErrorKind::Poisoned, why)),
            None => {
                assert!(state.synced >= pos, "synced to {:?}, asked for {pos:?}", state.synced);
                Ok(())
            }
        }
    }

    /// Makes everything appended so far durable.
    ///
    /// # Errors
    /// As [`sync_to`](Self::sync_to).
    pub fn sync_all(&self) -> Result<()> {
        self.sync_to(self.end())
    }

    /// Where the last record that was appended ends; zeros if this session appended none.
    pub fn end(&self) -> LogPos {
        let state = self.state.lock();
        let live = state.kept.back().and_then(|kept| kept.live.as_ref());
        live.map_or(LogPos::default(), |live| live.end())
    }

    fn sync_live(&self, live: &Live) -> Result<LogPos> {
        // Read before the sync: what is appended while it runs may be missing from it.
        let end = live.end();
        if end.offset > live.synced_to.load(Ordering::Relaxed) {
            live.file.sync(CTX).map_err(|source| Error::io(&self.path(live.id), "syncing the log", source))?;
            live.synced_to.store(end.offset, Ordering::Relaxed);
        }
        Ok(end)
    }

    /// Syncs the header of a segment whose records are all synced.
    pub(super) fn sync_header(&self, live: &Live) -> Result<()> {
        let synced = live.file.sync(CTX);
        synced.map_err(|source| self.poison_with(&Error::io(&self.path(live.id), "syncing the log", source)))
    }

    fn poison(&self, state: &mut State, error: &Error) {
        state.poison.get_or_insert_with(|| format!("a sync failed, reopen the store to write: {error}"));
        self.poisoned.store(true, Ordering::Release);
    }

    /// Poisons the log and returns the error to report.
    fn poison_with(&self, error: &Error) -> Error {
        let mut state = self.state.lock();
        self.poison(&mut state, error);
        drop(state);
        self.poison_error()
    }

    /// The error that appends and syncs fail with once a sync has failed.
    pub(super) fn poison_error(&self) -> Error {
        let why = self.state.lock().poison.clone();
        Error::new(ErrorKind::Poisoned, why.unwrap_or_default())
    }

    /// Whether a sync has failed.
    #[inline]
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }

    /// What the background owes the writer: gives back the memory of full segments, makes the next segment once the current one is half full,
    /// several and at once where they fill fast, and then has their memory ready. Makes at most one of them, and at most two pieces of memory
    /// ready; returns whether it did anything. Called by one lane.
    ///
    /// # Errors
    /// `NoSpace` or `Io`: try again later, nothing is lost. `Poisoned` if the new name could not be made durable.
    pub fn prepare(&self) -> Result<bool> {
        let retired = std::mem::take(&mut *self.retired.lock());
        let mut worked = !retired.is_empty();
        drop(retired);
        if self.is_poisoned() {
            return Ok(worked);
        }
        // Segments first, since a writer who has to make his own waits for two syncs, and one whose memory is not ready for no more than a page at
        // a time.
        let is_wanted = || {
            let wanted = self.wanted();
            self.prepared.lock().len() < wanted
        };
        // Asked again with the lock: who went to rest meanwhile wants none.
        if is_wanted()
            && let mut next = self.next.lock()
            && is_wanted()
        {
            let fresh = self.create(&mut next, self.config.segment_bytes)?;
            // Before the number is free for the writer: segments are used in the order of their numbers.
            self.prepared.lock().push_back(fresh);
            worked = true;
        }
        if !is_wanted() {
            // Two: with short segments that is one of the segment in use and one of the next.
            for _ in 0..2 {
                worked |= self.make_ready();
            }
        }
        Ok(worked)
    }

    /// Makes a piece of the memory of the segment in use, or of the one that comes next, ready; whether there was any to make. Those behind wait:
    /// what is ready counts as written, so the system writes it out where memory is short, and again when it holds records.
    fn make_ready(&self) -> bool {
        let take = |live: &Live| Some((Arc::clone(&live.file), live.take_piece()?));
        let current = || self.state.lock().kept.back().and_then(|kept| kept.live.as_deref().and_then(take));
        let next = || self.prepared.lock().front().and_then(|next| take(&next.live));
        let Some((file, piece)) = current().or_else(next) else { return false };
        file.prepare(piece);
        true
    }

    /// How many segments there should be for the writer to go on with.
    fn wanted(&self) -> usize {
        let state = self.state.lock();
        let live = state.kept.back().and_then(|kept| kept.live.as_ref());
        match live {
            Some(_) if self.is_fast.load(Ordering::Relaxed) => AHEAD,
            Some(live) if live.end().offset >= self.prepare_at(live.bytes) => 1,
            _ => 0,
        }
    }

    /// Where in a segment of `bytes` the next one should be made.
    pub(super) fn prepare_at(&self, bytes: u64) -> u64 {
        if bytes < self.usual_bytes() { FIRST_RECORD + bytes / SHORT_USED_SHARE } else { bytes / 2 }
    }

    /// The first segment of a session, with room for `frame` bytes.
    pub(super) fn create_first(&self, frame: u64) -> Result<Fresh> {
        let mut next = self.next.lock();
        self.create(&mut next, self.short_bytes().max(FIRST_RECORD + frame))
    }

    /// A segment with room for `frame` bytes, prepared or made now.
    pub(super) fn take_fresh(&self, frame: u64) -> Result<Fresh> {
        let needed = FIRST_RECORD + frame;
        if let Some(fresh) = self.take_prepared(needed) {
            return Ok(fresh);
        }
        let mut next = self.next.lock();
        match self.take_prepared(needed) {
            // The lane was about to make one.
            Some(fresh) => Ok(fresh),
            None => self.create(&mut next, self.config.segment_bytes.max(needed)),
        }
    }

    /// A short segment, for a log that nobody writes to. Those that are prepared are discarded.
    pub(super) fn create_resting(&self) -> Result<Fresh> {
        let mut next = self.next.lock();
        self.discard_prepared();
        self.create(&mut next, self.short_bytes())
    }

    /// The length of a short segment.
    pub(super) fn short_bytes(&self) -> u64 {
        (self.config.segment_bytes / SHORT_SHARE).max(2 * FIRST_RECORD).next_multiple_of(FIRST_RECORD)
    }

    /// The first prepared segment; if it is shorter than `needed`, none, and all that are prepared are discarded: what is made next has a
    /// higher number, and segments are used in the order of their numbers.
    fn take_prepared(&self, needed: u64) -> Option<Fresh> {
        let mut prepared = self.prepared.lock();
        if prepared.front()?.live.bytes >= needed {
            return prepared.pop_front();
        }
        let small = std::mem::take(&mut *prepared);
        drop(prepared);
        small.into_iter().for_each(|fresh| self.discard(fresh));
        None
    }

    /// Removes the segments that were prepared and will not be needed.
    pub(super) fn discard_prepared(&self) {
        let prepared = std::mem::take(&mut *self.prepared.lock());
        prepared.into_iter().for_each(|fresh| self.discard(fresh));
        self.remove_spares();
    }

    /// The writer pauses: gives back what it was to go on with at the speed that it had, segments made ahead and files to be written over.
    pub fn rest(&self) {
        self.is_fast.store(false, Ordering::Relaxed);
        // The lane may be making one.
        let _next = self.next.lock();
        self.discard_prepared();
    }

    /// Removes the files that were kept to be written over. If it fails, the next open removes them.
    pub fn remove_spares(&self) {
        let spares = std::mem::take(&mut *self.spares.lock());
        for id in spares {
            let _ = self.config.fs.remove_file(&self.path(id), CTX);
        }
    }

    /// When a segment came into use last, by the monotonic clock, if more is held ready than a slow writer needs: segments made ahead, or files
    /// that are kept to be written over.
    pub fn spares_touched_ns(&self) -> Option<u64> {
        let any = self.is_fast.load(Ordering::Relaxed) || !self.spares.lock().is_empty();
        any.then(|| self.begun_ns.load(Ordering::Relaxed))
    }

    /// Keeps the file of a segment that is not needed any more, if one like it will be needed soon. Says whether it does.
    fn keep(&self, old: &Kept) -> bool {
        // Segments of earlier sessions may be copies, which are not allocated in full.
        let is_usual = old.live.is_some() && old.bytes == self.usual_bytes();
        let mut spares = self.spares.lock();
        let keeps = is_usual && self.is_fast.load(Ordering::Relaxed) && spares.len() < SPARES;
        if keeps {
            spares.push(old.id);
        }
        keeps
    }

    fn usual_bytes(&self) -> u64 {
        self.config.segment_bytes.next_multiple_of(FIRST_RECORD)
    }

    /// A segment without a link means nothing, so it does not matter whether this succeeds, or is durable.
    fn discard(&self, fresh: Fresh) {
        let _ = self.config.fs.remove_file(&self.path(fresh.live.id), CTX);
    }

    /// Makes a segment. It gets its name when its header is durable, and the name is durable before the first record.
    fn create(&self, next: &mut SegmentId, bytes: u64) -> Result<Fresh> {
        let id = *next;
        // A number is never tried twice: whatever a failed attempt left behind, it is not in the way.
        *next = SegmentId(id.0 + 1);
        let bytes = bytes.next_multiple_of(FIRST_RECORD);
        let LogConfig { fs, dir, store_id, nonce, .. } = &self.config;
        let (temporary, path) = (dir.join(id.temporary_name()), self.path(id));
        let (page, seed) = Identity { store_id: *store_id, segment: id, bytes, nonce: *nonce }.encode();
        let clean_up = |error: Error| {
            // Best effort: neither name can be mistaken for a segment in use.
            let _ = (fs.remove_file(&temporary, CTX), fs.remove_file(&path, CTX));
            error
        };
        let over = if bytes == self.usual_bytes() { self.create_over(&temporary, &page) } else { None };
        let is_over = over.is_some();
        let segment = match over {
            Some(segment) => segment,
            None => fs
                .create_log(&temporary, bytes, &page, CTX)
                .map_err(|source| clean_up(Error::io(&temporary, "creating a log segment", source)))?,
        };
        fs.rename(&temporary, &path, CTX)
            .map_err(|source| clean_up(Error::io(&path, "naming a log segment", source)))?;
        fs.sync_dir(dir, CTX).map_err(|source| {
            let error = clean_up(Error::io(dir, "syncing the folder of the log", source));
            if error.is_shortage() { error } else { self.poison_with(&error) }
        })?;
        Ok(Fresh { memory: segment.memory, live: Live::new(id, bytes, segment.file), seed, is_over })
    }

    /// The file of an old segment as a new one, if there is one and that works.
    fn create_over(&self, temporary: &Path, page: &[u8; PAGE]) -> Option<LogSegment> {
        let old = self.path(self.spares.lock().pop()?);
        // No record yet, not one of the old ones.
        let header = [page.as_slice(), &[0; FRAME_HEADER]].concat();
        let LogConfig { fs, .. } = &self.config;
        let segment = fs.create_log_over(&old, temporary, self.usual_bytes(), &header, CTX);
        if segment.is_err() {
            let _ = (fs.remove_file(&old, CTX), fs.remove_file(temporary, CTX));
        }
        segment.ok()
    }

    /// The writer begins to use `live`; it has written its last record to the one before.
    pub(super) fn begin(&self, live: &Arc<Live>) {
        let now_ns = self.config.clock.mono_ns();
        let took_ns = now_ns.saturating_sub(self.begun_ns.swap(now_ns, Ordering::Relaxed));
        let mut state = self.state.lock();
        // The first one of a session was not full before.
        let full = state.kept.back().filter(|kept| kept.live.is_some());
        let is_short = |kept: &Kept| kept.bytes < self.usual_bytes();
        let fast_ns = full.map_or(0, |kept| if is_short(kept) { FAST_NS / SHORT_SHARE } else { FAST_NS });
        self.is_fast.store(took_ns < fast_ns, Ordering::Relaxed);
        state.kept.push_back(Kept { id: live.id, bytes: live.bytes, live: Some(Arc::clone(live)) });
    }

    /// Takes the memory of a full segment, to be given back by the background.
    pub(super) fn retire(&self, memory: LogMemory) {
        self.retired.lock().push(memory);
    }

    /// Removes the segments before `floor`, oldest first; the one being written always stays. Call it when a durable manifest
    /// says that none of their records is needed.
    ///
    /// # Errors
    /// `Io` if a file cannot be removed; it is tried again at the next call.
    pub fn remove_before(&self, floor: SegmentId) -> Result<()> {
        let _removing = self.removing.lock();
        loop {
            let mut state = self.state.lock();
            let is_current = state.kept.len() == 1 && state.kept[0].live.is_some();
            if is_current || state.kept.front().is_none_or(|oldest| oldest.id >= floor) {
                return Ok(());
            }
            let Some(oldest) = state.kept.pop_front() else {
                return Ok(());
            };
            drop(state);
            if self.keep(&oldest) {
                continue;
            }
            let path = self.path(oldest.id);
            match self.config.fs.remove_file(&path, CTX) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    self.state.lock().kept.push_front(oldest);
                    return Err(Error::io(&path, "removing a log segment", source));
                }
                _ => {}
            }
        }
    }

    /// Bytes of records in the segments that are kept, headers included.
    pub fn bytes(&self) -> u64 {
        self.bytes_from(SegmentId(0))
    }

    /// The same, of segment `first` and those behind it.
    pub fn bytes_from(&self, first: SegmentId) -> u64 {
        let state = self.state.lock();
        let needed = state.kept.iter().rev().take_while(|kept| kept.id >= first);
        needed.map(|kept| kept.live.as_ref().map_or(kept.bytes, |live| live.end().offset)).sum()
    }

    /// The segments that are kept, ascending.
    pub fn segments(&self) -> Vec<SegmentId> {
        self.state.lock().kept.iter().map(|kept| kept.id).collect()
    }

    /// The oldest segment that is kept.
    pub fn oldest(&self) -> Option<SegmentId> {
        self.state.lock().kept.front().map(|kept| kept.id)
    }

    pub(super) fn path(&self, id: SegmentId) -> PathBuf {
        self.config.dir.join(id.file_name())
    }
}

impl Live {
    pub(super) fn new(id: SegmentId, bytes: u64, file: Arc<dyn LogFile>) -> Live {
        let (written, synced_to) = (AtomicU64::new(FIRST_RECORD), AtomicU64::new(0));
        Live { id, bytes, file, written, synced_to, ready_to: AtomicU64::new(0) }
    }

    /// The next piece to be made ready, from where the writer is on.
    fn take_piece(&self) -> Option<Range<u64>> {
        let reached = self.written.load(Ordering::Relaxed) / READY_BYTES * READY_BYTES;
        let from = self.ready_to.load(Ordering::Relaxed).max(reached);
        let to = (from + READY_BYTES).min(self.bytes);
        self.ready_to.store(to, Ordering::Relaxed);
        (from < to).then_some(from..to)
    }

    fn end(&self) -> LogPos {
        LogPos { segment: self.id, offset: self.written.load(Ordering::Acquire) }
    }
}

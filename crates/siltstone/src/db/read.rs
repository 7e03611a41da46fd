//! Reading: what a keyspace looks like at one moment, and the point lookup through it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::core::{Core, KeyspaceCore};
use crate::cache::{TableGuard, TableHandle};
use crate::error::{Error, Result};
use crate::io::{IoClass, IoCtx};
use crate::iter::file::{LiveFile, RunFiles, RunTables, restamp};
use crate::iter::run::{FileCursors, RunCursor};
use crate::iter::{Approach, Arrival, Cursor, Target};
use crate::key::{self, Entry, SeqNo, Trailer};
use crate::memtable::{Memtable, MemtableCursor};
use crate::num::to_u32;
use crate::planted::{self, Bug};
use crate::version::{FileMeta, LevelId, ReadCounters, RunOrder, SstId, Version};
use crate::wal::SegmentId;

/// The tag of reads that a user waits for.
pub(crate) const USER_READ: IoCtx = IoCtx::foreground(IoClass::UserRead);

/// What a reader of a keyspace sees: newest first, the mutable memtable, the immutable ones, the tree.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) memtable: Arc<MemSlot>,
    /// Newest first.
    pub(crate) immutables: Vec<Arc<MemSlot>>,
    pub(crate) tree: Arc<Tree>,
}

impl View {
    /// Bytes of the memtables that wait for their flush.
    pub(crate) fn immutable_bytes(&self) -> u64 {
        self.immutables.iter().map(|slot| slot.table.bytes()).sum()
    }
}

/// A memtable and what ties it to the log.
pub(crate) struct MemSlot {
    pub(crate) table: Arc<Memtable>,
    /// The log segment of its first record; `u64::MAX` while it has none (or has unlogged ones only).
    first_segment: AtomicU64,
    /// The wall time of its first delete, in milliseconds, or one before it; `u64::MAX` while it has none.
    first_delete_ms: AtomicU64,
}

impl MemSlot {
    pub(crate) fn new(table: Arc<Memtable>) -> Arc<MemSlot> {
        let none = || AtomicU64::new(u64::MAX);
        Arc::new(MemSlot { table, first_segment: none(), first_delete_ms: none() })
    }

    /// The log segment that must be kept for it.
    pub(crate) fn first_segment(&self) -> Option<SegmentId> {
        match self.first_segment.load(Ordering::Acquire) {
            u64::MAX => None,
            segment => Some(SegmentId(segment)),
        }
    }

    /// When its first delete was written, in milliseconds of wall time.
    pub(crate) fn first_delete_ms(&self) -> Option<u64> {
        Some(self.first_delete_ms.load(Ordering::Acquire)).filter(|ms| *ms != u64::MAX)
    }

    /// Notes a delete; `now_ms` is asked for the first one only. Says whether it is the first.
    #[inline]
    pub(crate) fn note_delete(&self, now_ms: impl FnOnce() -> u64) -> bool {
        let first = self.first_delete_ms.load(Ordering::Relaxed) == u64::MAX;
        if first {
            self.first_delete_ms.store(now_ms(), Ordering::Release);
        }
        first
    }

    #[inline]
    pub(crate) fn note_segment(&self, segment: SegmentId) {
        if planted::active(Bug::MixedMemtableForgotten) && !self.table.is_empty() {
            return;
        }
        // Segments only grow, so the first note stays.
        if self.first_segment.load(Ordering::Relaxed) == u64::MAX {
            self.first_segment.store(segment.0, Ordering::Release);
        }
    }
}

/// A version, ready to be read: its runs in one list, newest first, with a handle for every file.
pub(crate) struct Tree {
    pub(crate) version: Arc<Version>,
    pub(crate) runs: Vec<Arc<RunFiles>>,
}

/// More runs than this are probed without prefetching the filters of the rest.
const PREFETCHED_RUNS: usize = 24;
/// Of so many runs the tables are held from the first look to the second: a thread can hold eight cheaply, the view among them.
const HELD_TABLES: usize = 6;

/// After so many wasted seeks in a file the planner looks at it again.
const READS_PER_LOOK: u64 = 64;

impl Tree {
    /// The tree of `version`, which follows `before`: runs that have not changed are shared with it, and so are the handles of
    /// files that stay. `handle` is asked for the others.
    pub(crate) fn after(
        before: &Tree,
        version: Arc<Version>,
        mut handle: impl FnMut(&Arc<FileMeta>) -> Arc<TableHandle>,
    ) -> Tree {
        let old: BTreeMap<(LevelId, RunOrder), &Arc<RunFiles>> =
            before.version.runs().map(|(level, run)| (level, run.order)).zip(&before.runs).collect();
        let runs = version.runs().map(|(level, run)| match old.get(&(level, run.order)) {
            Some(old) if old.holds(&run.files) => Arc::clone(old),
            Some(old) => Arc::new(old.next(&run.files, &mut handle)),
            None => Arc::new(RunFiles::new(&run.files, &mut handle)),
        });
        let runs = runs.collect();
        Tree { version, runs }
    }

    /// The tree without files.
    pub(crate) fn empty() -> Tree {
        Tree { version: Arc::new(Version::empty()), runs: Vec::new() }
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = LiveFile<'_>> {
        self.runs.iter().flat_map(|run| run.files())
    }

    /// The files with these numbers, in the order of [`files`](Self::files).
    pub(crate) fn files_of(&self, ids: &BTreeSet<SstId>) -> impl Iterator<Item = LiveFile<'_>> {
        let runs = self.version.runs().zip(&self.runs);
        runs.flat_map(|((_, run), live)| run.files.positions(ids).map(|at| live.file(at)))
    }

    pub(crate) fn handles(&self) -> impl Iterator<Item = &Arc<TableHandle>> {
        self.files().map(|file| file.table)
    }

    /// What reads have done to each file that was read. Reads are counted by table; slices of one share them by their sizes.
    pub(crate) fn reads(&self) -> BTreeMap<SstId, ReadCounters> {
        let read =
            self.files().map(|file| (file, file.table.reads())).filter(|(_, reads)| *reads != ReadCounters::default());
        read.map(|(LiveFile { meta, table }, reads)| (meta.id, reads.share(meta.bytes, table.bytes()))).collect()
    }

    /// The newest version of `key` that a read at `seq` may see.
    fn get(&self, key: &[u8], hash: u64, seq: SeqNo, probes: &mut Probes) -> Result<Option<(Trailer, Bytes)>> {
        let head = key::head(key);
        // First pass: find the one file of each run that could hold the key and ask for its filter's line, so that the
        // misses of all runs overlap. A file that cannot be opened is told about by the second pass, if it comes to it.
        let mut candidates = [None; PREFETCHED_RUNS];
        let mut held = [const { None }; HELD_TABLES];
        for (i, (run, candidate)) in self.runs.iter().zip(&mut candidates).enumerate() {
            *candidate = run.position_for(key, head).map(to_u32);
            if let Some(at) = *candidate
                && let Ok(table) = run.table(at as usize).table()
            {
                table.prefetch_filter(hash);
                if let Some(held) = held.get_mut(i) {
                    *held = Some(table);
                }
            }
        }
        for (i, (run, candidate)) in self.runs.iter().zip(candidates).enumerate() {
            if let Some(at) = candidate {
                let held = held.get_mut(i).and_then(Option::take);
                if let Some(found) = probe(run, at as usize, held, key, hash, seq, probes)? {
                    return Ok(Some(found));
                }
            }
        }
        for run in self.runs.iter().skip(PREFETCHED_RUNS) {
            if let Some(at) = run.position_for(key, head)
                && let Some(found) = probe(run, at, None, key, hash, seq, probes)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Charges a lookup that considered several files to the first of them: a wasted seek, whose budget LevelDB keeps. Says whether
    /// the planner should look whether the budget is used up.
    #[cold]
    fn charge(&self, key: &[u8], considered: u64) -> bool {
        let head = key::head(key);
        let first =
            self.runs.iter().find_map(|run| Some(run.table(run.position_for(key, head)?))).filter(|_| considered > 1);
        first.is_some_and(|first| first.count_empty_read().is_multiple_of(READS_PER_LOOK))
    }
}

/// What a lookup asked of filters, counted once at its end.
#[derive(Default)]
struct Probes {
    checks: u64,
    negatives: u64,
    false_positives: u64,
    /// The wall time, in milliseconds, if the strategy wants reads counted by file.
    counted_ms: Option<u64>,
}

/// The newest version of `key` in file `at` of a run that a read at `seq` may see; `held` is its table, if the caller holds it.
fn probe(
    run: &RunFiles,
    at: usize,
    held: Option<TableGuard>,
    key: &[u8],
    hash: u64,
    seq: SeqNo,
    probes: &mut Probes,
) -> Result<Option<(Trailer, Bytes)>> {
    let meta = run.meta(at);
    if meta.min_seq > seq {
        return Ok(None);
    }
    let table = match held {
        Some(table) => table,
        None => run.table(at).table()?,
    };
    probes.checks += 1;
    if !table.may_contain(hash) {
        probes.negatives += 1;
        return Ok(None);
    }
    if let Some(now_ms) = probes.counted_ms {
        run.table(at).count_read(now_ms);
    }
    let found = table.get_hashed(key, hash, seq, USER_READ)?;
    probes.false_positives += u64::from(found.is_none());
    Ok(found.map(|(trailer, value)| (restamp(trailer, meta), value)))
}

impl Core {
    /// The value of `key` in `keyspace`, at `snapshot` or now.
    pub(crate) fn get(&self, keyspace: &KeyspaceCore, key: &[u8], snapshot: Option<SeqNo>) -> Result<Option<Bytes>> {
        self.check_read(keyspace)?;
        self.count_get(keyspace);
        // The view first, then the sequence number: see `core.rs`.
        let view = keyspace.view.load();
        let seq = snapshot.unwrap_or_else(|| self.visible_seq());
        let found = self.find(keyspace, &view, key, seq)?;
        if found.is_some() {
            keyspace.reads.get_hits.add(1);
        }
        if self.tracing.is_on() {
            self.trace_get(keyspace, key, found.as_deref());
        }
        Ok(found)
    }

    /// The view of a keyspace and the sequence number of the newest write that is in it, for reads that take several steps from there.
    ///
    /// An ingest leaves the memtable as it is and puts newer tables beside it: who had the view from before it and a number from after it would see
    /// what was written to that memtable later, and not the tables.
    pub(crate) fn view_now(&self, keyspace: &KeyspaceCore) -> (arc_swap::Guard<Arc<View>>, SeqNo) {
        let mut view = keyspace.view.load();
        loop {
            let seq = self.visible_seq();
            let now = keyspace.view.load();
            if Arc::ptr_eq(&view, &now) {
                return (view, seq);
            }
            view = now;
        }
    }

    /// Whether a keyspace may be read.
    #[inline]
    pub(crate) fn check_read(&self, keyspace: &KeyspaceCore) -> Result<()> {
        self.health.check_open()?;
        if keyspace.dropped.load(Ordering::Acquire) { Err(dropped(keyspace)) } else { Ok(()) }
    }

    fn find(&self, keyspace: &KeyspaceCore, view: &View, key: &[u8], seq: SeqNo) -> Result<Option<Bytes>> {
        let hash = key::hash(key);
        let memtables = std::iter::once(&view.memtable).chain(&view.immutables);
        for slot in memtables {
            if let Some((trailer, value)) = slot.table.get_hashed(key, hash, seq) {
                keyspace.reads.memtable_hits.add(1);
                return Ok((!trailer.is_delete()).then(|| Bytes::copy_from_slice(value)));
            }
        }
        let mut probes = Probes { counted_ms: self.counted_ms(keyspace), ..Probes::default() };
        let found = view.tree.get(key, hash, seq, &mut probes);
        if probes.counted_ms.is_some() && view.tree.charge(key, probes.checks) {
            self.wake_compactions();
        }
        if probes.checks > 0 {
            keyspace.reads.filter_checks.add(probes.checks);
            keyspace.reads.filter_negatives.add(probes.negatives);
            if probes.false_positives > 0 {
                keyspace.reads.filter_false_positives.add(probes.false_positives);
            }
        }
        Ok(found?.and_then(|(trailer, value)| (!trailer.is_delete()).then_some(value)))
    }

    /// The wall time, in milliseconds, if reads of the keyspace are counted by file.
    #[inline]
    pub(crate) fn counted_ms(&self, keyspace: &KeyspaceCore) -> Option<u64> {
        if !keyspace.counts_reads.load(Ordering::Relaxed) {
            return None;
        }
        // Written once: readers share the line.
        if !keyspace.has_counted_reads.load(Ordering::Relaxed) {
            keyspace.has_counted_reads.store(true, Ordering::Relaxed);
        }
        Some(self.now_ms())
    }

    /// The values of `keys`, all from one moment.
    pub(crate) fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &KeyspaceCore,
        keys: &[K],
        snapshot: Option<SeqNo>,
    ) -> Vec<Result<Option<Bytes>>> {
        let (view, now) = self.view_now(keyspace);
        let seq = snapshot.unwrap_or(now);
        let found: Vec<Result<Option<Bytes>>> = keys
            .iter()
            .map(|key| {
                self.check_read(keyspace)?;
                self.count_get(keyspace);
                let found = self.find(keyspace, &view, key.as_ref(), seq)?;
                keyspace.reads.get_hits.add(u64::from(found.is_some()));
                Ok(found)
            })
            .collect();
        if self.tracing.is_on() {
            self.trace_multi_get(keyspace, keys, &found);
        }
        found
    }
}

pub(crate) fn dropped(keyspace: &KeyspaceCore) -> Error {
    Error::new(crate::ErrorKind::NotFound, format!("the keyspace \"{}\" was dropped", keyspace.name))
}

/// One sorted source of a range read. Nearly all are runs, and each of their steps would go through a box.
pub(crate) enum Source<F: FileCursors = RunTables> {
    /// Apart, since it holds a leaf of the tree: a list of sources with room for that in each would be slow to allocate.
    Memtable(Box<MemtableCursor>),
    Run(RunCursor<F>),
}

impl<F: FileCursors> Source<F> {
    pub(crate) fn memtable(table: &Arc<Memtable>) -> Source<F> {
        Source::Memtable(Box::new(table.cursor()))
    }
}

macro_rules! each_source {
    ($self:ident, $cursor:ident => $call:expr) => {
        match $self {
            Source::Memtable($cursor) => $call,
            Source::Run($cursor) => $call,
        }
    };
}

impl<F: FileCursors> Cursor for Source<F> {
    fn seek_first(&mut self) -> Result<()> {
        each_source!(self, c => c.seek_first())
    }

    fn seek_last(&mut self) -> Result<()> {
        each_source!(self, c => c.seek_last())
    }

    fn seek(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        each_source!(self, c => c.seek(key, trailer))
    }

    fn seek_before(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        each_source!(self, c => c.seek_before(key, trailer))
    }

    #[inline(always)]
    fn next(&mut self) -> Result<()> {
        each_source!(self, c => c.next())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        each_source!(self, c => c.prev())
    }

    #[inline(always)]
    fn next_at_hand(&mut self) -> Option<Arrival> {
        each_source!(self, c => c.next_at_hand())
    }

    #[inline(always)]
    fn entry(&self) -> Option<Entry<'_>> {
        each_source!(self, c => c.entry())
    }

    #[inline(always)]
    fn head(&self) -> Option<u128> {
        each_source!(self, c => c.head())
    }

    fn approach(&mut self, step: Approach, target: Target<'_>) {
        each_source!(self, c => c.approach(step, target));
    }
}

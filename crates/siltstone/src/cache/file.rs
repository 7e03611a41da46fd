//! Open tables: which SSTs have a file descriptor, and their filter and index in memory.
//!
//! Every live file has one [`TableHandle`], which versions share. The table behind it is opened when it is first needed; a
//! lookup in an open one costs one atomic load, no lock. When too many are open, the least recently used is closed (CLOCK): readers
//! that are in it keep it until they are done. When one is opened and their metadata takes too much of the block cache's
//! budget, some are closed that nobody has used for a second, and no others: opening a table costs a hundred times what a lookup does, so
//! a cache that is too small for the tables that are read must not turn each lookup into that.
//!
//! A handle whose file left the tree is marked obsolete. When its last user drops it, the number goes to the
//! [`PurgeQueue`], from which the store deletes files. So a file is never deleted under a reader.
//!
//! Lock order: a handle's `opening`, then `registry` or `open_list`, never both of these; no I/O under the latter two.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::{Mutex, MutexGuard};

use crate::cache::block::BlockCache;
use crate::error::{Error, Result};
use crate::io::{Clock, Fs, IoClass, IoCtx, IoMeter, OpenOptions, ReadableFile};
use crate::key::SeqNo;
use crate::num::to_u64;
use crate::options::DirectOptions;
use crate::planted::{self, Bug};
use crate::sst::{Table, TableScan};
use crate::version::{FileMeta, ReadCounters, SstId};

/// The path of an SST in the store's folder.
pub fn sst_path(dir: &Path, id: SstId) -> PathBuf {
    dir.join(format!("{:06}.sst", id.0))
}

/// All table handles of a store. Cheap to clone.
#[derive(Clone)]
pub struct TableCache(Arc<Shared>);

struct Shared {
    fs: Arc<dyn Fs>,
    clock: Arc<dyn Clock>,
    dir: PathBuf,
    max_open: usize,
    /// Metadata of open tables beyond this closes idle ones.
    metadata_share_bytes: u64,
    blocks: Arc<BlockCache>,
    direct: DirectOptions,
    registry: Mutex<BTreeMap<SstId, Weak<TableHandle>>>,
    open_list: Mutex<OpenList>,
    purge: Arc<PurgeQueue>,
}

/// The handles that are open, in the order in which the hand passes them.
#[derive(Default)]
struct OpenList {
    open: Vec<OpenTable>,
    hand: usize,
    metadata_bytes: u64,
}

struct OpenTable {
    handle: Weak<TableHandle>,
    metadata_bytes: u64,
    /// When the hand found last that it had been used, by the monotonic clock.
    used_ns: u64,
}

/// A table that nobody used for so long may be closed for its memory.
const IDLE_NS: u64 = 1_000_000_000;
/// So many tables are looked at, when one is opened, for idle ones.
const SWEPT_AN_OPEN: usize = 8;

/// A live SST. Shared by `Arc`; one per table, however many files of a tree are slices of it.
pub struct TableHandle {
    /// The table's number.
    id: SstId,
    /// A file of the table, as it was when the handle was made. Only what it says of the whole table counts here: trees keep their files
    /// beside the handle.
    meta: Arc<FileMeta>,
    cache: Arc<Shared>,
    open: ArcSwapOption<Table>,
    /// Set by use, cleared by the hand.
    used: AtomicBool,
    obsolete: AtomicBool,
    reads: ReadCounts,
    /// Held while the file is opened, so that it is opened once.
    opening: Mutex<()>,
}

/// What reads have done to a file. Counted only for strategies that ask for it: the counters are shared by all readers.
#[derive(Default)]
struct ReadCounts {
    last_read_ms: AtomicU64,
    reads: AtomicU64,
    empty_reads: AtomicU64,
}

/// An open table, kept open while this exists.
pub struct TableGuard(Guard<Option<Arc<Table>>>);

impl Deref for TableGuard {
    type Target = Arc<Table>;

    #[inline]
    fn deref(&self) -> &Arc<Table> {
        self.0.as_ref().expect("a guard is only made of an open table")
    }
}

impl TableCache {
    /// A cache of the tables in `dir` that keeps at most `max_open` files open, besides those in use.
    pub fn new(
        fs: Arc<dyn Fs>,
        clock: Arc<dyn Clock>,
        dir: impl Into<PathBuf>,
        max_open: usize,
        blocks: Arc<BlockCache>,
        direct: DirectOptions,
    ) -> TableCache {
        let metadata_share_bytes = blocks.stats().capacity_bytes / 4 * 3;
        TableCache(Arc::new(Shared {
            fs,
            clock,
            dir: dir.into(),
            max_open: max_open.max(1),
            metadata_share_bytes,
            blocks,
            direct,
            registry: Mutex::default(),
            open_list: Mutex::default(),
            purge: Arc::default(),
        }))
    }

    /// The handle of a live file; the same one as long as anybody has it, whichever slice of the table `meta` is.
    pub fn handle(&self, meta: Arc<FileMeta>) -> Arc<TableHandle> {
        let mut registry = self.0.registry.lock();
        let id = meta.table();
        if let Some(handle) = registry.get(&id).and_then(Weak::upgrade) {
            return handle;
        }
        let handle = Arc::new(TableHandle {
            id,
            meta,
            cache: Arc::clone(&self.0),
            open: ArcSwapOption::empty(),
            used: AtomicBool::new(false),
            obsolete: AtomicBool::new(false),
            reads: ReadCounts::default(),
            opening: Mutex::new(()),
        });
        registry.insert(id, Arc::downgrade(&handle));
        handle
    }

    /// The block cache.
    pub fn blocks(&self) -> &Arc<BlockCache> {
        &self.0.blocks
    }

    /// Files to be deleted.
    pub fn purge_queue(&self) -> &Arc<PurgeQueue> {
        &self.0.purge
    }

    /// Files that left the tree and are kept because a reader is in them: how many, and their bytes.
    pub fn obsolete(&self) -> (u64, u64) {
        // Let go outside the lock: whoever drops a handle last takes it.
        let live: Vec<_> = self.0.registry.lock().values().filter_map(Weak::upgrade).collect();
        let held = live.iter().filter(|handle| handle.obsolete.load(Ordering::Acquire));
        held.fold((0, 0), |(files, bytes), handle| (files + 1, bytes + handle.bytes()))
    }

    /// Tables that are open.
    pub fn open_tables(&self) -> usize {
        let list = self.0.open_list.lock();
        list.open.iter().filter(|table| table.handle.strong_count() > 0).count()
    }
}

impl TableHandle {
    /// The table's number.
    pub fn id(&self) -> SstId {
        self.id
    }

    /// Size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.meta.table_bytes()
    }

    /// The table, opened if need be, for a user's read.
    ///
    /// # Errors
    /// As for [`Table::open`]; `Corruption` if the file is not the one that the metadata describes. The next call tries again.
    #[inline]
    pub fn table(&self) -> Result<TableGuard> {
        self.table_with(IoCtx::foreground(IoClass::UserRead))
    }

    /// The same, with the tag that the reads of opening it carry.
    ///
    /// # Errors
    /// As for [`table`](Self::table).
    #[inline]
    pub fn table_with(&self, ctx: IoCtx) -> Result<TableGuard> {
        let guard = self.open.load();
        if guard.is_some() {
            if !self.used.load(Ordering::Relaxed) {
                self.used.store(true, Ordering::Relaxed);
            }
            return Ok(TableGuard(guard));
        }
        self.open_table(ctx)
    }

    /// A cursor over the whole file for a merge. It has a file descriptor of its own, and does not disturb what is open for
    /// readers: if the table is not open, its index is read and its filter is not.
    ///
    /// `meter` counts the time of its file calls.
    ///
    /// # Errors
    /// As for [`table`](Self::table).
    pub fn scan(&self, read_ahead_bytes: usize, ctx: IoCtx, meter: &Arc<IoMeter>) -> Result<TableScan> {
        let options = OpenOptions { direct: self.cache.direct.compactions, random: true };
        let file = meter.reader(meter.time(|| self.open_file(options, ctx))?);
        if let Some(table) = &*self.open.load() {
            return Ok(table.scan_file(file, read_ahead_bytes, ctx));
        }
        let path = sst_path(&self.cache.dir, self.id);
        let blocks = Arc::clone(&self.cache.blocks);
        let table = Table::open_for_scan(path, file, self.id, self.bytes(), blocks, ctx)?;
        self.check(&table)?;
        Ok(Arc::new(table).scan(read_ahead_bytes, ctx))
    }

    /// Counts a read of the file's blocks at wall time `now_ms`.
    pub fn count_read(&self, now_ms: u64) {
        self.reads.reads.fetch_add(1, Ordering::Relaxed);
        self.reads.last_read_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

    /// Counts a lookup that considered this file first and had to go on to another one (a wasted seek, in LevelDB's words); returns
    /// how many there were so far.
    pub fn count_empty_read(&self) -> u64 {
        self.reads.empty_reads.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// What has been counted since the store was opened.
    pub fn reads(&self) -> ReadCounters {
        ReadCounters {
            last_read_ms: self.reads.last_read_ms.load(Ordering::Relaxed),
            reads: self.reads.reads.load(Ordering::Relaxed),
            empty_reads: self.reads.empty_reads.load(Ordering::Relaxed),
        }
    }

    /// Says that the last file of the table left the tree: it is deleted when the last user drops its handle.
    pub fn mark_obsolete(&self) {
        if !self.obsolete.swap(true, Ordering::AcqRel) {
            self.cache.purge.held_bytes.fetch_add(self.bytes(), Ordering::AcqRel);
            self.cache.purge.obsolete_bytes.fetch_add(self.bytes(), Ordering::AcqRel);
        }
    }

    fn open_file(&self, options: OpenOptions, ctx: IoCtx) -> Result<Arc<dyn ReadableFile>> {
        let path = sst_path(&self.cache.dir, self.id);
        self.cache.fs.open(&path, options, ctx).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::corruption(&path, 0, "a table that the manifest names is missing"),
            _ => Error::io(&path, "cannot open table", source),
        })
    }

    #[cold]
    fn open_table(&self, ctx: IoCtx) -> Result<TableGuard> {
        let opening = self.opening.lock();
        let guard = self.open.load();
        if guard.is_some() {
            return Ok(TableGuard(guard));
        }
        let file = self.open_file(OpenOptions { direct: self.cache.direct.reads, random: true }, ctx)?;
        let path = sst_path(&self.cache.dir, self.id);
        let blocks = Arc::clone(&self.cache.blocks);
        let table = Arc::new(Table::open(path, file, self.id, self.bytes(), blocks, ctx)?);
        self.check(&table)?;
        self.used.store(true, Ordering::Relaxed);
        self.open.store(Some(Arc::clone(&table)));
        drop(opening);
        self.cache.opened(self.id, table.memory_bytes());
        Ok(TableGuard(Guard::from_inner(Some(table))))
    }

    /// Whether the file is the one that the manifest means.
    fn check(&self, table: &Table) -> Result<()> {
        let (meta, properties) = (&self.meta, table.properties());
        // The records of an ingested file carry sequence number 0 and take the one of the metadata.
        let ingested = properties.max_seq == SeqNo::ZERO;
        let same = meta.table_entries() == properties.entries
            && meta.table_keys() == (&properties.smallest, &properties.largest)
            && (ingested || (meta.min_seq == properties.min_seq && meta.max_seq == properties.max_seq));
        if same { Ok(()) } else { Err(Error::corruption(table.path(), 0, "not the table that the manifest describes")) }
    }
}

impl Drop for TableHandle {
    fn drop(&mut self) {
        let id = self.id;
        {
            let mut registry = self.cache.registry.lock();
            // A new handle may have taken the place already.
            if registry.get(&id).is_some_and(|handle| handle.strong_count() == 0) {
                registry.remove(&id);
            }
        }
        // Frames go before the number is offered for deletion; readers that still have the table keep their descriptor.
        self.open.store(None);
        self.cache.forget_dead();
        if self.obsolete.load(Ordering::Acquire) {
            self.cache.purge.held_bytes.fetch_sub(self.bytes(), Ordering::AcqRel);
            self.cache.purge.push(id, self.bytes());
        }
    }
}

impl Shared {
    /// Notes that a table was opened, and closes others if there are too many now.
    fn opened(&self, id: SstId, metadata_bytes: u64) {
        let Some(handle) = self.registry.lock().get(&id).cloned() else {
            return;
        };
        let now_ns = self.clock.mono_ns();
        // Closed tables are dropped after the lock: that frees their frames.
        let mut closed = Vec::new();
        let mut list = self.open_list.lock();
        list.open.push(OpenTable { handle, metadata_bytes, used_ns: now_ns });
        list.metadata_bytes += metadata_bytes;
        for turn in 0..=2 * list.open.len() {
            let too_many = list.open.len() > self.max_open;
            let too_large = list.metadata_bytes > self.metadata_share_bytes && turn < SWEPT_AN_OPEN;
            if list.open.len() == 1 || !(too_many || too_large) || planted::active(Bug::HandlesLeak) {
                break;
            }
            let hand = list.hand % list.open.len();
            list.hand = hand + 1;
            let table = &mut list.open[hand];
            let upgraded = table.handle.upgrade();
            if let Some(handle) = &upgraded {
                let was_used = handle.used.swap(false, Ordering::Relaxed);
                if was_used {
                    table.used_ns = now_ns;
                }
                let is_idle = now_ns.saturating_sub(table.used_ns) >= IDLE_NS;
                let may_go = if too_many { !was_used } else { is_idle };
                if handle.id == id || !may_go {
                    closed.extend(upgraded.map(|handle| (handle, None)));
                    continue;
                }
            }
            let gone = list.open.swap_remove(hand);
            list.hand = hand;
            list.metadata_bytes -= gone.metadata_bytes;
            closed.extend(upgraded.map(|handle| {
                let table = handle.open.swap(None);
                (handle, table)
            }));
        }
        drop(list);
        // Dropping the last reference to a handle takes the locks.
        drop(closed);
    }

    /// Takes handles that are gone off the list.
    fn forget_dead(&self) {
        let mut list = self.open_list.lock();
        let mut freed = 0;
        list.open.retain(|table| {
            let alive = table.handle.strong_count() > 0;
            if !alive {
                freed += table.metadata_bytes;
            }
            alive
        });
        list.metadata_bytes -= freed;
    }
}

impl std::fmt::Debug for TableHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableHandle").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Numbers of SSTs that nobody uses any more: files to be deleted, and *spares*, over which new files are written.
///
/// Deleting a file gives away its blocks on the disk and its pages in the system's cache, and the next file has to get others. Where a
/// host lends memory to machines and takes back what is free, a page that was got anew costs ten times what copying to it costs, so
/// while tables come and go some are kept.
#[derive(Default)]
pub struct PurgeQueue {
    /// The files that nobody reads any more.
    files: Mutex<Vec<Obsolete>>,
    /// Those of them that are kept.
    spares: Mutex<Spares>,
    /// Bytes of all files that left the tree and are not deleted, those included that somebody still reads.
    obsolete_bytes: AtomicU64,
    /// Of them, bytes of those that somebody still reads.
    held_bytes: AtomicU64,
    /// Held from when files are taken until they are deleted or spares.
    clearing: Mutex<()>,
    wake: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

/// A file that nobody reads any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Obsolete {
    /// Its number.
    pub id: SstId,
    /// Its size.
    pub bytes: u64,
    /// Whether it may not be kept.
    pub must_go: bool,
}

#[derive(Default)]
struct Spares {
    files: Vec<(SstId, u64)>,
    bytes: u64,
    /// When one was kept or used last, by the monotonic clock.
    touched_ns: u64,
}

impl PurgeQueue {
    /// Sets what is called, without any lock held, when something was added.
    pub fn set_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        *self.wake.lock() = Some(Arc::new(wake));
    }

    /// Adds a file.
    pub(crate) fn push(&self, id: SstId, bytes: u64) {
        self.files.lock().push(Obsolete { id, bytes, must_go: false });
        let wake = self.wake.lock().clone();
        if let Some(wake) = wake {
            wake();
        }
    }

    /// To be held while files are [taken](Self::take) and dealt with: who has it knows that nobody else has some in his hands.
    pub(crate) fn clearing(&self) -> MutexGuard<'_, ()> {
        self.clearing.lock()
    }

    /// Takes up to `most` files, the oldest first, to be deleted now, of which say [`deleted`](Self::deleted), or to be kept as spares.
    pub fn take(&self, most: usize) -> Vec<Obsolete> {
        let mut files = self.files.lock();
        let most = most.min(files.len());
        files.drain(..most).collect()
    }

    /// Keeps a file that was [taken](Self::take), if with it the spares take at most `most_bytes`. Says whether it does.
    pub(crate) fn keep(&self, id: SstId, bytes: u64, most_bytes: u64, now_ns: u64) -> bool {
        let mut spares = self.spares.lock();
        let has_room = spares.bytes.saturating_add(bytes) <= most_bytes;
        if has_room {
            spares.files.push((id, bytes));
            spares.bytes += bytes;
            spares.touched_ns = now_ns;
        }
        has_room
    }

    /// Bytes of the files that are kept.
    pub(crate) fn spare_bytes(&self) -> u64 {
        self.spares.lock().bytes
    }

    /// A file to write over, if one was kept; the one that was in use last. It counts as deleted.
    pub(crate) fn take_spare(&self, now_ns: u64) -> Option<SstId> {
        let mut spares = self.spares.lock();
        let (id, bytes) = spares.files.pop()?;
        spares.bytes -= bytes;
        spares.touched_ns = now_ns;
        drop(spares);
        self.deleted(bytes);
        Some(id)
    }

    /// When a spare was kept or used last, by the monotonic clock; none if there is none.
    pub(crate) fn spares_touched_ns(&self) -> Option<u64> {
        let spares = self.spares.lock();
        (!spares.files.is_empty()).then_some(spares.touched_ns)
    }

    /// Gives up all spares, and what waits to become one: they are to be deleted. Says whether there were any spares.
    pub(crate) fn release_spares(&self) -> bool {
        let _clearing = self.clearing();
        let spares = std::mem::take(&mut *self.spares.lock()).files;
        let any = !spares.is_empty();
        let mut files = self.files.lock();
        files.iter_mut().for_each(|file| file.must_go = true);
        files.extend(spares.into_iter().map(|(id, bytes)| Obsolete { id, bytes, must_go: true }));
        any
    }

    /// A file of so many bytes was deleted.
    pub fn deleted(&self, bytes: u64) {
        self.obsolete_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// How many files wait.
    pub fn len(&self) -> u64 {
        to_u64(self.files.lock().len())
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.files.lock().is_empty()
    }

    /// Bytes of all files that left the tree and are not deleted yet, those included that somebody still reads.
    pub fn obsolete_bytes(&self) -> u64 {
        self.obsolete_bytes.load(Ordering::Acquire)
    }

    /// Of them, bytes of the files that somebody still reads; the rest is about to be deleted.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Acquire)
    }
}

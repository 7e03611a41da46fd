//! What a store is made of, and which lock guards what.
//!
//! Readers take no lock: they load a keyspace's [`View`] (one atomic pointer), *then* the newest visible sequence number. In that
//! order a view can miss writes newer than it (which is a state that existed) but never holds a state in which a merge has
//! dropped what the reader may see. Reads of more than one record ask whether it is the view still (`view_now`): of what is newer they would miss an
//! ingest and see what came after it.
//!
//! Locks, in the order in which they may be nested:
//!
//! `lock`, that of the store's folder, is held over the making of a file by those whom `close` does not wait for; nothing is nested in it.
//!
//! 0. `tracing.run`: beginning and ending a trace; then what is on its way to the file, held by its lane for a round.
//! 1. `flush`: the state of the flush lane, held while it steps.
//! 2. `manifest`: changes of the tree. Its I/O happens under it, so readers and writers never take it.
//! 3. `writer`: the log's end, the mutable memtables, the last sequence number; then `snapshots`, by an ingest that publishes.
//! 4. a keyspace's `publish`: composing a new view from an old one. A few pointer copies.
//! 5. `compaction`: which files are busy and what runs. Planning happens under it; no I/O.
//! 6. `decision_file`, then a keyspace's `decisions`: the file is written under the first, by those who end a job.
//! 7. the buffers in which a trace's reads are gathered, `merges` (which merges there are, and whose turn it is; never held while one steps), `snapshots`, `health`, a keyspace's `untold`,
//!    `stuck` and `metrics`: leaves.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};

use super::decisions::{DecisionFile, Ring};
use super::deletes::HeldSeqs;
use super::metrics::Metrics;
use super::pace::{Flushing, Pace};
use super::policies::Policies;
use super::read::{Tree, View};
use super::read_work::ReadWork;
use super::stats::{Counters, ReadStats, WriteWaits};
use super::strategy::Steering;
use super::trace::Tracing;
use super::work::{Compactions, FlushState, MergeSet};
use super::write::WriteState;
use crate::cache::{BlockCache, TableCache};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, EventListener};
use crate::io::{Clock, Executor, FileLock, Fs, Limiter, Workers};
use crate::key::SeqNo;
use crate::memtable::ArenaPool;
use crate::num::to_u64;
use crate::options::{KeyspaceOptions, Options};
use crate::schedule::constraint::RunLimits;
use crate::version::{KeyspaceId, Manifest, Version, VersionEdit};
use crate::wal::LogShared;

/// The lane of flushes.
pub(crate) const FLUSH_LANE: usize = 0;
/// The lane that prepares log segments and the cache's memory, and removes files that nothing needs any more.
pub(crate) const LOG_LANE: usize = 1;
/// The first lane of merges.
pub(crate) const COMPACTION_LANE: usize = 2;

/// A store that is open. Handles share it by `Arc`.
pub(crate) struct Core {
    /// Which of the stores that this process has opened: no two have the same, while addresses are used again.
    pub(crate) number: u64,
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) listener: Option<Arc<dyn EventListener>>,
    pub(crate) policies: Policies,
    pub(crate) limiter: Limiter,
    pub(crate) read_only: bool,
    /// Changes of trees so far.
    pub(crate) tree_changes: AtomicU64,

    pub(crate) compaction: Mutex<Compactions>,
    pub(crate) flush: Mutex<FlushState>,
    /// The merges under way.
    pub(crate) merges: Mutex<MergeSet>,
    pub(crate) manifest: Mutex<Option<Manifest>>,
    pub(crate) writer: Mutex<WriteState>,
    pub(crate) keyspaces: ArcSwap<BTreeMap<KeyspaceId, Arc<KeyspaceCore>>>,
    pub(crate) snapshots: Mutex<HeldSeqs>,
    /// Files that some snapshot could see are about to leave their tree, and none sees them yet: new snapshots wait. Changed under the lock of
    /// `snapshots`.
    pub(crate) losing: AtomicU64,
    pub(crate) decision_file: Mutex<DecisionFile>,
    pub(crate) health: Health,

    /// The log; none in a store opened read-only.
    pub(crate) log: Option<Arc<LogShared>>,
    /// What the log took when the store was opened.
    pub(crate) log_found_bytes: u64,
    /// The newest sequence number that readers may see.
    pub(crate) visible: AtomicU64,
    /// The next SST number to give out.
    pub(crate) next_sst: AtomicU64,
    pub(crate) next_job: AtomicU64,
    /// The log segment in use, or the last one of history: never ahead of the log.
    pub(crate) log_segment: AtomicU64,
    /// Log segments before this one are needed no more.
    pub(crate) obsolete_before: AtomicU64,
    /// While a checkpoint is taken: memtables with newer records are not flushed. `u64::MAX` otherwise.
    pub(crate) flush_barrier: AtomicU64,
    /// How far the flush under way is.
    pub(crate) flushing: Flushing,
    /// Bytes of all immutable memtables.
    pub(crate) immutable_bytes: AtomicU64,
    /// Counts changes that could give a compaction something to do; see [`Core::is_idle`](super::work).
    pub(crate) work_epoch: AtomicU64,
    /// The epoch at which the planner last found nothing to do while nothing ran.
    pub(crate) settled_epoch: AtomicU64,

    /// Held while a checkpoint is taken.
    pub(crate) checkpointing: Mutex<()>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) tables: TableCache,
    /// Memory of memtables that were flushed.
    pub(crate) arenas: Arc<ArenaPool>,
    /// Some keyspace has events that were not told yet.
    pub(crate) is_untold: AtomicBool,
    pub(crate) counters: Counters,
    pub(crate) workers: OnceLock<Box<dyn Workers>>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) tracing: Tracing,
    /// Held while the store is open; none in a store opened read-only.
    pub(crate) lock: Mutex<Option<Box<dyn FileLock>>>,
}

/// A keyspace of an open store.
pub(crate) struct KeyspaceCore {
    pub(crate) id: KeyspaceId,
    pub(crate) name: String,
    /// As it was opened with; the strategy in force is in `steering`, and `may_lose_oldest` beside.
    pub(crate) options: KeyspaceOptions,
    /// The option of this name, which can be set while the keyspace is open. Read under the lock of the manifest where data is dropped.
    pub(crate) may_lose_oldest: AtomicBool,
    /// What decides its compactions. Loaded anew for each decision.
    pub(crate) steering: ArcSwap<Steering>,
    /// Events of a moment when a lock was held.
    pub(crate) untold: Mutex<Vec<Event>>,
    /// Why nothing is merged although nothing runs: the policy's plan broke a law.
    pub(crate) stuck: Mutex<Option<Error>>,
    /// Runs at which writers of this keyspace are slowed down: those in all levels, or those of L0 if the constraint is local.
    pub(crate) slow_runs: AtomicU64,
    /// Runs at which they stop. Both follow the depth of the tree.
    pub(crate) stop_runs: AtomicU64,
    /// The price of writing.
    pub(crate) pace: Pace,
    /// How long its writers have waited.
    pub(crate) waits: WriteWaits,
    /// The listener knows that a stall is near.
    pub(crate) warned: AtomicBool,
    /// The epoch of work at which the planner last found nothing to do here while nothing ran.
    pub(crate) settled_epoch: AtomicU64,
    pub(crate) view: ArcSwap<View>,
    pub(crate) publish: Mutex<()>,
    pub(crate) dropped: AtomicBool,
    /// Whether the policy asks how often each file is read.
    pub(crate) counts_reads: AtomicBool,
    /// Whether any was counted since the store was opened.
    pub(crate) has_counted_reads: AtomicBool,
    /// While files are ingested: other writers of the keyspace wait.
    pub(crate) ingesting: AtomicBool,
    /// Its last compactions.
    pub(crate) decisions: Mutex<Ring>,
    /// When it was written to last.
    pub(crate) wrote: Mutex<Wrote>,
    /// What compaction has cost.
    pub(crate) metrics: Mutex<Metrics>,
    /// What reads have counted.
    pub(crate) reads: ReadStats,
    /// Since when the runs have been read.
    pub(crate) read_work: ReadWork,
}

/// When a keyspace was written to last, as far as anyone has looked: a put does not read the clock for it.
pub(crate) struct Wrote {
    /// The newest write seen.
    seq: SeqNo,
    /// When it was seen first; the opening of the keyspace before any, and 0 if somebody has waited for rest since.
    pub(crate) ms: u64,
}

impl Wrote {
    /// Nothing was written since `now_ms`.
    pub(crate) fn since(now_ms: u64) -> Wrote {
        Wrote { seq: SeqNo(0), ms: now_ms }
    }

    fn see(&mut self, seq: SeqNo, now_ms: u64) {
        if seq > self.seq {
            *self = Wrote { seq, ms: now_ms };
        }
    }
}

impl KeyspaceCore {
    /// The runs that count against its limits, memtables that will become runs included.
    pub(crate) fn counted_runs(&self, view: &View) -> u64 {
        self.options.constraint().counted(&view.tree.version) + to_u64(view.immutables.len())
    }

    /// From how many runs on its writers are slowed down and stopped.
    pub(crate) fn limits(&self) -> RunLimits {
        let runs = |limit: &AtomicU64| u32::try_from(limit.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        let slowdown_runs = runs(&self.slow_runs);
        RunLimits { expected: slowdown_runs, slowdown_runs, stop_runs: runs(&self.stop_runs) }
    }

    /// Looks for new writes; the wall time, in milliseconds, before which there was none.
    pub(crate) fn last_write_ms(&self, now_ms: u64) -> u64 {
        self.look_for_writes(now_ms).ms
    }

    /// Somebody waits for rest: what idle stores do is due now, until something new is written.
    pub(crate) fn rest(&self, now_ms: u64) {
        self.look_for_writes(now_ms).ms = 0;
    }

    fn look_for_writes(&self, now_ms: u64) -> MutexGuard<'_, Wrote> {
        let mut wrote = self.wrote.lock();
        let table = &self.view.load().memtable.table;
        if !table.is_empty() {
            wrote.see(table.max_seq(), now_ms);
        }
        wrote
    }

    /// Notes what is about to leave memory or came into the tree without it.
    pub(crate) fn note_written(&self, seq: SeqNo, now_ms: u64) {
        self.wrote.lock().see(seq, now_ms);
    }

    /// Replaces the view by what `change` makes of it.
    pub(crate) fn change_view(&self, change: impl FnOnce(&View) -> View) {
        let _publish = self.publish.lock();
        let next = change(&self.view.load());
        self.view.store(Arc::new(next));
    }

    /// Publishes a tree: the version and its tables.
    pub(crate) fn set_tree(&self, tree: Arc<Tree>) {
        self.set_limits(&tree.version);
        self.change_view(|view| View { tree, ..view.clone() });
    }
}

impl Core {
    /// The keyspace with this number, if it is there.
    pub(crate) fn keyspace(&self, id: KeyspaceId) -> Option<Arc<KeyspaceCore>> {
        self.keyspaces.load().get(&id).cloned()
    }

    pub(crate) fn visible_seq(&self) -> SeqNo {
        SeqNo(self.visible.load(Ordering::Acquire))
    }

    /// Wall time, in milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.wall_ns() / 1_000_000
    }

    /// The oldest and the newest sequence number that snapshots hold.
    pub(crate) fn snapshot_ends(&self) -> (Option<SeqNo>, Option<SeqNo>) {
        let snapshots = self.snapshots.lock();
        (snapshots.keys().next().copied(), snapshots.keys().next_back().copied())
    }

    /// The sequence numbers that snapshots hold, ascending.
    pub(crate) fn snapshot_seqs(&self) -> Vec<SeqNo> {
        self.snapshots.lock().keys().copied().collect()
    }

    pub(crate) fn tell(&self, event: &Event) {
        if let Some(listener) = &self.listener {
            listener.event(event);
        }
    }

    /// A copy of an edit for the listener, if there is one.
    pub(crate) fn copy_to_tell(&self, edit: &VersionEdit) -> Option<Arc<VersionEdit>> {
        self.listener.as_ref().map(|_| Arc::new(edit.clone()))
    }

    /// The number of a change that was just committed. Taken under the lock of the manifest, so that numbers follow the commits.
    pub(crate) fn number_change(&self) -> u64 {
        self.tree_changes.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Tells of a change of a tree: which it was ([`number_change`](Self::number_change)), the job that did it, what it changed.
    pub(crate) fn tell_change(
        &self,
        keyspace: KeyspaceId,
        number: u64,
        job: Option<u64>,
        edit: Option<Arc<VersionEdit>>,
    ) {
        if let Some(edit) = edit {
            self.tell(&Event::TreeChanged { keyspace, number, job, edit });
        }
    }

    pub(crate) fn wake(&self, lane: usize) {
        if let Some(workers) = self.workers.get() {
            workers.wake(crate::io::LaneId(lane));
        }
    }

    /// A version was installed, a memtable became immutable, a snapshot went: there may be something to merge.
    pub(crate) fn wake_compactions(&self) {
        self.work_epoch.fetch_add(1, Ordering::AcqRel);
        for lane in 0..self.options.compaction_threads as usize {
            self.wake(COMPACTION_LANE + lane);
        }
    }

    pub(crate) fn notify(&self) {
        if let Some(workers) = self.workers.get() {
            workers.notify();
        }
    }

    /// Blocks until `done`; a store without workers (read-only) never waits.
    pub(crate) fn wait(&self, mut done: impl FnMut() -> bool) -> Result<()> {
        match self.workers.get() {
            Some(workers) => workers.wait(&mut done),
            None => Ok(()),
        }
    }

    /// The tree of `version`, the keyspace's next one, with a handle for every file.
    pub(crate) fn next_tree(&self, keyspace: &KeyspaceCore, version: &Arc<Version>) -> Arc<Tree> {
        let before = Arc::clone(&keyspace.view.load().tree);
        Arc::new(Tree::after(&before, Arc::clone(version), |meta| self.tables.handle(Arc::clone(meta))))
    }

    /// The manifest, for a change of the tree.
    pub(crate) fn lock_manifest(&self) -> Result<parking_lot::MappedMutexGuard<'_, Manifest>> {
        let guard = self.manifest.lock();
        parking_lot::MutexGuard::try_map(guard, Option::as_mut).map_err(|_| super::write::read_only())
    }

    pub(crate) fn manifest_is_poisoned(&self) -> bool {
        self.manifest.lock().as_ref().is_some_and(Manifest::is_poisoned)
    }

    /// The next table number to be given out.
    pub(crate) fn next_sst(&self) -> crate::version::SstId {
        crate::version::SstId(self.next_sst.load(Ordering::Relaxed))
    }

    pub(crate) fn new_sst_id(&self) -> crate::version::SstId {
        crate::version::SstId(self.next_sst.fetch_add(1, Ordering::Relaxed))
    }
}

/// Whether the store may go on.
#[derive(Default)]
pub(crate) struct Health {
    closed: AtomicBool,
    /// Set once: a sync or a manifest write failed, or a lane panicked. Writes are refused with it from then on.
    poisoned: OnceLock<Error>,
    /// The last failure of each kind of background work that has not succeeded since.
    troubles: Mutex<Vec<(Trouble, Error)>>,
    troubled: AtomicBool,
}

/// What can keep background work from going on for a time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    Flush,
    /// The merges of a keyspace.
    Merge(KeyspaceId),
    /// Readers hold all of `extra_space_bytes`: no merge can begin.
    Space,
}

impl Trouble {
    /// Whether it keeps the merges of `keyspace` from going on.
    pub(crate) fn is_of_merges(self, keyspace: KeyspaceId) -> bool {
        match self {
            Trouble::Flush => false,
            Trouble::Merge(of) => of == keyspace,
            Trouble::Space => true,
        }
    }
}

impl Health {
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn poison(&self, cause: &Error) {
        self.poison_with("a write to disk failed and what is durable is unknown", cause);
    }

    /// A lane panicked.
    pub(crate) fn poison_by_panic(&self, words: &str) {
        self.poison_with("a background thread panicked and its work has ended", words);
    }

    fn poison_with(&self, what: &str, cause: impl std::fmt::Display) {
        let what = format!("{what}; reopen the store to write ({cause})");
        let _ = self.poisoned.set(Error::new(ErrorKind::Poisoned, what));
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.get().is_some()
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed() { Err(Error::new(ErrorKind::Closed, "the store is closed")) } else { Ok(()) }
    }

    /// Whether writes may be taken.
    #[inline]
    pub(crate) fn check_write(&self) -> Result<()> {
        self.check_open()?;
        match self.poisoned.get() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    pub(crate) fn set_trouble(&self, trouble: Trouble, error: Error) {
        let mut troubles = self.troubles.lock();
        troubles.retain(|(other, _)| *other != trouble);
        troubles.push((trouble, error));
        self.troubled.store(true, Ordering::Release);
    }

    /// What `is_over` says has succeeded, or need not be done any more.
    pub(crate) fn end_trouble(&self, is_over: impl Fn(Trouble) -> bool) {
        if !self.troubled.load(Ordering::Acquire) {
            return;
        }
        let mut troubles = self.troubles.lock();
        troubles.retain(|(trouble, _)| !is_over(*trouble));
        self.troubled.store(!troubles.is_empty(), Ordering::Release);
    }

    /// The first failure that keeps background work from going on, of those that matter.
    pub(crate) fn trouble(&self, matters: impl Fn(Trouble) -> bool) -> Option<Error> {
        if !self.troubled.load(Ordering::Acquire) {
            return None;
        }
        let troubles = self.troubles.lock();
        troubles.iter().find(|(trouble, _)| matters(*trouble)).map(|(_, error)| error.clone())
    }
}

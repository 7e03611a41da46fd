//! The store as a user holds it: [`Db`], [`Keyspace`], and what they hand out.
//!
//! This file is the facade and holds no logic. [`core`] says what a store is made of and which lock guards what; `open` how it
//! comes up and goes down; `write`, `read`, `range` what calls do; `work` what the background lanes do; [`background`] is the
//! only owner of threads.

pub mod background;
mod checkpoint;
mod core;
mod decisions;
mod deletes;
mod env;
mod ingest;
mod metrics;
mod open;
mod pace;
mod pending;
mod policies;
mod range;
mod read;
mod read_work;
mod salvage;
mod schedule;
mod snapshot;
mod space;
mod stats;
mod strategy;
mod trace;
mod verify;
mod work;
mod write;

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use serde::Serialize;

use self::core::{Core, KeyspaceCore};
use crate::batch::Batch;
use crate::compaction::Decision;
use crate::compaction::planner::ManualRequest;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::key::SeqNo;
use crate::num::to_u64;
use crate::options::{KeyspaceOptions, Options};
use crate::schedule::Scheduler;
use crate::trace::{Target, TraceOptions, TraceSummary};
use crate::version::{FileMeta, KeyspaceId};

pub use deletes::{DeleteStats, OldestTombstone, TombstoneBlocker, TombstonePlace};
pub use env::{Cancel, Env};
pub use metrics::{MergeLatency, ReasonStats, RunsSample};
pub use pending::{Pending, PendingRule};
pub use policies::Policies;
pub use range::{Range, prefix_bounds};
pub use salvage::Salvage;
pub use schedule::{Debt, MergeState};
pub use snapshot::Snapshot;
pub use stats::{KeyspaceStats, LevelStats, Stats};
pub(crate) use stats::{STRIPES, stripe};
pub use strategy::{SwitchPlan, SwitchProgress};
pub use trace::TraceRequest;
pub use verify::{Damage, VerifyReport};
pub use work::MergeLimit;
pub use write::Durability;

/// An open store. A handle: cloning it is cheap, and all clones are the same store. The store closes when the last handle
/// (of it, its keyspaces, snapshots) goes; [`close`](Db::close) does it at once and says whether it went well.
///
/// ```
/// # fn main() -> siltstone::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("store");
/// let db = siltstone::Db::open(&path, siltstone::Options::default())?;
/// let fruit = db.default_keyspace();
/// fruit.put("apple", "red")?;
/// assert_eq!(fruit.get("apple")?.as_deref(), Some(&b"red"[..]));
/// for record in fruit.range("a".."b")? {
///     let (key, value) = record?;
///     assert_eq!((&key[..], &value[..]), (&b"apple"[..], &b"red"[..]));
/// }
/// db.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Db {
    core: Arc<open::Open>,
}

/// A keyspace: a map of its own, with its own memtable, tree and compaction strategy, that shares the log, the cache and the
/// background threads with the others of its store. A handle: cloning it is cheap.
#[derive(Clone)]
pub struct Keyspace {
    db: Arc<open::Open>,
    keyspace: Arc<KeyspaceCore>,
}

/// The name of the keyspace that every store has.
pub const DEFAULT_KEYSPACE: &str = "default";

impl Db {
    /// Opens the store in `path`, creating it if need be and allowed.
    ///
    /// # Errors
    /// `Locked` if it is open already; `NotFound` if there is none and none may be created, or if the folder holds something
    /// else; `Unsupported` for a newer format; `Corruption` for damage; `InvalidArgument` for wrong options.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        Db::open_with(path, options, Env::default())
    }

    /// Opens the store in `path` for reading: no byte of it is changed, no lock taken. It shows what the store held at this
    /// moment. If a process is writing to the store meanwhile, files may vanish beneath the reader: open it anew then.
    ///
    /// # Errors
    /// As [`open`](Db::open).
    pub fn open_read_only(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        Db::open_with(path, options, Env { read_only: true, ..Env::default() })
    }

    /// Opens a store with files, clock, randomness and threads of the caller's choice.
    ///
    /// # Errors
    /// As [`open`](Db::open).
    pub fn open_with(path: impl AsRef<Path>, options: Options, env: Env) -> Result<Db> {
        open::open(path.as_ref(), options, env).map(|core| Db { core })
    }

    fn core(&self) -> &Arc<Core> {
        self.core.core()
    }

    fn keyspace_of(&self, keyspace: Arc<KeyspaceCore>) -> Keyspace {
        Keyspace { db: Arc::clone(&self.core), keyspace }
    }

    /// Ends background work, makes everything acknowledged durable and gives up the lock. Later calls fail with `Closed`;
    /// a second `close` does nothing. Writes with [`Durability::None`] that were not flushed are lost: it does not [`flush`](Db::flush).
    ///
    /// # Errors
    /// If the log cannot be synced.
    pub fn close(&self) -> Result<()> {
        self.core().close()
    }

    /// The keyspace [`DEFAULT_KEYSPACE`].
    ///
    /// # Panics
    /// Never: it cannot be dropped.
    pub fn default_keyspace(&self) -> Keyspace {
        self.keyspace(DEFAULT_KEYSPACE).expect("every store has it and it cannot be dropped")
    }

    /// Creates a keyspace.
    ///
    /// # Errors
    /// `AlreadyExists`; `InvalidArgument` for wrong options, an unknown strategy or an empty name.
    pub fn create_keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        self.core().create_keyspace(name, &options).map(|keyspace| self.keyspace_of(keyspace))
    }

    /// An existing keyspace.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        let keyspaces = self.core().keyspaces.load();
        let found = keyspaces.values().find(|keyspace| keyspace.name == name);
        match found {
            Some(keyspace) => Ok(self.keyspace_of(Arc::clone(keyspace))),
            None => Err(Error::new(ErrorKind::NotFound, format!("there is no keyspace \"{name}\""))),
        }
    }

    /// The names of all keyspaces, ascending.
    pub fn list_keyspaces(&self) -> Vec<String> {
        let mut names: Vec<_> = self.core().keyspaces.load().values().map(|keyspace| keyspace.name.clone()).collect();
        names.sort();
        names
    }

    /// Drops a keyspace with all its records, durably. Everything logged before is made durable first, in all keyspaces, as by
    /// [`sync`](Db::sync): what was moved to another keyspace is not lost, unless it was written with [`Durability::None`]. Handles to it fail with `NotFound` from then on.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` for the default keyspace; `ReadOnly`, `Closed`; `NoSpace` (nothing has changed), `Poisoned`.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.core().drop_keyspace(name)
    }

    /// Writes a batch with the default durability.
    ///
    /// # Errors
    /// As [`Keyspace::put`]. After an error nothing of the batch is visible, unless the error is `Poisoned`.
    pub fn write(&self, batch: Batch) -> Result<()> {
        self.write_with(&batch, Durability::default())
    }

    /// Writes a batch, which is kept for further use.
    ///
    /// # Errors
    /// As [`write`](Db::write).
    pub fn write_with(&self, batch: &Batch, durability: Durability) -> Result<()> {
        batch.check(self.core().number)?;
        self.core().write_batch(batch, durability)
    }

    /// The store as it is now, for repeatable reads over all keyspaces.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.core())
    }

    /// Makes everything acknowledged so far survive a power loss. (Writes with `Durability::None` are not in the log: use
    /// [`flush`](Db::flush) for those.)
    ///
    /// # Errors
    /// `Poisoned` if it cannot be made durable.
    pub fn sync(&self) -> Result<()> {
        self.core().sync()
    }

    /// Flushes all memtables and waits for it.
    ///
    /// # Errors
    /// What keeps a flush from succeeding: `NoSpace`, `Io`, `Poisoned`.
    pub fn flush(&self) -> Result<()> {
        self.core().trace_flush(None);
        self.core().flush_all(None)
    }

    /// Waits until nothing is to be flushed or merged, and gives back what is held ready for writers: files to be written over, log segments made
    /// ahead, the memory of memtables, and all but a quarter of a log segment if the memtables are empty. Who writes nothing for ten seconds gives
    /// it back as well.
    /// What a strategy's rules do in an idle store (the trigger `idle`) is done first, without their pause.
    ///
    /// # Errors
    /// What keeps background work from going on.
    pub fn wait_idle(&self) -> Result<()> {
        self.core().wait_idle()
    }

    /// Makes the new or empty folder `dir` a store that holds what this one holds now. Tables are linked, not copied, so `dir`
    /// must be on the same file system. The store stays open for reading and writing.
    ///
    /// # Errors
    /// `AlreadyExists` if `dir` is not empty; `Io`, `NoSpace`.
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<()> {
        self.core().checkpoint(dir.as_ref())
    }

    /// Reads every byte of every table and checks every checksum and law.
    ///
    /// # Errors
    /// `Closed`; `Io` if a file may not be read. Damage is not an error but in the report.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.verify_watched(&mut |_, _| true)
    }

    /// The same, which tells `watch` how many blocks and bytes were read, after each block, and ends when that says false.
    ///
    /// # Errors
    /// As [`verify`](Self::verify); `Cancelled` if `watch` said so.
    pub fn verify_watched(&self, watch: &mut dyn FnMut(u64, u64) -> bool) -> Result<VerifyReport> {
        self.core().verify(watch)
    }

    /// The options that it was opened with. The scheduler may be another one since ([`scheduler`](Self::scheduler)).
    pub fn options(&self) -> &Options {
        &self.core().options
    }

    /// Which of the running merges gets the disk, now.
    pub fn scheduler(&self) -> Scheduler {
        self.core().scheduler()
    }

    /// Gives the store another merge scheduler, from the next step of each merge on. Nothing is lost or begun anew; a merge keeps
    /// what it has done. Not kept in the store: the next open says which scheduler it is to have.
    ///
    /// # Errors
    /// `InvalidArgument` for wrong parameters; `ReadOnly`, `Closed`.
    pub fn set_scheduler(&self, scheduler: Scheduler) -> Result<()> {
        self.core().set_scheduler(scheduler)
    }

    /// Gives a merge under way a rate of its own, or pauses it, until it ends; [`merges`](Self::merges) has the numbers.
    ///
    /// # Errors
    /// `NotFound` if there is none of this number, or no more; `Closed`.
    pub fn limit_merge(&self, job: u64, limit: MergeLimit) -> Result<()> {
        self.core().limit_merge(job, limit)
    }

    /// Changes the bandwidth of flushes and merges together, in bytes a second; 0 is no limit. The option
    /// `rate_limit_bytes_per_s` is what it begins with.
    pub fn set_rate_limit(&self, bytes_per_s: u64) {
        self.core().set_rate_limit(bytes_per_s);
    }

    /// The merges under way, in the order in which they were chosen: how far each is, and why it steps or waits.
    pub fn merges(&self) -> Vec<MergeState> {
        self.core().merge_states()
    }

    /// Begins to record what is asked of the store from now on in the new file `path`: which keys, how long their values, when. See
    /// [`trace`](crate::trace). Recording costs little and never fails a call: what keeps up no more is counted as lost, and a full disk ends
    /// the trace ([`Event::TraceEnded`](crate::Event::TraceEnded)).
    ///
    /// # Errors
    /// `AlreadyExists` if there is such a file, or if a trace is being recorded; `Closed`; `Io`, `NoSpace` if the file cannot be made.
    pub fn start_trace(&self, path: impl AsRef<Path>, options: TraceOptions) -> Result<()> {
        self.core().start_trace(Target::File(path.as_ref().to_path_buf()), options)
    }

    /// Ends the trace and makes it durable; says what is in it, and why it ended before if it did. [`close`](Db::close) ends it, too.
    ///
    /// # Errors
    /// `NotFound` if none is being recorded.
    pub fn stop_trace(&self) -> Result<TraceSummary> {
        self.core().stop_trace()
    }

    /// Whether a trace is being recorded.
    pub fn is_tracing(&self) -> bool {
        self.core().tracing.is_on()
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.core().dir
    }

    /// The sequence number of the last write that readers see.
    pub fn last_seq(&self) -> SeqNo {
        SeqNo(self.core().visible.load(Ordering::Acquire))
    }

    /// Statistics since it was opened, and its size now.
    pub fn stats(&self) -> Stats {
        self.core().stats()
    }
}

impl Keyspace {
    fn core(&self) -> &Arc<Core> {
        self.db.core()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.keyspace.name
    }

    /// Its number, as the formats know it.
    pub fn id(&self) -> KeyspaceId {
        self.keyspace.id
    }

    /// Its options, as they are kept in the store. Only the strategy ([`set_strategy`](Self::set_strategy)) and whether it
    /// may drop the oldest data ([`set_may_lose_oldest`](Self::set_may_lose_oldest)) can change while it is open; this is a copy.
    pub fn options(&self) -> KeyspaceOptions {
        self.keyspace.current_options()
    }

    /// Gives it another compaction strategy: the name of a preset, or the text of a strategy file. Durable when it returns; a crash
    /// before leaves the old or the new one.
    ///
    /// No data is rewritten by the switch. Running merges end as they were planned; what comes after them brings the tree to its new
    /// shape. Switching again meanwhile is fine. See [`plan_switch`](Self::plan_switch) and [`switch_progress`](Self::switch_progress).
    ///
    /// # Errors
    /// `InvalidArgument`, with the line, for an unknown or impossible strategy; `ReadOnly`, `Closed`, `NotFound` if it was dropped;
    /// `NoSpace` (nothing has changed), `Poisoned`.
    pub fn set_strategy(&self, strategy: &str) -> Result<()> {
        self.core().set_strategy(&self.keyspace, strategy)
    }

    /// Allows the keyspace, or forbids it, to lose data that was not deleted, the oldest first, when its strategy says so: the option
    /// [`may_lose_oldest`](crate::KeyspaceOptions::may_lose_oldest). Durable when it returns. Before a strategy is set that drops the oldest data
    /// it must be allowed; before it is forbidden another strategy must be set, twice if the one that drops was in force just before, since that
    /// would take over from a policy that panics.
    ///
    /// # Errors
    /// `InvalidArgument` if it is to be forbidden to a strategy that does so; `ReadOnly`, `Closed`, `NotFound` if it was dropped; `NoSpace`
    /// (nothing has changed), `Poisoned`.
    pub fn set_may_lose_oldest(&self, may: bool) -> Result<()> {
        self.core().set_may_lose_oldest(&self.keyspace, may)
    }

    /// The dry run of [`set_strategy`](Self::set_strategy): what merges would read and write, how long that takes, how much more space
    /// there must be, and what the tree looks like then. Reads metadata only, and works on a store opened read-only, too; takes up
    /// to seconds for a tree of thousands of files. What is estimated, and how wrong it can be: [`forecast`](crate::forecast).
    ///
    /// # Errors
    /// `InvalidArgument`, with the line, for an unknown or impossible strategy; `Closed`.
    pub fn plan_switch(&self, strategy: &str) -> Result<SwitchPlan> {
        self.core().plan_switch(&self.keyspace, strategy)
    }

    /// How far its tree is on the way to the shape that its strategy wants. Each call is a dry run, which takes up
    /// to seconds for a tree of thousands of files that is far from its shape.
    ///
    /// # Errors
    /// `Closed`; `InvalidArgument` if a policy of the user's own breaks a law.
    pub fn switch_progress(&self) -> Result<SwitchProgress> {
        self.core().switch_progress(&self.keyspace)
    }

    pub(crate) fn store_number(&self) -> u64 {
        self.core().number
    }

    /// Sets the value of a key, with the default durability.
    ///
    /// # Errors
    /// `InvalidArgument` if key or value is too long; `NoSpace`, `Io` if the log cannot take it, `Poisoned` after a failed
    /// sync, `ReadOnly`, `Closed`, `NotFound` if the keyspace was dropped.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_with(key, value, Durability::default())
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.core().write_one(&self.keyspace, Kind::Put, key.as_ref(), value.as_ref(), durability)
    }

    /// Removes a key, with the default durability. Fine if it is not there.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_with(key, Durability::default())
    }

    /// Removes a key.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.core().write_one(&self.keyspace, Kind::Delete, key.as_ref(), &[], durability)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// `Corruption` or `Io` from a file, `Closed`, `NotFound` if the keyspace was dropped.
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        self.core().get(&self.keyspace, key.as_ref(), None)
    }

    /// The value of a key as `snapshot` sees it.
    ///
    /// # Errors
    /// As [`get`](Self::get); `InvalidArgument` if the snapshot is of another store.
    pub fn get_at(&self, key: impl AsRef<[u8]>, snapshot: &Snapshot) -> Result<Option<Bytes>> {
        self.check(snapshot)?;
        self.core().get(&self.keyspace, key.as_ref(), Some(snapshot.seq()))
    }

    /// The values of several keys, all from one moment, in the order of `keys`; each can fail as [`get`](Self::get) does.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<Bytes>>> {
        self.core().multi_get(&self.keyspace, keys, None)
    }

    /// The values of several keys as `snapshot` sees them.
    pub fn multi_get_at<K: AsRef<[u8]>>(&self, keys: &[K], snapshot: &Snapshot) -> Vec<Result<Option<Bytes>>> {
        match self.check(snapshot) {
            Ok(()) => self.core().multi_get(&self.keyspace, keys, Some(snapshot.seq())),
            Err(error) => keys.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// The records of a key range.
    ///
    /// # Errors
    /// `Closed`, `NotFound` if the keyspace was dropped. Files are opened, and fail, as the range is read.
    pub fn range<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Result<Range> {
        Range::open(self.core(), &self.keyspace, bounds, None)
    }

    /// The records of a key range as `snapshot` sees them.
    ///
    /// # Errors
    /// As [`range`](Self::range); `InvalidArgument` if the snapshot is of another store.
    pub fn range_at<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>, snapshot: &Snapshot) -> Result<Range> {
        self.check(snapshot)?;
        Range::open(self.core(), &self.keyspace, bounds, Some(snapshot.seq()))
    }

    /// The records of a key range as `snapshot` sees them, but for keys that `damage` may affect, which [`Db::verify`] has found: where
    /// [`range_at`](Self::range_at) ends with an error, this goes on.
    ///
    /// # Errors
    /// `Corruption` or `Io` for other damage; `InvalidArgument` if the snapshot is of another store.
    pub fn salvage<K: AsRef<[u8]>>(
        &self,
        bounds: impl RangeBounds<K>,
        snapshot: &Snapshot,
        damage: &[Damage],
    ) -> Result<Salvage> {
        self.check(snapshot)?;
        Salvage::open(self.core(), &self.keyspace, bounds, snapshot.seq(), damage)
    }

    /// The records whose keys begin with `prefix`.
    ///
    /// # Errors
    /// As [`range`](Self::range).
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Range> {
        self.range(prefix_bounds(prefix.as_ref()))
    }

    /// The records whose keys begin with `prefix`, as `snapshot` sees them.
    ///
    /// # Errors
    /// As [`range_at`](Self::range_at).
    pub fn prefix_at(&self, prefix: impl AsRef<[u8]>, snapshot: &Snapshot) -> Result<Range> {
        self.range_at(prefix_bounds(prefix.as_ref()), snapshot)
    }

    fn check(&self, snapshot: &Snapshot) -> Result<()> {
        if snapshot.is_of(self.core()) { Ok(()) } else { Err(Error::invalid("the snapshot is of another store")) }
    }

    /// Flushes its memtables and waits for it.
    ///
    /// # Errors
    /// As [`Db::flush`].
    pub fn flush(&self) -> Result<()> {
        self.core().trace_flush(Some(&self.keyspace));
        self.core().flush_all(Some(&self.keyspace))
    }

    /// Merges all records of a key range down to the last level and waits for it. The memtable is flushed first.
    ///
    /// # Errors
    /// `Cancelled` if `cancel` said so (what was done so far stays); `Io`, `NoSpace`, `Corruption` of an input.
    pub fn compact<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>, cancel: &Cancel) -> Result<()> {
        self.core().flush_all(Some(&self.keyspace))?;
        // Whole files move anyway, so an exclusive bound is taken as an inclusive one.
        let key = |bound: Bound<&K>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => Some(Bytes::copy_from_slice(key.as_ref())),
            Bound::Unbounded => None,
        };
        let request = ManualRequest { first: key(bounds.start_bound()), last: key(bounds.end_bound()) };
        self.core().trace_compact(&self.keyspace, bounds.start_bound(), bounds.end_bound());
        cancel.attach(self.core());
        let cancel = cancel.clone();
        self.core().compact(&self.keyspace, request, Box::new(move || cancel.is_cancelled()))
    }

    /// Takes in a stream of records in ascending key order without passing them through log and memtable. All appear at once,
    /// above what is there; returns how many.
    ///
    /// # Errors
    /// `InvalidArgument` if the keys do not ascend; as [`put`](Self::put). Nothing appears then.
    pub fn ingest<K: AsRef<[u8]>, V: AsRef<[u8]>>(&self, records: impl IntoIterator<Item = (K, V)>) -> Result<u64> {
        let ingested = self.core().ingest(&self.keyspace, records)?;
        self.core().trace_ingest(&self.keyspace, ingested);
        Ok(ingested)
    }

    /// The shape of its tree.
    pub fn tree(&self) -> Tree {
        let view = self.keyspace.view.load();
        Tree {
            levels: (view.tree.version.levels.iter().zip(0u8..))
                .map(|(level, number)| TreeLevel {
                    level: number,
                    runs: level
                        .runs
                        .iter()
                        .map(|run| TreeRun { order: run.order.0, files: run.files.to_vec() })
                        .collect(),
                })
                .collect(),
            memtable_bytes: view.memtable.table.bytes(),
            immutables: to_u64(view.immutables.len()),
        }
    }

    /// Where its deletes stand: the oldest tombstone, what it waits for, when it will be gone.
    pub fn delete_stats(&self) -> DeleteStats {
        self.core().delete_stats(&self.keyspace)
    }

    /// Its last compactions and why they were chosen, oldest first; those that run come last. The option `decision_records` says how
    /// many are kept; they come back when the store is opened again, unless a crash has taken them.
    pub fn decisions(&self) -> Vec<Arc<Decision>> {
        self.core().decisions(&self.keyspace)
    }

    /// What would be compacted next and with which inputs, how every rule stands, and what waits for whom. Nothing is begun.
    ///
    /// # Errors
    /// `InvalidArgument` if the policy panics and none is left to take over.
    pub fn pending(&self) -> Result<Pending> {
        self.core().pending(&self.keyspace)
    }

    /// What its flushes and merges owe, by a dry run, which takes up to seconds for a tree of thousands of files that is far
    /// from its shape. [`stats`](Self::stats) tells at once what is under way.
    ///
    /// # Errors
    /// `Closed`; `InvalidArgument` if a policy of the user's own breaks a law.
    pub fn debt(&self) -> Result<Debt> {
        self.core().debt_of(&self.keyspace)
    }

    /// Its statistics.
    pub fn stats(&self) -> KeyspaceStats {
        self.core().keyspace_stats(&self.keyspace, self.core().now_ms())
    }

    /// Its space amplification by sarkar21's definition: bytes of records in files that no reader without a snapshot needs, over those of
    /// the records that one sees; 0 is perfect. It reads the whole keyspace. What is in memtables counts as seen and not as
    /// stored: [`flush`](Self::flush) before for an exact figure.
    ///
    /// # Errors
    /// As [`range`](Self::range); `Cancelled`.
    pub fn space_amplification(&self, cancel: &Cancel) -> Result<f64> {
        let stored = self.stats().raw_bytes;
        let mut unique = 0;
        let mut range = self.range::<&[u8]>(..)?;
        while range.advance()? {
            if cancel.is_cancelled() {
                return Err(Error::new(ErrorKind::Cancelled, "the records were not all read"));
            }
            unique += to_u64(range.key().len() + range.value().len());
        }
        Ok(metrics::ratio(stored.saturating_sub(unique), unique))
    }
}

/// The shape of a keyspace's tree at one moment: for drawing and for checking.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Tree {
    /// L0 first.
    pub levels: Vec<TreeLevel>,
    /// Bytes of the mutable memtable.
    pub memtable_bytes: u64,
    /// Memtables that wait for their flush.
    pub immutables: u64,
}

/// A level of a [`Tree`].
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct TreeLevel {
    /// Its number.
    pub level: u8,
    /// Newest first.
    pub runs: Vec<TreeRun>,
}

/// A sorted run of a [`Tree`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TreeRun {
    /// Its age among the runs of its level: larger is newer.
    pub order: u64,
    /// Its files, ascending by key.
    pub files: Vec<Arc<FileMeta>>,
}

impl Serialize for TreeRun {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct File {
            id: u64,
            table: u64,
            bytes: u64,
            table_bytes: u64,
            entries: u64,
            tombstones: u64,
            smallest: String,
            largest: String,
            min_seq: u64,
            max_seq: u64,
        }
        #[derive(Serialize)]
        struct Run {
            order: u64,
            files: Vec<File>,
        }
        let text = |key: &Bytes| String::from_utf8_lossy(key).into_owned();
        let file = |file: &Arc<FileMeta>| File {
            id: file.id.0,
            table: file.table().0,
            bytes: file.bytes,
            table_bytes: file.table_bytes(),
            entries: file.entries,
            tombstones: file.tombstones,
            smallest: text(&file.smallest),
            largest: text(&file.largest),
            min_seq: file.min_seq.0,
            max_seq: file.max_seq.0,
        };
        Run { order: self.order, files: self.files.iter().map(file).collect() }.serialize(serializer)
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Db").field("path", &self.core().dir).finish_non_exhaustive()
    }
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyspace").field("name", &self.keyspace.name).finish_non_exhaustive()
    }
}

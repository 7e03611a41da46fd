//! How a store comes up, and how it goes down.
//!
//! Opening: lock, superblock, manifest; files that no durable record names are removed; the log is replayed into memtables;
//! the lanes start. Each step is safe to be cut and begun again: nothing that a crash may need is removed before what replaces
//! it is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::core::{COMPACTION_LANE, Core, FLUSH_LANE, Health, KeyspaceCore, LOG_LANE, Trouble, Wrote};
use super::decisions::{self, DecisionFile, Ring};
use super::env::Env;
use super::pace::{Flushing, Pace};
use super::policies::{self, Policies};
use super::read::{MemSlot, Tree, View};
use super::read_work::ReadWork;
use super::stats::{Counters, ReadStats, WriteWaits};
use super::strategy::Steering;
use super::trace::{REQUEST_FILE, Tracing};
use super::work::{Compactions, FlushState, MergeSet};
use super::write::{ActiveMemtable, WriteState, read_only};
use super::{DEFAULT_KEYSPACE, stats};
use crate::cache::{BlockCache, TableCache};
use crate::compaction::{CompactionPolicy, Sizes};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Fs, IoClass, IoCtx, Lane, LaneStep, Limiter};
use crate::key::{Kind, SeqNo, Trailer};
use crate::memtable::{self, ArenaPool, MemtableWriter};
use crate::num::{file_number, to_u64, to_usize};
use crate::options::{KeyspaceOptions, Options};
use crate::planted::{self, Bug};
use crate::version::{KeyspaceId, Manifest, ManifestEdit, ManifestOptions, SstId, StoreState, manifest, superblock};
use crate::wal::{self, LogConfig, LogPos, LogWriter};

const CTX: IoCtx = IoCtx::foreground(IoClass::Meta);
const LOCK: &str = "LOCK";
/// A log that takes as much as this many full segments more than its records is flushed as the store is opened.
const SPARSE_SEGMENTS: u64 = 2;
/// Where the process may have little memory, as in a container, a log segment is no longer than one such part of it, and a memtable is full at one
/// such part. Memtables and their log are in memory together, the log as pages of a file: what is not removed soon the system writes out.
const SEGMENTS_IN_MEMORY: u64 = 64;
const MEMTABLES_IN_MEMORY: u64 = 8;
const LEAST_PART: u64 = 1 << 20;
/// Stores that this process has opened. Decides nothing: it only tells them apart.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// An open store; closes it when the last handle goes.
pub(crate) struct Open(Arc<Core>);

impl Open {
    #[inline]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Whoever wants to know whether it went well calls `close`.
        let _ = self.0.close();
    }
}

/// Opens the store in `dir`.
pub(crate) fn open(dir: &Path, options: Options, env: Env) -> Result<Arc<Open>> {
    options.validate()?;
    // A wrong strategy should be told before anything is created.
    let policy = resolve(&env.policies, &options.keyspace.strategy, env.read_only)?;
    if !Manifest::exists(&*env.fs, dir)? {
        options.keyspace.constraint().check(&*policy, Sizes::from(&options.keyspace))?;
        policies::allow(&*policy, options.keyspace.may_lose_oldest)?;
        check_may_create(&*env.fs, dir, &options, &env)?;
        create_folder(&*env.fs, dir, CTX)?;
    } else if options.error_if_exists {
        return Err(Error::new(ErrorKind::AlreadyExists, "there is a store already").at(dir));
    }
    let lock = if env.read_only { None } else { Some(lock_store(&*env.fs, dir)?) };
    let (manifest, state) = if env.read_only && !planted::active(Bug::ReadOnlyWrites) {
        (None, Manifest::open_read_only(&*env.fs, dir)?)
    } else {
        // Asked again under the lock: another process may have created it just now.
        let manifest = match Manifest::exists(&*env.fs, dir)? {
            true => Manifest::open(Arc::clone(&env.fs), dir, ManifestOptions::default())?,
            false => create(dir, &options, &env)?,
        };
        let state = manifest.state().clone();
        // The names that were found are relied on from here on, and the process that made them may have died before it could
        // sync them. The parent may belong to another user, who may not let us.
        env.fs.sync_dir(dir, CTX).map_err(|e| Error::io(dir, "cannot sync the folder", e))?;
        if let Some(parent) = dir.parent() {
            let _ = env.fs.sync_dir(parent, CTX);
        }
        (Some(manifest), state)
    };
    let core = assemble(dir, options, env, manifest, &state, lock)?;
    Ok(Arc::new(Open(core)))
}

fn resolve(policies: &Policies, strategy: &str, read_only: bool) -> Result<Arc<dyn CompactionPolicy>> {
    if read_only { policies.resolve_to_read(strategy) } else { policies.resolve(strategy) }
}

/// Whether `dir`, which holds no store, may become one.
fn check_may_create(fs: &dyn Fs, dir: &Path, options: &Options, env: &Env) -> Result<()> {
    let not_found = |what: &str| Err(Error::new(ErrorKind::NotFound, what).at(dir));
    if !fs.exists(dir, CTX).map_err(|e| Error::io(dir, "cannot look at", e))? {
        return if env.read_only || !options.create_if_missing { not_found("there is no store") } else { Ok(()) };
    }
    let entries = fs.list(dir, CTX).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotADirectory => {
            Error::new(ErrorKind::NotFound, "a store is a folder, and this is a file").at(dir)
        }
        _ => Error::io(dir, "cannot list", e),
    })?;
    // Another process has made one since it was looked for.
    if entries.iter().any(|entry| entry.name == superblock::FILE_NAME) {
        return Ok(());
    }
    if let Some(lost) = entries.iter().find(|entry| entry.name.ends_with(".sst") || entry.name.ends_with(".log")) {
        let what = format!("there is no superblock, but the file \"{}\" of a store", lost.name);
        return Err(Error::corruption(&dir.join(superblock::FILE_NAME), 0, what));
    }
    if let Some(foreign) = entries.iter().find(|entry| !is_leftover(&entry.name)) {
        return not_found(&format!("the folder is no store, and not empty (it holds \"{}\")", foreign.name));
    }
    if env.read_only || !options.create_if_missing { not_found("the folder holds no store") } else { Ok(()) }
}

/// What a crash while a store was being created may leave behind.
fn is_leftover(name: &str) -> bool {
    name == LOCK || name == superblock::TEMPORARY_NAME || manifest::from_file_name(name).is_some()
}

fn lock_store(fs: &dyn Fs, dir: &Path) -> Result<Box<dyn crate::io::FileLock>> {
    let path = dir.join(LOCK);
    fs.lock(&path, CTX).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => {
            Error::new(ErrorKind::Locked, "the store is open already, in another process or another handle").at(dir)
        }
        _ => Error::io(&path, "cannot lock the store", e),
    })
}

fn create(dir: &Path, options: &Options, env: &Env) -> Result<Manifest> {
    let mut rng = env.rng.split(&format!("store id {}", occasion(dir, env)));
    let store_id = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
    let mut state = StoreState { store_id, created_ms: env.clock.wall_ns() / 1_000_000, ..StoreState::default() };
    state.apply(&ManifestEdit::CreateKeyspace {
        id: KeyspaceId(0),
        name: DEFAULT_KEYSPACE.to_owned(),
        options_text: options.keyspace.to_text(),
    })?;
    Manifest::create_with(Arc::clone(&env.fs), dir, state, ManifestOptions::default())
}

/// What tells this opening from others by the same `Env`, whose randomness does not go on: its clones would give each of them the same numbers.
fn occasion(dir: &Path, env: &Env) -> String {
    format!("{} {}", dir.display(), env.clock.mono_ns())
}

/// Makes the folder `dir` and those above it that are missing, so that a power loss takes none of them.
pub(super) fn create_folder(fs: &dyn Fs, dir: &Path, ctx: IoCtx) -> Result<()> {
    let mut missing = 0;
    // Above a relative path there is the current folder, without a name.
    for folder in dir.ancestors().take_while(|folder| !folder.as_os_str().is_empty()) {
        if fs.exists(folder, ctx).map_err(|e| Error::io(folder, "cannot look at", e))? {
            break;
        }
        missing += 1;
    }
    fs.create_dir_all(dir, ctx).map_err(|e| Error::io(dir, "cannot create the folder", e))?;
    // All the way up: who made the folders that were there may have died before it could sync their parents.
    for (above, parent) in (1..).zip(dir.ancestors().skip(1)) {
        let synced = fs.sync_dir(parent, ctx);
        // Not every folder that was there may be synced (it can belong to another user), but that in which a name is new must be.
        if above <= missing {
            synced.map_err(|e| Error::io(parent, "cannot sync the folder", e))?;
        }
    }
    Ok(())
}

fn assemble(
    dir: &Path,
    options: Options,
    env: Env,
    manifest: Option<Manifest>,
    state: &StoreState,
    lock: Option<Box<dyn crate::io::FileLock>>,
) -> Result<Arc<Core>> {
    let counters = Counters::default();
    let mut next_sst = state.next_sst.0;
    let Looked { orphans, highest, is_traced } = look_around(&*env.fs, dir, state)?;
    next_sst = next_sst.max(highest + 1);
    if !env.read_only {
        for name in &orphans {
            // If it cannot be removed now, the next open tries again; its number is not used again in any case.
            let _ = env.fs.remove_file(&dir.join(name), CTX);
        }
        counters.orphans_removed.add(to_u64(orphans.len()));
    }

    let cache =
        Arc::new(BlockCache::with_frame_bytes(options.cache_bytes, to_usize(u64::from(options.keyspace.block_bytes))));
    let max_open = to_usize(u64::from(options.max_open_files));
    let (fs, clock) = (Arc::clone(&env.fs), Arc::clone(&env.clock));
    let tables = TableCache::new(fs, clock, dir, max_open, Arc::clone(&cache), options.direct.clone());
    let kept = to_usize(u64::from(options.decision_records));
    let mut decisions = if kept == 0 { BTreeMap::new() } else { decisions::read(&*env.fs, dir) };
    let mut last_job = 0;
    let now_ms = env.clock.wall_ns() / 1_000_000;
    let memory = MemoryBound::of(&*env.fs);
    let arenas = Arc::<ArenaPool>::default();
    arenas.touch(env.clock.mono_ns());
    let mut keyspaces = BTreeMap::new();
    let mut memtables = BTreeMap::new();
    for (id, keyspace) in &state.keyspaces {
        let tree = Tree::after(&Tree::empty(), Arc::clone(&keyspace.version), |meta| tables.handle(Arc::clone(meta)));
        let ring = Ring::new(kept, decisions.remove(id).unwrap_or_default());
        last_job = ring.iter().map(|decision| decision.job).fold(last_job, u64::max);
        let options = KeyspaceOptions::from_text(&keyspace.options_text)?;
        let policy = resolve(&env.policies, &options.strategy, env.read_only)?;
        if !env.read_only {
            // A policy of the program's own may have learnt to lose data since the strategy was set.
            policies::allow(&*policy, options.may_lose_oldest)?;
        }
        let (view, writer) = first_view(&options, tree, &arenas, memory);
        let core = keyspace_core(*id, &keyspace.name, options, view, ring, policy, now_ms);
        memtables.insert(*id, ActiveMemtable::of(&core, writer));
        keyspaces.insert(*id, core);
    }

    let mut replay =
        Replay { memtables, state, arenas: &arenas, counters: &counters, last_seq: state.last_seq, immutable_bytes: 0 };
    let mut apply = |first, records: wal::RecordIter<'_>| replay.apply(first, records);
    let from = state.log_floor;
    let history = wal::replay(&*env.fs, dir, state.store_id, from, options.recovery, CTX, &mut apply)?;
    counters.torn_tails.add(u64::from(history.torn.is_some()));
    let Replay { memtables, last_seq, immutable_bytes, .. } = replay;
    let active_bytes = memtables.values().map(|active| active.slot.table.bytes()).sum();

    // In a simulation time may stand still; what was logged since does not.
    let mut rng = env.rng.split(&format!("store {} {:?}", occasion(dir, &env), history.end()));
    // Two or three segments are mapped at a time: where memory is short they are short too.
    let by_write_memory = (options.write_memory_bytes / 4).max(8 << 10);
    let segment_bytes = options.log.segment_bytes.min(by_write_memory).min(memory.part(SEGMENTS_IN_MEMORY));
    let (log, shared) = if env.read_only {
        (None, None)
    } else {
        let config = LogConfig {
            fs: Arc::clone(&env.fs),
            dir: dir.to_path_buf(),
            store_id: state.store_id,
            nonce: rng.next_u64(),
            segment_bytes,
            clock: Arc::clone(&env.clock),
        };
        let (writer, shared) = LogWriter::open(config, &history)?;
        (Some(writer), Some(shared))
    };
    let log_segment = log.as_ref().map_or(0, |log| log.end().segment.0);
    // Each session begins a segment, however little it writes: without a flush now and then they would add up.
    let is_log_sparse = history.file_bytes(from) > history.bytes.saturating_add(SPARSE_SEGMENTS * segment_bytes);
    let core = Arc::new(Core {
        number: OPENED.fetch_add(1, Ordering::Relaxed),
        dir: dir.to_path_buf(),
        limiter: Limiter::new(Arc::clone(&env.clock), options.rate_limit_bytes_per_s),
        fs: env.fs,
        clock: env.clock,
        listener: env.listener,
        policies: env.policies,
        read_only: env.read_only,
        tree_changes: AtomicU64::new(0),
        compaction: Mutex::new(Compactions::default()),
        flush: Mutex::new(FlushState::default()),
        merges: Mutex::new(MergeSet::new(options.scheduler, options.compaction_threads)),
        manifest: Mutex::new(manifest),
        writer: Mutex::new(WriteState {
            log,
            last_seq,
            memtables,
            active_bytes,
            log_end: LogPos::default(),
            log_rolled: false,
            trace: None,
        }),
        keyspaces: ArcSwap::from_pointee(keyspaces),
        snapshots: Mutex::default(),
        losing: AtomicU64::new(0),
        decision_file: Mutex::new(DecisionFile::default()),
        health: Health::default(),
        log: shared,
        log_found_bytes: history.file_bytes(wal::SegmentId(0)),
        visible: AtomicU64::new(last_seq.0),
        next_sst: AtomicU64::new(next_sst),
        next_job: AtomicU64::new(last_job.saturating_add(1)),
        log_segment: AtomicU64::new(log_segment),
        obsolete_before: AtomicU64::new(state.log_floor.0),
        flush_barrier: AtomicU64::new(u64::MAX),
        flushing: Flushing::default(),
        immutable_bytes: AtomicU64::new(immutable_bytes),
        work_epoch: AtomicU64::new(1),
        settled_epoch: AtomicU64::new(0),
        checkpointing: Mutex::new(()),
        cache,
        tables,
        arenas,
        is_untold: AtomicBool::new(false),
        counters,
        workers: OnceLock::new(),
        executor: env.executor,
        tracing: Tracing::default(),
        lock: Mutex::new(lock),
        options,
    });
    if !core.read_only {
        start_lanes(&core, &*core.executor)?;
        // If it cannot be flushed now, the lane tries again, as does the next open.
        if !is_log_sparse || core.flush_all(None).is_ok() {
            core.rest_log();
            core.wake(LOG_LANE);
        }
    }
    if is_traced {
        core.trace_as_requested();
    }
    Ok(core)
}

/// What the store's folder holds beside what the manifest names.
struct Looked {
    /// Tables that no version names.
    orphans: Vec<String>,
    /// The highest table number seen.
    highest: u64,
    /// A trace is asked for.
    is_traced: bool,
}

fn look_around(fs: &dyn Fs, dir: &Path, state: &StoreState) -> Result<Looked> {
    let live: BTreeSet<SstId> =
        state.keyspaces.values().flat_map(|k| k.version.files().map(|(_, _, file)| file.table())).collect();
    let (mut highest, mut is_traced) = (0, false);
    let mut orphans = Vec::new();
    for entry in fs.list(dir, CTX).map_err(|e| Error::io(dir, "cannot list", e))? {
        is_traced |= entry.name == REQUEST_FILE;
        let Some(number) = entry.name.strip_suffix(".sst").and_then(file_number) else {
            continue;
        };
        highest = highest.max(number);
        if !live.contains(&SstId(number)) {
            orphans.push(entry.name);
        }
    }
    // The file system's order means nothing.
    orphans.sort();
    Ok(Looked { orphans, highest, is_traced })
}

/// The memory that the process may have.
#[derive(Clone, Copy)]
struct MemoryBound(Option<u64>);

impl MemoryBound {
    fn of(fs: &dyn Fs) -> MemoryBound {
        MemoryBound(fs.memory_bytes())
    }

    /// One of so many parts of it, but never too little to work with.
    fn part(self, parts: u64) -> u64 {
        self.0.map_or(u64::MAX, |bytes| (bytes / parts).max(LEAST_PART))
    }
}

/// What a keyspace looks like before its first write, and the writer of its memtable.
fn first_view(
    options: &KeyspaceOptions,
    tree: Tree,
    arenas: &Arc<ArenaPool>,
    memory: MemoryBound,
) -> (View, MemtableWriter) {
    let full_bytes = options.memtable_bytes.min(memory.part(MEMTABLES_IN_MEMORY));
    let (writer, table) = memtable::new_in(options.memtable, full_bytes, arenas);
    (View { memtable: MemSlot::new(table), immutables: Vec::new(), tree: Arc::new(tree) }, writer)
}

/// The options, the policy and the limits of a keyspace, and its first view.
pub(crate) fn keyspace_core(
    id: KeyspaceId,
    name: &str,
    options: KeyspaceOptions,
    view: View,
    decisions: Ring,
    policy: Arc<dyn CompactionPolicy>,
    now_ms: u64,
) -> Arc<KeyspaceCore> {
    let steering = Steering::new(&options.strategy, policy);
    let pace = Pace::new(options.max_write_stall, &options.write_control);
    let keyspace = KeyspaceCore {
        id,
        name: name.to_owned(),
        may_lose_oldest: AtomicBool::new(options.may_lose_oldest),
        options,
        steering: ArcSwap::from_pointee(steering),
        untold: Mutex::default(),
        stuck: Mutex::default(),
        slow_runs: AtomicU64::new(0),
        stop_runs: AtomicU64::new(0),
        pace,
        waits: WriteWaits::default(),
        warned: AtomicBool::new(false),
        settled_epoch: AtomicU64::new(0),
        view: ArcSwap::from_pointee(view),
        publish: Mutex::new(()),
        dropped: AtomicBool::new(false),
        counts_reads: AtomicBool::new(false),
        has_counted_reads: AtomicBool::new(false),
        ingesting: AtomicBool::new(false),
        decisions: Mutex::new(decisions),
        wrote: Mutex::new(Wrote::since(now_ms)),
        metrics: Mutex::default(),
        reads: ReadStats::default(),
        read_work: ReadWork::default(),
    };
    keyspace.set_limits(&keyspace.view.load().tree.version);
    Arc::new(keyspace)
}

impl ActiveMemtable {
    /// The mutable memtable of a new keyspace core.
    fn of(keyspace: &Arc<KeyspaceCore>, writer: MemtableWriter) -> ActiveMemtable {
        let slot = Arc::clone(&keyspace.view.load().memtable);
        ActiveMemtable { keyspace: Arc::clone(keyspace), writer, slot }
    }
}

/// Puts the records of the log back into memtables.
struct Replay<'a> {
    memtables: BTreeMap<KeyspaceId, ActiveMemtable>,
    state: &'a StoreState,
    arenas: &'a Arc<ArenaPool>,
    counters: &'a Counters,
    last_seq: SeqNo,
    immutable_bytes: u64,
}

impl Replay<'_> {
    fn apply(&mut self, first: SeqNo, records: wal::RecordIter<'_>) -> Result<()> {
        let (segment, began_ms) = (records.end().segment, records.began_ms());
        for (record, seq) in records.zip(first.0..) {
            self.last_seq = self.last_seq.max(SeqNo(seq));
            // Of a keyspace that was dropped, or in an SST already.
            let Some(active) = self.memtables.get_mut(&record.keyspace) else {
                continue;
            };
            if SeqNo(seq) <= self.state.keyspaces[&record.keyspace].flushed_seq {
                continue;
            }
            // An empty memtable takes memory too; setting it aside would flush nothing, for ever.
            if !active.slot.table.is_empty() && active.slot.table.bytes() >= active.slot.table.full_bytes() {
                self.immutable_bytes += active.set_aside(self.arenas);
            }
            active.slot.note_segment(segment);
            if record.kind == Kind::Delete {
                active.slot.note_delete(|| began_ms);
            }
            active.writer.insert(record.key, Trailer::new(SeqNo(seq), record.kind), record.value);
            self.counters.replayed_records.add(1);
        }
        Ok(())
    }
}

fn start_lanes(core: &Arc<Core>, executor: &dyn crate::io::Executor) -> Result<()> {
    // Lanes hold the store weakly: its last handle, not a thread, decides when it closes.
    let lane = |name: String, nice: u8, step: fn(&Core, usize) -> LaneStep, number: usize| {
        let core: Weak<Core> = Arc::downgrade(core);
        Lane {
            name,
            nice: i32::from(nice),
            step: Arc::new(move || core.upgrade().map_or(LaneStep::Idle, |core| core.guard(|| step(&core, number)))),
        }
    };
    let mut lanes = Vec::new();
    debug_assert_eq!((FLUSH_LANE, LOG_LANE, COMPACTION_LANE), (0, 1, 2));
    // Writers go before the flush of what they wrote, as long as they need not wait for it.
    let flush_nice = core.options.compaction_nice / 2;
    lanes.push(lane("flush".to_owned(), flush_nice, |core, _| core.flush_step(), 0));
    lanes.push(lane("log".to_owned(), flush_nice, |core, _| core.log_step(), 0));
    let merging = to_usize(u64::from(core.options.compaction_threads));
    for number in 0..merging {
        let nice = core.options.compaction_nice;
        lanes.push(lane(format!("merge-{number}"), nice, |core, number| core.compaction_step(number), number));
    }
    let workers = executor.start(lanes)?;
    let waker = Arc::downgrade(core);
    let wake_log = move || {
        if let Some(core) = waker.upgrade() {
            core.wake(LOG_LANE);
        }
    };
    core.cache.set_wake(wake_log);
    let waker = Arc::downgrade(core);
    core.tables.purge_queue().set_wake(move || {
        if let Some(core) = waker.upgrade() {
            // Before who gave the file up can ask for a merge: he is not told what was so before.
            core.health.end_trouble(|trouble| trouble == Trouble::Space);
            core.wake(LOG_LANE);
        }
    });
    assert!(core.workers.set(workers).is_ok(), "the lanes are started once");
    for lane in 0..COMPACTION_LANE + merging {
        core.wake(lane);
    }
    Ok(())
}

impl Core {
    /// Ends everything. The first caller gets the result.
    pub(crate) fn close(&self) -> Result<()> {
        if !self.health.close() {
            return Ok(());
        }
        self.notify();
        if let Some(workers) = self.workers.get() {
            workers.stop();
        }
        // Whoever wants to know what came of it calls `stop_trace`.
        let _ = self.stop_trace();
        self.abandon_jobs();
        self.rest_now();
        let log = self.writer.lock().log.take();
        let closed = match log {
            Some(mut log) => log.close(),
            None => Ok(()),
        };
        *self.manifest.lock() = None;
        *self.lock.lock() = None;
        closed
    }

    /// Makes everything acknowledged so far durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.health.check_write()?;
        let Some(log) = &self.log else {
            return Err(read_only());
        };
        self.counters.log_syncs.add(1);
        self.poison_on_failure(log.sync_all())
    }

    /// Creates a keyspace, durably.
    pub(crate) fn create_keyspace(&self, name: &str, options: &KeyspaceOptions) -> Result<Arc<KeyspaceCore>> {
        self.health.check_write()?;
        options.validate()?;
        let policy = self.policies.resolve_for(&options.strategy, options.may_lose_oldest)?;
        options.constraint().check(&*policy, Sizes::from(options))?;
        if name.is_empty() || name.len() > 255 {
            return Err(Error::invalid("a keyspace's name has 1 to 255 bytes"));
        }
        let mut manifest = self.lock_manifest()?;
        if manifest.state().keyspaces.values().any(|keyspace| keyspace.name == name) {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("there is a keyspace \"{name}\" already")));
        }
        let id = manifest.state().next_keyspace;
        let edit = ManifestEdit::CreateKeyspace { id, name: name.to_owned(), options_text: options.to_text() };
        self.poison_on_failure(manifest.commit(&[edit]))?;
        let tree = Tree::empty();
        let kept = to_usize(u64::from(self.options.decision_records));
        let ring = Ring::new(kept, Vec::new());
        let (view, writer) = first_view(options, tree, &self.arenas, MemoryBound::of(&*self.fs));
        let keyspace = keyspace_core(id, name, options.clone(), view, ring, policy, self.now_ms());
        let mut state = self.writer.lock();
        let active = ActiveMemtable::of(&keyspace, writer);
        state.active_bytes += active.slot.table.bytes();
        state.memtables.insert(id, active);
        state.trace_keyspace(id, name);
        self.change_keyspaces(|keyspaces| {
            keyspaces.insert(id, Arc::clone(&keyspace));
        });
        Ok(keyspace)
    }

    /// Drops a keyspace, durably, and after everything that was logged before.
    pub(crate) fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.health.check_write()?;
        if name == DEFAULT_KEYSPACE {
            return Err(Error::invalid("the default keyspace cannot be dropped"));
        }
        let mut manifest = self.lock_manifest()?;
        let found = manifest.state().keyspaces.iter().find(|(_, keyspace)| keyspace.name == name).map(|(id, _)| *id);
        let Some(id) = found else {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no keyspace \"{name}\"")));
        };
        // What was in it may have been written to another keyspace just now. A power loss must not take the copy and leave the drop.
        self.sync()?;
        self.poison_on_failure(manifest.commit(&[ManifestEdit::DropKeyspace(id)]))?;
        let keyspace = self.keyspace(id).expect("the manifest and the table of keyspaces agree");
        keyspace.dropped.store(true, Ordering::Release);
        let mut state = self.writer.lock();
        if let Some(active) = state.memtables.remove(&id) {
            state.active_bytes -= active.slot.table.bytes();
        }
        state.trace_drop(id);
        self.counters.inherit(&keyspace.reads);
        self.change_keyspaces(|keyspaces| {
            keyspaces.remove(&id);
        });
        drop(state);
        drop(manifest);
        let view = keyspace.view.load_full();
        let waiting: u64 = view.immutables.iter().map(|slot| slot.table.bytes()).sum();
        self.immutable_bytes.fetch_sub(waiting, Ordering::AcqRel);
        for handle in view.tree.handles() {
            handle.mark_obsolete();
        }
        // The handles that users still have keep the keyspace but not its files.
        keyspace.change_view(|view| View {
            memtable: Arc::clone(&view.memtable),
            immutables: Vec::new(),
            tree: Arc::new(Tree::empty()),
        });
        drop(view);
        self.wake(LOG_LANE);
        self.wake_compactions();
        self.notify();
        Ok(())
    }

    /// Called under the writer lock, so that changes do not race.
    fn change_keyspaces(&self, change: impl FnOnce(&mut BTreeMap<KeyspaceId, Arc<KeyspaceCore>>)) {
        let mut keyspaces = BTreeMap::clone(&self.keyspaces.load());
        change(&mut keyspaces);
        self.keyspaces.store(Arc::new(keyspaces));
    }

    /// A keyspace at wall time `now_ms`.
    pub(crate) fn keyspace_stats(&self, keyspace: &KeyspaceCore, now_ms: u64) -> stats::KeyspaceStats {
        let owed = self.owed_by(keyspace);
        stats::KeyspaceStats {
            debt_bytes: owed.debt_bytes(),
            debt_seconds: owed.debt_seconds(),
            ..stats::of_keyspace(keyspace, now_ms)
        }
    }

    pub(crate) fn stats(&self) -> stats::Stats {
        let cache = self.cache.stats();
        let now_ms = self.now_ms();
        // By itself: a guard in the literal below would be held until its end, against the order of locks.
        let snapshots = self.snapshots.lock().values().map(|held| u64::from(held.count)).sum();
        let mut stats = stats::Stats {
            cache_hits: cache.hits,
            cache_misses: cache.misses,
            cache_used_bytes: cache.used_bytes + cache.charged_bytes,
            open_tables: to_u64(self.tables.open_tables()),
            log_kept_bytes: self.log.as_ref().map_or(self.log_found_bytes, |log| log.bytes()),
            snapshots,
            spare_bytes: self.tables.purge_queue().spare_bytes(),
            last_seq: self.visible.load(Ordering::Acquire),
            scheduler: self.scheduler().to_string(),
            keyspaces: self.keyspaces.load().values().map(|keyspace| self.keyspace_stats(keyspace, now_ms)).collect(),
            ..self.counters.read()
        };
        let merges = self.merge_states();
        let work = self.work_now();
        stats.debt_bytes = work.debt_bytes();
        stats.debt_seconds = work.debt_seconds();
        stats.sustainable_write_bytes_per_s = work.sustainable_bytes_per_s();
        stats.merges = to_u64(merges.len());
        stats.merges_waiting = to_u64(merges.iter().filter(|merge| !merge.steps).count());
        stats.keyspaces.sort_by(|a, b| a.name.cmp(&b.name));
        for keyspace in &stats.keyspaces {
            stats.runs += keyspace.runs;
            stats.files += keyspace.files;
            stats.disk_bytes += keyspace.disk_bytes;
            stats.memtable_bytes += keyspace.memtable_bytes;
            stats.gets += keyspace.gets;
            stats.get_hits += keyspace.get_hits;
            stats.memtable_hits += keyspace.memtable_hits;
            stats.filter_checks += keyspace.filter_checks;
            stats.filter_negatives += keyspace.filter_negatives;
            stats.filter_false_positives += keyspace.filter_false_positives;
            stats.ranges += keyspace.ranges;
        }
        stats
    }
}

//! The background lanes: what each does in a step, and how outcomes become part of the tree.
//!
//! ```text
//! flush lane       oldest immutable memtable --FlushJob--> file of L0 ----.
//! log lane         next segment, obsolete segments and files               +--> manifest --> view
//! compaction lanes view --planner--> plan --MergeJob--> files of a run ---'
//! ```
//!
//! Everything here is called by whoever runs the lanes (threads, or the simulation), one caller a lane. A lane never waits for
//! another one: what cannot go on says [`LaneStep::Idle`] and is woken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::core::{Core, FLUSH_LANE, KeyspaceCore, Trouble};
use super::read::{MemSlot, View};
use super::space::FIRST_TRUST_PERCENT;
use super::strategy::Steering;
use crate::cache::sst_path;
use crate::compaction::CompactionPolicy;
use crate::compaction::deadline::Urgency;
use crate::compaction::decision::{Decision, Ended, Ending};
use crate::compaction::filters::{MAX_BITS, NewFiles};
use crate::compaction::plan::{Action, LawBroken, Place, Plan, PlanInput};
use crate::compaction::planner::{self, ManualRequest, ManualStep};
use crate::compaction::view::{LsmView, Sizes};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::io::{IoClass, IoCtx, IoMeter, JobId, LaneStep};
use crate::jobs::flush::FlushJob;
use crate::jobs::merge::MergeJob;
use crate::jobs::{self, JobCx, Outcome, Step};
use crate::key::SeqNo;
use crate::num::to_u64;
use crate::planted::{self, Bug};
use crate::sst::TableOptions;
use crate::version::{KeyspaceId, LevelId, ManifestEdit, RunOrder, SstId, Version, VersionEdit};
use crate::wal::SegmentId;

/// Records that a step of a job consumes, in bytes: about half a millisecond of work; less where memtables are small, so that
/// jobs interleave in a simulation as they do in life.
fn step_bytes(keyspace: &KeyspaceCore) -> u64 {
    (keyspace.options.memtable_bytes / 4).clamp(1 << 10, 256 << 10)
}

/// The flush under way and when to try again after a failure.
#[derive(Default)]
pub(crate) struct FlushState {
    active: Option<ActiveFlush>,
    retry: Retry,
}

struct ActiveFlush {
    keyspace: Arc<KeyspaceCore>,
    slot: Arc<MemSlot>,
    job: FlushJob,
    id: JobId,
    began_ns: u64,
    meter: Arc<IoMeter>,
}

/// What runs in the compaction lanes, and what users have asked for.
#[derive(Default)]
pub(crate) struct Compactions {
    running: Vec<Arc<Running>>,
    /// Where round-robin picking goes on, by keyspace and level.
    cursors: BTreeMap<KeyspaceId, Vec<Bytes>>,
    manual: Vec<Arc<Manual>>,
    /// Views from which a policy made an illegal plan: it is not asked again before they change.
    refused: BTreeMap<KeyspaceId, Seen>,
    /// The keyspace that was served last: the next pick begins behind it.
    last_served: KeyspaceId,
    /// How far estimates of what merges write are trusted, in percent beyond [`FIRST_TRUST_PERCENT`].
    distrust_percent: u64,
}

/// What a policy saw, but for the time and the round-robin cursors, which move with what runs.
struct Seen {
    version: Arc<Version>,
    running: Vec<Arc<Plan>>,
    oldest_snapshot: Option<SeqNo>,
    /// The policy in force: another one deserves to be asked.
    steering: Arc<Steering>,
}

impl PartialEq for Seen {
    fn eq(&self, other: &Seen) -> bool {
        Arc::ptr_eq(&self.version, &other.version)
            && self.running.len() == other.running.len()
            && self.running.iter().zip(&other.running).all(|(a, b)| Arc::ptr_eq(a, b))
            && self.oldest_snapshot == other.oldest_snapshot
            && Arc::ptr_eq(&self.steering, &other.steering)
    }
}

impl Compactions {
    /// What runs in a keyspace, with its records, and the round-robin cursors.
    pub(super) fn jobs_of(&self, keyspace: KeyspaceId) -> Jobs {
        let running = || self.running.iter().filter(|running| running.keyspace == keyspace);
        Jobs {
            plans: running().map(|running| Arc::clone(&running.plan)).collect(),
            decisions: running().map(|running| Arc::clone(&running.decision)).collect(),
            cursors: self.cursors.get(&keyspace).cloned().unwrap_or_default(),
        }
    }
}

/// What runs in a keyspace.
pub(super) struct Jobs {
    pub(super) plans: Vec<Arc<Plan>>,
    /// Their records, in the same order.
    pub(super) decisions: Vec<Arc<Decision>>,
    /// The round-robin cursors.
    pub(super) cursors: Vec<Bytes>,
}

/// A compaction that has been chosen and has not taken effect yet.
struct Running {
    keyspace: KeyspaceId,
    plan: Arc<Plan>,
    /// Bytes that it may take for a time; 0 without a budget.
    reserved: u64,
    decision: Arc<Decision>,
    /// When picking began, by the monotonic clock.
    began_ns: u64,
    /// Runs that will be gone from L0 when it ends.
    runs_of_l0: u64,
    /// Thousandths of its input that are merged.
    progress: AtomicU64,
    manual: Option<Arc<Manual>>,
}

/// A user's request to compact a range.
pub(crate) struct Manual {
    keyspace: KeyspaceId,
    request: ManualRequest,
    cancelled: Box<dyn Fn() -> bool + Send + Sync>,
    done: AtomicBool,
    result: Mutex<Option<Error>>,
}

/// The merge that a compaction lane is in the middle of.
#[derive(Default)]
pub(crate) struct LaneState {
    active: Option<ActiveMerge>,
    retry: Retry,
}

struct ActiveMerge {
    keyspace: Arc<KeyspaceCore>,
    running: Arc<Running>,
    job: MergeJob,
    /// Time in steps.
    stepped_ns: u64,
    /// Time in their file calls.
    meter: Arc<IoMeter>,
    /// Bytes of its output that the keyspace's metrics know of.
    written: u64,
}

impl ActiveMerge {
    /// Tells the metrics how much of its output there is now.
    fn note_written(&mut self) {
        let more = self.job.bytes_so_far().1.saturating_sub(self.written);
        if more > 0 {
            self.written += more;
            self.keyspace.metrics.lock().written(more);
        }
    }

    /// It has ended: its output is part of the tree, or gone.
    fn give_back(&self) {
        self.keyspace.metrics.lock().temporary_bytes -= self.written;
    }
}

/// Puts off what failed: exponentially, so that a full disk or a damaged file does not become a busy loop.
#[derive(Default)]
struct Retry {
    failures: u32,
    not_before_ns: u64,
}

impl Retry {
    fn failed(&mut self, now_ns: u64, error: &Error) {
        // A damaged input stays damaged; a full disk should be noticed soon to have room again.
        let longest_ms = if error.kind() == ErrorKind::Corruption { 30_000 } else { 500 };
        let wait_ms = (10u64 << self.failures.min(12)).min(longest_ms);
        self.failures += 1;
        self.not_before_ns = now_ns + wait_ms * 1_000_000;
    }

    fn wait(&self, now_ns: u64) -> Option<Duration> {
        (now_ns < self.not_before_ns).then(|| Duration::from_nanos(self.not_before_ns - now_ns))
    }
}

impl Core {
    fn may_work(&self) -> bool {
        !self.health.is_closed() && !self.health.is_poisoned()
    }

    /// For files that are about to be written to `place` in the tree `version`, about `entries` entries in the place of `replaced`.
    fn table_options(
        keyspace: &KeyspaceCore,
        version: &Version,
        place: Place,
        entries: u64,
        replaced: &[PlanInput],
    ) -> TableOptions {
        let view = LsmView::new(version, Sizes::from(&keyspace.options));
        let option_bits = keyspace.options.filter_bits_per_key;
        let new = NewFiles { place, entries, replaced, option_bits };
        // A policy of a user's may answer anything.
        let bits = keyspace.ask(|policy| policy.filter_bits(&view, &new)).unwrap_or(option_bits);
        TableOptions {
            block_bytes: keyspace.options.block_bytes,
            filter_bits_per_key: if bits.is_finite() { bits.clamp(0.0, MAX_BITS) } else { option_bits },
            compression: keyspace.options.compression_at(place.level.0),
        }
    }

    fn job_cx<'a>(
        &'a self,
        new_id: &'a dyn Fn() -> SstId,
        direct: bool,
        ctx: IoCtx,
        meter: &'a Arc<IoMeter>,
    ) -> JobCx<'a> {
        JobCx { fs: &*self.fs, dir: &self.dir, clock: &*self.clock, new_id, direct, ctx, meter }
    }

    /// Takes bandwidth for what a step has moved, and waits if there is none left.
    fn take_bandwidth(&self, bytes: u64, class: IoClass) {
        let wait = self.limiter.take(bytes, class);
        if !wait.is_zero()
            && let Some(workers) = self.workers.get()
        {
            workers.sleep(wait);
        }
    }

    fn put_off(&self, doing: &str, error: &Error, trouble: Trouble) {
        self.counters.background_errors.add(1);
        if error.kind() == ErrorKind::Poisoned {
            self.health.poison(error);
        }
        self.health.set_trouble(trouble, Some(error.clone()));
        self.tell(&Event::Error { doing: doing.to_owned(), error: error.clone() });
        self.notify();
    }

    // ---------------------------------------------------------------- flush

    /// A step of the flush lane.
    pub(crate) fn flush_step(&self) -> LaneStep {
        let mut state = self.flush.lock();
        if !self.may_work() {
            return LaneStep::Idle;
        }
        if let Some(wait) = state.retry.wait(self.clock.mono_ns()) {
            return LaneStep::IdleFor(wait);
        }
        if state.active.is_none() {
            self.set_overdue_aside();
            state.active = self.next_flush();
        }
        let Some(active) = &mut state.active else {
            // What had failed need not be done any more.
            self.health.set_trouble(Trouble::Flush, None);
            return self.flush_idle();
        };
        let began = self.clock.mono_ns();
        let new_id = || self.new_sst_id();
        let ctx = IoCtx { class: IoClass::Flush, job: active.id };
        let cx = self.job_cx(&new_id, self.options.direct.flushes, ctx, &active.meter);
        let step = active.job.step(&cx, step_bytes(&active.keyspace));
        self.counters.flush_ns.add(self.clock.mono_ns().saturating_sub(began));
        let ended = match step {
            Ok(Step::More(bytes)) => {
                self.flushed_so_far.fetch_add(bytes, Ordering::Relaxed);
                self.take_bandwidth(bytes, IoClass::Flush);
                self.retune();
                return LaneStep::Worked;
            }
            Ok(Step::Done(outcome)) => self.install_flush(active, &outcome),
            Err(error) => Err(error),
        };
        let active = state.active.take().expect("stepped above");
        self.flushed_so_far.store(0, Ordering::Relaxed);
        match ended {
            Ok(()) => {
                state.retry = Retry::default();
                self.health.set_trouble(Trouble::Flush, None);
                if planted::active(Bug::LostWakeup) {
                    return LaneStep::Idle;
                }
            }
            Err(error) => {
                self.discard(active.job.ids());
                state.retry.failed(self.clock.mono_ns(), &error);
                self.put_off("flush", &error, Trouble::Flush);
            }
        }
        LaneStep::Worked
    }

    /// The oldest immutable memtable of the keyspace that holds on to the oldest log segment.
    fn next_flush(&self) -> Option<ActiveFlush> {
        let barrier = self.flush_barrier.load(Ordering::Acquire);
        let keyspaces = self.keyspaces.load();
        let (keyspace, slot) = keyspaces
            .values()
            .filter_map(|keyspace| Some((keyspace, Arc::clone(keyspace.view.load().immutables.last()?))))
            .filter(|(_, slot)| slot.table.max_seq().0 <= barrier)
            .min_by_key(|(_, slot)| slot.table.min_seq())?;
        let version = Arc::clone(&keyspace.view.load().tree.version);
        // Newer than every run that there is; its order is given out when it is there.
        let place = Place { level: LevelId(0), run: RunOrder(u64::MAX) };
        let options = Self::table_options(keyspace, &version, place, slot.table.entries(), &[]);
        let first_delete_ms = slot.first_delete_ms().unwrap_or_else(|| self.now_ms());
        Some(ActiveFlush {
            job: FlushJob::new(&slot.table, self.snapshot_seqs(), &version, options, first_delete_ms),
            keyspace: Arc::clone(keyspace),
            slot,
            id: self.new_job_id(),
            began_ns: self.clock.mono_ns(),
            meter: IoMeter::new(Arc::clone(&self.clock)),
        })
    }

    fn install_flush(&self, active: &ActiveFlush, outcome: &Outcome) -> Result<()> {
        let keyspace = &active.keyspace;
        let mut manifest = self.lock_manifest()?;
        if !keyspace.dropped.load(Ordering::Acquire) {
            self.sync_log_before(keyspace.id)?;
            let order = RunOrder(manifest.state().keyspaces[&keyspace.id].next_run_order);
            let mut edits = vec![
                ManifestEdit::Flushed(keyspace.id, active.slot.table.max_seq()),
                ManifestEdit::LogFloor(self.log_floor(&active.slot).max(manifest.state().log_floor)),
                ManifestEdit::NextSst(self.next_sst()),
                ManifestEdit::LastSeq(self.visible_seq()),
            ];
            if !outcome.files.is_empty() {
                let added = outcome.files.iter().map(|file| (LevelId(0), order, Arc::clone(file))).collect();
                let edit = VersionEdit { removed: Vec::new(), added };
                edits.push(ManifestEdit::Version(keyspace.id, edit));
            }
            manifest.commit(&edits)?;
            let tree = self.next_tree(keyspace, &manifest.state().keyspaces[&keyspace.id].version);
            keyspace.set_limits(&tree.version);
            keyspace.change_view(|view| View {
                memtable: Arc::clone(&view.memtable),
                immutables: view.immutables.iter().filter(|slot| !Arc::ptr_eq(slot, &active.slot)).cloned().collect(),
                tree,
            });
            self.immutable_bytes.fetch_sub(active.slot.table.bytes(), Ordering::AcqRel);
        }
        let floor = manifest.state().log_floor;
        drop(manifest);
        self.drop_log_before(floor);
        self.counters.flushes.add(1);
        self.counters.flush_bytes.add(outcome.bytes_written);
        {
            let mut metrics = keyspace.metrics.lock();
            metrics.flush_bytes += outcome.bytes_written;
            metrics.ingested_bytes += active.job.consumed();
        }
        self.sample_runs(keyspace);
        self.counters.dropped_versions.add(outcome.counts.dropped_versions);
        self.retune();
        self.wake_compactions();
        self.notify();
        if let Some(file) = outcome.files.first() {
            self.tell(&Event::FlushEnd {
                keyspace: keyspace.id,
                file: file.id,
                bytes: file.bytes,
                took: self.since(active.began_ns),
            });
        }
        Ok(())
    }

    /// Makes the log durable before a table of keyspace `flushed` becomes so, if another keyspace has logged writes that are in no
    /// table yet. Otherwise a power loss could take an older write, or the other half of a batch (whose records may be newer
    /// than all of the flushed memtable), and leave what was flushed. With one keyspace there is nothing to do: its older
    /// memtables are in tables already, and its batches are never split.
    fn sync_log_before(&self, flushed: KeyspaceId) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let keyspaces = self.keyspaces.load();
        let others = keyspaces.values().filter(|keyspace| keyspace.id != flushed);
        let mut views = others.map(|keyspace| keyspace.view.load_full());
        let is_logged = |slot: &Arc<MemSlot>| slot.first_segment().is_some();
        if views.any(|view| std::iter::once(&view.memtable).chain(&view.immutables).any(is_logged)) {
            return self.poison_on_failure(log.sync_all());
        }
        Ok(())
    }

    /// The oldest log segment that a crash would need, once `flushed` is on disk.
    fn log_floor(&self, flushed: &Arc<MemSlot>) -> SegmentId {
        // Read first: a memtable that is empty when we look at it can only get records of this segment or later ones.
        let mut floor = SegmentId(self.log_segment.load(Ordering::Acquire));
        for keyspace in self.keyspaces.load().values() {
            let view = keyspace.view.load();
            let slots = std::iter::once(&view.memtable).chain(&view.immutables);
            for slot in slots.filter(|slot| !Arc::ptr_eq(slot, flushed)) {
                floor = floor.min(slot.first_segment().unwrap_or(floor));
            }
        }
        floor
    }

    // ---------------------------------------------------------------- log lane

    /// Lets the log lane remove what is older than `floor`.
    fn drop_log_before(&self, floor: SegmentId) {
        self.obsolete_before.fetch_max(floor.0, Ordering::AcqRel);
        self.wake(super::core::LOG_LANE);
    }

    /// A step of the log lane: prepares the next segment, removes segments and files that nothing needs.
    pub(crate) fn log_step(&self) -> LaneStep {
        let Some(log) = &self.log else {
            return LaneStep::Idle;
        };
        if !self.may_work() {
            return LaneStep::Idle;
        }
        match log.prepare() {
            Ok(true) => return LaneStep::Worked,
            Ok(false) => {}
            Err(error) => {
                // Not needed yet: the writer creates its segment itself if it must, and is told what is wrong then.
                if error.kind() == ErrorKind::Poisoned {
                    self.health.poison(&error);
                    self.notify();
                    return LaneStep::Idle;
                }
                self.tell(&Event::Error { doing: "prepare a log segment".to_owned(), error });
                self.remove_obsolete();
                return LaneStep::IdleFor(Duration::from_millis(100));
            }
        }
        if self.remove_obsolete() { LaneStep::Worked } else { LaneStep::Idle }
    }

    /// Removes one log segment or the tables that no reader needs any more. Failing is fine: the next open removes them.
    fn remove_obsolete(&self) -> bool {
        let ctx = IoCtx::foreground(IoClass::Meta);
        let mut removed = false;
        if let Some(log) = &self.log {
            let floor = SegmentId(self.obsolete_before.load(Ordering::Acquire));
            // What cannot be removed now is tried again at the next step.
            let _ = log.remove_before(floor);
        }
        for (id, bytes) in self.tables.purge_queue().take() {
            let _ = self.fs.remove_file(&sst_path(&self.dir, id), ctx);
            self.tables.purge_queue().deleted(bytes);
            removed = true;
        }
        if removed && self.options.extra_space_bytes > 0 {
            // A merge may have waited for the space.
            self.wake_compactions();
        }
        removed
    }

    // ---------------------------------------------------------------- compaction lanes

    /// A step of compaction lane `lane`.
    pub(crate) fn compaction_step(&self, lane: usize) -> LaneStep {
        let mut state = self.merges[lane].lock();
        if !self.may_work() {
            return LaneStep::Idle;
        }
        if let Some(wait) = state.retry.wait(self.clock.mono_ns()) {
            return LaneStep::IdleFor(wait);
        }
        let ended = match &mut state.active {
            None => match self.choose() {
                Ok(None) => {
                    // What had failed need not be done any more.
                    self.health.set_trouble(Trouble::Compaction, None);
                    return self.compaction_idle();
                }
                Ok(Some(Chosen::Applied)) => Ok(()),
                Ok(Some(Chosen::Merge(active))) => {
                    state.active = Some(*active);
                    return LaneStep::Worked;
                }
                Err(error) => Err(error),
            },
            Some(active) => match self.step_merge(active) {
                Ok(None) => return LaneStep::Worked,
                Ok(Some(outcome)) => self.install_merge(active, &outcome),
                Err(error) => Err(error),
            },
        };
        let active = state.active.take();
        if let Some(active) = &active {
            self.unregister(&active.running);
            active.give_back();
        }
        match ended {
            Ok(()) => {
                state.retry = Retry::default();
                self.health.set_trouble(Trouble::Compaction, None);
            }
            Err(error) => {
                if let Some(active) = &active {
                    self.discard(active.job.ids());
                    self.tell_abandoned(active, ending_of(&error));
                }
                if error.kind() == ErrorKind::Cancelled {
                    self.counters.cancelled.add(1);
                } else {
                    if let Some(manual) = active.as_ref().and_then(|active| active.running.manual.as_ref()) {
                        manual.end(Some(error.clone()));
                    }
                    state.retry.failed(self.clock.mono_ns(), &error);
                    self.put_off("compaction", &error, Trouble::Compaction);
                }
            }
        }
        self.retune();
        self.wake_compactions();
        self.notify();
        LaneStep::Worked
    }

    fn step_merge(&self, active: &mut ActiveMerge) -> Result<Option<Outcome>> {
        let wanted = active.running.manual.as_ref().is_none_or(|manual| !(manual.cancelled)());
        if !wanted || active.keyspace.dropped.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Cancelled, "the compaction was cancelled"));
        }
        let began = self.clock.mono_ns();
        let new_id = || self.new_sst_id();
        let class = IoClass::Compaction(active.running.plan.output.level.0);
        let ctx = IoCtx { class, job: JobId(active.running.decision.job) };
        let cx = self.job_cx(&new_id, self.options.direct.compactions, ctx, &active.meter);
        let step = active.job.step(&cx, step_bytes(&active.keyspace));
        let stepped_ns = self.clock.mono_ns().saturating_sub(began);
        active.stepped_ns += stepped_ns;
        self.counters.compaction_ns.add(stepped_ns);
        active.note_written();
        let ((_, written), reserved) = (active.job.bytes_so_far(), active.running.reserved);
        if reserved > 0 && written > reserved {
            self.compaction.lock().distrust_percent += 25;
            let what = format!("a merge was stopped: it was to write {reserved} bytes at most, and wrote {written}");
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        match step? {
            Step::Done(outcome) => Ok(Some(outcome)),
            Step::More(bytes) => {
                active.running.set_progress(active.job.progress());
                self.take_bandwidth(bytes, class);
                self.retune();
                Ok(None)
            }
        }
    }

    /// What to do next, and the events of the choice.
    fn choose(&self) -> Result<Option<Chosen>> {
        let chosen = self.next_compaction();
        self.tell_untold();
        chosen
    }

    /// Asks the planner of each keyspace in turn; a plan that needs no merge is applied at once.
    fn next_compaction(&self) -> Result<Option<Chosen>> {
        let mut compactions = self.compaction.lock();
        let epoch = self.work_epoch.load(Ordering::Acquire);
        let keyspaces = self.keyspaces.load();
        let after = compactions.last_served;
        let turn = keyspaces.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded));
        let turn = turn.chain(keyspaces.range(..=after));
        for (id, keyspace) in turn {
            let began_ns = self.clock.mono_ns();
            let Some(Next { plan, reserved, manual }) = self.plan_for(&mut compactions, keyspace)? else {
                continue;
            };
            compactions.last_served = *id;
            let decision = self.decide(keyspace, &plan);
            let running = Arc::new(Running { reserved, ..Running::new(*id, plan, decision, began_ns, manual) });
            compactions.running.push(Arc::clone(&running));
            if let Some((level, cursor)) = &running.plan.cursor {
                let cursors = compactions.cursors.entry(*id).or_default();
                if cursors.len() <= level.index() {
                    cursors.resize(level.index() + 1, Bytes::new());
                }
                cursors[level.index()] = cursor.clone();
            }
            drop(compactions);
            return self.begin(keyspace, running).map(Some);
        }
        if compactions.running.is_empty() && compactions.manual.is_empty() {
            self.settled_epoch.store(epoch, Ordering::Release);
            drop(compactions);
            self.notify();
        }
        Ok(None)
    }

    /// What the planner wants next in `keyspace`. A policy that panics is replaced and its successor asked.
    fn plan_for(&self, compactions: &mut Compactions, keyspace: &Arc<KeyspaceCore>) -> Result<Option<Next>> {
        keyspace.ask(|policy| self.plan_by(policy, compactions, keyspace))?
    }

    /// What the planner wants next in `keyspace` by `policy`: a user's request first.
    fn plan_by(
        &self,
        policy: &dyn CompactionPolicy,
        compactions: &mut Compactions,
        keyspace: &Arc<KeyspaceCore>,
    ) -> Result<Option<Next>> {
        let Jobs { plans: running, cursors, .. } = compactions.jobs_of(keyspace.id);
        let oldest_snapshot = self.snapshots.lock().keys().next().copied();
        let tree = Arc::clone(&keyspace.view.load().tree);
        let version = &tree.version;
        let counters = policy.counts_reads().then(|| tree.reads());
        let view = LsmView::new(version, Sizes::from(&keyspace.options))
            .with_running(if planted::active(Bug::PickedTwice) { &[] } else { &running })
            .with_cursors(&cursors)
            .with_counters(counters.as_ref())
            .with_oldest_snapshot(oldest_snapshot)
            .at(self.now_ms());
        let mut ended = Vec::new();
        let mut chosen = None;
        for manual in compactions.manual.iter().filter(|manual| manual.keyspace == keyspace.id) {
            if (manual.cancelled)() {
                manual.end(Some(Error::new(ErrorKind::Cancelled, "the compaction was cancelled")));
                ended.push(Arc::clone(manual));
                continue;
            }
            let step = planner::plan_manual(policy, &view, &manual.request).unwrap_or_else(|error| {
                // A policy that contradicts itself; who asked is told.
                manual.end(Some(error));
                ManualStep::Done
            });
            match step {
                ManualStep::Run(plan) => {
                    chosen = Some((*plan, Some(Arc::clone(manual))));
                    break;
                }
                ManualStep::Wait => {}
                ManualStep::Done => {
                    if !manual.done.load(Ordering::Acquire) {
                        manual.end(None);
                    }
                    ended.push(Arc::clone(manual));
                }
            }
        }
        if !ended.is_empty() {
            compactions.manual.retain(|manual| !ended.iter().any(|done| Arc::ptr_eq(done, manual)));
            self.notify();
        }
        let overdue = |urgency| keyspace.deadline()?.plan(policy, &view, urgency);
        let (plan, manual) = match chosen {
            Some((plan, manual)) => (Some(plan), manual),
            None => match overdue(Urgency::Urgent) {
                Some(plan) => (Some(plan), None),
                None => {
                    let seen = Seen {
                        version: Arc::clone(version),
                        running: running.clone(),
                        oldest_snapshot,
                        steering: keyspace.steering.load_full(),
                    };
                    let plan = self.ask_policy(policy, &mut compactions.refused, keyspace, &view, seen);
                    (plan.or_else(|| overdue(Urgency::Due)), None)
                }
            },
        };
        let Some(plan) = plan else { return Ok(None) };
        let reserved = compactions.running.iter().map(|running| running.reserved).sum();
        let trust_percent = FIRST_TRUST_PERCENT + compactions.distrust_percent;
        let fitting = self.fit(keyspace, &view, plan, reserved, trust_percent)?;
        Ok(fitting.map(|(plan, reserved)| Next { plan, reserved, manual }))
    }

    /// What `policy` wants next; it is not asked again about a view from which it made an illegal plan.
    fn ask_policy(
        &self,
        policy: &dyn CompactionPolicy,
        refused: &mut BTreeMap<KeyspaceId, Seen>,
        keyspace: &KeyspaceCore,
        view: &LsmView<'_>,
        seen: Seen,
    ) -> Option<Plan> {
        if refused.get(&keyspace.id) == Some(&seen) {
            return None;
        }
        let planned = planner::next(policy, view);
        let broken = planned.as_ref().err();
        *keyspace.stuck.lock() = broken
            .filter(|_| seen.running.is_empty())
            .map(|broken| Error::invalid(format!("policy {}: {broken}", policy.name())));
        match planned {
            Ok(plan) => {
                refused.remove(&keyspace.id);
                plan
            }
            Err(LawBroken { law, what }) => {
                refused.insert(keyspace.id, seen);
                self.counters.refused_plans.add(1);
                let policy = policy.name().to_owned();
                keyspace.untold.lock().push(Event::PlanRefused { keyspace: keyspace.id, policy, law, what });
                // Who waits for room is told that none will come.
                self.notify();
                None
            }
        }
    }

    fn begin(&self, keyspace: &Arc<KeyspaceCore>, running: Arc<Running>) -> Result<Chosen> {
        let plan = &running.plan;
        if self.listener.is_some() {
            self.tell(&Event::CompactionStart {
                keyspace: keyspace.id,
                reason: plan.to_string(),
                input_bytes: plan.input_bytes(),
                decision: Arc::clone(&running.decision),
            });
        }
        if plan.action != Action::Merge {
            let added = match plan.action {
                Action::Move => plan.moved(self.now_ms()),
                _ => Vec::new(),
            };
            let moved = to_u64(added.len());
            let applied = self.install(keyspace, VersionEdit { removed: plan.removed(), added });
            self.unregister(&running);
            let took_ns = self.clock.mono_ns().saturating_sub(running.began_ns);
            if let Err(error) = applied {
                let ended = Ended { ending: ending_of(&error), took_ns, ..Ended::default() };
                self.tell_ended(keyspace, &running, ended);
                return Err(error);
            }
            self.counters.trivial_moves.add(moved);
            self.tell_ended(keyspace, &running, Ended { files_out: moved, took_ns, ..Ended::default() });
            return Ok(Chosen::Applied);
        }
        let ctx = IoCtx { class: IoClass::Compaction(plan.output.level.0), job: JobId(running.decision.job) };
        // The version is read after the plan was made; other jobs may have changed it meanwhile, but not what this one reads:
        // its inputs are busy, and records only ever sink below it.
        let version = Arc::clone(&keyspace.view.load().tree.version);
        let entries = plan.files().map(|file| file.entries).sum();
        let options = Self::table_options(keyspace, &version, plan.output, entries, &plan.inputs);
        let handle = |meta: &Arc<crate::version::FileMeta>| self.tables.handle(Arc::clone(meta));
        let meter = IoMeter::new(Arc::clone(&self.clock));
        let job = MergeJob::new(plan, &version, self.snapshot_seqs(), options, ctx, &meter, handle);
        Ok(Chosen::Merge(Box::new(ActiveMerge {
            keyspace: Arc::clone(keyspace),
            running,
            job,
            stepped_ns: 0,
            meter,
            written: 0,
        })))
    }

    fn install_merge(&self, active: &ActiveMerge, outcome: &Outcome) -> Result<()> {
        let plan = &active.running.plan;
        let place = plan.output;
        let added = outcome.files.iter().map(|file| (place.level, place.run, Arc::clone(file))).collect();
        self.install(&active.keyspace, VersionEdit { removed: plan.removed(), added })?;
        self.counters.compactions.add(1);
        self.counters.compaction_bytes_read.add(outcome.bytes_read);
        self.counters.compaction_bytes_written.add(outcome.bytes_written);
        let ended = Ended {
            bytes_read: outcome.bytes_read,
            bytes_written: outcome.bytes_written,
            files_out: to_u64(outcome.files.len()),
            entries_read: plan.files().map(|file| file.entries).sum(),
            entries_written: outcome.files.iter().map(|file| file.entries).sum(),
            dropped_versions: outcome.counts.dropped_versions,
            dropped_tombstones: outcome.counts.dropped_tombstones,
            ..self.times(active)
        };
        self.counters.compaction_entries_read.add(ended.entries_read);
        self.counters.compaction_entries_written.add(ended.entries_written);
        self.counters.dropped_versions.add(ended.dropped_versions);
        self.counters.dropped_tombstones.add(ended.dropped_tombstones);
        self.tell_ended(&active.keyspace, &active.running, ended);
        Ok(())
    }

    /// The record of a plan that is about to be carried out.
    fn decide(&self, keyspace: &KeyspaceCore, plan: &Plan) -> Arc<Decision> {
        let decision = self.foreseen(keyspace, plan, keyspace.steering.load().policy.name());
        Arc::new(Decision { job: self.new_job_id().0, ..decision })
    }

    /// What a job has taken so far.
    fn times(&self, active: &ActiveMerge) -> Ended {
        let io_ns = active.meter.ns();
        Ended {
            took_ns: self.clock.mono_ns().saturating_sub(active.running.began_ns),
            cpu_ns: active.stepped_ns.saturating_sub(io_ns),
            io_ns,
            ..Ended::default()
        }
    }

    fn tell_abandoned(&self, active: &ActiveMerge, ending: Ending) {
        let (bytes_read, bytes_written) = active.job.bytes_so_far();
        let ended = Ended { ending, bytes_read, bytes_written, ..self.times(active) };
        self.tell_ended(&active.keyspace, &active.running, ended);
    }

    /// Keeps the record of a job that has ended, and tells the listener.
    fn tell_ended(&self, keyspace: &KeyspaceCore, running: &Running, ended: Ended) {
        let decision = Arc::new(Decision { ended: Some(ended.clone()), ..(*running.decision).clone() });
        keyspace.metrics.lock().ended(&decision);
        self.keep_decision(keyspace, &decision);
        if self.listener.is_none() {
            return;
        }
        self.tell(&match ended.ending {
            Ending::Done => Event::CompactionEnd {
                keyspace: running.keyspace,
                reason: running.plan.to_string(),
                moved: running.plan.action != Action::Merge,
                bytes_read: ended.bytes_read,
                bytes_written: ended.bytes_written,
                dropped_versions: ended.dropped_versions,
                dropped_tombstones: ended.dropped_tombstones,
                took: Duration::from_nanos(ended.took_ns),
                decision,
            },
            Ending::Cancelled(_) | Ending::Failed(_) => {
                Event::CompactionAbandoned { keyspace: running.keyspace, decision }
            }
        });
    }

    /// The last decisions of a keyspace, oldest first; those whose job is at work come last.
    pub(crate) fn decisions(&self, keyspace: &KeyspaceCore) -> Vec<Arc<Decision>> {
        // A job that ends meanwhile is better shown twice than not at all: running ones first, and then without those that have ended.
        let running: Vec<_> = {
            let compactions = self.compaction.lock();
            compactions.running.iter().filter(|r| r.keyspace == keyspace.id).map(|r| Arc::clone(&r.decision)).collect()
        };
        let mut decisions: Vec<_> = keyspace.decisions.lock().iter().cloned().collect();
        let running: Vec<_> =
            running.into_iter().filter(|running| decisions.iter().all(|ended| ended.job != running.job)).collect();
        decisions.extend(running);
        decisions
    }

    /// Makes an edit of a tree durable, publishes the new tree, and lets go of the files that it removed.
    pub(crate) fn install(&self, keyspace: &Arc<KeyspaceCore>, edit: VersionEdit) -> Result<()> {
        let mut manifest = self.lock_manifest()?;
        if keyspace.dropped.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Cancelled, "the keyspace was dropped"));
        }
        let removed: BTreeSet<SstId> = edit.removed.iter().map(|(_, _, id)| *id).collect();
        let kept: BTreeSet<SstId> = edit.added.iter().map(|(_, _, file)| file.id).collect();
        let before = Arc::clone(&keyspace.view.load().tree);
        manifest.commit(&[ManifestEdit::NextSst(self.next_sst()), ManifestEdit::Version(keyspace.id, edit)])?;
        keyspace.set_tree(self.next_tree(keyspace, &manifest.state().keyspaces[&keyspace.id].version));
        drop(manifest);
        self.sample_runs(keyspace);
        for handle in before.handles().filter(|handle| removed.contains(&handle.meta().id)) {
            if !kept.contains(&handle.meta().id) {
                handle.mark_obsolete();
            }
        }
        Ok(())
    }

    /// Whether a running compaction has this file.
    pub(crate) fn is_merging(&self, keyspace: KeyspaceId, file: SstId) -> bool {
        let compactions = self.compaction.lock();
        let mut running = compactions.running.iter().filter(|running| running.keyspace == keyspace);
        running.any(|running| running.plan.files().any(|input| input.id == file))
    }

    /// The plans of the jobs that run in a keyspace, and its round-robin cursors.
    pub(crate) fn compactions_of(&self, keyspace: KeyspaceId) -> (Vec<Arc<Plan>>, Vec<Bytes>) {
        let Jobs { plans, cursors, .. } = self.compaction.lock().jobs_of(keyspace);
        (plans, cursors)
    }

    /// Input bytes that the running merges of a keyspace have merged already.
    pub(crate) fn merged_bytes(&self, keyspace: KeyspaceId) -> u64 {
        let compactions = self.compaction.lock();
        let running = compactions.running.iter().filter(|running| running.keyspace == keyspace);
        running.map(|running| running.plan.input_bytes() / 1000 * running.progress.load(Ordering::Relaxed)).sum()
    }

    /// Notes how many runs a keyspace has, after a change of its tree.
    pub(crate) fn sample_runs(&self, keyspace: &KeyspaceCore) {
        let runs = to_u64(keyspace.view.load().tree.runs.len());
        keyspace.metrics.lock().sample(self.now_ms(), runs);
    }

    fn unregister(&self, running: &Arc<Running>) {
        self.compaction.lock().running.retain(|other| !Arc::ptr_eq(other, running));
    }

    /// Removes the files of a job that came to nothing. Not after a failed manifest write: it may name them all the same.
    fn discard(&self, ids: &[SstId]) {
        let may_be_named = self.health.is_poisoned() || self.manifest_is_poisoned();
        if !may_be_named || planted::active(Bug::DeletedAfterFailedSync) {
            jobs::discard(&*self.fs, &self.dir, ids, IoCtx::foreground(IoClass::Meta));
        }
    }

    /// For each merge of L0 runs, the share of them that is merged already: the debt sinks while it runs, not only at its end.
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    pub(crate) fn runs_merged_so_far(&self) -> Vec<(KeyspaceId, f64)> {
        let compactions = self.compaction.lock();
        let merged =
            |r: &Arc<Running>| (r.keyspace, r.runs_of_l0 as f64 * r.progress.load(Ordering::Relaxed) as f64 / 1e3);
        compactions.running.iter().map(merged).collect()
    }

    // ---------------------------------------------------------------- users' requests

    /// Asks for a compaction of a range and waits for its end.
    pub(crate) fn compact(
        &self,
        keyspace: &Arc<KeyspaceCore>,
        request: ManualRequest,
        cancelled: Box<dyn Fn() -> bool + Send + Sync>,
    ) -> Result<()> {
        let manual = Arc::new(Manual {
            keyspace: keyspace.id,
            request,
            cancelled,
            done: AtomicBool::new(false),
            result: Mutex::new(None),
        });
        self.compaction.lock().manual.push(Arc::clone(&manual));
        self.wake_compactions();
        let waited = self.wait(|| {
            manual.done.load(Ordering::Acquire)
                || (manual.cancelled)()
                || keyspace.dropped.load(Ordering::Acquire)
                || self.health.check_write().is_err()
                // A full disk must not hang who asks.
                || self.health.background().is_some()
        });
        self.compaction.lock().manual.retain(|other| !Arc::ptr_eq(other, &manual));
        self.wake_compactions();
        waited?;
        if manual.done.load(Ordering::Acquire) {
            return match manual.result.lock().take() {
                None => Ok(()),
                Some(error) => Err(error),
            };
        }
        self.health.check_write()?;
        if let Some(error) = self.health.background() {
            return Err(error);
        }
        Err(Error::new(ErrorKind::Cancelled, "the compaction was cancelled; what it had done so far stays"))
    }

    /// Waits until nothing is to be flushed or merged.
    pub(crate) fn wait_idle(&self) -> Result<()> {
        self.wake(FLUSH_LANE);
        self.wake_compactions();
        self.wait(|| self.health.check_write().is_err() || self.health.background().is_some() || self.is_idle())?;
        if self.is_idle() {
            return Ok(());
        }
        self.health.check_write()?;
        self.health.background().map_or(Ok(()), Err)
    }

    fn is_idle(&self) -> bool {
        self.settled_epoch.load(Ordering::Acquire) == self.work_epoch.load(Ordering::Acquire)
            && self.keyspaces.load().values().all(|keyspace| keyspace.view.load().immutables.is_empty())
    }

    /// Throws away what the lanes are in the middle of. Called when they have ended.
    pub(crate) fn abandon_jobs(&self) {
        if let Some(active) = self.flush.lock().active.take() {
            self.discard(active.job.ids());
        }
        for lane in &self.merges {
            if let Some(active) = lane.lock().active.take() {
                self.discard(active.job.ids());
                self.tell_abandoned(&active, Ending::Cancelled("the store was closed".to_owned()));
                self.unregister(&active.running);
                active.give_back();
            }
        }
    }

    fn since(&self, began_ns: u64) -> Duration {
        Duration::from_nanos(self.clock.mono_ns().saturating_sub(began_ns))
    }

    fn new_job_id(&self) -> JobId {
        JobId(self.next_job.fetch_add(1, Ordering::Relaxed))
    }
}

/// What is to be done next in a keyspace.
struct Next {
    plan: Plan,
    /// Bytes that it may take for a time; 0 without a budget.
    reserved: u64,
    manual: Option<Arc<Manual>>,
}

/// What became of a plan.
enum Chosen {
    Applied,
    Merge(Box<ActiveMerge>),
}

impl Running {
    fn new(
        keyspace: KeyspaceId,
        plan: Plan,
        decision: Arc<Decision>,
        began_ns: u64,
        manual: Option<Arc<Manual>>,
    ) -> Running {
        let from_l0 = plan.inputs.iter().filter(|input| input.level == LevelId(0)).count();
        let runs_of_l0 = if plan.output.level == LevelId(0) { from_l0.saturating_sub(1) } else { from_l0 };
        Running {
            keyspace,
            plan: Arc::new(plan),
            decision,
            began_ns,
            reserved: 0,
            runs_of_l0: to_u64(runs_of_l0),
            progress: AtomicU64::new(0),
            manual,
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1000")]
    fn set_progress(&self, share: f64) {
        self.progress.store((share * 1e3) as u64, Ordering::Relaxed);
    }
}

/// How a job ended that ended with `error`.
fn ending_of(error: &Error) -> Ending {
    match error.kind() {
        ErrorKind::Cancelled => Ending::Cancelled(error.to_string()),
        _ => Ending::Failed(error.to_string()),
    }
}

impl Manual {
    fn end(&self, error: Option<Error>) {
        *self.result.lock() = error;
        self.done.store(true, Ordering::Release);
    }
}

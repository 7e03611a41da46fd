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

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;

use super::core::{Core, KeyspaceCore, Trouble};
use super::read::MemSlot;
use super::strategy::{Steering, words};
use crate::compaction::decision::{Decision, Ending};
use crate::compaction::filters::{MAX_BITS, NewFiles};
use crate::compaction::oldest::Loss;
use crate::compaction::plan::{Action, Place, Plan, PlanInput};
use crate::compaction::planner::ManualRequest;
use crate::compaction::view::{LsmView, Sizes};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::io::{IoCtx, IoMeter, JobId, LaneStep, WorkClass};
use crate::jobs::flush::FlushJob;
use crate::jobs::merge::MergeJob;
use crate::jobs::{JobCx, Outcome};
use crate::key::SeqNo;
use crate::num::{to_f64, to_u64};
use crate::schedule::MergeProgress;
use crate::schedule::keyspaces::Turns;
use crate::sst::TableOptions;
use crate::version::{KeyspaceId, LevelId, SstId, Version};

mod flush;
mod installs;
mod log;
mod merges;
mod plans;
mod requests;
mod retry;
mod set;

pub use set::MergeLimit;
pub(crate) use set::MergeSet;

/// Records that a step of a job consumes, in bytes: about half a millisecond of work; less where memtables are small, so that
/// jobs interleave in a simulation as they do in life.
fn step_bytes(keyspace: &KeyspaceCore) -> u64 {
    (keyspace.options.memtable_bytes / 4).clamp(1 << 10, 256 << 10)
}

/// The flush under way and when to try again after a failure.
#[derive(Default)]
pub(crate) struct FlushState {
    active: Option<ActiveFlush>,
    retry: retry::Retry,
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
    /// Who was asked when, which decides who is asked next.
    turns: Turns,
    /// How far estimates of what merges write are trusted, in percent beyond [`FIRST_TRUST_PERCENT`].
    distrust_percent: u64,
}

/// What a policy saw, but for the time and the round-robin cursors, which move with what runs.
struct Seen {
    version: Arc<Version>,
    running: Vec<Arc<Plan>>,
    /// The oldest and the newest.
    snapshots: (Option<SeqNo>, Option<SeqNo>),
    /// The policy in force: another one deserves to be asked.
    steering: Arc<Steering>,
}

impl PartialEq for Seen {
    fn eq(&self, other: &Seen) -> bool {
        Arc::ptr_eq(&self.version, &other.version)
            && self.running.len() == other.running.len()
            && self.running.iter().zip(&other.running).all(|(a, b)| Arc::ptr_eq(a, b))
            && self.snapshots == other.snapshots
            && Arc::ptr_eq(&self.steering, &other.steering)
    }
}

impl Compactions {
    /// What runs in a keyspace.
    pub(super) fn of(&self, keyspace: KeyspaceId) -> impl Iterator<Item = &Arc<Running>> {
        self.running.iter().filter(move |running| running.keyspace == keyspace)
    }

    /// Bytes of input that merges have still to read, of one keyspace or of all.
    pub(super) fn left_bytes(&self, keyspace: Option<KeyspaceId>) -> u64 {
        let counts = |running: &&Arc<Running>| {
            running.plan.action == Action::Merge && keyspace.is_none_or(|keyspace| running.keyspace == keyspace)
        };
        self.running.iter().filter(counts).map(|running| running.left_bytes()).sum()
    }

    /// What runs in a keyspace, with its records, and the round-robin cursors.
    pub(super) fn jobs_of(&self, keyspace: KeyspaceId) -> Jobs {
        let running = || self.running.iter().filter(|running| running.keyspace == keyspace);
        Jobs {
            plans: running().map(|running| running.rest.load_full()).collect(),
            made: running().flat_map(|running| running.made.lock().clone()).collect(),
            decisions: running().map(|running| Arc::clone(&running.decision)).collect(),
            cursors: self.cursors.get(&keyspace).cloned().unwrap_or_default(),
        }
    }
}

/// What runs in a keyspace.
pub(super) struct Jobs {
    pub(super) plans: Vec<Arc<Plan>>,
    /// What they have put into the tree already.
    pub(super) made: Vec<SstId>,
    /// Their records, in the same order.
    pub(super) decisions: Vec<Arc<Decision>>,
    /// The round-robin cursors.
    pub(super) cursors: Vec<Bytes>,
}

/// A compaction that has been chosen and has not taken effect yet.
pub(super) struct Running {
    keyspace: KeyspaceId,
    /// As it was chosen.
    plan: Arc<Plan>,
    /// What is left of it: with progressive release its inputs become fewer while it runs. Changed under the lock of [`Compactions`], so
    /// that a planner never sees a tree without the plans that go with it.
    rest: ArcSwap<Plan>,
    /// Output files that are in the tree already: nobody takes them before the job has ended. A leaf in the order of locks.
    made: Mutex<Vec<SstId>>,
    /// Bytes that it may take for a time; 0 without a budget.
    reserved: u64,
    decision: Arc<Decision>,
    /// When picking began, by the monotonic clock.
    began_ns: u64,
    /// Runs that will be gone from L0 when it ends, and are not yet.
    runs_of_l0: AtomicU64,
    /// Bytes of its input that are merged, in all spans.
    progress: AtomicU64,
    /// Bytes of the output that its spans have made.
    made_bytes: AtomicU64,
    /// A span of it has come to nothing, and the others are not wanted any more.
    given_up: AtomicBool,
    /// What the scheduler knows of it.
    facts: MergeProgress,
    /// What it drops that was not deleted.
    loss: Loss,
    /// The wall time from which it goes before all else, in milliseconds since 1970: a date of `delete_by` depends on it.
    urgent_ms: Option<u64>,
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

/// A merge under way, or one [span](crate::jobs::spans) of it: what a lane takes from the [`MergeSet`], steps, and puts back.
struct ActiveMerge {
    keyspace: Arc<KeyspaceCore>,
    running: Arc<Running>,
    /// Its place among the spans of its merge, which ascend by key.
    span: usize,
    job: MergeJob,
    /// Bytes of its input that are merged.
    read: u64,
    /// Bytes of its output.
    made: u64,
    /// Time in steps.
    stepped_ns: u64,
    /// Time in their file calls.
    meter: Arc<IoMeter>,
    /// Bytes of its output that the keyspace's metrics know of.
    written: u64,
    /// Bytes of its output that are part of the tree. Only a merge of one span releases its inputs while it runs.
    installed: u64,
    /// Records in them.
    installed_entries: u64,
    /// Their files.
    installed_files: u64,
    /// Bytes that are dead, about, in files of which it has released a part.
    dead: u64,
}

/// A merge of which every span has ended.
struct EndedMerge {
    /// In key order; one at least.
    #[expect(clippy::vec_box, reason = "they are boxed in their slots, and large")]
    spans: Vec<Box<ActiveMerge>>,
    /// What they made together, or why the first of them came to nothing.
    outcome: Result<Outcome>,
}

impl ActiveMerge {
    /// Tells the merge how far this span is now: bytes of its input. Returns how many more those are.
    fn note_read(&mut self, read: u64) -> u64 {
        let more = read.saturating_sub(self.read);
        self.read += more;
        self.running.progress.fetch_add(more, Ordering::Relaxed);
        more
    }

    /// Tells the merge and the metrics how much of its output there is now.
    fn note_written(&mut self) {
        let made = self.job.bytes_so_far().1;
        // Wraps: what is known of a file only about may become less.
        self.running.made_bytes.fetch_add(made.wrapping_sub(self.made), Ordering::Relaxed);
        self.made = made;
        let more = made.saturating_sub(self.written);
        if more > 0 {
            self.written += more;
            self.keyspace.metrics.lock().written(more);
        }
    }

    /// Nobody wants it to go on: its next step ends it.
    fn is_unwanted(&self) -> bool {
        self.keyspace.dropped.load(Ordering::Acquire)
            || self.running.given_up.load(Ordering::Acquire)
            || self.running.manual.as_ref().is_some_and(|manual| (manual.cancelled)())
    }

    /// What it takes for a time, as far as the metrics know: output that is not in the tree, and what of its inputs is dead but not gone.
    fn temporary(&self) -> u64 {
        self.written.saturating_sub(self.installed) + self.dead
    }

    /// It has ended: its output is part of the tree, or gone.
    fn give_back(&self) {
        self.keyspace.metrics.lock().temporary_bytes -= self.temporary();
    }
}

impl Core {
    /// Does a step of a lane. If it panics, what it was at is lost, and those who wait for it would wait for ever: the store takes no more writes, and
    /// they are told. Then the panic goes on and ends the lane: its thread, or the simulation, which must not take it for a failure of the disk.
    pub(crate) fn guard(&self, step: impl FnOnce() -> LaneStep) -> LaneStep {
        catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| {
            self.counters.background_errors.add(1);
            self.health.poison_by_panic(&words(&*panic));
            self.notify();
            resume_unwind(panic)
        })
    }

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
        JobCx {
            fs: &*self.fs,
            dir: &self.dir,
            clock: &*self.clock,
            new_id,
            direct,
            force_every_bytes: self.options.force_every_bytes,
            ctx,
            meter,
            obsolete: self.tables.purge_queue(),
        }
    }

    /// Takes bandwidth for what a step of a merge has moved; says from when on it may go on, by the monotonic clock.
    fn take_bandwidth(&self, bytes: u64, class: WorkClass) -> u64 {
        match self.limiter.take(bytes, class) {
            Duration::ZERO => 0,
            wait => self.clock.mono_ns().saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)),
        }
    }

    fn put_off(&self, doing: &str, error: &Error, trouble: Trouble) {
        self.counters.background_errors.add(1);
        if error.kind() == ErrorKind::Poisoned {
            self.health.poison(error);
        }
        if error.kind() == ErrorKind::NoSpace {
            self.give_up_spares();
        }
        self.health.set_trouble(trouble, error.clone());
        self.tell(&Event::Error { doing: doing.to_owned(), error: error.clone() });
        self.notify();
    }

    /// Throws away what the lanes are in the middle of. Called when they have ended, but for the one whose listener calls it.
    pub(crate) fn abandon_jobs(&self) {
        // If that one is the flush lane, it holds the lock, and tells of a flush that has ended.
        if let Some(active) = self.flush.try_lock().and_then(|mut flush| flush.active.take()) {
            self.discard(active.job.ids());
        }
        let closed = Error::new(ErrorKind::Cancelled, "the store was closed");
        let merges = self.merges.lock().end_all(&closed);
        for EndedMerge { spans, .. } in merges {
            self.withdraw(&spans);
            self.abandon(&spans, ending_of(&closed));
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
    /// What the scheduler may know of it; the job's number comes later.
    facts: MergeProgress,
    /// What it drops that was not deleted.
    loss: Loss,
    /// From when on a date depends on it.
    urgent_ms: Option<u64>,
    /// Bytes that it may take for a time; 0 without a budget.
    reserved: u64,
    manual: Option<Arc<Manual>>,
}

/// What the planner wants in a keyspace.
enum Wanted {
    Nothing,
    Begin(Box<Next>),
    /// What has to wait for space. If readers hold it: what is told then.
    Later(Option<Error>),
}

/// What became of the plans of all keyspaces.
enum Chosen {
    /// There was none that could begin. If readers hold the space that one needs: what is told then.
    Nothing(Option<Error>),
    /// One that needed no merge, in this keyspace.
    Applied(KeyspaceId),
    /// A merge, by its spans.
    Merge(VecDeque<Box<ActiveMerge>>),
}

impl Running {
    fn new(keyspace: KeyspaceId, next: Next, decision: Arc<Decision>, began_ns: u64) -> Running {
        let Next { plan, facts, loss, reserved, urgent_ms, manual } = next;
        let runs_of_l0 = AtomicU64::new(runs_of_l0(&plan));
        let plan = Arc::new(plan);
        Running {
            keyspace,
            facts: MergeProgress { job: decision.job, ..facts },
            loss,
            urgent_ms,
            rest: ArcSwap::new(Arc::clone(&plan)),
            made: Mutex::default(),
            plan,
            decision,
            began_ns,
            reserved,
            runs_of_l0,
            progress: AtomicU64::new(0),
            made_bytes: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
            manual,
        }
    }

    fn left_bytes(&self) -> u64 {
        self.facts.input_bytes - self.done_bytes()
    }

    /// Of the runs that it takes out of L0, and that are there still, those that are merged, in fractions.
    pub(super) fn runs_merged_so_far(&self) -> f64 {
        to_f64(self.runs_of_l0.load(Ordering::Relaxed)) * to_f64(self.done_bytes())
            / to_f64(self.facts.input_bytes.max(1))
    }

    /// Its number among the store's jobs and the bytes that it has still to read, if it leaves the tree with fewer runs.
    pub(super) fn relief(&self) -> Option<(u64, u64)> {
        (self.facts.fewer_runs > 0 && self.plan.action == Action::Merge).then(|| (self.facts.job, self.left_bytes()))
    }

    /// Bytes of its input that are merged.
    fn done_bytes(&self) -> u64 {
        self.progress.load(Ordering::Relaxed).min(self.facts.input_bytes)
    }
}

/// Runs that will be gone from L0 when `plan` is carried out.
fn runs_of_l0(plan: &Plan) -> u64 {
    let from_l0 = plan.inputs.iter().filter(|input| input.level == LevelId(0)).count();
    to_u64(if plan.output.level == LevelId(0) { from_l0.saturating_sub(1) } else { from_l0 })
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

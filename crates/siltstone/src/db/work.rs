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

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::core::{Core, KeyspaceCore, Trouble};
use super::read::MemSlot;
use super::strategy::Steering;
use crate::compaction::decision::{Decision, Ending};
use crate::compaction::filters::{MAX_BITS, NewFiles};
use crate::compaction::plan::{Place, Plan, PlanInput};
use crate::compaction::planner::ManualRequest;
use crate::compaction::view::{LsmView, Sizes};
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::io::{IoClass, IoCtx, IoMeter, JobId};
use crate::jobs::JobCx;
use crate::jobs::flush::FlushJob;
use crate::jobs::merge::MergeJob;
use crate::key::SeqNo;
use crate::num::to_u64;
use crate::schedule::keyspaces::Turns;
use crate::sst::TableOptions;
use crate::version::{KeyspaceId, LevelId, SstId, Version};

mod flush;
mod log;
mod merges;
mod requests;

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
    /// Who was asked when, which decides who is asked next.
    turns: Turns,
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

//! The merges that are under way, shared by the compaction lanes.
//!
//! A merge belongs to no lane: a lane takes the one that the scheduler says, steps it, and puts it back. So there can be more merges than
//! lanes, a small one can go before a large one at the border of a step, and a merge keeps its number, its files and its place in the
//! tree whoever steps it.
//!
//! Lanes share a large merge: each of its [spans](crate::jobs::spans) is stepped by itself, and the last to end ends the merge. To the
//! scheduler it is one.
//!
//! How many there are: as many as lanes, wherever they write, and beside them one for each level of a keyspace that no merge writes to yet, so
//! that whatever the scheduler prefers is there to be preferred.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::retry::Retries;
use super::{ActiveMerge, EndedMerge, Running};
use crate::error::{Error, Result};
use crate::jobs::Outcome;
use crate::num::to_usize;
use crate::schedule::turn::{self, Turn};
use crate::schedule::{MergeProgress, Scheduler, Share, Silk, Why, silk};

/// Merges beyond the number of lanes that exist at most: each that has begun takes read-ahead buffers for its inputs.
pub(super) const MOST_WAITING: usize = 16;

/// Readers that hold the space which the next merge needs are waited for so long before anybody is told: most hold a tree for the time of a
/// lookup, and the lane that ends a merge for the time of a few calls.
const PATIENCE_NS: u64 = 1_000_000_000;

/// What the compaction lanes share.
pub(crate) struct MergeSet {
    scheduler: Scheduler,
    lanes: u32,
    slots: Vec<Slot>,
    /// What the scheduler sees, what it answers, and who had how much: by slot.
    progress: Vec<MergeProgress>,
    shares: Vec<Share>,
    turns: Vec<Turn>,
    clock: u64,
    /// A bit for each lane that found nothing to step and has gone to sleep.
    idle: u64,
    /// The epoch of work and the wall time, in milliseconds, at which the planner had nothing more to begin.
    pub(super) planned: (u64, u64),
    pub(super) retries: Retries,
    /// Since when readers have held the space that the next merge needs, by the monotonic clock.
    held_since_ns: Option<u64>,
    foreground: Foreground,
}

struct Slot {
    running: Arc<Running>,
    /// The spans that no lane steps; who has waited longest comes first.
    waiting: VecDeque<Box<ActiveMerge>>,
    /// How many lanes step others.
    stepping: usize,
    /// The spans that have ended, and how.
    ended: Vec<(Box<ActiveMerge>, Result<Outcome>)>,
    /// It has taken bandwidth that is there from this moment on.
    paid_until_ns: u64,
    limit: MergeLimit,
    /// Its own rate allows the next step from this moment on.
    limited_until_ns: u64,
}

/// What a user allows a merge.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MergeLimit {
    /// Bytes of its input a second at most; 0 is no limit of its own.
    pub rate_bytes_per_s: u64,
    /// It does not step at all. Whoever waits for what it would do waits, too; a cancelled one and one whose keyspace is dropped goes all the same.
    pub paused: bool,
}

/// What SILK's scheduler measures: how much of the device the foreground takes.
#[derive(Default)]
struct Foreground {
    looked_ns: u64,
    bytes: u64,
    /// What deep merges get together, in bytes a second; 0 is no limit.
    rate: u64,
    /// Their rate allows the next step from this moment on.
    deep_until_ns: u64,
}

/// What a lane is to do.
pub(super) enum Choice {
    /// Step this merge. And whether another lane could step another one.
    Step(Box<ActiveMerge>, Share, bool),
    /// Nothing before this moment: what may step waits for bandwidth.
    At(u64),
    /// Nothing.
    Nothing,
}

impl MergeSet {
    pub(crate) fn new(scheduler: Scheduler, lanes: u32) -> MergeSet {
        MergeSet {
            scheduler,
            lanes,
            slots: Vec::new(),
            progress: Vec::new(),
            shares: Vec::new(),
            turns: Vec::new(),
            clock: 0,
            idle: 0,
            planned: (0, 0),
            retries: Retries::default(),
            held_since_ns: None,
            foreground: Foreground::default(),
        }
    }

    pub(crate) fn scheduler(&self) -> Scheduler {
        self.scheduler
    }

    pub(crate) fn set_scheduler(&mut self, scheduler: Scheduler) {
        self.scheduler = scheduler;
        self.foreground = Foreground::default();
    }

    /// Limits a merge; false if there is none of this number.
    pub(crate) fn limit(&mut self, job: u64, limit: MergeLimit) -> bool {
        let slot = self.slots.iter_mut().find(|slot| slot.running.facts.job == job);
        slot.map(|slot| (slot.limit, slot.limited_until_ns) = (limit, 0)).is_some()
    }

    /// The budget has changed: what was waited for is out of date.
    pub(crate) fn forget_debts(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.paid_until_ns = 0);
    }

    /// Notes whether readers hold the space that the next merge needs; says whether they have for longer than one waits for them.
    pub(super) fn note_held(&mut self, held: bool, now_ns: u64) -> bool {
        self.held_since_ns = held.then(|| self.held_since_ns.unwrap_or(now_ns));
        self.is_held_too_long(now_ns)
    }

    /// Whether readers hold the space for longer than one waits for them.
    pub(super) fn is_held_too_long(&self, now_ns: u64) -> bool {
        self.held_since_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= PATIENCE_NS)
    }

    /// How much longer readers are waited for, if they are.
    pub(super) fn patience(&self, now_ns: u64) -> Option<Duration> {
        let until_ns = self.held_since_ns?.saturating_add(PATIENCE_NS);
        (now_ns < until_ns).then(|| Duration::from_nanos(until_ns - now_ns))
    }

    pub(super) fn has_room(&self) -> bool {
        self.slots.len() < to_usize(u64::from(self.lanes)) + MOST_WAITING
    }

    /// Adds a merge, by its spans.
    pub(super) fn add(&mut self, spans: VecDeque<Box<ActiveMerge>>) {
        let Some(running) = spans.front().map(|span| Arc::clone(&span.running)) else { return };
        self.progress.push(running.facts);
        self.shares.push(Share::FULL);
        self.turns.push(Turn::default());
        let limit = MergeLimit::default();
        self.slots.push(Slot {
            running,
            waiting: spans,
            stepping: 0,
            ended: Vec::new(),
            paid_until_ns: 0,
            limit,
            limited_until_ns: 0,
        });
    }

    /// What lane `lane` does at this moment. `foreground_bytes` counts what users have moved so far. A function of its own, so that
    /// `benches/records.rs` can count it.
    #[inline(never)]
    pub(super) fn choose(
        &mut self,
        lane: usize,
        now_ns: u64,
        now_ms: u64,
        foreground_bytes: impl FnOnce() -> u64,
    ) -> Choice {
        if let Scheduler::Silk(silk) = &self.scheduler {
            self.foreground.look(silk, now_ns, foreground_bytes);
        }
        self.look(now_ns, now_ms);
        let free = |at: usize| !self.slots[at].waiting.is_empty() && self.slots[at].paid_until_ns <= now_ns;
        let (next, is_more) = turn::next(&mut self.turns, &self.shares, &mut self.clock, free);
        if let Some(at) = next
            && let slot = &mut self.slots[at]
            && let Some(merge) = slot.waiting.pop_front()
        {
            slot.stepping += 1;
            return Choice::Step(merge, self.shares[at], is_more || !slot.waiting.is_empty());
        }
        self.idle |= 1 << lane;
        let resumes = |(at, slot): (usize, &Slot)| {
            let limited = self.progress[at].held && !slot.limit.paused;
            let waits = !slot.waiting.is_empty() && (self.shares[at].weight > 0 || limited);
            let deep_until_ns = if silk::is_deep(&self.progress[at]) { self.foreground.deep_until_ns } else { 0 };
            waits.then_some(slot.paid_until_ns.max(slot.limited_until_ns).max(deep_until_ns))
        };
        self.slots.iter().enumerate().filter_map(resumes).min().map_or(Choice::Nothing, Choice::At)
    }

    /// Asks the scheduler.
    fn look(&mut self, now_ns: u64, now_ms: u64) {
        for (slot, progress) in self.slots.iter().zip(&mut self.progress) {
            *progress = slot.running.progress_at(now_ms);
            // Its next step ends it and gives its files free.
            let unwanted = slot.waiting.front().is_some_and(|merge| merge.is_unwanted());
            progress.urgent |= unwanted;
            let deep_waits = self.foreground.deep_until_ns > now_ns && silk::is_deep(progress);
            progress.held = !unwanted && (slot.limit.paused || slot.limited_until_ns > now_ns || deep_waits);
        }
        self.scheduler.next(&self.progress, self.lanes, &mut self.shares);
    }

    /// Takes a merge back that has stepped. A function of its own, as `choose` is.
    #[inline(never)]
    pub(super) fn put_back(&mut self, merge: Box<ActiveMerge>, step: Progressed, now_ns: u64) {
        let Some(at) = self.slots.iter().position(|slot| Arc::ptr_eq(&slot.running, &merge.running)) else { return };
        let Progressed { bytes, share, paid_until_ns } = step;
        self.turns[at].stepped(bytes, share);
        let slot = &mut self.slots[at];
        slot.stepping -= 1;
        slot.paid_until_ns = slot.paid_until_ns.max(paid_until_ns);
        slot.limited_until_ns = later(slot.limited_until_ns, now_ns, bytes, slot.limit.rate_bytes_per_s);
        slot.waiting.push_back(merge);
        if silk::is_deep(&self.progress[at]) {
            let foreground = &mut self.foreground;
            foreground.deep_until_ns = later(foreground.deep_until_ns, now_ns, bytes, foreground.rate);
        }
    }

    /// Notes how a span has ended that a lane has stepped. If it was the last: the merge, which stays a while, with nothing to step.
    pub(super) fn end(&mut self, span: Box<ActiveMerge>, outcome: Result<Outcome>) -> Option<EndedMerge> {
        let slot = self.slots.iter_mut().find(|slot| Arc::ptr_eq(&slot.running, &span.running))?;
        slot.stepping -= 1;
        slot.end(span, outcome);
        slot.take_ended()
    }

    /// Ends, with an error, all that no lane steps. Merges that lanes step a span of are ended by these.
    pub(super) fn end_all(&mut self, error: &Error) -> Vec<EndedMerge> {
        for slot in &mut self.slots {
            while let Some(span) = slot.waiting.pop_front() {
                slot.end(span, Err(error.clone()));
            }
        }
        let merges: Vec<_> = self.slots.iter_mut().filter_map(Slot::take_ended).collect();
        merges.iter().for_each(|merge| self.remove(&merge.spans[0].running));
        merges
    }

    /// Forgets a merge that has ended.
    pub(super) fn remove(&mut self, running: &Arc<Running>) {
        if let Some(at) = self.slots.iter().position(|slot| Arc::ptr_eq(&slot.running, running)) {
            self.slots.remove(at);
            self.progress.remove(at);
            self.shares.remove(at);
            self.turns.remove(at);
        }
    }

    /// A lane that has gone to sleep, if there is one; it is counted as awake from now on.
    pub(super) fn sleeper(&mut self) -> Option<usize> {
        let lane = self.idle.trailing_zeros();
        self.idle &= !1u64.checked_shl(lane)?;
        usize::try_from(lane).ok()
    }

    /// This lane is awake.
    pub(super) fn awake(&mut self, lane: usize) {
        self.idle &= !(1 << lane);
    }

    /// Why each merge steps or waits, by its job's number.
    pub(crate) fn whys(&mut self, now_ns: u64, now_ms: u64) -> Vec<(MergeProgress, Why)> {
        self.look(now_ns, now_ms);
        self.progress.iter().zip(&self.shares).map(|(progress, share)| (*progress, share.why)).collect()
    }
}

impl Slot {
    fn end(&mut self, span: Box<ActiveMerge>, outcome: Result<Outcome>) {
        if outcome.is_err() {
            self.running.given_up.store(true, Ordering::Release);
        }
        self.ended.push((span, outcome));
    }

    /// All spans, if the last of them has ended.
    fn take_ended(&mut self) -> Option<EndedMerge> {
        if self.stepping > 0 || !self.waiting.is_empty() || self.ended.is_empty() {
            return None;
        }
        let mut ended = std::mem::take(&mut self.ended);
        // The first error is the reason; others followed from it.
        let failed = ended.iter().find_map(|(_, outcome)| outcome.as_ref().err()).cloned();
        ended.sort_by_key(|(span, _)| span.span);
        let (spans, outcomes): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
        let outcome = failed.map_or_else(|| Ok(outcomes.into_iter().flatten().sum()), Err);
        Some(EndedMerge { spans, outcome })
    }
}

/// A step of a merge.
pub(super) struct Progressed {
    /// Bytes of its input.
    pub(super) bytes: u64,
    /// What the scheduler had given it.
    pub(super) share: Share,
    /// It waits for bandwidth until then.
    pub(super) paid_until_ns: u64,
}

/// When a rate that was used up until `until_ns` allows more, once `bytes` are taken; 0 is no rate.
fn later(until_ns: u64, now_ns: u64, bytes: u64, rate_bytes_per_s: u64) -> u64 {
    if rate_bytes_per_s == 0 {
        return 0;
    }
    let cost_ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate_bytes_per_s);
    until_ns.max(now_ns).saturating_add(u64::try_from(cost_ns).unwrap_or(u64::MAX))
}

impl Foreground {
    /// Measures the load of the foreground if it is time to.
    fn look(&mut self, silk: &Silk, now_ns: u64, bytes: impl FnOnce() -> u64) {
        let since_ns = now_ns.saturating_sub(self.looked_ns);
        if silk.device_bytes_per_s == 0 || since_ns < u64::from(silk.sample_ms) * 1_000_000 {
            return;
        }
        let bytes = bytes();
        if self.looked_ns > 0 {
            let load = u128::from(bytes.saturating_sub(self.bytes)) * 1_000_000_000 / u128::from(since_ns.max(1));
            self.rate = silk.rate(self.rate, u64::try_from(load).unwrap_or(u64::MAX));
        }
        (self.looked_ns, self.bytes) = (now_ns, bytes);
    }
}

impl Running {
    /// As the scheduler sees it at wall time `now_ms`.
    fn progress_at(&self, now_ms: u64) -> MergeProgress {
        let done = self.progress.load(Ordering::Relaxed);
        let input_bytes = self.facts.input_bytes;
        MergeProgress {
            left_bytes: input_bytes.saturating_sub(done).max(1),
            urgent: self.urgent_ms.is_some_and(|at_ms| at_ms <= now_ms),
            held: false,
            ..self.facts
        }
    }
}

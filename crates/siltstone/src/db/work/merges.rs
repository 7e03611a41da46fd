//! The compaction lanes: they step the merge that the scheduler says, and plan when there may be more to begin.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::core::{COMPACTION_LANE, Core, Trouble};
use super::set::{Choice, Progressed};
use super::{ActiveMerge, Chosen, EndedMerge, ending_of, step_bytes};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{IoClass, IoCtx, JobId, LaneStep};
use crate::jobs::Outcome;
use crate::jobs::merge::MergeStep;
use crate::schedule::Share;
use crate::version::KeyspaceId;

/// How far a step came.
enum Stepped {
    /// So many bytes of input further.
    More(u64),
    /// This span is done.
    Done(Outcome),
}

impl Core {
    /// A step of compaction lane `lane`: of the merge that the scheduler says, or of planning when there may be more to begin. A function
    /// of its own, so that `benches/records.rs` can count it.
    #[inline(never)]
    pub(crate) fn compaction_step(&self, lane: usize) -> LaneStep {
        if !self.may_work() {
            return LaneStep::Idle;
        }
        let now_ns = self.clock.mono_ns();
        let epoch = self.work_epoch.load(Ordering::Acquire);
        let mut set = self.merges.lock();
        set.awake(lane);
        let may_plan = set.has_room();
        let mut planned = false;
        let now_ms = self.now_ms();
        let (last_epoch, last_ms) = set.planned;
        // Equal views give equal plans, so one lane asks for all.
        // The end of patience may come in the millisecond of the last plan; nobody would look again.
        let has_aged = now_ms != last_ms || set.is_held_too_long(now_ns);
        if may_plan && (last_epoch != epoch || set.retries.is_due(now_ns)) {
            drop(set);
            if let Some(step) = self.plan_step((epoch, now_ms)) {
                return step;
            }
            planned = true;
            set = self.merges.lock();
        }
        let began_ns = if planned { self.clock.mono_ns() } else { now_ns };
        let at_ns = match set.choose(lane, now_ns, now_ms, || self.foreground_bytes()) {
            Choice::Step(merge, share, is_more) => {
                let sleeper = if is_more { set.sleeper() } else { None };
                drop(set);
                self.counters.merge_steps.add(1);
                self.counters.schedule_ns.add(self.clock.mono_ns().saturating_sub(began_ns));
                // There is work for another lane as well.
                if let Some(sleeper) = sleeper {
                    self.wake(COMPACTION_LANE + sleeper);
                }
                self.step_and_put_back(merge, share);
                return LaneStep::Worked;
            }
            Choice::At(at_ns) => Some(at_ns),
            Choice::Nothing => None,
        };
        drop(set);
        // Time alone may have made something due.
        if may_plan
            && !planned
            && has_aged
            && let Some(step) = self.plan_step((epoch, now_ms))
        {
            return step;
        }
        let bandwidth_in = at_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)));
        let due_in = match self.compaction_idle() {
            LaneStep::IdleFor(time) => Some(time),
            _ => None,
        };
        let set = self.merges.lock();
        let (retry_in, held_in) = (set.retries.wait(now_ns), set.patience(now_ns));
        drop(set);
        let waits = [bandwidth_in, retry_in, due_in, held_in];
        waits.into_iter().flatten().min().map_or(LaneStep::Idle, LaneStep::IdleFor)
    }

    /// Bytes that users have moved to and from the disk since the store was opened.
    fn foreground_bytes(&self) -> u64 {
        let block_bytes = u64::from(self.options.keyspace.block_bytes);
        self.counters.log_bytes.get() + self.cache.stats().misses.saturating_mul(block_bytes)
    }

    /// Begins what the planner wants next; none if it wants nothing at this epoch of work and this wall time.
    fn plan_step(&self, at: (u64, u64)) -> Option<LaneStep> {
        let keyspaces = self.keyspaces.load();
        let put_off = self.merges.lock().retries.put_off(self.clock.mono_ns(), |id| keyspaces.contains_key(&id));
        drop(keyspaces);
        match self.choose(&put_off) {
            Ok(Chosen::Nothing(held)) => {
                // What had failed need not be done any more.
                self.health.end_trouble(|trouble| matches!(trouble, Trouble::Merge(id) if !put_off.contains(&id)));
                self.merges.lock().planned = at;
                self.note_held(held);
                return None;
            }
            Ok(Chosen::Applied(keyspace)) => self.job_ended(keyspace, None, Ok(())),
            Ok(Chosen::Merge(spans)) => self.merges.lock().add(spans),
            Err((keyspace, error)) => self.job_ended(keyspace, None, Err(error)),
        }
        Some(LaneStep::Worked)
    }

    /// Readers hold the space that the next merge needs, or do not. When they have for a while, who waits for merges is told. Nothing is tried
    /// again by time: the first file that is given up is an end to the trouble and wakes the lanes.
    fn note_held(&self, held: Option<Error>) {
        let too_long = self.merges.lock().note_held(held.is_some(), self.clock.mono_ns());
        match held {
            None => self.health.end_trouble(|trouble| trouble == Trouble::Space),
            Some(error) if too_long && self.health.trouble(|trouble| trouble == Trouble::Space).is_none() => {
                self.put_off("compaction", &error, Trouble::Space);
            }
            Some(_) => {}
        }
    }

    /// Steps a merge; what is not done then goes back to the others.
    fn step_and_put_back(&self, mut active: Box<ActiveMerge>, share: Share) {
        let outcome = match self.step_merge(&mut active) {
            Ok(Stepped::More(bytes)) => {
                let paid_until_ns = self.take_bandwidth(bytes, active.running.facts.class);
                if !self.health.is_closed() {
                    self.retune();
                    let step = Progressed { bytes, share, paid_until_ns };
                    let now_ns = self.clock.mono_ns();
                    self.merges.lock().put_back(active, step, now_ns);
                    return;
                }
                // Closed by a listener, on this very thread: nobody will step it again.
                Err(Error::new(ErrorKind::Cancelled, "the store was closed"))
            }
            Ok(Stepped::Done(outcome)) => Ok(outcome),
            Err(error) => Err(error),
        };
        let keyspace = active.keyspace.id;
        let ended = self.merges.lock().end(active, outcome);
        // The lane that ends the last span ends the merge.
        if let Some(EndedMerge { spans, outcome }) = ended {
            let ended = outcome.and_then(|outcome| self.install_merge(&spans, &outcome));
            self.job_ended(keyspace, Some(&spans), ended);
        }
    }

    /// A job in `keyspace` has taken effect, or come to nothing; no spans if it was no merge, or was not begun.
    fn job_ended(&self, keyspace: KeyspaceId, spans: Option<&[Box<ActiveMerge>]>, ended: Result<()>) {
        if let Some(spans) = spans {
            self.withdraw(spans);
            self.merges.lock().remove(&spans[0].running);
        }
        match ended {
            Ok(()) => {
                self.merges.lock().retries.forget(keyspace);
                self.health.end_trouble(|trouble| trouble == Trouble::Merge(keyspace));
            }
            Err(error) => {
                if let Some(spans) = spans {
                    self.abandon(spans, ending_of(&error));
                }
                if error.kind() == ErrorKind::Cancelled {
                    self.counters.cancelled.add(1);
                } else {
                    if let Some(manual) = spans.and_then(|spans| spans[0].running.manual.as_ref()) {
                        manual.end(Some(error.clone()));
                    }
                    self.merges.lock().retries.failed(keyspace, self.clock.mono_ns(), &error);
                    self.put_off("compaction", &error, Trouble::Merge(keyspace));
                }
            }
        }
        self.retune();
        self.wake_compactions();
        self.notify();
    }

    /// Steps one span of a merge.
    fn step_merge(&self, active: &mut ActiveMerge) -> Result<Stepped> {
        if active.is_unwanted() {
            return Err(Error::new(ErrorKind::Cancelled, "the compaction was cancelled"));
        }
        let began = self.clock.mono_ns();
        let new_id = || self.new_sst_id();
        let class = IoClass::Compaction(active.running.plan.output.level.0);
        let ctx = IoCtx { class, job: JobId(active.running.decision.job) };
        let cx = self.job_cx(&new_id, self.options.direct.compactions, ctx, &active.meter);
        let linked_before = active.job.linked().bytes;
        let step = active.job.step(&cx, step_bytes(&active.keyspace));
        let stepped_ns = self.clock.mono_ns().saturating_sub(began);
        active.stepped_ns += stepped_ns;
        self.counters.compaction_ns.add(stepped_ns);
        active.note_written();
        let reserved = active.running.reserved;
        // What was released stands beside its replacement until the log lane deletes it.
        let taken = active.running.made_bytes.load(Ordering::Relaxed).saturating_sub(active.installed);
        let released = active.running.plan.input_bytes().saturating_sub(active.running.rest.load().input_bytes());
        if reserved > 0 && taken + released > reserved {
            self.compaction.lock().distrust_percent += 25;
            let taken = taken + released;
            let what = format!("a merge was stopped: it was to take {reserved} bytes at most, and took {taken}");
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        match step? {
            MergeStep::Done(outcome) => {
                let bytes = active.note_read(active.job.input_bytes());
                self.counters.compaction_bytes_stepped.add(bytes);
                // Nobody waits for it any more; the next merge pays.
                self.take_bandwidth(bytes, active.running.facts.class);
                return Ok(Stepped::Done(outcome));
            }
            MergeStep::More => {}
            MergeStep::Part(part) => self.install_part(active, &part)?,
        }
        // What was linked has not been read.
        let linked = active.job.linked().bytes - linked_before;
        let bytes = active.note_read(active.job.bytes_so_far().0).saturating_sub(linked);
        self.counters.compaction_bytes_stepped.add(bytes);
        Ok(Stepped::More(bytes))
    }
}

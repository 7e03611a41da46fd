//! The compaction lanes: what the planner wants next, its merges step by step, and how they become part of the tree.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::super::core::{COMPACTION_LANE, Core, KeyspaceCore, Trouble};
use super::super::space::FIRST_TRUST_PERCENT;
use super::set::{Choice, Progressed};
use super::{ActiveMerge, Chosen, Compactions, Jobs, Next, Retry, Running, Seen, ending_of, step_bytes};
use crate::compaction::CompactionPolicy;
use crate::compaction::deadline::Urgency;
use crate::compaction::decision::{Decision, Ended, Ending};
use crate::compaction::plan::{Action, LawBroken, Plan};
use crate::compaction::planner::{self, ManualStep};
use crate::compaction::view::{LsmView, MAX_LEVELS, Sizes};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::io::{IoClass, IoCtx, IoMeter, JobId, LaneStep};
use crate::jobs::merge::{MergeJob, MergeStep, Part};
use crate::jobs::{self, Outcome};
use crate::num::{to_u64, to_usize};
use crate::planted::{self, Bug};
use crate::schedule::constraint::RunLimits;
use crate::schedule::keyspaces::{self, Candidate};
use crate::schedule::{MergeProgress, Share, WorkClass};
use crate::version::{FileMeta, KeyspaceId, ManifestEdit, SstId, VersionEdit};

/// How far a step came.
enum Stepped {
    /// So many bytes of input further.
    More(u64),
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
        let retry_in = set.retry.wait(now_ns);
        let may_plan = retry_in.is_none() && set.has_room();
        let mut planned = false;
        if may_plan && set.planned_epoch != epoch {
            drop(set);
            if let Some(step) = self.plan_step(epoch) {
                return step;
            }
            planned = true;
            set = self.merges.lock();
        }
        let began_ns = if planned { self.clock.mono_ns() } else { now_ns };
        let at_ns = match set.choose(lane, now_ns, self.now_ms(), || self.foreground_bytes()) {
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
            && let Some(step) = self.plan_step(epoch)
        {
            return step;
        }
        let bandwidth_in = at_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)));
        let due_in = match self.compaction_idle() {
            LaneStep::IdleFor(time) if retry_in.is_none() => Some(time),
            _ => None,
        };
        let waits = [bandwidth_in, retry_in, due_in];
        waits.into_iter().flatten().min().map_or(LaneStep::Idle, LaneStep::IdleFor)
    }

    /// Bytes that users have moved to and from the disk since the store was opened.
    fn foreground_bytes(&self) -> u64 {
        let block_bytes = u64::from(self.options.keyspace.block_bytes);
        self.counters.log_bytes.get() + self.cache.stats().misses.saturating_mul(block_bytes)
    }

    /// Begins what the planner wants next; none if it wants nothing at this `epoch` of work.
    fn plan_step(&self, epoch: u64) -> Option<LaneStep> {
        match self.choose() {
            Ok(None) => {
                // What had failed need not be done any more.
                self.health.set_trouble(Trouble::Compaction, None);
                self.merges.lock().planned_epoch = epoch;
                return None;
            }
            Ok(Some(Chosen::Applied)) => self.job_ended(None, Ok(())),
            Ok(Some(Chosen::Merge(active))) => self.merges.lock().add(active),
            Err(error) => self.job_ended(None, Err(error)),
        }
        Some(LaneStep::Worked)
    }

    /// Steps a merge; what is not done then goes back to the others.
    fn step_and_put_back(&self, mut active: Box<ActiveMerge>, share: Share) {
        let ended = match self.step_merge(&mut active) {
            Ok(Stepped::More(bytes)) => {
                let paid_until_ns = self.take_bandwidth(bytes, active.running.facts.class);
                if self.health.is_closed() {
                    // Closed by a listener, on this very thread: nobody will step it again.
                    return self.job_ended(Some(active), Err(Error::new(ErrorKind::Cancelled, "the store was closed")));
                }
                self.retune();
                let step = Progressed { bytes, share, paid_until_ns };
                let now_ns = self.clock.mono_ns();
                self.merges.lock().put_back(active, step, now_ns);
                return;
            }
            Ok(Stepped::Done(outcome)) => self.install_merge(&active, &outcome),
            Err(error) => Err(error),
        };
        self.job_ended(Some(active), ended);
    }

    /// A job has taken effect, or come to nothing.
    fn job_ended(&self, active: Option<Box<ActiveMerge>>, ended: Result<()>) {
        if let Some(active) = &active {
            self.unregister(&active.running);
            self.merges.lock().remove(&active.running);
            active.give_back();
        }
        match ended {
            Ok(()) => {
                self.merges.lock().retry = Retry::default();
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
                    self.merges.lock().retry.failed(self.clock.mono_ns(), &error);
                    self.put_off("compaction", &error, Trouble::Compaction);
                }
            }
        }
        self.retune();
        self.wake_compactions();
        self.notify();
    }

    fn step_merge(&self, active: &mut ActiveMerge) -> Result<Stepped> {
        if active.is_unwanted() {
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
        let reserved = active.running.reserved;
        // What was released stands beside its replacement until the log lane deletes it.
        let taken = active.job.bytes_so_far().1.saturating_sub(active.installed);
        let released = active.running.plan.input_bytes().saturating_sub(active.running.rest.load().input_bytes());
        if reserved > 0 && taken + released > reserved {
            self.compaction.lock().distrust_percent += 25;
            let taken = taken + released;
            let what = format!("a merge was stopped: it was to take {reserved} bytes at most, and took {taken}");
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        match step? {
            MergeStep::Done(outcome) => {
                let bytes = active.running.left_bytes();
                self.counters.compaction_bytes_stepped.add(bytes);
                // Nobody waits for it any more; the next merge pays.
                self.take_bandwidth(bytes, active.running.facts.class);
                return Ok(Stepped::Done(outcome));
            }
            MergeStep::More => {}
            MergeStep::Part(part) => self.install_part(active, &part)?,
        }
        let before = active.running.done_bytes();
        active.running.progress.store(active.job.bytes_so_far().0, Ordering::Relaxed);
        let bytes = active.running.done_bytes().saturating_sub(before);
        self.counters.compaction_bytes_stepped.add(bytes);
        Ok(Stepped::More(bytes))
    }

    /// What to do next, and the events of the choice.
    fn choose(&self) -> Result<Option<Chosen>> {
        let chosen = self.next_compaction();
        self.tell_untold();
        chosen
    }

    /// Asks the planner of each keyspace, the most urgent first; a plan that needs no merge is applied at once.
    fn next_compaction(&self) -> Result<Option<Chosen>> {
        let mut compactions = self.compaction.lock();
        let epoch = self.work_epoch.load(Ordering::Acquire);
        let mut failed = None;
        for keyspace in &self.in_order(&mut compactions) {
            let (id, began_ns) = (&keyspace.id, self.clock.mono_ns());
            compactions.turns.asked(*id);
            let next = match self.plan_for(&mut compactions, keyspace) {
                Ok(next) => next.filter(|next| self.may_begin(&compactions, next)),
                Err(error) => {
                    // A keyspace of which nothing fits on the disk does not keep the others waiting.
                    failed.get_or_insert(error);
                    continue;
                }
            };
            let Some(next) = next else {
                if compactions.of(*id).next().is_none() && keyspace.settled_epoch.swap(epoch, Ordering::AcqRel) != epoch
                {
                    self.notify();
                }
                continue;
            };
            compactions.turns.end();
            let decision = self.decide(keyspace, &next.plan);
            let running = Arc::new(Running::new(*id, next, decision, began_ns));
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
        if let Some(error) = failed {
            return Err(error);
        }
        if compactions.running.is_empty() && compactions.manual.is_empty() {
            self.settled_epoch.store(epoch, Ordering::Release);
            drop(compactions);
            self.notify();
        }
        Ok(None)
    }

    /// Whether there may be one more merge. Beside as many as lanes one for each level of a keyspace that none writes to, so that the
    /// scheduler has all kinds to choose from; users' requests and dates always. More would hold on to files for nothing.
    fn may_begin(&self, compactions: &Compactions, next: &Next) -> bool {
        let same = |running: &Arc<Running>| {
            running.facts.tree == next.facts.tree && running.facts.to_level == next.facts.to_level
        };
        next.plan.action != Action::Merge
            || compactions.running.len() < to_usize(u64::from(self.options.compaction_threads))
            || next.manual.is_some()
            || next.facts.class == WorkClass::Deadline
            || !compactions.running.iter().any(same)
    }

    /// All keyspaces, in the order in which they are asked.
    fn in_order(&self, compactions: &mut Compactions) -> Vec<Arc<KeyspaceCore>> {
        let keyspaces: Vec<Arc<KeyspaceCore>> = self.keyspaces.load().values().cloned().collect();
        if keyspaces.len() < 2 {
            return keyspaces;
        }
        let candidate = |keyspace: &Arc<KeyspaceCore>| {
            let view = keyspace.view.load();
            let own = compactions.running.iter().filter(|running| running.keyspace == keyspace.id);
            let leaving = own.map(|running| running.runs_of_l0.load(Ordering::Relaxed)).sum();
            let runs = |limit: &AtomicU64| u32::try_from(limit.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
            let (slowdown_runs, stop_runs) = (runs(&keyspace.slow_runs), runs(&keyspace.stop_runs));
            Candidate {
                keyspace: keyspace.id,
                version: Arc::clone(&view.tree.version),
                runs: keyspaces::runs_left(view.tree.runs.len(), view.immutables.len(), leaving),
                limits: RunLimits { expected: slowdown_runs, slowdown_runs, stop_runs },
                deadline: keyspace.deadline(),
            }
        };
        let candidates: Vec<Candidate> = keyspaces.iter().map(candidate).collect();
        let order = compactions.turns.order(&candidates, self.now_ms());
        order.into_iter().map(|at| Arc::clone(&keyspaces[at])).collect()
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
        let Jobs { plans: running, made, cursors, .. } = compactions.jobs_of(keyspace.id);
        let oldest_snapshot = self.snapshots.lock().keys().next().copied();
        let tree = Arc::clone(&keyspace.view.load().tree);
        let version = &tree.version;
        let now_ms = self.now_ms();
        let counters = policy.counts_reads().then(|| tree.reads());
        let view = LsmView::new(version, Sizes::from(&keyspace.options))
            .with_running(if planted::active(Bug::PickedTwice) { &[] } else { &running })
            .with_busy(made)
            .with_cursors(&cursors)
            .with_counters(counters.as_ref())
            .with_oldest_snapshot(oldest_snapshot)
            .with_last_write(keyspace.last_write_ms(now_ms))
            .at(now_ms);
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
                    let plan = self.ask_within(policy, &mut compactions.refused, keyspace, &view, seen);
                    let plan = plan.map(|plan| self.scheduler().shape(policy, &view, plan));
                    (plan.or_else(|| overdue(Urgency::Due)), None)
                }
            },
        };
        let Some(plan) = plan else { return Ok(None) };
        let reserved = compactions.running.iter().map(|running| running.reserved).sum();
        let trust_percent = FIRST_TRUST_PERCENT + compactions.distrust_percent;
        let fitting = self.fit(keyspace, &view, plan, reserved, trust_percent)?;
        Ok(fitting.map(|(plan, reserved)| Next {
            facts: MergeProgress::begin(0, keyspace.id.0, &plan, &view),
            urgent_ms: keyspace.deadline().and_then(|deadline| deadline.urgent_from_ms(plan.files())),
            plan,
            reserved,
            manual,
        }))
    }

    /// What `policy` wants next that the keyspace's constraint allows. What has to wait for room is taken for begun, so that the policy says
    /// what else there is: the merge that makes the room may be among that.
    fn ask_within(
        &self,
        policy: &dyn CompactionPolicy,
        refused: &mut BTreeMap<KeyspaceId, Seen>,
        keyspace: &KeyspaceCore,
        view: &LsmView<'_>,
        seen: Seen,
    ) -> Option<Plan> {
        let constraint = keyspace.options.constraint();
        let running = seen.running.clone();
        let mut plan = self.ask_policy(policy, refused, keyspace, view, seen)?;
        if !constraint.blocks(policy, view, &plan) {
            return Some(plan);
        }
        let mut held = running;
        for _ in 0..MAX_LEVELS {
            held.push(Arc::new(plan));
            let others = view.over(view.version, &held, view.cursors);
            plan = planner::next(policy, &others).ok().flatten()?;
            if !constraint.blocks(policy, view, &plan) {
                return plan.check(view).is_ok().then_some(plan);
            }
        }
        None
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
        let handle = |meta: &Arc<FileMeta>| self.tables.handle(Arc::clone(meta));
        let meter = IoMeter::new(Arc::clone(&self.clock));
        let job = MergeJob::new(plan, &version, self.snapshot_seqs(), options, ctx, &meter, handle);
        Ok(Chosen::Merge(Box::new(ActiveMerge {
            keyspace: Arc::clone(keyspace),
            running,
            job,
            stepped_ns: 0,
            meter,
            written: 0,
            installed: 0,
            installed_entries: 0,
            installed_files: 0,
            dead: 0,
        })))
    }

    /// Puts finished output files into the tree and takes out of the inputs what these hold, in one edit. Wherever a crash comes, the tree
    /// is a legal one: the rest of the merge is due again, or not.
    fn install_part(&self, active: &mut ActiveMerge, part: &Part) -> Result<()> {
        let running = Arc::clone(&active.running);
        let rest = running.rest.load_full();
        let place = rest.output;
        let edit = {
            let stays: BTreeMap<SstId, &Arc<FileMeta>> =
                part.rest.iter().flat_map(|input| &input.files).map(|file| (file.id, file)).collect();
            let mut edit = VersionEdit::default();
            for input in &rest.inputs {
                for file in &input.files {
                    let left = stays.get(&file.id);
                    if left.is_some_and(|left| Arc::ptr_eq(left, file)) {
                        continue;
                    }
                    edit.removed.push((input.level, input.run, file.id));
                    edit.added.extend(left.map(|left| (input.level, input.run, Arc::clone(left))));
                }
            }
            edit.added.extend(part.files.iter().map(|file| (place.level, place.run, Arc::clone(file))));
            edit
        };
        // Busy before they are in the tree; the inputs are cut for planners after they are cut in the tree. In between both are
        // busy, which is always safe.
        {
            let _planning = self.compaction.lock();
            running.made.lock().extend(part.files.iter().map(|file| file.id));
        }
        self.install(&active.keyspace, edit)?;
        active.job.installed();
        let left = Arc::new(Plan { inputs: part.rest.clone(), ..(*rest).clone() });
        {
            let _planning = self.compaction.lock();
            running.runs_of_l0.store(super::runs_of_l0(&left), Ordering::Relaxed);
            running.rest.store(left);
        }
        let bytes: u64 = part.files.iter().map(|file| file.bytes).sum();
        let entries: u64 = part.files.iter().map(|file| file.entries).sum();
        self.counters.compaction_bytes_written.add(bytes);
        self.counters.compaction_entries_written.add(entries);
        {
            let before = active.temporary();
            active.installed += bytes;
            active.installed_entries += entries;
            active.installed_files += to_u64(part.files.len());
            active.dead = part.rest.iter().flat_map(|input| &input.files).map(|file| file.dead_bytes()).sum();
            let mut metrics = active.keyspace.metrics.lock();
            metrics.temporary_bytes = metrics.temporary_bytes + active.temporary() - before;
        }
        // Room for writers, and work for those whose files this was in the way of.
        self.wake_compactions();
        self.notify();
        Ok(())
    }

    fn install_merge(&self, active: &ActiveMerge, outcome: &Outcome) -> Result<()> {
        let (plan, rest) = (&active.running.plan, active.running.rest.load_full());
        let place = plan.output;
        let added = outcome.files.iter().map(|file| (place.level, place.run, Arc::clone(file))).collect();
        self.install(&active.keyspace, VersionEdit { removed: rest.removed(), added })?;
        let entries: u64 = outcome.files.iter().map(|file| file.entries).sum();
        self.counters.compactions.add(1);
        self.counters.compaction_bytes_read.add(outcome.bytes_read);
        self.counters.compaction_bytes_written.add(outcome.bytes_written.saturating_sub(active.installed));
        self.counters.compaction_entries_written.add(entries);
        let ended = Ended {
            bytes_read: outcome.bytes_read,
            bytes_written: outcome.bytes_written,
            files_out: active.installed_files + to_u64(outcome.files.len()),
            entries_read: plan.files().map(|file| file.entries).sum(),
            entries_written: active.installed_entries + entries,
            dropped_versions: outcome.counts.dropped_versions,
            dropped_tombstones: outcome.counts.dropped_tombstones,
            ..self.times(active)
        };
        self.counters.compaction_entries_read.add(ended.entries_read);
        self.counters.dropped_versions.add(ended.dropped_versions);
        self.counters.dropped_tombstones.add(ended.dropped_tombstones);
        self.tell_ended(&active.keyspace, &active.running, ended);
        Ok(())
    }

    /// The record of a plan that is about to be carried out. Counted as `compaction_step` is.
    #[inline(never)]
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

    pub(super) fn tell_abandoned(&self, active: &ActiveMerge, ending: Ending) {
        let (bytes_read, bytes_written) = active.job.bytes_so_far();
        if active.installed > 0 {
            // What it wrote stays, and is counted; so is what that took.
            self.counters.compaction_bytes_read.add(bytes_read);
        }
        let ended = Ended { ending, bytes_read, bytes_written, ..self.times(active) };
        self.tell_ended(&active.keyspace, &active.running, ended);
    }

    /// Keeps the record of a job that has ended, and tells the listener. Counted as `compaction_step` is.
    #[inline(never)]
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
        for handle in before.handles().filter(|handle| removed.contains(&handle.id())) {
            if !kept.contains(&handle.id()) {
                handle.mark_obsolete();
            }
        }
        Ok(())
    }

    /// Whether a running compaction has this file.
    pub(crate) fn is_merging(&self, keyspace: KeyspaceId, file: SstId) -> bool {
        let compactions = self.compaction.lock();
        let mut running = compactions.running.iter().filter(|running| running.keyspace == keyspace);
        running.any(|running| running.rest.load().files().any(|input| input.id == file))
    }

    /// What is left of the plans of the jobs that run in a keyspace, and its round-robin cursors.
    pub(crate) fn compactions_of(&self, keyspace: KeyspaceId) -> (Vec<Arc<Plan>>, Vec<Bytes>) {
        let Jobs { plans, cursors, .. } = self.compaction.lock().jobs_of(keyspace);
        (plans, cursors)
    }

    /// Of the input bytes that running merges of a keyspace still hold, those that are merged already.
    pub(crate) fn merged_bytes(&self, keyspace: KeyspaceId) -> u64 {
        let compactions = self.compaction.lock();
        let running = compactions.running.iter().filter(|running| running.keyspace == keyspace);
        let merged = |running: &Arc<Running>| {
            let released = running.plan.input_bytes().saturating_sub(running.rest.load().input_bytes());
            running.done_bytes().saturating_sub(released)
        };
        running.map(merged).sum()
    }

    /// Notes how many runs a keyspace has, after a change of its tree.
    pub(crate) fn sample_runs(&self, keyspace: &KeyspaceCore) {
        let runs = to_u64(keyspace.view.load().tree.runs.len());
        keyspace.metrics.lock().sample(self.now_ms(), runs);
    }

    pub(super) fn unregister(&self, running: &Arc<Running>) {
        self.compaction.lock().running.retain(|other| !Arc::ptr_eq(other, running));
    }

    /// Removes the files of a job that came to nothing. Not after a failed manifest write: it may name them all the same.
    pub(super) fn discard(&self, ids: &[SstId]) {
        let may_be_named = self.health.is_poisoned() || self.manifest_is_poisoned();
        if !may_be_named || planted::active(Bug::DeletedAfterFailedSync) {
            jobs::discard(&*self.fs, &self.dir, ids, IoCtx::foreground(IoClass::Meta));
        }
    }
}

//! What is compacted next: every keyspace is asked in its turn, and what it wants is begun.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::super::core::{Core, KeyspaceCore};
use super::super::space::{FIRST_TRUST_PERCENT, Fit};
use super::{ActiveMerge, Chosen, Compactions, Jobs, Next, Running, Seen, Wanted, ending_of};
use crate::compaction::CompactionPolicy;
use crate::compaction::deadline::Urgency;
use crate::compaction::decision::Ended;
use crate::compaction::oldest::Loss;
use crate::compaction::plan::{Action, LawBroken, Plan};
use crate::compaction::planner::{self, ManualStep};
use crate::compaction::view::{LsmView, MAX_LEVELS, Sizes};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::io::{IoClass, IoCtx, IoMeter, JobId};
use crate::jobs::merge::MergeJob;
use crate::jobs::spans::Span;
use crate::num::{to_u64, to_usize};
use crate::planted::{self, Bug};
use crate::schedule::keyspaces::Candidate;
use crate::schedule::{MergeProgress, WorkClass};
use crate::version::{FileMeta, KeyspaceId, VersionEdit};

impl Core {
    /// What to do next, and the events of the choice; or what failed, and in which keyspace. Those that are `put_off` are not asked.
    pub(super) fn choose(&self, put_off: &[KeyspaceId]) -> std::result::Result<Chosen, (KeyspaceId, Error)> {
        let chosen = self.next_compaction(put_off);
        self.tell_untold();
        chosen
    }

    /// Asks the planner of each keyspace, the most urgent first; a plan that needs no merge is applied at once.
    fn next_compaction(&self, put_off: &[KeyspaceId]) -> std::result::Result<Chosen, (KeyspaceId, Error)> {
        let mut compactions = self.compaction.lock();
        let epoch = self.work_epoch.load(Ordering::Acquire);
        let (mut failed, mut waits, mut held) = (None, false, None);
        for keyspace in &self.in_order(&mut compactions) {
            let (id, began_ns) = (&keyspace.id, self.clock.mono_ns());
            if put_off.contains(id) {
                waits = true;
                continue;
            }
            compactions.turns.asked(*id);
            let next = match self.plan_for(&mut compactions, keyspace) {
                Ok(Wanted::Begin(next)) => Some(next).filter(|next| self.may_begin(&compactions, next)),
                Ok(Wanted::Nothing) => None,
                // It is not at rest: who waits for this keyspace waits for what is wanted.
                Ok(Wanted::Later(by_readers)) => {
                    waits = true;
                    held = held.or(by_readers);
                    continue;
                }
                Err(error) => {
                    // A keyspace of which nothing fits on the disk does not keep the others waiting.
                    failed.get_or_insert((*id, error));
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
            let running = Arc::new(Running::new(*id, *next, decision, began_ns));
            compactions.running.push(Arc::clone(&running));
            if let Some((level, cursor)) = &running.plan.cursor {
                let cursors = compactions.cursors.entry(*id).or_default();
                if cursors.len() <= level.index() {
                    cursors.resize(level.index() + 1, Bytes::new());
                }
                cursors[level.index()] = cursor.clone();
            }
            drop(compactions);
            return self.begin(keyspace, running).map_err(|error| (*id, error));
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        if !waits && compactions.running.is_empty() && compactions.manual.is_empty() {
            self.settled_epoch.store(epoch, Ordering::Release);
            drop(compactions);
            self.notify();
        }
        Ok(Chosen::Nothing(held))
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
            Candidate {
                keyspace: keyspace.id,
                version: Arc::clone(&view.tree.version),
                runs: keyspace.counted_runs(&view).saturating_sub(leaving),
                limits: keyspace.limits(),
                deadline: keyspace.deadline(),
            }
        };
        let candidates: Vec<Candidate> = keyspaces.iter().map(candidate).collect();
        let order = compactions.turns.order(&candidates, self.now_ms());
        order.into_iter().map(|at| Arc::clone(&keyspaces[at])).collect()
    }

    /// What the planner wants next in `keyspace`. A policy that panics is replaced and its successor asked.
    fn plan_for(&self, compactions: &mut Compactions, keyspace: &Arc<KeyspaceCore>) -> Result<Wanted> {
        keyspace.ask(|policy| self.plan_by(policy, compactions, keyspace))?
    }

    /// What the planner wants next in `keyspace` by `policy`: a user's request first.
    fn plan_by(
        &self,
        policy: &dyn CompactionPolicy,
        compactions: &mut Compactions,
        keyspace: &Arc<KeyspaceCore>,
    ) -> Result<Wanted> {
        let Jobs { plans: running, made, cursors, .. } = compactions.jobs_of(keyspace.id);
        let (oldest, newest) = self.snapshot_ends();
        let snapshots = (oldest, newest.filter(|_| !planted::active(Bug::LossIgnoresSnapshots)));
        let tree = Arc::clone(&keyspace.view.load().tree);
        let version = &tree.version;
        let now_ms = self.now_ms();
        let has_counted = keyspace.has_counted_reads.load(Ordering::Relaxed);
        let counters = policy.counts_reads().then(|| if has_counted { tree.reads() } else { BTreeMap::new() });
        let forgets = planted::active(Bug::PickedTwice)
            || planted::active(Bug::SwitchForgetsRunning) && keyspace.steering.load().has_departed();
        let view = LsmView::new(version, Sizes::from(&keyspace.options))
            .with_running(if forgets { &[] } else { &running })
            .with_busy(made)
            .with_cursors(&cursors)
            .with_counters(counters.as_ref())
            .with_snapshots(snapshots.0, snapshots.1)
            .with_losses(keyspace.may_lose_oldest())
            .with_last_write(keyspace.last_write_ms(now_ms))
            .at(now_ms);
        let paid = keyspace.paid_by_reads(policy, &view);
        let view = view.with_read_work(paid.as_ref());
        keyspace.await_reads(policy, &view);
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
                        snapshots,
                        steering: keyspace.steering.load_full(),
                    };
                    let plan = self.ask_within(policy, &mut compactions.refused, keyspace, &view, seen);
                    let plan = plan.map(|plan| self.scheduler().shape(policy, &view, plan));
                    (plan.or_else(|| overdue(Urgency::Due)), None)
                }
            },
        };
        let Some(plan) = plan else { return Ok(Wanted::Nothing) };
        let reserved = compactions.running.iter().map(|running| running.reserved).sum();
        let trust_percent = FIRST_TRUST_PERCENT + compactions.distrust_percent;
        let (plan, reserved) = match self.fit(keyspace, &view, plan, reserved, trust_percent)? {
            Fit::Now(plan, reserved) => (*plan, reserved),
            Fit::Later(by_readers) => return Ok(Wanted::Later(by_readers)),
        };
        Ok(Wanted::Begin(Box::new(Next {
            facts: MergeProgress::begin(0, keyspace.id.0, &plan, &view),
            loss: if plan.loses(&view) { Loss::of(plan.files()) } else { Loss::default() },
            urgent_ms: keyspace.deadline().and_then(|deadline| deadline.urgent_from_ms(plan.files())),
            plan,
            reserved,
            manual,
        })))
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
            let edit = VersionEdit { removed: plan.removed(), added };
            let applied = match running.loss {
                Loss { files: 0, .. } => self.install(keyspace, running.decision.job, edit),
                _ => self.install_loss(keyspace, &running, edit),
            };
            self.unregister(&running);
            let took_ns = self.clock.mono_ns().saturating_sub(running.began_ns);
            if let Err(error) = applied {
                let ended = Ended { ending: ending_of(&error), took_ns, ..Ended::default() };
                self.tell_ended(keyspace, &running, ended);
                return Err(error);
            }
            self.counters.trivial_moves.add(moved);
            self.tell_ended(keyspace, &running, Ended { files_out: moved, took_ns, ..Ended::default() });
            return Ok(Chosen::Applied(keyspace.id));
        }
        let ctx = IoCtx { class: IoClass::Compaction(plan.output.level.0), job: JobId(running.decision.job) };
        // The version is read after the plan was made; other jobs may have changed it meanwhile, but not what this one reads:
        // its inputs are busy, and records only ever sink below it.
        let version = Arc::clone(&keyspace.view.load().tree.version);
        let entries = plan.files().map(|file| file.entries).sum();
        let options = Self::table_options(keyspace, &version, plan.output, entries, &plan.inputs);
        let handle = |meta: &Arc<FileMeta>| self.tables.handle(Arc::clone(meta));
        let began_ns = self.clock.mono_ns();
        let index = IoMeter::new(Arc::clone(&self.clock));
        let open = |meta: &Arc<FileMeta>| handle(meta).scan(0, ctx, &index).map(|scan| Arc::clone(scan.table()));
        // What cannot be read is said by the first step.
        let spans = Span::divide(plan, self.options.compaction_threads, open);
        let spans = spans.unwrap_or_else(|_| vec![Span::whole(plan)]);
        let divided_ns = self.clock.mono_ns().saturating_sub(began_ns);
        let snapshots = self.snapshot_seqs();
        let active = |(n, span)| {
            // Dividing is a part of the work.
            let meter = if n == 0 { Arc::clone(&index) } else { IoMeter::new(Arc::clone(&self.clock)) };
            Box::new(ActiveMerge {
                keyspace: Arc::clone(keyspace),
                running: Arc::clone(&running),
                span: n,
                job: MergeJob::new((plan, span), &version, snapshots.clone(), options, ctx, &meter, handle),
                read: 0,
                made: 0,
                stepped_ns: if n == 0 { divided_ns } else { 0 },
                meter,
                written: 0,
                installed: 0,
                installed_entries: 0,
                installed_files: 0,
                dead: 0,
            })
        };
        Ok(Chosen::Merge(spans.into_iter().enumerate().map(active).collect()))
    }
}

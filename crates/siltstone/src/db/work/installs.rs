//! How what merges have done becomes part of the tree, in parts or at once; and what is told of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use super::super::core::{Core, KeyspaceCore};
use super::{ActiveMerge, Jobs, Running};
use crate::compaction::decision::{Decision, Ended, Ending};
use crate::compaction::plan::{Action, Plan};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::io::{IoClass, IoCtx};
use crate::iter::file::LiveFile;
use crate::jobs::merge::Part;
use crate::jobs::{self, Outcome};
use crate::num::to_u64;
use crate::planted::{self, Bug};
use crate::version::{FileMeta, KeyspaceId, ManifestEdit, SstId, VersionEdit};

impl Core {
    /// Puts finished output files into the tree and takes out of the inputs what these hold, in one edit. Wherever a crash comes, the tree
    /// is a legal one: the rest of the merge is due again, or not.
    pub(super) fn install_part(&self, active: &mut ActiveMerge, part: &Part) -> Result<()> {
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
        self.install(&active.keyspace, running.decision.job, edit)?;
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
            let planned: BTreeMap<SstId, u64> = running.plan.files().map(|file| (file.id, file.bytes)).collect();
            let cut_off =
                |file: &Arc<FileMeta>| planned.get(&file.id).map_or(0, |bytes| bytes.saturating_sub(file.bytes));
            active.dead = part.rest.iter().flat_map(|input| &input.files).map(cut_off).sum();
            let mut metrics = active.keyspace.metrics.lock();
            metrics.temporary_bytes = metrics.temporary_bytes + active.temporary() - before;
        }
        // Room for writers, and work for those whose files this was in the way of.
        self.wake_compactions();
        self.notify();
        Ok(())
    }

    /// Puts what all spans of a merge have made into the tree.
    pub(super) fn install_merge(&self, spans: &[Box<ActiveMerge>], outcome: &Outcome) -> Result<()> {
        let active = &spans[0];
        let (plan, rest) = (&active.running.plan, active.running.rest.load_full());
        let place = plan.output;
        let added = outcome.files.iter().map(|file| (place.level, place.run, Arc::clone(file))).collect();
        let edit = VersionEdit { removed: rest.removed(), added };
        self.install(&active.keyspace, active.running.decision.job, edit)?;
        let linked = outcome.linked;
        let bytes_read = plan.input_bytes().saturating_sub(linked.bytes);
        let entries: u64 = outcome.files.iter().map(|file| file.entries).sum();
        let entries = entries.saturating_sub(linked.entries);
        self.counters.compactions.add(1);
        self.counters.compaction_bytes_linked.add(linked.bytes);
        self.counters.compaction_bytes_read.add(bytes_read);
        self.counters.compaction_bytes_written.add(outcome.bytes_written.saturating_sub(active.installed));
        self.counters.compaction_entries_written.add(entries);
        let ended = Ended {
            bytes_read,
            bytes_written: outcome.bytes_written,
            bytes_linked: linked.bytes,
            files_out: active.installed_files + to_u64(outcome.files.len()),
            entries_read: plan.files().map(|file| file.entries).sum::<u64>().saturating_sub(linked.entries),
            entries_written: active.installed_entries + entries,
            dropped_versions: outcome.counts.dropped_versions,
            dropped_tombstones: outcome.counts.dropped_tombstones,
            ..self.times(spans)
        };
        self.counters.compaction_entries_read.add(ended.entries_read);
        self.counters.dropped_versions.add(ended.dropped_versions);
        self.counters.dropped_tombstones.add(ended.dropped_tombstones);
        self.tell_ended(&active.keyspace, &active.running, ended);
        Ok(())
    }

    /// The record of a plan that is about to be carried out. Counted as `compaction_step` is.
    #[inline(never)]
    pub(super) fn decide(&self, keyspace: &KeyspaceCore, plan: &Plan) -> Arc<Decision> {
        let decision = self.foreseen(keyspace, plan, keyspace.steering.load().policy.name());
        Arc::new(Decision { job: self.new_job_id().0, ..decision })
    }

    /// What a merge has taken so far.
    fn times(&self, spans: &[Box<ActiveMerge>]) -> Ended {
        let io_ns = spans.iter().map(|span| span.meter.ns()).sum();
        let stepped_ns: u64 = spans.iter().map(|span| span.stepped_ns).sum();
        Ended {
            took_ns: self.clock.mono_ns().saturating_sub(spans[0].running.began_ns),
            cpu_ns: stepped_ns.saturating_sub(io_ns),
            io_ns,
            spans: to_u64(spans.len()),
            ..Ended::default()
        }
    }

    /// A merge comes to nothing: its files go, and its end is told.
    pub(super) fn abandon(&self, spans: &[Box<ActiveMerge>], ending: Ending) {
        let (mut passed, mut linked, mut bytes_written) = (0, 0, 0);
        for span in spans {
            self.discard(span.job.ids());
            let (read, written) = span.job.bytes_so_far();
            passed += read;
            linked += span.job.linked().bytes;
            bytes_written += written;
        }
        let bytes_read = u64::saturating_sub(passed, linked);
        let active = &spans[0];
        if active.installed > 0 {
            // What it wrote stays, and is counted; so is what that took.
            self.counters.compaction_bytes_read.add(bytes_read);
        }
        let ended = Ended { ending, bytes_read, bytes_written, ..self.times(spans) };
        self.tell_ended(&active.keyspace, &active.running, ended);
    }

    /// Keeps the record of a job that has ended, and tells the listener. Counted as `compaction_step` is.
    #[inline(never)]
    pub(super) fn tell_ended(&self, keyspace: &KeyspaceCore, running: &Running, ended: Ended) {
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

    /// Makes job `job`'s edit of a tree durable, publishes the new tree, and lets go of the files that it removed.
    pub(crate) fn install(&self, keyspace: &Arc<KeyspaceCore>, job: u64, edit: VersionEdit) -> Result<()> {
        self.install_if(keyspace, job, edit, || Ok(()))
    }

    /// The same for a plan that drops data which was not deleted. A snapshot that was taken since the plan was made may see it: then nothing
    /// happens. From here until the tree is published new ones wait, so that none sees the data first and misses it afterwards.
    pub(super) fn install_loss(
        &self,
        keyspace: &Arc<KeyspaceCore>,
        running: &Running,
        edit: VersionEdit,
    ) -> Result<()> {
        let (plan, loss) = (&running.plan, running.loss);
        let mut edit = edit;
        if planted::active(Bug::LostComesBack) {
            let newest = edit.removed.first().map(|(level, run, _)| (*level, *run));
            edit.removed.retain(|(level, run, _)| Some((*level, *run)) == newest);
        }
        let cancelled = |what: &str| Err(Error::new(ErrorKind::Cancelled, what));
        self.install_if(keyspace, running.decision.job, edit, || {
            if !keyspace.may_lose_oldest() {
                return cancelled("the keyspace may not lose its oldest data any more");
            }
            match self.keep_snapshots_out(plan) {
                Some(kept_out) => Ok(kept_out),
                None => cancelled("a snapshot sees what was to be dropped"),
            }
        })?;
        keyspace.metrics.lock().lose(loss);
        Ok(())
    }

    /// Makes new snapshots wait until the answer goes; none if one sees a file of `plan` already.
    fn keep_snapshots_out(&self, plan: &Plan) -> Option<KeptOut<'_>> {
        let snapshots = self.snapshots.lock();
        let newest = snapshots.keys().next_back().filter(|_| !planted::active(Bug::LossIgnoresSnapshots));
        if newest.is_some_and(|newest| plan.files().any(|file| file.min_seq <= *newest)) {
            return None;
        }
        self.losing.fetch_add(1, Ordering::AcqRel);
        Some(KeptOut(self))
    }

    /// The same if `allowed` says so, under the lock of the manifest; what it returns is held until the new tree is published.
    fn install_if<T>(
        &self,
        keyspace: &Arc<KeyspaceCore>,
        job: u64,
        edit: VersionEdit,
        allowed: impl FnOnce() -> Result<T>,
    ) -> Result<()> {
        let mut manifest = self.lock_manifest()?;
        if keyspace.dropped.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Cancelled, "the keyspace was dropped"));
        }
        let removed: BTreeSet<SstId> = edit.removed.iter().map(|(_, _, id)| *id).collect();
        let kept: BTreeSet<SstId> = edit.added.iter().map(|(_, _, file)| file.table()).collect();
        let told = self.copy_to_tell(&edit);
        let held = allowed()?;
        let before = Arc::clone(&keyspace.view.load().tree);
        manifest.commit(&[ManifestEdit::NextSst(self.next_sst()), ManifestEdit::Version(keyspace.id, edit)])?;
        let version = Arc::clone(&manifest.state().keyspaces[&keyspace.id].version);
        keyspace.set_tree(self.next_tree(keyspace, &version));
        let number = self.number_change();
        drop(held);
        drop(manifest);
        self.tell_change(keyspace.id, number, Some(job), told);
        self.sample_runs(keyspace);
        // A table goes with the last of its files. One that has lost them all never comes back: only a merge that holds a file links it.
        let shared = version.sliced();
        for LiveFile { table, .. } in before.files_of(&removed) {
            if !kept.contains(&table.id()) && !shared.contains_key(&table.id()) {
                table.mark_obsolete();
            } else if planted::active(Bug::SharedTableDeleted) {
                self.tables.purge_queue().push(table.id(), table.bytes());
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

    /// A merge has ended: no planner reckons with it any more.
    pub(super) fn withdraw(&self, spans: &[Box<ActiveMerge>]) {
        self.unregister(&spans[0].running);
        spans.iter().for_each(|span| span.give_back());
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

/// New snapshots wait while it is held.
struct KeptOut<'a>(&'a Core);

impl Drop for KeptOut<'_> {
    fn drop(&mut self) {
        {
            let _snapshots = self.0.snapshots.lock();
            self.0.losing.fetch_sub(1, Ordering::AcqRel);
        }
        self.0.notify();
    }
}

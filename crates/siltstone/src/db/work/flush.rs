//! The flush lane: the oldest immutable memtable becomes a file of L0.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::core::{Core, Trouble};
use super::super::read::{MemSlot, View};
use super::retry::Retry;
use super::{ActiveFlush, step_bytes};
use crate::compaction::plan::Place;
use crate::error::Result;
use crate::event::Event;
use crate::io::{IoClass, IoCtx, IoMeter, LaneStep, WorkClass};
use crate::jobs::flush::FlushJob;
use crate::jobs::{Outcome, Step};
use crate::planted::{self, Bug};
use crate::version::{KeyspaceId, LevelId, ManifestEdit, RunOrder, VersionEdit};
use crate::wal::SegmentId;

impl Core {
    /// A step of the flush lane.
    pub(crate) fn flush_step(&self) -> LaneStep {
        // Before the look whether there may be work: a listener can close the store.
        self.tell_if_untold();
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
            if let Some(active) = &state.active {
                self.flushing.begin(active.slot.table.bytes(), active.began_ns);
            }
        }
        let Some(active) = &mut state.active else {
            // What had failed need not be done any more.
            self.health.end_trouble(|trouble| trouble == Trouble::Flush);
            return self.flush_idle();
        };
        let began = self.clock.mono_ns();
        let new_id = || self.new_sst_id();
        let ctx = IoCtx { class: IoClass::Flush, job: active.id };
        let cx = self.job_cx(&new_id, self.options.direct.flushes, ctx, &active.meter);
        let step = active.job.step(&cx, step_bytes(&active.keyspace));
        let took = self.clock.mono_ns().saturating_sub(began);
        self.counters.flush_ns.add(took);
        let ended = match step {
            Ok(Step::More(bytes)) => {
                self.flushing.advance(bytes);
                self.take_bandwidth(bytes, WorkClass::Flush);
                self.retune();
                return LaneStep::Worked;
            }
            Ok(Step::Done(outcome)) => {
                let before = self.flushing.so_far();
                self.take_bandwidth(active.job.consumed().saturating_sub(before), WorkClass::Flush);
                self.install_flush(active, &outcome)
            }
            Err(error) => Err(error),
        };
        let active = state.active.take().expect("stepped above");
        self.flushing.end(ended.is_ok().then_some(took), self.clock.mono_ns());
        match ended {
            Ok(()) => {
                state.retry = Retry::default();
                self.health.end_trouble(|trouble| trouble == Trouble::Flush);
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
        if keyspace.dropped.load(Ordering::Acquire) {
            // Dropped while this was at work: nobody will ever name the files.
            drop(manifest);
            self.discard(active.job.ids());
            self.notify();
            return Ok(());
        }
        if !planted::active(Bug::TableBeforeLog) {
            self.sync_log_before(keyspace.id)?;
        }
        let order = RunOrder(manifest.state().keyspaces[&keyspace.id].next_run_order);
        let mut edits = vec![
            ManifestEdit::Flushed(keyspace.id, active.slot.table.max_seq()),
            ManifestEdit::LogFloor(self.log_floor(Some(&active.slot)).max(manifest.state().log_floor)),
            ManifestEdit::NextSst(self.next_sst()),
            ManifestEdit::LastSeq(self.visible_seq()),
        ];
        let mut told = None;
        if !outcome.files.is_empty() {
            let added = outcome.files.iter().map(|file| (LevelId(0), order, Arc::clone(file))).collect();
            let edit = VersionEdit { removed: Vec::new(), added };
            told = self.copy_to_tell(&edit);
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
        keyspace.note_written(active.slot.table.max_seq(), self.now_ms());
        self.immutable_bytes.fetch_sub(active.slot.table.bytes(), Ordering::AcqRel);
        let floor = manifest.state().log_floor;
        let number = told.as_ref().map_or(0, |_| self.number_change());
        drop(manifest);
        self.tell_change(keyspace.id, number, None, told);
        self.drop_log_before(floor);
        self.counters.flushes.add(1);
        self.counters.flush_bytes.add(outcome.bytes_written);
        self.counters.flushed_user_bytes.add(active.job.consumed());
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
    pub(super) fn log_floor(&self, flushed: Option<&Arc<MemSlot>>) -> SegmentId {
        // Read first: a memtable that is empty when we look at it can only get records of this segment or later ones.
        let mut floor = SegmentId(self.log_segment.load(Ordering::Acquire));
        for keyspace in self.keyspaces.load().values() {
            let view = keyspace.view.load();
            let slots = std::iter::once(&view.memtable).chain(&view.immutables);
            for slot in slots.filter(|slot| flushed.is_none_or(|flushed| !Arc::ptr_eq(slot, flushed))) {
                floor = floor.min(slot.first_segment().unwrap_or(floor));
            }
        }
        floor
    }
}

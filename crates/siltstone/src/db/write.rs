//! Writing: one copy into the log, one insert into the memtable, one store that makes it visible.
//!
//! Writers take turns at one lock. Under it there is no system call in the usual case: the log segment is mapped and the next
//! one prepared in the background, and a full memtable is only set aside, to be flushed by the flush lane. `Sync` writers sync
//! after they have let go of the lock, so those that come meanwhile share the next sync.
//!
//! A write becomes visible before its sync returns. If the sync fails the store is poisoned, and readers may have seen a write
//! that a reopened store does not have: the same holds for every `Buffered` write and a power loss.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::{Core, FLUSH_LANE, KeyspaceCore, LOG_LANE, Trouble};
use super::read::{MemSlot, View, dropped};
use crate::batch::{Batch, check_sizes};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::key::{Kind, SeqNo, Trailer};
use crate::memtable::{self, ArenaPool, MemtableWriter};
use crate::num::to_u64;
use crate::schedule::WriteControl;
use crate::trace;
use crate::version::KeyspaceId;
use crate::wal::{LogPos, LogWriter};

/// What a write survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Durability {
    /// Nothing: the log is left out, and the write is durable once its memtable is flushed. After a crash such a write can be
    /// missing though a later one is there, and after a [`close`](crate::Db::close) without a [`flush`](crate::Db::flush); of a batch
    /// over several keyspaces the part of one may be there and that of another not.
    None,
    /// The death of the process, however sudden. A power loss may take the last moments. The default.
    #[default]
    Buffered,
    /// A power loss. Concurrent writers share a sync.
    Sync,
}

/// What the writer lock guards.
pub(crate) struct WriteState {
    /// The end of the log; none in a store opened read-only, and after `close`.
    pub(crate) log: Option<LogWriter>,
    pub(crate) last_seq: SeqNo,
    pub(crate) memtables: BTreeMap<KeyspaceId, ActiveMemtable>,
    /// Bytes of all mutable memtables.
    pub(crate) active_bytes: u64,
    /// Where the last record that was logged ends.
    pub(crate) log_end: LogPos,
    /// The log has come to a new segment: look whether it is too long.
    pub(crate) log_rolled: bool,
    /// Where writes are recorded while a trace is.
    pub(crate) trace: Option<Box<trace::Buffer>>,
}

/// A keyspace's mutable memtable.
pub(crate) struct ActiveMemtable {
    pub(crate) keyspace: Arc<KeyspaceCore>,
    pub(crate) writer: MemtableWriter,
    pub(crate) slot: Arc<MemSlot>,
}

impl ActiveMemtable {
    /// An empty one like this.
    fn next(&self, arenas: &Arc<ArenaPool>) -> ActiveMemtable {
        let keyspace = Arc::clone(&self.keyspace);
        let (writer, table) = memtable::new_in(keyspace.options.memtable, self.slot.table.full_bytes(), arenas);
        ActiveMemtable { keyspace, writer, slot: MemSlot::new(table) }
    }

    /// Makes the memtable an immutable one and begins a new one; returns the bytes of the old one.
    pub(crate) fn set_aside(&mut self, arenas: &Arc<ArenaPool>) -> u64 {
        let keyspace = Arc::clone(&self.keyspace);
        let full = std::mem::replace(self, self.next(arenas));
        let (fresh, bytes) = (Arc::clone(&self.slot), full.slot.table.bytes());
        keyspace.change_view(|view| {
            let mut immutables = Vec::with_capacity(view.immutables.len() + 1);
            immutables.push(full.slot);
            immutables.extend(view.immutables.iter().cloned());
            View { memtable: fresh, immutables, tree: Arc::clone(&view.tree) }
        });
        bytes
    }

    #[inline]
    fn insert(&mut self, key: &[u8], trailer: Trailer, value: &[u8]) -> u64 {
        let before = self.slot.table.bytes();
        self.writer.insert(key, trailer, value);
        self.slot.table.bytes() - before
    }
}

/// Why a writer must wait.
#[derive(Clone, Copy)]
enum Stall {
    Runs {
        runs: u64,
        limit: u64,
    },
    Memory {
        bytes: u64,
        limit: u64,
    },
    /// The write control lets compaction go first.
    Shape,
    Ingest,
}

impl Core {
    /// Writes one record.
    pub(crate) fn write_one(
        &self,
        keyspace: &KeyspaceCore,
        kind: Kind,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<()> {
        check_sizes(key, value)?;
        let bytes = to_u64(key.len() + value.len());
        let mut state = self.lock_for_writing(std::slice::from_ref(&keyspace.id))?;
        let WriteState { log, last_seq, memtables, active_bytes, log_end, log_rolled, trace } = &mut *state;
        let active = memtables.get_mut(&keyspace.id).ok_or_else(|| dropped(keyspace))?;
        let seq = SeqNo(last_seq.0 + 1);
        let mut position = None;
        if durability != Durability::None {
            let log = log.as_mut().expect("lock_for_writing has checked that the store is writable");
            let at = self.poison_on_failure(log.append_record(seq, keyspace.id, kind, key, value))?;
            active.slot.note_segment(at.segment);
            self.after_append(log, at, log_end, log_rolled);
            position = Some(at);
        }
        if kind == Kind::Delete {
            self.note_delete(active);
        }
        *active_bytes += active.insert(key, Trailer::new(seq, kind), value);
        *last_seq = seq;
        self.visible.store(seq.0, Ordering::Release);
        if let Some(trace) = trace {
            trace.write(kind, keyspace.id, key, value, durability);
        }
        match kind {
            Kind::Delete => self.counters.deletes.add(1),
            _ => self.counters.puts.add(1),
        }
        self.counters.user_bytes_written.add(bytes);
        let due = keyspace.pace.charge(bytes);
        drop(state);

        if let (Some(position), Durability::Sync) = (position, durability) {
            self.sync_log(position)?;
        }
        if let Some(due) = due {
            self.pay(keyspace, due);
        }
        Ok(())
    }

    /// Writes a batch.
    pub(crate) fn write_batch(&self, batch: &Batch, durability: Durability) -> Result<()> {
        if batch.is_empty() {
            return self.health.check_write();
        }
        let mut ids: Vec<KeyspaceId> = Vec::new();
        let mut bytes: Vec<u64> = Vec::new();
        for record in batch.records() {
            let size = to_u64(record.key.len() + record.value.len());
            match ids.binary_search(&record.keyspace) {
                Ok(at) => bytes[at] += size,
                Err(at) => {
                    ids.insert(at, record.keyspace);
                    bytes.insert(at, size);
                }
            }
        }
        let mut state = self.lock_for_writing(&ids)?;
        let WriteState { log, last_seq, memtables, active_bytes, log_end, log_rolled, trace } = &mut *state;
        if let Some(id) = ids.iter().find(|id| !memtables.contains_key(id)) {
            return Err(Error::new(ErrorKind::NotFound, format!("keyspace {} of the batch was dropped", id.0)));
        }
        let first = SeqNo(last_seq.0 + 1);
        let mut position = None;
        if durability != Durability::None {
            let log = log.as_mut().expect("lock_for_writing has checked that the store is writable");
            let at = self.poison_on_failure(log.append_batch(first, batch.count(), batch.payload()))?;
            for id in &ids {
                memtables[id].slot.note_segment(at.segment);
            }
            self.after_append(log, at, log_end, log_rolled);
            position = Some(at);
        }
        let mut seq = first;
        for record in batch.records() {
            let active = memtables.get_mut(&record.keyspace).expect("checked above");
            if record.kind == Kind::Delete {
                self.note_delete(active);
            }
            *active_bytes += active.insert(record.key, Trailer::new(seq, record.kind), record.value);
            *last_seq = seq;
            seq.0 += 1;
        }
        // One store makes the whole batch visible.
        self.visible.store(last_seq.0, Ordering::Release);
        if let Some(trace) = trace {
            trace.batch(batch, durability);
        }
        self.counters.deletes.add(u64::from(batch.deletes()));
        self.counters.puts.add(u64::from(batch.count() - batch.deletes()));
        self.counters.user_bytes_written.add(batch.user_bytes());
        let charge = |(id, bytes)| {
            let keyspace = &memtables[id].keyspace;
            Some((Arc::clone(keyspace), keyspace.pace.charge(bytes)?))
        };
        let dues: Vec<_> = ids.iter().zip(bytes).filter_map(charge).collect();
        drop(state);

        if let (Some(position), Durability::Sync) = (position, durability) {
            self.sync_log(position)?;
        }
        for (keyspace, due) in dues {
            self.pay(&keyspace, due);
        }
        Ok(())
    }

    /// Notes a delete in a memtable: the first one starts the clock of `delete_by`.
    #[inline]
    fn note_delete(&self, active: &ActiveMemtable) {
        if active.slot.note_delete(|| self.now_ms()) && active.keyspace.options.delete_by.is_some() {
            self.wake(FLUSH_LANE);
        }
    }

    /// Makes everything up to `position` of the log durable.
    pub(crate) fn sync_log(&self, position: LogPos) -> Result<()> {
        let Some(log) = &self.log else {
            return Err(read_only());
        };
        self.counters.log_syncs.add(1);
        self.poison_on_failure(log.sync_to(position))
    }

    pub(crate) fn poison_on_failure<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && error.kind() == ErrorKind::Poisoned
        {
            self.health.poison(error);
            self.notify();
        }
        result
    }

    /// Whether the store may be written to.
    #[inline]
    pub(crate) fn check_write(&self) -> Result<()> {
        self.health.check_write()?;
        if self.read_only { Err(read_only()) } else { Ok(()) }
    }

    /// The writer lock, once every keyspace of `ids` has room for a write.
    fn lock_for_writing(&self, ids: &[KeyspaceId]) -> Result<parking_lot::MutexGuard<'_, WriteState>> {
        let mut waited = None;
        self.lock_with_room(ids, &mut waited).inspect_err(|_| drop_stall(self, waited.take()))
    }

    /// The same; for whom and since when it has waited, if it fails, is `waited`.
    #[inline]
    fn lock_with_room(
        &self,
        ids: &[KeyspaceId],
        waited: &mut Option<(KeyspaceId, u64)>,
    ) -> Result<parking_lot::MutexGuard<'_, WriteState>> {
        loop {
            let mut state = self.writer.lock();
            self.check_write()?;
            let mut stalled = None;
            for id in ids {
                if let Err(stall) = self.make_room(&mut state, *id) {
                    stalled = Some((*id, stall));
                    break;
                }
            }
            let Some((id, stall)) = stalled else {
                if waited.is_none() {
                    return Ok(state);
                }
                // Without the lock: a listener may close the store.
                drop(state);
                drop_stall(self, waited.take());
                continue;
            };
            drop(state);
            let keyspace =
                self.keyspace(id).ok_or_else(|| Error::new(ErrorKind::NotFound, "the keyspace was dropped"))?;
            if waited.is_none() {
                self.counters.stalls.add(1);
                keyspace.waits.stalls.add(1);
                self.tell_if_untold();
                self.tell(&Event::Stall { keyspace: id, reason: stall.to_string() });
                *waited = Some((id, self.clock.mono_ns()));
            }
            self.wake(FLUSH_LANE);
            self.wake_compactions();
            self.wait(|| {
                self.health.check_write().is_err()
                    || keyspace.dropped.load(Ordering::Acquire)
                    || self.ended(stall, &keyspace).is_some()
            })?;
            if let Some(Err(error)) = self.ended(stall, &keyspace) {
                return Err(error);
            }
        }
    }

    /// Sets the memtable aside if it is full; says why the writer must wait if there is no room for another.
    fn make_room(&self, state: &mut WriteState, id: KeyspaceId) -> std::result::Result<(), Stall> {
        let Some(active) = state.memtables.get(&id) else {
            return Ok(());
        };
        if active.keyspace.ingesting.load(Ordering::Acquire) {
            return Err(Stall::Ingest);
        }
        if active.keyspace.options.write_control == WriteControl::CompactionFirst && !self.has_shape(&active.keyspace) {
            return Err(Stall::Shape);
        }
        let keyspace = &active.keyspace;
        let full = active.slot.table.bytes() >= active.slot.table.full_bytes();
        let budget_used = state.active_bytes >= self.options.write_memory_bytes / 2;
        if !full && !budget_used && !state.log_rolled {
            return Ok(());
        }
        // Memory and log belong to all keyspaces: the memtable goes that takes the most of them, whoever writes.
        let goes = if full {
            id
        } else if budget_used {
            let largest = state.memtables.iter().max_by_key(|(_, active)| active.slot.table.bytes());
            *largest.expect("the keyspace itself is there").0
        } else if let Some(oldest) = self.holds_long_log(state) {
            oldest
        } else {
            state.log_rolled = false;
            return Ok(());
        };
        // What another keyspace owes is not this writer's debt.
        let stall = if goes == id { self.stall(keyspace) } else { self.stall_memory(keyspace) };
        if let Some(stall) = stall {
            return Err(stall);
        }
        self.rotate(state, goes);
        Ok(())
    }

    /// Notes where the log is now, and wakes its lane when it should prepare the next segment.
    #[inline]
    fn after_append(&self, log: &mut LogWriter, at: LogPos, log_end: &mut LogPos, log_rolled: &mut bool) {
        if log_end.segment == at.segment {
            self.counters.log_bytes.add(at.offset - log_end.offset);
        } else {
            self.counters.log_bytes.add(at.offset);
            self.log_segment.store(at.segment.0, Ordering::Release);
            *log_rolled = true;
            self.wake(LOG_LANE);
        }
        *log_end = at;
        if log.is_prepare_due() {
            self.wake(LOG_LANE);
        }
    }

    /// The mutable memtable that holds on to the oldest segment, if the log from there on is longer than its limit. What is older goes when its
    /// memtables are flushed, or is about to be removed.
    fn holds_long_log(&self, state: &WriteState) -> Option<KeyspaceId> {
        let firsts = state.memtables.iter().filter_map(|(id, active)| Some((*id, active.slot.first_segment()?)));
        let (id, oldest) = firsts.min_by_key(|(_, segment)| *segment)?;
        (self.log.as_ref()?.bytes_from(oldest) > self.options.log.max_bytes).then_some(id)
    }

    /// Sets a memtable aside to be flushed and begins a new one.
    pub(crate) fn rotate(&self, state: &mut WriteState, id: KeyspaceId) {
        let Some(active) = state.memtables.get_mut(&id) else {
            return;
        };
        if active.slot.table.is_empty() {
            return;
        }
        self.arenas.touch(self.clock.mono_ns());
        let bytes = active.set_aside(&self.arenas);
        state.active_bytes = state.active_bytes + active.slot.table.bytes() - bytes;
        self.immutable_bytes.fetch_add(bytes, Ordering::AcqRel);
        self.retune();
        self.wake(FLUSH_LANE);
    }

    /// Why a writer of `keyspace` with a full memtable must wait now, if it must.
    fn stall(&self, keyspace: &KeyspaceCore) -> Option<Stall> {
        if keyspace.ingesting.load(Ordering::Acquire) {
            return Some(Stall::Ingest);
        }
        if keyspace.options.write_control == WriteControl::CompactionFirst && !self.has_shape(keyspace) {
            return Some(Stall::Shape);
        }
        let runs = keyspace.counted_runs(&keyspace.view.load());
        let limit = keyspace.stop_runs.load(Ordering::Relaxed);
        // When nothing is to be merged, waiting changes nothing: the tree has the shape that its strategy wants.
        let in_vain = || self.has_shape(keyspace) && keyspace.stuck.lock().is_none();
        if runs >= limit && !in_vain() {
            return Some(Stall::Runs { runs, limit });
        }
        self.stall_memory(keyspace)
    }

    /// Whether nothing is to be flushed or merged in a keyspace.
    fn has_shape(&self, keyspace: &KeyspaceCore) -> bool {
        keyspace.settled_epoch.load(Ordering::Acquire) == self.work_epoch.load(Ordering::Acquire)
            && keyspace.view.load().immutables.is_empty()
    }

    /// Whether a writer who stopped for `stall` may try again, or what to tell it instead; none while it must wait.
    fn ended(&self, stall: Stall, keyspace: &KeyspaceCore) -> Option<Result<()>> {
        let remaining = match stall {
            // Other keyspaces may have used it up: then no limit of its own matters yet.
            Stall::Memory { .. } => self.stall_memory(keyspace),
            _ => self.stall(keyspace),
        };
        let Some(remaining) = remaining else { return Some(Ok(())) };
        // A full disk must not hang its writers: they are told, and may try again.
        let trouble = self.health.trouble(|trouble| match remaining {
            Stall::Memory { .. } => trouble == Trouble::Flush,
            // Memtables that wait for their flush count as runs.
            Stall::Runs { .. } | Stall::Shape | Stall::Ingest => {
                trouble == Trouble::Flush || trouble.is_of_merges(keyspace.id)
            }
        });
        trouble.or_else(|| Self::hopeless(remaining, keyspace)).map(Err)
    }

    /// Why waiting is in vain: there are too many runs, and the policy's plans are refused.
    fn hopeless(stall: Stall, keyspace: &KeyspaceCore) -> Option<Error> {
        // A flush makes another tree, for which the policy may have a better plan.
        if !matches!(stall, Stall::Runs { .. }) || !keyspace.view.load().immutables.is_empty() {
            return None;
        }
        let stuck = keyspace.stuck.lock();
        let why = stuck.as_ref()?;
        Some(Error::invalid(format!("{stall}, and nothing is merged: {why}")))
    }

    /// Immutable memtables may take what the mutable ones leave of the budget.
    fn stall_memory(&self, keyspace: &KeyspaceCore) -> Option<Stall> {
        let bytes = self.immutable_bytes.load(Ordering::Acquire);
        let limit = self.immutable_limit(keyspace);
        (bytes >= limit).then_some(Stall::Memory { bytes, limit })
    }
}

fn drop_stall(core: &Core, waited: Option<(KeyspaceId, u64)>) {
    if let Some((keyspace, since)) = waited {
        let ns = core.clock.mono_ns().saturating_sub(since);
        core.counters.stall_ns.add(ns);
        if let Some(keyspace) = core.keyspace(keyspace) {
            keyspace.waits.stall_ns.add(ns);
        }
        core.tell(&Event::StallEnd { keyspace, waited: std::time::Duration::from_nanos(ns) });
    }
}

pub(crate) fn read_only() -> Error {
    Error::new(ErrorKind::ReadOnly, "the store was opened read-only")
}

impl std::fmt::Display for Stall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stall::Runs { runs, limit } => write!(f, "{runs} sorted runs, the limit is {limit}"),
            Stall::Memory { bytes, limit } => {
                write!(f, "{bytes} bytes of memtables wait for their flush, the limit is {limit}")
            }
            Stall::Shape => write!(f, "write_control is compaction-first, and the tree has not its shape yet"),
            Stall::Ingest => write!(f, "files are being ingested"),
        }
    }
}

//! The log lane: prepares the next segment and memory for memtables and the block cache, removes segments and files that nothing needs any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::core::{Core, KeyspaceCore, LOG_LANE};
use crate::cache::{Obsolete, sst_path};
use crate::error::{ErrorKind, Result};
use crate::event::Event;
use crate::io::{IoClass, IoCtx, LaneStep};
use crate::version::ManifestEdit;
use crate::wal::SegmentId;

/// Of what is free on the disk, files that are kept to be written over take one in so many bytes at most.
const SPARE_SHARE_OF_FREE: u64 = 8;
/// So many obsolete tables are removed before the lane looks again at what the writer needs.
const REMOVED_A_STEP: usize = 8;
/// What is kept for writers is kept for so long after they used the last of it.
const SPARES_LAST: Duration = Duration::from_secs(10);

impl Core {
    /// Lets the log lane remove what is older than `floor`.
    pub(super) fn drop_log_before(&self, floor: SegmentId) {
        self.obsolete_before.fetch_max(floor.0, Ordering::AcqRel);
        self.wake(LOG_LANE);
    }

    /// A step of the log lane: prepares the next segment, memory of memtables and of the cache, removes segments and files that nothing needs. A
    /// little of each, since a fast writer always wants one more segment, and what he leaves behind has to go all the same.
    pub(crate) fn log_step(&self) -> LaneStep {
        let Some(log) = &self.log else {
            return LaneStep::Idle;
        };
        if !self.may_work() {
            // Reads go on in a store that takes no more writes.
            return if self.cache.prepare() { LaneStep::Worked } else { LaneStep::Idle };
        }
        // First, since the next segment may be written over one of them.
        self.remove_segments();
        let mut worked = match self.poison_on_failure(log.prepare()) {
            Ok(worked) => worked,
            Err(error) if error.kind() == ErrorKind::Poisoned => return LaneStep::Idle,
            Err(error) => {
                // Not needed yet: the writer creates its segment itself if it must, and is told what is wrong then.
                self.tell(&Event::Error { doing: "prepare a log segment".to_owned(), error });
                self.release_spares();
                while self.remove_tables(|| self.most_spare_bytes()) {}
                self.cache.prepare();
                return LaneStep::IdleFor(Duration::from_millis(100));
            }
        };
        worked |= self.prepare_memtables();
        worked |= self.cache.prepare();
        worked |= self.remove_tables(|| self.most_spare_bytes());
        if worked {
            return LaneStep::Worked;
        }
        // Kept for writers, as long as they come.
        let spares_ns = self.tables.purge_queue().spares_touched_ns().max(log.spares_touched_ns());
        match spares_ns.max(self.arenas.touched_ns()) {
            Some(touched_ns) => {
                let unused = Duration::from_nanos(self.clock.mono_ns().saturating_sub(touched_ns));
                if unused < SPARES_LAST {
                    return LaneStep::IdleFor(SPARES_LAST - unused);
                }
                self.rest();
                LaneStep::Worked
            }
            None => LaneStep::Idle,
        }
    }

    /// Makes memory ready for the memtables that are written to; whether there was anything to do.
    fn prepare_memtables(&self) -> bool {
        // Of one that takes longer to fill, what is made ready for the next one would be given back and made again.
        let begun = Duration::from_nanos(self.clock.mono_ns().saturating_sub(self.arenas.begun_ns()));
        let fast = begun < SPARES_LAST;
        self.keyspaces.load().values().any(|keyspace| keyspace.view.load().memtable.table.prepare(fast))
    }

    /// How much of obsolete tables may be kept to be written over: as much as the tables of the tree take.
    fn most_spare_bytes(&self) -> u64 {
        if self.options.extra_space_bytes > 0 || self.health.is_closed() {
            return 0;
        }
        let tables: u64 =
            self.keyspaces.load().values().map(|keyspace| keyspace.view.load().tree.version.bytes()).sum();
        let free = self.fs.free_bytes(&self.dir).unwrap_or(0);
        tables.min(free / SPARE_SHARE_OF_FREE)
    }

    /// Deletes the files that were kept to be written over: old segments now, tables soon.
    pub(crate) fn give_up_spares(&self) {
        if self.release_spares() {
            self.wake(LOG_LANE);
        }
    }

    /// The same, but all now, and all else that is held ready for the next writes.
    pub(crate) fn rest_now(&self) {
        self.rest();
        self.remove_segments();
        while self.remove_tables(|| 0) {}
    }

    /// Nobody writes: gives back what is held ready for writers, log segments, files to be written over, memory of memtables.
    fn rest(&self) {
        self.rest_log();
        if let Some(log) = &self.log {
            log.rest();
        }
        self.arenas.release();
        self.writer.lock().memtables.values().for_each(|active| active.writer.rest());
        self.tables.purge_queue().release_spares();
    }

    /// Gives back the log, if none of it is needed.
    pub(crate) fn rest_log(&self) {
        if let Err(error) = self.poison_on_failure(self.try_rest_log()) {
            // All that is lost is some of the disk.
            self.tell(&Event::Error { doing: "give back a log segment".to_owned(), error });
        }
    }

    /// If all that was logged is in tables, or of keyspaces that were dropped: the log goes on in a short segment, and those before are not needed.
    fn try_rest_log(&self) -> Result<()> {
        {
            let mut state = self.writer.lock();
            let is_needed = |keyspace: &Arc<KeyspaceCore>| {
                let view = keyspace.view.load();
                !view.immutables.is_empty() || view.memtable.first_segment().is_some()
            };
            if !self.may_work() || self.keyspaces.load().values().any(is_needed) {
                return Ok(());
            }
            let Some(log) = &mut state.log else { return Ok(()) };
            if log.rest()? {
                state.log_end = log.end();
                self.log_segment.store(state.log_end.segment.0, Ordering::Release);
            }
        }
        let mut manifest = self.lock_manifest()?;
        let floor = self.log_floor(None);
        if floor > manifest.state().log_floor {
            manifest.commit(&[ManifestEdit::LogFloor(floor), ManifestEdit::LastSeq(self.visible_seq())])?;
            self.obsolete_before.fetch_max(floor.0, Ordering::AcqRel);
        }
        Ok(())
    }

    fn release_spares(&self) -> bool {
        if let Some(log) = &self.log {
            log.remove_spares();
        }
        self.tables.purge_queue().release_spares()
    }

    /// Removes the log segments that no open would need. Failing is fine: it is tried again at the next step.
    fn remove_segments(&self) {
        if let Some(log) = &self.log {
            let floor = SegmentId(self.obsolete_before.load(Ordering::Acquire));
            let _ = log.remove_before(floor);
        }
    }

    /// Removes some of the tables that no reader needs any more, or keeps up to `most_spare_bytes` of them. Failing is fine: the next open removes
    /// them. Returns whether there was any.
    fn remove_tables(&self, most_spare_bytes: impl FnOnce() -> u64) -> bool {
        let queue = self.tables.purge_queue();
        let _clearing = queue.clearing();
        let obsolete = queue.take(REMOVED_A_STEP);
        let any = !obsolete.is_empty();
        let most_bytes = if obsolete.iter().all(|file| file.must_go) { 0 } else { most_spare_bytes() };
        let mut removed = false;
        for Obsolete { id, bytes, must_go } in obsolete {
            if !must_go && most_bytes > 0 && queue.keep(id, bytes, most_bytes, self.clock.mono_ns()) {
                continue;
            }
            let _ = self.fs.remove_file(&sst_path(&self.dir, id), IoCtx::foreground(IoClass::Meta));
            queue.deleted(bytes);
            removed = true;
        }
        if removed && self.options.extra_space_bytes > 0 {
            // A merge may have waited for the space.
            self.wake_compactions();
        }
        any
    }
}
